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
from meshwright.experimental.sparse.base import JAXSparse, all_sparse, left_out
from meshwright.ir.tracing import Tracer, typeof
from meshwright.numpy.axes import normal_axes

structure: Any = LateModule("meshwright.experimental.sparse.structure")


class BCOO(JAXSparse):
    """A sparse array of ``shape`` with the elements ``data[k]`` at the positions ``indices[k]``.

    It is a pytree of ``data``, shape (nse,), and ``indices``, shape (nse, number of dimensions). Derivatives are with
    respect to ``data``; ``vmap`` maps both. To use different positions for each entry of a batch, create it inside
    ``vmap``.

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
        if data.ndim != 1 or indices.shape != (data.shape[0], len(self.shape)):
            raise ShapeError(
                f"BCOO: expected data of shape (nse,) and indices of shape (nse, {len(self.shape)}) for shape "
                f"{self.shape}, got {typeof(data)} and {typeof(indices)}; for batches make one within vmap"
            )
        if not mnp.issubdtype(indices.dtype, mnp.integer):
            raise DTypeError(f"BCOO: indices must be integers, got {typeof(indices)}")

    @classmethod
    def fromdense(cls, mat: Any, *, nse: int | None = None, index_dtype: Any = np.int32) -> BCOO:
        """The first ``nse`` nonzero elements of ``mat``, by default all of them.

        Raises:
          ArgumentError: ``mat`` is traced, and ``nse`` is not given.
        """
        mat = mnp.asarray(mat)
        if nse is None and isinstance(mat, Tracer):
            raise ArgumentError("BCOO.fromdense: how many elements of a traced array are not 0 is not known; pass nse")
        count = int(mnp.count_nonzero(mat)) if nse is None else as_integer("BCOO.fromdense: nse", nse)
        if not mat.ndim:  # there is no position past the end
            data = mnp.where(np.arange(count) == 0, mat, mnp.zeros((), mat.dtype))
            return cls((data, mnp.zeros((count, 0), index_dtype)), shape=(), unique_indices=count <= 1)
        indices = mnp.stack(mnp.nonzero(mat, size=count, fill_value=mat.shape), 1).astype(index_dtype)
        return cls((taken(mat, indices), indices), shape=mat.shape, indices_sorted=True, unique_indices=True)

    @classmethod
    def from_scipy_sparse(cls, mat: Any, *, index_dtype: Any = None) -> BCOO:
        """Convert a matrix of ``scipy.sparse``."""
        coo = mat.tocoo()
        indices = np.stack([coo.row, coo.col], 1).astype(index_dtype or np.int32)
        return cls((coo.data, indices), shape=coo.shape)

    @property
    def inside(self) -> Any:
        """Whether each position is within the array, shape (nse,)."""
        return mnp.all(self.indices < np.array(self.shape, self.indices.dtype), 1)

    def with_data(self, data: Any) -> BCOO:
        """A sparse array with other elements at the same positions."""
        return BCOO(
            (data, self.indices), shape=self.shape, indices_sorted=self.indices_sorted,
            unique_indices=self.unique_indices,
        )  # fmt: skip

    def todense(self) -> Any:
        """The dense array."""
        return added_at(self.data, self.indices, self.shape)

    def transpose(self, axes: Sequence[int] | None = None) -> BCOO:
        """Permute the dimensions; by default, reverse them."""
        order = tuple(range(self.ndim))[::-1] if axes is None else normal_axes(axes, self.ndim, "BCOO.transpose")
        if len(order) != self.ndim:
            raise ArgumentError(f"BCOO.transpose: expected the {self.ndim} dimensions in some order, got {axes}")
        shape = tuple(self.shape[a] for a in order)
        moved = self.indices[:, np.array(order, int)]
        return BCOO((self.data, moved), shape=shape, unique_indices=self.unique_indices)

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
        return structure.bcoo_update_layout(self, n_batch=n_batch, n_dense=n_dense)  # type: ignore[no-any-return]

    def astype(self, dtype: Any) -> BCOO:
        return structure.mapped(self, lambda data: data.astype(dtype))  # type: ignore[no-any-return]

    def sum(self, axis: int | Sequence[int] | None = None) -> Any:
        """Sum over dimensions, by default all of them; the result is sparse, if a dimension is left."""
        found = self.summed(axis)
        return found if found.ndim else found.todense()

    def summed(self, axis: int | Sequence[int] | None) -> BCOO:
        """The sum over dimensions as a sparse array."""
        summed = normal_axes(axis, self.ndim, "BCOO.sum")
        kept = [d for d in range(self.ndim) if d not in summed]
        data = mnp.where(self.inside, self.data, mnp.zeros((), self.dtype))  # the remaining positions may all be valid
        return BCOO((data, self.indices[:, np.array(kept, int)]), shape=[self.shape[d] for d in kept])

    def sum_duplicates(self, nse: int | None = None, remove_zeros: bool = True) -> BCOO:
        """Add the elements at equal positions; the result is sorted and has ``nse`` elements.

        Inside traced functions ``nse`` must be given.
        """
        dense = self.todense() if remove_zeros else added_at(mnp.ones_like(self.data, bool), self.indices, self.shape)
        found = BCOO.fromdense(dense, nse=nse)
        return found if remove_zeros else found.with_data(taken(self.todense(), found.indices))

    def sort_indices(self) -> BCOO:
        """Sort the elements by position."""
        order = mnp.lexsort(tuple(self.indices[:, d] for d in reversed(range(self.ndim)))) if self.ndim else slice(None)
        moved = self.data[order], self.indices[order]
        return BCOO(moved, shape=self.shape, indices_sorted=True, unique_indices=self.unique_indices)

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
        data, indices = (mnp.concatenate(pair) for pair in zip((self.data, self.indices), (other.data, other.indices)))
        return BCOO((data, indices), shape=self.shape)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self + (-other)

    def __matmul__(self, other: Any) -> Any:
        last = max((other.ndim if isinstance(other, BCOO) else mnp.ndim(other)) - 2, 0)
        return _matmul(self, other, ((self.ndim - 1,), (last,)))

    def __rmatmul__(self, other: Any) -> Any:
        return _matmul(other, self, ((mnp.ndim(other) - 1,), (max(self.ndim - 2, 0),)))


def _unflatten(static: tuple[Any, ...], children: Sequence[Any]) -> BCOO:
    made = object.__new__(BCOO)  # without checks, as transformations use other values in place of arrays
    made.data, made.indices = children
    made.shape, made.indices_sorted, made.unique_indices = static
    return made


register_pytree_node(
    BCOO, lambda m: ((m.data, m.indices), (m.shape, m.indices_sorted, m.unique_indices)), _unflatten
)  # fmt: skip


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
    return mnp.where(mat.inside, taken(mnp.broadcast_to(dense, mat.shape), mat.indices), mnp.ones((), dense.dtype))


def require_sparse(where: str, mat: Any) -> None:
    if not isinstance(mat, BCOO):
        raise ArgumentTypeError(f"{where}: expected a BCOO, got {mat!r}; BCOO.fromdense makes one")


def bcoo_fromdense(
    mat: Any, *, nse: int | None = None, n_batch: int = 0, n_dense: int = 0, index_dtype: Any = np.int32
) -> BCOO:
    """See :meth:`BCOO.fromdense`. Every dimension is sparse.

    Raises:
      ArgumentError: ``n_batch`` or ``n_dense`` is not 0.
    """
    all_sparse("bcoo_fromdense", n_batch, n_dense)
    return BCOO.fromdense(mat, nse=nse, index_dtype=index_dtype)


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


def _matmul(lhs: Any, rhs: Any, contract: tuple[tuple[int], tuple[int]]) -> Any:
    if max(lhs.ndim, mnp.ndim(rhs) if not isinstance(rhs, BCOO) else rhs.ndim) > 2:
        raise ShapeError("a sparse product by @ is of vectors and matrices; use bcoo_dot_general, or vmap")
    return bcoo_dot_general(lhs, rhs, dimension_numbers=(contract, ((), ())))


def bcoo_dot_general(
    lhs: Any,
    rhs: Any,
    *,
    dimension_numbers: Any,
    precision: None = None,
    preferred_element_type: Any = None,
    out_sharding: None = None,
) -> Any:
    """``lax.dot_general`` with a sparse operand, without batch dimensions; dense, unless both operands are sparse.

    The product of two sparse arrays stores an element for each pair of their elements.

    Raises:
      ArgumentTypeError: neither operand is sparse.
      ArgumentError: there are batch dimensions, or a precision or sharding is given.
      ShapeError: contracted dimensions have different sizes.
    """
    left_out("bcoo_dot_general", precision=precision, out_sharding=out_sharding)
    (left, right), batch = dimension_numbers
    if any(map(len, batch)):
        raise ArgumentError(f"bcoo_dot_general: batch dimensions {batch} are not for sparse arrays; use vmap")
    if not isinstance(lhs, BCOO) and not isinstance(rhs, BCOO):
        raise ArgumentTypeError("bcoo_dot_general: expected a sparse operand; use lax.dot_general for dense ones")
    _check_sizes(lhs, rhs, left, right)
    if preferred_element_type is not None:
        wide = mnp.result_type(lhs.dtype, rhs.dtype, preferred_element_type)
        found = bcoo_dot_general(lhs.astype(wide), rhs.astype(wide), dimension_numbers=dimension_numbers)
        return found.astype(preferred_element_type)
    if isinstance(lhs, BCOO) and isinstance(rhs, BCOO):
        return structure.product_of_sparse(lhs, rhs, left, right)
    if isinstance(lhs, BCOO):
        return _product(lhs, mnp.asarray(rhs), left, right)
    out = _product(rhs, mnp.asarray(lhs), right, left)
    free = rhs.ndim - len(right)
    return mnp.moveaxis(out, range(free), range(out.ndim - free, out.ndim))


def _check_sizes(lhs: Any, rhs: Any, left: Sequence[int], right: Sequence[int]) -> None:
    shapes = [x.shape if isinstance(x, BCOO) else mnp.shape(x) for x in (lhs, rhs)]
    sizes = [[shape[d] for d in dims] for shape, dims in zip(shapes, (left, right))]
    if sizes[0] != sizes[1]:
        raise ShapeError(
            f"bcoo_dot_general: shapes {shapes[0]} and {shapes[1]} are contracted along {tuple(left)} and "
            f"{tuple(right)}, of sizes {sizes[0]} and {sizes[1]}; they must be equal"
        )


def _product(mat: BCOO, dense: Any, left: Sequence[int], right: Sequence[int]) -> Any:
    """The product, with the free dimensions of ``mat`` before those of ``dense``."""
    kept = [d for d in range(mat.ndim) if d not in left]
    rows = mnp.moveaxis(dense, tuple(right), range(len(right)))
    factors = taken(rows, mat.indices[:, np.array(left, int)])
    terms = mat.data.reshape(-1, *[1] * (factors.ndim - 1)) * factors
    return added_at(
        terms, mat.indices[:, np.array(kept, int)], [*(mat.shape[d] for d in kept), *rows.shape[len(right) :]]
    )  # fmt: skip
