"""All-reduces, one class per monoid, and the cast to a varying type, the transpose of their sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from meshwright.core.avals import NOWHERE, Axes, ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.contract import ArrayLike, Emitted
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Cotangents, Dual, Op, Tangent
from meshwright.ir.state import STATE
from meshwright.ir.tracing import typeof
from meshwright.ir.varying import CAST, axes_of
from meshwright.ops.collective.base import (
    Collective,
    MovesTiles,
)
from meshwright.ops.elementwise.monoid import AND, MASKED, MAX, MIN, OR, PROD, SUM, Monoid, member
from meshwright.ops.elementwise.table import (
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
from meshwright.ops.shape.broadcast_reduce import reduce_sum
from meshwright.ops.shape.rearrange import squeeze
from meshwright.ops.shape.slice_pad import concatenate, slice_in_dim

#: up to this many slices, a reduction over a virtual axis is unrolled: XLA's CPU reduce over a major dimension is slow
_MOST_SLICES = 64


def fold(x: Any, dim: int, combine: Callable[[Any, Any], Any]) -> Any:
    """Reduce over ``dim`` by combining halves: on CPUs, adding slices runs at memory speed, ``reduce`` does not."""
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
        """The kind of partial results that it reduces."""
        return self.monoid.kind

    def repeat(self, x: Any, size: int) -> Any:
        """The reduction of ``size`` equal values."""
        return x

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        return self.bind(*args), dims[0]

    def batch_named(self, axis: BatchAxis, x: Any, dim: int | None) -> tuple[Any, int | None]:
        i = self.axes.index(axis.name)
        if dim is None:
            x = self.repeat(x, axis.size)
        elif axis.size <= _MOST_SLICES or self.reduction != "sum":
            x = fold(x, dim, self.monoid.combine)
        else:
            x = reduce_sum(x, (dim,))
        rest = self.axes[:i] + self.axes[i + 1 :]
        return (self.over(rest, self.sizes[:i] + self.sizes[i + 1 :]).bind(x) if rest else x), None

    def emit(self, b: Builder, x: Emitted) -> Emitted | Sequence[Emitted]:
        return b.op(
            "stablehlo.all_reduce", [x], b.out_avals,
            regions=[self.monoid.region(b, b.in_avals[0].dtype)], replica_groups=b.replica_groups(self.axes),
        )[0]  # fmt: skip


@dataclass(frozen=True)
class Psum(AllReduce):
    """Sum over the devices along ``axes``.

    Its transpose depends on the meaning of the result's cotangent. If types say that the operand varies and the result
    does not, there is one cotangent for all devices, and each gets it (a cast). If nothing is known, each device's
    cotangent is that of its own copy of the result, and they are summed.
    """

    name: ClassVar[str] = "psum"
    monoid: ClassVar[Monoid] = SUM
    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ((0,),)

    def of_sum(self) -> Op | None:
        return copy

    def repeat(self, x: Any, size: int) -> Any:
        return mul(x, scalar_like(size, x))

    def transpose(self, ct: Any, x: Any) -> Cotangents:
        sizes = dict(zip(self.axes, self.sizes))
        for cls, known in ((PVary, True), (Psum, False)):
            axes = tuple(a for a in self.axes if (a in axes_of(x)) == known)
            ct = cls(axes, tuple(sizes[a] for a in axes)).bind(ct) if axes else ct
        return [ct]


@dataclass(frozen=True)
class PsumMasked(Psum):
    """Sum over the devices along ``axes`` of terms of which some are empty (:data:`MASKED`).

    As ``psum``, except that no pass moves a multiplication of the sum to its terms.
    """

    name: ClassVar[str] = "psum_masked"
    monoid: ClassVar[Monoid] = MASKED


@dataclass(frozen=True)
class _PExtremum(AllReduce):
    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        (x,), (t,) = primals, tangents
        y = self.bind(x)
        # The tangent is that of the elements equal to the extremum, divided evenly.
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
class PVary(MovesTiles):
    """A cast of the operand to a type that varies over ``axes``, although its value does not. It sends nothing.

    It is inserted where an invariant value meets a varying one. Each device has its own cotangent for its use, and the
    transpose is their sum. These types exist only inside a region, and are removed before partitioning.
    """

    name: ClassVar[str] = "pvary"

    def infer(self, x: ShapedArray) -> ShapedArray:
        return x

    def aligned(self, args: Sequence[Any]) -> tuple[Op, Sequence[Any]]:
        return self, args

    def bind(self, *args: ArrayLike) -> Any:
        """The cast over those of ``axes`` over which the operand does not vary yet: the sum that is the transpose of a
        cast too many would count each cotangent once per device."""
        (x,) = args
        missing = [i for i, a in enumerate(self.axes) if a not in axes_of(x)]
        if len(missing) == len(self.axes):
            return STATE.trace.process(self, args)
        op = self.over(tuple(self.axes[i] for i in missing), tuple(self.sizes[i] for i in missing))
        return STATE.trace.process(op, args) if missing else x

    def transpose(self, ct: Any, x: Any) -> Cotangents:
        return [Psum(self.axes, self.sizes).bind(ct)]

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        return self.bind(*args), dims[0]

    def batch_named(self, axis: BatchAxis, x: Any, dim: int | None) -> tuple[Any, int | None]:
        i = self.axes.index(axis.name)
        return self.part(i + 1)(self.part(0, i)(x)), dim


CAST.fill(PVary)

#: the all-reduce of each reduction kind
ALL_REDUCE: dict[str, type[AllReduce]] = {c.monoid.kind: c for c in (Psum, PsumMasked, Pmax, Pmin, Pprod, Pand, Por)}
