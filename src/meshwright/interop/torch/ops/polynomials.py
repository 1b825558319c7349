"""Orthogonal polynomials of any degree, by their recurrences."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from meshwright import lax
from meshwright import numpy as mnp
from meshwright.interop.torch.promotion import binary_of_floats, cast
from meshwright.interop.torch.registry import register

Function = Callable[..., Any]


def _chebyshev(k: Any, x: Any, p: Any, q: Any) -> Any:
    return 2 * x * q - p


#: by torch's names, of each family the polynomial of degree 1, and that of degree ``k + 1`` by those of degrees
#: ``k - 1`` and ``k``, ``p`` and ``q``
_FAMILIES: dict[str, tuple[Function, Function]] = {
    "chebyshev_polynomial_t": (lambda x: x, _chebyshev),
    "chebyshev_polynomial_u": (lambda x: 2 * x, _chebyshev),
    "chebyshev_polynomial_v": (lambda x: 2 * x - 1, _chebyshev),
    "chebyshev_polynomial_w": (lambda x: 2 * x + 1, _chebyshev),
    "hermite_polynomial_h": (lambda x: 2 * x, lambda k, x, p, q: 2 * (x * q - k * p)),
    "hermite_polynomial_he": (lambda x: x, lambda k, x, p, q: x * q - k * p),
    "laguerre_polynomial_l": (lambda x: 1 - x, lambda k, x, p, q: ((2 * k + 1 - x) * q - k * p) / (k + 1)),
    "legendre_polynomial_p": (lambda x: x, lambda k, x, p, q: ((2 * k + 1) * x * q - k * p) / (k + 1)),
}


def _polynomial(first: Function, following: Function, shift: bool, x: Any, n: Any) -> Any:
    """Of degree ``n``, cut off to an integer, at ``x``; 0 of a negative degree."""
    x, n = mnp.broadcast_arrays(2 * x - 1 if shift else x, n.astype(mnp.int32))
    if not x.size:
        return x

    def step(k: Any, pair: tuple[Any, Any]) -> tuple[Any, Any]:
        p, q = pair
        is_left = k < n
        return mnp.where(is_left, q, p), mnp.where(is_left, following(cast(k, x.dtype), x, p, q), q)

    one = mnp.ones_like(x)
    _, last = lax.fori_loop(1, mnp.max(n), step, (one, first(x)))
    return mnp.where(n < 1, mnp.where(n < 0, 0, one), last)


def _rule(first: Function, following: Function, shift: bool = False) -> Function:
    at = binary_of_floats(partial(_polynomial, first, following, shift))
    return lambda x, n: at(x, n)


for _name, _family in _FAMILIES.items():
    register(f"aten.special_{_name}")(_rule(*_family))
    if _name.startswith("chebyshev"):
        register(f"aten.special_shifted_{_name}")(_rule(*_family, True))
