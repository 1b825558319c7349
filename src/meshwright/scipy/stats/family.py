"""Families of distributions, defined by a standard distribution that is shifted by ``loc`` and scaled by ``scale``.

Functions of a distribution are NaN outside the domain of its parameters, as in SciPy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any

import numpy as np

from meshwright.ir.tracing import typeof
from meshwright.numpy.arithmetic import floor
from meshwright.numpy.logic import where
from meshwright.ops.elementwise.table import convert, log, log1p, stop_gradient
from meshwright.scipy.elementwise import elementwise

_SAYS = {
    "logpdf": "The logarithm of the density.",
    "pdf": "The density.",
    "logpmf": "The logarithm of the probability.",
    "pmf": "The probability.",
    "cdf": "The distribution function.",
    "logcdf": "The logarithm of the distribution function.",
    "sf": "The probability of larger values.",
    "logsf": "The logarithm of the probability of larger values.",
    "ppf": "The quantile of probability ``q``.",
    "isf": "The value that is exceeded with probability ``q``.",
}
_FIRST = {"ppf": "q", "isf": "q", "pmf": "k", "logpmf": "k"}


def is_count(n: Any) -> Any:
    """Whether numbers are nonnegative integers.

    >>> is_count(np.array([2.0, 2.5, -1.0])).tolist()
    [True, False, False]
    """
    return (n >= 0) & (floor(n) == n)


def _unsigned(z: Any) -> Any:
    """The numbers with zeros made positive, as both zeros belong to a support that starts at 0."""
    return where(z == 0, z - stop_gradient(z), z)


def log_probability(p: Any, q: Any) -> Any:
    """The logarithm of a probability ``p`` whose complement is ``q``, precise where either of them is small.

    >>> (log_probability(np.array([1.0, 0.5]), np.array([2.0**-50, 0.5])) < 0).tolist()
    [True, True]
    """
    small = p <= 0.5
    # Each branch gets only arguments in its domain, so that no derivative is inf * 0; log(1) is 0, not -0.
    return where(small, log(where(small, p, 0.5)), log1p(0.0 - where(small, 0.5, q)))


class Family:
    """The distributions of a module: a standard one with ``parameters``, shifted by ``loc`` and scaled by ``scale``.

    ``inside`` tells which parameters are in the domain; ``first``, how JAX names the variable of a function where it
    departs from SciPy. An instance is used as a decorator, which makes the module's
    functions from those of the standard distribution; ``at`` and ``gives`` are the example for the docstring.

    >>> cdf = Family("doctest", "b", inside=lambda b: b > 0)(1.0, 2.0, gives=0.5, name="cdf")(lambda z, b: z / b)
    >>> cdf(np.array([2.0, 3.0]), 2.0, 1.0, np.array([2.0, -2.0])).tolist()
    [0.25, nan]
    """

    def __init__(
        self,
        module: str,
        *parameters: str,
        inside: Callable[..., Any] | None = None,
        place: Sequence[str] = ("loc", "scale"),
        first: Mapping[str, str] | None = None,
    ) -> None:
        self.module = module
        self.parameters = parameters
        self.place = tuple(place)
        self.inside = inside
        self.first = {**_FIRST, **(first or {})}

    def __call__(self, *at: float, gives: float, name: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorator for a function of the standard variable (for quantiles, a probability) and the parameters."""

        def define(standard: Callable[..., Any]) -> Callable[..., Any]:
            public_name = name or standard.__name__
            return self._public(public_name, functools.partial(self._placed, public_name, standard), at, gives)

        return define

    def of(
        self,
        name: str,
        apply: Callable[..., Any],
        others: Callable[..., Any] | tuple[Callable[..., Any], ...],
        *at: float,
        gives: float,
    ) -> Callable[..., Any]:
        """A function that applies ``apply`` to other functions of the distributions, such as ``exp`` to ``logpdf``."""
        given = others if isinstance(others, tuple) else (others,)
        return self._public(name, lambda *args: apply(*(other(*args) for other in given)), at, gives)

    def _placed(self, name: str, standard: Callable[..., Any], x: Any, *others: Any) -> Any:
        count = len(self.parameters)
        parameters, place = others[:count], dict(zip(self.place, others[count:]))
        valid = functools.reduce(lambda a, b: a & b, [v == v for v in (x, *others)])
        valid = valid & (place["scale"] > 0) if "scale" in place else valid
        valid = valid & self.inside(*parameters) if self.inside else valid
        if name in ("ppf", "isf"):
            valid = valid & (x >= 0) & (x <= 1)
            value = standard(x, *parameters)
            value = value * place["scale"] if "scale" in place else value
            return where(valid, value + place["loc"], np.nan)
        z = x - place["loc"] if "loc" in place else x
        value = standard(_unsigned(z / place["scale"] if "scale" in place else z), *parameters)
        if name == "logpdf" and "scale" in place:
            # Outside of the support the density and its derivative are zero for every scale.
            value = where(value == -np.inf, value, value - log(place["scale"]))
        return where(valid, value, np.nan)

    def _public(self, name: str, f: Callable[..., Any], at: Sequence[float], gives: float) -> Callable[..., Any]:
        """``f`` with name, signature, docstring and example."""

        def function(*args: Any) -> Any:
            value = f(*args)
            return convert(value, typeof(value).dtype, all(typeof(x).weak_type for x in args))

        names = (self.first.get(name, "x"), *self.parameters, *self.place)
        defaults: dict[str, Any] = {"loc": 0.0, "scale": 1.0}
        kind = Parameter.POSITIONAL_OR_KEYWORD
        parameters = [Parameter(n, kind, default=defaults.get(n, Parameter.empty)) for n in names]
        function.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        function.__name__ = function.__qualname__ = name
        function.__module__ = self.module
        function.__doc__ = f"{_SAYS[name]}\n\n>>> round({name}({', '.join(map(str, at))}).item(), 4)\n{gives}\n"
        return elementwise(function)
