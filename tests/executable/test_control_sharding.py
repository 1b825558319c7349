"""Partitioned control flow against the unpartitioned program, and what it sends."""

import itertools

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import AbstractMesh, NamedSharding, lax
from meshwright import PartitionSpec as P
from meshwright.ir.jaxpr import all_eqns
from meshwright.ir.verify import verify
from meshwright.spmd.partition import lookahead

MESH = AbstractMesh((3, 2), ("data", "model"))
RNG = np.random.default_rng(3)


def f32(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def partition(f, args, specs, mesh=MESH, out=None):
    shardings = tuple(None if s is None else NamedSharding(mesh, s) for s in specs)
    out = None if out is None else NamedSharding(mesh, out)
    part = mw.jit(lambda *a: f(*a), in_shardings=shardings, out_shardings=out).lower(*args).partition(mesh)
    verify(part.jaxpr)
    part.verify(*args)
    return part


def recurrence(w, c, xs):
    def body(c, x):
        y = mnp.tanh(c @ w + x)
        return y, (y.sum(), y[:, ::-1])

    return lax.scan(body, c, xs, reverse=True, unroll=2)


def recurrence_grads(w, c, xs):
    def loss(w, c, xs):
        last, (sums, ys) = recurrence(w, c, xs)
        return (last**2).sum() + (sums * sums).sum() + mnp.cos(ys).mean()

    return mw.grad(loss, (0, 1, 2))(w, c, xs)


def iterate(w, c, xs):
    def body(s):
        i, c, total = s
        c = mnp.sin(c @ w)
        return i + 1, c, total + c.sum(0)

    return lax.while_loop(lambda s: (s[0] < 5) & (mnp.abs(s[1]).sum() < 40), body, (0, c, mnp.zeros(w.shape[0])))


def choose(w, c, xs):
    def f(w, c):
        branches = [lambda: c @ w, lambda: mnp.zeros_like(c), lambda: c * w[0]]
        return [lax.switch(i, branches) for i in range(3)]

    return f(w, c), mw.grad(lambda w: sum((y**2).sum() for y in f(w, c)))(w)


def nested(w, c, xs):
    def outer(c, x):
        def inner(i, y):
            return lax.cond(y.sum() > 0, lambda: mnp.tanh(y @ w), lambda: y - x)

        return lax.fori_loop(0, 3, inner, c), (c * x).sum(1)

    return lax.scan(outer, c, xs)


SPECS = [
    (P(None, "model"), P("data"), P(None, "data")),
    (P("model", "data"), None, None),
    (P("data"), P(None, "model"), P("model", None, "data")),
    (P(), P("model", "data"), P(None, ("data", "model"))),
]


@pytest.mark.parametrize("program", [recurrence, recurrence_grads, iterate, choose, nested])
@pytest.mark.parametrize("specs", SPECS, ids=str)
def test_partitioned_equals_whole(program, specs):
    partition(program, (f32(6, 6), f32(6, 6), f32(4, 6, 6)), specs)


@pytest.mark.parametrize("program,specs", list(itertools.product([recurrence, recurrence_grads, iterate], SPECS[:3])))
def test_uneven_dimensions(program, specs):
    partition(program, (f32(5, 5), f32(7, 5), f32(3, 7, 5)), specs)


def microbatches(w, xs):
    def body(total, x):
        value, grad = mw.value_and_grad(lambda w: (mnp.tanh(x @ w) ** 2).sum())(w)
        return total + grad, value

    total, values = lax.scan(body, mnp.zeros_like(w), xs)
    return w - 0.1 * total, values.mean()


def test_an_accumulated_gradient_is_reduced_once():
    part = partition(microbatches, (f32(8, 6), f32(10, 6, 8)), (P(), P(None, "data")))
    assert [(c.kind, "data" in c.axes, c.count) for c in part.collectives] == [("all_reduce", True, 1)] * 2
    assert part.bytes_sent <= 2 * 8 * 6 * 4 * 2 // 3 + -(-2 * 4 * 2 // 3)


def test_cotangents_of_a_weight_are_reduced_once():
    part = partition(recurrence_grads, (f32(6, 6), f32(6, 6), f32(9, 6, 6)), (P(), P("data"), P(None, "data")))
    assert all(c.count == 1 for c in part.collectives)


def test_a_gradient_that_becomes_sharded_is_scattered_once():
    def step(w, xs):
        return microbatches(w, xs)[0]

    part = partition(step, (f32(6, 6), f32(10, 6, 6)), (P("data"), P(None, "data")), out=P("data"))
    assert {c.kind for c in part.collectives if c.axes == ("data",) and c.count == 1} >= {"reduce_scatter"}


@pytest.fixture
def carried_as_is(monkeypatch):
    """What loops carry is not moved before them, which would send less."""
    monkeypatch.setattr(lookahead, "carried", lambda part: iter(()))


@pytest.mark.usefixtures("carried_as_is")
def test_loops_multiply_what_is_sent():
    def f(w, c):
        return lax.fori_loop(0, 7, lambda i, c: mnp.sin(c @ w), c)

    part = partition(f, (f32(6, 6), f32(6, 6)), (P("model"), P("data", "model")))
    (found,) = part.collectives
    assert found.count == 7 and found.bytes_sent == part.bytes_sent and "7 times" in part.explain()
    once = found.operand.nbytes // 2 if found.kind == "reduce_scatter" else found.result.nbytes // 2
    assert found.bytes_sent == 7 * once


@pytest.mark.usefixtures("carried_as_is")
def test_trip_count_of_a_while():
    def f(limit):
        def g(w, c):
            return lax.while_loop(lambda s: s[0] < limit(c), lambda s: (s[0] + 2, mnp.sin(s[1] @ w)), (1, c))[1]

        return g

    args, specs = (f32(6, 6), f32(6, 6)), (P(None, "model"), P("data"))
    counted = partition(f(lambda c: 8), args, specs)
    assert [c.count for c in counted.collectives] == [4] and "not known" not in counted.explain()
    unknown = partition(f(lambda c: mnp.abs(c).astype(int).max() + 8), args, specs)
    assert "how often the while runs is not known" in unknown.explain()


def test_a_predicate_is_known_to_all_devices():
    part = partition(iterate, (f32(6, 6), f32(6, 6), f32(1, 6, 6)), (P(), P("data"), None))
    loop = next(e for e in part.jaxpr.eqns if e.op.name == "while")
    inside = [e.op.name for e in all_eqns(loop.op.cond_jaxpr.jaxpr)]
    assert inside.index("psum") < inside.index("lt", inside.index("reduce_sum"))


def test_scanned_dimension_is_gathered_and_reported():
    def f(xs, w):
        return lax.scan(lambda c, x: (mnp.tanh(c @ w + x), c), mnp.zeros(6), xs)

    part = partition(f, (f32(6, 6), f32(6, 6)), (P("data"), P()))
    assert part.collectives and all(c.count == 1 for c in part.collectives)
    assert "operand 2 is gathered along dimension 0 (was split by data)" in part.explain()


def test_peak_counts_the_body():
    def f(x):
        # What is sorted has to be in memory; a product that is summed at once would not.
        return lax.fori_loop(0, 3, lambda i, y: mnp.sort(y[:, None] * mnp.arange(500.0)).sum(1), x)

    part = partition(f, (f32(600),), (P("data"),))
    assert part.peak_bytes >= 200 * 500 * 4


def test_regions_of_one_function_have_layouts_of_their_own():
    def body(c, x):
        return mnp.tanh(c + x), None

    def f(a, b, xs, ys):
        return lax.scan(body, a, xs)[0], lax.scan(body, b, ys)[0]

    args = f32(6, 6), f32(6, 6), f32(3, 6, 6), f32(3, 6, 6)
    part = partition(f, args, (P("data"), P(None, "data"), None, None))
    assert not part.collectives
    assert [s.spec for s in part.out_shardings] == [P("data"), P(None, "data")]


def test_stablehlo_of_the_device_program():
    part = partition(recurrence, (f32(6, 6), f32(6, 6), f32(4, 6, 6)), SPECS[0])
    text = part.as_text("stablehlo")
    assert "stablehlo.while" in text and "replica_groups" in text
    assert "while(" in part.as_text("hlo")


WHOLE = NamedSharding(MESH, P(None, None))
BRANCHES = [mnp.tanh, lambda v: lax.with_sharding_constraint(v, WHOLE)]


@pytest.mark.parametrize("branches", [BRANCHES, BRANCHES[::-1]], ids=["as it is first", "whole first"])
def test_branches_agree_on_the_cheapest_layout_of_a_result(branches):
    """Neither gathers what the result is not needed whole for, whichever comes first."""

    def f(i, v):
        return lax.cond(i > 0, *branches, v)

    part = partition(f, [np.float32(1), f32(12, 6)], [None, P("data", "model")], out=P(None, "model"))
    assert [(c.kind, c.bytes_sent) for c in part.collectives] == [("all_gather", 2 * 4 * 3 * 4)]


def test_who_has_a_result_whole_anyway_sends_nothing_for_it():
    """It is read whole in one branch; the other brings its own to where it should lie, and the result is there."""

    def both(v):
        w = BRANCHES[1](v)
        return w * w.sum()

    def f(i, v):
        return lax.cond(i > 0, both, mnp.tanh, v)

    part = partition(f, [np.float32(1), f32(12, 6)], [None, P("data", "model")], out=P(None, "model"))
    cond = part.jaxpr.jaxpr.eqns[-1]
    assert (cond.op.name, cond.outvars[0].aval.shape) == ("cond", (12, 3))
    assert max(c.bytes_sent for c in part.collectives) == 2 * 4 * 6 * 4
