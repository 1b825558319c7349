"""Control flow executed by Python, step by step on concrete values, for ``disable_jit``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.core import pytree
from meshwright.core.config import config
from meshwright.errors import ArgumentTypeError
from meshwright.ir.tracing import Tracer, check_alive
from meshwright.ops.shape.rearrange import expand_dims, squeeze
from meshwright.ops.shape.slice_pad import concatenate, slice_in_dim
from meshwright.runtime.values import as_result
from meshwright.transforms.wrapped import is_pair, name_of


def known_value(x: Any) -> Any:
    """The concrete value of ``x`` if jit is disabled and there is one; None otherwise."""
    if not config.disable_jit:
        return None
    if isinstance(x, Tracer):
        check_alive(x)
        return x.concrete()
    return x


def while_in_python(cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], value: Any) -> tuple[bool, Any]:
    """Run the loop; returns whether all predicates were concrete, and the value."""
    while True:
        value = pytree.map(as_result, value)
        pred = known_value(cond_fun(value))
        if pred is None:
            return False, value
        if not pred:
            return True, value
        value = body_fun(value)


def scan_in_python(
    f: Callable[[Any, Any], tuple[Any, Any]], carry: Any, xs: Any, steps: int, reverse: bool
) -> tuple[Any, Any]:
    """``scan`` of at least one step.

    Raises:
      ArgumentTypeError: ``f`` returns no pair.
    """
    collected: list[Any] = []
    carry = pytree.map(as_result, carry)
    for i in reversed(range(steps)) if reverse else range(steps):
        x = pytree.map(lambda a, i=i: squeeze(slice_in_dim(a, i, i + 1), (0,)), xs)
        out = f(carry, x)
        if not is_pair(out):
            raise ArgumentTypeError(f"scan: {name_of(f)} must return a pair (carry, y), it returned {out!r}")
        carry, y = pytree.map(as_result, tuple(out))
        collected.append(y)
    return carry, pytree.map(_stacked, *(reversed(collected) if reverse else collected))


def _stacked(*values: Any) -> Any:
    return concatenate([expand_dims(v, (0,)) for v in values], 0)
