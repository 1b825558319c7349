"""Reports the residuals that the backward pass of a function uses, and where each is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.core import dtypes, pytree
from meshwright.core.avals import ShapedArray
from meshwright.core.signature import leaf_names
from meshwright.ir.jaxpr import Literal
from meshwright.ir.passes import dead_code, inline_calls, is_plain_call
from meshwright.transforms.autodiff import closed_call
from meshwright.transforms.jaxprs import TRANSFORMS
from meshwright.transforms.wrapped import name_of, require_callable


def saved_residuals(f: Callable[..., Any], *args: Any, **kwargs: Any) -> list[tuple[ShapedArray, str]]:
    """The type and origin of each residual that the forward pass of ``f`` at these arguments saves for the backward."""
    require_callable(f, "saved_residuals")
    flat, treedef = pytree.flatten((args, kwargs))

    def call(*leaves: Any) -> Any:
        positional, named = pytree.unflatten(treedef, leaves)
        return f(*positional, **named)

    jaxpr, captured, _ = closed_call(call, flat, name_of(f))
    nonzero = tuple(dtypes.is_inexact(a.dtype) for a in jaxpr.in_avals)
    derivative, _ = TRANSFORMS.jvp(inline_calls(jaxpr, is_plain_call), nonzero)
    split = TRANSFORMS.partial_eval(derivative, (True,) * len(nonzero) + (False,) * sum(nonzero))
    known = dead_code(split.known).jaxpr
    names = [*("a value from outside" for _ in captured), *(f"the argument {n}" for n in leaf_names(f, args, kwargs))]
    origins = {v: f"from {name}" for v, name in zip(known.invars, names)}
    origins.update(dict.fromkeys(known.constvars, "from a constant"))
    for eqn in known.eqns:
        made = f"named {eqn.op.params['name']!r}" if eqn.op.name == "name" else f"output of {eqn.op.name}"
        origins.update(dict.fromkeys(eqn.outvars, f"{made} from {eqn.source}"))
    kept = known.outvars[sum(split.known_out) :]
    literals = [(x.aval, "from a literal") for x in kept if isinstance(x, Literal)]
    variables = {x for x in kept if not isinstance(x, Literal)}
    return [*literals, *((v.aval, origin) for v, origin in origins.items() if v in variables)]


def print_saved_residuals(f: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Print the type and origin of each residual that ``f`` at these arguments saves for its backward pass.

    Example:
      >>> mw.ad_checkpoint.print_saved_residuals(lambda x, y: mnp.sin(x) * y, 1.0, 2.0)  # doctest: +ELLIPSIS
      f32[] from the argument y
      f32[] output of sin from ...
      f32[] output of cos from ...
    """
    for aval, origin in saved_residuals(f, *args, **kwargs):
        print(f"{aval} {origin}")
