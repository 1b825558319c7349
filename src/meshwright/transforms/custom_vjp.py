"""``custom_vjp``: functions with a forward and a backward rule of the user's."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.core import dtypes, pytree
from meshwright.core.signature import positions
from meshwright.errors import ArgumentError, ArgumentTypeError, DifferentiationError
from meshwright.ir.op import Zero
from meshwright.ir.state import STATE
from meshwright.ir.tracing import EVAL, eval_jaxpr, typeof
from meshwright.ops.custom_vjp import CustomVjpCall
from meshwright.transforms.autodiff import closed_call, name_of, require_callable
from meshwright.transforms.linearized import tangent_of


@dataclass(frozen=True)
class CustomVJPPrimal:
    """An argument of a forward rule with symbolic zeros: its value, and whether it is differentiated."""

    value: Any
    perturbed: bool


class custom_vjp:
    """A function with a reverse-mode derivative rule of its own.

    ``fwd(*args)`` returns the output and residuals; ``bwd(residuals, cotangent)`` a tuple with one cotangent an
    argument (None for zero). Arguments of ``nondiff_argnums`` and ``nondiff_argnames`` are Python values: they come
    first in ``bwd``, before the residuals.

    Raises:
      ArgumentError: an argument is named that ``fun`` has not. ArgumentTypeError: ``fun`` is no function.

    Example::

        @custom_vjp
        def clip_gradient(x, limit): return x

        clip_gradient.defvjp(
            lambda x, limit: (x, limit), lambda limit, g: (mnp.clip(g, -limit, limit), None)
        )
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        nondiff_argnums: Sequence[int] = (),
        nondiff_argnames: Sequence[str] = (),
    ) -> None:
        require_callable(fun, "custom_vjp")
        functools.update_wrapper(self, fun)
        self.fun = fun
        self.nondiff_argnums = nondiff_numbers(fun, nondiff_argnums, nondiff_argnames, "custom_vjp")
        self.fwd: Callable[..., Any] | None = None
        self.bwd: Callable[..., Any] | None = None
        self.symbolic_zeros = False

    def defvjp(
        self,
        fwd: Callable[..., Any],
        bwd: Callable[..., Any],
        symbolic_zeros: bool = False,
        optimize_remat: bool = False,
    ) -> None:
        """Set the rules.

        ``optimize_remat`` is a hint of JAX's signature, that under ``checkpoint`` the function itself may stand for
        ``fwd`` where no residuals are needed. It changes nothing here: what nobody needs is removed from programs.

        With ``symbolic_zeros``, ``fwd`` gets objects with ``value`` and ``perturbed`` (whether a derivative by it is
        wanted) in place of arrays, and ``bwd`` a ``SymbolicZero`` for each cotangent that is known to be zero.
        """
        require_callable(fwd, "custom_vjp.defvjp fwd")
        require_callable(bwd, "custom_vjp.defvjp bwd")
        self.fwd, self.bwd, self.symbolic_zeros = fwd, bwd, symbolic_zeros

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = name_of(self.fun)
        if self.fwd is None or self.bwd is None:
            raise ArgumentError(f"custom_vjp {name}: no rules are set; call .defvjp(fwd, bwd) first")
        args = positional(self.fun, args, kwargs)
        if STATE.trace is EVAL:
            return self.fun(*args)
        static = {i: args[i] for i in self.nondiff_argnums}
        dynamic = tuple(a for i, a in enumerate(args) if i not in static)
        flat, in_tree = pytree.flatten(dynamic)
        call = with_static(self.fun, static, len(args), in_tree)
        jaxpr, consts, out_tree = closed_call(call, flat, name)
        avals = [typeof(x) for x in flat]
        rules = _Rules(
            name, self.fwd, self.bwd, static, len(args), in_tree, out_tree, avals, jaxpr.out_avals, self.symbolic_zeros
        )  # fmt: skip
        fwd: Callable[..., Any] = rules.forward
        if consts:
            # The rule may use the same traced values: it is traced too, and they become operands of both.
            every = [True] * len(flat)  # once for all uses, whatever of it they differentiate
            fwd_jaxpr, more, _ = closed_call(lambda *leaves: rules.forward(leaves, every), flat, name)
            fwd = _traced(fwd_jaxpr, len(consts), len(more), rules)
            inner = jaxpr.jaxpr
            extra = fwd_jaxpr.jaxpr.invars[: len(more)]
            first, rest = inner.invars[: len(consts)], inner.invars[len(consts) :]
            jaxpr = jaxpr.replace(jaxpr=inner.replace(invars=[*first, *extra, *rest]))
            consts = [*consts, *more]
        n = len(consts)

        def bwd(residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
            return [None] * n + rules.backward(residuals, cts)

        op = CustomVjpCall(name, jaxpr, fwd, bwd, n, self.symbolic_zeros)
        return pytree.unflatten(out_tree, op.bind(*consts, *flat))


def nondiff_numbers(
    fun: Callable[..., Any], numbers: Sequence[int], names: Sequence[str], where: str
) -> tuple[int, ...]:
    """The arguments that are Python values, by number, in order.

    Raises:
      ArgumentError: ``fun`` has no such argument.
    """
    numbers = (numbers,) if isinstance(numbers, int) else tuple(numbers)
    names = (names,) if isinstance(names, str) else tuple(names)
    if not names:
        return numbers
    for name in names:
        if not positions(fun, [name]):
            raise ArgumentError(f"{where} {name_of(fun)}: nondiff_argnames={names} names {name!r}, which it has not")
    return tuple(sorted({*numbers, *positions(fun, names)}))


def positional(
    fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], where: str = "custom_vjp"
) -> tuple[Any, ...]:
    """All arguments by position, defaults filled in.

    Raises:
      ArgumentTypeError: keyword-only arguments.
    """
    try:
        bound = inspect.signature(fun).bind(*args, **kwargs)
    except (ValueError, TypeError):
        if not kwargs:
            return args
        raise
    bound.apply_defaults()
    if bound.kwargs:
        raise ArgumentTypeError(
            f"{where} {name_of(fun)}: arguments {sorted(bound.kwargs)} are keyword-only; rules take arguments by "
            "position"
        )
    return bound.args


def with_static(fun: Callable[..., Any], static: dict[int, Any], count: int, in_tree: Any) -> Callable[..., Any]:
    """``fun`` as a function of the leaves of its other arguments, which have structure ``in_tree``."""

    def call(*leaves: Any) -> Any:
        given = iter(pytree.unflatten(in_tree, leaves))
        return fun(*(static[i] if i in static else next(given) for i in range(count)))

    return call


def _traced(jaxpr: Any, before: int, count: int, rules: _Rules) -> Callable[..., Any]:
    """The forward rule as its jaxpr: of both sets of constants and the arguments."""

    def forward(operands: Sequence[Any], perturbed: Sequence[bool]) -> tuple[Sequence[Any], Sequence[Any]]:
        outs = eval_jaxpr(jaxpr, (), *operands[before:])
        return outs[: rules.num_residuals], outs[rules.num_residuals :]

    return forward


@dataclass
class _Rules:
    """The user's rules as functions of flat values, with checks of what they return."""

    name: str
    fwd: Callable[..., Any]
    bwd: Callable[..., Any]
    static: dict[int, Any]
    count: int
    in_tree: Any
    out_tree: Any
    in_avals: Sequence[Any]
    out_avals: Sequence[Any]
    symbolic_zeros: bool = False
    residual_tree: Any = None

    @property
    def num_residuals(self) -> int:
        return self.residual_tree.num_leaves

    def forward(self, operands: Sequence[Any], perturbed: Sequence[bool]) -> tuple[Sequence[Any], Sequence[Any]]:
        if self.symbolic_zeros:
            operands = [CustomVJPPrimal(x, p) for x, p in zip(operands, perturbed)]
        result = with_static(self.fwd, self.static, self.count, self.in_tree)(*operands)
        if not isinstance(result, tuple) or len(result) != 2:
            raise DifferentiationError(
                f"custom_vjp {self.name}: the forward rule must return a pair (output, residuals), got {result!r}"
            )
        out, residuals = result
        outs, out_tree = pytree.flatten(out)
        if out_tree != self.out_tree:
            raise DifferentiationError(
                f"custom_vjp {self.name}: the forward rule returns output structure {pytree.show(out_tree)}, the "
                f"function {pytree.show(self.out_tree)}"
            )
        for i, (x, want) in enumerate(zip(outs, self.out_avals)):
            got = typeof(x)
            if got.shape != want.shape or (got.dtype != want.dtype and not got.weak_type):
                raise DifferentiationError(
                    f"custom_vjp {self.name}: the forward rule returns output{pytree.paths(out)[i]} of type {got}, the "
                    f"function {want}; they must be equal"
                )
        leaves, self.residual_tree = pytree.flatten(residuals)
        return leaves, outs

    def backward(self, residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        saved = pytree.unflatten(self.residual_tree, residuals)
        static = [self.static[i] for i in sorted(self.static)]
        if not self.symbolic_zeros:
            cts = list(map(tangent_of, self.out_avals, cts))
        found = self.bwd(*static, saved, pytree.unflatten(self.out_tree, cts))
        arguments = self.in_tree.children()
        if not isinstance(found, (tuple, list)) or len(found) != len(arguments):
            raise DifferentiationError(
                f"custom_vjp {self.name}: the backward rule must return a tuple with one cotangent for each of the "
                f"{len(arguments)} differentiable arguments, got {found!r}"
            )
        flat: list[Any] = []
        for number, (ct, tree) in enumerate(zip(found, arguments)):
            if ct is None:
                flat += [None] * tree.num_leaves
                continue
            leaves, got = pytree.flatten(ct, is_leaf=lambda x: x is None or isinstance(x, Zero))
            if got != tree:
                where = pytree.difference(tree, got, exact=True)
                raise DifferentiationError(
                    f"custom_vjp {self.name}: the backward rule's cotangent of argument {number} has structure "
                    f"{pytree.show(got)}, the argument {pytree.show(tree)} ({where}); None may stand for a whole "
                    "argument or a leaf"
                )
            flat += leaves
        return [self._checked(i, ct, aval) for i, (ct, aval) in enumerate(zip(flat, self.in_avals))]

    def _checked(self, number: int, ct: Any, aval: Any) -> Any:
        if ct is None or isinstance(ct, Zero) or not dtypes.is_inexact(aval.dtype):
            return None
        got = typeof(ct)
        if got.shape != aval.shape or (got.dtype != aval.dtype and not got.weak_type):
            raise DifferentiationError(
                f"custom_vjp {self.name}: the backward rule returned a cotangent of type {got} for argument leaf "
                f"{number} of type {aval}; they must be equal"
            )
        return ct
