"""Signals that end a launcher; they are deferred while it starts processes, so that none is orphaned."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


class Terminated(KeyboardInterrupt):
    """The launcher was told to end by the signal ``signum``, as schedulers do before they end a job."""

    def __init__(self, signum: int) -> None:
        super().__init__()
        self.signum = signum


#: the deferred signals; None if signals are not deferred
_held: list[int] | None = None


def heed_signals() -> None:
    """Make Ctrl-C raise ``KeyboardInterrupt``, and SIGTERM and SIGHUP raise :class:`Terminated`.

    They are deferred within :func:`held`. Signals that this process ignores or handles otherwise are left alone.
    """
    usual: dict[signal.Signals, Any]
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    for signum, handler in usual.items():
        if signal.getsignal(signum) == handler:
            signal.signal(signum, _heed)


def _heed(signum: int, _: Any) -> None:
    if _held is None:
        stop([signum])
    else:
        _held.append(signum)


def stop(signums: Sequence[int]) -> None:
    """Raise the exception for the first of these signals, if there is any."""
    if signums:
        raise KeyboardInterrupt if signums[0] == signal.SIGINT else Terminated(signums[0])


@contextmanager
def held() -> Iterator[list[int]]:
    """Defer signals; yields the list to which arriving ones are added."""
    global _held
    came: list[int] = []
    _held = came
    try:
        yield came
    finally:
        _held = None
