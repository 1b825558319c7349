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
    #: whether the limit was raised for this thread
    deep = False


class room:
    """``with room(name):`` around the trace of function ``name``: there is room on Python's stack for what it calls.

    Raises:
      NestingError: functions call each other more deeply than that.
    """

    __slots__ = ("name",)
    _here: ClassVar[_Thread] = _Thread()
    _lock: ClassVar[threading.Lock] = threading.Lock()
    #: threads for which the limit was raised, and what it was before
    _deep: ClassVar[int] = 0
    _before: ClassVar[int] = 0

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        if not _fits():
            self._raise()
        self._here.levels += 1

    def _raise(self) -> None:
        with self._lock:
            limit = sys.getrecursionlimit()
            if limit + _STEP > _MOST:
                raise NestingError(_message(self.name))
            if not self._here.deep:
                if not room._deep:
                    room._before = limit
                room._deep += 1
                self._here.deep = True
            sys.setrecursionlimit(limit + _STEP)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        here = self._here
        here.levels -= 1
        if here.levels:
            return
        if here.deep:
            self._lower()
        if isinstance(error, RecursionError) and not isinstance(error, MeshwrightError):
            raise NestingError(_message(self.name)) from error

    def _lower(self) -> None:
        self._here.deep = False
        with self._lock:
            room._deep -= 1
            if not room._deep:
                sys.setrecursionlimit(room._before)


def _message(name: str) -> str:
    return (
        f"while {name} was traced, functions called each other more deeply than Python's stack allows: one calls "
        "itself without an end, or thousands are nested. Write repetition as lax.scan or lax.fori_loop, whose body is "
        "traced once"
    )
