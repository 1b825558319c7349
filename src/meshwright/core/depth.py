"""Room on Python's stack for functions that are traced inside of functions that are traced.

Each level of jitted functions takes some six Python calls, and Python allows 1,000. Its calls take little of the
machine's stack, so that the limit can rise while such functions are traced: always by little, so that a function that
calls itself without an end is found before the machine's stack is full.
"""

from __future__ import annotations

import sys
import threading
from typing import ClassVar

from meshwright.errors import MeshwrightError, NestingError

#: what a level must find: enough for the user's calls to the next one, and for what handles errors
_ROOM = 600
_STEP = 1000
#: 16,000 calls of tracing take some 5 MB, of the 8 MB that a thread has
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
    """``with room(name):`` around the trace of function ``name``: there is room on Python's stack for what it calls.

    Raises:
      NestingError: functions call each other more deeply than that.
    """

    __slots__ = ("name",)
    _here: ClassVar[_Thread] = _Thread()
    _lock: ClassVar[threading.Lock] = threading.Lock()
    #: Threads that trace. The limit is that of all threads, and Python ends the process when it falls far below where
    #: one of them is: whichever raised it, it falls again when none of them traces.
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
