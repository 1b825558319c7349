"""What the fuzz against JAX has found, one of each class."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp

BOOLS = np.array([True, False, True])
CASES = {
    "products of weak operands": [
        lambda n: n.dot(BOOLS, -1), lambda n: n.inner(BOOLS, 2.0), lambda n: n.vdot(BOOLS[0], 1j),
        lambda n: n.outer(BOOLS, 2), lambda n: n.matmul(np.int8([1]), n.full((1,), 2.0)),
        lambda n: n.tensordot(np.int8([1]), 2.0, 0),
    ],
    "powers of two by bools": [lambda n: n.ldexp(np.int32([0, 1, 3]), BOOLS)],
    "filled with an array": [lambda n: n.full_like(n.asarray(2.0), BOOLS[0]), lambda n: n.full_like(n.asarray(2.0), 3)],
    "a number repeated": [lambda n: n.repeat(n.asarray(2.5), 2, axis=-1), lambda n: n.repeat(3, 2, axis=0)],
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_types_and_values(name):
    for f in CASES[name]:
        ours, theirs = f(mnp), f(jnp)
        mine, other = mw.typeof(ours), jax.typeof(theirs)
        assert (mine.shape, mine.dtype, mine.weak_type) == (other.shape, other.dtype, other.weak_type), (ours, theirs)
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_cotangents_of_weakly_typed_arguments():
    @mw.custom_vjp
    def f(x, y):
        return x * y

    f.defvjp(lambda x, y: (x * y, (x, y)), lambda kept, ct: (ct * kept[1], (ct * kept[0]).sum()))
    with mw.enable_x64(True):
        x = np.array([1.0, 2.0], np.float32)
        np.testing.assert_array_equal(mw.grad(lambda x: f(x, 3.0).sum())(x), [3, 3])
        assert mw.grad(lambda y: f(x, y).sum())(3.0).dtype == np.float64


@pytest.mark.parametrize("cotangent", ["float16", "float32", "float64"])
def test_cotangents_of_other_widths_become_the_arguments(cotangent):
    def f(lib):
        g = lib.custom_vjp(lambda x: x * 2)
        g.defvjp(lambda x: (g(x), None), lambda _, ct: ((ct * 3).astype(cotangent),))
        return g

    with mw.enable_x64(True), jax.enable_x64(True):
        x = np.array([1.0, 2.0], np.float32)
        ours, theirs = mw.grad(lambda x: f(mw)(x).sum())(x), jax.grad(lambda x: f(jax)(x).sum())(x)
    assert ours.dtype == x.dtype and np.array_equal(ours, theirs)


@pytest.mark.parametrize("at", [[0, 0], [2, 2], [0, 2], [3, 1], [], [0, -9]])
@pytest.mark.parametrize("name", ["min", "max"])
def test_derivatives_of_extremes_at_places_beside_nan(name, at):
    x, v = np.array([1.0, -np.inf, np.nan, 0.0, np.nan], np.float32), np.ones(len(at), np.float32)

    def gradients(lib, n):
        return lib.grad(lambda x, v: (getattr(x.at[np.array(at, int)], name)(v) * x.shape[0]).sum(), (0, 1))(
            n.asarray(x), n.asarray(v)
        )

    for ours, theirs in zip(gradients(mw, mnp), gradients(jax, jnp)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_no_second_derivative_of_first_powers():
    for one in (True, 1):
        x = np.array([0.0, -2.0], np.float32)
        assert mw.jvp(mw.grad(lambda x: mnp.power(x, one).sum()), (x,), (x,))[1].tolist() == [0, 0]  # noqa: B023


def test_no_power_is_constant_whatever_the_tangent_is():
    tangent = np.array([np.inf, np.nan, 1.0], np.float32)
    np.testing.assert_array_equal(mw.jvp(lambda x: mnp.power(x, 0), (np.ones(3, np.float32),), (tangent,))[1], 0)
