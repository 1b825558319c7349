"""Functions with derivatives of their own, evaluated: run as they are, compiled once at most."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.runtime import eager

X = np.arange(1, 7, dtype=np.float32).reshape(2, 3) / 3


def with_jvp():
    f = mw.custom_jvp(lambda x: mnp.sin(x) * x)
    f.defjvp(lambda primals, tangents: (f(*primals), 7 * tangents[0]))
    return f


def with_vjp():
    f = mw.custom_vjp(lambda x: mnp.sin(x) * x)
    f.defvjp(lambda x: (f(x), x), lambda x, ct: (7 * ct,))
    return f


def checkpointed():
    return mw.checkpoint(lambda x: mnp.sin(x) * x)


def rooted():
    return lambda x: mw.lax.custom_linear_solve(lambda y: 2 * y, x, lambda f, b: b / 2, symmetric=True)


@pytest.mark.parametrize("make", [with_jvp, with_vjp, checkpointed, rooted])
@pytest.mark.parametrize("differentiate", [False, True])
def test_a_second_call_compiles_nothing(make, differentiate, monkeypatch):
    f = make()
    call = mw.grad(lambda x: (f(x) + f(x)).sum()) if differentiate else f
    first = call(mnp.asarray(X))
    monkeypatch.setattr(eager, "compile_jaxpr", lambda *_, **__: pytest.fail("compiled again"))
    np.testing.assert_array_equal(call(mnp.asarray(X)), first)


@pytest.mark.parametrize("make", [with_jvp, with_vjp])
def test_arguments_are_arrays_when_nothing_is_traced(make):
    f, seen = make(), []
    inner, f.fun = f.fun, lambda x: (seen.append(type(x)), inner(x))[1]
    np.testing.assert_allclose(f(mnp.asarray(X)), np.sin(X) * X, rtol=1e-6)
    assert seen == [mw.Array]


@pytest.mark.parametrize("make", [mw.custom_jvp, mw.custom_vjp, mw.checkpoint])
def test_results_that_are_constants(make):
    f = make(lambda x: (x, 2.0))
    if make is mw.custom_jvp:
        f.defjvp(lambda p, t: (f(*p), (t[0], np.float32(0))))
    if make is mw.custom_vjp:
        f.defvjp(lambda x: (f(x), None), lambda _, ct: (ct[0],))
    value, gradient = mw.value_and_grad(lambda x: sum(map(mnp.sum, f(x))))(mnp.asarray(X))
    assert float(value) == pytest.approx(X.sum() + 2)
    np.testing.assert_array_equal(gradient, np.ones_like(X))
