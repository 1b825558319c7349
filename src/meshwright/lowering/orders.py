"""Ops on operands whose dimensions lie in another order.

An *order* says how a value is stored: dimension ``i`` of what is stored is dimension ``order[i]`` of the value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from meshwright.ir.op import Op
from meshwright.ops.control.markers import OptimizationBarrier
from meshwright.ops.elementwise.base import Elementwise
from meshwright.ops.shape.rearrange import Rev, Unchanged, reshape_groups
from meshwright.ops.shape.slice_pad import Concatenate, Pad, Slice
from meshwright.ops.window.op import WindowOp
from meshwright.ops.window.reductions import ReduceWindow
from meshwright.ops.window.select import SelectAndGatherAdd, SelectAndScatterAdd

T = TypeVar("T")
Order = tuple[int, ...]


def in_order(values: Sequence[T], order: Order) -> tuple[T, ...]:
    """What is given of each dimension, as it is stored."""
    return tuple(values[d] for d in order)


def between(old: Order, new: Order) -> Order:
    """The permutation that makes of what is stored in the order ``old`` what is stored in ``new``."""
    return tuple(old.index(d) for d in new)


def identity(ndim: int) -> Order:
    """The order of a value that is stored as it is."""
    return tuple(range(ndim))


def inverse(order: Order) -> Order:
    """The permutation that makes of what is stored the value."""
    return between(order, identity(len(order)))


def without(order: Order, axes: Sequence[int]) -> Order:
    """The order of what is left when dimensions go."""
    left = sorted(set(order).difference(axes))
    return tuple(left.index(d) for d in order if d not in axes)


def reshaped(order: Order, src: Sequence[int], dst: Sequence[int]) -> Order | None:
    """The order in which a reshape of what is stored is one of the value; None if there is none, and of nothing."""
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
    """Windows are gone through, and of equal elements the first is selected, in the order of dimensions."""
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
    """The op on operands that are stored in ``order``, as are its results then; None where there is no such op.

    Operands without dimensions stay as they are.
    """
    rule = next((rule for kind, rule in _KINDS if isinstance(op, kind)), None)
    return None if rule is None else rule(op, order)
