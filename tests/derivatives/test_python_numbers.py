"""Derivatives at Python's numbers are those at arrays: that Python refuses to divide by 0 has no say."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.lax as lax
import meshwright.nn as nn
import meshwright.numpy as mnp
import meshwright.scipy.special as special
import meshwright.scipy.stats as stats
from meshwright.errors import MeshwrightError

DISTRIBUTIONS = [m for _, m in inspect.getmembers(stats, inspect.ismodule) if m.__name__.startswith(stats.__name__)]
MODULES = [mnp, lax, nn, special, *DISTRIBUTIONS]
POINTS = (0.0, 1.0, -1.0)
MOST = 5  # calls of a function with so many arguments
#: among whose arguments are dtypes, which numbers are not
OF_DTYPES = {
    "array", "asarray", "astype", "bitcast_convert_type", "convert_element_type", "empty_like", "from_dlpack",
    "full_like", "ones_like", "zeros_like",
}  # fmt: skip


def functions() -> Iterator[Any]:
    """Those of the library that a call with numbers alone is found of."""
    for module in MODULES:
        for name in sorted(getattr(module, "__all__", vars(module))):
            function = getattr(module, name)
            if name not in OF_DTYPES and not name.startswith("_") and inspect.isroutine(function):
                yield pytest.param(function, id=f"{module.__name__.removeprefix('meshwright.')}.{name}")


def calls(function: Callable[..., Any]) -> Iterator[tuple[float, ...]]:
    """Arguments that it takes, as arrays."""
    for count in (1, 2, 3, 4):
        points = list(itertools.product(POINTS, repeat=count))
        for args in points[:: -(-len(points) // MOST)]:
            try:
                value = function(*map(mnp.asarray, args))
            except Exception:  # of other arguments
                break
            if isinstance(value, mw.Array) and value.ndim == 0 and mnp.issubdtype(value.dtype, mnp.floating):
                yield args


def derived(function: Callable[..., Any], args: Any, number: int) -> Any:
    """Its first and second derivative by an argument, or what refuses them."""
    try:
        first = mw.grad(function, number)
        return first(*args), mw.grad(first, number)(*args)
    except MeshwrightError as error:
        return type(error)


@pytest.mark.parametrize("function", list(functions()))
def test_numbers_are_arrays(function: Callable[..., Any]) -> None:
    for args in calls(function):
        arrays = tuple(map(mnp.asarray, args))
        for number in range(len(args)):
            ours, wanted = derived(function, args, number), derived(function, arrays, number)
            if isinstance(wanted, type):
                assert ours is wanted, (args, number)
            else:
                np.testing.assert_allclose(ours, wanted, rtol=1e-3, atol=1e-5, err_msg=f"{args}, by {number}")


def test_the_limits_of_logarithms() -> None:
    assert mw.grad(special.xlogy, 1)(2.0, 0.0) == np.inf
    assert mw.grad(special.xlog1py, 1)(2.0, -1.0) == np.inf
    assert mw.grad(stats.vonmises.logpdf, 1)(0.5, 0.0) == pytest.approx(np.cos(0.5))
    assert mw.grad(stats.pareto.logcdf, 1)(0.5, 2.0) == 0


def test_a_rule_gets_arrays_where_numbers_do_not_divide() -> None:
    @mw.custom_jvp
    def ratio(x: Any, y: Any) -> Any:
        return mnp.divide(x, y)

    seen = []

    @ratio.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        x, y = primals
        seen.append(type(y))
        return ratio(x, y), tangents[0] * (1 / y)

    assert mw.jvp(ratio, (1.0, 0.0), (1.0, 0.0)) == (np.inf, np.inf)
    assert seen == [float, mw.Array]
