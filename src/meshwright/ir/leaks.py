"""Finds values that outlive the trace they belong to, where the trace ends: ``with mw.checking_leaks(): ...``.

Without the option such a value is reported where it is used, which may be never: it only keeps memory.
"""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable
from types import CellType, FrameType
from typing import Any, TypeVar

from meshwright.core.config import config
from meshwright.core.words import counted
from meshwright.errors import UnexpectedTracerError
from meshwright.ir.tracing import Trace, Tracer

F = TypeVar("F", bound=Callable[..., Any])


class _Watched(threading.local):
    def __init__(self) -> None:
        self.traces: list[Trace] = []


_WATCHED = _Watched()


def watched(trace: Any) -> Any:
    """``trace``, whose tracers must be gone when the function marked with :func:`ends_traces` around it returns."""
    if config.check_tracer_leaks:
        _WATCHED.traces.append(trace)
    return trace


def ends_traces(function: F) -> F:
    """Mark a function in which a trace begins and ends. Its frame, and what lies in it, is gone when this looks."""

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if not config.check_tracer_leaks:
            return function(*args, **kwargs)
        finished = False
        try:
            result = function(*args, **kwargs)
            finished = True
        finally:
            ended = [t for t in _WATCHED.traces if not t.alive]
            _WATCHED.traces = [t for t in _WATCHED.traces if t.alive]
            if finished:  # an error's traceback holds values
                _check(ended)
        return result

    return checked  # type: ignore[return-value]


def _check(ended: list[Trace]) -> None:
    """Raise if a tracer of one of these traces is alive.

    Raises:
      UnexpectedTracerError: saying where it was made, and what holds it.
    """
    owners = set(map(id, ended))
    gc.collect()
    leaked = [x for x in gc.get_objects() if isinstance(x, Tracer) and id(x.owner) in owners]
    if not leaked:
        return
    lines = [_described(x, leaked) for x in leaked]
    raise UnexpectedTracerError(
        f"{counted(len(leaked), 'traced value')} outlived the traced function (checking_leaks): "
        f"{'; '.join(lines[:5])}. Return them from the function instead of saving them"
    )


def _described(x: Any, ours: list[Any]) -> str:
    origin = x.origin()
    return f"{x.aval}{' from ' + origin if origin else ''}{_holder(x, ours)}"


def _holder(x: Any, ours: list[Any]) -> str:
    """Where ``x`` is kept, in words."""
    for holder in gc.get_referrers(x):
        if holder is ours or isinstance(holder, (FrameType, CellType, Tracer)):
            continue
        if isinstance(holder, dict):
            key = next((k for k, v in holder.items() if v is x), None)
            return f", kept in a dict under {key!r}"
        return f", kept in a {type(holder).__name__}"
    return ""
