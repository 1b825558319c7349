"""The location in the user's program where a value was created: the line, and the calls that led there.

Recording must be cheap, since it happens for every equation: a location stores code objects and instruction offsets,
and computes lines and columns on demand.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from types import CodeType, FrameType
from typing import Any

from meshwright.core.config import config
from meshwright.errors import ArgumentTypeError

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
#: parts of this package that are programs written *with* it
_USER_PARTS = tuple(_PACKAGE + part + os.sep for part in ("cli",))
#: libraries whose frames occur between the user and us, and are never the user's
_LIBRARIES = (os.sep + "optree" + os.sep, os.sep + "functools.py", os.sep + "contextlib.py")


#: first and last line, first and last column (counted from 0, as in Python); None where unknown
Range = tuple[int, int | None, int | None, int | None]
#: file, lines and columns, function, and its name in messages
Fixed = tuple[str, Range, str, str]


class SourceLocation:
    """File, line and function in the user's program, with the name stack at that point.

    ``caller`` is the location of the call that led here, if known; its name stack is empty.
    """

    __slots__ = ("_code", "_fixed", "_offset", "caller", "name_stack")

    def __init__(
        self,
        code: CodeType | None,
        offset: int,
        name_stack: str = "",
        fixed: Fixed | None = None,
        caller: SourceLocation | None = None,
    ) -> None:
        self._code = code
        self._offset = offset
        self.name_stack = name_stack
        self._fixed: Fixed | None = fixed
        self.caller = caller

    @classmethod
    def at(
        cls, file: str, where: int | Range, function: str = "", name_stack: str = "",
        caller: SourceLocation | None = None, shown: str = "",
    ) -> SourceLocation:  # fmt: skip
        """A location that is given rather than recorded (for imported programs).

        ``where`` may be just a line; messages call the function ``shown``.
        """
        lines = (where, None, None, None) if isinstance(where, int) else where
        return cls(None, 0, name_stack, (file, lines, function, shown or function), caller)

    def _resolve(self) -> Fixed:
        if self._fixed is None:
            code = self._code
            if code is None:
                self._fixed = ("", (0, None, None, None), "", "")
            else:
                # Positions are listed per instruction of two bytes.
                position = next(islice(code.co_positions(), self._offset // 2, None), (None,) * 4)
                lines = (position[0] or code.co_firstlineno, *position[1:])
                self._fixed = (code.co_filename, lines, code.co_qualname, code.co_qualname)
        return self._fixed

    def __reduce__(self) -> tuple[object, ...]:
        return _from_pickle, (self._resolve(), self.name_stack, self.caller)

    @property
    def file(self) -> str:
        return self._resolve()[0]

    @property
    def column(self) -> int:
        """The column counted from 1, as in editors; 0 if unknown."""
        column = self.range[2]
        return 0 if column is None else column + 1

    @property
    def range(self) -> Range:
        """First and last line, first column and the one after the last."""
        return self._resolve()[1]

    @property
    def stack(self) -> Iterator[SourceLocation]:
        """This location, and the calls that led here, innermost first."""
        place: SourceLocation | None = self
        while place is not None:
            yield place
            place = place.caller

    @property
    def is_known(self) -> bool:
        return self._code is not None or bool(self._fixed and self._fixed[0])

    def scoped(self, name_stack: str) -> SourceLocation:
        """The same location with another name stack."""
        if name_stack == self.name_stack:
            return self
        return _place(self._code, self._offset, name_stack, self._fixed, self.caller)

    def within(self, scope: str) -> SourceLocation:
        """The same location, with ``scope`` prepended to its name stack."""
        return self.scoped(joined(scope, self.name_stack)) if scope else self

    def transposed(self) -> SourceLocation:
        """The location of the cotangents: ``jvp(f)/dense`` becomes ``transpose(jvp(f))/dense``."""
        first, slash, rest = self.name_stack.partition("/")
        return self.scoped(f"transpose({first}){slash}{rest}") if first.startswith("jvp(") else self

    @property
    def line(self) -> int:
        return self.range[0]

    @property
    def function(self) -> str:
        return self._resolve()[2]

    def __str__(self) -> str:
        file, lines, _, shown = self._resolve()
        if not file:
            return "<unknown>"
        place = os.path.basename(file) + (f":{lines[0]}" if lines[0] else "")
        return place + (f" ({shown})" if shown else "")

    __repr__ = __str__


UNKNOWN = SourceLocation(None, 0)


def joined(*names: str) -> str:
    """Join parts of a name stack, ignoring empty ones."""
    return "/".join(filter(None, names))


def _from_pickle(fixed: Fixed, name_stack: str, caller: SourceLocation | None) -> SourceLocation:
    return SourceLocation(None, 0, name_stack, fixed, caller) if fixed[0] else UNKNOWN


#: by file
_is_ours: dict[str, bool] = {}
_is_skipped: dict[str, bool] = {}
#: starts of paths of libraries that say that their frames are not the user's
_excluded: tuple[str, ...] = ()
#: by the objects that determine a location, and by call stacks; they keep alive the objects whose identities are keys
_interned: dict[tuple[Any, ...], SourceLocation] = {}
_recorded: dict[tuple[Any, ...], SourceLocation] = {}


def _place(
    code: CodeType | None, offset: int, name_stack: str, fixed: Fixed | None, caller: SourceLocation | None,
) -> SourceLocation:  # fmt: skip
    key = (fixed if code is None else id(code), offset, name_stack, id(caller))
    location = _interned.get(key)
    if location is None:
        location = _interned[key] = SourceLocation(code, offset, name_stack, fixed, caller)
    return location


class _Recording(threading.local):
    """Thread-local state of recording: name scopes, and locations that replace those of frames."""

    def __init__(self) -> None:
        self.name_stack: list[str] = []
        self.given: list[SourceLocation] = []


_RECORDING = _Recording()


def is_ours(code: CodeType) -> bool:
    """Whether code is between the user's program and the ops: in this package, or in a library that calls it."""
    file = code.co_filename
    ours = _is_ours.get(file)
    if ours is None:
        ours = (file.startswith(_PACKAGE) and not file.startswith(_USER_PARTS)) or any(l in file for l in _LIBRARIES)
        _is_ours[file] = ours
    return ours


def register_exclusion(path: str) -> None:
    """Locations skip code in files whose path starts with ``path``: they are those of the callers.

    For libraries of layers, whose users want to see their own lines. Source:
    ``jax.extend.source_info_util.register_exclusion``.

    Example:
      >>> from meshwright.extend import source_info_util
      >>> source_info_util.register_exclusion("/a/library/")
    """
    global _excluded
    _excluded += (path,)
    _is_skipped.clear()


def _skips(code: CodeType) -> bool:
    """Whether locations skip this code."""
    file = code.co_filename
    skipped = _is_skipped[file] = is_ours(code) or file.startswith(_excluded)
    return skipped


def current() -> SourceLocation:
    """The location of the innermost user frames, or the one set by :class:`at`.

    ``config.traceback_in_locations_limit`` is the number of frames.
    """
    given = _RECORDING.given
    if given:
        return given[-1]
    names = _RECORDING.name_stack
    key: list[Any] = [names[-1] if names else ""]
    frames: list[FrameType] = []
    limit = config.traceback_in_locations_limit
    frame: FrameType | None = sys._getframe(1)
    skipped = _is_skipped
    while frame is not None and len(frames) != limit:
        code = frame.f_code
        internal = skipped.get(code.co_filename)
        if internal is None:
            internal = _skips(code)
        if not internal:
            frames.append(frame)
            key += (id(code), frame.f_lasti)
        frame = frame.f_back
    location = _recorded.get(tuple(key))
    if location is None:
        location = _recorded[tuple(key)] = _located(frames, key[0])
    return location


def _located(frames: list[FrameType], name_stack: str) -> SourceLocation:
    """The location of the first of ``frames``, called from the others."""
    if not frames:
        return UNKNOWN
    caller = None
    for frame in reversed(frames[1:]):
        caller = _place(frame.f_code, frame.f_lasti, "", None, caller)
    return _place(frames[0].f_code, frames[0].f_lasti, name_stack, None, caller)


def warn(text: str, category: type[Warning]) -> None:
    """Issue a warning at the user's line, skipping our own frames."""
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and is_ours(frame.f_code):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def name_scope(name: str) -> AbstractContextManager[None]:
    """Prefix the name stack of locations recorded in the ``with`` block.

    Raises:
      ArgumentTypeError: the name is not a string.

    Example:
      >>> def f(x):
      ...     with mw.named_scope("encoder"):
      ...         return x + 1
      >>> "encoder" in mw.jit(f).lower(1).as_text(debug_info=True)
      True
    """
    if not isinstance(name, str):
        raise ArgumentTypeError(f"named_scope: expected text as the name, got {name!r} of type {type(name).__name__}")
    return _scope(name)


@contextmanager
def _scope(name: str) -> Iterator[None]:
    names = _RECORDING.name_stack
    names.append(joined(names[-1], name) if names else name)
    try:
        yield
    finally:
        names.pop()


@contextmanager
def own_scope() -> Iterator[None]:
    """Reset the name stack in the ``with`` block, since a function that is traced once may be called from many
    scopes."""
    _RECORDING.name_stack.append("")
    try:
        yield
    finally:
        _RECORDING.name_stack.pop()


class at:
    """``with at(location):`` records that location, for equations that a pass adds on behalf of a user's line."""

    __slots__ = ("location",)

    def __init__(self, location: SourceLocation) -> None:
        self.location = location

    def __enter__(self) -> None:
        _RECORDING.given.append(self.location)

    def __exit__(self, *exc: object) -> None:
        _RECORDING.given.pop()
