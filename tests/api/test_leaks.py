"""Tracers that outlive their trace are reported where they are used: eagerly, and in every other trace."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.errors import UnexpectedTracerError

V = np.arange(6, dtype=np.float32)


class Keeper:
    """Where user code hides values: an attribute."""

    value = None


@pytest.fixture(autouse=True)
def _keeps_anew():
    """What holds a value is found by the collector, which in tests does not look at what was imported."""
    global Keeper
    Keeper = type("Keeper", (), {"value": None})


def keep(x):
    Keeper.value = x * 2
    return x


LEAKS = {
    "jit": lambda: mw.jit(lambda z: keep(z))(V),
    "grad": lambda: mw.grad(lambda x: mnp.sum(keep(x)))(V),
    "vmap": lambda: mw.vmap(lambda x: keep(x))(np.stack([V, V])),
    "vjp": lambda: mw.vjp(keep, V),
    "jvp": lambda: mw.jvp(keep, (V,), (V,)),
    "linearize": lambda: mw.linearize(keep, V),
    "make_jaxpr": lambda: mw.make_jaxpr(keep)(V),
    "eval_shape": lambda: mw.eval_shape(keep, V),
    "jit of grad": lambda: mw.jit(mw.grad(lambda x: mnp.sum(keep(x))))(V),
    "vmap of grad": lambda: mw.vmap(mw.grad(lambda x: mnp.sum(keep(x))))(np.stack([V, V])),
    "inner jit": lambda: mw.jit(lambda x: mw.jit(lambda z: keep(z))(x) + 1)(V),
}

USES = {
    "add": lambda leak: leak + 1,
    "with itself": lambda leak: leak * leak,
    "function": mnp.sin,
    "index": lambda leak: leak[0],
    "np.asarray": np.asarray,
    "bool": lambda leak: bool(leak),
    "stack": lambda leak: mnp.stack([leak, leak]),
    "device_put": mw.device_put,
    "device_get": mw.device_get,
    "jit argument": lambda leak: mw.jit(lambda x: x)(leak),
    "jit closure": lambda leak: mw.jit(lambda x: x + leak)(V),
    "jit return": lambda leak: mw.jit(lambda x: leak)(V),
    "nested jit argument": lambda leak: mw.jit(lambda x: mw.jit(lambda y: y)(leak))(V),
    "grad argument": lambda leak: mw.grad(mnp.sum)(leak),
    "grad closure": lambda leak: mw.grad(lambda x: mnp.sum(x + leak))(V),
    "grad return": lambda leak: mw.grad(lambda x: mnp.sum(leak))(V),
    "vmap argument": lambda leak: mw.vmap(lambda x: x)(leak),
    "vmap closure": lambda leak: mw.vmap(lambda x: x + leak)(V),
    "vmap return": lambda leak: mw.vmap(lambda x: leak)(V),
    "make_jaxpr": lambda leak: mw.make_jaxpr(lambda: leak + 1)(),
}


@pytest.mark.parametrize("leak", LEAKS)
@pytest.mark.parametrize("use", USES)
def test_leaked_tracers_are_reported(refuses, leak, use):
    LEAKS[leak]()
    with refuses(UnexpectedTracerError, "f32[6]", "had returned", "Return it from the function"):
        USES[use](Keeper.value)


def test_the_message_says_where_the_value_was_made(refuses):
    LEAKS["jit"]()
    with refuses(UnexpectedTracerError, "test_leaks.py", "keep"):
        _ = Keeper.value + 1


def test_a_leak_can_be_printed():
    LEAKS["jit"]()
    assert "f32[6]" in repr(Keeper.value)


def test_a_leak_through_a_global_list_in_a_later_call(refuses):
    seen = []

    @mw.jit
    def remember(x):
        seen.append(x + 1)
        return sum(seen)

    remember(V)
    with refuses(UnexpectedTracerError, "remember"):
        remember(V[:3])  # a new trace, in which the old one's value is found


def test_a_function_that_raises_leaves_no_trace_behind():
    for transform in (mw.jit, mw.grad, mw.vmap):
        with pytest.raises(ZeroDivisionError):
            transform(lambda x: 1 / 0)(V)
    np.testing.assert_array_equal(mnp.asarray(V) + 1, V + 1)


def test_tracers_of_enclosing_traces_are_no_leaks():
    out = mw.jit(lambda x: mw.vmap(lambda row: mw.jit(lambda y: y * mnp.sum(x))(row))(x))(V)
    np.testing.assert_allclose(out, V * V.sum())
    out = mw.grad(lambda x: mw.jit(lambda y: y * x * x)(3.0))(2.0)
    np.testing.assert_allclose(out, 12.0)


class TestCheckingLeaks:
    """``checking_leaks`` reports them where the trace ends, used or not."""

    @pytest.mark.parametrize(
        "leak",
        [
            lambda: mw.jit(keep)(V),
            lambda: mw.vmap(keep)(V),
            lambda: mw.make_jaxpr(keep)(V),
            lambda: mw.eval_shape(keep, V),
            lambda: mw.lax.scan(lambda c, x: (c, keep(x)), 0.0, V),
            lambda: mw.lax.cond(True, keep, lambda x: x, V),
            lambda: mw.lax.fori_loop(0, 3, lambda i, x: keep(x), V),
            lambda: mw.grad(mw.jit(lambda x: keep(x).sum()))(V),
        ],
    )
    def test_finds(self, leak):
        Keeper.value = None
        message = r"1 .*outlived.*f32\[6?\]( from .*test_leaks.py:\d+ \(keep\))?, kept in a dict under 'value'"
        with mw.checking_leaks(), pytest.raises(UnexpectedTracerError, match=message):
            leak()
        Keeper.value = None

    def test_finds_what_was_traced_before(self):
        f = mw.jit(keep)
        f(V)
        Keeper.value = None
        with mw.checking_leaks(), pytest.raises(UnexpectedTracerError, match="1 traced value outlived"):
            f(V)

    def test_arguments(self):
        kept = []
        with mw.check_tracer_leaks(), pytest.raises(UnexpectedTracerError, match=r"argument x of.*kept in a list"):
            mw.jit(lambda x: (kept.append(x), x)[1])(V)

    def test_without_leaks(self):
        """Closures, cycles, derivatives and custom rules are no leaks."""

        @mw.custom_vjp
        def f(x):
            return mnp.sin(x)

        f.defvjp(lambda x: (f(x), x), lambda x, ct: (ct * mnp.cos(x),))

        @mw.jit
        def program(x):
            cycle = [x]
            cycle.append(cycle)
            inner = mw.checkpoint(mw.jit(lambda y: f(y) * x))
            total = mw.lax.fori_loop(0, 2, lambda i, c: c + inner(c), x)
            return mw.vmap(mw.grad(lambda z: inner(z).sum() + total.sum()))(mnp.stack([x, x]))

        with mw.checking_leaks():
            program(V)
            mw.vjp(program, V)[1](mnp.ones((2, 6)))
            mw.hessian(lambda x: mw.jit(mnp.sin)(x).sum())(V)
            mw.linearize(mw.jit(mw.vmap(mnp.sin)), V)[1](V)

    def test_off_by_default_and_after(self):
        mw.jit(keep)(V)
        mw.jit(keep)(V + 1)
        Keeper.value = None

    def test_jax_reports_the_same(self):
        import jax

        kept = []
        with jax.checking_leaks(), pytest.raises(Exception, match="Leaked"):
            jax.jit(lambda x: (kept.append(x + 1), x)[1])(1.0)
