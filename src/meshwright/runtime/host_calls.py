"""Errors raised by callbacks in programs on several devices.

If a callback raises, XLA aborts that device's run, and the other devices wait for it at the next collective: within a
process, forever. So instead the run continues with placeholder values, calls no further callbacks, and raises the error
at its end, in all of its processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import partial
from typing import TypeVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import CallbackError, DeviceError
from meshwright.ir.jaxpr import JaxprEqn
from meshwright.ir.rewrite import replaced_in_all
from meshwright.lowering.lower import DeviceProgram
from meshwright.ops.control.callback import Callback
from meshwright.runtime.array import Array, from_numpy
from meshwright.runtime.pjrt.shielded import leave_behind, watched
from meshwright.runtime.processes.agreement import exchanged

T = TypeVar("T")


class _Inside(threading.local):
    """Which real devices wait for the callback that this thread runs."""

    waiting: frozenset[int] = frozenset()


_INSIDE = _Inside()


def refuse_inside(name: str, reals: Sequence[int]) -> None:
    """Refuse to run a program on several real devices within a callback for which several wait.

    XLA starts such a program when the last one has ended, also if that runs on other devices.

    Raises:
      DeviceError: the programs would wait for each other, without end.
    """
    if _INSIDE.waiting and (min(len(_INSIDE.waiting), len(reals)) > 1 or not _INSIDE.waiting.isdisjoint(reals)):
        which = "some of" if not _INSIDE.waiting.isdisjoint(reals) else "others than"
        raise DeviceError(
            f"{name!r} cannot run on the {len(reals)} devices of its mesh: {len(_INSIDE.waiting)} devices, {which} "
            "these, wait for the Python function that calls it (pure_callback, io_callback, debug.callback), and XLA "
            "runs one program on several devices at a time; call it in the traced function, or compute with NumPy or "
            "on one device there"
        )


def as_given(value: np.ndarray) -> Array | np.ndarray:
    """An argument of a callback, its own copy, as the user's function gets it: an array, as in JAX.

    Where several real devices wait for the function it stays NumPy's, since programs on arrays could not run there.
    """
    if _INSIDE.waiting:
        return value
    array = from_numpy(value, copy=False, transfer="none")
    value.flags.writeable = False
    array.keep_host_value(value)
    return array


#: seconds within which a run must end after a callback has raised
_PATIENCE = 2.0


@dataclass(eq=False)
class Failures:
    """The errors raised by a program's callbacks in the current runs. ``reals`` are the real devices that run it."""

    reals: frozenset[int] = frozenset()
    first: CallbackError | None = None
    running: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, start: Callable[[], T], name: str, ranks: tuple[int, ...]) -> T:
        """The results of ``start()``, a run of the program ``name`` by the processes ``ranks``.

        Raises:
          CallbackError: a callback raised, in this process or another one. A run that then does not end (for example
            because a loop depends on the callback's result) is abandoned.
        """
        outs, error = watched(partial(self._counted, start), _PATIENCE, self._late)
        if ranks:
            error = _elsewhere(error, name, ranks)
        if error is not None:
            raise error
        return outs

    def _counted(self, start: Callable[[], T]) -> tuple[T, CallbackError | None]:
        """The results of a run, and the first error raised meanwhile; overlapping runs share it."""
        with self.lock:
            self.running += 1
        try:
            outs = start()
        finally:
            with self.lock:
                self.running -= 1
                error = self.first
                if not self.running:
                    self.first = None
        return outs, error

    def _late(self) -> None:
        if self.first is not None:
            leave_behind()
            raise self.first

    def note(self, op: Callback, error: BaseException) -> None:
        """Record the error of a callback; only the first is kept."""
        with self.lock:
            self.first = self.first or op.failed(error)


def _elsewhere(error: CallbackError | None, name: str, ranks: tuple[int, ...]) -> CallbackError | None:
    """The error of the first process that has one."""
    said = exchanged("" if error is None else str(error), ranks, f"the end of {name!r}")
    others = (CallbackError(f"on rank {rank}: {text}") for rank, text in said.items() if text)
    return error or next(others, None)


@dataclass(frozen=True)
class _Deferred:
    """A callback's function, wrapped so that it does not raise."""

    op: Callback
    failures: Failures

    def __call__(self, *arrays: np.ndarray) -> list[np.ndarray]:
        if self.failures.first is None:
            before, _INSIDE.waiting = _INSIDE.waiting, self.failures.reals
            try:
                return self.op.call(*arrays)
            except BaseException as error:  # including SystemExit: the other devices would hang
                self.failures.note(self.op, error)
            finally:
                _INSIDE.waiting = before
        return list(map(_missing, self.op.results))


def _missing(aval: ShapedArray) -> np.ndarray:
    """A placeholder result. NaN ends loops that run while one value is larger than another."""
    if not dtypes.is_inexact(aval.dtype):
        return np.zeros(aval.shape, aval.dtype)
    return np.full(aval.shape, np.nan).astype(aval.dtype)


def deferring(program: DeviceProgram, reals: Sequence[int]) -> tuple[DeviceProgram, Failures | None]:
    """The program of these real devices with callbacks that do not raise, and the record of their errors; None if it
    has no callbacks."""
    failures = Failures(frozenset(reals))

    def rule(eqn: JaxprEqn) -> Sequence[JaxprEqn]:
        if not isinstance(op := eqn.op, Callback):
            return ()
        deferred = _Deferred(replace(op, token=False, guarded=False), failures)
        return (eqn.replace(op=replace(op, function=deferred)),)

    jaxpr = replaced_in_all(program.jaxpr, lambda _: rule)
    return (program, None) if jaxpr is program.jaxpr else (replace(program, jaxpr=jaxpr), failures)
