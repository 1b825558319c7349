"""Manual regions over several meshes of the same devices, in one program."""

import itertools

import numpy as np
import pytest

import meshwright as mw
from meshwright import lax
from meshwright.errors import MeshError, MeshwrightError
from meshwright.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from meshwright.sharding import PartitionSpec as P
from meshwright.sharding.refinement import common_refinement

DEVICES = np.array(mw.devices()[:8])
GRIDS = {
    "line": Mesh(DEVICES, ("x",)),
    "wide": Mesh(DEVICES.reshape(2, 4), ("a", "b")),
    "tall": Mesh(DEVICES.reshape(4, 2), ("b", "a")),  # the names of the one before, at other boundaries
    "cube": Mesh(DEVICES.reshape(2, 2, 2), ("x", "y", "z")),
    "turned": Mesh(DEVICES.reshape(2, 4).T, ("p", "q")),  # devices in another order
    "flat": Mesh(DEVICES.reshape(1, 8, 1), ("one", "x", "unit")),
}


def _moved(x, axes, sizes):
    """What only per-device code can say: everything depends on positions along the axes and their order."""
    n = int(np.prod(sizes))
    x = x + 0.01 * lax.axis_index(axes)
    x = x + 0.1 * lax.ppermute(x, axes, [(i, (i + 1) % n) for i in range(n)])
    whole = lax.all_gather(x, axes, tiled=True)
    x = x + lax.psum_scatter(whole * (1.0 + lax.axis_index(axes[-1:])), axes, tiled=True) / n
    return x - 0.5 * lax.pmean(x, axes[0])


def _region(mesh, check_vma, order=1):
    axes = mesh.axis_names[::order]
    return mw.shard_map(
        lambda x: _moved(x, axes, [mesh.shape[a] for a in axes]),
        mesh=mesh, in_specs=P(axes), out_specs=P(axes), check_vma=check_vma,
    )  # fmt: skip


def _value():
    return mw.numpy.asarray(np.sin(np.arange(64 * 3, dtype=np.float32)).reshape(64, 3))


@pytest.mark.parametrize("first,second", list(itertools.permutations(GRIDS, 2)))
def test_two_regions_give_what_each_gives_alone(first, second):
    one, two = _region(GRIDS[first], True), _region(GRIDS[second], False, -1)
    x = _value()
    wanted = two(one(x))  # every region is a program of its own
    np.testing.assert_allclose(mw.jit(lambda x: two(one(x)))(x), wanted, rtol=1e-5, atol=1e-6)


def test_three_regions_in_a_loop_with_a_gradient():
    regions = [_region(GRIDS[name], True) for name in ("line", "tall", "turned")]

    def loss(x):
        def step(x, _):
            for region in regions:
                x = mw.numpy.sin(0.2 * region(x))
            return x, x.sum()

        return lax.scan(step, x, None, length=2)[1].sum()

    def by_hand(x):
        total = 0.0
        for _ in range(2):
            for region in regions:
                x = mw.numpy.sin(0.2 * region(x))
            total = total + x.sum()
        return total

    x = _value()
    wanted = mw.grad(by_hand)(x)
    np.testing.assert_allclose(mw.jit(mw.grad(loss))(x), wanted, atol=1e-5 * float(abs(wanted).max()))
    mw.jit(loss).lower(x).partition().verify()


def test_automatic_axes_and_constraints_inside_of_a_region():
    wide, line = GRIDS["wide"], GRIDS["line"]

    def body(x):
        x = lax.with_sharding_constraint(x, NamedSharding(wide.abstract_mesh, P("b")))
        return x + lax.axis_index("a") * lax.psum(x, "a")

    some = mw.shard_map(body, mesh=wide, in_specs=P("a"), out_specs=P("a"), axis_names={"a"}, check_vma=False)
    rest = _region(line, True)
    x = _value()
    np.testing.assert_allclose(mw.jit(lambda x: rest(some(x)))(x), rest(some(x)), rtol=1e-5, atol=1e-6)


def test_results_are_shown_over_a_mesh_of_the_users():
    one, two = _region(GRIDS["wide"], True), _region(GRIDS["tall"], True)
    y = mw.jit(lambda x: two(one(x)))(_value())
    assert y.sharding.mesh == GRIDS["wide"]
    assert y.sharding.is_equivalent_to(NamedSharding(GRIDS["tall"], P(("b", "a"))), 2)


def test_collectives_are_sent_once_each():
    wide, line = GRIDS["wide"], GRIDS["line"]
    total = mw.shard_map(lambda x: lax.psum(x, "b"), mesh=wide, in_specs=P("a"), out_specs=P("a"), check_vma=False)
    split = mw.shard_map(lambda x: x * 2.0, mesh=line, in_specs=P("x"), out_specs=P("x"))
    part = mw.jit(lambda x: split(total(x))).lower(mw.ShapeDtypeStruct((64, 4), "float32")).partition()
    # The sum of a half among four devices, of which each needs a quarter: the regions' borders send nothing else.
    assert [c.kind for c in part.collectives] == ["reduce_scatter"]
    assert part.bytes_sent == 3 * (32 * 4 * 4) // 4


def test_meshes_without_a_common_refinement_are_refused():
    devices = np.array(mw.devices()[:6])
    one = _region(Mesh(devices.reshape(2, 3), ("a", "b")), True)
    two = _region(Mesh(devices.reshape(3, 2), ("a", "b")), True)
    with pytest.raises(MeshError, match="different meshes"):
        mw.jit(lambda x: two(one(x)))(mw.numpy.ones((12, 2)))


def test_device_orders_without_a_common_refinement_are_named():
    shuffled = Mesh(DEVICES[[3, 1, 4, 0, 5, 7, 2, 6]], ("x",))
    one, two = _region(GRIDS["line"], True), _region(shuffled, True)
    with pytest.raises(MeshError, match="of devices 3, 1, 4, 0, 5, 7, 2, 6"):
        mw.jit(lambda x: two(one(x)))(_value())


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", ["line", "tall", "cube", "other order"])
def test_regions_over_other_meshes_inside_of_regions_are_refused(name, check_vma):
    wide = GRIDS["wide"]
    mesh = Mesh(DEVICES[::-1].reshape(2, 4), ("a", "b")) if name == "other order" else GRIDS[name]
    axis = "x" if "x" in mesh.axis_names else "b"

    def outer(x):
        return mw.shard_map(
            lambda x: x * lax.axis_index(axis), mesh=mesh, in_specs=P(axis), out_specs=P(axis), axis_names={axis},
            check_vma=check_vma,
        )(x)  # fmt: skip

    some = mw.shard_map(outer, mesh=wide, in_specs=P("a"), out_specs=P("a"), axis_names={"a"}, check_vma=check_vma)
    for whole in (some, lambda x: _region(GRIDS["line"], True)(some(x))):
        with pytest.raises(MeshError, match=r"a region over .* inside of one over"):
            mw.jit(whole)(_value())


def test_explicit_axes_are_refused():
    wide = GRIDS["wide"].update_axis_types({"a": AxisType.Explicit, "b": AxisType.Explicit})
    one, two = _region(wide, True), _region(GRIDS["line"], True)
    with pytest.raises(MeshwrightError):
        mw.jit(lambda x: two(one(x)))(mw.device_put(_value(), NamedSharding(wide, P(("a", "b")))))


@pytest.mark.parametrize(
    "grids,shape",
    [
        ([((8,), "x"), ((2, 4), "ab")], {"a": 2, "b": 4}),
        ([((2, 4), "ab"), ((4, 2), "ba")], {"a": 2, "b_0": 2, "b_1": 2}),
        ([((6,), "x"), ((3, 2), "ab")], {"a": 3, "b": 2}),
        ([((8, 1), "xo"), ((4, 2), "xy")], {"x": 4, "y": 2, "o": 1}),
        ([((12,), "p"), ((4, 3), "pq"), ((2, 6), "ab")], {"a": 2, "p_0": 2, "q": 3}),
        ([((2, 3), "ab"), ((3, 2), "ab")], None),
        ([((4,), "a"), ((8,), "a")], None),
    ],
)
def test_common_refinements(grids, shape):
    meshes = [AbstractMesh(sizes, tuple(names)) for sizes, names in grids]
    found = common_refinement(meshes)
    assert (found and found.mesh.shape) == shape
    for mesh in meshes if found else ():
        for axis, pieces in found.pieces[mesh].items():
            assert np.prod([found.mesh.shape[p] for p in pieces]) == mesh.shape[axis]


def test_meshes_without_devices_are_not_taken_for_the_same():
    wide, line = AbstractMesh((2, 4), ("a", "b")), AbstractMesh((8,), ("x",))
    one = mw.shard_map(lambda x: x * 2.0, mesh=wide, in_specs=P("a"), out_specs=P("a"))
    two = mw.shard_map(lambda x: x * 2.0, mesh=line, in_specs=P("x"), out_specs=P("x"))
    with pytest.raises(MeshError, match="different meshes"):
        mw.jit(lambda x: two(one(x))).lower(mw.ShapeDtypeStruct((64, 4), "float32"))
