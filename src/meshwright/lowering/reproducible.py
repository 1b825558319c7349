"""Sums over devices in a fixed order on all backends: ``config.reproducible_sums``.

The order in which an all-reduce adds depends on the backend: XLA's in-memory collectives, Gloo and virtual meshes each
have their own, so floating-point sums differ in their last bits. Here devices exchange the terms, and each adds those
of its part in mesh order: along the last axis first, and within an axis by prime factors. As many bytes are sent as for
an all-reduce (:func:`~meshwright.spmd.report.wire_bytes`): those of a reduce-scatter and an all-gather. For small sums,
all terms are gathered at once. Sums of integers, maxima and minima do not depend on the order and are unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from math import prod
from typing import Any

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn
from meshwright.ir.rewrite import in_regions, replaced, written_out
from meshwright.ir.tracing import typeof
from meshwright.lowering.units import Units
from meshwright.ops.collective.all_reduce import AllReduce, fold
from meshwright.ops.collective.base import Collective
from meshwright.ops.collective.exchange import AllToAll
from meshwright.ops.collective.tiles import AllGather, AllSlice, ReduceScatter
from meshwright.ops.control.markers import optimization_barrier
from meshwright.ops.elementwise.monoid import Monoid, monoid_of
from meshwright.ops.elementwise.table import scalar_like
from meshwright.ops.shape.rearrange import expand_dims, reshape, squeeze, transpose
from meshwright.ops.shape.slice_pad import pad, slice_in_dim

_REDUCE = ("all_reduce", "reduce_scatter")
#: reductions whose result depends on the order, by rounding
_ROUNDED = frozenset({"sum", "masked", "prod"})
#: size in bytes up to which one gather of all terms is faster than an all-to-all and a gather of the parts
_FEW = 1 << 10


def in_order(jaxpr: ClosedJaxpr, units: Units) -> ClosedJaxpr:
    """The program with sums and products over devices computed in mesh order; its collectives must name ``units``."""

    def rule(eqn: JaxprEqn) -> JaxprEqn | list[JaxprEqn]:
        op: Any = eqn.op
        if isinstance(eqn.op, Collective) and eqn.op.kind in _REDUCE and has_order(op, eqn.invars[0].aval):
            return written_out(eqn, lambda x: [_Ordered(op, units).run(x)], units.sizes)
        return in_regions(eqn, lambda region: in_order(region, units))

    return replaced(jaxpr, rule)


def has_order(op: AllReduce | ReduceScatter, aval: ShapedArray) -> bool:
    """Whether the result depends on the order in which the devices' values are combined."""
    return op.group_size > 1 and op.reduction in _ROUNDED and dtypes.is_inexact(aval.dtype)


@dataclass(frozen=True)
class _Ordered:
    """Emits one sum: locally over virtual units, with exchange of the terms over real ones."""

    op: AllReduce | ReduceScatter
    units: Units

    @property
    def _runs(self) -> list[list[str]]:
        """The op's units in reverse mesh order, grouped in runs of virtual and of real ones."""
        order = [u for u in reversed(self.units.names) if u in self.op.axes]
        return [list(run) for _, run in groupby(order, lambda u: u in self.units.virtual)]

    def run(self, x: Any) -> Any:
        """The sum, or for a reduce-scatter this device's tile of it."""
        if isinstance(self.op, AllReduce):
            for run in self._runs:
                x = self._everywhere(x, run)
            return x
        return self._scattered(x, self.op)

    def _everywhere(self, x: Any, run: list[str]) -> Any:
        """The sum over a run of units, on all its devices."""
        aval, n = typeof(x), self._size(run)
        if run[0] in self.units.virtual or n == 2 or aval.nbytes <= _FEW:
            return self._joined(self._over(AllGather, run, 0)(expand_dims(x, [0])), run)
        tile = -(-aval.size // n)
        terms = pad(reshape(x, (aval.size,)), scalar_like(0, x), [(0, n * tile - aval.size, 0)])
        part = self._joined(self._over(AllToAll, run, 1, 0)(reshape(terms, (1, n * tile))), run)
        whole = self._over(AllGather, run, 0)(part)
        return reshape(slice_in_dim(whole, 0, aval.size), aval.shape)

    def _scattered(self, x: Any, op: ReduceScatter) -> Any:
        """This device's tile of the sum. The tiles follow the op's axes, independently of the order of summation."""
        shape, d = typeof(x).shape, op.dimension
        x = reshape(x, (*shape[:d], *op.sizes, shape[d] // op.group_size, *shape[d + 1 :]))
        for run in self._runs:
            where = [d + op.axes.index(u) for u in run]
            x = self._local_tile(x, run, where) if run[0] in self.units.virtual else self._sent_tile(x, run, where)
        return reshape(x, op.infer(ShapedArray(shape, typeof(x).dtype)).shape)

    def _local_tile(self, x: Any, run: list[str], where: list[int]) -> Any:
        x = self._everywhere(x, run)
        for unit, dim in zip(run, where):
            x = self._over(AllSlice, [unit], dim)(x)
        return x

    def _sent_tile(self, x: Any, run: list[str], where: list[int]) -> Any:
        """This device's tile, received from all devices of the run, and summed."""
        inner = [d for d in range(typeof(x).ndim) if d not in where]
        front = transpose(x, [*reversed(where), *inner])
        shape = typeof(front).shape[len(where) :]
        sent = self._over(AllToAll, run, 1, 0)(reshape(front, (1, self._size(run), *shape)))
        return expand_dims(self._joined(squeeze(sent, [1]), run), where)

    def _joined(self, terms: Any, run: list[str]) -> Any:
        """The sum over dimension 0, which has one term per device of a run, in mesh order.

        Barriers keep the compiler from fusing it with other ops: a fused multiply-add would be rounded only once.
        """
        (terms,) = optimization_barrier([terms])
        x = reshape(terms, (*(self.units.sizes[u] for u in reversed(run)), *typeof(terms).shape[1:]))
        for dim in reversed(range(len(run))):
            x = fold(x, dim, self._monoid.combine)
        return optimization_barrier([x])[0]

    def _over(self, cls: Any, run: list[str], *params: int) -> Callable[[Any], Any]:
        """A collective over a run of units, in mesh order."""
        axes = tuple(reversed(run))
        bind: Callable[[Any], Any] = cls(axes, tuple(self.units.sizes[u] for u in axes), *params).bind
        return bind

    def _size(self, run: list[str]) -> int:
        return prod(self.units.sizes[u] for u in run)

    @property
    def _monoid(self) -> Monoid:
        return monoid_of(self.op.reduction)
