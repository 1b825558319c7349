"""Finds leaked tracers when their trace ends: ``with mw.checking_leaks(): ...``.

Without this option, a leaked tracer is reported only when it is used. One that is never used just holds memory.
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
    """Register ``trace``: none of its tracers may be alive when the enclosing :func:`ends_traces` function returns."""
    if config.check_tracer_leaks:
        _WATCHED.traces.append(trace)
    return trace


def ends_traces(function: F) -> F:
    """Decorator for a function that starts and ends a trace; checks for leaks after its frame has been released."""

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
            if finished:  # after an error, its traceback still holds tracers
                _check(ended)
        return result

    return checked  # type: ignore[return-value]


def _check(ended: list[Trace]) -> None:
    """Raise if a tracer of one of these traces is alive.

    Raises:
      UnexpectedTracerError: names where each was computed, and what holds it.
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
    """A description of the object that holds ``x``, for messages."""
    for holder in gc.get_referrers(x):
        if holder is ours or isinstance(holder, (FrameType, CellType, Tracer)):
            continue
        if isinstance(holder, dict):
            key = next((k for k, v in holder.items() if v is x), None)
            return f", kept in a dict under {key!r}"
        return f", kept in a {type(holder).__name__}"
    return ""
