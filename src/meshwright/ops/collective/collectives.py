"""Collectives over named axes: the vocabulary of per-device programs.

An axis name is a mesh axis, the axis of a ``vmap``, or a sub-axis of a mesh axis (``"data:(1)2"``, Shardy's notation).
Several axes are one axis, the first being the major one. Under ``vmap`` over a named axis a collective becomes plain
data movement on the batch dimension (``batch_named``): that is how virtual meshes run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import NOWHERE, Axes, ShapedArray
from meshwright.errors import ArgumentError, RuleError, ShapeError
from meshwright.ir.op import BatchAxis, Op
from meshwright.ir.state import STATE
from meshwright.ir.tracing import typeof
from meshwright.ir.varying import CAST, axes_of, cast_all
from meshwright.ops.elementwise.monoid import AND, MAX, MIN, OR, PROD, SUM, Monoid, member, monoid_of
from meshwright.ops.elementwise.table import (
    add,
    convert,
    copy,
    div,
    eq,
    integer_pow,
    mul,
    scalar_like,
    select,
    zeros_like,
)
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, iota, reduce_sum
from meshwright.ops.shape.rearrange import above, expand_dims, move_dim, reshape, squeeze
from meshwright.ops.shape.slice_pad import concatenate, slice_in_dim
from meshwright.sharding.rule import ShardingRule, make_rule

#: most slices that a reduction over a virtual axis is written out as; XLA's CPU reduce over a major dimension is slow
_MOST_SLICES = 64


@dataclass(frozen=True)
class Collective(Op):
    """Base: ``axes`` are names, major to minor, ``sizes`` their sizes."""

    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    hidden_params: ClassVar[tuple[str, ...]] = ("sizes",)
    #: kind in reports; empty for what sends nothing
    kind: ClassVar[str] = ""
    #: all positions along ``axes`` get the same
    gives_all_the_same: ClassVar[bool] = False
    #: linear in its operand
    linear: ClassVar[bool] = True

    @property
    def group_size(self) -> int:
        return math.prod(self.sizes)

    def over(self, axes: Sequence[str], sizes: Sequence[int]) -> Self:
        """This collective over other axes."""
        return dataclasses.replace(self, axes=tuple(axes), sizes=tuple(sizes))

    def part(self, start: int, stop: int | None = None) -> Callable[[Any], Any]:
        """This collective over ``axes[start:stop]``, as a function; the identity if that is none."""
        axes, sizes = self.axes[start:stop], self.sizes[start:stop]
        return self.over(axes, sizes).bind if axes else lambda x: x

    def batch_named(self, axis: BatchAxis, x: Any, dim: int | None) -> tuple[Any, int | None]:
        """``batch`` where ``axis`` is one of ``axes``."""
        raise NotImplementedError

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        if not self.linear:
            return super().jvp(primals, tangents)
        return self.bind(*primals), self.bind(*tangents)

    def varies(self, *operands: Axes) -> Axes:
        return NOWHERE.union(*operands) | (STATE.checked & set(self.axes))

    def aligned(self, args: Sequence[Any]) -> tuple[Op, Sequence[Any]]:
        return self, cast_all(args, STATE.checked & set(self.axes))

    def of_sum(self) -> Op | None:
        """What is left to do to an operand that is summed over the axes already; None if the op is no sum."""
        return None

    def moved_dims(self) -> tuple[int, ...]:
        """The dimensions that change hands: in a region that is automatic along other axes, these do not split them."""
        return ()

    def sharding_rule(self, *avals: ShapedArray) -> ShardingRule:
        out = self.infer(*avals)
        names = [None if d in self.moved_dims() else f"d{d}" for d in range(out.ndim)]
        sizes = {f"d{d}": size for d, size in enumerate(out.shape) if d not in self.moved_dims()}
        return make_rule([names] * len(avals), [names], sizes)


def _batched(x: Any, dim: int | None, size: int) -> tuple[Any, int]:
    """``x`` with a batch dimension, repeated along it if it had none."""
    if dim is not None:
        return x, dim
    shape = typeof(x).shape
    return broadcast_in_dim(x, (size, *shape), range(1, len(shape) + 1)), 0


def _fold(x: Any, dim: int, combine: Callable[[Any, Any], Any]) -> Any:
    """Reduce over ``dim`` by combining halves: adding slices runs at memory speed on CPU, ``reduce`` does not."""
    n = typeof(x).shape[dim]
    while n > 1:
        half = n // 2
        left, right = slice_in_dim(x, 0, half, axis=dim), slice_in_dim(x, half, 2 * half, axis=dim)
        rest = slice_in_dim(x, 2 * half, n, axis=dim) if n % 2 else None
        x = combine(left, right)
        if rest is not None:
            first = combine(slice_in_dim(x, 0, 1, axis=dim), rest)
            x = concatenate([first, slice_in_dim(x, 1, half, axis=dim)], dim) if half > 1 else first
        n = half
    return squeeze(x, [dim])


# --- all-reduce ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class AllReduce(Collective):
    """Base of psum, pmax and pmin."""

    kind: ClassVar[str] = "all_reduce"
    monoid: ClassVar[Monoid]
    gives_all_the_same: ClassVar[bool] = True

    def infer(self, x: ShapedArray) -> ShapedArray:
        return x

    def varies(self, *operands: Axes) -> Axes:
        return NOWHERE.union(*operands).difference(self.axes)

    @property
    def reduction(self) -> str:
        """The kind of partial results that it joins."""
        return self.monoid.kind

    def repeat(self, x: Any, size: int) -> Any:
        """The reduction of ``size`` equal values."""
        return x

    def batch(self, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        return self.bind(*args), dims[0]

    def batch_named(self, axis: BatchAxis, x: Any, dim: int | None) -> tuple[Any, int | None]:
        i = self.axes.index(axis.name)  # type: ignore[arg-type]
        if dim is None:
            x = self.repeat(x, axis.size)
        elif axis.size <= _MOST_SLICES or self.reduction != "sum":
            x = _fold(x, dim, self.monoid.combine)
        else:
            x = reduce_sum(x, (dim,))
        rest = self.axes[:i] + self.axes[i + 1 :]
        return (self.over(rest, self.sizes[:i] + self.sizes[i + 1 :]).bind(x) if rest else x), None

    def emit(self, b: Any, x: Any) -> Any:
        return b.op(
            "stablehlo.all_reduce", [x], b.out_avals,
            regions=[self.monoid.region(b, b.in_avals[0].dtype)], replica_groups=b.replica_groups(self.axes),
        )[0]  # fmt: skip


@dataclass(frozen=True)
class Psum(AllReduce):
    """Sum over the devices along ``axes``.

    What its transpose is depends on what a cotangent of the result means. Where types say that the operand varies and
    the result does not, there is one cotangent for all devices, and each takes it (a cast). Where nothing is known,
    each device's cotangent is that of its own copy of the result, and they are summed.
    """

    name: ClassVar[str] = "psum"
    monoid: ClassVar[Monoid] = SUM
    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ((0,),)

    def of_sum(self) -> Op | None:
        return copy

    def repeat(self, x: Any, size: int) -> Any:
        return mul(x, scalar_like(size, x))

    def transpose(self, ct: Any, x: Any) -> Sequence[Any]:
        sizes = dict(zip(self.axes, self.sizes))
        for cls, known in ((PVary, True), (Psum, False)):
            axes = tuple(a for a in self.axes if (a in axes_of(x)) == known)
            ct = cls(axes, tuple(sizes[a] for a in axes)).bind(ct) if axes else ct
        return [ct]


@dataclass(frozen=True)
class _PExtremum(AllReduce):
    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x,), (t,) = primals, tangents
        y = self.bind(x)
        # The tangent of those that are the extremum, shared evenly.
        mine = convert(eq(x, y), typeof(x).dtype)
        psum_ = Psum(self.axes, self.sizes).bind
        count = psum_(mine)
        total = psum_(select(eq(x, y), t, zeros_like(t)))
        return y, div(total, count)


Pmax = member(_PExtremum, MAX, "Pmax", "pmax", "Maximum over the devices along ``axes``.")
Pmin = member(_PExtremum, MIN, "Pmin", "pmin", "Minimum over the devices along ``axes``.")


@dataclass(frozen=True)
class Pprod(AllReduce):
    """Product over the devices along ``axes``."""

    name: ClassVar[str] = "pprod"
    linear: ClassVar[bool] = False
    monoid: ClassVar[Monoid] = PROD

    def repeat(self, x: Any, size: int) -> Any:
        return integer_pow(x, size)


@dataclass(frozen=True)
class _Bitwise(AllReduce):
    linear: ClassVar[bool] = False


Pand = member(_Bitwise, AND, "Pand", "pand", "Bitwise and over the devices along ``axes``.")
Por = member(_Bitwise, OR, "Por", "por", "Bitwise or over the devices along ``axes``.")


@dataclass(frozen=True)
class PVary(Collective):
    """The operand, as a value that varies over ``axes`` though it does not: a cast of types, which sends nothing.

    It stands where what all devices share meets what each has for itself. Each device has a cotangent for its use of
    it, and the transpose is their sum. Types end with the region that they are for: what is partitioned has none of it.
    """

    name: ClassVar[str] = "pvary"
    moves_only: ClassVar[bool] = True
    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ((0,),)

    def infer(self, x: ShapedArray) -> ShapedArray:
        return x

    def aligned(self, args: Sequence[Any]) -> tuple[Op, Sequence[Any]]:
        return self, args

    def transpose(self, ct: Any, x: Any) -> Sequence[Any]:
        return [Psum(self.axes, self.sizes).bind(ct)]

    def batch(self, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        return self.bind(*args), dims[0]

    def batch_named(self, axis: BatchAxis, x: Any, dim: int | None) -> tuple[Any, int | None]:
        i = self.axes.index(axis.name)  # type: ignore[arg-type]
        return self.part(i + 1)(self.part(0, i)(x)), dim


CAST.fill(PVary)

#: the all-reduce of each reduction kind
ALL_REDUCE: dict[str, type[AllReduce]] = {c.monoid.kind: c for c in (Psum, Pmax, Pmin, Pprod, Pand, Por)}


# --- gather, slice, reduce-scatter --------------------------------------------------------------------------
def _check_split(op: Collective, x: ShapedArray, dim: int) -> None:
    if not 0 <= dim < x.ndim or x.shape[dim] % op.group_size:
        raise ShapeError(
            f"{op.name}: dimension {dim} of shape {x.shape} must exist and be divisible by {op.group_size}, the number "
            f"of devices along {', '.join(op.axes)}"
        )


def _split_out(x: Any, dim: int, size: int) -> tuple[Any, int]:
    """Dimension ``dim`` cut into ``size`` tiles, the tile number becoming a batch dimension in front of it."""
    shape = typeof(x).shape
    return reshape(x, (*shape[:dim], size, shape[dim] // size, *shape[dim + 1 :])), dim


@dataclass(frozen=True)
class AllGather(Collective):
    """The tiles of all devices along ``axes``, joined along ``dimension``.

    All devices get the same. Its type does not say so, as each is to have a cotangent of its own for what it got; that
    of :class:`AllGatherInvariant` does.
    """

    dimension: int
    name: ClassVar[str] = "all_gather"
    gives_all_the_same: ClassVar[bool] = True
    takes_keys: ClassVar[bool] = True
    kind: ClassVar[str] = "all_gather"
    moves_only: ClassVar[bool] = True
    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ((0,),)

    def moved_dims(self) -> tuple[int, ...]:
        return (self.dimension,)

    def infer(self, x: ShapedArray) -> ShapedArray:
        d = self.dimension
        if not 0 <= d < x.ndim:
            raise ShapeError(f"all_gather: dimension {d} does not exist in shape {x.shape}")
        return x.update(shape=(*x.shape[:d], x.shape[d] * self.group_size, *x.shape[d + 1 :]))

    def transpose(self, ct: Any, x: Any) -> Sequence[Any]:
        return [ReduceScatter(self.axes, self.sizes, self.dimension).bind(ct)]

    def batch(self, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        (x,), (dim,) = args, dims
        new = above(self.dimension, dim)  # type: ignore[arg-type]
        return dataclasses.replace(self, dimension=new).bind(x), dim

    def batch_named(self, axis: BatchAxis, x: Any, dim: int | None) -> tuple[Any, int | None]:
        i, d = self.axes.index(axis.name), self.dimension  # type: ignore[arg-type]
        x, dim = _batched(x, dim, axis.size)
        # The minor axes first, then this one, then the major ones.
        if self.axes[i + 1 :]:
            minor = self.over(self.axes[i + 1 :], self.sizes[i + 1 :])
            x = dataclasses.replace(minor, dimension=above(d, dim)).bind(x)
        x = move_dim(x, dim, d)
        shape = typeof(x).shape
        x = reshape(x, (*shape[:d], shape[d] * shape[d + 1], *shape[d + 2 :]))
        return self.part(0, i)(x), None

    def emit(self, b: Any, x: Any) -> Any:
        return b.op(
            "stablehlo.all_gather", [x], b.out_avals,
            all_gather_dim=self.dimension, replica_groups=b.replica_groups(self.axes),
        )[0]  # fmt: skip


@dataclass(frozen=True)
class AllGatherInvariant(AllGather):
    """:class:`AllGather` with a result that does not vary over ``axes``, and so one cotangent for all devices."""

    name: ClassVar[str] = "all_gather_invariant"

    def varies(self, *operands: Axes) -> Axes:
        return NOWHERE.union(*operands).difference(self.axes)

    def transpose(self, ct: Any, x: Any) -> Sequence[Any]:
        if not axes_of(x).issuperset(self.axes):
            return super().transpose(ct, x)
        return [AllSlice(self.axes, self.sizes, self.dimension).bind(ct)]


@dataclass(frozen=True)
class AllSlice(Collective):
    """This device's tile, along ``dimension``, of a value that all devices along ``axes`` hold (Shardy's all_slice)."""

    dimension: int
    name: ClassVar[str] = "all_slice"
    moves_only: ClassVar[bool] = True
    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ((0,),)

    def moved_dims(self) -> tuple[int, ...]:
        return (self.dimension,)

    def infer(self, x: ShapedArray) -> ShapedArray:
        d = self.dimension
        _check_split(self, x, d)
        return x.update(shape=(*x.shape[:d], x.shape[d] // self.group_size, *x.shape[d + 1 :]))

    def aligned(self, args: Sequence[Any]) -> tuple[Op, Sequence[Any]]:
        # An operand that all devices hold stays one: it has one cotangent, which their tiles make up.
        (x,) = args
        return super().aligned(args) if axes_of(x) & set(self.axes) else (self, args)

    def transpose(self, ct: Any, x: Any) -> Sequence[Any]:
        if STATE.checked.issuperset(self.axes) and not axes_of(x) & set(self.axes):
            return [AllGatherInvariant(self.axes, self.sizes, self.dimension).bind(ct)]
        # Every device's operand is a value of its own: the cotangent goes to this device's tile, zeros elsewhere.
        d, n = self.dimension, self.group_size
        tiles = broadcast_in_dim(
            expand_dims(ct, [d]),
            (*x.aval.shape[:d], n, *typeof(ct).shape[d:]),
            range(typeof(ct).ndim + 1),
        )
        shape = typeof(tiles).shape
        mine = eq(iota(np.int32, shape, d), broadcast_in_dim(axis_index_of(self.axes, self.sizes), shape, ()))
        return [reshape(select(mine, tiles, zeros_like(tiles)), x.aval.shape)]

    def batch(self, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        (x,), (dim,) = args, dims
        return AllSlice(self.axes, self.sizes, above(self.dimension, dim)).bind(x), dim  # type: ignore[arg-type]

    def batch_named(self, axis: BatchAxis, x: Any, dim: int | None) -> tuple[Any, int | None]:
        i, d = self.axes.index(axis.name), self.dimension  # type: ignore[arg-type]
        if dim is not None:
            x = _own_tiles(x, dim, d, self.sizes, i)
        else:
            x = self.part(0, i)(x)
            x, _ = _split_out(x, d, axis.size)
            if self.axes[i + 1 :]:
                x = AllSlice(self.axes[i + 1 :], self.sizes[i + 1 :], d + 1).bind(x)
            return x, d
        # Values that differ along the axis: each batch entry has been cut to its own tile of that axis.
        rest = [*self.axes[:i], *self.axes[i + 1 :]], [*self.sizes[:i], *self.sizes[i + 1 :]]
        return (AllSlice(tuple(rest[0]), tuple(rest[1]), d + 1).bind(x) if rest[0] else x), d

    def emit(self, b: Any, x: Any) -> Any:
        (out,) = b.out_avals
        d = self.dimension
        scalar = ShapedArray((), dtypes.int32)
        start = b.op("stablehlo.multiply", [b.axis_index(self.axes), b.constant(out.shape[d], scalar)], [scalar])[0]
        zero = b.constant(0, scalar)
        starts = [start if i == d else zero for i in range(out.ndim)]
        return b.op("stablehlo.dynamic_slice", [x, *starts], b.out_avals, slice_sizes=out.shape)[0]


def _own_tiles(x: Any, dim: int, d: int, sizes: tuple[int, ...], i: int) -> Any:
    """Of batch entry ``t``, the ``t``-th tile of axis ``i`` (those of the other axes stay); batch dim goes to ``d``."""
    x = move_dim(x, dim, 0)
    major, n = math.prod(sizes[:i]), sizes[i]
    shape = typeof(x).shape
    x = reshape(x, (*shape[: d + 1], major, n, shape[d + 1] // (major * n), *shape[d + 2 :]))
    rows = []
    for t in range(n):
        rows.append(slice_in_dim(slice_in_dim(x, t, t + 1, axis=0), t, t + 1, axis=d + 2))
    y = squeeze(concatenate(rows, 0), [d + 2])
    shape = typeof(y).shape
    y = reshape(y, (*shape[: d + 1], shape[d + 1] * shape[d + 2], *shape[d + 3 :]))
    return move_dim(y, 0, d)


@dataclass(frozen=True)
class ReduceScatter(Collective):
    """This device's tile, along ``dimension``, of the sum over the devices along ``axes``."""

    dimension: int
    reduction: str = "sum"
    name: ClassVar[str] = "reduce_scatter"
    kind: ClassVar[str] = "reduce_scatter"
    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ((0,),)

    @property
    def monoid(self) -> Monoid:
        return monoid_of(self.reduction)

    def of_sum(self) -> Op | None:
        return AllSlice(self.axes, self.sizes, self.dimension) if self.reduction == "sum" else None

    def moved_dims(self) -> tuple[int, ...]:
        return (self.dimension,)

    def infer(self, x: ShapedArray) -> ShapedArray:
        d = self.dimension
        _check_split(self, x, d)
        return x.update(shape=(*x.shape[:d], x.shape[d] // self.group_size, *x.shape[d + 1 :]))

    def linear_groups(self, *avals: ShapedArray) -> tuple[tuple[int, ...], ...]:
        return self.linear_in if self.reduction == "sum" else ()

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        if self.reduction != "sum":
            raise RuleError(f"reduce_scatter of the reduction {self.reduction} cannot be differentiated")
        return super().jvp(primals, tangents)

    def transpose(self, ct: Any, x: Any) -> Sequence[Any]:
        return [AllGather(self.axes, self.sizes, self.dimension).bind(ct)]

    def batch(self, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        (x,), (dim,) = args, dims
        new = above(self.dimension, dim)  # type: ignore[arg-type]
        return ReduceScatter(self.axes, self.sizes, new, self.reduction).bind(x), dim

    def batch_named(self, axis: BatchAxis, x: Any, dim: int | None) -> tuple[Any, int | None]:
        i, d = self.axes.index(axis.name), self.dimension  # type: ignore[arg-type]
        alone = ALL_REDUCE[self.reduction]((axis.name,), (axis.size,))  # type: ignore[arg-type]
        x, _ = alone.batch_named(axis, x, dim)
        x = self.part(0, i)(x)
        x, _ = _split_out(x, d, axis.size)
        if self.axes[i + 1 :]:
            x = ReduceScatter(self.axes[i + 1 :], self.sizes[i + 1 :], d + 1, self.reduction).bind(x)
        return x, d

    def emit(self, b: Any, x: Any) -> Any:
        return b.op(
            "stablehlo.reduce_scatter", [x], b.out_avals,
            regions=[self.monoid.region(b, b.in_avals[0].dtype)],
            scatter_dimension=self.dimension, replica_groups=b.replica_groups(self.axes),
        )[0]  # fmt: skip


# --- all-to-all, permute, index -----------------------------------------------------------------------------
@dataclass(frozen=True)
class AllToAll(Collective):
    """Tile ``j`` along ``split_dimension`` goes to device ``j``; what arrives is joined along ``concat_dimension``."""

    split_dimension: int
    concat_dimension: int
    name: ClassVar[str] = "all_to_all"
    takes_keys: ClassVar[bool] = True
    kind: ClassVar[str] = "all_to_all"
    moves_only: ClassVar[bool] = True
    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ((0,),)

    def moved_dims(self) -> tuple[int, ...]:
        return (self.split_dimension, self.concat_dimension)

    def infer(self, x: ShapedArray) -> ShapedArray:
        s, c = self.split_dimension, self.concat_dimension
        _check_split(self, x, s)
        if not 0 <= c < x.ndim:
            raise ShapeError(f"all_to_all: concat dimension {c} does not exist in shape {x.shape}")
        shape = list(x.shape)
        shape[s] //= self.group_size
        shape[c] *= self.group_size
        return x.update(shape=tuple(shape))

    def transpose(self, ct: Any, x: Any) -> Sequence[Any]:
        return [AllToAll(self.axes, self.sizes, self.concat_dimension, self.split_dimension).bind(ct)]

    def batch(self, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        (x,), (dim,) = args, dims
        s, c = above(self.split_dimension, dim), above(self.concat_dimension, dim)  # type: ignore[arg-type]
        return AllToAll(self.axes, self.sizes, s, c).bind(x), dim

    def batch_named(self, axis: BatchAxis, x: Any, dim: int | None) -> tuple[Any, int | None]:
        s, c = self.split_dimension, self.concat_dimension
        k = len(self.axes)
        i = self.axes.index(axis.name)  # type: ignore[arg-type]
        x, dim = _batched(x, dim, axis.size)
        if s == c:
            raise ArgumentError("all_to_all: split and concat dimension are the same; that moves nothing along it")
        x = move_dim(x, dim, 0)
        # The split dimension as one dimension an axis, so that the axes can be done one after the other.
        shape = typeof(x).shape
        x = reshape(x, (*shape[: s + 1], *self.sizes, shape[s + 1] // self.group_size, *shape[s + 2 :]))
        c += k if c > s else 0
        for j in reversed(range(k)):
            if j == i:
                # [source, …, target, …, C] -> [target, …, 1, …, source·C]
                x = move_dim(x, s + j + 1, 0)  # target first, then source
                x = move_dim(x, 1, c + 1 if c < s + j else c)  # source in front of the concat dimension
                shape = typeof(x).shape
                at = c + 1 if c < s + j else c
                x = reshape(x, (*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]))
                x = expand_dims(x, [s + j + 1])
            else:
                x = AllToAll((self.axes[j],), (self.sizes[j],), s + j + 1, c + 1).bind(x)
        return squeeze(x, range(s + 1, s + k + 1)), 0

    def emit(self, b: Any, x: Any) -> Any:
        return b.op(
            "stablehlo.all_to_all", [x], b.out_avals,
            split_dimension=self.split_dimension, concat_dimension=self.concat_dimension,
            split_count=self.group_size, replica_groups=b.replica_groups(self.axes),
        )[0]  # fmt: skip


@dataclass(frozen=True)
class Ppermute(Collective):
    """``perm`` is ``(source, target)`` pairs of positions along ``axes``; who gets nothing has zeros."""

    perm: tuple[tuple[int, int], ...]
    name: ClassVar[str] = "ppermute"
    takes_keys: ClassVar[bool] = True
    kind: ClassVar[str] = "collective_permute"
    moves_only: ClassVar[bool] = True
    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ((0,),)

    def infer(self, x: ShapedArray) -> ShapedArray:
        sources, targets = zip(*self.perm) if self.perm else ((), ())
        n = self.group_size
        if len(set(sources)) < len(sources) or len(set(targets)) < len(targets):
            raise ArgumentError(f"ppermute: each source and each target may occur once in perm {self.perm}")
        if any(not 0 <= p < n for p in (*sources, *targets)):
            raise ArgumentError(f"ppermute: perm {self.perm} names positions outside 0..{n - 1}")
        return x

    def transpose(self, ct: Any, x: Any) -> Sequence[Any]:
        return [Ppermute(self.axes, self.sizes, tuple((t, s) for s, t in self.perm)).bind(ct)]

    def batch(self, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        return self.bind(*args), dims[0]

    def batch_named(self, axis: BatchAxis, x: Any, dim: int | None) -> tuple[Any, int | None]:
        x, dim = _batched(x, dim, axis.size)
        if len(self.axes) == 1:
            return _permute_rows(x, dim, axis.size, self.perm), dim
        # Several axes: the others are gathered too (a reshape where they are virtual), permuted as one and cut again.
        i = self.axes.index(axis.name)  # type: ignore[arg-type]
        x = move_dim(x, dim, 0)
        x = expand_dims(x, [*range(i), *range(i + 1, len(self.axes))])
        for j, (name, size) in enumerate(zip(self.axes, self.sizes)):
            if j != i:
                x = AllGather((name,), (size,), j).bind(x)
        k, shape = len(self.axes), typeof(x).shape
        x = _permute_rows(reshape(x, (self.group_size, *shape[k:])), 0, self.group_size, self.perm)
        x = reshape(x, shape)
        for j, (name, size) in enumerate(zip(self.axes, self.sizes)):
            if j != i:
                x = AllSlice((name,), (size,), j).bind(x)
        return squeeze(x, [j for j in range(k) if j != i]), 0

    def emit(self, b: Any, x: Any) -> Any:
        pairs = b.source_target_pairs(self.axes, self.perm)
        return b.op("stablehlo.collective_permute", [x], b.out_avals, source_target_pairs=pairs)[0]


def _permute_rows(x: Any, dim: int, n: int, perm: Sequence[tuple[int, int]]) -> Any:
    """Row ``t`` is row ``source(t)``, or zeros: runs of neighbouring sources are slices."""
    source = {t: s for s, t in perm}
    if all(source.get(t) == t for t in range(n)):
        return x
    pieces, t = [], 0
    while t < n:
        end = t + 1
        if t in source:
            while end < n and source.get(end) == source[t] + end - t:
                end += 1
            pieces.append(slice_in_dim(x, source[t], source[t] + end - t, axis=dim))
        else:
            while end < n and end not in source:
                end += 1
            shape = typeof(x).shape
            zero = scalar_like(0, x)
            pieces.append(broadcast_in_dim(zero, (*shape[:dim], end - t, *shape[dim + 1 :]), ()))
        t = end
    return concatenate(pieces, dim)


@dataclass(frozen=True)
class AxisIndex(Collective):
    """This device's position along ``axes``."""

    name: ClassVar[str] = "axis_index"

    def infer(self) -> ShapedArray:
        return ShapedArray((), dtypes.int32)

    def batch_named(self, axis: BatchAxis, x: Any, dim: int | None) -> tuple[Any, int | None]:
        i = self.axes.index(axis.name)  # type: ignore[arg-type]
        minor = math.prod(self.sizes[i + 1 :])
        index = mul(iota(np.int32, (axis.size,), 0), np.int32(minor))
        if self.axes[:i]:
            major = AxisIndex(self.axes[:i], self.sizes[:i]).bind()
            index = add(index, mul(major, np.int32(minor * axis.size)))
        if self.axes[i + 1 :]:
            index = add(index, AxisIndex(self.axes[i + 1 :], self.sizes[i + 1 :]).bind())
        return index, 0

    def emit(self, b: Any) -> Any:
        return b.axis_index(self.axes)


def axis_index_of(axes: Sequence[str], sizes: Sequence[int]) -> Any:
    """Position along several axes as one, the first being the major one (int32 scalar)."""
    total = None
    for name, size in zip(axes, sizes):
        index = AxisIndex((name,), (size,)).bind()
        total = index if total is None else add(mul(total, np.int32(size)), index)
    return np.int32(0) if total is None else total
