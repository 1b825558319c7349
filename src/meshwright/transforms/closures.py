"""Closures made by derivative rules, represented as pytrees: a jaxpr, with the values it closes over as leaves.

As pytrees they can be passed from a forward to a backward pass, and in and out of jitted functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.core import pytree
from meshwright.core.pytree_classes import Partial
from meshwright.core.records import dataclass
from meshwright.errors import ArgumentTypeError, DifferentiationError
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.tracing import eval_jaxpr, trace_to_jaxpr, typeof
from meshwright.ops.control.custom_vmap import LinearCall
from meshwright.transforms.autodiff import closed_call
from meshwright.transforms.custom_vjp import custom_vjp
from meshwright.transforms.jaxprs import Stand
from meshwright.transforms.wrapped import is_pair, name_of, require_callable


@dataclass(frozen=True)
class _Traced:
    """A function traced to a jaxpr; called with its captured values and its argument."""

    name: str
    jaxpr: ClosedJaxpr
    in_tree: Any
    out_tree: Any

    def __call__(self, captured: Any, argument: Any) -> Any:
        flat, tree = pytree.flatten(argument)
        if tree != self.in_tree:
            raise ArgumentTypeError(
                f"{self.name}: the argument has structure {pytree.show(tree)}, expected {pytree.show(self.in_tree)}"
            )
        return pytree.unflatten(self.out_tree, eval_jaxpr(self.jaxpr, (), *captured, *flat))


def as_tree(fun: Callable[[Any], Any], example: Any, name: str) -> Partial:
    """``fun`` traced at the types of ``example``, as a callable pytree whose leaves are the values it closes over."""
    flat, in_tree = pytree.flatten(example)
    jaxpr, captured, out_tree = closed_call(lambda *xs: fun(pytree.unflatten(in_tree, xs)), flat, name)
    return Partial(_Traced(name, jaxpr, in_tree, out_tree), captured)


def custom_gradient(fun: Callable[..., Any]) -> Callable[..., Any]:
    """A function that returns its own gradient rule: ``fun(*args) -> (output, rule)``.

    ``rule(ct)`` takes the cotangent of the output and returns a tuple with one cotangent per argument (for a single
    argument, just its cotangent). It may close over any value that ``fun`` computed.

    Raises (when called):
      DifferentiationError: ``fun`` does not return a pair ``(output, rule)``, or the cotangents do not match the
        arguments.

    Example:
      >>> @mw.custom_gradient
      ... def clipped(x):
      ...     return x**2, lambda ct: mnp.clip(ct * 2 * x, -1, 1)
      >>> float(clipped(3.0)), float(mw.grad(clipped)(3.0))
      (9.0, 1.0)
    """
    require_callable(fun, "custom_gradient")
    name = name_of(fun)

    def pair(*args: Any) -> tuple[Any, Callable[..., Any]]:
        result = fun(*args)
        if not is_pair(result) or not callable(result[1]):
            raise DifferentiationError(
                f"custom_gradient {name}: the function must return a pair (output, rule), got {result!r}"
            )
        return result

    def primal(*args: Any) -> Any:
        return pair(*args)[0]

    def fwd(*args: Any) -> tuple[Any, Partial]:
        out, rule = pair(*args)
        return out, as_tree(rule, out, f"custom_gradient {name}")

    def bwd(rule: Partial, ct: Any) -> tuple[Any, ...]:
        cts = rule(ct)
        return cts if isinstance(cts, tuple) else (cts,)

    primal.__name__, primal.__doc__ = name, fun.__doc__
    wrapped = custom_vjp(primal)
    wrapped.defvjp(fwd, bwd)
    return wrapped


def linear_call(
    fun: Callable[[Any, Any], Any],
    fun_transpose: Callable[[Any, Any], Any],
    residual_args: Any,
    linear_args: Any,
) -> Any:
    """Call ``fun(residual_args, linear_args)``, which must be linear in ``linear_args``, with a custom transpose.

    The transpose is ``fun_transpose(residual_args, ct)``; the transpose of that is ``fun`` again.

    Raises:
      DifferentiationError: the result of ``fun_transpose`` differs from ``linear_args`` in structure or types; or
        (later) the call is differentiated with respect to the residuals.

    Example:
      >>> def scaled(x, s):
      ...     return mw.custom_derivatives.linear_call(lambda s, x: x / s, lambda s, ct: 100 * ct, s, x)
      >>> float(scaled(6.0, 3.0)), float(mw.grad(scaled)(6.0, 3.0))
      (2.0, 100.0)
    """
    require_callable(fun, "linear_call")
    require_callable(fun_transpose, "linear_call")
    residuals, residual_tree = pytree.flatten(residual_args)
    linear, linear_tree = pytree.flatten(linear_args)
    n, name = len(residuals), name_of(fun)

    def flat_call(f: Callable[[Any, Any], Any], tree: Any) -> Callable[..., Any]:
        return lambda *xs: f(pytree.unflatten(residual_tree, xs[:n]), pytree.unflatten(tree, xs[n:]))

    forward, first, out_tree = closed_call(flat_call(fun, linear_tree), [*residuals, *linear], name)
    outs = [a.strong() for a in forward.out_avals]
    stand_ins = pytree.unflatten(pytree.structure(outs), [Stand(a) for a in outs])
    back, second, back_tree = closed_call(flat_call(fun_transpose, out_tree), [*residuals, *stand_ins], name)
    in_avals, ct_avals = [typeof(x) for x in linear], back.out_avals
    if back_tree != linear_tree or [(a.shape, a.dtype) for a in in_avals] != [(a.shape, a.dtype) for a in ct_avals]:
        raise DifferentiationError(
            f"linear_call {name}: fun_transpose must return what linear_args is like, {pytree.show(linear_tree)} of "
            f"{', '.join(map(str, in_avals))}; it returned {pytree.show(back_tree)} of {', '.join(map(str, ct_avals))}"
        )
    # Both jaxprs must take the same residuals, so each also takes what the other closes over.
    a, b = len(first), len(second)
    shared = [*map(typeof, (*first, *second, *residuals))]

    def widened(jaxpr: ClosedJaxpr, own: slice, arguments: list[Any]) -> ClosedJaxpr:
        return trace_to_jaxpr(lambda *xs: eval_jaxpr(jaxpr, (), *xs[own], *xs[a + b :]), [*shared, *arguments], name)

    transposed = widened(back, slice(a, a + b), outs)
    op = LinearCall(name, widened(forward, slice(0, a), in_avals), transposed, a + b + n)
    return pytree.unflatten(out_tree, op.bind(*first, *second, *residuals, *linear))
