"""Loops over time, whose first states torch makes as zeros."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright import lax
from meshwright.api.placement import laid_out
from meshwright.api.tracing import eval_shape
from meshwright.core import pytree
from meshwright.ir.tracing import typeof


def scan(step: Callable[[Any, Any], tuple[Any, Any]], start: Any, rows: Any, reverse: bool = False) -> tuple[Any, Any]:
    """``lax.scan``, from ``start`` split along explicit axes as ``step`` gives it: torch's zeros are not split, and a
    carry has one type."""
    if any(typeof(x).explicit is not None for x in pytree.leaves((start, rows))):
        given = eval_shape(lambda carry, all_rows: step(carry, pytree.map(lambda r: r[0], all_rows))[0], start, rows)
        start = pytree.map(lambda x, wanted: laid_out(x, wanted.sharding), start, given)
    return lax.scan(step, start, rows, reverse=reverse)
