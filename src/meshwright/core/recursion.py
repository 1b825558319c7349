"""Recursion without Python's stack, for functions that follow chains of equations, which have any length."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

T = TypeVar("T")

#: A call that has not been run: a generator that yields the calls whose results it needs, and returns its own result.
Call = Generator["Call[Any]", Any, T]


def run(call: Call[T]) -> T:
    """The result of a call, and of all calls within it, with an explicit stack (a *trampoline*)."""
    stack: list[Call[Any]] = [call]
    result: Any = None
    error: BaseException | None = None
    while stack:
        try:
            inner = stack[-1].throw(error) if error is not None else stack[-1].send(result)
        except StopIteration as done:
            stack.pop()
            result, error = done.value, None
        except BaseException as raised:  # the caller sees it at its yield, as it would without the trampoline
            stack.pop()
            error = raised
        else:
            stack.append(inner)
            result = error = None
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]
