"""Reading rules of products that become ``dot_general``: einsum and ragged products.

In a ragged product, rows (or terms) belong to groups whose sizes are data. It becomes one product with an additional
contracted dimension for the group, along which each row is zero except in its own group. This takes g times the
arithmetic, but is an ordinary contraction: splitting groups over devices (experts of a mixture) leaves partial sums,
and splitting rows needs no communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.ir.reading import Reader, Unreadable, reads
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.table import and_, convert, ge, lt, scalar_like, select, sub
from meshwright.ops.products.dot import DotDimensionNumbers, DotGeneral, read_precision
from meshwright.ops.reduce.cumulative import cumsum
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, iota, reduce_sum
from meshwright.ops.shape.rearrange import transpose


def _product(r: Reader, lhs: Any, rhs: Any, numbers: DotDimensionNumbers) -> Any:
    out = r.out_avals[0].dtype
    preferred = None if typeof(lhs).dtype == typeof(rhs).dtype == out else out
    return DotGeneral(numbers, read_precision(r), preferred).bind(lhs, rhs)


# --- einsum -------------------------------------------------------------------------------------------------
def _summed(r: Reader, x: Any, labels: str, kept: str) -> tuple[Any, str]:
    """``x`` summed over the dimensions whose label is not in ``kept``."""
    if len(set(labels)) != len(labels) or len(labels) != typeof(x).ndim:
        r.fail(f"subscripts {labels!r} of {typeof(x)} repeat a label or do not fit; write slices and a dot_general")
    gone = [d for d, label in enumerate(labels) if label not in kept]
    return reduce_sum(x, gone), "".join(label for label in labels if label in kept)


def _subscripts(r: Reader) -> tuple[list[str], str]:
    config = r.attr("einsum_config").replace(" ", "")
    inputs, arrow, out = config.partition("->")
    if not arrow or not config.replace(",", "").replace("->", "").isalpha():
        r.fail(f"einsum_config {config!r} is not letters with an arrow; write a dot_general")
    return inputs.split(","), out


def _places(labels: Sequence[str], left: str, right: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The positions of labels on either side."""
    return tuple(map(left.index, labels)), tuple(map(right.index, labels))


@reads("stablehlo.unary_einsum")
def _unary_einsum(r: Reader) -> Any:
    (labels,), out = _subscripts(r)
    x, labels = _summed(r, r.operands[0], labels, out)
    return transpose(x, [labels.index(label) for label in out])


@reads("stablehlo.einsum")
def _einsum(r: Reader) -> Any:
    (left, right), out = _subscripts(r)
    (x, left), (y, right) = (
        _summed(r, v, mine, out + other) for v, mine, other in zip(r.operands, (left, right), (right, left))
    )
    shared = [label for label in left if label in right]
    batch, contracted = ([c for c in shared if (c in out) == kept] for kept in (True, False))
    numbers = (_places(contracted, left, right), _places(batch, left, right))
    product_labels = "".join(batch) + "".join(c for side in (left, right) for c in side if c not in shared)
    return transpose(_product(r, x, y, numbers), [product_labels.index(c) for c in out])


# --- ragged products ----------------------------------------------------------------------------------------
@reads("chlo.ragged_dot")
def _ragged_dot(r: Reader) -> Any:
    lhs, rhs, sizes = r.operands
    n = r.attr("ragged_dot_dimension_numbers")
    if not isinstance(n, dict):  # the form of a composite in portable artifacts
        raise Unreadable
    lc, rc = n.get("lhs_contracting_dimensions", ()), n.get("rhs_contracting_dimensions", ())
    lb, rb = n.get("lhs_batching_dimensions", ()), n.get("rhs_batching_dimensions", ())
    (ragged,) = n.get("lhs_ragged_dimensions", (-1,))
    groups = n.get("rhs_group_dimensions", ())
    if ragged in lb:  # each batch entry is in one group, so groups do not matter
        return _product(r, lhs, rhs, ((lc, rc), (lb, rb)))
    lhs = _by_group(lhs, sizes, ragged, lb)
    lc, lb = (tuple(d + 1 for d in dims) for dims in (lc, lb))
    if groups:
        return _product(r, lhs, rhs, (((*lc, 0), (*rc, *groups)), (lb, rb)))
    out = _product(r, lhs, rhs, ((lc, rc), (lb, rb)))
    return transpose(out, [len(lb), *(d for d in range(typeof(out).ndim) if d != len(lb))])


def _by_group(x: Any, sizes: Any, ragged: int, batch: Sequence[int]) -> Any:
    """``x`` with a leading dimension for the group, along which rows are zero except in their own group."""
    aval, last = typeof(x), typeof(sizes).ndim - 1
    if last not in (0, len(batch)):
        raise Unreadable
    ends = cumsum(convert(sizes, np.dtype(np.int32)), last)
    starts = sub(ends, convert(sizes, np.dtype(np.int32)))
    shape = (typeof(sizes).shape[-1], *aval.shape)
    places = [*(d + 1 for d in batch[:last]), 0]
    order = sorted(range(len(places)), key=places.__getitem__)

    def spread(bound: Any) -> Any:
        return broadcast_in_dim(transpose(bound, order), shape, sorted(places))

    row = iota(np.int32, shape, ragged + 1)
    mine = and_(ge(row, spread(starts)), lt(row, spread(ends)))
    whole = broadcast_in_dim(x, shape, range(1, len(shape)))
    return select(mine, whole, scalar_like(0, x))
