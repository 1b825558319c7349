"""Waits for other processes, which end after ``config.collective_timeout`` if one of these is the cause.

XLA's collectives between CPUs have a timeout. Those of accelerators do not, nor does the start of devices, or
compilation when processes share autotuning.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from meshwright.core.config import config
from meshwright.runtime.pjrt import platforms, shielded
from meshwright.runtime.pjrt.world import CAUSE, WORLD

T = TypeVar("T")

#: a result of the last program that ran in several processes, while it is alive
_latest: weakref.ref[Any] | None = None


def limited(function: Callable[[], T], what: str, maker: Any) -> T:
    """Return ``function()``, which runs in another thread.

    ``what`` describes the wait for the message, as in "it is not computed". ``maker`` is the program that runs, or a
    description.

    Raises:
      DistributedError: it has not ended after the timeout, and another process is the cause; names that process.
    """
    return shielded.watched(function, config.collective_timeout, partial(_late, what, maker))


def _late(what: str, maker: Any) -> None:
    late = TimeoutError(f"nothing; {what} after {config.collective_timeout:g} s")
    if (error := CAUSE.value(late, maker)) is not None:
        if platforms.is_plugin():
            shielded.leave_behind()  # in XLA this call never returns
        raise error


def note_run(result: Any) -> None:
    """Record a result of a program that now starts in several processes."""
    global _latest
    _latest = weakref.ref(result)


def may_last(buffer: Any, maker: Any) -> bool:
    """Whether ``buffer`` waits for a collective without a timeout, or may be queued behind one on its device.

    A program of this process alone has no time limit.
    """
    if WORLD.count == 1 or not platforms.is_plugin() or buffer.is_ready():
        return False
    return bool(getattr(maker, "ranks", ())) or _is_running(_latest and _latest())


def _is_running(result: Any) -> bool:
    return result is not None and not result.is_deleted() and not result.is_ready()
