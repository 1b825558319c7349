"""Where in the user's program a value was made.

Recording has to be nearly free, since it happens for every eqn: a location keeps the code object and the
instruction offset, and finds the line number when somebody asks.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from types import CodeType, FrameType
from typing import Any

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
#: parts of this package that are programs written *with* it
_USER_PARTS = tuple(_PACKAGE + part + os.sep for part in ("cli",))
#: frames of these libraries are between the user and us, never the user
_LIBRARIES = (os.sep + "optree" + os.sep, os.sep + "functools.py", os.sep + "contextlib.py")


class SourceLocation:
    """File, line and function of the user's program, with the name stack at that point."""

    __slots__ = ("_code", "_fixed", "_offset", "name_stack")

    def __init__(
        self, code: CodeType | None, offset: int, name_stack: str = "", fixed: tuple[str, int, str] | None = None
    ) -> None:
        self._code = code
        self._offset = offset
        self.name_stack = name_stack
        self._fixed: tuple[str, int, str] | None = fixed

    @classmethod
    def at(cls, file: str, line: int, function: str = "", name_stack: str = "") -> SourceLocation:
        """A location that is given rather than recorded (an imported program's)."""
        return cls(None, 0, name_stack, (file, line, function))

    def _resolve(self) -> tuple[str, int, str]:
        if self._fixed is None:
            code = self._code
            if code is None:
                self._fixed = ("", 0, "")
            else:
                line = code.co_firstlineno
                for start, end, number in code.co_lines():
                    if start <= self._offset < end and number is not None:
                        line = number
                self._fixed = (code.co_filename, line, code.co_qualname)
        return self._fixed

    def __reduce__(self) -> tuple[object, ...]:
        return _from_pickle, (self._resolve(), self.name_stack)

    @property
    def file(self) -> str:
        return self._resolve()[0]

    @property
    def column(self) -> int:
        """Counted from 1, as editors do; 0 where it is not known."""
        if self._code is None:
            return 0
        # Code positions are listed by instruction, of two bytes each.
        position = next(islice(self._code.co_positions(), self._offset // 2, None), None)
        return 0 if position is None or position[2] is None else position[2] + 1

    @property
    def is_known(self) -> bool:
        return self._code is not None or bool(self._fixed and self._fixed[0])

    def scoped(self, name_stack: str) -> SourceLocation:
        """The same place under another name stack."""
        if name_stack == self.name_stack:
            return self
        key = (self._code or self._fixed, self._offset, name_stack)
        found = _interned.get(key)
        if found is None:
            found = _interned[key] = SourceLocation(self._code, self._offset, name_stack, self._fixed)
        return found

    def within(self, scope: str) -> SourceLocation:
        """The same place, its name stack below ``scope``."""
        return self.scoped(joined(scope, self.name_stack)) if scope else self

    def transposed(self) -> SourceLocation:
        """Where the cotangents of what was made here are: ``jvp(f)/dense`` becomes ``transpose(jvp(f))/dense``."""
        first, slash, rest = self.name_stack.partition("/")
        return self.scoped(f"transpose({first}){slash}{rest}") if first.startswith("jvp(") else self

    @property
    def line(self) -> int:
        return self._resolve()[1]

    @property
    def function(self) -> str:
        return self._resolve()[2]

    def __str__(self) -> str:
        file, line, function = self._resolve()
        if not file:
            return "<unknown>"
        return f"{os.path.basename(file)}:{line}" + (f" ({function})" if function else "")

    __repr__ = __str__


UNKNOWN = SourceLocation(None, 0)


def joined(*names: str) -> str:
    """A name stack of parts, some of which may be empty."""
    return "/".join(filter(None, names))


def _from_pickle(fixed: tuple[str, int, str], name_stack: str) -> SourceLocation:
    if not fixed[0]:
        return UNKNOWN
    made = SourceLocation(None, 0, name_stack)
    made._fixed = fixed
    return made


_is_ours: dict[CodeType, bool] = {}
_interned: dict[tuple[Any, int, str], SourceLocation] = {}


class _Recording(threading.local):
    """What the programs that this thread traces are given: name scopes, and locations that take the frames' place."""

    def __init__(self) -> None:
        self.name_stack: list[str] = []
        self.given: list[SourceLocation] = []


_RECORDING = _Recording()


def is_ours(code: CodeType) -> bool:
    """Whether code lies between the user's program and the ops: in this package, or in a library that calls it."""
    file = code.co_filename
    ours = (file.startswith(_PACKAGE) and not file.startswith(_USER_PARTS)) or any(l in file for l in _LIBRARIES)
    _is_ours[code] = ours
    return ours


def current() -> SourceLocation:
    """The location of the innermost frame that is not ours, or the one that :class:`at` gives."""
    given = _RECORDING.given
    if given:
        return given[-1]
    frame: FrameType | None = sys._getframe(1)
    ours = _is_ours
    while frame is not None:
        code = frame.f_code
        internal = ours.get(code)
        if internal is None:
            internal = is_ours(code)
        if not internal:
            names = _RECORDING.name_stack
            stack = names[-1] if names else ""
            key = (code, frame.f_lasti, stack)
            found = _interned.get(key)
            if found is None:
                found = _interned[key] = SourceLocation(code, frame.f_lasti, stack)
            return found
        frame = frame.f_back
    return UNKNOWN


def warn(text: str, category: type[Warning]) -> None:
    """Warn where the user's program is, however many frames of ours lie between."""
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and is_ours(frame.f_code):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


@contextmanager
def name_scope(name: str) -> Iterator[None]:
    """Prefix the name stack of locations recorded in the ``with`` block.

    Example:
      >>> def f(x):
      ...     with mw.named_scope("encoder"):
      ...         return x + 1
      >>> "encoder" in mw.jit(f).lower(1).as_text(debug_info=True)
      True
    """
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
