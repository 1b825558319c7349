"""Propagation alone: the layouts that axes spread to, as golden texts, before anything is chosen or sent."""

import gc
import itertools
from weakref import ref

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P
from meshwright.ir.jaxpr import Var
from meshwright.ir.passes import run_passes
from meshwright.lowering.pipeline import whole_pipeline
from meshwright.sharding import AbstractMesh, Layout, NamedSharding
from meshwright.spmd.driver import PREPARE
from meshwright.spmd.flatten import flatten
from meshwright.spmd.propagate import Placement, propagate

MESH = AbstractMesh((2, 4), ("a", "b"))


def spread(f, *shapes, ins, out=None):
    """Each equation with the layouts of its results; the inputs' layouts first. ``None`` is left open."""
    jaxpr = mw.make_jaxpr(f)(*(mw.ShapeDtypeStruct(s, np.float32) for s in shapes))
    jaxpr = run_passes(jaxpr, PREPARE)

    def layouts(specs, avals):
        return [None if s is None else Layout.from_spec(s, a.ndim, MESH) for s, a in zip(specs, avals)]

    ends = layouts(ins, jaxpr.in_avals), layouts(out or [None] * len(jaxpr.out_avals), jaxpr.out_avals)
    found = propagate(jaxpr.jaxpr, MESH, *ends)

    def text(v):
        return found.layout(v).format(MESH) if isinstance(v, Var) else "literal"

    lines = [" ".join(map(text, jaxpr.jaxpr.invars))]
    return "\n".join([*lines, *(f"{e.op.name}: {' '.join(map(text, e.outvars))}" for e in jaxpr.jaxpr.eqns)])


def constrained(x, *entries):
    return mw.lax.with_sharding_constraint(x, NamedSharding(MESH, P(*entries)))


def golden(text):
    return "\n".join(line.strip() for line in text.strip().splitlines())


CASES = {
    "the axes before one that another dimension has": (
        lambda x, y: mnp.sqrt(x)[:, None] * mnp.exp(y), [(16,), (16, 8)], [P(("a", "b")), P(None, "b")], None,
        """
        [{a, b}] [{}, {b}]
        sqrt: [{a, b}]
        reshape: [{a, b}, {}]
        exp: [{a}, {b}]
        broadcast_in_dim: [{a}, {b}]
        mul: [{a}, {b}]
        """,
    ),
    "along the batch, through a layer and its reduction": (
        lambda x, w: mnp.tanh(x @ w).sum(1), [(8, 6), (6, 4)], [P("a"), None], None,
        """
        [{a}, {}] [{}, {}]
        dot_general: [{a}, {}]
        tanh: [{a}, {}]
        reduce_sum: [{a}]
        """,
    ),
    "backwards from a result": (
        lambda x, w: mnp.tanh(x @ w), [(8, 6), (6, 4)], [None, None], [P("a", "b")],
        """
        [{a}, {}] [{}, {b}]
        dot_general: [{a}, {b}]
        tanh: [{a}, {b}]
        """,
    ),
    "a dimension that was fixed stays": (
        lambda x: mnp.exp(constrained(mnp.sin(x), "a", None)), [(8, 4)], [P("b")], None,
        """
        [{b}, {}]
        sin: [{b}, {}]
        sharding_constraint: [{a}, {}]
        exp: [{a}, {}]
        """,
    ),
    "an open dimension grows": (
        lambda x: mnp.exp(constrained(mnp.sin(x), "a", P.UNCONSTRAINED)), [(8, 4)], [P(None, "b")], None,
        """
        [{}, {b}]
        sin: [{a}, {b}]
        sharding_constraint: [{a}, {b}]
        exp: [{a}, {b}]
        """,
    ),
    "through a reshape, by parts of axes": (
        lambda x: x.reshape(4, 4, 3), [(16, 3)], [P(("a", "b"))], None,
        """
        [{a, b}, {}]
        reshape: [{a, b:(1)2}, {b:(2)2}, {}]
        """,
    ),
    "one axis is wanted twice": (
        lambda x, w: x @ w, [(8, 6), (6, 4)], [P("a"), P(None, "a")], None,
        """
        [{a}, {}] [{}, {a}]
        dot_general: [{a}, {}]
        """,
    ),
    "in and out of a loop": (
        lambda x, w: mw.lax.fori_loop(0, 3, lambda i, c: mnp.tanh(c @ w), x), [(8, 4), (4, 4)], [P("a"), None], None,
        """
        [{a}, {}] [{}, {}]
        scan: [{a}, {}]
        """,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_golden(name):
    f, shapes, ins, out, want = CASES[name]
    assert spread(f, *shapes, ins=ins, out=out) == golden(want)


def test_the_whole_pipeline_is_one_list():
    text = str(whole_pipeline()).splitlines()
    assert [line[:2].strip() for line in text] == [str(n) for n in range(1, len(text) + 1)]
    assert all(line[40:].endswith((".", ")")) for line in text), "each pass has a sentence"
    order = ["inline calls", "merge moves", "partition", "merge common collectives", "scatter sums", "gather again"]
    order += ["batch virtual axes", "whole regions", "start sums early"]
    numbers = [next(i for i, line in enumerate(text) if f" {name} " in line) for name in order]
    assert numbers == sorted(numbers)


def test_a_program_is_flattened_once_for_all_orders_and_forgotten_with_it():
    program = mw.make_jaxpr(lambda xs: mw.lax.scan(lambda c, x: (mnp.sin(c) * x, c), xs[0], xs))(np.ones((4, 8), "f4"))
    jaxpr = run_passes(program, PREPARE).jaxpr
    del program
    known = flatten(jaxpr)
    assert flatten(jaxpr) is known
    propagate(jaxpr, MESH, [Layout((("a",), ("b",)))], [None, None])
    assert known.neighbours == flatten.__wrapped__(jaxpr).neighbours  # spreading changes nothing of it
    gone = ref(jaxpr)
    del jaxpr, known
    gc.collect()
    assert gone() is None


def test_what_was_found_without_a_placement_splits_no_dimension_by_an_axis_of_another():
    """Annotations that do not fix a value (those of outputs) are hidden while a turn spreads."""
    ways = [(), ("a",), ("b",), ("a", "b"), ("b", "a")]
    layouts = [dims for dims in itertools.product(ways, repeat=3) if len(set(sum(dims, ()))) == len(sum(dims, ()))]
    for before, found in itertools.product(layouts, repeat=2):
        grown = Placement(before, (False,) * 3).grown(found)
        assert grown in layouts and all(new[: len(old)] == old for old, new in zip(before, grown))
        assert grown == found or not all(new[: len(old)] == old for old, new in zip(before, found)) or any(before)
