"""``make_jaxpr`` and ``eval_shape``: look at a function without running it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from meshwright.api.jit import ShapeDtypeStruct, jit
from meshwright.core import pytree
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.state import extend_axis_env
from meshwright.transforms.autodiff import require_callable


def make_jaxpr(
    fun: Callable[..., Any],
    static_argnums: int | Sequence[int] = (),
    axis_env: Sequence[tuple[str, int]] | None = None,
    return_shape: bool = False,
) -> Callable[..., Any]:
    """A function that returns the jaxpr of ``fun`` at the types of its arguments."""
    require_callable(fun, "make_jaxpr")

    @functools.wraps(fun)
    def wrapped(*args: Any, **kwargs: Any) -> ClosedJaxpr | tuple[ClosedJaxpr, Any]:
        with extend_axis_env(dict(axis_env or ())):
            # A function of its own each time, so that an earlier trace is not found again.
            program = jit(lambda *a, **k: fun(*a, **k), static_argnums=static_argnums).trace(*args, **kwargs).program
        if not return_shape:
            return program.jaxpr
        shapes = [ShapeDtypeStruct(a.shape, a.dtype) for a in program.jaxpr.out_avals]
        return program.jaxpr, pytree.unflatten(program.out_tree, shapes)

    return wrapped


def eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The types of ``fun``'s results, without computing them."""
    return make_jaxpr(fun, return_shape=True)(*args, **kwargs)[1]
