"""``custom_jvp``: functions with a user-defined JVP rule, which is transposed for reverse mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright.core import pytree
from meshwright.core.dtypes import float0, is_inexact
from meshwright.core.records import dataclass
from meshwright.errors import ArgumentError, DifferentiationError, MissingRuleError
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.op import Zero
from meshwright.ir.tracing import EVAL, Tracer, eval_jaxpr, typeof
from meshwright.ops.control.call import CustomJvpCall
from meshwright.ops.elementwise.base import with_arrays
from meshwright.ops.elementwise.table import convert, materialize
from meshwright.transforms.autodiff import closed_call
from meshwright.transforms.custom_function import (
    CustomDerivative,
    positional,
    shown,
    types_of,
    with_operands,
    with_static,
)
from meshwright.transforms.jaxprs import Stand
from meshwright.transforms.levels import Differentiation, Failure, closes_over_tracers, differentiation, traced_once
from meshwright.transforms.linearized import jvp_flat, tangent_of
from meshwright.transforms.wrapped import name_of, require_callable


class custom_jvp(CustomDerivative):
    """A function with a user-defined JVP rule.

    The arguments in ``nondiff_argnums`` and ``nondiff_argnames`` are Python values (functions, settings); the rule
    receives them first.

    Raises:
      ArgumentError: ``nondiff_argnames`` names an argument that ``fun`` does not have. ArgumentTypeError: ``fun`` is
        not a function.

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

    rule: Callable[..., Any] | None = None

    def defjvp(self, jvp: Callable[..., Any], symbolic_zeros: bool = False) -> Callable[..., Any]:
        """Set the rule: ``jvp(primals, tangents) -> (output, output tangent)``; nondiff arguments come first.

        With ``symbolic_zeros``, tangents known to be zero are passed as ``SymbolicZero`` objects instead of arrays, and
        the rule may return such objects.
        """
        require_callable(jvp, "custom_jvp.defjvp")
        self.rule, self.symbolic_zeros = jvp, symbolic_zeros
        return jvp

    def defjvps(self, *jvps: Callable[..., Any] | None) -> None:
        """Set one rule per argument: ``jvp(tangent, output, *primals) -> output tangent``, or None for zero.

        Raises:
          ArgumentError: there are ``nondiff_argnums``, which only :meth:`defjvp` supports.
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

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = name_of(self.fun)
        if self.rule is None:
            raise MissingRuleError(f"custom_jvp {name}: no rule is set; call .defjvp(rule) first")
        args = positional(self.fun, args, kwargs, "custom_jvp")
        static = self.static_of(args)
        flat, treedef = pytree.flatten(tuple(a for i, a in enumerate(args) if i not in static))
        level = differentiation(flat)
        if level is EVAL:
            return self.fun(*args)
        rule = _Rule(name, self.rule, [static[i] for i in sorted(static)], treedef, self.symbolic_zeros)
        call = with_static(self.fun, static, len(args), treedef)
        if isinstance(level, Differentiation):
            rule.out_tree, rule.out_avals = self._types.of(call, level.primals, treedef, *static.items())
            out, tangent, out_tree = rule(level.primals, level.tangents)
            return pytree.unflatten(out_tree, map(level.joined, out, tangent))
        jaxpr, consts, out_tree = closed_call(call, flat, name)
        rule.out_tree, rule.out_avals = out_tree, jaxpr.out_avals
        flat_rule: Any = rule.flat
        if any(isinstance(c, Tracer) for c in consts) or closes_over_tracers(rule.rule):
            # The rule may also close over tracers; trace it now, while their traces are alive.
            traced = traced_once(self, lambda: rule.traced(flat))
            if isinstance(traced, Failure):
                flat_rule = traced.again
            elif traced is not None:
                flat_rule, more = traced
                jaxpr, consts = with_operands(jaxpr, len(consts), more), [*consts, *more]
        op = CustomJvpCall(name, jaxpr, _closed_rule(jaxpr, len(consts), flat_rule))
        return pytree.unflatten(out_tree, op.bind(*consts, *flat))


def _closed_rule(jaxpr: ClosedJaxpr, n: int, rule: Callable[..., Any]) -> Callable[..., Any]:
    """The rule as a function of all operands; the first ``n`` are values that the function or the rule closes over."""

    def closed(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        if any(not isinstance(t, Zero) for t in tangents[:n]):
            # A captured value is differentiated too, which the rule does not cover: differentiate the function itself.
            return _jvp_of_jaxpr(jaxpr, primals, tangents)
        return rule(primals[:n], primals[n:], tangents[n:])

    return closed


@dataclass
class _Rule:
    """The user's rule as a function of flat values; checks its results."""

    name: str
    rule: Callable[..., Any]
    static: list[Any]
    in_tree: Any
    symbolic_zeros: bool
    #: structure and types of the function's results, if it has been traced
    out_tree: Any = None
    out_avals: Sequence[Any] | None = None

    def __call__(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any], Any]:
        """The flat results, their tangents, and the output structure."""
        if self.symbolic_zeros:
            given = [
                Zero(t.aval.to_tangent_aval()) if isinstance(t, Zero) else tangent_of(typeof(x), t)
                for x, t in zip(primals, tangents)
            ]
        else:
            given = [tangent_of(typeof(x), t) for x, t in zip(primals, tangents)]
        ts = pytree.unflatten(self.in_tree, given)
        result = with_arrays(lambda xs: self.rule(*self.static, pytree.unflatten(self.in_tree, xs), ts), primals)
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            raise DifferentiationError(
                f"custom_jvp {self.name}: the rule must return a pair (output, output tangent), got {shown(result)}"
            )
        return _checked(self.name, self.out_avals, self.out_tree, *result)

    def flat(self, consts: Sequence[Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """The flat results and their tangents. ``consts`` is unused: the rule closes over these values itself."""
        return self(primals, tangents)[:2]

    def traced(self, flat: Sequence[Any]) -> tuple[Callable[..., Any], list[Any]]:
        """:meth:`flat` traced to a jaxpr, and the tracers that the rule closes over: the last of its ``consts``."""
        inexact = [is_inexact(typeof(x).dtype) for x in flat]
        zero: list[bool] = []

        def call(*leaves: Any) -> list[Any]:
            primals, given = leaves[: len(flat)], iter(leaves[len(flat) :])
            tangents = [next(given) if i else Zero(typeof(x)) for i, x in zip(inexact, primals)]
            outs, touts = self.flat((), primals, tangents)
            zero[:] = [isinstance(t, Zero) for t in touts]
            return [*outs, *(t for t in touts if not isinstance(t, Zero))]

        stand_ins = [*flat, *(Stand(typeof(x).strong()) for x, i in zip(flat, inexact) if i)]
        jaxpr, more, _ = closed_call(call, stand_ins, self.name)

        def rule(consts: Sequence[Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
            given = [materialize(t) for t, i in zip(tangents, inexact) if i]
            results = eval_jaxpr(jaxpr, jaxpr.consts, *consts[len(consts) - len(more) :], *primals, *given)
            outs, rest = results[: len(zero)], iter(results[len(zero) :])
            return outs, [Zero(typeof(x)) if z else next(rest) for x, z in zip(outs, zero)]

        return rule, more


def _checked(
    name: str, out_avals: Sequence[Any] | None, out_tree: Any, out: Any, tangent: Any
) -> tuple[list[Any], list[Any], Any]:
    outs, got = pytree.flatten(out)
    touts, tgot = pytree.flatten(tangent)
    expected = got if out_tree is None else out_tree
    if got != expected or tgot != expected:
        raise DifferentiationError(
            f"custom_jvp {name}: the rule returned structures {pytree.show(got)} and {pytree.show(tgot)}, the "
            f"function returns {pytree.show(expected)}"
        )
    returned = f"custom_jvp {name}: the rule returned"

    def path(i: int) -> str:
        return str(pytree.paths(out)[i])

    known = types_of(outs, lambda i: f"{returned} output{path(i)}, which is no array")
    moved = types_of(touts, lambda i: f"{returned} the tangent of output{path(i)}, which is no array")
    avals = known if out_avals is None else out_avals
    for which, values, types in (("output", outs, known), ("the tangent of output", touts, moved)):
        for i, (x, aval, want) in enumerate(zip(values, types, avals)):
            exact = which == "output" or is_inexact(want.dtype)
            dtypes = [want.dtype] if exact else [float0, want.dtype] if isinstance(x, Zero) else [float0]
            lenient = aval.weak_type and exact and is_inexact(aval.dtype) == is_inexact(want.dtype)
            if aval.shape != want.shape or (aval.dtype not in dtypes and not lenient):
                raise DifferentiationError(
                    f"{returned} {which}{path(i)} of type {aval} where the function returns {want}; an output and its "
                    "tangent have the same shape and dtype, but tangents of integers and bools are "
                    "numpy.zeros(shape, float0), as the rule gets them"
                )
    zeros = [t if is_inexact(a.dtype) else Zero(a) for t, a in zip(touts, avals)]
    return outs, [t if isinstance(t, Zero) else convert(t, a.dtype) for t, a in zip(zeros, avals)], got


def _added(x: Any, y: Any) -> Any:
    return y if isinstance(x, Zero) else x if isinstance(y, Zero) else x + y


def _jvp_of_jaxpr(jaxpr: ClosedJaxpr, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    outs, touts, _ = jvp_flat(lambda *xs: eval_jaxpr(jaxpr, jaxpr.consts, *xs), primals, tangents)
    return outs, touts
