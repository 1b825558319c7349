"""checkify: checks as values, through control flow, jit, vmap and grad, with jax's outcomes."""

from __future__ import annotations

import jax
import jax.experimental.checkify as jax_checkify
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import checkify, lax
from meshwright.errors import CheckError, RuleError

X = np.array([1.0, 4.0, 9.0], np.float32)


@pytest.mark.parametrize("jitted", [False, True])
def test_user_checks_give_the_first_message(jitted):
    def f(x, n):
        checkify.check(x.sum() > n, "sum {} must be over {limit}", x.sum(), limit=n)
        checkify.check(x[0] > 5, "first {}", x[0])
        return x * 2

    g = checkify.checkify(f)
    g = mw.jit(g) if jitted else g
    error, out = g(X, 20.0)
    np.testing.assert_array_equal(out, X * 2)
    assert error.get() == "sum 14.0 must be over 20.0"
    assert g(X, 2.0)[0].get() == "first 1.0"
    assert g(X + 9, 2.0)[0].get() is None
    g(X + 9, 2.0)[0].throw()
    with pytest.raises(CheckError, match="first 1"):
        checkify.check_error(g(X, 2.0)[0])


@pytest.mark.parametrize("case", ["scan", "cond", "while", "nested"])
def test_control_flow_as_in_jax(case):
    def make(c, l, n, control):
        def body(carry, x):
            c.check(x < 5, "step {i} of {x}", i=carry, x=x)
            return carry + 1, x * 2

        def scan(x):
            return control.scan(body, 0, x)

        def cond(x):
            def yes(x):
                c.check(x[0] > 3, "small {}", x[0])
                return x

            return control.cond(x.sum() > 10, yes, lambda x: x + 1, x)

        def loop(x):
            def step(s):
                c.check(s[1] < 3, "too many: {}", s[1])
                return s[0] / 2, s[1] + 1

            return control.while_loop(lambda s: s[0].sum() > 1, step, (x, 0))

        def nested(x):
            return control.scan(lambda i, y: control.cond(y > 3, lambda: body(i, y), lambda: (i, y)), 0, x)

        return {"scan": scan, "cond": cond, "while": loop, "nested": nested}[case]

    ours = mw.jit(checkify.checkify(make(checkify, lax, mnp, lax)))
    theirs = jax.jit(jax_checkify.checkify(make(jax_checkify, jax.lax, jnp, jax.lax)))
    for x in (X, X / 10, X + 100, X - 3):
        (error, out), (want_error, want) = ours(x), theirs(x)
        said = want_error.get()
        assert (error.get() is None) == (said is None)
        if said is not None:
            assert error.get() == said.split(" (`check` failed)")[0]
        for a, b in zip(mw.tree.leaves(out), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-6)


def test_nan_checks_name_the_op_and_line():
    f = mw.jit(checkify.checkify(lambda x: mnp.sqrt(mnp.log(x)).sum(), errors=checkify.nan_checks))
    assert f(X)[0].get() is None
    message = f(X - 5)[0].get()
    assert message.startswith("nan made by log at test_checkify.py")
    assert f(X / 2)[0].get().startswith("nan made by sqrt")
    inside = checkify.checkify(lambda x: lax.scan(lambda c, x: (c + mnp.log(x), None), 0.0, x)[0], checkify.nan_checks)
    assert inside(X - 5)[0].get().startswith("nan made by log")
    gradient = checkify.checkify(mw.grad(lambda x: mnp.sqrt(x - x)), errors=checkify.float_checks)
    assert "division by zero" in gradient(1.0)[0].get()


USES = {
    "getitem": lambda x, i: x[i],
    "array": lambda x, i: x[mnp.stack([0, i])],
    "set": lambda x, i: x.at[i].set(2.0),
    "add": lambda x, i: x.at[mnp.stack([0, i])].add(2.0),
    "slice": lambda x, i: lax.dynamic_slice(x, [i], (1,)),
    "update": lambda x, i: lax.dynamic_update_slice(x, x[:1], [i]),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_index_checks(use):
    f = mw.jit(checkify.checkify(use, errors=checkify.index_checks))
    assert f(X, 2)[0].get() is None and f(X, -1)[0].get() is None
    for bad in (3, -4, 77):
        message = f(X, bad)[0].get()
        assert message is not None and "out of bounds" in message and "f32[3]" in message and "test_checkify" in message


def test_division_checks():
    f = checkify.checkify(lambda x, y: x // y, errors=checkify.div_checks)
    assert f(np.array([4, 5]), np.array([2, 1]))[0].get() is None
    assert "division by zero" in f(np.array([4, 5]), np.array([2, 0]))[0].get()


def test_vmap_outside_and_inside():
    def f(x, c=checkify):
        c.check(x < 4, "got {}", x)
        return x

    def theirs(x):
        return f(x, jax_checkify)

    said = mw.vmap(checkify.checkify(f))(X)[0].get()
    assert said == "at mapped index 1: got 4.0\nat mapped index 2: got 9.0"
    assert said == jax.vmap(jax_checkify.checkify(theirs))(X)[0].get().replace(" (`check` failed)", "")
    assert mw.vmap(checkify.checkify(f))(X / 10)[0].get() is None
    assert checkify.checkify(mw.vmap(f))(X)[0].get() == "at mapped index 1: got 4.0"
    assert mw.jit(checkify.checkify(mw.vmap(mw.vmap(f))))(X.reshape(3, 1))[0].get() == "at mapped index 1, 0: got 4.0"
    assert checkify.checkify(mw.vmap(f))(X[:0])[0].get() is None
    assert mw.vmap(checkify.checkify(mw.vmap(f)))(X.reshape(3, 1))[0].get().startswith("at mapped index 1, 0: got 4.0")
    unmapped = mw.vmap(lambda x, y: (checkify.check(y > 2, "{}", x), x)[1], in_axes=(0, None))
    assert checkify.checkify(unmapped)(X, 1)[0].get() == "at mapped index 0: 1.0"


def test_debug_checks_are_for_checked_functions_alone():
    def f(x):
        checkify.debug_check(x.sum() < 4, "got {x}", x=x.sum())
        return lax.scan(lambda c, v: (checkify.check(v[0] < 4, "no", debug=True), (c + v, v))[1], x[0], x)[0].sum()

    split = mw.NamedSharding(mw.make_mesh((4,), ("x",)), mw.P(None, "x"))
    x = mnp.arange(8.0).reshape(2, 4)
    for run in (f, mw.jit(f), mw.jit(f, in_shardings=split), mw.vmap(lambda v: f(v[None])), mw.jit(mw.grad(f))):
        run(x)
    assert "check" not in mw.jit(f, in_shardings=split).lower(x).partition().as_text()
    error, _ = mw.jit(checkify.checkify(mw.jit(f)))(x)
    assert error.get() == "got 28.0"
    with pytest.raises(checkify.JaxRuntimeError, match="got 28"):
        checkify.check_error(error)

    def inner(x):
        checkify.check_error(checkify.checkify(f)(x)[0])

    with pytest.raises(NotImplementedError, match="got"):
        mw.jit(inner)(x)


def test_errors_of_an_inner_function_and_eager_checks(refuses):
    inner = checkify.checkify(lambda x: (checkify.check(x > 0, "inner {}", x), x)[1])

    def outer(x):
        error, y = inner(x)
        checkify.check_error(error)
        return y

    assert mw.jit(checkify.checkify(outer))(-1.0)[0].get() == "inner -1.0"
    checkify.check(np.bool_(True), "fine")
    with refuses(ValueError, "not 3"):
        checkify.check(np.bool_(False), "not {}", 3)
    with refuses(TypeError, "bool scalar", ".all()"):
        checkify.check(X > 0, "x")
    with refuses(NotImplementedError, "checkify.checkify(f)"):
        mw.jit(lambda x: checkify.check(x > 0, "x"))(1.0)
    with refuses(ValueError, "user_checks"):
        checkify.checkify(lambda x: x, errors="nan")


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize(
    "use",
    [
        lambda x: x[3],
        lambda x: x[-4],
        lambda x: x[(5,)],
        lambda x: x[5] * x[0],
        lambda x: x.at[3].get(),
        lambda x: x.at[-4].get(mode="fill"),
        lambda x: x.at[3].set(1.0),
        lambda x: x[:, None][1, 2],
        lambda x: x[None][0, 3],
        lambda x: mnp.stack([x, x])[mnp.array([0, 1]), 3],
        lambda x: mnp.take(x, 3),
        lambda x: lax.dynamic_index_in_dim(x, 3),
    ],
)
def test_static_indices_out_of_range(use, jitted):
    x = np.arange(3, dtype=np.float32)
    error, out = mw.checkify.checkify(mw.jit(use) if jitted else use, errors=mw.checkify.index_checks)(x)
    assert "out of bounds" in error.get()
    np.testing.assert_array_equal(out, use(mnp.asarray(x)))
    assert mw.checkify.checkify(lambda x: x[2] + x[-3], errors=mw.checkify.index_checks)(x)[0].get() is None


# --- checks wherever a function runs a body -----------------------------------------------------------------
FAULTS = {
    "user": lambda y: (checkify.check(mnp.all(y > 5), "small"), y * 2)[1],
    "div": lambda y: 1 / (y - y),
    "nan": lambda y: mnp.log(-y * y - 1),
    "index": lambda y: y * mnp.arange(3.0)[mnp.sum(y > -9) + 5],
}


def _region(f, x, manual=("i", "j"), check_vma=True):
    spec = mw.P(manual)
    mesh = mw.make_mesh((2, 2), ("i", "j"))
    region = mw.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec, axis_names=set(manual), check_vma=check_vma)
    return mw.jit(region)(x)


RUNS = {
    "jit": lambda f, x: mw.jit(f)(x),
    "checkpoint": lambda f, x: mw.checkpoint(f)(x),
    "scan": lambda f, x: lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0],
    "cond": lambda f, x: lax.cond(x[0] > 0, f, lambda y: y * 2, x),
    "while": lambda f, x: lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, f(c[1])), (0, x)),
    "a test": lambda f, x: lax.while_loop(
        lambda c: (c[0] < 2) & (f(c[1])[0] > -np.inf), lambda c: (c[0] + 1, x), (0, x)
    ),
    "a first test": lambda f, x: lax.while_loop(lambda c: (c[0] < 0) & (f(c[1])[0] > 0), lambda c: c, (0, x)),
    "a mapped test": lambda f, x: mw.vmap(
        lambda n: lax.while_loop(lambda c: (c < n) & (f(x + c)[0] > 0), lambda c: c + 1, 0)
    )(mnp.array([0, 3])),
    "a region": _region,
    "a region without types": lambda f, x: _region(f, x, check_vma=False),
    "a region along one axis": lambda f, x: _region(f, x, ("j",)),
    "a region in a loop": lambda f, x: lax.fori_loop(0, 2, lambda i, c: _region(f, c), x),
    "pmap": lambda f, x: mw.pmap(f)(x.reshape(4, 1)),
    "pmap in pmap": lambda f, x: mw.pmap(mw.pmap(f))(x.reshape(2, 2, 1)),
    "associative_scan": lambda f, x: lax.associative_scan(lambda a, b: a + f(b), x),
    "sequential_vmap": lambda f, x: mw.vmap(mw.custom_batching.sequential_vmap(f))(x.reshape(2, 2)),
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
@pytest.mark.parametrize("kind", FAULTS)
def test_checks_are_made_in_every_body(kind, run):
    x = mnp.array([1.0, 2.0, 3.0, 4.0])

    def said(f):
        checked = checkify.checkify(lambda x: run(f, x), errors=checkify.all_checks)
        plain, jitted = (g(x)[0].get() for g in (checked, mw.jit(checked)))
        assert plain == jitted
        return plain

    assert said(lambda y: y * 2) is None
    word = {"user": "small", "div": "division", "nan": "nan made", "index": "out of bounds"}[kind]
    assert word in said(FAULTS[kind])


def test_of_devices_the_first_that_fails_speaks():
    def f(x):
        checkify.check(x[0] < 3, "got {}", x[0])
        return x

    error, out = mw.jit(checkify.checkify(lambda x: _region(f, x)))(mnp.arange(4.0) + 1)
    assert error.get() == "got 3.0" and out.tolist() == [1, 2, 3, 4]


def test_what_entries_do_not_run_does_not_fail():
    def loop(n):
        def body(c):
            checkify.check(c < n, "{} of {}", c, n)
            inner = lax.fori_loop(0, 2, lambda i, v: (checkify.check(c < n, "inner"), v)[1], c)
            return mw.jit(lambda c: (checkify.check(c != 2, "two of {}", n), c + 1)[1])(inner)

        return lax.while_loop(lambda c: c < n, body, 0)

    def choice(n):
        def positive(n):
            checkify.check(n > 0, "got {}", n)
            return n

        return lax.cond(n > 0, positive, lambda n: -n, n)

    for f, good, bad, text in (
        (loop, [1, 0, 2], [1, 3], "at mapped index 1: two of 3"),
        (choice, [1, -2, 3], None, ""),
    ):
        g = checkify.checkify(mw.vmap(f))
        error, out = mw.jit(g)(mnp.array(good))
        assert error.get() is None and out.tolist() == [abs(x) for x in good]
        if bad:
            assert g(mnp.array(bad))[0].get() == text
            assert checkify.checkify(mw.vmap(mw.vmap(f)))(mnp.array([bad]))[0].get() is not None


def test_messages_hold_types_and_fills_are_no_mistakes():
    region = checkify.checkify(
        lambda x: _region(lambda y: y * mnp.arange(3.0)[mnp.sum(y > -9) + 5], x), checkify.all_checks
    )
    assert "{V:" in region(mnp.ones(4))[0].get()
    filled = checkify.checkify(lambda x: x.at[mnp.array([0, 9])].get(mode="fill"), checkify.nan_checks)
    assert filled(X)[0].get() is None


def _logs(n, x):
    return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, mnp.log(s[1] - 1)), (0, x))[1]


@pytest.mark.parametrize("called", [mw.vmap, lambda f: mw.jit(mw.vmap(f))], ids=["vmap", "jit"])
def test_loops_whose_entries_end_apart(called, refuses):
    """An entry that is done computes on: what it makes is neither selected nor wrong. JAX refuses, too."""
    args = np.int32([0, 2]), np.float32([-5, 50])
    f = called(_logs)
    np.testing.assert_allclose(f(*args)[0], -5)
    for errors in (checkify.nan_checks, checkify.all_checks):
        with refuses(RuleError, "vmap(checkify(f, errors))", "nan_checks"):
            checkify.checkify(f, errors)(*args)
        with pytest.raises(ValueError, match="vmap-of-checkify-of-while"):
            jax_checkify.checkify(jax.vmap(_by_jax), jax_checkify.all_checks)(*args)
        assert mw.vmap(checkify.checkify(_logs, errors))(*args)[0].get() is None
    for errors in (checkify.user_checks, checkify.index_checks):  # for which there is nothing to look for
        assert checkify.checkify(f, errors)(*args)[0].get() is None
    alike = mw.vmap(lambda x: _logs(2, x))
    assert "nan made by log" in checkify.checkify(alike, checkify.nan_checks)(args[1])[0].get()


def _by_jax(n, x):
    return jax.lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, jnp.log(s[1] - 1)), (0, x))[1]
