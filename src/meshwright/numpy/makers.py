"""Factories for elementwise functions, which promote and broadcast the operands of one op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.core import dtypes
from meshwright.core.avals import Typed
from meshwright.core.config import config
from meshwright.numpy.promotion import apply_plan, aval_of, operand_plan, operands
from meshwright.runtime.values import as_result

Unary = Callable[[Any], Any]
Binary = Callable[[Any, Any], Any]


def document(f: Any, name: str, what: str, arguments: str, extra: str, example: tuple[str, str] | None) -> Any:
    """Give a generated function its name and docstring."""
    f.__name__ = f.__qualname__ = name
    f.__doc__ = f"{what}\n\nArgs:\n  {arguments}\n\nRaises:\n  {extra}\n"
    if example is not None:
        f.__doc__ += f"\n>>> {example[0]}\n{example[1]}\n"
    return f


_ONE = "x: array or number of any shape; the result has its shape."
_TWO = "x1, x2: arrays or numbers whose shapes broadcast together; dtypes are promoted as in JAX."
_ONE_RAISES = "ArgumentTypeError, DTypeError: ``x`` is not an array, or of a dtype without this function."
_TWO_RAISES = "ShapeError, DTypeError, ArgumentTypeError: shapes do not broadcast, dtypes do not promote, or no arrays."


def unary(
    name: str,
    op: Any,
    what: str,
    example: tuple[str, str] | None = None,
    to_inexact: bool = False,
    unchanged: Callable[[Any], bool] | None = None,
) -> Unary:
    """A function of one array. ``to_inexact``: convert integers and bools to the default float first. ``unchanged``:
    tells for which dtypes the function is the identity."""

    def f(x: Any) -> Any:
        aval = aval_of(x, name)
        if unchanged is not None and unchanged(aval.dtype):
            return as_result(x)
        if isinstance(x, Typed) and not (to_inexact and not dtypes.is_inexact(aval.dtype)):
            return op(x)
        return op(*operands(name, (x,), to_inexact))

    return document(f, name, what, _ONE, _ONE_RAISES, example)


def binary(name: str, op: Any, what: str, example: tuple[str, str] | None = None, to_inexact: bool = False) -> Binary:
    """A function of two arrays."""
    bind = op.bind if hasattr(op, "bind") else op

    def f(x1: Any, x2: Any, /) -> Any:
        if isinstance(x1, Typed) and isinstance(x2, Typed):
            both, a, b = True, x1.aval, x2.aval
        else:
            both, a, b = False, aval_of(x1, name, 0), aval_of(x2, name, 1)
        if a is b and both and not to_inexact:
            return bind(x1, x2)
        plan = operand_plan(name, (a, b), to_inexact, config.tracing)
        if plan.ready and both:
            return bind(x1, x2)
        return bind(*apply_plan(name, plan, (x1, x2)))

    return document(f, name, what, _TWO, _TWO_RAISES, example)
