"""Signals that end a launcher; they are deferred while it starts processes, so that none is left behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


class Terminated(KeyboardInterrupt):
    """The launcher is told to end, by the signal ``signum``, as schedulers do before they end a job."""

    def __init__(self, signum: int) -> None:
        super().__init__()
        self.signum = signum


#: those that have come, while they are held back
_held: list[int] | None = None


def heed_signals() -> None:
    """Let Ctrl-C raise ``KeyboardInterrupt``, and the signals by which schedulers and terminals end a program
    :class:`Terminated`; not where they are :func:`held`. A signal that this process ignores stays ignored."""
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
    """Raise what the first of these signals raises, if there is one."""
    if signums:
        raise KeyboardInterrupt if signums[0] == signal.SIGINT else Terminated(signums[0])


@contextmanager
def held() -> Iterator[list[int]]:
    """Where no signal is heeded; gives the list of those that come."""
    global _held
    came: list[int] = []
    _held = came
    try:
        yield came
    finally:
        _held = None
