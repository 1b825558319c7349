"""cond, while and scan against jax: values, derivatives in both modes, batching, in op-by-op code and jitted."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.errors import ArgumentError, ArgumentTypeError, DifferentiationError, ShapeError
from meshwright.ir.verify import verify

RNG = np.random.default_rng(7)
W = RNG.normal(size=(3, 3)).astype(np.float32)
C0 = RNG.normal(size=3).astype(np.float32)
XS = RNG.normal(size=(5, 3)).astype(np.float32)


def close(got, want, rtol=2e-4, atol=2e-5):
    got, want = mw.tree.leaves(got), jax.tree.leaves(want)
    assert len(got) == len(want)
    for a, b in zip(got, want):
        assert np.shape(a) == np.shape(b)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=atol)


def recurrence(m, np_, reverse=False, unroll=1):
    """A nonlinear recurrence whose body closes over a weight and returns two outputs, one of another shape."""

    def f(w, c0, xs):
        def body(c, x):
            y = np_.tanh(c @ w + x)
            return y, (y.sum(), np_.sin(c) * 2.0)

        c, (a, b) = m.scan(body, c0, xs, reverse=reverse, unroll=unroll)
        return (c**2).sum() + (a * a).sum() + np_.cos(b).sum()

    return f


def loops(m, np_):
    """A while whose carry has an integer and floats, over a captured bound."""

    def f(w, c0, limit):
        def more(carry):
            i, c = carry
            return (i < 6) & (np_.abs(c).sum() < limit)

        def body(carry):
            i, c = carry
            return i + 1, c @ w * 1.5 + np_.cos(c)

        return m.while_loop(more, body, (0, c0))[1]

    return f


def branches(m, np_):
    """A switch whose branches keep different residuals and capture a value."""

    def f(i, w, x):
        return m.switch(
            i, [lambda y: np_.sin(y) @ w, lambda y: np_.exp(y) * y, lambda y: y * 0.5 + w[0], lambda y: np_.zeros(3)], x
        )  # fmt: skip

    return f


def both(f):
    """What ``f`` gives with this system and with jax."""
    return f(mw, lax, mnp), f(jax, jax.lax, jnp)


class TestScan:
    @pytest.mark.parametrize("reverse,unroll", [(False, 1), (True, 1), (False, 2), (True, 3), (False, True)])
    @pytest.mark.parametrize("jitted", [False, True])
    def test_reverse_mode(self, reverse, unroll, jitted):
        def run(m, l, n):
            g = m.value_and_grad(recurrence(l, n, reverse, unroll), (0, 1, 2))
            return (m.jit(g) if jitted else g)(W, C0, XS)

        close(*both(run))

    def test_forward_and_second_order(self):
        close(*both(lambda m, l, n: m.jvp(recurrence(l, n), (W, C0, XS), (W * 0.3, C0 + 1, XS * XS))))
        close(*both(lambda m, l, n: m.grad(lambda w: (m.grad(recurrence(l, n))(w, C0, XS) ** 2).sum())(W)), rtol=2e-3)
        close(*both(lambda m, l, n: m.jvp(lambda c: m.grad(recurrence(l, n))(W, c, XS), (C0,), (C0 * 2,))), rtol=2e-3)

    @pytest.mark.parametrize("axes", [(None, 0, None), (0, None, None), (None, None, 0), (None, None, 1), (2, 1, 2)])
    def test_vmap(self, axes):
        args = [
            a if d is None else np.stack([a, a * 0.5 + 1], d) if d <= a.ndim else a
            for a, d in zip((W, C0, XS), axes)
        ]  # fmt: skip
        close(*both(lambda m, l, n: m.vmap(recurrence(l, n), axes)(*args)))
        close(*both(lambda m, l, n: m.vmap(m.grad(recurrence(l, n), (0, 1)), axes)(*args)))

    def test_weights_are_not_stacked(self):
        eqns = mw.make_jaxpr(mw.grad(recurrence(lax, mnp)))(W, C0, XS).eqns
        forward, backward = (e for e in eqns if e.op.name == "scan")
        assert all(v.aval.shape != (5, 3, 3) for v in forward.outvars)
        assert any(v.aval.shape == (3, 3) for v in backward.invars[: backward.op.num_consts])

    def test_inputs_are_forwarded_as_residuals(self):
        jaxpr = mw.make_jaxpr(mw.grad(lambda c: lax.scan(lambda c, x: (c * x, None), c, XS)[0].sum()))(C0)
        forward, backward = (e for e in jaxpr.eqns if e.op.name == "scan")
        # The product needs x itself backwards; only the carry (for the other factor) would be stacked, and it is not.
        assert len(forward.outvars) == 1 and forward.invars[-1] is backward.invars[-1]

    def test_printed_form(self):
        text = str(mw.make_jaxpr(lambda x: lax.scan(lambda c, y: (c + y, c * 2), np.float32(0), x))(mnp.arange(3.0)))
        assert text == (
            "{ lambda ; a:f32[3]. let\n"
            "    b:f32[] c:f32[3] = scan[\n"
            "      jaxpr={ lambda ; d:f32[] e:f32[]. let\n"
            "          f:f32[] = add d e\n"
            "          g:f32[] = mul d 2.0:f32[]\n"
            "        in (f, g) }\n"
            "      length=3\n"
            "      num_carry=1\n"
            "      num_consts=0\n"
            "      reverse=False\n"
            "      unroll=1\n"
            "    ] 0.0:f32[] a\n"
            "  in (b, c) }"
        )

    def test_every_derived_jaxpr_verifies(self):
        f = recurrence(lax, mnp)
        pair = np.stack([C0, C0 + 1])
        verify(mw.make_jaxpr(mw.grad(f, (0, 1, 2)))(W, C0, XS))
        verify(mw.make_jaxpr(mw.vmap(mw.grad(f), (None, 0, None)))(W, pair, XS))
        verify(mw.make_jaxpr(lambda *a: mw.jvp(mw.grad(f), a, a))(W, C0, XS))
        verify(mw.make_jaxpr(mw.vmap(loops(lax, mnp), (None, None, 0)))(W, C0, C0))
        verify(
            mw.make_jaxpr(mw.vmap(mw.grad(lambda *a: branches(lax, mnp)(*a).sum(), 1), (0, None, None)))(
                np.int32([0, 2]), W, C0
            )
        )

    def test_trees_length_and_empty(self):
        def f(l, n):
            def body(c, x):
                return {"a": c["a"] + x[0], "b": c["b"] * 2}, {"y": c["a"] - x[1]}

            return l.scan(body, {"a": n.zeros(3), "b": 1.0}, (XS, XS * 2))

        close(f(lax, mnp), f(jax.lax, jnp))
        close(*both(lambda _, l, __: l.scan(lambda c, _: (c * 2, c), 1.0, None, length=4)))
        close(*both(lambda _, l, __: l.scan(lambda c, x: (c + x.sum(), x * 2), 1.5, np.zeros((0, 3), np.float32))))

    def test_weakly_typed_carry_becomes_strong(self):
        carry, ys = lax.scan(lambda c, x: (c + x, c), 0, np.float32([1.5, 2.5]))
        assert carry.dtype == np.float32 and float(carry) == 4.0 and ys.tolist() == [0.0, 1.5]

    def test_body_is_traced_once(self):
        count = 0

        def body(c, x):
            nonlocal count
            count += 1
            return c + x, c

        for _ in range(3):
            lax.scan(body, np.float32(0), mnp.arange(3.0))
        assert count == 1

    def test_closure_over_tracers(self):
        def f(l):
            return lambda s: l.scan(lambda c, x: (c + x * s, c * s), np.float32(1), XS[:, 0])[1].sum()

        close(*both(lambda m, l, _: m.grad(f(l))(np.float32(0.7))))
        close(*both(lambda m, l, _: m.jit(m.vmap(m.grad(f(l))))(np.float32([0.7, 2]))))

    def test_collectives_inside(self):
        def f(l, n):
            def g(x):
                return l.scan(lambda c, _: (l.psum(c, "i") * 0.5 + x, l.axis_index("i") * 1.0), x, None, length=3)

            return g

        close(*both(lambda m, l, n: m.vmap(f(l, n), axis_name="i")(XS)))

    def test_errors(self):
        with pytest.raises(ShapeError, match=r"scan: .*carry\['b'\] goes in as f32\[3\] and comes out as i32\[\]"):
            lax.scan(lambda c, x: ({"a": c["b"], "b": np.int32(1)}, x), {"a": mnp.zeros(3), "b": mnp.zeros(3)}, XS)
        with pytest.raises(ArgumentTypeError, match=r"scan: the carry must come out .*only coming out: carry\[0\]"):
            lax.scan(lambda c, x: ((c, c), x), 0.0, XS)
        with pytest.raises(ArgumentTypeError, match="must return a pair"):
            lax.scan(lambda c, x: c, 0.0, XS)
        with pytest.raises(ArgumentError, match=r"3: xs\[0\] of shape \(3,\); 4: xs\[1\]"):
            lax.scan(lambda c, x: (c, x), 0.0, (mnp.arange(3.0), mnp.arange(4.0)))
        with pytest.raises(ArgumentError, match="is a scalar"):
            lax.scan(lambda c, x: (c, x), 0.0, 3.0)
        with pytest.raises(ArgumentError, match="give length"):
            lax.scan(lambda c, x: (c, x), 0.0, None)


class TestWhile:
    @pytest.mark.parametrize("limit", [0.1, 3.0, 100.0])
    def test_values_and_forward_mode(self, limit):
        close(*both(lambda _, l, n: loops(l, n)(W, C0, limit)))
        close(*both(lambda m, l, n: m.jvp(lambda w, c: loops(l, n)(w, c, limit), (W, C0), (W * W, C0 + 1))))
        close(
            *both(lambda m, l, n: m.jit(lambda w, c: m.linearize(lambda c: loops(l, n)(w, c, limit), c)[1](c))(W, C0))
        )

    def test_vmap_with_batched_predicate(self):
        limits = np.float32([0.1, 2.0, 5.0, 100.0])
        close(*both(lambda m, l, n: m.vmap(loops(l, n), (None, None, 0))(W, C0, limits)))
        cs = np.stack([C0, C0 * 9, -C0], 1)
        close(*both(lambda m, l, n: m.vmap(loops(l, n), (None, 1, None))(W, cs, 4.0)))

    def test_vmap_with_common_predicate_runs_one_loop(self):
        def f(x):
            return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2), (0, x))[1]

        text = str(mw.make_jaxpr(mw.vmap(f))(XS))
        assert "reduce_or" not in text and "select" not in text
        close(mw.vmap(f)(XS), XS * 8)

    def test_reverse_mode_says_what_to_do(self):
        with pytest.raises(DifferentiationError, match="Use scan, fori_loop with static bounds, or forward mode"):
            mw.grad(lambda c: loops(lax, mnp)(W, c, 3.0).sum())(C0)

    def test_reverse_mode_past_a_loop_that_needs_none(self):
        def f(l):
            return lambda x: x * l.while_loop(lambda i: i < 5, lambda i: i * 2, 1).astype(np.float32)

        close(*both(lambda m, l, _: m.grad(f(l))(np.float32(3))))

    def test_errors(self):
        with pytest.raises(ArgumentTypeError, match=r"cond_fun must return a bool scalar, it returned f32\[\]"):
            lax.while_loop(lambda c: c, lambda c: c, 1.0)
        with pytest.raises(ArgumentTypeError, match="only coming out"):
            lax.while_loop(lambda c: c > 1, lambda c: (c, c), 1.0)
        with pytest.raises(ShapeError, match=r"carry goes in as f32\[3\] and comes out as f32\[1\]"):
            lax.while_loop(lambda c: c.sum() > 1, lambda c: c[:1], mnp.zeros(3))


class TestCond:
    @pytest.mark.parametrize("index", [-2, 0, 1, 2, 3, 9])
    def test_switch(self, index):
        close(*both(lambda _, l, n: branches(l, n)(index, W, C0)))
        close(*both(lambda m, l, n: m.grad(lambda *a: branches(l, n)(*a).sum(), (1, 2))(index, W, C0)))
        close(*both(lambda m, l, n: m.jit(m.grad(lambda *a: (branches(l, n)(*a) ** 2).sum(), (1, 2)))(index, W, C0)))
        close(*both(lambda m, l, n: m.jvp(lambda w, x: branches(l, n)(index, w, x), (W, C0), (W * 2, C0 + 1))))

    def test_vmap(self):
        xs = np.stack([C0, C0 + 1, C0 * 2], 1)
        close(*both(lambda m, l, n: m.vmap(branches(l, n), (None, None, 1), 1)(1, W, xs)))
        index = np.int32([0, 1, 2])
        close(*both(lambda m, l, n: m.vmap(branches(l, n), (0, None, 1))(index, W, xs)))
        close(
            *both(
                lambda m, l, n: m.vmap(m.grad(lambda *a: branches(l, n)(*a).sum(), (1, 2)), (0, None, 1))(index, W, xs)
            )
        )

    def test_vmap_keeps_one_branch_with_a_common_index(self):
        f = mw.vmap(lambda p, x: lax.cond(p, mnp.sin, mnp.cos, x), (None, 0))
        assert "select" not in str(mw.make_jaxpr(f)(True, XS))

    @pytest.mark.parametrize("pred", [True, False, 0, 2.5, np.bool_(True)])
    def test_predicates(self, pred):
        args = (lambda x, y: {"r": x + y}, lambda x, y: {"r": x * y}, C0, 2.0)
        close(lax.cond(pred, *args), jax.lax.cond(pred, *args))
        close(mw.jit(lambda p: lax.cond(p, *args))(pred), jax.lax.cond(pred, *args))

    def test_residuals_of_one_type_share_a_place(self):
        f = mw.grad(lambda x: lax.cond(x.sum() > 0, lambda y: mnp.sin(y), lambda y: mnp.exp(y), x).sum())
        first = next(e for e in mw.make_jaxpr(f)(C0).eqns if e.op.name == "cond")
        assert [v.aval.shape for v in first.outvars].count((3,)) <= 2

    def test_errors(self):
        with pytest.raises(ArgumentTypeError, match="branches must return one structure"):
            lax.cond(True, lambda x: (x, 1), lambda x: x, 1.0)
        with pytest.raises(ShapeError, match=r"output\[1\] is f32\[3\] from true_fun .* and i32\[\] from false_fun"):
            lax.cond(True, lambda x: (x, mnp.zeros(3)), lambda x: (x, np.int32(1)), 1.0)
        with pytest.raises(ArgumentTypeError, match=r"predicate must be a scalar, got f32\[2\]"):
            lax.cond(mnp.zeros(2), lambda: 1, lambda: 2)
        with pytest.raises(ArgumentTypeError, match="a bool or a real number, got c64"):
            lax.cond(1j, lambda: 1, lambda: 2)
        with pytest.raises(ArgumentTypeError, match="integer scalar"):
            lax.switch(1.5, [lambda: 1, lambda: 2])
        with pytest.raises(ArgumentError, match="at least one branch"):
            lax.switch(1, [])


class TestDerivedFunctions:
    @pytest.mark.parametrize("unroll", [None, 1, 2, True])
    def test_fori_loop(self, unroll):
        def f(l, n):
            return lambda x: l.fori_loop(2, 7, lambda i, c: c * n.sin(x) + i, x, unroll=unroll).sum()

        close(*both(lambda _, l, n: f(l, n)(C0)))
        close(*both(lambda m, l, n: m.grad(f(l, n))(C0)))

    def test_fori_loop_with_traced_bounds(self):
        def f(l):
            return lambda n, x: l.fori_loop(1, n, lambda i, c: c * 2 + i, x)

        close(*both(lambda m, l, _: m.jit(f(l))(5, C0)))
        close(*both(lambda m, l, _: m.vmap(f(l), (0, None))(np.int32([0, 2, 6]), C0)))
        assert lax.fori_loop(5, 2, lambda i, c: c + 1, 3) == 3

    @pytest.mark.parametrize("batch_size", [None, 1, 2, 5, 8])
    def test_map(self, batch_size):
        close(*both(lambda _, l, __: l.map(lambda x: (x[0].sum(), x[1] * 2), (XS, XS), batch_size=batch_size)))

    @pytest.mark.parametrize("n,reverse,axis", list(itertools.product([1, 2, 3, 7, 8], [False, True], [0, 2])))
    def test_associative_scan(self, n, reverse, axis):
        a = RNG.normal(size=(n, 3, n)).astype(np.float32)

        def combine(p, q):
            return p[0] * q[0], q[0] * p[1] + q[1]  # affine maps composed: associative, not commutative

        close(*both(lambda _, l, __: l.associative_scan(combine, (a, a * 2), reverse=reverse, axis=axis)))

    def test_associative_scan_of_bools(self):
        x = np.array([False, True, False, True, True])
        assert lax.associative_scan(lambda a, b: a ^ b, x).tolist() == [False, True, True, False, True]

    def test_associative_scan_errors(self):
        with pytest.raises(ArgumentError, match="one size along axis 0"):
            lax.associative_scan(lambda a, b: a, (mnp.zeros(3), mnp.zeros(4)))
