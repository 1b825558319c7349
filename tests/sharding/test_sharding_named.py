"""Named, single-device and positional shardings: shards, indices, equivalence, and what is refused."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from jax.sharding import AbstractMesh as JaxMesh
from jax.sharding import NamedSharding as JaxNamedSharding
from jax.sharding import PartitionSpec as JaxSpec

from meshwright.errors import ShardingError
from meshwright.sharding import (
    AbstractMesh,
    Layout,
    Mesh,
    NamedSharding,
    PartitionSpec,
    PositionalSharding,
    SingleDeviceSharding,
)

P = PartitionSpec


class Device:
    platform = "cpu"

    def __init__(self, id, here=True):
        self.id = id
        self.is_addressable = here

    def __repr__(self):
        return f"Device({self.id})"

    def __eq__(self, other):
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self):
        return self.id


DEVICES = [Device(i) for i in range(8)]
MESH = Mesh(np.array(DEVICES).reshape(4, 2), ("data", "model"))


# --- named --------------------------------------------------------------------------------------------------
def test_members():
    sharding = NamedSharding(MESH, P("data", None))
    assert repr(sharding) == (
        "NamedSharding(mesh=Mesh('data': 4, 'model': 2, axis_types=(Auto, Auto)), spec=P('data', None), "
        "memory_kind=device)"
    )
    assert sharding.num_devices == 8 and sharding.device_set == set(DEVICES)
    assert sharding.addressable_devices == set(DEVICES) and sharding.is_fully_addressable
    assert sharding.layout(2) == Layout((("data:(1)2", "data:(2)2"), ()))
    assert not sharding.is_fully_replicated and NamedSharding(MESH, P(None)).is_fully_replicated
    assert NamedSharding(AbstractMesh((1,), ("x",)), P("x")).is_fully_replicated
    assert NamedSharding.from_layout(MESH, sharding.layout(2)) == sharding


def test_a_mesh_of_two_processes():
    mesh = Mesh(np.array([Device(0), Device(1, here=False)]), ("x",))
    sharding = NamedSharding(mesh, P("x"))
    assert sharding.addressable_devices == {Device(0)} and not sharding.is_fully_addressable
    assert sharding.addressable_devices_indices_map((4,)) == {Device(0): (slice(0, 2),)}


def test_shards_of_an_uneven_array():
    sharding = NamedSharding(MESH, P("data", "model"))
    assert sharding.shard_shape((5, 3)) == (2, 2)
    indices = sharding.devices_indices_map((5, 3))
    assert [indices[DEVICES[i]] for i in (0, 1, 4, 6)] == [
        (slice(0, 2), slice(0, 2)),
        (slice(0, 2), slice(2, 3)),
        (slice(4, 5), slice(0, 2)),
        (slice(5, 5), slice(0, 2)),
    ]


def test_shard_shapes_are_those_of_jax():
    specs = [None, "data", "model", ("data", "model"), ("model", "data")]
    mesh, theirs = AbstractMesh((4, 2), ("data", "model")), JaxMesh((4, 2), ("data", "model"))
    for entries in itertools.product(specs, repeat=2):
        try:
            expected = JaxNamedSharding(theirs, JaxSpec(*entries))
        except Exception:  # an axis used twice
            with pytest.raises(ShardingError, match="twice"):
                NamedSharding(mesh, P(*entries))
            continue
        sharding = NamedSharding(mesh, P(*entries))
        assert sharding.shard_shape((16, 8)) == expected.shard_shape((16, 8))


def test_equality_and_equivalence():
    a, b = NamedSharding(MESH, P("data")), NamedSharding(MESH, P("data", None))
    assert a == NamedSharding(MESH, P(("data",))) and hash(a) == hash(NamedSharding(MESH, P("data")))
    assert a != b and a.is_equivalent_to(b, 2)
    assert not a.is_equivalent_to(NamedSharding(MESH, P("model")), 2)
    flat = Mesh(np.array(DEVICES).reshape(8), ("all",))
    both = NamedSharding(MESH, P(("data", "model")))
    assert both.is_equivalent_to(NamedSharding(flat, P("all")), 1)
    assert not both.is_equivalent_to(NamedSharding(Mesh(flat.devices[::-1], ("all",)), P("all")), 1)
    assert pickle.loads(pickle.dumps(a)) == a


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NamedSharding(MESH, P("q")), "'q' is not an axis of the mesh: expected one of 'data'"),
        (lambda: NamedSharding(MESH, P("data", "data")), r"uses axis 'data' twice.*'data': 4, 'model': 2"),
        (lambda: NamedSharding(MESH, P(("data", "data"))), "twice"),
        (lambda: NamedSharding(MESH, P("data", "data:(1)2")), "twice"),
        (lambda: NamedSharding(AbstractMesh((1,), ("x",)), P("x", "x")), "twice"),
        (lambda: NamedSharding(MESH, ("data",)), "expected a PartitionSpec"),
        (lambda: NamedSharding(None, P("data")), "expected a Mesh"),
        (lambda: NamedSharding(MESH, P("data", None)).shard_shape((4,)), "give at most 1 entry"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(ShardingError, match=message):
        make()


def test_the_error_names_the_array():
    with pytest.raises(ShardingError, match="argument 2 of f: "):
        NamedSharding(MESH, P("data", None)).check_compatible((4,), "argument 2 of f")


# --- one device ---------------------------------------------------------------------------------------------
def test_single_device():
    sharding = SingleDeviceSharding(DEVICES[3])
    assert sharding == SingleDeviceSharding(DEVICES[3]) != SingleDeviceSharding(DEVICES[2])
    assert sharding.device_set == {DEVICES[3]} and sharding.is_fully_replicated
    assert sharding.devices_indices_map((4, 5)) == {DEVICES[3]: (slice(None), slice(None))}
    assert sharding.shard_shape((4, 5)) == (4, 5)
    assert sharding.is_equivalent_to(NamedSharding(Mesh(np.array([DEVICES[3]]), ("x",)), P("x")), 2)


# --- positional ---------------------------------------------------------------------------------------------
GRID = PositionalSharding(DEVICES).reshape(4, 2)


def test_positional_is_like_named():
    assert GRID.shape == (4, 2) and GRID.ndim == 2
    for shape in ((8, 6), (5, 3)):
        named = NamedSharding(MESH, P("data", "model"))
        assert GRID.devices_indices_map(shape) == named.devices_indices_map(shape)
        assert GRID.is_equivalent_to(named, 2) and named.is_equivalent_to(GRID, 2)
    assert GRID.replicate(0).is_equivalent_to(NamedSharding(MESH, P(None, "model")), 2)
    assert GRID.replicate(1, keepdims=False).is_equivalent_to(NamedSharding(MESH, P("data")), 1)
    assert GRID.replicate().is_fully_replicated
    assert GRID.T.is_equivalent_to(NamedSharding(MESH, P("model", "data")), 2)
    for sharding in (GRID, GRID.T, GRID.replicate(0), GRID.replicate(1), GRID.replicate()):
        assert sharding.to_named().is_equivalent_to(sharding, 2)


def test_positional_text_equality_and_copies():
    assert repr(GRID.replicate(0)) == (
        "PositionalSharding([[{CPU 0, CPU 2, CPU 4, CPU 6} {CPU 1, CPU 3, CPU 5, CPU 7}]], shape=(1, 2))"
    )
    assert GRID == PositionalSharding(DEVICES).reshape((4, -1)) != GRID.T
    assert hash(GRID) == hash(PositionalSharding(DEVICES).reshape(4, 2))
    assert pickle.loads(pickle.dumps(GRID)) == GRID


def test_positional_scalars():
    sharding = PositionalSharding(DEVICES).replicate(0, keepdims=False)
    assert sharding.devices_indices_map(()) == dict.fromkeys(DEVICES, ())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GRID.reshape(3, 3), "the number of cells must stay the same"),
        (lambda: GRID.replicate(2), "use an axis of the grid"),
        (lambda: GRID.shard_shape((8,)), "reshape the sharding to 1 dimension"),
        (lambda: PositionalSharding([]), "at least one device"),
        (lambda: PositionalSharding([DEVICES[0]] * 2), "given twice"),
    ],
)
def test_positional_refuses(make, message):
    with pytest.raises(ShardingError, match=message):
        make()
