"""``jax.experimental.sparse``: sparse arrays, as pytrees of dense ones.

:class:`BCOO` stores elements and their positions, and computes; the other formats hold their arrays as JAX's do.
Source: ``jax.experimental.sparse`` for the interface.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import meshwright.numpy as mnp
from meshwright import random as _random
from meshwright.core.absent import absent as _absent
from meshwright.core.expected import as_integer, as_integers
from meshwright.errors import ArgumentError
from meshwright.experimental.sparse import linalg as linalg
from meshwright.experimental.sparse.base import JAXSparse
from meshwright.experimental.sparse.bcoo import (
    BCOO,
    bcoo_fromdense,
    bcoo_multiply_dense,
    bcoo_reduce_sum,
    bcoo_todense,
    bcoo_transpose,
)
from meshwright.experimental.sparse.formats import (
    BCSR,
    COO,
    CSC,
    CSR,
    bcsr_concatenate,
    bcsr_dot_general,
    bcsr_extract,
    bcsr_fromdense,
    bcsr_sum_duplicates,
    bcsr_todense,
    converted,
    coo_fromdense,
    coo_matmat,
    coo_matvec,
    coo_todense,
    csr_fromdense,
    csr_matmat,
    csr_matvec,
    csr_todense,
    format_named,
    todense,
)
from meshwright.experimental.sparse.layout import (
    CuSparseEfficiencyWarning,
    SparseEfficiencyError,
    SparseEfficiencyWarning,
)
from meshwright.experimental.sparse.layout import checked as _checked
from meshwright.experimental.sparse.product import bcoo_dot_general
from meshwright.experimental.sparse.structure import (
    bcoo_broadcast_in_dim,
    bcoo_concatenate,
    bcoo_dot_general_sampled,
    bcoo_dynamic_slice,
    bcoo_extract,
    bcoo_multiply_sparse,
    bcoo_reshape,
    bcoo_rev,
    bcoo_slice,
    bcoo_sort_indices,
    bcoo_squeeze,
    bcoo_sum_duplicates,
    bcoo_update_layout,
)
from meshwright.experimental.sparse.transform import grad, jacfwd, jacobian, jacrev, sparsify, value_and_grad

__all__ = [
    "BCOO", "BCSR", "COO", "CSC", "CSR", "CuSparseEfficiencyWarning", "JAXSparse", "SparseEfficiencyError",
    "SparseEfficiencyWarning", "bcoo_broadcast_in_dim", "bcoo_concatenate", "bcoo_dot_general",
    "bcoo_dot_general_sampled", "bcoo_dynamic_slice", "bcoo_extract", "bcoo_fromdense", "bcoo_multiply_dense",
    "bcoo_multiply_sparse", "bcoo_reduce_sum", "bcoo_reshape", "bcoo_rev", "bcoo_slice", "bcoo_sort_indices",
    "bcoo_squeeze", "bcoo_sum_duplicates", "bcoo_todense", "bcoo_transpose", "bcoo_update_layout",
    "bcsr_concatenate", "bcsr_dot_general", "bcsr_extract", "bcsr_fromdense", "bcsr_sum_duplicates", "bcsr_todense",
    "coo_fromdense", "coo_matmat", "coo_matvec", "coo_todense", "csr_fromdense", "csr_matmat", "csr_matvec",
    "csr_todense", "empty", "eye", "grad", "jacfwd", "jacobian", "jacrev", "random_bcoo", "sparsify", "todense",
    "value_and_grad",
]  # fmt: skip


def empty(
    shape: Sequence[int], dtype: Any = None, index_dtype: Any = np.int32, sparse_format: str = "bcoo",
    *, n_batch: int = 0, n_dense: int = 0,
) -> Any:  # fmt: skip
    """An array of zeros, without stored elements; ``sparse_format`` is ``"bcoo"``, ``"bcsr"``, ``"coo"``, ``"csc"`` or
    ``"csr"``, of which only the first has batch and dense dimensions.

    Raises:
      ArgumentError: another format, or not so many dimensions.
    """
    kind = format_named(sparse_format, "empty")
    batch, dense = _checked("empty", len(shape), n_batch, n_dense)
    end = len(shape) - dense
    stored = (
        mnp.zeros((*shape[:batch], 0, *shape[end:]), dtype),
        mnp.zeros((*shape[:batch], 0, end - batch), index_dtype),
    )
    return converted(BCOO(stored, shape=shape, indices_sorted=True, unique_indices=True), kind)


def eye(
    N: int,
    M: int | None = None,
    k: int = 0,
    dtype: Any = None,
    index_dtype: Any = np.int32,
    sparse_format: str = "bcoo",
    *,
    n_batch: int = 0,
    n_dense: int = 0,
) -> Any:
    """A matrix of shape ``(N, M)`` with ones on the ``k``-th diagonal; ``M`` is ``N`` by default.

    Raises:
      ArgumentError: there is no such format; see :func:`empty`.
    """
    kind = format_named(sparse_format, "eye")
    wide = N if M is None else M
    if n_batch or n_dense:
        dense = mnp.eye(N, wide, k, dtype)
        return converted(BCOO.fromdense(dense, index_dtype=index_dtype, n_batch=n_batch, n_dense=n_dense), kind)
    first = max(-k, 0)
    rows = np.arange(first, max(min(N, wide - k), first))
    indices = mnp.asarray(np.stack([rows, rows + k], 1), index_dtype)
    stored = mnp.ones(len(rows), dtype), indices
    return converted(BCOO(stored, shape=(N, wide), indices_sorted=True, unique_indices=True), kind)


def random_bcoo(
    key: Any, shape: Sequence[int], *, dtype: Any = float, indices_dtype: Any = None, nse: float = 0.2,
    n_batch: int = 0, n_dense: int = 0, unique_indices: bool = True, sorted_indices: bool = False,
    generator: Callable[..., Any] = _random.uniform, **kwds: Any,
) -> BCOO:  # fmt: skip
    """A sparse array with random elements at random positions.

    Args:
      nse: how many elements are stored, or which part of all if it is below 1; for each entry of a batch.
      generator: makes the elements: ``generator(key, shape, dtype, **kwds)``.

    Raises:
      ArgumentError: there are not so many positions, or not so many dimensions.
    """
    sizes = as_integers("random_bcoo: shape", shape)
    n, dense = _checked("random_bcoo", len(sizes), n_batch, n_dense)
    batch, sparse, rest = sizes[:n], sizes[n : len(sizes) - dense], sizes[len(sizes) - dense :]
    size = math.prod(sparse)
    if not 0 <= nse <= size:
        raise ArgumentError(f"random_bcoo: nse={nse} of an array with {size} positions; expected 0 to {size}")
    count = math.ceil(nse * size) if 0 < nse < 1 else as_integer("random_bcoo: nse", nse)
    of_elements, *of_positions = _random.split(key, math.prod(batch) + 1)
    chosen = [_random.choice(k, size, (count,), replace=not unique_indices) for k in of_positions]
    numbers = mnp.stack(chosen).reshape(*batch, count) if chosen else mnp.zeros((*batch, count), int)
    places = mnp.unravel_index(numbers, sparse)
    indices = mnp.stack(places, -1) if sparse else mnp.zeros((*batch, count, 0), int)
    data = generator(of_elements, (*batch, count, *rest), dtype, **kwds)
    found = BCOO((data, indices.astype(indices_dtype or np.int32)), shape=sizes, unique_indices=bool(unique_indices))
    return found.sort_indices() if sorted_indices else found


__getattr__ = _absent("experimental.sparse")
