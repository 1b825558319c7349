"""``make_jaxpr`` and ``eval_shape``: trace a function without running it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright.api.carried_references import traced_once
from meshwright.api.jit import JitFunction, jit
from meshwright.api.references import Ref
from meshwright.api.shape_dtype import ShapeDtypeStruct
from meshwright.core import pytree
from meshwright.core.naming import wraps
from meshwright.core.tracebacks import boundary
from meshwright.core.words import counted
from meshwright.errors import ArgumentTypeError
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.state import extend_axis_env
from meshwright.ir.tracing import eval_jaxpr
from meshwright.transforms.wrapped import name_of, require_callable


def make_jaxpr(
    fun: Callable[..., Any],
    static_argnums: int | Sequence[int] = (),
    axis_env: Sequence[tuple[str, int]] | None = None,
    return_shape: bool = False,
) -> Callable[..., Any]:
    """A function that returns the jaxpr of ``fun`` at the types of its arguments.

    With ``return_shape``, it returns a pair of the jaxpr and the types of the results. ``axis_env`` are names and sizes
    of axes that collectives in ``fun`` may name.

    Raises:
      ArgumentTypeError: ``fun`` is not a function, or (when called) an argument is not an array.

    Example:
      >>> mw.make_jaxpr(lambda x, y: x * y + 1)(mnp.arange(3), 2)
      { lambda ; a:i32[3] b:i32[]. let
          c:i32[3] = mul a b
          d:i32[3] = add c 1:i32[]
        in (d,) }
    """
    require_callable(fun, "make_jaxpr")

    @boundary
    @wraps(fun)
    def wrapped(*args: Any, **kwargs: Any) -> ClosedJaxpr | tuple[ClosedJaxpr, Any]:
        for x in pytree.leaves((args, kwargs)):
            if isinstance(x, Ref):
                raise ArgumentTypeError(
                    f"make_jaxpr: {name_of(fun)} is given {x!r}, but jaxprs have no references here: references are "
                    "values that are passed in and out; pass r[...] of a reference r, and return its new value"
                )
        with extend_axis_env(dict(axis_env or ())):
            # A new function object each time, so that an earlier trace is not reused.
            program = jit(lambda *a, **k: fun(*a, **k), static_argnums=static_argnums).program_at(*args, **kwargs)
        if not return_shape:
            return program.jaxpr
        return program.jaxpr, pytree.unflatten(
            program.out_tree, list(map(ShapeDtypeStruct.of, program.jaxpr.out_avals))
        )

    return wrapped


@boundary
def eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The types of ``fun``'s results, without computing them. Arguments may also be ``ShapeDtypeStruct``. Those of a
    jitted function have the shardings of its ``out_shardings``.

    Raises:
      ArgumentTypeError: ``fun`` is not a function, or an argument is not an array. Also raises what ``fun`` raises.

    Example:
      >>> mw.eval_shape(lambda a, b: a @ b, mw.ShapeDtypeStruct((2, 3), "float32"), mnp.ones((3, 4)))
      ShapeDtypeStruct(shape=(2, 4), dtype=float32)
    """
    require_callable(fun, "eval_shape")
    leaves, tree = pytree.flatten((args, kwargs))

    def of_leaves(*leaves: Any) -> Any:
        args, kwargs = pytree.unflatten(tree, leaves)
        return fun(*args, **kwargs)

    def shapes(of_arrays: Callable[..., Any], arrays: Sequence[Any]) -> Any:
        if of_arrays is of_leaves:  # so that errors name the user's arguments
            if isinstance(fun, JitFunction):
                return fun.eval_shape(*args, **kwargs)
            return make_jaxpr(fun, return_shape=True)(*args, **kwargs)[1]
        return make_jaxpr(of_arrays, return_shape=True)(*arrays)[1]

    return traced_once(shapes, of_leaves, leaves, write=False)


def jaxpr_as_fun(closed_jaxpr: ClosedJaxpr) -> Callable[..., list[Any]]:
    """A function of arrays that evaluates a closed jaxpr and returns a list of results; transformations see its
    equations.

    Example:
      >>> f = mw.core.jaxpr_as_fun(mw.make_jaxpr(lambda x: 3 * x)(1.0))
      >>> float(f(2.0)[0]), float(mw.grad(lambda x: f(x)[0])(2.0))
      (6.0, 3.0)
    """

    def fun(*args: Any) -> list[Any]:
        in_avals = closed_jaxpr.in_avals
        if len(args) != len(in_avals):
            raise ArgumentTypeError(f"jaxpr_as_fun: the jaxpr takes {counted(len(in_avals), 'array')}, got {len(args)}")
        return eval_jaxpr(closed_jaxpr, closed_jaxpr.consts, *args)

    return fun
