"""``custom_jvp``: functions with a forward derivative rule of the user's, from which reverse mode follows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from meshwright.core import pytree
from meshwright.core.dtypes import float0, is_inexact
from meshwright.errors import ArgumentError, DifferentiationError
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.op import Zero
from meshwright.ir.state import STATE
from meshwright.ir.tracing import EVAL, eval_jaxpr, typeof
from meshwright.ops.call import CustomJvpCall
from meshwright.transforms.autodiff import closed_call, name_of, require_callable
from meshwright.transforms.custom_vjp import nondiff_numbers, positional, with_static
from meshwright.transforms.linearized import jvp_flat, tangent_of


class custom_jvp:
    """A function with a derivative rule of its own.

    Arguments of ``nondiff_argnums`` and ``nondiff_argnames`` are Python values (functions, settings): the rule gets
    them first.

    Raises:
      ArgumentError: an argument is named that ``fun`` has not. ArgumentTypeError: ``fun`` is no function.

    Example:
      >>> @mw.custom_jvp
      ... def log1pexp(x):
      ...     return mnp.log1p(mnp.exp(x))
      >>> @log1pexp.defjvp
      ... def rule(primals, tangents):
      ...     (x,), (t,) = primals, tangents
      ...     return log1pexp(x), t / (1 + mnp.exp(-x))
      >>> float(mw.grad(log1pexp)(100.0))
      1.0
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        nondiff_argnums: Sequence[int] = (),
        nondiff_argnames: Sequence[str] = (),
    ) -> None:
        require_callable(fun, "custom_jvp")
        functools.update_wrapper(self, fun)
        self.fun = fun
        self.nondiff_argnums = nondiff_numbers(fun, nondiff_argnums, nondiff_argnames, "custom_jvp")
        self.rule: Callable[..., Any] | None = None
        self.symbolic_zeros = False

    def defjvp(self, jvp: Callable[..., Any], symbolic_zeros: bool = False) -> Callable[..., Any]:
        """Set the rule: ``jvp(primals, tangents) -> (output, output tangent)``; nondiff arguments come first.

        With ``symbolic_zeros``, tangents that are known to be zero are ``SymbolicZero`` objects instead of arrays, and
        output tangents may be.
        """
        require_callable(jvp, "custom_jvp.defjvp")
        self.rule, self.symbolic_zeros = jvp, symbolic_zeros
        return jvp

    def defjvps(self, *jvps: Callable[..., Any] | None) -> None:
        """Set one rule an argument: ``jvp(tangent, output, *primals) -> output tangent``, or None for zero.

        Raises:
          ArgumentError: there are ``nondiff_argnums``, which only :meth:`defjvp` knows.
        """
        if self.nondiff_argnums:
            raise ArgumentError(f"custom_jvp {name_of(self.fun)}: with nondiff_argnums, use defjvp instead of defjvps")

        def rule(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
            out = self(*primals)
            total = pytree.map(lambda y: Zero(typeof(y).strong()), out)
            for one, t in zip(jvps, tangents):
                if one is not None and not isinstance(t, Zero):
                    total = pytree.map(_added, total, one(t, out, *primals))
            return out, total

        self.rule, self.symbolic_zeros = rule, True

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = name_of(self.fun)
        if self.rule is None:
            raise ArgumentError(f"custom_jvp {name}: no rule is set; call .defjvp(rule) first")
        args = positional(self.fun, args, kwargs, "custom_jvp")
        if STATE.trace is EVAL:
            return self.fun(*args)
        static = {i: args[i] for i in self.nondiff_argnums}
        flat, treedef = pytree.flatten(tuple(a for i, a in enumerate(args) if i not in static))
        jaxpr, hoisted, out_tree = closed_call(with_static(self.fun, static, len(args), treedef), flat, name)
        n, rule, symbolic = len(hoisted), self.rule, self.symbolic_zeros

        def flat_rule(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
            if any(not isinstance(t, Zero) for t in tangents[:n]):
                # A value the function closes over is differentiated too: the rule knows nothing of it.
                return _jvp_of_jaxpr(jaxpr, primals, tangents)
            ps = pytree.unflatten(treedef, primals[n:])
            given = tangents[n:] if symbolic else map(tangent_of, map(typeof, primals[n:]), tangents[n:])
            ts = pytree.unflatten(treedef, list(given))
            result = rule(*(static[i] for i in sorted(static)), ps, ts)
            if not isinstance(result, (tuple, list)) or len(result) != 2:
                raise DifferentiationError(
                    f"custom_jvp {name}: the rule must return a pair (output, output tangent), got {result!r}"
                )
            return _checked(name, jaxpr, out_tree, *result)

        return pytree.unflatten(out_tree, CustomJvpCall(name, jaxpr, flat_rule).bind(*hoisted, *flat))


def _checked(name: str, jaxpr: ClosedJaxpr, out_tree: Any, out: Any, tangent: Any) -> tuple[list[Any], list[Any]]:
    outs, got = pytree.flatten(out)
    touts, tgot = pytree.flatten(tangent)
    if got != out_tree or tgot != out_tree:
        raise DifferentiationError(
            f"custom_jvp {name}: the rule returned structures {pytree.show(got)} and {pytree.show(tgot)}, the "
            f"function returns {pytree.show(out_tree)}"
        )
    for which, values in (("an output", outs), ("a tangent", touts)):
        for x, want in zip(values, jaxpr.out_avals):
            aval = x.aval if isinstance(x, Zero) else typeof(x)
            exact = which == "an output" or isinstance(x, Zero) or is_inexact(want.dtype)
            dtype = want.dtype if exact else float0
            if aval.shape != want.shape or (aval.dtype != dtype and not (aval.weak_type and exact)):
                raise DifferentiationError(
                    f"custom_jvp {name}: the rule returned {which} of type {aval} where the function returns {want}; "
                    "an output and its tangent have the same shape and dtype, but tangents of integers and bools are "
                    "numpy.zeros(shape, float0), as the rule gets them"
                )
    zeros = [t if isinstance(t, Zero) or is_inexact(a.dtype) else Zero(a) for t, a in zip(touts, jaxpr.out_avals)]
    return outs, zeros


def _added(x: Any, y: Any) -> Any:
    return y if isinstance(x, Zero) else x if isinstance(y, Zero) else x + y


def _jvp_of_jaxpr(jaxpr: ClosedJaxpr, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    outs, touts, _ = jvp_flat(lambda *xs: eval_jaxpr(jaxpr, jaxpr.consts, *xs), primals, tangents)
    return outs, touts
