"""Whether a function of JAX has rules for its derivative or batched form, which its StableHLO does not contain."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

#: JAX's primitives whose derivative is not that of the operations they are lowered to: those with rules of users, those
#: lowered to library kernels, and those lowered to loops that end at convergence
_DIFFERENTIATED = {
    "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_lin", "custom_linear_solve", "linear_call",
    "stop_gradient", "cholesky", "eig", "eigh", "householder_product", "lu", "qr", "svd", "triangular_solve",
    "tridiagonal_solve", "igamma", "igammac", "random_gamma", "regularized_incomplete_beta",
}  # fmt: skip
_CLOSING = {"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}
#: JAX's primitives whose batched form is not that of the operations they are lowered to
_BATCHED = {"custom_vmap_call", "pure_callback", "pallas_call"}


def has_rules(jaxpr: Any) -> bool:
    """Whether a jaxpr of JAX has primitives whose derivative does not follow from the StableHLO."""
    return any(p.name in _DIFFERENTIATED or _is_of_elsewhere(p) for p in (e.primitive for e in _eqns(jaxpr)))


def has_batching_rules(jaxpr: Any) -> bool:
    """Whether a jaxpr of JAX has primitives whose batched form does not follow from the StableHLO."""
    return any(p.name in _BATCHED or _is_of_elsewhere(p) for p in (e.primitive for e in _eqns(jaxpr)))


def has_backward_rules(jaxpr: Any) -> bool:
    """Whether a jaxpr of JAX calls a function with a ``custom_vjp``."""
    return any(eqn.primitive.name.startswith("custom_vjp_call") for eqn in _eqns(jaxpr))


def has_rules_that_close_over_values(jaxpr: Any) -> bool:
    """Whether a jaxpr of JAX calls a function with rules of its user's that uses values from around it.

    Its rules may hold the tracers of these values, so they can only be run while the function itself is traced.
    """
    return any(eqn.params.get("num_consts") for eqn in _eqns(jaxpr) if eqn.primitive.name in _CLOSING)


def platforms_asked(jaxpr: Any) -> set[str]:
    """The platforms for which a jaxpr of JAX chooses functions of their own, or calls what was exported for several."""
    asked: set[str] = set()
    for eqn in _eqns(jaxpr):
        if eqn.primitive.name == "platform_index":
            asked.update(name for names in eqn.params["platforms"] for name in names or ())
        elif eqn.primitive.name == "call_exported":
            asked.update(eqn.params["exported"].platforms)
    return asked


def _is_of_elsewhere(primitive: Any) -> bool:
    """Whether a primitive was defined outside of JAX, as in equinox and lineax; it then has rules of its own."""
    made_by = primitive.impl
    while isinstance(made_by, partial):
        made_by = made_by.func
    return (getattr(made_by, "__module__", None) or "jax").partition(".")[0] not in ("jax", "jaxlib")


def _eqns(jaxpr: Any) -> Iterator[Any]:
    seen: set[int] = set()
    pending = [jaxpr]
    while pending:
        inner = getattr(pending[-1], "jaxpr", pending[-1])
        pending.pop()
        if id(inner) in seen:
            continue
        seen.add(id(inner))
        for eqn in inner.eqns:
            yield eqn
            pending += [found for value in eqn.params.values() for found in _jaxprs(value)]


def _jaxprs(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for each in value:
            yield from _jaxprs(each)
    elif hasattr(value, "eqns") or hasattr(getattr(value, "jaxpr", None), "eqns"):
        yield value
