"""The varying manual axes of values in a ``shard_map``, which its replication check uses.

``aval.vma`` are the mesh axes along which devices may hold different values; along all other axes the value is
replicated. An operand that is replicated along an axis over which another operand varies is *cast* (``pvary``). This
makes derivatives correct: the transpose of the cast sums the cotangents of all devices. Source: JAX's ``check_vma``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.core.avals import NOWHERE, Axes, Typed
from meshwright.core.slots import Slot
from meshwright.ir.state import STATE

#: makes the cast op for axes with these names and sizes
CAST: Slot[Callable[[tuple[str, ...], tuple[int, ...]], Any]] = Slot(
    "the cast over axes", "meshwright.ops.collective.all_reduce"
)


def axes_of(x: Any) -> Axes:
    """The axes over which a value (or the value that a symbolic zero or placeholder represents) varies."""
    return x.aval.vma if isinstance(x, Typed) else NOWHERE


def in_order(axes: Axes) -> tuple[str, ...]:
    """``axes`` in the order in which they came into scope."""
    return tuple(a for a in STATE.axis_env if a in axes)


def cast(x: Any, axes: Axes, literals: bool = True) -> Any:
    """``x`` cast to vary over ``axes`` too.

    With ``literals=False``, scalars that are literals in a jaxpr are not cast; they are never differentiated.
    """
    missing = axes - axes_of(x)
    if not missing or (not literals and _is_literal(x)):
        return x
    names = in_order(missing)
    return CAST.value(names, tuple(STATE.axis_env[n] for n in names)).bind(x)


def _is_literal(x: Any) -> bool:
    return isinstance(x, (int, float, complex, np.generic)) or (isinstance(x, np.ndarray) and x.ndim == 0)


def cast_all(args: Sequence[Any], more: Axes = NOWHERE) -> list[Any]:
    """``args`` cast to vary over the union of their axes and ``more``."""
    axes = more.union(*map(axes_of, args))
    return [cast(x, axes, literals=False) for x in args] if axes else list(args)
