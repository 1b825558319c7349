"""Meshes, their atomic axes, and the current mesh."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace

import numpy as np
import pytest

from meshwright.errors import MeshError, ShardingError
from meshwright.sharding import AbstractMesh, AxisType, Mesh, get_mesh, set_mesh


class Device(SimpleNamespace):
    """The least that a mesh asks of a device."""

    def __hash__(self):
        return hash(self.id)


def devices(*shape):
    return np.array([Device(id=i) for i in range(int(np.prod(shape)))]).reshape(shape)


MESH = AbstractMesh((4, 2, 6, 1), ("data", "model", "z", "one"))


def test_members():
    assert MESH.shape == {"data": 4, "model": 2, "z": 6, "one": 1}
    assert list(MESH.shape) == list(MESH.axis_names)
    assert MESH.size == 48 and not MESH.empty and AbstractMesh((), ()).empty
    assert MESH.abstract_mesh is MESH
    assert (
        repr(AbstractMesh((4, 2), ("data", "model"))) == "AbstractMesh('data': 4, 'model': 2, axis_types=(Auto, Auto))"
    )
    mesh = Mesh(devices(4, 2), ("data", "model"))
    assert str(mesh) == "Mesh('data': 4, 'model': 2, axis_types=(Auto, Auto))"
    assert mesh.abstract_mesh == AbstractMesh((4, 2), ("data", "model"))
    assert mesh.flat_ids == tuple(range(8))
    assert (mesh.shape, mesh.size, mesh.empty) == ({"data": 4, "model": 2}, 8, False)


def test_equality_and_hash():
    a, b = (Mesh(devices(4, 2), ("data", "model")) for _ in range(2))
    assert a == b and hash(a) == hash(b)
    turned = Mesh(a.devices[::-1], ("data", "model"))
    assert a != turned and a.abstract_mesh == turned.abstract_mesh
    assert a != Mesh(devices(4, 2), ("data", "other"))
    assert AbstractMesh((4,), ("a",)) != AbstractMesh((4,), ("b",))


def test_copies_are_equal():
    for mesh in (MESH, Mesh(devices(2), ("x",))):
        assert pickle.loads(pickle.dumps(mesh)) == mesh
        assert copy.deepcopy(mesh) == mesh


def test_atoms():
    assert MESH.atoms == ("data:(1)2", "data:(2)2", "model", "z:(1)2", "z:(2)3")
    assert MESH.atom_sizes == (2, 2, 2, 2, 3)
    assert MESH.atoms_of("data") == ("data:(1)2", "data:(2)2") == MESH.atoms_of("data:(1)4")
    assert MESH.atoms_of("model") == MESH.atoms_of("model:(1)2") == ("model",)
    assert MESH.atoms_of("one") == ()
    assert MESH.atoms_of("z:(2)3") == ("z:(2)3",)
    assert AbstractMesh((12,), ("x",)).atoms_of("x:(2)6") == ("x:(2)2", "x:(4)3")
    assert [MESH.axis_size(a) for a in ("data", "data:(2)2", "data:(1)4", "one")] == [4, 2, 4, 1]
    assert MESH.sizes(("data", "z:(2)3")) == 12
    assert MESH.sizes(()) == 1
    assert MESH.axis_of("z:(1)2") == "z"
    assert MESH.in_mesh_order(("model", "data:(1)2")) == ("data:(1)2", "model")


def test_coalesce_is_the_inverse_of_expand():
    assert MESH.coalesce(MESH.expand(("data", "z", "model"))) == ("data", "z", "model")
    assert MESH.coalesce(("data:(2)2", "data:(1)2")) == ("data:(2)2", "data:(1)2")
    eight = AbstractMesh((8,), ("x",))
    assert eight.coalesce(("x:(2)2", "x:(4)2")) == ("x:(2)4",)
    assert eight.coalesce(("x:(1)2", "x:(2)2")) == ("x:(1)4",)


@pytest.mark.parametrize("axis", ["q", "q:(1)2", "z:(1)3", "data:(3)2", "data:(1)8", "data:(4)2", "", "one:(1)2"])
def test_axes_that_do_not_exist(axis):
    with pytest.raises(ShardingError, match=r"not (an axis|a part)"):
        MESH.atoms_of(axis)


def test_the_error_lists_the_axes():
    with pytest.raises(ShardingError, match=r"'data' \(size 4\), 'model' \(size 2\)"):
        MESH.atoms_of("q")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mesh(devices(8), ("a", "b")), "names 2; give one name per dimension"),
        (lambda: Mesh(np.concatenate([devices(2), devices(2)]), ("a",)), "0, 1 more than once"),
        (lambda: Mesh(devices(2, 2), ("a", "a")), "'a' more than once"),
        (lambda: Mesh(np.array([1, 2]), ("a",)), "must be an array of devices"),
        (lambda: AbstractMesh((2, 2), ("a",)), "give one name per size"),
        (lambda: AbstractMesh((0,), ("a",)), "has size 0"),
        (lambda: AbstractMesh((2,), (3,)), "use strings as names"),
        (lambda: AbstractMesh((2,), ("a:(1)2",)), "reads as a sub-axis"),
        (lambda: set_mesh("mesh"), "expected a Mesh"),
    ],
)
def test_meshes_that_cannot_be(make, message):
    with pytest.raises(MeshError, match=message):
        make()


def test_a_single_name_may_be_a_string():
    assert Mesh(devices(2), "x").axis_names == ("x",) == AbstractMesh((2,), "x").axis_names


def test_the_current_mesh():
    mesh, other = Mesh(devices(2), ("x",)), AbstractMesh((4,), ("y",))
    assert get_mesh() is None
    with mesh:
        assert get_mesh() is mesh
        with set_mesh(other) as entered:
            assert entered is other is get_mesh()
        assert get_mesh() is mesh
        with mesh:
            assert get_mesh() is mesh
    assert get_mesh() is None
    set_mesh(other)
    assert get_mesh() is other
    set_mesh(None)
    assert get_mesh() is None


def test_what_follows_from_axes_is_said_as_in_jax():
    import jax

    mesh = Mesh(devices(4, 2), ("data", "model"), (AxisType.Auto, AxisType.Explicit))
    for one in (mesh, mesh.abstract_mesh):
        assert one.shape_tuple == (("data", 4), ("model", 2))
        assert (one.auto_axes, one.explicit_axes, one.manual_axes) == (("data",), ("model",), ())
        assert not (one.are_all_axes_auto or one.are_all_axes_explicit or one.are_all_axes_manual)
    assert mesh.device_ids.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert mesh.local_devices == list(mesh.devices.flat)
    for types in ((AxisType.Auto,) * 2, (AxisType.Explicit,) * 2, (AxisType.Manual,) * 2):
        own = AbstractMesh((4, 2), ("data", "model"), types)
        peer = jax.sharding.AbstractMesh(
            (4, 2), ("data", "model"), tuple(getattr(jax.sharding.AxisType, t.name) for t in types)
        )
        for name in ("shape_tuple", "are_all_axes_auto", "are_all_axes_explicit", "are_all_axes_manual"):
            assert getattr(own, name) == getattr(peer, name), name
