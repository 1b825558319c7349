"""Derivatives and batched forms of JAX's functions by the rules that they bring along, which StableHLO does not hold.

What ``jax.custom_vjp``, ``custom_jvp`` and ``stop_gradient`` say is in the function alone: its forward with what the
backward needs, and the backward, are programs of their own, made by ``jax.vjp``. So is the batched form of a function
that says one (``custom_vmap``), by ``jax.vmap``. Being functions of JAX's, they are differentiated and batched in the
same way again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import jax

from meshwright.core import dtypes
from meshwright.core.source import warn
from meshwright.errors import DerivativeWarning, DifferentiationError
from meshwright.ir.tracing import typeof
from meshwright.transforms.autodiff import jvp
from meshwright.transforms.custom_jvp import custom_jvp
from meshwright.transforms.custom_vjp import custom_vjp
from meshwright.transforms.custom_vmap import custom_vmap


def of_operations(plain: Callable[..., list[Any]], leaves: Sequence[Any]) -> list[Any]:
    """``plain(*leaves)``, whose derivative is that of its operations; it says so when it is asked for."""
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
    """A function of JAX's, from arrays to a list of them, as a function of ours with JAX's derivative.

    ``import_`` makes functions of ours of JAX's. With ``batches``, its batched form is JAX's, too.
    """

    def __init__(self, function: Callable[..., list[Any]], import_: Callable[..., Any], batches: bool = False) -> None:
        self.function = function
        self.import_ = import_
        self.batches = batches

    def __call__(self, plain: Callable[..., list[Any]], leaves: Sequence[Any]) -> list[Any]:
        """What ``plain``, the program of the function, makes of ``leaves``."""
        plain = self._batched(plain) if self.batches else plain
        moving = tuple(i for i, x in enumerate(leaves) if dtypes.is_inexact(typeof(x).dtype))
        if not moving:
            return plain(*leaves)
        call = custom_vjp(plain)
        call.defvjp(*self._rules(moving, len(leaves)))
        return list(call(*leaves))

    def _batched(self, plain: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        call = custom_vmap(plain)

        def rule(axis_size: int, in_batched: Sequence[bool], *args: Any) -> tuple[list[Any], list[bool]]:
            axes = tuple(0 if mapped else None for mapped in in_batched)
            outs = list(self._mapped(axes, axis_size)(*args))
            return outs, [True] * len(outs)

        call.def_vmap(rule)
        return call

    @cache  # noqa: B019 - as long as the program lives
    def _mapped(self, axes: tuple[int | None, ...], size: int) -> Any:
        return self.import_(jax.vmap(self.function, in_axes=axes, axis_size=size))

    def _rules(self, moving: tuple[int, ...], count: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
        forward, backward = self._programs(moving)
        trees: list[Any] = []

        def fwd(*leaves: Any) -> tuple[list[Any], list[Any]]:
            outs, pulled = forward(*leaves)
            kept, tree = jax.tree_util.tree_flatten(pulled)
            trees.append(tree)
            return outs, kept

        def bwd(kept: Any, cotangents: Any) -> tuple[Any, ...]:
            wanted = [ct for ct in cotangents if dtypes.is_inexact(typeof(ct).dtype)]
            grads = iter(backward(jax.tree_util.tree_unflatten(trees[-1], kept), wanted))
            return tuple(next(grads) if i in moving else None for i in range(count))

        return fwd, bwd

    @cache  # noqa: B019 - as long as the program lives
    def _programs(self, moving: tuple[int, ...]) -> tuple[Any, Any]:
        def forward(*leaves: Any) -> tuple[list[Any], Any]:
            def of_moving(*values: Any) -> tuple[list[Any], list[Any]]:
                full = list(leaves)
                for i, x in zip(moving, values):
                    full[i] = x
                outs = self.function(*full)
                return [y for y in outs if jax.numpy.issubdtype(y.dtype, jax.numpy.inexact)], outs

            with _in_our_words():
                _, pulled, outs = jax.vjp(of_moving, *(leaves[i] for i in moving), has_aux=True)
            return outs, pulled

        def backward(pulled: Any, cotangents: Any) -> Any:
            return pulled(cotangents)

        return self.import_(forward), self.import_(backward)


@contextmanager
def _in_our_words() -> Iterator[None]:
    """Within, JAX differentiates; what it has no derivative of is an error of ours.

    Raises:
      DifferentiationError: says what JAX said.
    """
    try:
        yield
    except (NotImplementedError, ValueError) as error:
        raise DifferentiationError(f"from_jax: JAX does not differentiate this function ({error})") from error
