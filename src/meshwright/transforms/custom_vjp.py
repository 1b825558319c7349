"""``custom_vjp``: functions with user-defined forward and backward rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright.core import dtypes, pytree
from meshwright.core.records import dataclass
from meshwright.core.signature import leaf_names
from meshwright.errors import (
    ArgumentError,
    ArgumentTypeError,
    DifferentiationError,
    MissingRuleError,
    TangentMismatchError,
)
from meshwright.ir.op import Mapped, Zero
from meshwright.ir.state import set_trace
from meshwright.ir.tracing import EVAL, Tracer, eval_jaxpr, typeof
from meshwright.ops.control.custom_vjp import CustomVjpCall, closed_over, linear_part
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
from meshwright.transforms.levels import (
    Differentiation,
    Failure,
    carries_tangent,
    closes_over_tracers,
    differentiation,
    traced_once,
)
from meshwright.transforms.linearized import tangent_of
from meshwright.transforms.references import REFERENCES
from meshwright.transforms.rules import batched_backward
from meshwright.transforms.wrapped import is_pair, name_of, require_callable


def _is_zero(x: Any) -> bool:
    return x is None or isinstance(x, Zero)


@dataclass(frozen=True)
class CustomVJPPrimal:
    """An argument of a forward rule with ``symbolic_zeros``: its value, and whether it is differentiated."""

    value: Any
    perturbed: bool


def custom_vjp_primal_tree_values(tree: Any) -> Any:
    """The values of a tree of :class:`CustomVJPPrimal`.

    Raises:
      ArgumentTypeError: a leaf is none.
    """
    for x, path in zip(pytree.leaves(tree), pytree.paths(tree)):
        if not isinstance(x, CustomVJPPrimal):
            raise ArgumentTypeError(
                f"custom_vjp_primal_tree_values: tree{path} is a {type(x).__name__}, expected what a forward rule gets "
                "with symbolic_zeros=True"
            )
    return pytree.map(lambda x: x.value, tree)


def zero_from_primal(val: Any, symbolic_zeros: bool = False) -> Any:
    """The zero tangents of a tree ``val`` of values: arrays, or with ``symbolic_zeros`` objects that need no memory.

    >>> zero_from_primal(1.0).item()
    0.0
    """
    if symbolic_zeros:
        return pytree.map(lambda x: Zero(typeof(x).to_tangent_aval()), val)
    return pytree.map(lambda x: tangent_of(typeof(x).strong(), Zero(typeof(x))), val)


class custom_vjp(CustomDerivative):
    """A function with user-defined rules for reverse mode.

    ``fwd(*args)`` returns ``(output, residuals)``; ``bwd(residuals, cotangent)`` returns a tuple with one cotangent per
    argument (None for zero). The arguments in ``nondiff_argnums`` and ``nondiff_argnames`` are Python values; ``bwd``
    receives them first, before the residuals.

    Raises:
      ArgumentError: ``nondiff_argnames`` names an argument that ``fun`` does not have. ArgumentTypeError: ``fun`` is
        not a function.

    Example::

        @custom_vjp
        def clip_gradient(x, limit): return x

        clip_gradient.defvjp(
            lambda x, limit: (x, limit), lambda limit, g: (mnp.clip(g, -limit, limit), None)
        )
    """

    fwd: Callable[..., Any] | None = None
    bwd: Callable[..., Any] | None = None

    def defvjp(
        self,
        fwd: Callable[..., Any],
        bwd: Callable[..., Any],
        symbolic_zeros: bool = False,
        optimize_remat: bool = False,
    ) -> None:
        """Set the rules.

        With ``symbolic_zeros``, ``fwd`` receives objects with the fields ``value`` and ``perturbed`` (whether the
        argument is differentiated) instead of arrays, and ``bwd`` a ``SymbolicZero`` for each cotangent known to be
        zero.

        ``optimize_remat`` is accepted for compatibility with JAX and has no effect. In JAX it allows ``checkpoint`` to
        call the function instead of ``fwd`` where no residuals are needed; here dead-code elimination has that effect.
        """
        require_callable(fwd, "custom_vjp.defvjp fwd")
        require_callable(bwd, "custom_vjp.defvjp bwd")
        self.fwd, self.bwd, self.symbolic_zeros = fwd, bwd, symbolic_zeros

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = name_of(self.fun)
        if self.fwd is None or self.bwd is None:
            raise MissingRuleError(f"custom_vjp {name}: no rules are set; call .defvjp(fwd, bwd) first")
        args = positional(self.fun, args, kwargs)
        static = self.static_of(args)
        flat, in_tree = pytree.flatten(tuple(a for i, a in enumerate(args) if i not in static))
        if REFERENCES.value.among(flat):
            return self._without_references(args, static)
        level = differentiation(flat)
        if level is EVAL:
            out = self.fun(*args)
            if any(map(carries_tangent, pytree.leaves(out))):
                raise closed_over(name)
            return out
        rules = _Rules(self.fun, self.fwd, self.bwd, static, len(args), in_tree, self.symbolic_zeros)
        call = with_static(self.fun, static, len(args), in_tree)
        if isinstance(level, Differentiation):
            rules.out_tree, rules.out_avals = self._types.of(call, level.primals, in_tree, *static.items())
            return _at_once(rules, level)
        jaxpr, consts, rules.out_tree = closed_call(call, flat, name)
        rules.in_avals, rules.out_avals = [typeof(x) for x in flat], jaxpr.out_avals
        fwd: Any = lambda primals, perturbed: rules.forward(primals[len(consts) :], perturbed[len(consts) :])  # noqa: E731
        bwd: Any = rules.backward
        loose = 0
        held = any(isinstance(c, Tracer) for c in consts)
        if held or closes_over_tracers(self.fwd) or closes_over_tracers(self.bwd):
            # The rules may close over tracers too; trace them now, while their traces are alive.
            traced = traced_once(self, lambda: _traced(rules, flat))
            if isinstance(traced, Failure):
                fwd = traced.again
            elif traced is not None:
                fwd, bwd, more, last = traced
                jaxpr = with_operands(with_operands(jaxpr, len(consts), more), 0, last)
                consts, loose = [*last, *consts, *more], len(last)
        n = len(consts)
        op = CustomVjpCall(
            name, jaxpr, fwd, lambda saved, cts: [None] * n + bwd(saved, cts), n, self.symbolic_zeros, loose
        )
        return pytree.unflatten(rules.out_tree, op.bind(*consts, *flat))

    def _without_references(self, args: tuple[Any, ...], static: dict[int, Any]) -> Any:
        """The call where arguments hold references: these are closed over by the function and its rules, so that the
        backward rule can write what it gets."""
        assert self.fwd is not None and self.bwd is not None
        apart = REFERENCES.value.apart
        arrays, whole = apart(tuple(a for i, a in enumerate(args) if i not in static))  # type: ignore[misc]
        restore: list[Any] = []

        def full(given: Any) -> list[Any]:
            rest = iter(whole(given))
            return [static[i] if i in static else next(rest) for i in range(len(args))]

        def fwd(*given: Any) -> Any:
            result = self.fwd(*full(given))  # type: ignore[misc]
            split = apart(result[1]) if is_pair(result) else None
            restore[:] = [None if split is None else split[1]]
            return result if split is None else (result[0], split[0])

        def bwd(residuals: Any, cts: Any) -> Any:
            saved = residuals if restore[0] is None else restore[0](residuals)
            return self.bwd(*(static[i] for i in sorted(static)), saved, cts)  # type: ignore[misc]

        def fun(*given: Any) -> Any:
            return self.fun(*full(given))

        fun.__name__ = name_of(self.fun)
        again = custom_vjp(fun)
        again.defvjp(fwd, bwd, self.symbolic_zeros)
        return again(*arrays)


def _at_once(rules: _Rules, level: Differentiation) -> Any:
    """Differentiate the function at ``level``: call the forward rule now, and the backward rule when transposing.

    Raises:
      DifferentiationError: a result also depends on differentiated values that the function closes over.
    """
    rules.in_avals = [typeof(x) for x in level.primals]
    residuals, outs = rules.forward(level.primals, [not isinstance(t, Zero) for t in level.tangents])
    rules.out_avals = rules.out_avals or [typeof(x) for x in outs]
    for above in level.mapped:
        outs = [above.trace.put(x) for x in outs]  # type: ignore[union-attr]
    lowered = [level.lowered(x) for x in outs]
    if any(carries for *_, carries in lowered):
        raise closed_over(rules.name)
    bwd: Any = rules.backward
    if closes_over_tracers(rules.bwd, level.traces):
        # These traces end before the backward pass begins, so the rule is traced now.
        traced = traced_once(rules.bwd, lambda: _traced_backward(rules, [typeof(x) for x in residuals]))
        if isinstance(traced, Failure):
            traced.again()
        if traced is not None:
            bwd, residuals = traced[0], [*traced[1], *residuals]
    saved = [level.lowered(x) for x in residuals]
    for k, above in enumerate(level.mapped):
        axis = above.trace.axis  # type: ignore[union-attr]
        mapped = Mapped(axis, above.dims, [d[k] for _, d, _ in lowered])
        bwd = batched_backward(bwd, mapped, [d[k] for _, d, _ in saved])
    primals, tangents = zip(*level.operands)
    values = [x for x, *_ in lowered]
    with set_trace(level.trace.parent):
        touts = linear_part(
            rules.name, bwd, [x for x, *_ in saved], primals, tangents, list(map(typeof, values)), rules.symbolic_zeros
        )
    return pytree.unflatten(rules.out_tree, [level.raised(x, t, d) for (x, d, _), t in zip(lowered, touts)])


def _traced(rules: _Rules, flat: Sequence[Any]) -> tuple[Any, Any, list[Any], list[Any]]:
    """Both rules traced to jaxprs, with the tracers that each closes over.

    Those of the forward rule become the last constants of the op, those of the backward rule the first.
    """
    every = [
        dtypes.is_inexact(typeof(x).dtype) for x in flat
    ]  # traced once for all uses, whichever arguments they differentiate
    fwd_jaxpr, more, _ = closed_call(lambda *leaves: rules.forward(leaves, every), flat, rules.name)
    count = rules.num_residuals
    backward, last = _traced_backward(rules, fwd_jaxpr.out_avals[:count])

    def forward(operands: Sequence[Any], perturbed: Sequence[bool]) -> tuple[Sequence[Any], Sequence[Any]]:
        outs = eval_jaxpr(fwd_jaxpr, fwd_jaxpr.consts, *operands[len(operands) - len(flat) - len(more) :])
        return [*operands[: len(last)], *outs[:count]], outs[count:]

    return forward, backward, more, last


def _traced_backward(rules: _Rules, residuals: Sequence[Any]) -> tuple[Any, list[Any]]:
    """The backward rule traced to a jaxpr for residuals of these types, and the tracers that it closes over.

    The traced rule takes those before the residuals.
    """
    out_avals = rules.out_avals or ()
    count, inexact = len(residuals), [dtypes.is_inexact(a.dtype) for a in out_avals]
    given: list[bool] = []

    def back(*leaves: Any) -> list[Any]:
        cts = iter(leaves[count:])
        in_cts = rules.backward(leaves[:count], [next(cts) if i else Zero(a) for i, a in zip(inexact, out_avals)])
        given[:] = [ct is not None for ct in in_cts]
        return [ct for ct in in_cts if ct is not None]

    stand_ins = [*map(Stand, residuals), *(Stand(a.strong()) for a, i in zip(out_avals, inexact) if i)]
    jaxpr, closed, _ = closed_call(back, stand_ins, rules.name)

    def backward(values: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        arrived = [materialize(ct) for ct, i in zip(cts, inexact) if i]
        in_cts = iter(eval_jaxpr(jaxpr, jaxpr.consts, *values, *arrived))
        return [next(in_cts) if g else None for g in given]

    return backward, closed


@dataclass
class _Rules:
    """The user's rules as functions of flat values; checks their results."""

    fun: Callable[..., Any]
    fwd: Callable[..., Any]
    bwd: Callable[..., Any]
    static: dict[int, Any]
    count: int
    in_tree: Any
    symbolic_zeros: bool = False
    in_avals: Sequence[Any] = ()
    #: structure and types of the function's results if it has been traced, else of the forward rule's
    out_tree: Any = None
    out_avals: Sequence[Any] | None = None
    residual_tree: Any = None

    @property
    def name(self) -> str:
        return name_of(self.fun)

    @property
    def num_residuals(self) -> int:
        return self.residual_tree.num_leaves

    def forward(self, operands: Sequence[Any], perturbed: Sequence[bool]) -> tuple[Sequence[Any], Sequence[Any]]:
        if self.symbolic_zeros:
            operands = [CustomVJPPrimal(x, p) for x, p in zip(operands, perturbed)]
        result = with_static(self.fwd, self.static, self.count, self.in_tree)(*operands)
        if not is_pair(result):
            raise DifferentiationError(
                f"custom_vjp {self.name}: the forward rule must return a pair (output, residuals), got {shown(result)}"
            )
        out, residuals = result
        outs, out_tree = pytree.flatten(out)
        self.out_tree = self.out_tree or out_tree
        if out_tree != self.out_tree:
            raise DifferentiationError(
                f"custom_vjp {self.name}: the forward rule returns output structure {pytree.show(out_tree)}, the "
                f"function {pytree.show(self.out_tree)}"
            )
        rule = f"custom_vjp {self.name}: the forward rule returns"
        avals = types_of(outs, lambda i: f"{rule} output{pytree.paths(out)[i]}, which is no array")
        for i, (got, want) in enumerate(zip(avals, self.out_avals or ())):
            if got.shape != want.shape or (got.dtype != want.dtype and not got.weak_type):
                raise DifferentiationError(
                    f"{rule} output{pytree.paths(out)[i]} of type {got}, the function {want}; they must be equal"
                )
        leaves, self.residual_tree = pytree.flatten(residuals)
        types_of(leaves, lambda i: f"{rule} residuals{pytree.paths(residuals)[i]}, which is no array")
        return leaves, outs

    def backward(self, residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        saved = pytree.unflatten(self.residual_tree, residuals)
        static = [self.static[i] for i in sorted(self.static)]
        if not self.symbolic_zeros:
            cts = list(map(tangent_of, self.out_avals or (), cts))
        in_cts = self.bwd(*static, saved, pytree.unflatten(self.out_tree, cts))
        arguments = self.in_tree.children()
        if not isinstance(in_cts, (tuple, list)) or len(in_cts) != len(arguments):
            raise DifferentiationError(
                f"custom_vjp {self.name}: the backward rule must return a tuple with one cotangent for each of the "
                f"{len(arguments)} differentiable arguments ({', '.join(self._roots())}), got {shown(in_cts)}"
            )
        flat: list[Any] = []
        for number, (ct, tree) in enumerate(zip(in_cts, arguments)):
            try:
                flat += pytree.broadcast_prefix(ct, pytree.outline(tree), "a cotangent", _is_zero)
            except ArgumentError:
                got = pytree.structure(ct, is_leaf=_is_zero)
                where = pytree.difference(tree, got, exact=True)
                raise DifferentiationError(
                    f"custom_vjp {self.name}: the backward rule's cotangent of argument {self._roots()[number]} has "
                    f"structure {pytree.show(got)}, the argument {pytree.show(tree)} ({where}); None may stand for a "
                    "whole argument or a part of it"
                ) from None
        return [self._checked(i, ct, aval) for i, (ct, aval) in enumerate(zip(flat, self.in_avals))]

    def _arguments(self) -> tuple[Any, ...]:
        """The outlines of the differentiable arguments."""
        return pytree.outline(self.in_tree)

    def _roots(self) -> list[str]:
        """The names of the differentiable arguments."""
        return leaf_names(self.fun, [0] * len(self._arguments()), {}, self.static)

    def _checked(self, number: int, ct: Any, aval: Any) -> Any:
        if _is_zero(ct) or not dtypes.is_inexact(aval.dtype):
            return None
        (got,) = types_of(
            [ct],
            lambda _: (
                f"custom_vjp {self.name}: the backward rule's cotangent of argument {self._leaf(number)} is no array"
            ),
        )
        if dtypes.is_float(got.dtype) or (dtypes.is_complex(got.dtype) and dtypes.is_complex(aval.dtype)):
            ct, got = convert(ct, aval.dtype), got.update(dtype=aval.dtype)  # rules may compute in another dtype
        fits = got.weak_type and dtypes.is_complex(aval.dtype) >= dtypes.is_complex(got.dtype)
        if got.shape != aval.shape or (got.dtype != aval.dtype and not fits):
            raise TangentMismatchError(
                f"custom_vjp {self.name}: the backward rule returned a cotangent of type {got} for argument "
                f"{self._leaf(number)} of type {aval}; they must be equal"
            )
        return ct

    def _leaf(self, number: int) -> str:
        """The name of a leaf of the differentiable arguments."""
        return leaf_names(self.fun, self._arguments(), {}, self.static)[number]
