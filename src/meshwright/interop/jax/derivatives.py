"""Derivatives and batched forms of JAX's functions by JAX's own rules, which StableHLO does not contain.

The rules given to ``jax.custom_vjp``, ``custom_jvp`` and ``stop_gradient`` exist in the JAX function only. So its
linearization, its pushforward and its pullback are converted as programs of their own, made by ``jax.linearize``,
``jax.jvp`` and ``jax.linear_transpose``. The batched form of a function with ``custom_vmap`` is made by ``jax.vmap`` in
the same way. As these programs are JAX functions too, they can be differentiated and batched again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import jax
import numpy as np

from meshwright.core import dtypes
from meshwright.core.source import warn
from meshwright.errors import (
    DerivativeWarning,
    DifferentiationError,
    ImportProgramError,
    MeshwrightError,
    RuleError,
)
from meshwright.ir.op import Zero
from meshwright.ir.tracing import typeof
from meshwright.ops.control.custom_vjp import CustomLin
from meshwright.transforms.autodiff import jvp
from meshwright.transforms.custom_jvp import custom_jvp
from meshwright.transforms.custom_vmap import custom_vmap


def of_operations(plain: Callable[..., list[Any]], leaves: Sequence[Any]) -> list[Any]:
    """``plain(*leaves)``, with a warning when it is differentiated: the derivative is that of its operations.

    Warns:
      DerivativeWarning: a derivative is taken, and rules of JAX's functions are not part of it.
    """
    call = custom_jvp(plain)

    def derivative(primals: Any, tangents: Any) -> Any:
        warn(
            "from_jax: the derivative of a lowered or exported program is that of its operations: rules of JAX's "
            "functions (custom_vjp, custom_jvp, stop_gradient, relu) are not in it. Give from_jax the function, or an "
            "export that is serialized with vjp_order=1",
            DerivativeWarning,
        )
        return jvp(plain, primals, tangents)

    call.defjvp(derivative)
    return list(call(*leaves))


class ByRules:
    """Evaluates the converted program of a JAX function with JAX's derivative, and with ``batches`` its batched form.

    ``function`` is the JAX function, from arrays to a list of arrays; ``import_`` converts JAX's functions to ours. The
    residuals of the linearized function have no derivative: second derivatives are those of the function itself. If it
    ``has_backward_rules``, which need not be linear in cotangents, residuals have one where JAX has it, as there: so
    such rules get the sum of all cotangents. With ``closes``, rules within the function hold tracers: they are run
    while it is linearized.
    """

    def __init__(
        self, function: Callable[..., list[Any]], import_: Callable[..., Any], batches: bool = False,
        closes: bool = False, has_backward_rules: bool = False,
    ) -> None:  # fmt: skip
        self.function = function
        self.import_ = import_
        self.batches = batches
        self.closes = closes
        self.has_backward_rules = has_backward_rules
        self._mapped, self._programs = cache(self._map), cache(self._convert)  # as long as the program lives

    def __call__(self, plain: Callable[..., list[Any]], leaves: Sequence[Any]) -> list[Any]:
        """``plain(*leaves)``, where ``plain`` is the converted program of the function."""
        plain = self._batched(plain) if self.batches else plain
        if not any(dtypes.is_inexact(typeof(x).dtype) for x in leaves):
            return plain(*leaves)
        call = custom_jvp(plain)
        call.defjvp(self._derivative, symbolic_zeros=True)
        return list(call(*leaves))

    def _batched(self, plain: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        call = custom_vmap(plain)

        def rule(axis_size: int, in_batched: Sequence[bool], *args: Any) -> tuple[list[Any], list[bool]]:
            axes = tuple(0 if mapped else None for mapped in in_batched)
            outs = list(self._mapped(axes, axis_size)(*args))
            return outs, [True] * len(outs)

        call.def_vmap(rule)
        return call

    def _map(self, axes: tuple[int | None, ...], size: int) -> Any:
        mapped = self.import_(jax.vmap(self.function, in_axes=axes, axis_size=size))
        return _in_our_words(mapped, "batched form", "lax.map", "jax.custom_batching.custom_vmap", RuleError)

    def _derivative(self, primals: Any, tangents: Any) -> tuple[list[Any], list[Any]]:
        """The ``custom_jvp`` rule: the results, and tangents by an op that runs JAX's pushforward or its pullback.

        These are by the leaves that have tangents: by others, as those that a rule closes over, JAX may have none.

        Raises:
          DifferentiationError: JAX has none by those that have.
        """
        moving = tuple(i for i, t in enumerate(tangents) if not isinstance(t, Zero) and t.dtype != dtypes.float0)
        linearized, push, pull_by = self._programs(moving)
        try:
            outs, linear = linearized(*primals)
        except ImportProgramError as error:
            if not self.closes:
                raise
            raise DifferentiationError(
                "from_jax: JAX has no derivative of this function by a closed-over value of a custom_vjp or "
                "custom_jvp, as the rule does not say what it is; pass the value to that function as an argument"
            ) from error
        kept, tree = jax.tree_util.tree_flatten(linear)
        n = len(primals)

        def pushed(saved: Any, tangents: Any) -> list[Any]:
            return list(push(saved[:n], *tangents))

        def pulled(saved: Any, cotangents: Any) -> list[Any]:
            wanted = [ct for ct, a in zip(cotangents, types) if dtypes.is_inexact(a.dtype)]
            by = tuple(i for i, ct in enumerate(wanted) if not isinstance(ct, Zero))
            linear = jax.tree_util.tree_unflatten(tree, saved[n:])
            return list(pull_by(by)(saved[:n], [wanted[i] for i in by], linear)) if by else [None] * len(moving)

        types, saved = tuple(typeof(y).strong() for y in outs), [*primals, *kept]
        given = [*saved, *(tangents[i] for i in moving)]
        every = (True,) * len(moving)
        op = CustomLin("from_jax", pulled, len(saved), every, types, True, pushed, tuple(map(typeof, given)))
        touts = iter(op.bind(*given))
        return outs, [next(touts) if dtypes.is_inexact(a.dtype) else np.zeros(a.shape, dtypes.float0) for a in types]

    def _convert(self, moving: tuple[int, ...]) -> tuple[Any, Any, Callable[[tuple[int, ...]], Any]]:
        """The converted programs for derivatives by the arguments ``moving``.

        These are the linearized function (to results and a linear function, a pytree of residuals), the pushforward
        ``push(leaves, *tangents)``, and for the numbers of some inexact results the pullback ``pull(leaves, cotangents,
        linear)`` by these. Others have no cotangents, so that backward rules which only they need are not run.
        """
        types: list[Any] = []
        cotangent_types: list[Any] = []
        residual_types: list[Any] = []

        def linearized(*leaves: Any) -> tuple[list[Any], Any]:
            given = [leaves[i] for i in moving]
            types[:] = map(jax.typeof, given)
            outs, linear = linearization(leaves, given)
            inexact = (jax.typeof(y) for y in outs if _is_inexact(y))
            cotangent_types[:] = [t.to_ct_aval() for t in inexact]
            residual_types[:] = map(jax.typeof, jax.tree_util.tree_leaves(linear))
            return outs, linear

        def linearization(leaves: Sequence[Any], given: Sequence[Any]) -> tuple[list[Any], Any]:
            of_moving = partial(_of_moving, self.function, moving, leaves)
            try:
                moved, linear, outs = jax.linearize(of_moving, *given, has_aux=True)
                if self.closes:
                    linear = _hoisted(partial(transposed, linear), [jax.typeof(y) for y in moved])
            except Exception:  # JAX may have forward mode only, or neither; the error is raised by the one that is used
                linear = jax.tree_util.Partial(push, leaves)
                return self.function(*leaves), jax.tree_util.Partial(transposed, linear) if self.closes else linear
            return outs, linear

        def push(leaves: Any, *tangents: Any) -> Any:
            given, of_moving = tuple(leaves[i] for i in moving), partial(_of_moving, self.function, moving, leaves)
            return jax.jvp(of_moving, given, tangents, has_aux=True)[1]

        def transposed(linear: Any, cotangents: Any, by: Sequence[int] | None = None) -> Any:
            def some(*tangents: Any) -> Any:
                outs = linear(*tangents)
                return outs if by is None else [outs[i] for i in by]

            return jax.linear_transpose(some, *types)(cotangents)

        def pull(linear: Any, cotangents: Any, by: Sequence[int]) -> Any:
            kept, tree = jax.tree_util.tree_flatten(linear)
            linear = jax.tree_util.tree_unflatten(tree, map(_typed_alike, kept, residual_types))
            cotangents = [_typed_alike(ct, cotangent_types[i]) for i, ct in zip(by, cotangents)]
            if not self.closes:
                return transposed(linear, cotangents, by)
            given = dict(zip(by, cotangents))  # it was transposed when it was linearized, by all of them
            return linear([given[i] if i in given else _zeros(t) for i, t in enumerate(cotangent_types)])

        def pull_of(leaves: Any, cotangents: Any, by: Sequence[int]) -> Any:
            def of_moving(*values: Any) -> Any:
                outs, every = _of_moving(self.function, moving, leaves, *values)
                return [outs[i] for i in by], every

            pullback = jax.vjp(of_moving, *(leaves[i] for i in moving), has_aux=True)[1]
            return pullback([_typed_alike(ct, cotangent_types[i]) for i, ct in zip(by, cotangents)])

        @cache
        def has_those_of_residuals(*leaves: Any) -> bool:
            if not self.has_backward_rules:
                return False
            outs, linear = jax.eval_shape(linearized, *leaves)
            cotangents = [y for y in outs if _is_inexact(y)]
            of_all = partial(pull, by=range(len(cotangents)))
            return _has_pullback(linearized, leaves) and _has_pullback(of_all, (linear, cotangents))

        @cache
        def pull_by(by: tuple[int, ...]) -> Callable[..., Any]:
            pulled = _with_derivative_of(partial(pull_of, by=by), partial(pull, by=by), has_those_of_residuals)
            return _in_our_words(self.import_(pulled), "reverse-mode derivative", "jvp or jacfwd", "jax.custom_vjp")

        return (
            self.import_(_of_results_alone(linearized, has_those_of_residuals)),
            _in_our_words(self.import_(push), "forward-mode derivative", "grad, vjp or jacrev", "jax.custom_jvp"),
            pull_by,
        )


def _zeros(type_: Any) -> Any:
    return _typed_alike(jax.numpy.zeros(type_.shape, type_.dtype), type_)


def _typed_alike(x: Any, like: Any) -> Any:
    """``x`` with the sharding that the type ``like`` states along explicit axes, which programs do not pass on."""
    return x if jax.typeof(x).sharding == like.sharding else jax.sharding.reshard(x, like.sharding)


def _shape(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=jax.typeof(x).sharding)


def _flattened(linearized: tuple[list[Any], Any]) -> tuple[list[Any], list[Any]]:
    return linearized[0], jax.tree_util.tree_leaves(linearized[1])


def _is_inexact(x: Any) -> bool:
    return bool(jax.numpy.issubdtype(x.dtype, jax.numpy.inexact))


def _has_pullback(function: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether JAX has a derivative of all results of ``function(*args)`` by all of ``args``, given by their types."""
    leaves, tree = jax.tree_util.tree_flatten(args)
    moving = tuple(i for i, x in enumerate(leaves) if _is_inexact(x))

    def of_leaves(*leaves: Any) -> list[Any]:
        return jax.tree_util.tree_leaves(function(*jax.tree_util.tree_unflatten(tree, leaves)))

    def pulled(*leaves: Any) -> Any:
        of_moving = partial(_of_moving, of_leaves, moving, leaves)
        outs, pullback, _ = jax.vjp(of_moving, *(leaves[i] for i in moving), has_aux=True)
        return pullback(outs)

    try:
        jax.eval_shape(pulled, *leaves)
    except Exception:  # of any rule, of anyone's
        return False
    return True


def _of_results_alone(
    linearized: Callable[..., Any], has_those_of_residuals: Callable[..., bool]
) -> Callable[..., Any]:
    """``linearized`` with zero derivatives of the residuals. That of the results is of what is evaluated to linearize
    them: of a forward rule, where JAX's function has one.

    The residuals need none, as the derivative of the linear function is taken by the leaves
    (:func:`_with_derivative_of`). JAX may not have any: rules of solvers do not differentiate their factorization.
    Where ``has_those_of_residuals(*types)``, it is by the residuals, which have theirs.
    """
    trees: list[Any] = []

    @jax.custom_jvp
    def flat(*leaves: Any) -> tuple[list[Any], list[Any]]:
        outs, linear = linearized(*leaves)
        kept, tree = jax.tree_util.tree_flatten(linear)
        trees[:] = [tree]
        return outs, kept

    @partial(flat.defjvp, symbolic_zeros=True)
    def derivative(leaves: Any, tangents: Any) -> Any:
        if has_those_of_residuals(*map(_shape, leaves)):
            return _jvp(lambda *leaves: _flattened(linearized(*leaves)), leaves, tangents)
        _, kept = flat(*leaves)
        outs, touts = _jvp(lambda *leaves: linearized(*leaves)[0], leaves, tangents)
        return (outs, kept), (touts, [_no_tangent(x) for x in kept])

    def unflattened(*leaves: Any) -> tuple[list[Any], Any]:
        outs, kept = flat(*leaves)
        return outs, jax.tree_util.tree_unflatten(trees[0], kept)

    return unflattened


def _jvp(function: Callable[..., Any], primals: Any, tangents: Any) -> Any:
    """``jax.jvp`` by the values whose tangents are not zeros by their type, as JAX may have no derivative by others."""
    leaves, tree = jax.tree_util.tree_flatten(primals)
    moving = {
        i: t
        for i, t in enumerate(jax.tree_util.tree_leaves(tangents))
        if not isinstance(t, jax.custom_derivatives.SymbolicZero)
    }

    def of_moving(*values: Any) -> Any:
        full = {**dict(enumerate(leaves)), **dict(zip(moving, values))}
        return function(*jax.tree_util.tree_unflatten(tree, full.values()))

    if not moving:
        outs = of_moving()
        return outs, jax.tree_util.tree_map(_no_tangent, outs)
    return jax.jvp(of_moving, tuple(leaves[i] for i in moving), tuple(moving.values()))


def _hoisted(function: Callable[..., Any], *types: Any) -> Any:
    """``function`` as a pytree of all values that it uses."""
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*types)
    return jax.tree_util.Partial(_Evaluated(closed.jaxpr, jax.tree_util.tree_structure(shapes)), closed.consts)


@dataclasses.dataclass(frozen=True)
class _Evaluated:
    jaxpr: Any
    out_tree: Any

    def __call__(self, consts: Sequence[Any], *args: Any) -> Any:
        outs = jax.core.eval_jaxpr(self.jaxpr, consts, *jax.tree_util.tree_leaves(args))
        return jax.tree_util.tree_unflatten(self.out_tree, outs)


def _no_tangent(x: Any) -> Any:
    return jax.custom_derivatives.SymbolicZero(jax.typeof(x).to_tangent_aval())


def _with_derivative_of(
    whole: Callable[..., Any], pull: Callable[..., Any], has_those_of_residuals: Callable[..., bool]
) -> Callable[..., Any]:
    """A function of ``(leaves, cotangents, linear)`` that computes ``pull(linear, cotangents)``.

    The value is the same as that of ``whole(leaves, cotangents)``, whose derivative it has, unless
    ``has_those_of_residuals(*types)``.
    """

    @jax.custom_jvp
    def pulled(leaves: Any, cotangents: Any, linear: Any) -> Any:
        return pull(linear, cotangents)

    @partial(pulled.defjvp, symbolic_zeros=True)
    def derivative(primals: Any, tangents: Any) -> Any:
        if has_those_of_residuals(*map(_shape, primals[0])):
            return _jvp(lambda cotangents, linear: pull(linear, cotangents), primals[1:], tangents[1:])
        return pulled(*primals), _jvp(whole, primals[:2], tangents[:2])[1]

    return pulled


def _of_moving(
    function: Callable[..., list[Any]], moving: Sequence[int], leaves: Sequence[Any], *values: Any
) -> tuple[list[Any], list[Any]]:
    """The inexact results and all results of ``function(*leaves)``, with ``values`` for the leaves at ``moving``."""
    full = list(leaves)
    for i, x in zip(moving, values):
        full[i] = x
    outs = function(*full)
    return [y for y in outs if _is_inexact(y)], outs


def _in_our_words(
    program: Any, what: str, others: str, rule: str, kind: type[MeshwrightError] = DifferentiationError
) -> Callable[..., Any]:
    """``program``, with an error of ours if JAX raises when the program is lowered, as it may lack a rule.

    ``what`` names the transformed program, ``others`` the alternatives to it, and ``rule`` the way to add a rule.

    Raises:
      DifferentiationError: JAX cannot transform the function; or the error class ``kind``.
    """

    def transformed(*args: Any) -> Any:
        try:
            program.lower(*args)
        except MeshwrightError:
            raise
        except Exception as error:
            why = str(error) or type(error).__name__
            raise kind(
                f"from_jax: JAX has no {what} of this function ({why}); use {others}, or give the function a rule by "
                f"{rule}"
            ) from error
        return program(*args)

    return transformed
