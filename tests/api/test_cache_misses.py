"""``explain_cache_misses``: what is logged where a jitted function is compiled."""

from __future__ import annotations

import functools
import logging

import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding
from meshwright import PartitionSpec as P

X = mnp.ones(4)
W = mnp.ones((4, 4))


@pytest.fixture
def logged(caplog):
    def run(call):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "meshwright"), mw.explain_cache_misses():
            call()
        return [record.getMessage() for record in caplog.records]

    return run


def product():
    return mw.jit(lambda p, x, n=1: p["w"] @ x * n, static_argnames="n")


def placed(*spec):
    return mw.device_put(W, NamedSharding(mw.make_mesh((4,), ("x",)), P(*spec)))


SECOND_CALLS = {
    "x: float32[4] → float32[4,2]": lambda f: f({"w": W}, mnp.ones((4, 2))),
    "x: float32[4] → bfloat16[4]": lambda f: f({"w": W}, X.astype("bfloat16")),
    "new arguments: p['b'], p['c']": lambda f: f({"w": W, "b": X, "c": X}, X),
    "static arguments: none → n=2": lambda f: f({"w": W}, X, n=2),
    "p['w']: in no fixed place → laid out as NamedSharding(": lambda f: f({"w": placed("x")}, X),
    "the structure of the arguments: ": lambda f: f({"w": W}, x=X),
}


@pytest.mark.parametrize("reason", SECOND_CALLS)
def test_the_difference_is_named(logged, reason):
    f = product()
    (first,) = logged(lambda: f({"w": W}, X))
    assert " is compiled at test_cache_misses.py" in first
    (second,) = logged(lambda: SECOND_CALLS[reason](f))
    assert "compiled again (program 2)" in second and f": {reason}" in second
    assert not logged(lambda: SECOND_CALLS[reason](f)), "it has a program now"


def test_it_is_the_difference_to_the_earlier_call_that_is_most_alike(logged):
    f = product()
    f({"w": placed("x")}, X)
    f({"w": W}, mnp.ones((4, 2)))
    (again,) = logged(lambda: f({"w": placed(None, "x")}, X))
    assert again.endswith("p['w']: laid out as P('x',) → laid out as P(None, 'x')")


def test_options_the_mesh_and_weak_types(logged):
    f = mw.jit(lambda x: x @ x)
    f(X)

    def otherwise():
        with mw.default_matmul_precision("highest"):
            f(X)

    assert logged(otherwise)[0].endswith("default_matmul_precision: None → 'highest'")
    with mw.set_mesh(mw.make_mesh((2,), ("a",))):
        assert ": the current mesh: " in logged(lambda: f(X))[0]
    g = mw.jit(lambda x: x)
    g(1.0)
    assert logged(lambda: g(mnp.float32(1)))[0].endswith("x: weakly typed → strongly typed")


def test_new_functions_of_one_code(logged):
    def both():
        for i in range(2):
            mw.jit(lambda x: x + i)(X)  # noqa: B023

    first, second = logged(both)
    assert first.endswith("its first call") and "a new function of the same code" in second

    def power(x, n):
        return x**n

    def partials():
        for n in (2, 3):
            mw.jit(functools.partial(power, n=n))(X)

    assert "a new function of the same code" in logged(partials)[1]


def test_cleared_programs_and_many_differences(logged):
    f = product()
    logged(lambda: f({"w": W}, X))
    f.clear_cache()
    assert logged(lambda: f({"w": W}, X))[0].endswith("its programs were cleared")
    total = mw.jit(lambda xs: sum(map(mnp.sum, xs)))
    total([X] * 12)
    (again,) = logged(lambda: total([W] * 12))
    assert again.count("→") == 7 and again.endswith("and 5 more")


def test_trees_that_take_nothing_but_arrays(logged):
    @mw.tree_util.register_pytree_node_class
    class Boxed:
        def __init__(self, value):
            self.size = value.size
            self.value = value

        def tree_flatten(self):
            return (self.value,), None

        @classmethod
        def tree_unflatten(cls, aux, children):
            return cls(*children)

    f = mw.jit(lambda box: box.value * 2)
    f(Boxed(X))
    assert logged(lambda: f(Boxed(mnp.ones(3))))[0].endswith("box[<flat index 0>]: float32[4] → float32[3]")


def test_nothing_is_logged_otherwise(caplog):
    with caplog.at_level(logging.WARNING, "meshwright"):
        f = product()
        f({"w": W}, X)
        f({"w": W}, mnp.ones((4, 2)))
    assert not caplog.records
