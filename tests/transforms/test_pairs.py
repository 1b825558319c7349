"""Functions that return two things may return them as a list, as in JAX."""

import jax
import numpy as np
import pytest

import meshwright as mw


def of_custom_vjp(m):
    f = m.custom_vjp(lambda x: x**2)
    f.defvjp(lambda x: [x**2, x], lambda x, g: (5 * x * g,))
    return m.grad(f)(3.0)


def scanned(m):
    return m.lax.scan(lambda c, x: [c + x, c], 0.0, np.arange(4.0, dtype=np.float32))


def scanned_in_python(m):
    with m.disable_jit():
        return scanned(m)


FORMS = {
    "grad": lambda m: m.grad(lambda x: [x**2, x], has_aux=True)(3.0),
    "value_and_grad": lambda m: m.value_and_grad(lambda x: [x**2, x], has_aux=True)(3.0),
    "jvp": lambda m: m.jvp(lambda x: [x**2, x], (3.0,), (1.0,), has_aux=True),
    "custom_vjp": of_custom_vjp,
    "custom_gradient": lambda m: m.grad(m.custom_gradient(lambda x: [x**2, lambda g: 7 * x * g]))(3.0),
    "scan": scanned,
    "scan in Python": scanned_in_python,
}


@pytest.mark.parametrize("name", FORMS)
def test_is_jax_s(name):
    got, want = FORMS[name](mw), FORMS[name](jax)
    for a, b in zip(mw.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b)
