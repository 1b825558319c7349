"""MLIR contexts that programs for XLA are read in, used again.

Of a small program's compilation, XLA takes a sixth to make a context for its text, with all dialects. A context serves
one program at a time, and no thread but the one that reads it: a call that an interrupt has left may still go on in its
own. It keeps every constant that it has seen, and is let go before these are many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from jaxlib.mlir import ir

from meshwright.stablehlo.dialects import new_context

#: of programs that a context reads; a larger one gets, from XLA, a context of its own
BYTES = 1 << 22
LARGE = 1 << 16

T = TypeVar("T")

_free: list[tuple[ir.Context, int]] = []


def with_module(source: Any, use: Callable[[Any], T]) -> T:
    """``use`` of a program's bytecode as a module of a context; of anything else, and of what is large or cannot be
    read, as it is."""
    if not isinstance(source, bytes) or len(source) > LARGE:
        return use(source)
    try:
        context, seen = _free.pop()
    except IndexError:
        context, seen = new_context(), 0
    result = use(_read(source, context))  # an error would hold the module, and so its context
    if (seen := seen + len(source)) < BYTES:
        _free.append((context, seen))
    return result


def _read(source: bytes, context: ir.Context) -> Any:
    try:
        return ir.Module.parse(source, context)
    except ir.MLIRError:  # XLA says the same, where its errors are explained
        return source
