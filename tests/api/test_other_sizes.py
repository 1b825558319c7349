"""Programs that name the axes of a mesh, on meshes of other sizes: what they are there, and which are refused."""

from functools import partial

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import AbstractMesh, NamedSharding, lax
from meshwright import PartitionSpec as P
from meshwright.errors import MeshError


def step(mesh, w, x):
    """Layers in a loop, with constraints inside of it; some dimensions are left open."""
    on = partial(NamedSharding, mesh)

    def layer(x, w):
        h = lax.with_sharding_constraint(mnp.tanh(x @ w), on(P("data", "model")))
        return lax.with_sharding_constraint(h @ w.T, on(P("data", P.UNCONSTRAINED))), h.sum()

    y, sums = lax.scan(layer, x, w)
    return mnp.sum(y * y), sums


SHAPES = mw.ShapeDtypeStruct((3, 10, 14), "float32"), mw.ShapeDtypeStruct((9, 10), "float32")


def on_mesh(sizes, names=("data", "model"), f=step):
    mesh = AbstractMesh(sizes, names)
    shardings = NamedSharding(mesh, P(None, None, "model")), NamedSharding(mesh, P("data"))
    return mw.jit(partial(f, mesh), in_shardings=shardings).lower(*SHAPES)


@pytest.mark.parametrize("written", [(2, 2), (1, 1), (8, 1)])
@pytest.mark.parametrize("sizes", [(3, 4), (16, 8), (1, 2), (4, 1), (1, 8)])
def test_a_program_is_what_it_would_be_if_it_were_written_for_that_mesh(written, sizes):
    loaded, own = mw.load(on_mesh(written).as_text()), on_mesh(sizes).partition()
    part = loaded.partition(AbstractMesh(sizes, ("data", "model")))
    assert part.bytes_sent == own.bytes_sent and [c.axes for c in part.collectives] == [c.axes for c in own.collectives]
    sides = zip(part.in_shardings, own.in_shardings, SHAPES, strict=True)
    assert all(s.is_equivalent_to(want, len(x.shape)) for s, want, x in sides)
    assert loaded.num_partitions == np.prod(written)  # as before


def test_also_among_other_axes_and_verified():
    part = mw.load(on_mesh((1, 1)).as_text()).partition(AbstractMesh((2, 2, 3), ("model", "pod", "data")))
    part.verify()
    assert {a for c in part.collectives for a in c.axes} <= {"model", "data"} and part.bytes_sent


@pytest.mark.parametrize("written", [(2, 2), (1, 1)])
def test_also_before_it_is_written(written):
    own = on_mesh((3, 4)).partition()
    part = on_mesh(written).partition(AbstractMesh((3, 4), ("data", "model")))
    part.verify()
    assert part.bytes_sent == own.bytes_sent and part.in_shardings == own.in_shardings
    assert on_mesh(written).partition(AbstractMesh((4, 2), ("data", "model"), machine="v5e:4x2")).time().seconds > 0


def test_programs_of_one_axis_need_only_the_number_of_devices():
    def f(mesh, x):
        return lax.with_sharding_constraint(x * 2, NamedSharding(mesh, P("data"))).sum()

    lowered = mw.jit(partial(f, AbstractMesh((2,), ("data",)))).lower(SHAPES[1])
    for program in (lowered, mw.load(lowered.as_text())):
        part = program.partition(num_devices=5)
        part.verify()
        assert part.mesh.shape == {"data": 5} and part.collectives


def test_those_that_fix_their_number_of_devices_are_refused(refuses):
    mesh = AbstractMesh((2, 2), ("data", "model"))
    larger = AbstractMesh((4, 2), ("data", "model"))

    def region(mesh, w, x):
        return mw.shard_map(lambda x: lax.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P())(x[:8])

    with refuses(MeshError, "per-device code"):
        on_mesh((2, 2), f=region).partition(larger)
    with refuses(MeshError, "per-device code"):
        mw.load(on_mesh((2, 2), f=region).as_text()).partition(larger)
    array = mw.device_put(mnp.zeros((9, 14)), NamedSharding(mw.make_mesh((2, 2), ("data", "model")), P("data")))
    with refuses(MeshError, "arrays that lie there"):
        on_mesh((2, 2), f=lambda mesh, w, x: step(mesh, w, x)[0] + array).partition(larger)
    typed = mw.make_mesh((2, 2), ("data", "model"), axis_types=(mw.sharding.AxisType.Explicit,) * 2)
    x = mw.ShapeDtypeStruct((8, 4), "float32", sharding=NamedSharding(typed, P("data")))
    with refuses(MeshError, "types of values at"):
        mw.jit(lambda x: mnp.sin(x) * 2).lower(x).partition(larger)
    named = mw.load(on_mesh((2, 2)).as_text())
    refuses(
        lambda: named.partition(AbstractMesh((4, 2), ("data", "tensor"))), MeshError, "with the axes 'data', 'model'"
    )
    with refuses(MeshError, "with the axes 'data', 'model'"):
        named.partition(num_devices=8)
    text = mw.load(on_mesh((4, 2)).as_text()).as_text("stablehlo").replace('{"data"}', '{"data":(1)2}', 1)
    assert '"data":(1)2' in text
    with refuses(MeshError, "number devices"):
        mw.load(text).partition(AbstractMesh((16, 2), ("data", "model")))
    text = """HloModule m, num_partitions=4
      ENTRY main { ROOT p = f32[8]{0} parameter(0), sharding={devices=[4]<=[4]} }"""
    with refuses(MeshError, "number devices"):
        mw.load(text).partition(AbstractMesh((16, 2), ("data", "model")))
    assert mw.load(text).partition(mesh).mesh == mesh
