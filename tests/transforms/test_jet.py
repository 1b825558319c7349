"""Taylor mode beside JAX's nested derivatives, its own Taylor mode, and ours."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.jet import jet as jax_jet

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, P
from meshwright.errors import ArgumentError, ArgumentTypeError, DifferentiationError, DTypeError, ShapeError
from meshwright.experimental.jet import jet

ORDER = 4
#: of a module of arrays, and one of operations
FUNCTIONS = {
    "sin": lambda n, s: n.sin,
    "quotient": lambda n, s: lambda x: n.sin(x) / (1 + x * x),
    "powers": lambda n, s: lambda x: x**2.5 + x**x + x**-3,
    "tanh": lambda n, s: n.tanh,
    "log": lambda n, s: lambda x: n.log(x) * n.log1p(x),
    "sqrt": lambda n, s: n.sqrt,
    "erf": lambda n, s: s.lax.erf,
    "kinks": lambda n, s: lambda x: n.maximum(x * x, n.sin(x)) * abs(x),
    "softmax": lambda n, s: lambda x: s.nn.softmax(n.stack([x, 2 * x, x * x])),
    "product": lambda n, s: lambda x: n.stack([x, x * x]) @ n.stack([n.sin(x), n.exp(x)]),
    "prod": lambda n, s: lambda x: n.prod(n.stack([x, x * x, n.sin(x)])),
    "loop": lambda n, s: lambda x: s.lax.fori_loop(0, 3, lambda i, c: n.sin(c) * x, x),
    "branch": lambda n, s: lambda x: s.lax.cond(x > 0.5, n.sin, n.cos, x),
    "jit": lambda n, s: s.jit(lambda x: n.var(n.stack([x, x * x, n.sin(x)]))),
    "checkpoint": lambda n, s: s.checkpoint(lambda x: n.sin(n.exp(x))),
}


def nested(f, order):
    for _ in range(order):
        f = jax.jacfwd(f)
    return f


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_beside_nested_derivatives(name):
    with mw.enable_x64(True), jax.enable_x64(True):
        value, terms = mw.jit(lambda x: jet(FUNCTIONS[name](mnp, mw), (x,), ((1.0, *[0.0] * (ORDER - 1)),)))(0.7)
        for k, got in enumerate([value, *terms]):
            want = jax.jit(nested(FUNCTIONS[name](jnp, jax), k))(0.7)
            np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("scaled", [True, False])
def test_curves_beside_jax(scaled):
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(3, 4)).astype("f"), rng.normal(size=(4, 2)).astype("f")
    series = [[rng.normal(size=v.shape).astype("f") for _ in range(3)] for v in (x, w)]

    def f(n):
        return lambda x, w: {"a": n.sin(x @ w), "b": (n.exp(x) / (2 + n.sin(x))).sum(0)}

    got, want = (run(f(n), (x, w), series, scaled) for run, n in ((jet, mnp), (jax_jet, jnp)))
    for key in "ab":
        np.testing.assert_allclose(got[0][key], want[0][key], rtol=1e-5, atol=1e-6)
        for mine, theirs in zip(got[1][key], want[1][key], strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


def third(x):
    return jet(lambda y: y**4, (x,), ((1.0, 0.0, 0.0),))[1][2]


def test_within_and_around_other_transformations():
    assert float(mw.grad(third)(2.0)) == 24
    assert mw.vmap(third)(mnp.arange(3.0)).tolist() == [0, 24, 48]
    assert [float(t) for t in jet(third, (2.0,), ((1.0, 0.0),))[1]] == [24, 0]
    assert [float(t) for t in jet(mw.grad(lambda x: x**3), (2.0,), ((1.0, 0.0),))[1]] == [12, 6]


def test_a_curve_that_its_rule_makes():
    @mw.custom_jvp
    def straight(x):
        return mnp.round(x)

    straight.defjvp(lambda primals, tangents: (straight(*primals), 2.0))
    value, terms = jet(lambda x: straight(x) * x, (1.25,), ((1.0, 0.0, 0.0),))
    assert [float(v) for v in (value, *terms)] == [1.25, 3.5, 4, 0]


def test_work_is_polynomial_in_the_order():
    def equations(order):
        jaxpr = mw.make_jaxpr(lambda x: jet(mnp.cos, (x,), ((1.0, *[0.0] * (order - 1)),)))(0.7)
        return len(jaxpr.eqns)

    assert equations(12) < 2 ** (3 + 1) * equations(6)


def test_on_a_mesh():
    mesh = mw.make_mesh((4,), ("d",))
    f = mw.jit(
        lambda x: jet(lambda x: mnp.tanh(x).sum(), (x,), ((mnp.ones_like(x), x),)),
        in_shardings=NamedSharding(mesh, P("d")),
    )
    part = f.lower(np.arange(8, dtype=np.float32)).partition()
    assert {c.kind for c in part.collectives} == {"all_reduce"}
    part.verify()


def test_results_that_do_not_move():
    value, terms = jet(lambda x: (x > 0, 3, x), (1.0,), ((2.0,),))
    assert [v.tolist() for v in value] == [True, 3, 1] and [t[0].tolist() for t in terms] == [False, 0, 2]
    assert jet(lambda d: d["a"] * 2, ({"a": 1.0},), (({"a": 3},),))[1][0].tolist() == 6


def test_what_is_refused():
    with pytest.raises(DTypeError, match="no curve"):
        jet(mnp.sin, (1,), ((1.0,),))
    with pytest.raises(ArgumentTypeError, match="series of a tuple"):
        jet(mnp.sin, (1.0,), (1.0,))
    with pytest.raises(ShapeError, match="one shape"):
        jet(mnp.sin, (1.0,), ((mnp.ones(2),),))
    with pytest.raises(ShapeError, match="structure"):
        jet(mnp.sin, (1.0,), (([1.0],),))
    with pytest.raises(ArgumentError, match="as many terms"):
        jet(mnp.multiply, (1.0, 2.0), ((1.0,), (1.0, 0.0)))
    function = mw.custom_vjp(lambda x: x)
    function.defvjp(lambda x: (x, None), lambda _, g: (g,))
    with pytest.raises(DifferentiationError, match="custom_vjp"):
        jet(function, (1.0,), ((1.0,),))
