"""Collectives over named axes, the vocabulary of per-device programs.

An axis name is a mesh axis, the axis of a ``vmap``, or a sub-axis of a mesh axis (``"data:(1)2"``, Shardy's notation).
Several axes act as one, the first being major. Under ``vmap`` over a named axis, a collective becomes local data
movement along the batch dimension (``batch_named``); virtual meshes run in this way.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import NOWHERE, Axes, ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import ShapeError
from meshwright.ir.contract import ArrayLike, Emitted
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Dual, Op, Tangent
from meshwright.ir.state import STATE
from meshwright.ir.tracing import typeof
from meshwright.ir.varying import cast_all
from meshwright.ops.elementwise.table import (
    add,
    mul,
)
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, iota
from meshwright.ops.shape.rearrange import above, reshape
from meshwright.sharding.rule import ShardingRule, make_rule


@dataclass(frozen=True)
class Collective(Op):
    """Base class. ``axes`` are names, major to minor, ``sizes`` their sizes."""

    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    hidden_params: ClassVar[tuple[str, ...]] = ("sizes",)
    over_devices: ClassVar[bool] = True
    #: kind in reports; empty if it sends nothing
    kind: ClassVar[str] = ""
    #: whether all positions along ``axes`` get the same result
    gives_all_the_same: ClassVar[bool] = False
    #: whether it is linear in its operand
    linear: ClassVar[bool] = True

    @cached_property
    def group_size(self) -> int:
        return math.prod(self.sizes)

    def over(self, axes: Sequence[str], sizes: Sequence[int]) -> Self:
        """This collective over other axes."""
        return dataclasses.replace(self, axes=tuple(axes), sizes=tuple(sizes))

    def part(self, start: int, stop: int | None = None) -> Callable[[Any], Any]:
        """This collective over ``axes[start:stop]``, as a function; the identity if there are none."""
        axes, sizes = self.axes[start:stop], self.sizes[start:stop]
        return self.over(axes, sizes).bind if axes else lambda x: x

    def batch_named(self, axis: BatchAxis, x: Any, dim: int | None) -> tuple[Any, int | None]:
        """The rule of ``batch`` if ``axis`` is one of ``axes``."""
        raise NotImplementedError

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        if not self.linear:
            return super().jvp(primals, tangents)
        return self.bind(*primals), self.bind(*tangents)

    def varies(self, *operands: Axes) -> Axes:
        return NOWHERE.union(*operands) | (STATE.checked & set(self.axes))

    def aligned(self, args: Sequence[Any]) -> tuple[Op, Sequence[Any]]:
        return self, cast_all(args, STATE.checked & set(self.axes))

    def of_sum(self) -> Op | None:
        """The remaining op if the operand has already been summed over the axes; None if the op is not a sum."""
        return None

    def moved_dims(self) -> tuple[int, ...]:
        """The dimensions along which data moves; automatic axes of a region do not split them."""
        return ()

    def sharding_rule(self, *avals: ShapedArray) -> ShardingRule:
        out = self.infer(*avals)
        names = [None if d in self.moved_dims() else f"d{d}" for d in range(out.ndim)]
        sizes = {f"d{d}": size for d, size in enumerate(out.shape) if d not in self.moved_dims()}
        return make_rule([names] * len(avals), [names], sizes)


@dataclass(frozen=True)
class AlongDimension(Collective):
    """Base class of collectives that change the size of ``dimension``."""

    dimension: int

    def moved_dims(self) -> tuple[int, ...]:
        return (self.dimension,)

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        (x,), (dim,) = args, dims
        return dataclasses.replace(self, dimension=above(self.dimension, dim)).bind(x), dim  # type: ignore[arg-type]


class MovesTiles(Collective):
    """Base class of collectives that only move elements between devices."""

    moves_only: ClassVar[bool] = True
    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ((0,),)


@dataclass(frozen=True)
class AxisIndex(Collective):
    """This device's position along ``axes``."""

    name: ClassVar[str] = "axis_index"

    def infer(self) -> ShapedArray:
        return ShapedArray((), dtypes.int32)

    def batch_named(self, axis: BatchAxis, x: Any, dim: int | None) -> tuple[Any, int | None]:
        i = self.axes.index(axis.name)
        minor = math.prod(self.sizes[i + 1 :])
        index = mul(iota(np.int32, (axis.size,), 0), np.int32(minor))
        if self.axes[:i]:
            major = AxisIndex(self.axes[:i], self.sizes[:i]).bind()
            index = add(index, mul(major, np.int32(minor * axis.size)))
        if self.axes[i + 1 :]:
            index = add(index, AxisIndex(self.axes[i + 1 :], self.sizes[i + 1 :]).bind())
        return index, 0

    def emit(self, b: Builder) -> Emitted | Sequence[Emitted]:
        return b.axis_index(self.axes)


def axis_index_of(axes: Sequence[str], sizes: Sequence[int]) -> Any:
    """The position along several axes taken as one, the first being major (int32 scalar)."""
    total = None
    for name, size in zip(axes, sizes):
        index = AxisIndex((name,), (size,)).bind()
        total = index if total is None else add(mul(total, np.int32(size)), index)
    return np.int32(0) if total is None else total


def batched(x: Any, dim: int | None, size: int) -> tuple[Any, int]:
    """``x`` with a batch dimension, broadcast along it if it had none."""
    if dim is not None:
        return x, dim
    shape = typeof(x).shape
    return broadcast_in_dim(x, (size, *shape), range(1, len(shape) + 1)), 0


def check_split(op: Collective, x: ShapedArray, dim: int) -> None:
    if not 0 <= dim < x.ndim or x.shape[dim] % op.group_size:
        raise ShapeError(
            f"{op.name}: dimension {dim} of shape {x.shape} must exist and be divisible by {op.group_size}, the number "
            f"of devices along {', '.join(op.axes)}"
        )


def split_out(x: Any, dim: int, size: int) -> tuple[Any, int]:
    """Dimension ``dim`` split into ``size`` tiles, with the tile number as a batch dimension in front of it."""
    shape = typeof(x).shape
    return reshape(x, (*shape[:dim], size, shape[dim] // size, *shape[dim + 1 :])), dim
