"""Targets: which axes of a mesh are real, how replicas are numbered, and the program of one real device."""

import itertools
import pickle
from dataclasses import dataclass

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P
from meshwright.errors import MeshError
from meshwright.ir.jaxpr import all_eqns
from meshwright.ir.tracing import eval_jaxpr
from meshwright.lowering.batched import on_target, virtual_program
from meshwright.lowering.target import Target
from meshwright.lowering.units import Units
from meshwright.ops.collective.base import Collective
from meshwright.runtime.array import default_sharding
from meshwright.runtime.compiling import compile_jaxpr
from meshwright.sharding import AbstractMesh, Mesh


@dataclass(frozen=True)
class Device:
    id: int
    hardware_id: int
    platform: str = "cpu"
    process_index: int = 0


def mesh_of(hardware, names, ids=None):
    hardware = np.asarray(hardware)
    ids = range(hardware.size) if ids is None else ids
    devices = np.empty(hardware.size, object)
    devices[:] = [Device(i, int(h)) for i, h in zip(ids, hardware.reshape(-1))]
    return Mesh(devices.reshape(hardware.shape), names)


def test_axes_along_which_hardware_changes_are_real():
    assert Target.of(mw.make_mesh((2, 4), ("a", "b"))).real == ()
    rows = Target.of(mesh_of([[0] * 4, [1] * 4], ("a", "b")))
    assert rows.mesh.coalesce(rows.real) == ("a",) and rows.num_devices == 2 and len(rows.devices) == 2
    columns = Target.of(mesh_of([[0, 1, 2, 3]] * 2, ("a", "b")))
    assert columns.mesh.coalesce(columns.real) == ("b",) and columns.mesh.coalesce(columns.virtual) == ("a",)
    part = Target.of(mesh_of([0, 0, 0, 0, 1, 1, 1, 1], ("a",)))
    assert part.real == ("a:(1)2",) and part.virtual == ("a:(2)2", "a:(4)2")
    assert Target.of(AbstractMesh((2,), ("a",))).real == ()
    everything = Target.of(mesh_of(range(6), ("a",)))
    assert everything.virtual == () and everything.num_devices == 6
    assert (
        repr(rows)
        == "Target(AbstractMesh('a': 2, 'b': 4, axis_types=(Auto, Auto)), real axes: a, 2 cpu devices, owned)"
    )


@pytest.mark.parametrize("hardware", [[0, 0, 0, 1], [0, 1, 1, 0], [[0, 1], [1, 2]]])
def test_hardware_that_is_no_grid_is_refused(hardware):
    with pytest.raises(MeshError, match="unevenly"):
        Target.of(mesh_of(hardware, ("a", "b")[: np.ndim(hardware)]))


@pytest.mark.parametrize(
    ("hardware", "real", "virtual"),
    [
        ([0, 0, 1, 1, 2, 2], ("a:(1)3",), ("a:(3)2",)),
        ([0, 0, 0, 1, 1, 1], ("a:(1)2",), ("a:(2)3",)),
        ([0, 1, 0, 1, 0, 1], ("a:(3)2",), ("a:(1)3",)),
        (np.repeat(range(6), 2), ("a:(1)2", "a:(2)3"), ("a:(6)2",)),
        (np.tile(np.repeat([0, 1], 3), 2), ("a:(2)2",), ("a:(1)2", "a:(4)3")),
    ],
)
def test_axes_are_cut_where_the_hardware_changes(hardware, real, virtual):
    """Three real devices of two positions: 6 is 3, then 2. By default the smallest prime factor comes first."""
    mesh = mesh_of(hardware, ("a",))
    target = Target.of(mesh)
    assert (target.real, target.virtual) == (real, virtual)
    abstract = mesh.abstract_mesh
    assert pickle.loads(pickle.dumps(abstract)) == abstract == abstract.restricted(("a",))
    is_default = abstract == AbstractMesh((len(hardware),), ("a",))
    assert is_default == (repr(abstract) == f"AbstractMesh('a': {len(hardware)}, axis_types=(Auto,))")


@pytest.mark.parametrize("shape", [(12,), (3, 4), (4, 3), (2, 6), (6, 2), (2, 3, 2), (1, 12), (2, 2, 3)])
@pytest.mark.parametrize("reals", [1, 2, 3, 4, 6, 12])
def test_virtual_devices_are_placed_in_blocks_of_real_ones(shape, reals):
    devices = [Device(i, i * reals // 12) for i in range(12)]
    mesh = mw.make_mesh(shape, tuple("abc"[: len(shape)]), devices=devices)
    target = Target.of(mesh)
    assert target.num_devices == reals and sorted(d.id for d in mesh.devices.flat) == list(range(12))
    if reals in (1, 12):
        assert [d.id for d in mesh.devices.flat] == list(range(12))


def test_replicas_are_numbered_in_the_order_of_ids():
    target = Target.of(mesh_of([[0, 1], [2, 3]], ("a", "b"), ids=[30, 10, 20, 40]))
    assert target.replicas.tolist() == [2, 0, 1, 3]
    assert [d.id for d in target.assignment] == [10, 20, 30, 40]
    assert target.grid(("a",)).tolist() == [[2, 1], [0, 3]]
    assert target.grid(("b",)).tolist() == [[2, 0], [1, 3]]
    assert target.grid(("b", "a")).tolist() == [[2, 1, 0, 3]]


def parts(mesh):
    """A program with every kind of collective, over dimensions that the mesh does not divide."""

    def f(x, w):
        y = mnp.tanh(x @ w)
        s = mw.lax.with_sharding_constraint(y, mw.NamedSharding(mesh, P("b", "a")))
        return s.sum(0), mnp.cumsum(s, 1), mnp.roll(s, 1, 0)

    shardings = mw.NamedSharding(mesh, P("a", "b")), mw.NamedSharding(mesh, P("b", None))
    x = np.linspace(-1, 1, 42, dtype=np.float32).reshape(6, 7)
    w = np.linspace(2, 3, 35, dtype=np.float32).reshape(7, 5)
    return mw.jit(f, in_shardings=shardings).lower(x, w).partition().part, (x, w)


SIX = AbstractMesh((2, 6), ("a", "b")).cut_in({"b": (3, 2)})


@pytest.mark.parametrize(
    ("real", "mesh"),
    [
        *(
            (real, AbstractMesh((2, 4), ("a", "b")))
            for real in [("a",), ("b",), ("b:(2)2",), ("a", "b:(2)2"), ("a", "b")]
        ),
        *((real, SIX) for real in [("b:(1)3",), ("b:(3)2",), ("a", "b:(1)3")]),
    ],
)
def test_real_axes_stay_and_batching_them_later_is_batching_them_at_once(real, mesh):
    """What is left for real devices, batched over the rest, computes what the whole mesh does."""
    part, args = parts(mesh)
    target = Target(mesh, mesh.in_mesh_order(mesh.expand(real)))
    program = on_target(part, target)
    left = {a for e in all_eqns(program.jaxpr) if isinstance(e.op, Collective) for a in mesh.expand(e.op.axes)}
    assert left and left <= set(target.real)
    held = [np.asarray(x) for x in _on_devices(part, program, target, args)]
    for got, want in zip(held, _run(virtual_program(part), args)):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def _run(jaxpr, args):
    return compile_jaxpr(jaxpr, "f", [default_sharding()] * len(jaxpr.out_avals))(list(args))


def _on_devices(part, program, target, args):
    """Run the program of one real device on all of them, one ``vmap`` for each real unit."""
    units = Units.of(part, target)
    real = [u for u in units.names if u not in units.virtual]
    positions = list(itertools.product(*(range(units.sizes[u]) for u in real)))
    stacked = []
    for x, layout in zip(args, part.in_layouts):
        padded = np.full([n + 64 for n in x.shape], np.nan, x.dtype)
        padded[tuple(map(slice, x.shape))] = x
        held = [padded[np.ix_(*_rows(layout, x.shape, units, dict(zip(real, r))))] for r in positions]
        stacked.append(np.stack(held).reshape([units.sizes[u] for u in real] + list(held[0].shape)))
    fun = lambda *xs: eval_jaxpr(program, program.consts, *xs)  # noqa: E731
    for unit in reversed(real):
        fun = mw.vmap(fun, axis_name=unit, axis_size=units.sizes[unit])
    results = []
    for out, layout, aval in zip(mw.jit(fun)(*stacked), part.out_layouts, part.source.out_avals):
        whole = np.zeros([n + 64 for n in aval.shape], aval.dtype)
        for r in positions:
            whole[np.ix_(*_rows(layout, aval.shape, units, dict(zip(real, r))))] = np.asarray(out)[r]
        results.append(whole[tuple(map(slice, aval.shape))])
    return results


def _rows(layout, shape, units, position):
    """The rows of each dimension that a real device holds, in order."""
    found = []
    for n, atoms in zip(shape, layout.dims):
        names = units.of_atoms(atoms)
        rows = -(-n // int(np.prod([units.sizes[u] for u in names])))
        tiles = [0]
        for u in names:
            mine = [position[u]] if u in position else range(units.sizes[u])
            tiles = [t * units.sizes[u] + i for t in tiles for i in mine]
        own = [t * rows + i for t in tiles for i in range(rows)]
        found.append(own if set(names) & set(position) else range(n))
    return found
