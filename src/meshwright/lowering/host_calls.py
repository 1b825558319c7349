"""Chooses the devices that run a host callback.

In a program on global arrays, a callback runs once: the first device of the mesh calls it and sends the results to all
others. In a manual region (``shard_map``), each device along the region's axes calls it with its own values, even if
they are equal.

A callback is guarded: its first operand is True on the devices that call the function. The others enter Python too and
return at once, which is cheaper than a branch and keeps ordered callbacks in one chain.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn
from meshwright.ir.rewrite import in_regions, replaced, written_out
from meshwright.ir.tracing import typeof
from meshwright.lowering.units import Units
from meshwright.ops.collective.all_reduce import Psum
from meshwright.ops.collective.base import axis_index_of
from meshwright.ops.control.callback import Callback, calls_python
from meshwright.ops.elementwise.table import BitcastConvert, complex_, convert, eq, ge, imag, real


def call_once(jaxpr: ClosedJaxpr, units: Units) -> ClosedJaxpr:
    """The program with guarded callbacks; its collectives must name ``units``."""

    def rule(eqn: JaxprEqn) -> JaxprEqn | list[JaxprEqn]:
        if isinstance(eqn.op, Callback):
            return written_out(eqn, _Guarded(eqn.op, units).run, units.sizes)
        return in_regions(eqn, lambda region: call_once(region, units))

    return replaced(jaxpr, rule) if calls_python(jaxpr) else jaxpr


class _Guarded:
    """The guarded form of one callback."""

    def __init__(self, op: Callback, units: Units) -> None:
        self.each = tuple(unit for axis in op.each or () for unit in units.of_axis(axis))
        self.op, self.units = replace(op, each=self.each), units
        #: real units along which one device calls for all; and virtual units along which each position calls
        self.alike = self._with(lambda unit: unit not in units.virtual and unit not in self.each)
        self.apart = self._with(lambda unit: unit in units.virtual and unit in self.each)

    def _with(self, holds: Any) -> tuple[tuple[str, ...], tuple[int, ...]]:
        names = tuple(u for u in self.units.names if holds(u))
        return names, tuple(self.units.sizes[u] for u in names)

    def run(self, *args: Any) -> list[Any]:
        if self.alike[0]:
            calls = eq(axis_index_of(*self.alike), np.int32(0))
            outs = replace(self.op, guarded=True).bind(calls, *args)
            return [_sum_of_bits(x, Psum(*self.alike)) for x in outs]
        if self.apart[0] and self.op.has_effects:  # always True, but batched over the positions
            calls = ge(axis_index_of(*self.apart), np.int32(0))
            return list(replace(self.op, guarded=True).bind(calls, *args))
        return list(self.op.bind(*args))


def _sum_of_bits(x: Any, total: Psum) -> Any:
    """Broadcast ``x`` from the one device where it is not zero, by a sum of its bits, which keeps the sign of -0."""
    dtype = typeof(x).dtype
    if dtypes.is_complex(dtype):
        return complex_(_sum_of_bits(real(x), total), _sum_of_bits(imag(x), total))
    if dtypes.is_bool(dtype):
        return convert(total.bind(convert(x, dtypes.int8)), dtype)
    if not dtypes.is_inexact(dtype):
        return total.bind(x)
    return BitcastConvert(dtype).bind(total.bind(BitcastConvert(dtypes.signed_bits(dtype)).bind(x)))
