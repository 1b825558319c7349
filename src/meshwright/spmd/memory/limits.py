"""Memory limits, and the message for a program that does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.errors import ArgumentError
from meshwright.spmd.memory.held import Memory
from meshwright.spmd.report import human_bytes

#: the number of buffers listed
_SHOWN = 5


def require_limit(limit: Any, what: str) -> None:
    """Raise for a ``memory_limit`` that is neither None nor a positive number.

    Raises:
      ArgumentError: it is not.
    """
    is_number = isinstance(limit, (int, float, np.number)) and not isinstance(limit, bool)
    if limit is not None and not (is_number and limit > 0):
        raise ArgumentError(f"{what}: memory_limit must be positive, in bytes, got {limit!r}")


def does_not_fit(memory: Memory, limit: float) -> str:
    """The message for a program that exceeds ``limit``: by how much, its largest buffers, and remedies."""
    peak = memory.peak_bytes
    listed = "\n".join(f"  {b}" for b in memory.buffers[:_SHOWN])
    return (
        f"a device needs {human_bytes(peak)}, {human_bytes(peak - limit)} more than the {human_bytes(limit)} allowed. "
        f"Largest at the peak:\n{listed}\n{_help(memory)}"
    )


def _help(memory: Memory) -> str:
    held = memory.argument_bytes + memory.output_bytes - memory.alias_bytes
    if memory.temp_bytes >= held:
        return (
            f"Most of it are temporaries ({human_bytes(memory.temp_bytes)}): a smaller batch, one more axis that "
            "splits it, or mw.checkpoint around layers would help"
        )
    donated = "" if memory.alias_bytes else "; donate arguments that results replace (donate_argnums)"
    return (
        f"Most of it are arguments and results ({human_bytes(held)}): split them by an axis that they do not have, use "
        f"more devices or smaller types{donated}. mw.plan looks for shardings that fit"
    )
