"""Functions of several ops that are one program when they are evaluated.

Op by op, each op of a function is compiled for every new shape, and run and stored on its own; as one program the
function is compiled once. Inside of a trace its ops are recorded as they are, so that jaxprs show no calls; Python's
numbers are then left to Python's arithmetic, but where it raises.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from meshwright.api.jit import jit
from meshwright.ir.state import STATE
from meshwright.ir.tracing import EVAL
from meshwright.ops.elementwise.base import with_arrays


def compiled(f: Callable[..., Any] | None = None, *, static_argnums: tuple[int, ...] = ()) -> Any:
    """``f``, whose arguments are arrays (but for static, hashable ones), as one program when it is evaluated.

    >>> from meshwright.numpy import add, multiply
    >>> compiled(lambda x, y: add(multiply(x, y), y))(2.0, 3.0).item()
    9.0
    """
    if f is None:
        return functools.partial(compiled, static_argnums=static_argnums)
    program = jit(f, static_argnums=static_argnums or None)

    @functools.wraps(f)
    def call(*args: Any) -> Any:
        return program(*args) if STATE.trace is EVAL else with_arrays(lambda xs: f(*xs), args)

    return call
