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

#: seconds that a process that is ending because of Ctrl-C waits for XLA
GRACE = 0.5


class _Ticket:
    """Represents a call for as long as a worker may hold references of it."""

    def __init__(self) -> None:
        self._unclaimed = threading.Lock()

    def claim(self) -> bool:
        """Try to claim the call: a worker does, to make it, and the exiting process, to see that no worker will."""
        return self._unclaimed.acquire(blocking=False)


class _Call(Generic[T]):
    """A call with its result or error."""

    def __init__(self, function: Callable[[], T]) -> None:
        self.function: Callable[[], T] | None = function
        self.value: Any = None
        self.error: BaseException | None = None
        self.done = threading.Event()
        self.ticket = _Ticket()

    def make(self) -> None:
        """Make the call. Its closure is released before it counts as done, as the process may exit right after."""
        assert self.function is not None, "a call is made once"
        try:
            self.value = self.function()
        except BaseException as error:
            self.error = error
        self.function = None
        self.done.set()

    def result(self) -> T:
        """Return or raise the outcome of the call, and release it."""
        value, error, self.value, self.error = self.value, self.error, None, None
        if error is None:
            return value
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame


class _Worker:
    """A thread that makes calls one after another."""

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
            del call  # with an abandoned result, which XLA must free before the process exits
            _tickets.discard(ticket)
            _idle.append(self)


_idle: list[_Worker] = []
_tickets: set[_Ticket] = set()
#: a result of the program that was started last, while it is alive
_latest: weakref.ref[Any] | None = None
_endless = False


def shielded(function: Callable[[], T]) -> T:
    """Return ``function()``, which runs in a thread without signals. The wait for it can be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        return function()
    call = _given(function)
    call.done.wait()
    return call.result()


def watched(function: Callable[[], T], seconds: float, late: Callable[[], None]) -> T:
    """Return ``function()``, which runs in another thread, calling ``late()`` after ``seconds`` and then every second.

    An exception of ``late()`` ends the wait, while the call continues in its thread.
    """
    call = _given(function)
    patience = seconds
    while not call.done.wait(patience):
        late()
        patience = 1.0
    return call.result()


def leave_behind() -> None:
    """Record that an abandoned call may never end; the process then exits without it, with an error status."""
    global _endless
    _endless = True


def _given(function: Callable[[], T]) -> _Call[T]:
    """Hand a call to another thread."""
    call = _Call(function)
    _tickets.add(call.ticket)
    worker = _idle.pop() if _idle else _Worker()
    worker.give(call)
    return call


def started(result: Any) -> None:
    """Record a result of a program that now starts."""
    global _latest
    _latest = weakref.ref(result)


# --- process exit -------------------------------------------------------------------------------------------
@atexit.register
def _finish() -> None:
    """Wait at exit for abandoned calls, whose data is freed together with the interpreter.

    A process that ends because of Ctrl-C, or gets one while it waits here, waits only briefly for calls and for running
    programs. It then ends by the signal, as Python would.
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
        if ticket.claim():  # no worker ever got the call
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
