"""Which dimensions of a sparse array are batched, sparse and dense, and how one layout becomes another.

Of ``n_batch`` leading dimensions each entry has positions of its own; of ``n_dense`` trailing ones all entries are
stored at a position. What is defined for sparse dimensions alone is mapped over the others (:func:`per_batch`), or done
after all became sparse (:func:`flat`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import meshwright.numpy as mnp
from meshwright.core.expected import as_integer
from meshwright.errors import ArgumentError
from meshwright.transforms.vmap import vmap


class SparseEfficiencyError(ValueError):
    """A layout would store more than it must."""


class SparseEfficiencyWarning(UserWarning):
    """A layout stores more than it must."""


class CuSparseEfficiencyWarning(SparseEfficiencyWarning):
    """JAX's, where it leaves cuSPARSE; there is none here."""


def whole(mat: Any) -> Any:
    """The array with all of its batch in ``data`` and in ``indices``, where sizes may be 1."""
    n = mat.n_batch
    batch = mat.shape[:n]
    if mat.data.shape[:n] == mat.indices.shape[:n] == batch:
        return mat
    return mat.changed(
        mnp.broadcast_to(mat.data, (*batch, *mat.data.shape[n:])),
        mnp.broadcast_to(mat.indices, (*batch, *mat.indices.shape[n:])),
    )


def per_batch(fun: Callable[..., Any], mat: Any, *others: Any) -> Any:
    """``fun`` of sparse arrays without batch dimensions, for each entry of those of ``mat``, and of others alike."""
    for _ in range(mat.n_batch):
        fun = vmap(fun)
    return fun(whole(mat), *others)


def flat(mat: Any) -> Any:
    """The same elements, with all dimensions sparse."""
    return with_dense(with_batch(mat, 0), 0)


def beside(mat: Any, of_elements: Any) -> Any:
    """A value for each stored element, shaped as ``data``: its dense dimensions are of size 1."""
    return mnp.expand_dims(of_elements, tuple(range(of_elements.ndim, of_elements.ndim + mat.n_dense)))


def with_batch(mat: Any, n_batch: int) -> Any:
    """The array with so many batch dimensions: the last ones become sparse, or the first sparse ones batched."""
    while mat.n_batch > n_batch:
        mat = _batch_stored(mat, True)
    while mat.n_batch < n_batch:
        if not mat.n_sparse:
            mat = with_dense(mat, mat.n_dense - 1)
        size, n = mat.sparse_shape[0], mat.n_batch
        column = mat.indices[..., None, :, 0]
        mine = column == mnp.arange(size, dtype=column.dtype)[:, None]
        past = np.array(mat.sparse_shape[1:], mat.indices.dtype)
        indices = mnp.where(mine[..., None], mat.indices[..., None, :, 1:], past)
        data = mnp.where(beside(mat, mine), mnp.expand_dims(mat.data, n), mnp.zeros((), mat.dtype))
        mat = mat.changed(data, indices, unique=mat.unique_indices and len(past) > 0)
    return mat


def _batch_stored(mat: Any, kept: bool) -> Any:
    """The array with the entries of its last batch dimension side by side, which is sparse if it is kept."""
    mat, n = whole(mat), mat.n_batch - 1
    size, nse, sparse = mat.shape[n], mat.nse, mat.sparse_shape
    indices, shape = mat.indices, mat.shape
    if kept:
        numbers = mnp.arange(size, dtype=indices.dtype)[:, None]
        column = mnp.broadcast_to(mnp.where(mat.inside, numbers, size)[..., None], (*indices.shape[:-1], 1))
        indices = mnp.concatenate([column, indices], -1)
    else:
        shape = (*shape[:n], *shape[n + 1 :])
    indices = indices.reshape(*indices.shape[:n], size * nse, len(sparse) + kept)
    data = mat.data.reshape(*mat.data.shape[:n], size * nse, *mat.data.shape[n + 2 :])
    return mat.changed(data, indices, shape, unique=kept and mat.unique_indices)


def with_dense(mat: Any, n_dense: int) -> Any:
    """The array with so many dense dimensions: the first ones become sparse, or the last sparse ones dense."""
    while mat.n_dense > n_dense:
        n, nse = mat.n_batch, mat.nse
        size = mat.data.shape[n + 1]
        old = mnp.expand_dims(mat.indices, -2)
        old = mnp.broadcast_to(old, (*old.shape[:-2], size, old.shape[-1]))
        numbers = mnp.arange(size, dtype=old.dtype)
        column = mnp.where(mat.inside[..., None], numbers, size)[..., None]
        indices = mnp.concatenate([old, column], -1)
        indices = indices.reshape(*indices.shape[:n], nse * size, indices.shape[-1])
        data = mat.data.reshape(*mat.data.shape[:n], nse * size, *mat.data.shape[n + 2 :])
        mat = mat.changed(data, indices)
    while mat.n_dense < n_dense:
        if not mat.n_sparse:
            mat = with_batch(mat, mat.n_batch - 1)
        size = mat.sparse_shape[-1]
        mine = mat.indices[..., -1:] == mnp.arange(size, dtype=mat.indices.dtype)
        mine = mine.reshape(*mine.shape, *[1] * mat.n_dense)
        data = mnp.where(mine, mnp.expand_dims(mat.data, mat.n_batch + 1), mnp.zeros((), mat.dtype))
        mat = mat.changed(data, mat.indices[..., :-1], unique=False)
    return mat


def without_batch(mat: Any, dimension: int) -> Any:
    """The sum over a batch dimension, of which the entries are stored side by side."""
    last = mat.n_batch - 1
    arrays = (mnp.moveaxis(x, dimension, last) for x in (whole(mat).data, whole(mat).indices))
    shape = list(mat.shape)
    shape.insert(last, shape.pop(dimension))
    return _batch_stored(mat.changed(*arrays, tuple(shape)), False)


def expanded(mat: Any, dimension: int) -> Any:
    """The array with a new dimension of size 1; batched, if a batch dimension is beside it."""
    n, shape = mat.n_batch, (*mat.shape[:dimension], 1, *mat.shape[dimension:])
    if dimension < n or (n and dimension == n):
        return mat.changed(mnp.expand_dims(mat.data, dimension), mnp.expand_dims(mat.indices, dimension), shape)
    if dimension > mat.ndim - mat.n_dense:
        return mat.changed(mnp.expand_dims(mat.data, dimension - mat.n_sparse + 1), mat.indices, shape)
    before, after = mnp.split(mat.indices, [dimension - n], -1)
    column = mnp.where(mat.inside, 0, 1).astype(mat.indices.dtype)[..., None]
    return mat.changed(mat.data, mnp.concatenate([before, column, after], -1), shape)


def checked(where: str, ndim: int, n_batch: Any, n_dense: Any, default: tuple[int, int] = (0, 0)) -> tuple[int, int]:
    """The numbers of batch and dense dimensions.

    Raises:
      ArgumentError: there are not so many dimensions.
    """
    given = zip(("n_batch", "n_dense"), (n_batch, n_dense), default)
    batch, dense = (d if n is None else as_integer(f"{where}: {name}", n) for name, n, d in given)
    if min(batch, dense) < 0 or batch + dense > ndim:
        raise ArgumentError(
            f"{where}: n_batch={batch} and n_dense={dense} of an array with {ndim} dimensions; expected numbers from 0 "
            f"whose sum is at most {ndim}"
        )
    return batch, dense
