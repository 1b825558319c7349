"""Replaces values without elements by constants.

Nothing is communicated or computed for them, since each device's part is empty, too. XLA refuses some collectives with
empty results, for example a gather along a dimension of size 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.core.key_types import is_key
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn, Literal
from meshwright.ir.rewrite import replaced_in_all, written_out
from meshwright.ops.shape.broadcast_reduce import BroadcastInDim, broadcast_in_dim


def without_empty(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """Replace equations that return only empty values by empty constants; returns the same program if there are
    none."""
    return replaced_in_all(jaxpr, lambda _: _constants)


def _constants(eqn: JaxprEqn) -> Sequence[JaxprEqn]:
    avals = [v.aval for v in eqn.outvars]
    is_one = isinstance(eqn.op, BroadcastInDim) and isinstance(eqn.invars[0], Literal)
    if not avals or is_one or eqn.op.has_effects or any(a.size or is_key(a.dtype) for a in avals):
        return ()
    return written_out(eqn, lambda *_: list(map(_empty, avals)))


def _empty(aval: ShapedArray) -> Any:
    return broadcast_in_dim(np.zeros((), aval.dtype), aval.shape, ())
