"""Arrays from parts, the parts of arrays, and the names of ``jax.sharding``."""

from dataclasses import dataclass

import jax
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, errors
from meshwright.api.assembling import _rows
from meshwright.sharding import (
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    SingleDeviceSharding,
    get_abstract_mesh,
)

MESH = mw.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto, AxisType.Auto))
X = np.arange(30, dtype=np.float32).reshape(6, 5)
SPECS = [P("x", "y"), P("y"), P(None, ("x", "y")), P()]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_from_a_callback(spec):
    asked = []

    def part(index):
        asked.append(index)
        return X[index]

    x = mw.make_array_from_callback(X.shape, NamedSharding(MESH, spec), part)
    np.testing.assert_array_equal(x, X)
    assert x.sharding == NamedSharding(MESH, spec) and x.committed
    assert len(asked) == len({str(i) for i in asked})  # each part once, however many devices hold it


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_apart_and_together_again(spec):
    x = mw.device_put(X, NamedSharding(MESH, spec))
    parts = [x.addressable_data(i) for i in range(8)]
    assert [p.device for p in parts] == list(MESH.devices.flat)
    assert [p.shape for p in parts] == [s.data.shape for s in x.addressable_shards]
    again = mw.make_array_from_single_device_arrays(X.shape, x.sharding, parts[::-1])  # placed by device, not order
    np.testing.assert_array_equal(again, X)
    assert again.sharding == x.sharding


def test_dtypes_of_arrays_from_parts():
    split = NamedSharding(MESH, P("x"))
    assert mw.make_array_from_callback((8,), split, lambda i: np.arange(8)[i], "float16").dtype == np.float16
    assert mw.make_array_from_callback((8,), split, lambda i: np.arange(8.0)[i]).dtype == np.float32


def test_from_the_data_of_this_process():
    x = mw.make_array_from_process_local_data(NamedSharding(MESH, P("y")), X, (6, None))
    np.testing.assert_array_equal(mw.jit(lambda v: v * 2)(x), X * 2)
    assert x.sharding.spec == P("y")


def test_parts_that_do_not_fit(refuses):
    split = NamedSharding(MESH, P("x"))
    with refuses(ValueError, "make_array_from_callback", "[0:2]", "(8,)", "(2,)", "(3,)"):
        mw.make_array_from_callback((8,), split, lambda index: np.zeros(3))
    with refuses(ValueError, "make_array_from_callback", "1"):
        mw.make_array_from_callback((), split, lambda index: np.zeros(()))
    with refuses(errors.ShardingError, "make_array_from_callback", "devices"):
        mw.make_array_from_callback((8,), NamedSharding(AbstractMesh((4,), ("x",)), P("x")), lambda i: np.zeros(2))
    with refuses(ValueError, "make_array_from_process_local_data", "(6, 5)", "(12, 5)"):
        mw.make_array_from_process_local_data(split, X, (12, 5))
    on_two = [mw.device_put(np.zeros(2), d) for d in mw.devices()[:2]]
    with refuses(ValueError, "make_array_from_single_device_arrays", "cpu:7", "2 on"):
        mw.make_array_from_single_device_arrays((8,), split, on_two)
    with refuses(TypeError, "arrays[0]", "on one device"):
        mw.make_array_from_single_device_arrays((8,), split, [np.zeros(2)])


def test_copies_to_the_host(refuses):
    x = mnp.arange(3)
    assert mw.copy_to_host_async([x, "label"]) == [x, "label"]
    x.delete()
    with refuses(errors.DeletedArrayError, "deleted"):
        mw.copy_to_host_async(x)


# --- jax.sharding -------------------------------------------------------------------------------------------
def test_axis_types(refuses):
    assert MESH.axis_types == AbstractMesh((4, 2), ("x", "y")).axis_types == (AxisType.Auto, AxisType.Auto)
    assert [t.name for t in AxisType] == [t.name for t in jax.sharding.AxisType]
    assert mw.make_mesh((4, 2), ("x", "y"), (AxisType.Auto, AxisType.Explicit)) != MESH
    with refuses(errors.MeshError, "AbstractMesh", "1 axis_types", "2 axes"):
        AbstractMesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,))
    assert Mesh(MESH.devices, ("x", "y"), axis_types=AxisType.Auto) == MESH


def test_the_current_mesh_without_its_devices():
    assert get_abstract_mesh().empty
    with MESH:
        assert get_abstract_mesh() == AbstractMesh((4, 2), ("x", "y"))
    assert PartitionSpec is mw.P and SingleDeviceSharding is mw.SingleDeviceSharding


@dataclass(frozen=True)
class FarDevice:
    """A device of some process; this one is number 0."""

    id: int
    process_index: int

    @property
    def is_addressable(self):
        return self.process_index == 0


def over_processes(*owners):
    """A vector split over devices of these processes."""
    return NamedSharding(Mesh(np.array([FarDevice(i, p) for i, p in enumerate(owners)]), ("x",)), P("x"))


@pytest.mark.parametrize(
    ("owners", "size", "given", "rows", "whole"),
    [
        ((0, 0, 1, 1), 4, None, [0, 1, 2, 3], 8),
        ((0, 1, 0, 1), 4, None, [0, 1, 4, 5], 8),
        ((1, 0, 1, 0), 4, None, [2, 3, 6, 7], 8),
        ((1, 0, 0, 1), 4, 8, [2, 3, 4, 5], 8),
        ((0, 1, 0, 1), 4, 7, [0, 1, 4, 5], 7),
        ((1, 0, 1, 0), 3, 7, [2, 3, 6], 7),
        ((0, 1, 0, 1), 8, 8, range(8), 8),
        ((0, 1, 1), 2, 6, [0, 1], 6),
        ((0, 1, 2, 1, 2, 0), 4, None, [0, 1, 10, 11], 12),
    ],
)
def test_rows_of_a_process(owners, size, given, rows, whole):
    got, n = _rows(over_processes(*owners), 0, size, given)
    assert got.tolist() == [*rows] and n == whole


def test_rows_that_do_not_follow(refuses):
    with refuses(errors.ShardingError, "unevenly (process 0 [0], process 1 [1, 2] of 3 tiles)", "global_shape"):
        mw.make_array_from_process_local_data(over_processes(0, 1, 1), np.ones(2))
    with refuses(errors.ShardingError, "no device", "of this process"):
        mw.make_array_from_process_local_data(over_processes(1, 2), np.ones(2))
    with refuses(errors.ShapeError, "has rows 0:2, 4:6 of dimension 0, of 8", "shape (3,) has 3"):
        mw.make_array_from_process_local_data(over_processes(0, 1, 0, 1), np.ones(3), (8,))


def test_what_other_processes_have_is_not_converted(monkeypatch):
    """Memory that is never written holds anything, about whose conversion NumPy would warn."""
    monkeypatch.setattr("meshwright.api.assembling._rows", lambda *args: (np.arange(2), 4))
    x = mw.make_array_from_process_local_data(NamedSharding(MESH, P()), np.array([1.5, 2.5]))
    assert x.dtype == np.float32 and x.tolist() == [1.5, 2.5, 0, 0]
