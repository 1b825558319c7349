"""Makes room on Python's stack for nested traced functions.

Each level of jitted functions takes about six Python calls, and Python allows 1,000. These take little of the machine's
stack, so the limit can be raised during tracing. It is raised in small steps, so that infinite recursion is detected
before the machine's stack overflows.
"""

from __future__ import annotations

import sys
import threading
from typing import ClassVar

from meshwright.errors import MeshwrightError, NestingError

#: calls that must be available at each level: enough for the user's calls to the next one, and for error handling
_ROOM = 600
_STEP = 1000
#: 16,000 calls while tracing take about 5 MB, of the 8 MB of a thread's stack
_MOST = 16_000


def _descend(calls: int) -> None:
    if calls:
        _descend(calls - 1)


def _fits() -> bool:
    try:
        _descend(_ROOM)
    except RecursionError:
        return False
    return True


class _Thread(threading.local):
    levels = 0


class room:
    """``with room(name):`` around the trace of function ``name`` makes room on Python's stack for its calls.

    Raises:
      NestingError: functions are nested more deeply than that.
    """

    __slots__ = ("name",)
    _here: ClassVar[_Thread] = _Thread()
    _lock: ClassVar[threading.Lock] = threading.Lock()
    #: The number of threads that trace. The limit applies to all threads, and Python ends the process if it is set far
    #: below the depth of one of them, so it is restored only when none of them traces.
    _tracing: ClassVar[int] = 0
    #: the limit before it was raised
    _before: ClassVar[int | None] = None

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        here = self._here
        if not here.levels:
            with self._lock:
                room._tracing += 1
        here.levels += 1
        try:
            if not _fits():
                self._raise()
        except BaseException:
            self._leave()
            raise

    def _raise(self) -> None:
        with self._lock:
            limit = sys.getrecursionlimit()
            if limit + _STEP > _MOST:
                raise NestingError(_message(self.name))
            if room._before is None:
                room._before = limit
            sys.setrecursionlimit(limit + _STEP)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        outermost = self._leave()
        if outermost and isinstance(error, RecursionError) and not isinstance(error, MeshwrightError):
            raise NestingError(_message(self.name)) from error

    def _leave(self) -> bool:
        here = self._here
        here.levels -= 1
        if here.levels:
            return False
        with self._lock:
            room._tracing -= 1
            if room._before is not None and not room._tracing:
                sys.setrecursionlimit(room._before)
                room._before = None
        return True


def _message(name: str) -> str:
    return (
        f"while {name} was traced, functions called each other more deeply than Python's stack allows: one calls "
        "itself without an end, or thousands are nested. Write repetition as lax.scan or lax.fori_loop, whose body is "
        "traced once"
    )
