"""Through which operands of an op masked sums pass: zeros that stand for nothing must stay so.

Where an op multiplies by what may be infinite, or divides by what may be 0, nothing would become NaN; so all other
operands must be integers, or numbers that are known. -0 must stay -0, or the sign of a zero would be lost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import Atom, JaxprEqn, Literal
from meshwright.ir.op import Op

Groups = tuple[tuple[int, ...], ...]


def masked_groups(op: Op, avals: Sequence[ShapedArray], numbers: Sequence[Any]) -> Groups:
    """Those of the op's linear groups through which masked sums pass; ``numbers`` are what all elements of an operand
    are, None where that is not known."""
    if op.moves_only:
        return ((0,),)
    if op.turns_signs:
        return ()
    others = [_keeps_nothing(a, n) for a, n in zip(avals, numbers)]
    return tuple(g for g in op.linear_groups(*avals) if all(i in g or ok for i, ok in enumerate(others)))


def _keeps_nothing(aval: ShapedArray, number: Any) -> bool:
    """Whether -0 times an operand, or divided by it, is -0."""
    return not dtypes.is_inexact(aval.dtype) or (number is not None and 0 < number < math.inf)


def number_of(atom: Atom, made_by: JaxprEqn | None = None) -> Any:
    """The real number that all elements of a value are; None if it is not known to be one."""
    if made_by is not None and made_by.op.moves_only:
        atom = made_by.invars[0]
    if not isinstance(atom, Literal) or dtypes.is_complex(atom.aval.dtype):
        return None
    return float(np.asarray(atom.val))
