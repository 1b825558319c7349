"""Sparse matrices by rows or columns (BCSR, CSR, CSC) and with separate coordinates (COO).

They hold their arrays as JAX's do, and compute as a :class:`BCOO` of the same elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

import meshwright.numpy as mnp
from meshwright.core.pytree_classes import register_pytree_node
from meshwright.errors import ArgumentError, ArgumentTypeError, ShapeError
from meshwright.experimental.sparse.base import JAXSparse, all_sparse
from meshwright.experimental.sparse.bcoo import BCOO, taken
from meshwright.experimental.sparse.layout import flat
from meshwright.experimental.sparse.product import bcoo_dot_general
from meshwright.experimental.sparse.structure import bcoo_concatenate

S = TypeVar("S", bound="_Format")


class _Format(JAXSparse):
    """Base class: arrays with the names ``arrays``, of which the first is ``data``."""

    arrays: ClassVar[tuple[str, ...]]

    def __init__(
        self, args: Sequence[Any], *, shape: Sequence[int], indices_sorted: bool = False, unique_indices: bool = False
    ) -> None:
        super().__init__(args, shape=shape)
        name = type(self).__name__
        if len(self.shape) != 2 or len(args) != len(self.arrays):
            raise ShapeError(
                f"{name}: expected ({', '.join(self.arrays)}) of a matrix, got {len(args)} arrays for shape "
                f"{self.shape}; for batches make one within vmap"
            )
        for array, x in zip(self.arrays, args):
            setattr(self, array, mnp.asarray(x))
        self.indices_sorted, self.unique_indices = bool(indices_sorted), bool(unique_indices)
        self._check()

    def _check(self) -> None:
        """Raise unless the shapes of the arrays fit."""

    @classmethod
    def fromdense(cls: type[S], mat: Any, *, nse: int | None = None, index_dtype: Any = np.int32) -> S:
        """The first ``nse`` nonzero elements of ``mat``, by default all of them.

        Raises:
          ArgumentError: ``mat`` is traced, and ``nse`` is not given.
        """
        return cls.from_bcoo(BCOO.fromdense(mat, nse=nse, index_dtype=index_dtype))

    @classmethod
    def from_bcoo(cls: type[S], arr: BCOO) -> S:
        """The same elements in this format."""
        raise NotImplementedError

    @classmethod
    def from_scipy_sparse(cls: type[S], mat: Any, *, index_dtype: Any = None) -> S:
        """Convert a matrix of ``scipy.sparse``."""
        return cls.from_bcoo(BCOO.from_scipy_sparse(mat, index_dtype=index_dtype))

    def to_bcoo(self) -> BCOO:
        """The same elements in coordinate format."""
        raise NotImplementedError

    def _stored(self, rows: Any, columns: Any) -> BCOO:
        options = {"indices_sorted": self.indices_sorted, "unique_indices": self.unique_indices}
        return BCOO((self.data, mnp.stack([rows, columns], 1)), shape=self.shape, **options)

    def todense(self) -> Any:
        return self.to_bcoo().todense()

    def transpose(self: S, axes: Sequence[int] | None = None) -> Any:
        return type(self).from_bcoo(self.to_bcoo().transpose(axes))

    def sum(self, axis: Any = None) -> BCOO:
        """Sum over dimensions, by default all of them; the result is sparse."""
        return self.to_bcoo().sum(axis)

    def sum_duplicates(self: S, nse: int | None = None, remove_zeros: bool = True) -> S:
        """Add the elements at equal positions; the result is sorted and has ``nse`` elements."""
        return type(self).from_bcoo(self.to_bcoo().sum_duplicates(nse, remove_zeros))

    def __neg__(self: S) -> S:
        return _changed(self, data=-self.data)

    def __mul__(self: S, other: Any) -> S:
        return _changed(self, data=(self.to_bcoo() * other).data)

    __rmul__ = __mul__

    def __matmul__(self, other: Any) -> Any:
        return self.to_bcoo() @ (other.to_bcoo() if isinstance(other, _Format) else other)

    def __rmatmul__(self, other: Any) -> Any:
        return other @ self.to_bcoo()


def _changed(mat: S, **arrays: Any) -> S:
    made: S = object.__new__(type(mat))
    vars(made).update(vars(mat), **arrays)
    return made


def _as_pytree(cls: type[_Format]) -> None:
    def unflatten(static: tuple[Any, ...], children: Sequence[Any]) -> _Format:
        made = object.__new__(cls)  # without checks, as transformations use other values in place of arrays
        vars(made).update(zip(cls.arrays, children))
        made.shape, made.indices_sorted, made.unique_indices = static
        return made

    def flatten(m: _Format) -> Any:
        return tuple(getattr(m, n) for n in cls.arrays), (m.shape, m.indices_sorted, m.unique_indices)

    register_pytree_node(cls, flatten, unflatten)


def _ends(numbers: Any, count: int) -> Any:
    """Where each of ``count`` rows ends in sorted row numbers, after a 0."""
    return mnp.searchsorted(numbers, mnp.arange(count + 1, dtype=numbers.dtype), side="left").astype(numbers.dtype)


def _lines(ends: Any, count: int, dtype: Any) -> Any:
    """The row of each of ``count`` elements; past the last one for elements that belong to none."""
    return (mnp.searchsorted(ends, mnp.arange(count, dtype=ends.dtype), side="right") - 1).astype(dtype)


class BCSR(_Format):
    """A sparse matrix by rows: row ``i`` has the elements from ``indptr[i]`` to ``indptr[i + 1]``, whose columns are
    ``indices``. Elements past ``indptr[-1]`` are ignored.

    Raises:
      ShapeError: it is no matrix, or an array has another shape.

    Example:
      >>> from meshwright.experimental.sparse import BCSR
      >>> m = BCSR.fromdense(mnp.array([[0.0, 2.0], [3.0, 0.0], [0.0, 0.0]]))
      >>> m.indptr, m @ mnp.array([1.0, 10.0])
      (Array([0, 1, 2, 2], dtype=int32), Array([20.,  3.,  0.], dtype=float32))
    """

    arrays = "data", "indices", "indptr"
    _lines_of: ClassVar[int] = 0
    data: Any
    indices: Any
    indptr: Any

    def _check(self) -> None:
        count = self.shape[self._lines_of] + 1
        if self.data.ndim != 1 or self.indices.shape != self.data.shape or self.indptr.shape != (count,):
            raise ShapeError(
                f"{type(self).__name__}: expected data and indices of shape (nse,) and indptr of shape ({count},) for "
                f"shape {self.shape}, got {self.data.shape}, {self.indices.shape} and {self.indptr.shape}"
            )

    @classmethod
    def from_bcoo(cls, arr: BCOO) -> Any:
        lines = cls._lines_of
        arr = flat(arr)
        found = arr if lines == 0 else arr.transpose()
        found = found if found.indices_sorted else found.sort_indices()
        if found.ndim != 2:
            raise ShapeError(f"{cls.__name__}: expected a matrix, got shape {arr.shape}")
        ends = _ends(found.indices[:, 0], found.shape[0])
        options = {"indices_sorted": found.indices_sorted, "unique_indices": found.unique_indices}
        return cls((found.data, found.indices[:, 1], ends), shape=arr.shape, **options)

    def to_bcoo(self) -> BCOO:
        lines = _lines(self.indptr, self.nse, self.indices.dtype)
        if self._lines_of == 0:
            return self._stored(lines, self.indices)
        found = self._stored(self.indices, lines)
        found.indices_sorted = False
        return found


class CSR(BCSR):
    """A sparse matrix by rows, as in :class:`BCSR`."""


class CSC(BCSR):
    """A sparse matrix by columns: column ``j`` has the elements from ``indptr[j]`` to ``indptr[j + 1]``, whose rows are
    ``indices``."""

    _lines_of = 1


class COO(_Format):
    """A sparse matrix with the elements ``data[k]`` at ``row[k]``, ``col[k]``.

    Raises:
      ShapeError: it is no matrix, or an array has another shape.
    """

    arrays = "data", "row", "col"
    data: Any
    row: Any
    col: Any

    def __init__(
        self, args: Sequence[Any], *, shape: Sequence[int], rows_sorted: bool = False, cols_sorted: bool = False
    ) -> None:
        super().__init__(args, shape=shape)
        self.indices_sorted = bool(rows_sorted)
        self._cols_sorted = bool(cols_sorted)

    def _check(self) -> None:
        if self.data.ndim != 1 or not self.data.shape == self.row.shape == self.col.shape:
            raise ShapeError(
                f"COO: expected data, row and col of shape (nse,), got {self.data.shape}, {self.row.shape} and "
                f"{self.col.shape}"
            )

    @classmethod
    def from_bcoo(cls, arr: BCOO) -> COO:
        arr = flat(arr)
        if arr.ndim != 2:
            raise ShapeError(f"COO: expected a matrix, got shape {arr.shape}")
        made = cls((arr.data, arr.indices[:, 0], arr.indices[:, 1]), shape=arr.shape, rows_sorted=arr.indices_sorted)
        made.unique_indices = arr.unique_indices
        return made

    def to_bcoo(self) -> BCOO:
        found = self._stored(self.row, self.col)
        found.indices_sorted = False  # only the rows are
        return found


for _class in (BCSR, CSR, CSC, COO):
    _as_pytree(_class)

#: sparse arrays by the names of their formats
FORMATS: dict[str, Any] = {"bcoo": BCOO, "bcsr": BCSR, "coo": COO, "csc": CSC, "csr": CSR}


def format_named(name: str, where: str) -> Any:
    """The class of a format.

    Raises:
      ArgumentError: there is no such format.
    """
    if name not in FORMATS:
        raise ArgumentError(f"{where}: sparse_format must be one of {', '.join(map(repr, FORMATS))}, got {name!r}")
    return FORMATS[name]


def converted(mat: BCOO, kind: Any) -> Any:
    """A sparse array in another format."""
    return mat if kind is BCOO else kind.from_bcoo(mat)


def todense(arr: Any) -> Any:
    """The dense array of a sparse one; dense arrays are returned as they are."""
    return arr.todense() if isinstance(arr, JAXSparse) else mnp.asarray(arr)


def as_bcoo(x: Any, where: str) -> BCOO:
    """A sparse array in coordinate format.

    Raises:
      ArgumentTypeError: it is no sparse array.
    """
    if isinstance(x, BCOO):
        return x
    if isinstance(x, _Format):
        return x.to_bcoo()
    raise ArgumentTypeError(f"{where}: expected a sparse array, got {x!r}; fromdense of BCOO, BCSR, ... makes one")


def bcsr_fromdense(
    mat: Any, *, nse: int | None = None, n_batch: int = 0, n_dense: int = 0, index_dtype: Any = np.int32
) -> BCSR:
    """See :meth:`BCSR.fromdense`.

    Raises:
      ArgumentError: ``n_batch`` or ``n_dense`` is not 0.
    """
    all_sparse("bcsr_fromdense", n_batch, n_dense)
    return BCSR.fromdense(mat, nse=nse, index_dtype=index_dtype)


def bcsr_todense(mat: BCSR) -> Any:
    """The dense matrix."""
    return as_bcoo(mat, "bcsr_todense").todense()


def bcsr_sum_duplicates(mat: BCSR, nse: int | None = None) -> BCSR:
    """Add the elements at equal positions."""
    return mat.sum_duplicates(nse, remove_zeros=False)


def bcsr_dot_general(lhs: Any, rhs: Any, *, dimension_numbers: Any, **options: Any) -> Any:
    """``bcoo_dot_general`` of matrices by rows."""
    from_ = [x.to_bcoo() if isinstance(x, _Format) else x for x in (lhs, rhs)]
    return bcoo_dot_general(*from_, dimension_numbers=dimension_numbers, **options)


def bcsr_extract(indices: Any, indptr: Any, mat: Any) -> Any:
    """The elements of a dense matrix at the positions of one by rows, shape (nse,)."""
    dense, columns = mnp.asarray(mat), mnp.asarray(indices)
    stored = BCSR((mnp.zeros(columns.shape, dense.dtype), columns, indptr), shape=dense.shape).to_bcoo()
    return taken(dense, stored.indices)


def bcsr_concatenate(operands: Sequence[BCSR], *, dimension: int) -> BCSR:
    """Join matrices along a dimension."""
    return BCSR.from_bcoo(bcoo_concatenate([m.to_bcoo() for m in operands], dimension=dimension))


def _made(name: str, kind: Any) -> Any:
    def fromdense(mat: Any, *, nse: int | None = None, index_dtype: Any = np.int32) -> Any:
        return kind.fromdense(mat, nse=nse, index_dtype=index_dtype)

    fromdense.__name__ = fromdense.__qualname__ = f"{name}_fromdense"
    fromdense.__doc__ = f"See ``{kind.__name__}.fromdense``."
    return fromdense


def _product(name: str, mat: Any, dense: Any, transpose: bool) -> Any:
    found = as_bcoo(mat, name)
    return (found.T if transpose else found) @ mnp.asarray(dense)


def coo_matvec(mat: COO, v: Any, transpose: bool = False) -> Any:
    """The product of a sparse matrix, or of its transpose, and a dense vector."""
    return _product("coo_matvec", mat, v, transpose)


def coo_matmat(mat: COO, B: Any, *, transpose: bool = False) -> Any:
    """The product of a sparse matrix, or of its transpose, and a dense matrix."""
    return _product("coo_matmat", mat, B, transpose)


def csr_matvec(mat: CSR, v: Any, transpose: bool = False) -> Any:
    """The product of a sparse matrix, or of its transpose, and a dense vector."""
    return _product("csr_matvec", mat, v, transpose)


def csr_matmat(mat: CSR, B: Any, *, transpose: bool = False) -> Any:
    """The product of a sparse matrix, or of its transpose, and a dense matrix."""
    return _product("csr_matmat", mat, B, transpose)


def coo_todense(mat: COO) -> Any:
    """The dense matrix."""
    return as_bcoo(mat, "coo_todense").todense()


def csr_todense(mat: CSR) -> Any:
    """The dense matrix."""
    return as_bcoo(mat, "csr_todense").todense()


coo_fromdense, csr_fromdense = _made("coo", COO), _made("csr", CSR)
