"""Over which manual axes the values of a ``shard_map`` vary: the part of a type that its check goes by.

``aval.vma`` are axes along which devices may hold different values; along the others they are known to hold the same.
Where an operand that is the same meets one that varies, it is *cast* (``pvary``), so that derivatives are right: what
all devices use, all contribute to, and the transpose of the cast sums their contributions. Source: JAX's ``check_vma``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.core.avals import NOWHERE, Axes, Typed
from meshwright.core.slots import Slot
from meshwright.ir.state import STATE

#: makes the cast over axes of these names and sizes
CAST: Slot[Callable[[tuple[str, ...], tuple[int, ...]], Any]] = Slot(
    "the cast over axes", "meshwright.ops.collective.all_reduce"
)


def axes_of(x: Any) -> Axes:
    """The axes over which a value (or the value an aval, a zero, a placeholder stands for) varies."""
    return x.aval.vma if isinstance(x, Typed) else NOWHERE


def in_order(axes: Axes) -> tuple[str, ...]:
    """Axes in the order in which they came into scope."""
    return tuple(a for a in STATE.axis_env if a in axes)


def cast(x: Any, axes: Axes, literals: bool = True) -> Any:
    """``x`` as a value that varies over ``axes`` too. Without ``literals``, scalars that a jaxpr holds as such stay: no
    derivative is ever taken with respect to them."""
    missing = axes - axes_of(x)
    if not missing or (not literals and _is_literal(x)):
        return x
    names = in_order(missing)
    return CAST.value(names, tuple(STATE.axis_env[n] for n in names)).bind(x)


def _is_literal(x: Any) -> bool:
    return isinstance(x, (int, float, complex, np.generic)) or (isinstance(x, np.ndarray) and x.ndim == 0)


def cast_all(args: Sequence[Any], more: Axes = NOWHERE) -> list[Any]:
    """Values as ones that vary over the same axes: those of any of them, and ``more``."""
    axes = more.union(*map(axes_of, args))
    return [cast(x, axes, literals=False) for x in args] if axes else list(args)
