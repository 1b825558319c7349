"""Normals with a covariance and orthogonal matrices: the values that ``jax`` draws, and what they must satisfy."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import meshwright.nn as nn
import meshwright.random as random
from meshwright.errors import ArgumentError, ShapeError

KEY = np.array([3, 17], np.uint32)
ROOT = np.random.default_rng(5).normal(size=(2, 1, 3, 3)).astype("f")
COV = ROOT @ np.swapaxes(ROOT, -1, -2) + np.eye(3, dtype="f")
MEAN = np.arange(12, dtype="f").reshape(4, 3)


@pytest.mark.parametrize("method", ["cholesky", "eigh", "svd"])
@pytest.mark.parametrize("shape", [None, (5, 2, 4)])
def test_normals_with_a_covariance(method: str, shape: Any) -> None:
    got = random.multivariate_normal(KEY, MEAN, COV, shape, method=method)
    want = jax.random.multivariate_normal(KEY, MEAN, COV, shape, method=method)
    np.testing.assert_allclose(got, want, 2e-4, 2e-4)


def test_operands_of_normals_are_checked() -> None:
    with pytest.raises(ShapeError, match=r"cov of shape \(..., n, n\)"):
        random.multivariate_normal(KEY, MEAN, COV[..., :2])
    with pytest.raises(ArgumentError, match="cholesky, eigh or svd"):
        random.multivariate_normal(KEY, MEAN, COV, method="lu")


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize(("n", "m"), [(3, None), (4, 2), (2, 5)])
def test_orthogonal(n: int, m: int | None, dtype: str) -> None:
    got = np.asarray(random.orthogonal(KEY, n, (2,), dtype, m))
    np.testing.assert_allclose(got, jax.random.orthogonal(KEY, n, (2,), dtype, m), 1e-4, 1e-5)
    adjoint = np.conj(np.swapaxes(got, -1, -2))
    product = got @ adjoint if m == 5 else adjoint @ got
    np.testing.assert_allclose(product, np.tile(np.eye(product.shape[-1]), (2, 1, 1)), atol=1e-5)


@pytest.mark.parametrize(("shape", "axis"), [((3, 5), -1), ((5, 3), -1), ((2, 7, 3), 1), ((2, 3, 4), 0)])
def test_orthogonal_initializer(shape: tuple[int, ...], axis: int) -> None:
    got = nn.initializers.orthogonal(2.0, axis)(KEY, shape)
    want = jax.nn.initializers.orthogonal(2.0, axis)(KEY, shape)
    np.testing.assert_allclose(got, want, 1e-4, 1e-5)
    with pytest.raises(ShapeError, match="two dimensions"):
        nn.initializers.orthogonal()(KEY, (4,))
