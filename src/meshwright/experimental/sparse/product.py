"""Products of sparse arrays with dense ones and each other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

import meshwright.numpy as mnp
from meshwright.errors import ArgumentTypeError, ShapeError
from meshwright.experimental.sparse import layout
from meshwright.experimental.sparse.base import left_out
from meshwright.experimental.sparse.bcoo import BCOO, added_at, taken
from meshwright.experimental.sparse.structure import product_of_sparse
from meshwright.transforms.vmap import vmap


def matmul(lhs: Any, rhs: Any) -> Any:
    """``lhs @ rhs``, as ``numpy.matmul``; leading dimensions that are not batched on both sides are free ones."""
    lhs, rhs = (x if isinstance(x, BCOO) else mnp.asarray(x) for x in (lhs, rhs))
    if not lhs.ndim or not rhs.ndim:
        raise ShapeError(f"a sparse product by @ takes no scalars, got shapes {lhs.shape} and {rhs.shape}; use *")
    batch = tuple(range(lhs.ndim - 2)) if min(lhs.ndim, rhs.ndim) > 2 else ()
    if batch and lhs.shape[:-2] != rhs.shape[:-2]:
        raise ShapeError(
            f"a sparse product by @ of shapes {lhs.shape} and {rhs.shape}: expected equal sizes before the last two"
        )
    contract = (lhs.ndim - 1,), (max(rhs.ndim - 2, 0),)
    out = bcoo_dot_general(lhs, rhs, dimension_numbers=(contract, (batch, batch)))
    if lhs.ndim < 2 or rhs.ndim <= 2 or batch:
        return out
    return mnp.moveaxis(out, 0, -2) if not isinstance(out, BCOO) else _rows_moved(out)


def _rows_moved(out: BCOO) -> BCOO:
    return out.transpose((*range(1, out.ndim - 1), 0, out.ndim - 1))


def bcoo_dot_general(
    lhs: Any,
    rhs: Any,
    *,
    dimension_numbers: Any,
    precision: None = None,
    preferred_element_type: Any = None,
    out_sharding: None = None,
) -> Any:
    """``lax.dot_general`` with a sparse operand; dense, unless both operands are sparse.

    The product of two sparse arrays stores an element for each pair of their elements. Dimensions along which the
    product is batched become batch dimensions of sparse operands, if they are not.

    Raises:
      ArgumentTypeError: neither operand is sparse.
      ArgumentError: a precision or sharding is given, or one is batched along dimensions that are no batch
        dimensions, nor the first ones.
      ShapeError: contracted or batched dimensions have different sizes.
    """
    left_out("bcoo_dot_general", precision=precision, out_sharding=out_sharding)
    (left, right), batch = dimension_numbers
    if not isinstance(lhs, BCOO) and not isinstance(rhs, BCOO):
        raise ArgumentTypeError("bcoo_dot_general: expected a sparse operand; use lax.dot_general for dense ones")
    _check_sizes(lhs, rhs, left, right)
    _check_sizes(lhs, rhs, *batch)
    if preferred_element_type is not None:
        wide = mnp.result_type(lhs.dtype, rhs.dtype, preferred_element_type)
        found = bcoo_dot_general(lhs.astype(wide), rhs.astype(wide), dimension_numbers=dimension_numbers)
        return found.astype(preferred_element_type)
    if batch[0]:
        rest = [[d - sum(b < d for b in dims) for d in used] for used, dims in zip((left, right), batch)]
        one: Any = partial(bcoo_dot_general, dimension_numbers=(rest, ((), ())))
        for _ in batch[0]:
            one = vmap(one)
        return one(*map(_batch_first, (lhs, rhs), batch))
    lhs, rhs = (layout.flat(x) if isinstance(x, BCOO) else x for x in (lhs, rhs))
    if isinstance(lhs, BCOO) and isinstance(rhs, BCOO):
        return product_of_sparse(lhs, rhs, left, right)
    if isinstance(lhs, BCOO):
        return _product(lhs, mnp.asarray(rhs), left, right)
    out = _product(rhs, mnp.asarray(lhs), right, left)
    free = rhs.ndim - len(right)
    return mnp.moveaxis(out, range(free), range(out.ndim - free, out.ndim))


def _batch_first(x: Any, dims: Sequence[int]) -> Any:
    """The operand with its batched dimensions first, in that order."""
    if not isinstance(x, BCOO):
        return mnp.moveaxis(mnp.asarray(x), tuple(dims), range(len(dims)))
    x = layout.with_batch(x, max(x.n_batch, 1 + max(dims)))
    return x.transpose((*dims, *(d for d in range(x.ndim) if d not in dims)))


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
