"""Where the parameters of distributions may lie: elsewhere their functions are NaN, as in SciPy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from inspect import signature
from typing import Any

import numpy as np

from meshwright.numpy.arithmetic import floor
from meshwright.numpy.logic import where
from meshwright.scipy.elementwise import elementwise


def _positive(*names: str) -> Callable[..., Any]:
    def holds(**given: Any) -> Any:
        return functools.reduce(lambda a, b: a & b, [given[n] > 0 for n in names])

    return holds


def _count(n: Any) -> Any:
    return (n >= 0) & (floor(n) == n)


#: by the module of the distribution; every ``scale`` must be positive, too
_DOMAINS: dict[str, Callable[..., Any]] = {
    "bernoulli": lambda p, **_: (p >= 0) & (p <= 1),
    "beta": _positive("a", "b"),
    "betabinom": lambda n, a, b, **_: _count(n) & (a > 0) & (b > 0),
    "binom": lambda n, p, **_: _count(n) & (p >= 0) & (p <= 1),
    "chi2": _positive("df"),
    "gamma": _positive("a"),
    "gennorm": _positive("beta"),
    "geom": lambda p, **_: (p > 0) & (p <= 1),
    "nbinom": lambda n, p, **_: (n > 0) & (p > 0) & (p <= 1),
    "pareto": _positive("b"),
    "poisson": lambda mu, **_: mu >= 0,
    "t": _positive("df"),
    "truncnorm": lambda a, b, **_: a < b,
    "vonmises": lambda kappa, **_: kappa >= 0,
    "wrapcauchy": lambda c, **_: (c > 0) & (c < 1),
}


def distribution(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of values and parameters of its module's distribution, as :func:`elementwise` makes it; NaN outside of
    the domain of its parameters, and for NaN.

    >>> distribution(lambda x, scale: x / scale)(1.0, np.array([2.0, -2.0])).tolist()
    [0.5, nan]
    """
    names = list(signature(f).parameters)
    domain = _DOMAINS.get(f.__module__.rpartition(".")[2])

    @functools.wraps(f)
    def defined(*args: Any) -> Any:
        given = dict(zip(names, args))
        inside = functools.reduce(lambda a, b: a & b, [x == x for x in args])
        inside = inside & (given["scale"] > 0) if "scale" in given else inside
        inside = inside & domain(**given) if domain else inside
        inside = inside & (args[0] >= 0) & (args[0] <= 1) if f.__name__ in ("ppf", "isf") else inside
        return where(inside, f(*args), np.nan)

    return elementwise(defined)
