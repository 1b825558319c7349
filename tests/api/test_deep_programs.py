"""Programs and trees that are deeply nested: they work, or say what is too deep."""

import sys
import threading

import jax
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.errors import NestingError
from meshwright.ir.jaxpr import nesting
from meshwright.ir.passes import MOST_NESTED


def nested(depth, wrap=mw.jit):
    """``x -> 2x + depth`` through ``depth`` functions, each of which calls the next."""
    function = wrap(lambda x: x * 2.0)
    for _ in range(depth):
        function = wrap(lambda x, inner=function: inner(x) + 1.0)
    return function


def in_lists(depth, leaf):
    for _ in range(depth):
        leaf = [leaf]
    return leaf


X = np.arange(4, dtype=np.float32)


def test_deep_calls_run():
    limit = sys.getrecursionlimit()
    f = nested(1000)
    np.testing.assert_array_equal(f(X), X * 2 + 1000)
    assert sys.getrecursionlimit() == limit
    assert float(mw.grad(f)(1.0)) == 2.0
    np.testing.assert_array_equal(mw.vmap(f)(X), X * 2 + 1000)
    np.testing.assert_array_equal(mw.jvp(f, (X,), (X,))[1], X * 2)
    assert f.lower(X).as_text().count("stablehlo.add") == 1000


def test_deep_calls_are_partitioned():
    mesh = mw.make_mesh((2,), ("data",))
    f = nested(300)
    part = mw.jit(f, in_shardings=(mw.NamedSharding(mesh, mw.P("data")),)).lower(X).partition(mesh)
    part.verify(X)


def test_jaxprs_are_not_as_deep_as_calls():
    heights = [nesting(mw.make_jaxpr(nested(n))(1.0).jaxpr) for n in (10, 25, 60, 200)]
    assert heights[:3] == [11, 26, 61]  # calls stay calls
    assert max(heights) <= MOST_NESTED


def test_calls_built_from_below_are_flattened_too():
    function = mw.jit(lambda x: x * 2.0)
    for _ in range(150):
        function = mw.jit(lambda x, inner=function: inner(x) + 1.0)
        function.trace(1.0)
    assert float(mw.grad(function)(1.0)) == 2.0


def test_no_worse_than_jax():
    """JAX follows some 100 levels."""
    with pytest.raises(RecursionError):
        nested(1000, jax.jit)(1.0)


def test_deep_calls_in_threads():
    results = []
    limit = sys.getrecursionlimit()
    threads = [threading.Thread(target=lambda: results.append(float(nested(400)(1.0)))) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == [402.0] * 3 and sys.getrecursionlimit() == limit


def test_endless_calls_say_so():
    limit = sys.getrecursionlimit()

    @mw.jit
    def forever(x):
        return forever(x)

    with pytest.raises(NestingError, match=r"while forever was traced.*lax\.scan"):
        forever(1.0)

    def plain(x):
        return plain(x)

    with pytest.raises(NestingError, match="while plain was traced"):
        mw.jit(plain)(1.0)
    assert sys.getrecursionlimit() == limit
    assert float(mw.jit(lambda x: x + 1)(1.0)) == 2.0


# --- more ways through the calls than can be gone -----------------------------------------------------------
def doubled(levels, leaf=lambda x: x * 0.5):
    """A function that calls another twice, that calls another twice, ...: ``2 ** levels`` calls of ``leaf``."""
    function = mw.jit(leaf)
    for _ in range(levels):
        function = mw.jit(lambda x, inner=function: inner(inner(x)))
    return function


TOWER = doubled(60)


def test_functions_are_gone_through_once():
    def loss(x):
        return TOWER(x).sum()

    def step(x):
        return mw.lax.scan(lambda c, _: (TOWER(c), None), x, None, length=3)[0].sum()

    transformed = [
        TOWER, mw.vmap(TOWER), lambda x: mw.jvp(TOWER, (x,), (x,)), mw.grad(loss), mw.grad(step),
        mw.grad(lambda x: mw.grad(loss)(x).sum()), mw.vmap(mw.grad(loss)),
    ]  # fmt: skip
    x = np.ones((2, 3), np.float32)
    for function in transformed:
        lowered = mw.jit(function).lower(x)
        assert lowered.as_text().count("func.func") < 300
        assert str(mw.make_jaxpr(function)(x)).count("\n") < 5000
    loaded = mw.load(TOWER.lower(x).as_text())
    assert loaded.as_text().count("jit") >= 60
    mw.export.export(TOWER)(x).serialize()


def test_each_call_counts():
    function = doubled(9, lambda x: mnp.tanh(x) + 0.25)
    want = X / 4
    for _ in range(2**9):
        want = np.tanh(want) + np.float32(0.25)
    np.testing.assert_allclose(function(X / 4), want, rtol=1e-4)
    assert float(mw.grad(doubled(9, lambda x: x * 1.01))(1.0)) == pytest.approx(1.01**512, rel=1e-4)


def test_what_has_to_be_written_out_says_how_much_that_is():
    mesh = mw.AbstractMesh((2,), ("a",))
    x = np.ones((2, 3), np.float32)
    split = mw.NamedSharding(mesh, mw.P("a"))
    tries = [
        lambda: TOWER(x),
        lambda: TOWER.lower(x).cost_analysis(),
        lambda: mw.jit(TOWER, in_shardings=split).lower(x).partition(),
        lambda: mw.shard_map(TOWER, mesh=mesh, in_specs=mw.P("a"), out_specs=mw.P("a"))(x),
        lambda: mw.grad(lambda x: mw.checkpoint(TOWER)(x).sum())(x),
        lambda: doubled(100).trace(x),
        lambda: mw.jit(mw.checkpoint(TOWER)).lower(x).compile(),
    ]
    for attempt in tries:
        with pytest.raises(NestingError, match=r"e\+.* equations when the calls are written out.*lax\.scan"):
            attempt()


def test_many_kept_values_are_refused(monkeypatch):
    monkeypatch.setattr("meshwright.transforms.rules._MOST_RESIDUALS", 1000)
    with pytest.raises(NestingError, match=r"needs \d,\d+ values of it, at most 1,000 are kept.*lax\.scan"):
        mw.make_jaxpr(mw.grad(doubled(30, mnp.sin)))(1.0)


def test_texts_say_once_what_is_called_often():
    text = str(mw.make_jaxpr(doubled(60))(1.0))
    first, *_ = [line for line in text.splitlines() if "{ as " in line]
    number = first.split("#")[1].split()[0]
    assert sum(line.endswith(f"}} #{number}") for line in text.splitlines()) == 1
    assert "#" not in str(mw.make_jaxpr(doubled(5))(1.0))


@pytest.mark.parametrize("depth", [1500, 100_000])
def test_trees_deeper_than_optree_goes(depth):
    tree = in_lists(depth, 1.0)
    checks = [mw.jit(lambda t: t), mw.tree.leaves, mw.tree.structure, mw.tree.flatten]
    for check in checks:
        with pytest.raises(NestingError, match="1,000 containers deep"):
            check(tree)
    with pytest.raises(NestingError, match="1,000 containers deep"):
        mw.jit(lambda x: in_lists(1500, x))(1.0)


def test_a_tree_in_itself():
    tree = []
    tree.append(tree)
    with pytest.raises(NestingError, match="holds itself"):
        mw.jit(lambda t: t)(tree)


def test_deep_trees_that_optree_follows():
    tree = in_lists(900, X)
    out = mw.jit(lambda t: mw.tree.map(mnp.sin, t))(tree)
    np.testing.assert_allclose(mw.tree.leaves(out)[0], np.sin(X), rtol=1e-6)
    grads = mw.grad(lambda t: mnp.sum(mw.tree.leaves(t)[0] ** 2))(tree)
    np.testing.assert_allclose(mw.tree.leaves(grads)[0], 2 * X)
