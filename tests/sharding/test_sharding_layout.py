"""Partition specs and layouts."""

from __future__ import annotations

import copy
import pickle

import pytest

from meshwright.errors import ShardingError
from meshwright.sharding import AbstractMesh, Layout, PartitionSpec

P = PartitionSpec
MESH = AbstractMesh((4, 2), ("data", "model"))
D = ("data:(1)2", "data:(2)2")


# --- specs --------------------------------------------------------------------------------------------------
def test_specs_are_tuples_in_normal_form():
    assert P("data", None) == ("data", None)
    assert P(("data",)) == P("data") and hash(P(["data"])) == hash(P("data"))
    assert P(()) == P(None) != P()
    assert P("data") != P("data", None)
    assert P(("a", "b")) != P(("b", "a"))
    assert repr(P("data", None)) == "P('data', None)"
    assert repr(P("data")) == "P('data',)"
    assert repr(P()) == "P()"


def test_unconstrained_entries():
    spec = P(P.UNCONSTRAINED, "data")
    assert spec.is_unconstrained(0) and not spec.is_unconstrained(1) and not spec.is_unconstrained(2)
    assert repr(spec) == "P(UNCONSTRAINED, 'data')"
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert pickle.loads(pickle.dumps(spec))[0] is P.UNCONSTRAINED
    assert copy.deepcopy(spec)[0] is P.UNCONSTRAINED


def test_axes_of_a_dimension():
    spec = P("a", None, ("b", "c"))
    assert [spec.axes(dim) for dim in range(4)] == [("a",), (), ("b", "c"), ()]


@pytest.mark.parametrize("entry", [3, ("a", None), {"a"}])
def test_entries_that_mean_nothing(entry):
    with pytest.raises(ShardingError, match="entry 1"):
        P("a", entry)


# --- layouts ------------------------------------------------------------------------------------------------
def test_text():
    layout = Layout((D, ()), ("model",), "sum")
    assert str(layout) == "[{data:(1)2, data:(2)2}, {}] +sum{model}"
    assert layout.format(MESH) == "[{data}, {}] +sum{model}"
    assert repr(Layout.replicated(2)) == "Layout([{}, {}])"


def test_what_a_layout_says():
    layout = Layout((D, ()), ("model",), "sum")
    assert layout.rank == 2
    assert layout.axes_used == {*D, "model"}
    assert [layout.num_tiles(dim, MESH) for dim in (0, 1)] == [4, 1]
    assert layout.drop_partial() == Layout((D, ()))
    assert layout.with_dim(1, ("model",)).dims == (D, ("model",))
    assert layout.drop_partial().with_partial(("model",), "max") == Layout((D, ()), ("model",), "max")
    assert Layout(((),)).with_partial(("model", D[0]), "sum", MESH).partial == (D[0], "model")
    assert layout.with_partial((), "sum") == layout.drop_partial()


def test_uneven_dimensions_are_rounded_up():
    layout = Layout((D, ("model",)))
    assert layout.local_shape((8, 6), MESH) == (2, 3)
    assert layout.local_shape((5, 7), MESH) == (2, 4)
    assert layout.padded_shape((5, 7), MESH) == (8, 8)
    assert layout.local_shape((0, 1), MESH) == (0, 1)


def test_equality_hash_and_copies():
    a, b = Layout((D, ())), Layout((D, ()))
    assert a == b and hash(a) == hash(b) and a != Layout(((), D)) and a != "a"
    assert a != Layout((D, ()), ("model",), "sum")
    assert pickle.loads(pickle.dumps(a)) == a == copy.deepcopy(a)


def test_specs_and_back():
    for spec in (P("data", None), P(None, ("model", "data")), P("data:(2)2", "model"), P(None, None)):
        layout = Layout.from_spec(spec, 2, MESH)
        assert layout.to_spec(MESH) == spec
    assert Layout.from_spec(P("data"), 3, MESH) == Layout((D, (), ()))
    assert Layout.from_spec(P(P.UNCONSTRAINED, "model"), 2, MESH) == Layout(((), ("model",)))
    assert Layout((D[:1], ())).to_spec(MESH) == P("data:(1)2", None)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (Layout((D,)), "has 1 dimension, the array has 2"),
        (Layout((("data",), ())), "not an atomic axis"),
        (Layout((("q",), ())), "not an axis of the mesh"),
        (Layout((D, D)), "uses data more than once"),
        (Layout((D, ()), D, "sum"), "more than once"),
        (Layout(((), ()), ("model", D[0]), "sum"), "must stand in mesh order"),
        (Layout(((), ()), ("model",), "mean"), "'mean' with partial axes"),
        (Layout(((), ()), (), "sum"), "with partial axes, and '' without"),
    ],
)
def test_layouts_that_cannot_be(layout, message):
    with pytest.raises(ShardingError, match=message):
        layout.validate((8, 8), MESH)


def test_a_spec_longer_than_the_array():
    with pytest.raises(ShardingError, match="give at most 1"):
        Layout.from_spec(P("data", "model"), 1, MESH)
