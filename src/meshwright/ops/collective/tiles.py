"""Collectives that join or split tiles along a dimension: all-gather, all-slice, reduce-scatter."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import NOWHERE, Axes, ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import RuleError, ShapeError
from meshwright.ir.contract import ArrayLike, Emitted
from meshwright.ir.op import BatchAxis, Builder, Cotangents, Dual, Op, Tangent
from meshwright.ir.state import STATE
from meshwright.ir.tracing import typeof
from meshwright.ir.varying import axes_of
from meshwright.ops.collective.all_reduce import ALL_REDUCE
from meshwright.ops.collective.base import (
    AlongDimension,
    MovesTiles,
    axis_index_of,
    batched,
    check_split,
    split_out,
)
from meshwright.ops.elementwise.monoid import Monoid, monoid_of
from meshwright.ops.elementwise.table import (
    add,
    eq,
    select,
    zeros_like,
)
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, iota
from meshwright.ops.shape.rearrange import above, expand_dims, move_dim, reshape, squeeze
from meshwright.ops.shape.slice_pad import concatenate, slice_in_dim


def _along_first(b: Builder, x: Emitted, dim: int, emit: Callable[[Emitted, ShapedArray, int], Emitted]) -> Emitted:
    """Emit a collective along ``dim``, on CPUs without the dimensions before it if they are of size 1.

    XLA's compiler for CPUs moves the dimension to the front, and undoes that by a copy even if only ones came before.
    """
    (given,), (out,) = b.in_avals, b.out_avals
    if not dim or b.platform != "cpu" or any(n != 1 for n in given.shape[:dim]):
        return emit(x, out, dim)
    (x,) = b.op("stablehlo.reshape", [x], [given.update(shape=given.shape[dim:])])
    return b.op("stablehlo.reshape", [emit(x, out.update(shape=out.shape[dim:]), 0)], [out])[0]


@dataclass(frozen=True)
class AllGather(AlongDimension, MovesTiles):
    """The tiles of all devices along ``axes``, concatenated along ``dimension``.

    All devices get the same value, but its type varies, since each device has its own cotangent for it. The type of
    :class:`AllGatherInvariant` does not vary.
    """

    name: ClassVar[str] = "all_gather"
    gives_all_the_same: ClassVar[bool] = True
    takes_keys: ClassVar[bool] = True
    kind: ClassVar[str] = "all_gather"

    def infer(self, x: ShapedArray) -> ShapedArray:
        d = self.dimension
        if not 0 <= d < x.ndim:
            raise ShapeError(f"all_gather: dimension {d} does not exist in shape {x.shape}")
        return x.update(shape=(*x.shape[:d], x.shape[d] * self.group_size, *x.shape[d + 1 :]))

    def transpose(self, ct: Any, x: Any) -> Cotangents:
        return [ReduceScatter(self.axes, self.sizes, self.dimension).bind(ct)]

    def batch_named(self, axis: BatchAxis, x: Any, dim: int | None) -> tuple[Any, int | None]:
        i, d = self.axes.index(axis.name), self.dimension
        x, dim = batched(x, dim, axis.size)
        # The minor axes first, then this one, then the major axes.
        if self.axes[i + 1 :]:
            minor = self.over(self.axes[i + 1 :], self.sizes[i + 1 :])
            x = dataclasses.replace(minor, dimension=above(d, dim)).bind(x)
        x = move_dim(x, dim, d)
        shape = typeof(x).shape
        x = reshape(x, (*shape[:d], shape[d] * shape[d + 1], *shape[d + 2 :]))
        return self.part(0, i)(x), None

    def emit(self, b: Builder, x: Emitted) -> Emitted | Sequence[Emitted]:
        def gather(x: Emitted, out: ShapedArray, dim: int) -> Emitted:
            groups = b.replica_groups(self.axes)
            return b.op("stablehlo.all_gather", [x], [out], all_gather_dim=dim, replica_groups=groups)[0]

        return _along_first(b, x, self.dimension, gather)


@dataclass(frozen=True)
class AllGatherInvariant(AllGather):
    """:class:`AllGather` with a result that does not vary over ``axes``, and so has one cotangent for all devices."""

    name: ClassVar[str] = "all_gather_invariant"

    def varies(self, *operands: Axes) -> Axes:
        return NOWHERE.union(*operands).difference(self.axes)

    def transpose(self, ct: Any, x: Any) -> Cotangents:
        if not axes_of(x).issuperset(self.axes):
            return super().transpose(ct, x)
        return [AllSlice(self.axes, self.sizes, self.dimension).bind(ct)]


@dataclass(frozen=True)
class AllSlice(AlongDimension, MovesTiles):
    """This device's tile, along ``dimension``, of a value replicated along ``axes`` (Shardy's all_slice)."""

    name: ClassVar[str] = "all_slice"

    def infer(self, x: ShapedArray) -> ShapedArray:
        d = self.dimension
        check_split(self, x, d)
        return x.update(shape=(*x.shape[:d], x.shape[d] // self.group_size, *x.shape[d + 1 :]))

    def aligned(self, args: Sequence[Any]) -> tuple[Op, Sequence[Any]]:
        # An invariant operand stays invariant: it has one cotangent, assembled from those of the tiles.
        (x,) = args
        return super().aligned(args) if axes_of(x) & set(self.axes) else (self, args)

    def transpose(self, ct: Any, x: Any) -> Cotangents:
        if STATE.checked.issuperset(self.axes) and not axes_of(x) & set(self.axes):
            return [AllGatherInvariant(self.axes, self.sizes, self.dimension).bind(ct)]
        # Every device's operand is a value of its own: the cotangent goes into this device's tile, with zeros
        # elsewhere.
        d, n = self.dimension, self.group_size
        tiles = broadcast_in_dim(
            expand_dims(ct, [d]),
            (*x.aval.shape[:d], n, *typeof(ct).shape[d:]),
            range(typeof(ct).ndim + 1),
        )
        shape = typeof(tiles).shape
        mine = eq(iota(np.int32, shape, d), broadcast_in_dim(axis_index_of(self.axes, self.sizes), shape, ()))
        return [reshape(select(mine, tiles, zeros_like(tiles)), x.aval.shape)]

    def batch_named(self, axis: BatchAxis, x: Any, dim: int | None) -> tuple[Any, int | None]:
        i, d = self.axes.index(axis.name), self.dimension
        if dim is not None:
            x = _own_tiles(x, dim, d, self.sizes, i)
        else:
            x = self.part(0, i)(x)
            x, _ = split_out(x, d, axis.size)
            if self.axes[i + 1 :]:
                x = AllSlice(self.axes[i + 1 :], self.sizes[i + 1 :], d + 1).bind(x)
            return x, d
        # The values differ along the axis: select from each batch entry its own tile along that axis.
        rest = [*self.axes[:i], *self.axes[i + 1 :]], [*self.sizes[:i], *self.sizes[i + 1 :]]
        return (AllSlice(tuple(rest[0]), tuple(rest[1]), d + 1).bind(x) if rest[0] else x), d

    def emit(self, b: Builder, x: Emitted) -> Emitted | Sequence[Emitted]:
        (out,) = b.out_avals
        d = self.dimension
        scalar = ShapedArray((), dtypes.int32)
        start = b.op("stablehlo.multiply", [b.axis_index(self.axes), b.constant(out.shape[d], scalar)], [scalar])[0]
        zero = b.constant(0, scalar)
        starts = [start if i == d else zero for i in range(out.ndim)]
        return b.op("stablehlo.dynamic_slice", [x, *starts], b.out_avals, slice_sizes=out.shape)[0]


def _own_tiles(x: Any, dim: int, d: int, sizes: tuple[int, ...], i: int) -> Any:
    """From batch entry ``t``, select tile ``t`` of axis ``i``, keeping other axes; the batch dimension moves to
    ``d``."""
    x = move_dim(x, dim, 0)
    major, n = math.prod(sizes[:i]), sizes[i]
    shape = typeof(x).shape
    x = reshape(x, (*shape[: d + 1], major, n, shape[d + 1] // (major * n), *shape[d + 2 :]))
    rows = [slice_in_dim(slice_in_dim(x, t, t + 1, axis=0), t, t + 1, axis=d + 2) for t in range(n)]
    y = squeeze(concatenate(rows, 0), [d + 2])
    shape = typeof(y).shape
    y = reshape(y, (*shape[: d + 1], shape[d + 1] * shape[d + 2], *shape[d + 3 :]))
    return move_dim(y, 0, d)


@dataclass(frozen=True)
class ReduceScatter(AlongDimension):
    """This device's tile, along ``dimension``, of the sum over the devices along ``axes``."""

    reduction: str = "sum"
    name: ClassVar[str] = "reduce_scatter"
    kind: ClassVar[str] = "reduce_scatter"
    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ((0,),)

    @property
    def monoid(self) -> Monoid:
        return monoid_of(self.reduction)

    def of_sum(self) -> Op | None:
        return AllSlice(self.axes, self.sizes, self.dimension) if self.monoid.combine is add else None

    def infer(self, x: ShapedArray) -> ShapedArray:
        d = self.dimension
        check_split(self, x, d)
        return x.update(shape=(*x.shape[:d], x.shape[d] // self.group_size, *x.shape[d + 1 :]))

    def linear_groups(self, *avals: ShapedArray) -> tuple[tuple[int, ...], ...]:
        return self.linear_in if self.monoid.combine is add else ()

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        if self.monoid.combine is not add:
            raise RuleError(f"reduce_scatter of the reduction {self.reduction} cannot be differentiated")
        return super().jvp(primals, tangents)

    def transpose(self, ct: Any, x: Any) -> Cotangents:
        return [AllGather(self.axes, self.sizes, self.dimension).bind(ct)]

    def batch_named(self, axis: BatchAxis, x: Any, dim: int | None) -> tuple[Any, int | None]:
        i, d = self.axes.index(axis.name), self.dimension
        alone = ALL_REDUCE[self.reduction]((axis.name,), (axis.size,))  # type: ignore[arg-type]
        x, _ = alone.batch_named(axis, x, dim)
        x = self.part(0, i)(x)
        x, _ = split_out(x, d, axis.size)
        if self.axes[i + 1 :]:
            x = ReduceScatter(self.axes[i + 1 :], self.sizes[i + 1 :], d + 1, self.reduction).bind(x)
        return x, d

    def emit(self, b: Builder, x: Emitted) -> Emitted | Sequence[Emitted]:
        def scatter(x: Emitted, out: ShapedArray, dim: int) -> Emitted:
            region, groups = self.monoid.region(b, b.in_avals[0].dtype), b.replica_groups(self.axes)
            return b.op(
                "stablehlo.reduce_scatter", [x], [out], regions=[region], scatter_dimension=dim, replica_groups=groups
            )[0]

        return _along_first(b, x, self.dimension, scatter)
