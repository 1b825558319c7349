"""Functions of several ops that run as one program when evaluated op by op.

Otherwise each op would be compiled for every new shape, and would run and store its result separately. Inside a trace
the ops are recorded inline, so jaxprs show no calls. Arithmetic on Python numbers is then left to Python unless it
raises.
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
    """``f`` as one program when evaluated; its arguments are arrays, or static and hashable.

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
