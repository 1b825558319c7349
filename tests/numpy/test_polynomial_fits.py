"""Least squares fits of polynomials: NumPy's values, traced and differentiated too."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.errors import ShapeError

RNG = np.random.default_rng(2)
X, Y, W = np.linspace(-1, 2, 9, dtype="f"), RNG.normal(size=(9, 2)).astype("f"), RNG.uniform(0.5, 2, 9).astype("f")


@pytest.mark.parametrize("weights", [None, W])
def test_traced_fits(weights: np.ndarray | None) -> None:
    got = mw.jit(lambda x, y: mnp.polyfit(x, y, 3, w=weights))(X, Y)
    np.testing.assert_allclose(got, np.polyfit(X, Y, 3, w=weights), 1e-3, 1e-4)


def test_a_fit_is_linear_in_its_values() -> None:
    gradient = np.asarray(mw.grad(lambda y: mnp.polyfit(X, y, 2)[0])(Y[:, 0]))
    np.testing.assert_allclose(gradient @ Y[:, 1], np.polyfit(X, Y[:, 1], 2)[0], 1e-3, 1e-4)


def test_shapes_of_a_fit_are_checked() -> None:
    with pytest.raises(ShapeError, match=r"got \(9,\), \(4, 2\)"):
        mnp.polyfit(X, Y[:4], 1)
    with pytest.raises(ShapeError, match=r"w of shape \(n,\)"):
        mnp.polyfit(X, Y, 1, w=W[:1])
