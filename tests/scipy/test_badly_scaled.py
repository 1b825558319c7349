"""BFGS on functions whose directions, or values, differ by many orders of magnitude, against the known minimum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.scipy.optimize import minimize


def _valley(scale: float) -> Callable[[Any], Any]:
    return lambda x: scale * (100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2)


CASES: dict[str, tuple[Callable[[Any], Any], list[float], list[float]]] = {
    "steep": (lambda x: 1e6 * (x[0] - 1) ** 2 + (x[1] - 2) ** 2, [5.0, 5.0], [1.0, 2.0]),
    "ten orders": (lambda x: 1e8 * (x[0] - 1) ** 2 + 1e-2 * (x[1] - 2) ** 2, [5.0, 5.0], [1.0, 2.0]),
    "a steep valley": (lambda x: 1e4 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2, [-1.2, 1.0], [1.0, 1.0]),
    "flat": (lambda x: 1e-2 * ((x - 3) ** 2).sum(), [100.0, -50.0], [3.0, 3.0]),
    "many": (lambda x: ((x - 1) ** 2 * mnp.array([1.0, 1e2, 1e4, 1e6, 1e8])).sum(), [3.0] * 5, [1.0] * 5),
    **{f"a valley times {s}": (_valley(s), [-1.2, 1.0], [1.0, 1.0]) for s in (1e12, 1e6, 1e-4, 1e-6)},
    "two units": (lambda x: (1e2 * x[0] - 1) ** 2 + (1e-2 * x[1] - 1) ** 2, [1.0, 1.0], [1e-2, 1e2]),
    "a wall": (lambda x: mnp.exp(10 * x[0]) - x[0] + x[1] ** 2, [2.0, 3.0], [-np.log(10) / 10, 0.0]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_minimum_is_found(name: str, dtype: str) -> None:
    function, start, want = CASES[name]
    with mw.enable_x64(dtype == "float64"):
        found = minimize(function, np.array(start, dtype), method="BFGS")
    assert bool(found.success), (int(found.status), found.x)
    np.testing.assert_allclose(found.x, want, rtol=1e-4, atol=1e-2 if dtype == "float32" else 1e-4)
