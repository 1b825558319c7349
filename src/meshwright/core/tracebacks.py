"""Removes our own frames from tracebacks, so that they end at the user's program.

A user's function inside ``jit`` or ``grad`` has twenty frames of ours around it and a few below. Users can act on the
lines of their program, and the message. With ``traceback_filtering`` set to "off", all frames are shown; debuggers also
see all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from meshwright.core.config import config
from meshwright.core.source import is_ours

F = TypeVar("F", bound=Callable[..., Any])
_NOTE = "(frames of meshwright are left out; MESHWRIGHT_TRACEBACK_FILTERING=off shows them)"


def without_own_frames(error: BaseException) -> BaseException:
    """``error`` with only the user's frames in its traceback and those of its causes."""
    if config.traceback_filtering == "off":
        return error
    seen: BaseException | None = error
    while seen is not None:
        kept = _kept(seen.__traceback__)
        if kept is not seen.__traceback__:
            seen.__traceback__ = kept
            quiet = config.traceback_filtering == "quiet_remove_frames"
            if seen is error and not quiet and _NOTE not in getattr(error, "__notes__", ()):
                error.add_note(_NOTE)
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return error


def _kept(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without our frames: the same object if it has none."""
    frames = []
    link = traceback
    while link is not None:
        frames.append(link)
        link = link.tb_next
    users = [tb for tb in frames if not is_ours(tb.tb_frame.f_code)]
    if len(users) == len(frames):
        return traceback
    rest: TracebackType | None = None
    for tb in reversed(users):
        rest = TracebackType(rest, tb.tb_frame, tb.tb_lasti, tb.tb_lineno)
    return rest


def boundary(function: F) -> F:
    """``function``, a public entry point of this package, with our frames removed from its errors."""

    @functools.wraps(function)
    def entered(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            without_own_frames(error)
            raise

    # inspect.unwrap should return the user's own function.
    entered.__wrapped__ = getattr(function, "__wrapped__", function)
    return entered  # type: ignore[return-value]
