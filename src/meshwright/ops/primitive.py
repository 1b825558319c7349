"""Primitives in the style of JAX, with rules that are registered in tables, for code that extends JAX.

Elsewhere in this package an op is a class with its rules as methods. :class:`PrimitiveCall` is the class of all such
primitives: its methods look up the tables, which are exposed in ``meshwright.interpreters`` under JAX's names. A
primitive stays one equation until the program is lowered. Then it becomes a call of its expansion into ops, and that is
partitioned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

from meshwright.core import source
from meshwright.core.avals import ShapedArray
from meshwright.core.config import config
from meshwright.core.dtypes import is_inexact
from meshwright.core.records import dataclass
from meshwright.core.words import counted
from meshwright.errors import ArgumentTypeError, RuleError
from meshwright.ir.explicit import is_explicit
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn, all_eqns
from meshwright.ir.op import BatchAxis, BatchedResults, Cotangents, Dual, Linear, Op, Tangent, Zero
from meshwright.ir.rewrite import in_jaxprs, replaced
from meshwright.ir.state import scope, set_trace
from meshwright.ir.tracing import EVAL, eval_jaxpr, trace_to_jaxpr, typeof
from meshwright.ir.varying import cast
from meshwright.ops.control.call import Jit
from meshwright.ops.elementwise.conversion import convert
from meshwright.ops.elementwise.table import materialize

Rule = Callable[..., Any]


class Expansion(Protocol):
    """The expansion of a primitive: ``expand`` computes its results, of types ``outs``, with ops."""

    def expand(self, call: PrimitiveCall, operands: Sequence[Any], outs: Sequence[ShapedArray]) -> Sequence[Any]: ...


class Primitive:
    """A primitive called ``name``, whose rules are registered.

    They are set with ``def_impl`` and ``def_abstract_eval``, and in the tables of ``meshwright.interpreters`` (``ad``,
    ``batching``, ``mlir``). With ``multiple_results``, rules return lists of results.

    Source: ``jax.extend.core.Primitive``.

    Example:
      >>> from meshwright.extend.core import Primitive
      >>> from meshwright.interpreters import ad, batching, mlir
      >>> double_p = Primitive("double")
      >>> double_p.def_abstract_eval(lambda x: x)  # doctest: +ELLIPSIS
      <function ...>
      >>> ad.deflinear(double_p, lambda ct: [double_p.bind(ct)])
      >>> batching.defvectorized(double_p)
      >>> mlir.register_lowering(double_p, mlir.lower_fun(lambda x: 2 * x, multiple_results=False))
      >>> mw.jit(mw.vmap(mw.grad(double_p.bind)))(mnp.ones(3))
      Array([2., 2., 2.], dtype=float32)
    """

    multiple_results: bool = False
    #: whether it is ``call_p`` or ``closed_call_p``, as interpreters of jaxprs ask
    call_primitive: bool = False

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name

    def bind(self, *args: Any, **params: Any) -> Any:
        """Apply the primitive to arrays, tracers or numbers."""
        return PrimitiveCall(self, tuple(sorted(params.items()))).bind(*args)

    def get_bind_params(self, params: dict[str, Any]) -> dict[str, Any]:
        """The parameters of an equation, as ``bind`` takes them."""
        return params

    def def_impl(self, impl: Rule) -> Rule:
        """Set the function that computes results for concrete operands outside of compiled programs; returns it."""
        self.impl = impl  # type: ignore[method-assign]
        return impl

    def def_abstract_eval(self, abstract_eval: Rule) -> Rule:
        """Set the function from the operands' types (``ShapedArray``) to those of the results; returns it."""
        self.abstract_eval = abstract_eval  # type: ignore[method-assign]
        return abstract_eval

    def def_effectful_abstract_eval(self, abstract_eval: Rule) -> NoReturn:
        """Not supported, as types do not contain effects.

        Raises:
          RuleError: always.
        """
        raise RuleError(
            f"{self.name}: effects of primitives are not typed here; use def_abstract_eval, and io_callback or "
            "debug.callback in the lowering for what is to happen beside the results"
        )

    def impl(self, *args: Any, **params: Any) -> Any:
        """The results for concrete operands, by default computed with the lowering; see :meth:`def_impl`."""
        return PrimitiveCall(self, tuple(sorted(params.items()))).evaluated(args)

    def abstract_eval(self, *avals: ShapedArray, **params: Any) -> Any:
        """The types of the results, by the rule set with :meth:`def_abstract_eval`."""
        raise _missing(
            self, "Abstract evaluation", "p.def_abstract_eval(rule), where rule(*avals, **params) gives a ShapedArray"
        )


#: by primitive: the rules for tangents, for cotangents and for batch dimensions
JVPS: dict[Primitive, Rule] = {}
TRANSPOSES: dict[Primitive, Rule] = {}
BATCHERS: dict[Primitive, Rule] = {}
#: batching rules that take the axis (its ``size`` and ``name``) first
AXIS_BATCHERS: dict[Primitive, Rule] = {}
#: by primitive: its lowering by platform; that for None applies to all others
LOWERINGS: dict[Primitive, dict[str | None, Expansion]] = {}


def _missing(primitive: Primitive, what: str, remedy: str) -> RuleError:
    return RuleError(f"{what} for {primitive.name!r} not implemented: register one with {remedy}")


@dataclass(frozen=True)
class PrimitiveCall(Op):
    """The op of a primitive with its parameters."""

    primitive: Primitive
    given: tuple[tuple[str, Any], ...]

    #: parameters may be jaxprs, and rules may be registered later, so results are not cached by the op
    holds_jaxprs = True
    in_python = True
    takes_keys = True

    @property
    def name(self) -> str:
        return self.primitive.name

    @property
    def multiple_results(self) -> bool:
        return self.primitive.multiple_results

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.given)

    def _rule(self, table: dict[Primitive, Rule], what: str, remedy: str) -> Rule:
        if self.primitive not in table:
            raise _missing(self.primitive, what, remedy)
        return table[self.primitive]

    def _listed(self, outs: Any, what: str, count: int | None = None) -> list[Any]:
        """What a rule returns for the results, as a list."""
        if not self.multiple_results:
            return [outs]
        if not isinstance(outs, (list, tuple)) or count not in (None, len(outs)):
            expected = "a list" if count is None else counted(count, "value")
            raise RuleError(f"{self.name}: its {what} is to give {expected}, as multiple_results is set, not {outs!r}")
        return list(outs)

    def infer(self, *avals: ShapedArray) -> Any:
        for name, value in self.given:
            try:
                hash(value)
            except TypeError:
                raise ArgumentTypeError(
                    f"{self.name}: parameter {name} is {value!r}, which is not hashable; pass a tuple or number instead"
                ) from None
        outs = self._listed(self.primitive.abstract_eval(*avals, **self.params), "abstract evaluation rule")
        if not all(isinstance(a, ShapedArray) for a in outs):
            raise RuleError(f"{self.name}: its abstract evaluation rule gives {outs[0]!r}, expected a ShapedArray")
        return tuple(outs) if self.multiple_results else outs[0]

    def typed(self, *avals: ShapedArray) -> Any:
        if not is_explicit(avals):
            return super().typed(*avals)
        outs = self.expansion(avals).out_avals  # their types contain explicit shardings
        return tuple(outs) if self.multiple_results else outs[0]

    def perform(self, *operands: Any) -> Any:
        with set_trace(EVAL):
            outs = self._listed(self.primitive.impl(*operands, **self.params), "impl")
        for y in outs:
            typeof(y)
        return outs if self.multiple_results else outs[0]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Tangent]) -> Dual:
        remedy = "ad.primitive_jvps[p] = rule, where rule(primals, tangents, **params) gives results and tangents"
        rule = self._rule(JVPS, "Differentiation rule", remedy)
        outs, given = rule(primals, tangents, **self.params)
        listed = self._listed(outs, "jvp rule")
        touts = self._listed(given, "jvp rule", len(listed))
        touts = [self._fitting(t, typeof(y), "jvp rule", "tangent") for y, t in zip(listed, touts)]
        if all(isinstance(t, Zero) for t in touts):  # allowed for these rules, but not for those of other ops
            touts = [materialize(t) if is_inexact(t.aval.dtype) else t for t in touts]
        return (listed, touts) if self.multiple_results else (listed[0], touts[0])

    def transpose(self, cts: Any, *args: Any) -> Cotangents:
        remedy = "ad.primitive_transposes[p] = rule, where rule(ct, *args, **params) gives the operands' cotangents"
        rule = self._rule(TRANSPOSES, "Transpose rule (for reverse-mode differentiation)", remedy)
        results = rule(cts, *args, **self.params)
        if not isinstance(results, (list, tuple)) or len(results) != len(args):
            raise RuleError(
                f"{self.name}: its transpose rule is to give {counted(len(args), 'cotangent')}, one for each operand "
                f"(None for those that are not linear), not {results!r}"
            )
        return [
            self._fitting(ct, x.aval, "transpose rule", "cotangent") if isinstance(x, Linear) else None
            for x, ct in zip(args, results)
        ]

    def _fitting(self, x: Any, aval: ShapedArray, rule: str, what: str) -> Any:
        """A tangent or cotangent that a rule gives for a value of type ``aval``; None is zero."""
        if x is None or isinstance(x, Zero):
            return Zero(aval)
        got = typeof(x)
        if got.shape != aval.shape or (is_inexact(aval.dtype) and got.dtype != aval.dtype):
            raise RuleError(f"{self.name}: its {rule} gives a {what} of type {got} for a value of type {aval}")
        return x

    def batch(self, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> BatchedResults:
        if (on_axis := AXIS_BATCHERS.get(self.primitive)) is not None:
            given, places = on_axis(axis, args, dims, **self.params)
        else:
            remedy = (
                "batching.primitive_batchers[p] = rule, where rule(args, dims, **params) gives results and their batch "
                "dimensions, or batching.defvectorized(p)"
            )
            given, places = self._rule(BATCHERS, "Batching rule", remedy)(args, dims, **self.params)
        outs = self._listed(given, "batching rule")
        out_dims = self._listed(places, "batching rule", len(outs))
        for y, d in zip(outs, out_dims):
            shape = typeof(y).shape
            if d is not None and not (0 <= d < len(shape) and shape[d] == axis.size):
                raise RuleError(
                    f"{self.name}: its batching rule gives a result {typeof(y)} with its batch dimension at {d!r}, "
                    f"expected a dimension of size {axis.size}, or None"
                )
        return (outs, out_dims) if self.multiple_results else (outs[0], out_dims[0])

    # --- expansion ------------------------------------------------------------------------------------------
    def expansion(self, avals: Sequence[ShapedArray]) -> ClosedJaxpr:
        """The results, computed with other ops.

        Raises:
          RuleError: there is no lowering, or the types of its results are not those of the abstract evaluation rule.
        """
        rules, platform = LOWERINGS.get(self.primitive, {}), config.platform
        lowering = rules.get(platform, rules.get(None))
        if lowering is None:
            raise RuleError(
                f"MLIR translation rule for primitive {self.name!r} not found for platform {platform}: register one "
                f"with mlir.register_lowering(p, mlir.lower_fun(f, multiple_results={self.multiple_results})), where f "
                "is written with meshwright.numpy and lax, or, outside of compiled programs, use p.def_impl(f)"
            )
        declared = super().typed(*(a.update(explicit=None) for a in avals))
        wanted = list(declared) if self.multiple_results else [declared]

        def results(*operands: Any) -> list[Any]:
            outs = list(lowering.expand(self, operands, wanted))
            got = list(map(typeof, outs))
            if [(a.shape, a.dtype) for a in got] != [(a.shape, a.dtype) for a in wanted]:
                raise RuleError(
                    f"{self.name}: its lowering gives {', '.join(map(str, got))}, its abstract evaluation rule says "
                    f"{', '.join(map(str, wanted))}"
                )
            if any(a.vma - want.vma for a, want in zip(got, wanted)):
                raise RuleError(
                    f"{self.name}: its results, {', '.join(map(str, got))}, vary over more axes than its operands; "
                    "pass check_vma=False to shard_map"
                )
            return [cast(convert(y, a.dtype, a.weak_type), a.vma) for y, a in zip(outs, wanted)]

        return without_primitives(trace_to_jaxpr(results, avals, self.name))

    def evaluated(self, operands: Sequence[Any]) -> Any:
        """The results for concrete operands, by the expansion."""
        jaxpr = self.expansion([typeof(x) for x in operands])
        outs = eval_jaxpr(jaxpr, jaxpr.consts, *operands)
        return outs if self.multiple_results else outs[0]


def without_primitives(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with all primitives, also in inner jaxprs, replaced by calls of their expansions.

    Raises:
      RuleError: a primitive has no lowering, or the types of its results are not those of its abstract evaluation rule.
    """
    if not any(isinstance(e.op, PrimitiveCall) for e in all_eqns(jaxpr.jaxpr)):
        return jaxpr
    done: dict[Any, ClosedJaxpr] = {}

    def rule(eqn: JaxprEqn) -> JaxprEqn:
        if isinstance(eqn.op, PrimitiveCall):
            with source.at(eqn.source):
                return eqn.replace(op=Jit(eqn.op.name, eqn.op.expansion([a.aval for a in eqn.invars])))
        with eqn.op.scope():
            return in_jaxprs(eqn, inside)

    def inside(inner: ClosedJaxpr) -> ClosedJaxpr:
        key = id(inner), scope()
        if key not in done:
            done[key] = replaced(inner, rule)
        return done[key]

    return inside(jaxpr)
