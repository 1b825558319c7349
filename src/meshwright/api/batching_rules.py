"""``sequential_vmap`` and ``fwd_and_bwd``, which need loops or ``jit`` in addition to the transformations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright.api.control_flow import map_
from meshwright.api.jit import jit
from meshwright.core import pytree
from meshwright.core.pytree_classes import Partial
from meshwright.transforms.autodiff import argument_numbers, function_of, vjp
from meshwright.transforms.custom_vmap import custom_vmap
from meshwright.transforms.wrapped import require_callable


def sequential_vmap(f: Callable[..., Any]) -> custom_vmap:
    """``f`` with a batching rule that calls it once per index (a ``lax.map``) instead of batching it.

    Example:
      >>> f = mw.custom_batching.sequential_vmap(lambda x, y: x * y)
      >>> "scan" in str(mw.make_jaxpr(mw.vmap(f, in_axes=(0, None)))(mnp.arange(3), 2))
      True
    """
    wrapped = custom_vmap(f)

    @wrapped.def_vmap
    def rule(axis_size: int, in_batched: Sequence[Any], *args: Any) -> tuple[Any, Any]:
        flat, treedef = pytree.flatten(list(args))
        batched = pytree.leaves(in_batched)
        mapped = [x for x, b in zip(flat, batched) if b]

        def one(xs: Sequence[Any]) -> Any:
            given = iter(xs)
            return f(*pytree.unflatten(treedef, [next(given) if b else x for x, b in zip(flat, batched)]))

        out = map_(one, mapped)
        return out, pytree.map(lambda _: True, out)

    return wrapped


def fwd_and_bwd(
    fun: Callable[..., Any], argnums: int | Sequence[int], has_aux: bool = False, jitted: bool = True
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The forward and the backward pass of ``fun`` as two functions, each compiled once.

    ``fwd(*args)`` returns ``(output, residuals)``, and ``aux`` too with ``has_aux``; ``bwd(residuals, ct)`` returns the
    cotangent of the argument ``argnums``, or a tuple of them for several.

    Raises (when called):
      ArgumentError: ``argnums`` out of range. DifferentiationError: ``ct`` does not fit the output.

    Example:
      >>> fwd, bwd = mw.fwd_and_bwd(lambda x, w: x * w**2, argnums=(0, 1))
      >>> out, residuals = fwd(3.0, 2.0)
      >>> float(out), [float(g) for g in bwd(residuals, 10.0)]
      (12.0, [40.0, 120.0])
    """
    require_callable(fun, "fwd_and_bwd")

    def fwd(*args: Any) -> tuple[Any, ...]:
        numbers = argument_numbers(argnums, len(args), "fwd_and_bwd")
        call = function_of(fun, numbers, args, {})
        out, pull, *aux = vjp(call, *(args[i] for i in numbers), has_aux=has_aux)
        return (out, pull, *aux)

    def bwd(pull: Partial, ct: Any) -> Any:
        cts = pull(ct)
        return cts[0] if isinstance(argnums, int) else cts

    return (jit(fwd), jit(bwd)) if jitted else (fwd, bwd)
