"""Where in the user's program a value was made: the line, and the calls that led there.

Recording has to be nearly free, since it happens for every equation: a location keeps code objects and offsets of
instructions, and finds lines and columns when somebody asks.
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
#: frames of these libraries are between the user and us, never the user
_LIBRARIES = (os.sep + "optree" + os.sep, os.sep + "functools.py", os.sep + "contextlib.py")


#: lines and columns from start to end as Python counts them (columns from 0), and None where they are not known
Range = tuple[int, int | None, int | None, int | None]
#: file, lines and columns, function, and what it is called in messages
Fixed = tuple[str, Range, str, str]


class SourceLocation:
    """File, line and function of the user's program, with the name stack at that point.

    ``caller`` is the place of the call that led here, if it is known; its name stack is empty.
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
        """A location that is given rather than recorded (an imported program's).

        ``where`` may be a line alone; messages call the function ``shown``.
        """
        lines = (where, None, None, None) if isinstance(where, int) else where
        return cls(None, 0, name_stack, (file, lines, function, shown or function), caller)

    def _resolve(self) -> Fixed:
        if self._fixed is None:
            code = self._code
            if code is None:
                self._fixed = ("", (0, None, None, None), "", "")
            else:
                # Code positions are listed by instruction, of two bytes each.
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
        """Counted from 1, as editors do; 0 where it is not known."""
        column = self.range[2]
        return 0 if column is None else column + 1

    @property
    def range(self) -> Range:
        """First and last line, first column and the one after the last."""
        return self._resolve()[1]

    @property
    def stack(self) -> Iterator[SourceLocation]:
        """This place, and the calls that led here, innermost first."""
        place: SourceLocation | None = self
        while place is not None:
            yield place
            place = place.caller

    @property
    def is_known(self) -> bool:
        return self._code is not None or bool(self._fixed and self._fixed[0])

    def scoped(self, name_stack: str) -> SourceLocation:
        """The same place under another name stack."""
        if name_stack == self.name_stack:
            return self
        return _place(self._code, self._offset, name_stack, self._fixed, self.caller)

    def within(self, scope: str) -> SourceLocation:
        """The same place, its name stack below ``scope``."""
        return self.scoped(joined(scope, self.name_stack)) if scope else self

    def transposed(self) -> SourceLocation:
        """Where the cotangents of what was made here are: ``jvp(f)/dense`` becomes ``transpose(jvp(f))/dense``."""
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
        return f"{os.path.basename(file)}:{lines[0]}" + (f" ({shown})" if shown else "")

    __repr__ = __str__


UNKNOWN = SourceLocation(None, 0)


def joined(*names: str) -> str:
    """A name stack of parts, some of which may be empty."""
    return "/".join(filter(None, names))


def _from_pickle(fixed: Fixed, name_stack: str, caller: SourceLocation | None) -> SourceLocation:
    return SourceLocation(None, 0, name_stack, fixed, caller) if fixed[0] else UNKNOWN


#: by file
_is_ours: dict[str, bool] = {}
#: by what makes a place, and by the calls that lead to it; they keep what they are known by the identities of
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
    """What the programs that this thread traces are given: name scopes, and locations that take the frames' place."""

    def __init__(self) -> None:
        self.name_stack: list[str] = []
        self.given: list[SourceLocation] = []


_RECORDING = _Recording()


def is_ours(code: CodeType) -> bool:
    """Whether code lies between the user's program and the ops: in this package, or in a library that calls it."""
    file = code.co_filename
    ours = _is_ours.get(file)
    if ours is None:
        ours = (file.startswith(_PACKAGE) and not file.startswith(_USER_PARTS)) or any(l in file for l in _LIBRARIES)
        _is_ours[file] = ours
    return ours


def current() -> SourceLocation:
    """The innermost frames that are not ours, or the location that :class:`at` gives.

    ``config.traceback_in_locations_limit`` says how many frames.
    """
    given = _RECORDING.given
    if given:
        return given[-1]
    names = _RECORDING.name_stack
    key: list[Any] = [names[-1] if names else ""]
    frames: list[FrameType] = []
    limit = config.traceback_in_locations_limit
    frame: FrameType | None = sys._getframe(1)
    ours = _is_ours
    while frame is not None and len(frames) != limit:
        code = frame.f_code
        internal = ours.get(code.co_filename)
        if internal is None:
            internal = is_ours(code)
        if not internal:
            frames.append(frame)
            key += (id(code), frame.f_lasti)
        frame = frame.f_back
    location = _recorded.get(tuple(key))
    if location is None:
        location = _recorded[tuple(key)] = _located(frames, key[0])
    return location


def _located(frames: list[FrameType], name_stack: str) -> SourceLocation:
    """The first of ``frames``, as called from the others."""
    if not frames:
        return UNKNOWN
    caller = None
    for frame in reversed(frames[1:]):
        caller = _place(frame.f_code, frame.f_lasti, "", None, caller)
    return _place(frames[0].f_code, frames[0].f_lasti, name_stack, None, caller)


def warn(text: str, category: type[Warning]) -> None:
    """Warn where the user's program is, however many frames of ours lie between."""
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and is_ours(frame.f_code):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def name_scope(name: str) -> AbstractContextManager[None]:
    """Prefix the name stack of locations recorded in the ``with`` block.

    Raises:
      ArgumentTypeError: the name is no text.

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
    """An empty name stack for the ``with`` block: a function that is traced once may be called from many scopes."""
    _RECORDING.name_stack.append("")
    try:
        yield
    finally:
        _RECORDING.name_stack.pop()


class at:
    """``with at(location):`` records that location: what a pass adds on behalf of a line of the user's."""

    __slots__ = ("location",)

    def __init__(self, location: SourceLocation) -> None:
        self.location = location

    def __enter__(self) -> None:
        _RECORDING.given.append(self.location)

    def __exit__(self, *exc: object) -> None:
        _RECORDING.given.pop()
