"""Calls into XLA that are shielded from signals.

Python handles signals in its main thread. If XLA compiles there, it checks for signals, and a ``KeyboardInterrupt``
leaves the call and frees the module while XLA's threads still read it, which crashes the process (SIGSEGV). So the main
thread delegates such calls to another thread and waits. An exception ends the wait at once; the call continues in its
thread, and keeps its arguments alive, until it is done.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

#: seconds that a process which ends by Ctrl-C waits for XLA
GRACE = 0.5


class _Ticket:
    """Stands for a call while a worker may hold anything of it."""

    def __init__(self) -> None:
        self._unclaimed = threading.Lock()

    def claim(self) -> bool:
        """Whether the call is the claimant's: a worker's, to make it, or the process's, to see that nobody does."""
        return self._unclaimed.acquire(blocking=False)


class _Call(Generic[T]):
    """A call, and what became of it."""

    def __init__(self, function: Callable[[], T]) -> None:
        self.function: Callable[[], T] | None = function
        self.value: Any = None
        self.error: BaseException | None = None
        self.done = threading.Event()
        self.ticket = _Ticket()

    def make(self) -> None:
        """Make the call. What it used is let go before it counts as done: the process may end right after."""
        assert self.function is not None, "a call is made once"
        try:
            self.value = self.function()
        except BaseException as error:
            self.error = error
        self.function = None
        self.done.set()

    def result(self) -> T:
        """What the call gave, which it no longer holds."""
        value, error, self.value, self.error = self.value, self.error, None, None
        if error is None:
            return value
        try:
            raise error
        finally:
            del error  # whose traceback holds this frame


class _Worker:
    """A thread that makes calls, one after another."""

    def __init__(self) -> None:
        self.call: _Call[Any] | None = None
        self.given = threading.Semaphore(0)
        threading.Thread(target=self._work, name="meshwright-xla", daemon=True).start()

    def give(self, call: _Call[Any]) -> None:
        self.call = call
        self.given.release()

    def _work(self) -> None:
        while True:
            self.given.acquire()
            call, self.call = self.call, None
            assert call is not None
            ticket = call.ticket
            if ticket.claim():
                call.make()
            del call  # with a result that nobody waits for any more: XLA frees it before the process may end
            _tickets.discard(ticket)
            _idle.append(self)


_idle: list[_Worker] = []
_tickets: set[_Ticket] = set()
#: a result of the program that was started last, while somebody holds it
_latest: weakref.ref[Any] | None = None
_endless = False


def shielded(function: Callable[[], T]) -> T:
    """``function()``, made where no signal reaches it. The wait for it can be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        return function()
    call = _given(function)
    call.done.wait()
    return call.result()


def watched(function: Callable[[], T], seconds: float, late: Callable[[], None]) -> T:
    """``function()``, made in another thread; ``late()`` is called once it has taken so many seconds, and each second
    from then on. What that raises leaves the wait; the call goes on behind it."""
    call = _given(function)
    patience = seconds
    while not call.done.wait(patience):
        late()
        patience = 1.0
    return call.result()


def leave_behind() -> None:
    """Note that a call is left which may never end: the process then ends without it, and fails."""
    global _endless
    _endless = True


def _given(function: Callable[[], T]) -> _Call[T]:
    """A call that another thread makes."""
    call = _Call(function)
    _tickets.add(call.ticket)
    worker = _idle.pop() if _idle else _Worker()
    worker.give(call)
    return call


def started(result: Any) -> None:
    """Note the result of a program that runs from now on."""
    global _latest
    _latest = weakref.ref(result)


# --- the end of the process ---------------------------------------------------------------------------------
@atexit.register
def _finish() -> None:
    """Let the calls end that exceptions have left behind: what they use goes with the interpreter.

    A process that ends by Ctrl-C does not wait long for them, or for what it computes, nor does one that gets Ctrl-C
    while it waits here: it ends as Python would end it, by the signal.
    """
    by_interrupt = getattr(sys, "last_type", None) is KeyboardInterrupt
    end = time.monotonic() + GRACE
    try:
        while _is_calling() and not by_interrupt:
            if _endless and time.monotonic() > end:
                _flush()
                os._exit(1)
            time.sleep(0.005)
    except KeyboardInterrupt:
        by_interrupt = True
    end = time.monotonic() + GRACE
    while by_interrupt and (_is_calling() or _is_computing()):
        if time.monotonic() > end:
            _end_by_interrupt()
        time.sleep(0.005)


def _is_calling() -> bool:
    for ticket in list(_tickets):
        if ticket.claim():  # a worker never got the call
            _tickets.discard(ticket)
    return bool(_tickets)


def _is_computing() -> bool:
    result = _latest() if _latest else None
    return result is not None and not result.is_deleted() and not result.is_ready()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _end_by_interrupt() -> None:
    _flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
