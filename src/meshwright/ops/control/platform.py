"""The number of the current platform among several, by which a program chooses what it computes.

A program is traced before it is known where it runs: it may be compiled, exported or priced for hardware that is not
here. So a choice by platform is a :class:`~meshwright.ops.control.cond.Cond` that says which platforms each branch is
for, and is decided when the platform is known: when the program is partitioned, or else lowered.

Source: ``jax.lax.platform_dependent``, for the interface and for branches that remember their platforms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.contract import Emitted
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn, Literal, all_eqns
from meshwright.ir.op import Builder, Op
from meshwright.ir.rewrite import replaced_in_all
from meshwright.ops.control.cond import Cond, Platforms, number_on
from meshwright.ops.elementwise.table import ConvertElementType
from meshwright.sharding.rule import ShardingRule, make_rule


@dataclass(frozen=True)
class PlatformIndex(Op):
    """The number of the entry of ``platforms`` that names the platform of the program."""

    platforms: Platforms
    name: ClassVar[str] = "platform_index"

    def infer(self) -> ShapedArray:
        return ShapedArray((), dtypes.int32)

    def sharding_rule(self) -> ShardingRule:
        return make_rule([], [[]], {})

    def emit(self, b: Builder) -> Emitted | Sequence[Emitted]:
        return b.constant(np.int32(number_on(self.platforms, b.platform)), self.infer())


def on_platform(jaxpr: ClosedJaxpr, platform: str) -> ClosedJaxpr:
    """The program with the branches for ``platform`` (``cpu``, ``cuda``, ``tpu``, ...) wherever it chooses by platform.

    Raises:
      ArgumentError: a choice has no branch for it.
    """

    def taken(eqn: JaxprEqn) -> Sequence[JaxprEqn]:
        if isinstance(eqn.op, PlatformIndex):
            number = Literal(np.int32(number_on(eqn.op.platforms, platform)), eqn.outvars[0].aval)
            return [eqn.replace(op=ConvertElementType(np.dtype(np.int32)), invars=[number])]
        op = eqn.op.on_platform(platform) if isinstance(eqn.op, Cond) else eqn.op
        return () if op is eqn.op else [eqn.replace(op=op)]

    return replaced_in_all(jaxpr, lambda _: taken)


def depends_on_platform(jaxpr: ClosedJaxpr) -> bool:
    """Whether a program chooses by platform."""
    ops = (e.op for e in all_eqns(jaxpr.jaxpr))
    return any(isinstance(op, PlatformIndex) or (isinstance(op, Cond) and op.platforms is not None) for op in ops)


def with_platform_index(jaxpr: ClosedJaxpr, platforms: Platforms) -> ClosedJaxpr:
    """The program with the number of its platform in place of its first parameter."""
    number, *parameters = jaxpr.jaxpr.invars
    index = JaxprEqn(PlatformIndex(platforms), [], [number])
    return jaxpr.replace(jaxpr=jaxpr.jaxpr.replace(invars=parameters, eqns=[index, *jaxpr.eqns]))
