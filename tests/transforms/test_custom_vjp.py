"""custom_vjp against jax: values, gradients, batching, loops around it, and what wrong rules say."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.errors import ArgumentError, ArgumentTypeError, DifferentiationError

RNG = np.random.default_rng(5)
X = RNG.normal(size=(4, 3)).astype(np.float32)
Y = RNG.normal(size=3).astype(np.float32)


def both(f):
    return f(mw, lax, mnp), f(jax, jax.lax, jnp)


def close(got, want):
    got, want = mw.tree.leaves(got), jax.tree.leaves(want)
    assert len(got) == len(want)
    for a, b in zip(got, want):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=1e-6)


def odd_rule(m, n):
    """A function whose rule is not its derivative, so that tests see which one was used."""

    @m.custom_vjp
    def f(x, tree):
        return {"out": n.sin(x) * tree["y"]}

    def fwd(x, tree):
        return f(x, tree), (n.cos(x), tree["y"])

    def bwd(saved, ct):
        c, y = saved
        return 3 * ct["out"] * c * y, {"y": ct["out"] * c * 5, "n": None}

    f.defvjp(fwd, bwd)
    return f


def loss(m, n, f):
    return lambda x, y: (f(x, {"y": y, "n": 2})["out"] ** 2).sum()


class TestAgainstJax:
    def test_gradients(self):
        close(*both(lambda m, l, n: odd_rule(m, n)(Y, {"y": Y, "n": 2})))
        close(*both(lambda m, l, n: m.grad(loss(m, n, odd_rule(m, n)), (0, 1))(X[0], Y)))
        close(*both(lambda m, l, n: m.jit(m.grad(loss(m, n, odd_rule(m, n)), (0, 1)))(X[0], Y)))
        close(*both(lambda m, l, n: m.grad(m.jit(loss(m, n, odd_rule(m, n))), 1)(X[0], Y)))

    def test_second_derivative_goes_through_the_rules(self):
        def f(m, l, n):
            inner = m.grad(loss(m, n, odd_rule(m, n)))
            return m.grad(lambda x: (inner(x, Y) ** 2).sum())(X[0]), m.jit(m.grad(lambda x: inner(x, Y).sum()))(X[0])

        close(*both(f))

    @pytest.mark.parametrize("axes", [(0, None), (None, 1), (0, 1)])
    def test_vmap_outside_and_inside(self, axes):
        args = [X if axes[0] == 0 else X[0], Y if axes[1] is None else np.stack([Y] * 4, 1) * X.T]
        close(*both(lambda m, l, n: m.vmap(m.grad(loss(m, n, odd_rule(m, n)), (0, 1)), axes)(*args)))
        close(
            *both(lambda m, l, n: m.grad(lambda *a: m.vmap(loss(m, n, odd_rule(m, n)), axes)(*a).sum(), (0, 1))(*args))
        )

    def test_in_scan_and_cond(self):
        def f(m, l, n):
            g = odd_rule(m, n)

            def body(c, x):
                c = l.cond(x.sum() > 0, lambda: g(c + x, {"y": Y, "n": 2})["out"], lambda: c * 2)
                return c, c

            return m.grad(lambda c, xs: (l.scan(body, c, xs)[1] ** 2).sum(), (0, 1))(Y, X)

        close(*both(f))

    def test_nondiff_arguments_and_keywords(self):
        def f(m, l, n):
            @functools.partial(m.custom_vjp, nondiff_argnums=(0, 2))
            def apply(fun, x, times):
                for _ in range(times):
                    x = fun(x)
                return x

            apply.defvjp(
                lambda fun, x, times: (apply(fun, x, times), x), lambda fun, times, x, ct: (ct * times * fun(x),)
            )
            return m.grad(lambda x: apply(n.sin, x=x, times=3).sum())(Y)

        close(*both(f))

    def test_axis_names_in_the_backward_rule(self):
        @mw.custom_vjp
        def mean_gradient(x):
            return x

        mean_gradient.defvjp(lambda x: (x, None), lambda _, ct: (lax.pmean(ct, "i"),))
        got = mw.grad(lambda x: mw.vmap(lambda r: mean_gradient(r) * r, axis_name="i")(x).sum())(X)
        close(got, X + X.mean(0))

    def test_values_closed_over(self):
        def f(scale):
            @mw.custom_vjp
            def g(x):
                return x * scale

            g.defvjp(lambda x: (x * scale, scale), lambda s, ct: (ct * s * 7,))
            return g

        got = mw.vmap(lambda s, x: mw.grad(lambda x: f(s)(x).sum())(x), (0, None))(np.float32([1, 2]), Y)
        close(got, np.stack([np.full(3, 7.0), np.full(3, 14.0)]))
        got = mw.grad(lambda x: mw.vmap(lambda s: f(s)(x).sum())(np.float32([1, 2])).sum())(Y)
        close(got, np.full(3, 21.0))


class TestErrors:
    def make(self, fwd, bwd):
        f = mw.custom_vjp(lambda x, y: x * y)
        f.defvjp(fwd, bwd)
        return mw.grad(lambda x: f(x, 2.0).sum())

    def test_rules(self):
        keep = lambda x, y: (x * y, None)  # noqa: E731
        with pytest.raises(DifferentiationError, match="one cotangent for each of the 2 differentiable arguments"):
            self.make(keep, lambda r, g: g)(Y)
        with pytest.raises(DifferentiationError, match=r"cotangent of type f32\[1\] for argument x of type f32\[3\]"):
            self.make(keep, lambda r, g: (g[:1], None))(Y)
        with pytest.raises(DifferentiationError, match=r"cotangent of type c64\[3\] for argument x"):
            self.make(keep, lambda r, g: (g * 1j, None))(Y)
        with pytest.raises(DifferentiationError, match=r"cotangent of type c64\[\] for argument y"):
            f = mw.custom_vjp(lambda x, y: x * y)
            f.defvjp(keep, lambda r, g: (g, 1j))
            mw.grad(f, (0, 1))(1.0, 2.0)
        with pytest.raises(DifferentiationError, match="must return a pair"):
            self.make(lambda x, y: x, lambda r, g: (g, None))(Y)
        with pytest.raises(DifferentiationError, match="output structure"):
            self.make(lambda x, y: ((x, y), None), lambda r, g: (g, None))(Y)
        with pytest.raises(ArgumentError, match="no rules are set"):
            mw.custom_vjp(lambda x: x)(1.0)

    def test_forward_mode(self):
        f = odd_rule(mw, mnp)
        with pytest.raises(DifferentiationError, match="reverse mode only"):
            mw.jvp(lambda x: f(x, {"y": Y, "n": 2}), (Y,), (Y,))

    def test_derivative_of_what_is_closed_over(self):
        def outer(s):
            f = mw.custom_vjp(lambda x: x * s)
            f.defvjp(lambda x: (x * s, None), lambda _, ct: (ct,))
            return f(Y).sum()

        with pytest.raises(DifferentiationError, match="closes over"):
            mw.grad(outer)(np.float32(2))

    def test_keyword_only(self):
        f = mw.custom_vjp(lambda x, *, k: x * k)
        f.defvjp(lambda x: (x, None), lambda _, ct: (ct,))
        with pytest.raises(ArgumentTypeError, match="keyword-only"):
            f(1.0, k=2)
