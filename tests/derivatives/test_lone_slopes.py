"""No slope stands alone: where a function is continuous and has one slope on both sides, that is its slope.

``max(x, 10)`` halves the derivative at 10 itself. Where such a guard chooses between formulas of a smooth function, the
result is wrong at that point alone, which values and random points do not show.
"""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from elementwise import functions as elementwise

import meshwright as mw
from meshwright import scipy

#: thresholds are round numbers, mostly
STEPS = np.arange(-20, 20.25, 0.25)
ROUND = np.concatenate([STEPS, [-100, -50, -40, -30, -25, 25, 30, 40, 50, 64, 100, 200, 500, 600, 1000]])
FEW = np.array([0, -4.5, -2, -0.5, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 4, 4.5, 5, 8, 10, 12, 15, 16, 20, 50])
PARAMETERS = np.array([0, 0.3, 0.5, 1, 2, 2.5, 10, 12])
#: in units of the point, so far from it
NEAR = 2.0**-36


def points(arity: int) -> tuple[np.ndarray, ...]:
    one = (ROUND, FEW, PARAMETERS, PARAMETERS)[arity - 1]
    return tuple(a.ravel() for a in np.meshgrid(*[one] * arity, indexing="ij"))


def lone(f: Callable[..., Any], xs: tuple[np.ndarray, ...], by: int) -> Iterator[str]:
    """Points at which a derivative by argument ``by``, first or second, is not the one on both of its sides."""

    @mw.jit
    def all_of(x: Any) -> list[Any]:
        def slope(v: Any) -> Any:
            return mw.jvp(lambda w: f(*(w if i == by else y for i, y in enumerate(xs))), (v,), (np.ones(v.shape),))[1]

        return [f(*(x if i == by else y for i, y in enumerate(xs))), *mw.jvp(slope, (x,), (np.ones(x.shape),))]

    step = NEAR * np.maximum(np.abs(xs[by]), 1)
    before, at, behind = (list(map(np.asarray, all_of(xs[by] + sign * step))) for sign in (-1, 0, 1))
    go_on = np.isfinite(at[0])
    for order, (a, value, b) in enumerate(zip(before, at, behind)):
        with np.errstate(all="ignore"):
            alike = go_on & np.isfinite(a) & np.isclose(a, b, rtol=1e-6, atol=1e-8)
            go_on = alike & np.isclose(value, a, rtol=1e-4, atol=1e-4)
        for i in np.flatnonzero(alike & ~go_on & ~np.isnan(value))[:5] if order else ():
            yield f"{'d' * order}{by} at {tuple(float(x[i]) for x in xs)}: {value[i]}, beside it {a[i]}"


def check(f: Callable[..., Any], arity: int) -> None:
    with mw.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrong = []
        for by in range(arity):
            try:
                wrong += lone(f, points(arity), by)
            except mw.errors.DifferentiationError:  # by this argument no derivative is known
                continue
    assert not wrong, "\n".join(wrong)


def densities() -> Iterator[tuple[str, str, int]]:
    """(distribution, function, number of its arguments without place and scale)."""
    for family in sorted(scipy.stats.__all__):
        of = getattr(scipy.stats, family)
        for name in ("logpdf", "logpmf", "logcdf", "cdf", "logsf", "ppf") if inspect.ismodule(of) else ():
            if (f := getattr(of, name, None)) is not None and "mean" not in (given := inspect.signature(f).parameters):
                yield family, name, len([p for p in given if p not in ("loc", "scale")])


#: clip's at ends that meet are JAX's
FUNCTIONS = [f for f in elementwise() if f[:2] != ("numpy", "clip")]


@pytest.mark.parametrize("library, name, arity", FUNCTIONS, ids=[f"{l}.{n}" for l, n, _ in FUNCTIONS])
def test_of_elementwise_functions(library: str, name: str, arity: int) -> None:
    check(getattr(importlib.import_module(f"meshwright.{library}"), name), arity)


DENSITIES = list(densities())


@pytest.mark.parametrize("family, name, arity", DENSITIES, ids=[f"{f}.{n}" for f, n, _ in DENSITIES])
def test_of_distributions(family: str, name: str, arity: int) -> None:
    check(getattr(getattr(scipy.stats, family), name), arity)
