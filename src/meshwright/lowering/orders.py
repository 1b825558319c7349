"""Ops on operands that are stored with permuted dimensions.

An *order* describes how a value is stored: dimension ``i`` of the stored array is dimension ``order[i]`` of the value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from meshwright.ir.op import Op
from meshwright.ops.control.markers import OptimizationBarrier
from meshwright.ops.elementwise.base import Elementwise
from meshwright.ops.shape.rearrange import Rev, Unchanged
from meshwright.ops.shape.reshape_factors import reshape_groups
from meshwright.ops.shape.slice_pad import Concatenate, Pad, Slice
from meshwright.ops.window.op import WindowOp
from meshwright.ops.window.reductions import ReduceWindow
from meshwright.ops.window.select import SelectAndGatherAdd, SelectAndScatterAdd

T = TypeVar("T")
Order = tuple[int, ...]


def in_order(values: Sequence[T], order: Order) -> tuple[T, ...]:
    """Per-dimension ``values``, permuted to the stored order."""
    return tuple(values[d] for d in order)


def between(old: Order, new: Order) -> Order:
    """The permutation that transposes an array stored in the order ``old`` to the order ``new``."""
    return tuple(old.index(d) for d in new)


def identity(ndim: int) -> Order:
    """The order of a value that is stored without permutation."""
    return tuple(range(ndim))


def inverse(order: Order) -> Order:
    """The permutation that transposes a stored array to the value."""
    return between(order, identity(len(order)))


def without(order: Order, axes: Sequence[int]) -> Order:
    """The order of the remaining dimensions after ``axes`` are removed."""
    left = sorted(set(order).difference(axes))
    return tuple(left.index(d) for d in order if d not in axes)


def reshaped(order: Order, src: Sequence[int], dst: Sequence[int]) -> Order | None:
    """The order of the result if a reshape is applied to the stored array; None if impossible, or for empty arrays."""
    if 0 in src:
        return None
    placed: list[tuple[int, ...]] = []
    ones: list[int] = []
    for left, right in reshape_groups(src, dst):
        if not left:
            ones += right
            continue
        where = [order.index(d) for d in left]
        if where != list(range(where[0], where[0] + len(left))):
            return None
        placed.append((where[0], *right))
    after = [d for _, *right in sorted(placed) for d in right]
    return (*after, *ones)


# --- ops whose results have the dimensions of their operands ------------------------------------------------
def _window(op: Any, order: Order) -> Op | None:
    """Ties in windows are broken by the order of dimensions, so dimensions with windows must not be exchanged."""
    wide = [d for d in order if op.window_dimensions[d] != 1]
    changed: Op = op.with_windows(in_order(op.windows, order))
    return changed if wide == sorted(wide) else None


def _slice(op: Slice, order: Order) -> Op:
    return Slice(*(in_order(v, order) for v in (op.start_indices, op.limit_indices, op.strides)))


_KINDS: tuple[tuple[type[Op], Callable[[Any, Order], Op | None]], ...] = (
    (Elementwise, lambda op, order: op),
    (Unchanged, lambda op, order: op),
    (OptimizationBarrier, lambda op, order: op),
    (ReduceWindow, _window),
    (SelectAndGatherAdd, _window),
    (SelectAndScatterAdd, _window),
    (Slice, _slice),
    (Pad, lambda op, order: replace(op, padding_config=in_order(op.padding_config, order))),
    (Rev, lambda op, order: replace(op, dimensions=tuple(order.index(d) for d in op.dimensions))),
    (Concatenate, lambda op, order: replace(op, dimension=order.index(op.dimension))),
)
assert all(issubclass(kind, WindowOp) for kind, rule in _KINDS if rule is _window)


def with_order(op: Op, order: Order) -> Op | None:
    """The op on operands that are stored in ``order``, and so are its results; None if there is no such op.

    Scalar operands are unchanged.
    """
    rule = next((rule for kind, rule in _KINDS if isinstance(op, kind)), None)
    return None if rule is None else rule(op, order)
