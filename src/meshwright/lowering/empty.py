"""Collectives of arrays without elements, which XLA refuses: a gather whose dimension is 0, say.

Nothing is sent for them: what each device gets is as empty, and known.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn
from meshwright.ir.rewrite import replaced_in_all
from meshwright.lowering.narrow_bits import called
from meshwright.ops.collective.base import Collective
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim


def without_empty_collectives(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with empty constants in the place of collectives that give nothing; itself where there are none."""
    return replaced_in_all(jaxpr, lambda _: _rule)


def _rule(eqn: JaxprEqn) -> Sequence[JaxprEqn]:
    if not isinstance(eqn.op, Collective) or any(0 not in v.aval.shape for v in eqn.outvars):
        return ()
    return [called(partial(_empty, v.aval), [], [v], eqn.source) for v in eqn.outvars]


def _empty(aval: ShapedArray) -> list[object]:
    return [broadcast_in_dim(np.zeros((), aval.dtype), aval.shape, ())]
