"""The operands of an op through which masked sums pass.

In a masked sum one device has the value, and the others hold -0, the identity of addition. Other devices' zeros must
stay -0: multiplied by infinity or divided by 0 they would become NaN, and as +0 they would lose the sign of a zero. So
all other operands must be integers, or numbers known to be positive and finite.
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
    """The linear groups of the op through which masked sums pass.

    ``numbers`` has for each operand the number that all its elements equal, or None if that is not known.
    """
    if op.turns_signs:
        return ()
    others = [_keeps_nothing(a, n) for a, n in zip(avals, numbers)]
    return tuple(g for g in op.linear_groups(*avals) if all(i in g or ok for i, ok in enumerate(others)))


def _keeps_nothing(aval: ShapedArray, number: Any) -> bool:
    """Whether -0 multiplied or divided by this operand is known to be -0."""
    return not dtypes.is_inexact(aval.dtype) or (number is not None and 0 < number < math.inf)


def number_of(atom: Atom, made_by: JaxprEqn | None = None) -> Any:
    """The real number that all elements of a value equal; None if that is not known."""
    if made_by is not None and made_by.op.moves_only:
        atom = made_by.invars[0]
    if not isinstance(atom, Literal) or dtypes.is_complex(atom.aval.dtype):
        return None
    return float(np.asarray(atom.val))
