"""Threads that work beside the user's program, and end before the interpreter does.

The interpreter ends a thread that runs on past its own end wherever it next asks for the lock, inside of XLA's C++ too,
which then ends the process: "terminate called without an active exception", SIGABRT.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

#: seconds that the end of the process waits for one of them
PATIENCE = 5.0


class Background:
    """A thread that runs ``work(stop)`` until ``stop`` is set, or ``work`` returns."""

    def __init__(self, work: Callable[[threading.Event], None], name: str) -> None:
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
        _living.add(self)
        self.thread.start()

    def _run(self, work: Callable[[threading.Event], None]) -> None:
        try:
            work(self.stop)
        finally:
            _living.discard(self)

    def is_alive(self) -> bool:
        return self.thread.is_alive()

    def end(self, patience: float = PATIENCE) -> None:
        """Let the work stop, and wait for that; at most ``patience`` seconds."""
        self.stop.set()
        if self.thread is not threading.current_thread():
            self.thread.join(patience)


_living: set[Background] = set()


@atexit.register
def _end_all() -> None:
    for background in list(_living):
        background.end()
