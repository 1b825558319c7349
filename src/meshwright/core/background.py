"""Background threads that end before the interpreter does.

At exit, the interpreter kills a remaining thread where it next acquires the GIL, even inside XLA's C++ code, which then
aborts the process: "terminate called without an active exception", SIGABRT.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

#: seconds that the end of the process waits for a thread
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
        """Signal the work to stop, and wait for it at most ``patience`` seconds."""
        self.stop.set()
        if self.thread is not threading.current_thread():
            self.thread.join(patience)


_living: set[Background] = set()


@atexit.register
def _end_all() -> None:
    for background in list(_living):
        background.end()
