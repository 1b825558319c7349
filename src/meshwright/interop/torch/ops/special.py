"""Special functions (``torch.special``) of one element each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from meshwright import lax
from meshwright import numpy as mnp
from meshwright.interop.torch.ops.elementwise import clamp
from meshwright.interop.torch.promotion import binary_of_floats, of_floats, to_float
from meshwright.interop.torch.registry import register, rows
from meshwright.nn import activations
from meshwright.scipy import special


def digamma(x: Any) -> Any:
    """Its pole at 0 is of both signs."""
    return mnp.where(x == 0, mnp.copysign(mnp.inf, -x), lax.digamma(x))


def _with_poles(function: Callable[[Any], Any], q: Any, at_pole: Callable[[Any], Any]) -> Any:
    """``function(q)``; at integers that are not positive ``at_pole`` of the term that is infinite."""
    is_pole = (q <= 0) & (q == mnp.floor(q))
    term = 1 / mnp.where(is_pole, q - mnp.floor(q), 1)
    return mnp.where(is_pole, at_pole(term), function(mnp.where(is_pole, 1, q)))


def zeta(x: Any, q: Any) -> Any:
    """Hurwitz's function."""
    at_pole = lambda term: mnp.where(x > 1, term, mnp.where(x == 1, math.inf, math.nan))  # noqa: E731
    return _with_poles(lambda q: special.zeta(x, q), q, at_pole)


rows(
    {
        "sigmoid special_expit": of_floats(activations.sigmoid),
        "erf special_erf": of_floats(lax.erf),
        "erfc special_erfc": of_floats(lax.erfc),
        "erfinv special_erfinv": of_floats(lax.erf_inv),
        "special_erfcx": of_floats(special.erfcx),
        "lgamma special_gammaln": of_floats(lax.lgamma),
        "digamma special_digamma special_psi": of_floats(digamma),
        "special_ndtr": of_floats(special.ndtr),
        "special_log_ndtr": of_floats(special.log_ndtr),
        "special_ndtri": of_floats(special.ndtri),
        "i0 special_i0 special_modified_bessel_i0": of_floats(special.i0),
        "special_i0e": of_floats(special.i0e),
        "special_i1 special_modified_bessel_i1": of_floats(special.i1),
        "special_i1e": of_floats(special.i1e),
        "special_entr": of_floats(special.entr),
        "special_spherical_bessel_j0": lambda x: mnp.sinc(to_float(x) / math.pi),
        "sinc special_sinc": of_floats(mnp.sinc),
        "xlogy special_xlogy": binary_of_floats(special.xlogy),
        "special_xlog1py": binary_of_floats(special.xlog1py),
        "special_zeta": binary_of_floats(zeta),
        "igamma special_gammainc": binary_of_floats(special.gammainc),
        "igammac special_gammaincc": binary_of_floats(special.gammaincc),
    }
)


@register("aten.logit", "aten.special_logit")
def logit(self: Any, eps: float | None = None) -> Any:
    x = to_float(self) if eps is None else clamp(to_float(self), eps, 1 - eps)
    return mnp.log(x / (1 - x))


@register("aten.polygamma", "aten.special_polygamma")
def polygamma(n: int, self: Any) -> Any:
    x = to_float(self)
    if n == 0:
        return digamma(x)
    return _with_poles(lambda x: lax.polygamma(mnp.full_like(x, n), x), x, lambda term: term if n % 2 else -term)


@register("aten.mvlgamma", "aten.special_multigammaln")
def mvlgamma(self: Any, p: int) -> Any:
    x = to_float(self)
    terms = [lax.lgamma(x - 0.5 * i) for i in range(p)]
    return p * (p - 1) / 4 * math.log(math.pi) + sum(terms[1:], terms[0])
