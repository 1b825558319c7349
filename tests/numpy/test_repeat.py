"""``repeat`` with numbers of repeats that are not known while tracing, beside JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.errors import ConcretizationTypeError, DTypeError, ShapeError

X = np.arange(1.0, 7.0, dtype=np.float32).reshape(2, 3)
CASES = [
    (np.array([1, 0, 3]), 1, 4),
    (np.array([1, 0, 3]), 1, 2),
    (np.array([2, 1, 0]), 1, 5),
    (np.array([0, 0]), 0, 3),
    (2, 0, 4),
    (np.array([60, 50, 0, 5, 0, 0], np.int8), None, 120),
]


@pytest.mark.parametrize(("counts", "axis", "total"), CASES)
def test_is_jax_s(counts, axis, total):
    got, want = (
        m.jit(lambda n, np_=np_: np_.repeat(X, n, axis=axis, total_repeat_length=total))(counts)
        for m, np_ in ((mw, mnp), (jax, jnp))
    )
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(mnp.repeat(X, counts, axis=axis, total_repeat_length=total), want)


def test_under_vmap_and_grad():
    counts, weights = np.array([[2, 1], [0, 3]]), np.arange(1.0, 11.0, dtype=np.float32).reshape(2, 5)

    def loss(m, np_):
        def of(x):
            return (m.vmap(lambda n: np_.repeat(x, n, total_repeat_length=5))(counts) * weights).sum()

        return m.value_and_grad(of)(X[0, :2])

    for got, want in zip(loss(mw, mnp), loss(jax, jnp)):
        np.testing.assert_allclose(got, want)


@pytest.mark.parametrize(
    ("error", "words", "counts", "options"),
    [
        (ConcretizationTypeError, "pass total_repeat_length=", np.ones(3, int), {}),
        (DTypeError, "must be integers, got f32[3]", np.ones(3, np.float32), {"total_repeat_length": 3}),
        (ShapeError, "one integer or 3 integers, got i32[2]", np.ones(2, int), {"total_repeat_length": 3}),
    ],
)
def test_refused(refuses, error, words, counts, options):
    with refuses(error, "repeat", words):
        mw.jit(lambda n: mnp.repeat(X, n, axis=1, **options))(counts)
