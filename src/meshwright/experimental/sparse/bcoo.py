"""Sparse arrays in coordinate format, which store nonzero elements and their positions.

A product gathers the necessary rows of the dense operand and adds their products. Elements with positions past the end
are ignored, so that the number of elements (``nse``) can be static. Elements at the same position are added.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import meshwright.numpy as mnp
from meshwright.core.expected import as_integer, as_integers
from meshwright.core.late import LateModule
from meshwright.core.pytree_classes import register_pytree_node
from meshwright.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from meshwright.experimental.sparse import layout
from meshwright.experimental.sparse.base import JAXSparse
from meshwright.ir.tracing import Tracer, typeof
from meshwright.numpy.axes import normal_axes
from meshwright.transforms.vmap import vmap
from meshwright.transforms.vmappable import register_vmappable

product: Any = LateModule("meshwright.experimental.sparse.product")
structure: Any = LateModule("meshwright.experimental.sparse.structure")


class BCOO(JAXSparse):
    """A sparse array of ``shape`` with the elements ``data[k]`` at the positions ``indices[k]``.

    It is a pytree of ``data``, shape (batch..., nse, dense...), and ``indices``, shape (batch..., nse, n_sparse). The
    first ``n_batch`` dimensions of ``shape`` are those of the batch, each entry with positions of its own (a size may
    be 1 in ``data`` or ``indices``, if all have the same); the next ``n_sparse`` ones are what ``indices`` are
    positions in; of the last ``n_dense`` ones all entries are stored. Derivatives are with respect to ``data``, and
    ``vmap`` maps batch dimensions.

    Raises:
      ShapeError: ``data`` or ``indices`` has another shape.
      DTypeError: ``indices`` are not integers.

    Example:
      >>> from meshwright.experimental.sparse import BCOO
      >>> m = BCOO.fromdense(mnp.array([[0.0, 2.0], [3.0, 0.0], [0.0, 0.0]]))
      >>> m
      BCOO(float32[3, 2], nse=2)
      >>> m @ mnp.array([1.0, 10.0])
      Array([20.,  3.,  0.], dtype=float32)
    """

    def __init__(
        self, args: tuple[Any, Any], *, shape: Sequence[int], indices_sorted: bool = False, unique_indices: bool = False
    ) -> None:
        super().__init__(args, shape=shape)
        self.data, self.indices = data, indices = tuple(map(mnp.asarray, args))
        self.indices_sorted, self.unique_indices = bool(indices_sorted), bool(unique_indices)
        if indices.ndim < 2 or not self._fits():
            raise ShapeError(
                "BCOO: expected data of shape (*batch, nse, *dense) and indices of shape (*batch, nse, n_sparse), "
                f"which fit shape {self.shape}, got {typeof(data)} and {typeof(indices)}"
            )
        if not mnp.issubdtype(indices.dtype, mnp.integer):
            raise DTypeError(f"BCOO: indices must be integers, got {typeof(indices)}")

    def _fits(self) -> bool:
        n, (nse, last) = self.n_batch, self.indices.shape[-2:]
        if self.n_dense < 0 or self.data.shape[n:] != (nse, *self.shape[n + last :]):
            return False
        return all(x in (1, s) for a in (self.data, self.indices) for x, s in zip(a.shape[:n], self.shape))

    @property
    def n_batch(self) -> int:  # type: ignore[override]
        """The number of leading dimensions of which each entry has positions of its own."""
        return self.indices.ndim - 2  # type: ignore[no-any-return]

    @property
    def n_sparse(self) -> int:  # type: ignore[override]
        """The number of dimensions that ``indices`` are positions in."""
        return int(self.indices.shape[-1])

    @property
    def n_dense(self) -> int:  # type: ignore[override]
        """The number of trailing dimensions of which all entries are stored."""
        return self.ndim - self.n_batch - self.n_sparse

    @property
    def nse(self) -> int:
        """The number of stored elements, for each entry of a batch."""
        return int(self.indices.shape[-2])

    @property
    def sparse_shape(self) -> tuple[int, ...]:
        return self.shape[self.n_batch : self.n_batch + self.n_sparse]

    @classmethod
    def fromdense(
        cls, mat: Any, *, nse: int | None = None, index_dtype: Any = np.int32, n_dense: int = 0, n_batch: int = 0
    ) -> BCOO:
        """The first ``nse`` nonzero elements of ``mat`` (for each entry of a batch), by default all of them.

        Args:
          n_batch: so many leading dimensions have positions of their own for each entry.
          n_dense: so many trailing dimensions are stored whole where any of their entries is not 0.

        Raises:
          ArgumentError: ``mat`` is traced, and ``nse`` is not given; or there are not so many dimensions.
        """
        mat = mnp.asarray(mat)
        batch, dense = layout.checked("BCOO.fromdense", mat.ndim, n_batch, n_dense)
        return _stored(mat, mnp.any(mat != 0, tuple(range(mat.ndim - dense, mat.ndim))), batch, nse, index_dtype)

    @classmethod
    def from_scipy_sparse(cls, mat: Any, *, index_dtype: Any = None) -> BCOO:
        """Convert a matrix of ``scipy.sparse``."""
        coo = mat.tocoo()
        indices = np.stack([coo.row, coo.col], 1).astype(index_dtype or np.int32)
        return cls((coo.data, indices), shape=coo.shape)

    @property
    def inside(self) -> Any:
        """Whether each position is within the array, shape (batch..., nse)."""
        return mnp.all(self.indices < np.array(self.sparse_shape, self.indices.dtype), -1)

    def with_data(self, data: Any) -> BCOO:
        """A sparse array with other elements at the same positions."""
        return BCOO(
            (data, self.indices), shape=self.shape, indices_sorted=self.indices_sorted,
            unique_indices=self.unique_indices,
        )  # fmt: skip

    def changed(self, data: Any, indices: Any, shape: Sequence[int] | None = None, unique: bool | None = None) -> BCOO:
        """A sparse array with other elements and positions, not known to be sorted."""
        unique = self.unique_indices if unique is None else unique
        return BCOO((data, indices), shape=self.shape if shape is None else shape, unique_indices=unique)

    def todense(self) -> Any:
        """The dense array."""
        return layout.per_batch(lambda m: added_at(m.data, m.indices, m.shape), self)

    def transpose(self, axes: Sequence[int] | None = None) -> BCOO:
        """Permute the dimensions; by default, reverse them.

        Raises:
          ArgumentError: batch, sparse and dense dimensions are not permuted among themselves.
        """
        order = tuple(range(self.ndim))[::-1] if axes is None else normal_axes(axes, self.ndim, "BCOO.transpose")
        if len(order) != self.ndim:
            raise ArgumentError(f"BCOO.transpose: expected the {self.ndim} dimensions in some order, got {axes}")
        n, s = self.n_batch, self.n_batch + self.n_sparse
        batch, sparse, dense = order[:n], order[n:s], order[s:]
        if set(batch) != set(range(n)) or set(dense) != set(range(s, self.ndim)):
            raise ArgumentError(
                f"BCOO.transpose: axes {tuple(order)} of {self!r} mix batch, sparse and dense dimensions; permute them "
                "among themselves, or make all sparse with update_layout(n_batch=0, n_dense=0)"
            )
        shape = tuple(self.shape[a] for a in order)
        moved = self.indices[..., np.array(sparse, int) - n].transpose(*batch, n, n + 1)
        data = self.data.transpose(*batch, n, *(d - self.n_sparse + 1 for d in dense))
        return self.changed(data, moved, shape)

    def reshape(self, *args: Any, **options: Any) -> BCOO:
        """The elements in row-major order in another shape, of which one size may be -1."""
        shape = args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args
        sizes = as_integers("BCOO.reshape", shape)
        if -1 in sizes:
            known = -int(np.prod(sizes))
            sizes = tuple(self.size // max(known, 1) if s == -1 else s for s in sizes)
        return structure.bcoo_reshape(self, new_sizes=sizes, **options)  # type: ignore[no-any-return]

    def update_layout(
        self, *, n_batch: int | None = None, n_dense: int | None = None, on_inefficient: str | None = "error"
    ) -> BCOO:
        """See :func:`bcoo_update_layout`."""
        options = {"n_batch": n_batch, "n_dense": n_dense, "on_inefficient": on_inefficient}
        return structure.bcoo_update_layout(self, **options)  # type: ignore[no-any-return]

    def astype(self, dtype: Any) -> BCOO:
        return structure.mapped(self, lambda data: data.astype(dtype))  # type: ignore[no-any-return]

    def sum(self, axis: int | Sequence[int] | None = None) -> Any:
        """Sum over dimensions, by default all of them; the result is sparse, if a dimension is left."""
        found = self.summed(axis)
        return found if found.ndim else found.todense()

    def summed(self, axis: int | Sequence[int] | None) -> BCOO:
        """The sum over dimensions as a sparse array."""
        summed = normal_axes(axis, self.ndim, "BCOO.sum")
        mat, n, s = self, self.n_batch, self.n_batch + self.n_sparse
        for d in sorted((d for d in summed if d < n), reverse=True):
            mat = layout.without_batch(mat, d)
        inside = layout.beside(mat, mat.inside)
        data = mnp.where(inside, mat.data, mnp.zeros((), mat.dtype))  # the remaining positions may all be valid
        data = data.sum(tuple(d - s + mat.n_batch + 1 for d in summed if d >= s)).astype(mat.dtype)
        kept = np.array([d - n for d in range(n, s) if d not in summed], int)
        return self.changed(
            data, mat.indices[..., kept], [self.shape[d] for d in range(self.ndim) if d not in summed], False
        )

    def sum_duplicates(self, nse: int | None = None, remove_zeros: bool = True) -> BCOO:
        """Add the elements at equal positions; the result is sorted and has ``nse`` elements.

        Inside traced functions ``nse`` must be given.
        """
        dense = self.todense()
        if remove_zeros:
            mask = mnp.any(dense != 0, tuple(range(self.ndim - self.n_dense, self.ndim)))
        else:
            mask = layout.per_batch(lambda m: added_at(mnp.ones(m.nse, bool), m.indices, m.sparse_shape), self)
        return _stored(dense, mask, self.n_batch, nse, self.indices.dtype)

    def sort_indices(self) -> BCOO:
        """Sort the elements by position."""
        return layout.per_batch(_sorted, self)  # type: ignore[no-any-return]

    # --- arithmetic -----------------------------------------------------------------------------------------
    def __neg__(self) -> BCOO:
        return self.with_data(-self.data)

    def __pos__(self) -> BCOO:
        return self

    def __abs__(self) -> BCOO:
        return structure.mapped(self, mnp.abs)  # type: ignore[no-any-return]

    def __pow__(self, exponent: Any) -> BCOO:
        if not isinstance(exponent, int) or exponent < 1:
            raise ArgumentTypeError(
                f"BCOO ** {exponent!r}: expected a positive integer; other powers of the zeros may be no zeros: use "
                "todense()"
            )
        return structure.mapped(self, lambda data: data**exponent)  # type: ignore[no-any-return]

    def __getitem__(self, index: Any) -> BCOO:
        return structure.at_index(self, index)  # type: ignore[no-any-return]

    def __len__(self) -> int:
        if not self.ndim:
            raise ShapeError("len() of a sparse array without dimensions")
        return self.shape[0]

    def __iter__(self) -> Iterator[BCOO]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        raise ArgumentTypeError(
            "a comparison of sparse arrays holds of most zeros, and is not sparse; compare their todense()"
        )

    __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]

    def __mul__(self, other: Any) -> BCOO:
        return structure.multiplied(self, other)  # type: ignore[no-any-return]

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> BCOO:
        return self.with_data(self.data / broadcast_at(self, other))

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, BCOO) and mnp.shape(other) == self.shape:
            return self.todense() + other
        if not isinstance(other, BCOO) or other.shape != self.shape:
            raise ArgumentTypeError(
                f"a BCOO of shape {self.shape} is added to {other!r}; expected a BCOO of the shape, or use todense()"
            )
        pair: Any = self, other
        if (self.n_batch, self.n_dense) != (other.n_batch, other.n_dense):
            pair = map(layout.flat, pair)
        a, b = map(layout.whole, pair)
        arrays = (mnp.concatenate(pair, a.n_batch) for pair in ((a.data, b.data), (a.indices, b.indices)))
        return a.changed(*arrays, unique=False)  # type: ignore[no-any-return]

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self + (-other)

    def __matmul__(self, other: Any) -> Any:
        return product.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return product.matmul(other, self)


def _unflatten(static: tuple[Any, ...], children: Sequence[Any]) -> BCOO:
    made = object.__new__(BCOO)  # without checks, as transformations use other values in place of arrays
    made.data, made.indices = children
    made.shape, made.indices_sorted, made.unique_indices = static
    return made


register_pytree_node(
    BCOO, lambda m: ((m.data, m.indices), (m.shape, m.indices_sorted, m.unique_indices)), _unflatten
)  # fmt: skip


def _element(part: Any, index: Any, mat: BCOO, axis: int) -> BCOO:
    """One entry of a batch dimension, for ``vmap``."""
    d = axis + mat.ndim if axis < 0 else axis
    if not 0 <= d < mat.n_batch:
        raise ArgumentError(
            f"vmap: in_axes names axis {axis} of {mat!r}, which is no batch dimension; use "
            "update_layout(n_batch=...), or None to pass it unmapped"
        )
    mat = layout.whole(mat)
    static = mat.shape[:d] + mat.shape[d + 1 :], mat.indices_sorted, mat.unique_indices
    return _unflatten(static, (part(mat.data, d), part(mat.indices, d)))


def _batch(whole: Any, size: int, mat: BCOO, axis: int) -> BCOO:
    """A batch of such sparse arrays, for ``vmap``."""
    d = axis + mat.ndim + 1 if axis < 0 else axis
    if not 0 <= d <= mat.n_batch:
        raise ArgumentError(
            f"vmap: out_axes names axis {axis} of a batch of {mat!r}; batch dimensions are the first ones: "
            f"expected 0 to {mat.n_batch}"
        )
    static = (*mat.shape[:d], size, *mat.shape[d:]), mat.indices_sorted, mat.unique_indices
    return _unflatten(static, (whole(size, mat.data, d), whole(size, mat.indices, d)))


register_vmappable(BCOO, int, int, _element, _batch, None)


def _stored(dense: Any, mask: Any, n_batch: int, nse: int | None, index_dtype: Any) -> BCOO:
    """The elements of a dense array where ``mask`` holds, which has its batch and sparse dimensions."""
    if nse is None and isinstance(mask, Tracer):
        raise ArgumentError("BCOO.fromdense: how many elements of a traced array are not 0 is not known; pass nse")
    if nse is None:
        count = int(mnp.max(mnp.count_nonzero(mask, tuple(range(n_batch, mask.ndim))), initial=0))
    else:
        count = as_integer("BCOO.fromdense: nse", nse)

    def stored(x: Any, kept: Any) -> BCOO:
        if not kept.ndim:  # there is no position past the end
            first = mnp.expand_dims(np.arange(count) == 0, tuple(range(1, x.ndim + 1)))
            data = mnp.where(first, x, mnp.zeros((), x.dtype))
            return BCOO((data, mnp.zeros((count, 0), index_dtype)), shape=x.shape, unique_indices=count <= 1)
        indices = mnp.stack(mnp.nonzero(kept, size=count, fill_value=kept.shape), 1).astype(index_dtype)
        return BCOO((taken(x, indices), indices), shape=x.shape, indices_sorted=True, unique_indices=True)

    for _ in range(n_batch):
        stored = vmap(stored)
    return stored(dense, mask)


def _sorted(mat: BCOO) -> BCOO:
    order = mnp.lexsort(tuple(reversed(columns(mat.indices)))) if mat.n_sparse else slice(None)
    moved = mat.data[order], mat.indices[order]
    return BCOO(moved, shape=mat.shape, indices_sorted=True, unique_indices=mat.unique_indices)


def columns(indices: Any) -> tuple[Any, ...]:
    return tuple(indices[:, d] for d in range(indices.shape[1]))


def taken(x: Any, indices: Any) -> Any:
    """The elements of ``x`` at the positions, along its leading dimensions; zeros for positions past the end."""
    count, dims = indices.shape
    if not dims:
        return mnp.broadcast_to(x, (count, *x.shape))
    if not all(x.shape[:dims]):
        return mnp.zeros((count, *x.shape[dims:]), x.dtype)
    return x.at[columns(indices)].get(mode="fill", fill_value=0)


def added_at(data: Any, indices: Any, shape: Sequence[int]) -> Any:
    """An array with ``data`` added at the positions; those past the end are dropped."""
    zeros = mnp.zeros(tuple(shape), data.dtype)
    if not indices.shape[1]:
        return zeros + data.sum(0).astype(data.dtype)
    return zeros.at[columns(indices)].add(data, mode="drop")


def broadcast_at(mat: BCOO, dense: Any) -> Any:
    """The elements of ``dense``, broadcast to the shape of ``mat``, at the positions of ``mat``."""
    dense = mnp.asarray(dense)
    if not dense.ndim:
        return dense
    found = layout.per_batch(lambda m, x: taken(x, m.indices), mat, mnp.broadcast_to(dense, mat.shape))
    return mnp.where(layout.beside(mat, mat.inside), found, mnp.ones((), dense.dtype))


def require_sparse(where: str, mat: Any) -> None:
    if not isinstance(mat, BCOO):
        raise ArgumentTypeError(f"{where}: expected a BCOO, got {mat!r}; BCOO.fromdense makes one")


def bcoo_fromdense(
    mat: Any, *, nse: int | None = None, n_batch: int = 0, n_dense: int = 0, index_dtype: Any = np.int32
) -> BCOO:
    """See :meth:`BCOO.fromdense`."""
    return BCOO.fromdense(mat, nse=nse, index_dtype=index_dtype, n_batch=n_batch, n_dense=n_dense)


def bcoo_todense(mat: BCOO) -> Any:
    """The dense array."""
    require_sparse("bcoo_todense", mat)
    return mat.todense()


def bcoo_transpose(mat: BCOO, *, permutation: Sequence[int]) -> BCOO:
    """Permute the dimensions of a sparse array."""
    require_sparse("bcoo_transpose", mat)
    return mat.transpose(permutation)


def bcoo_reduce_sum(mat: BCOO, *, axes: Sequence[int]) -> BCOO:
    """Sum a sparse array over dimensions; the result is sparse."""
    require_sparse("bcoo_reduce_sum", mat)
    return mat.summed(axes)


def bcoo_multiply_dense(sp_mat: BCOO, v: Any) -> BCOO:
    """The elementwise product of a sparse array and a dense one, which is broadcast; the result is sparse.

    Raises:
      ArgumentTypeError: ``sp_mat`` is not sparse, or ``v`` is.
    """
    require_sparse("bcoo_multiply_dense", sp_mat)
    if isinstance(v, BCOO):
        raise ArgumentTypeError("bcoo_multiply_dense: both operands are sparse; use bcoo_multiply_sparse")
    return sp_mat * v
