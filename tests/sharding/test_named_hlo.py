"""Shardings over a mesh as HLO writes them, and programs whose shardings order the devices differently."""

import numpy as np
import pytest

import meshwright as mw
from meshwright import PartitionSpec as P
from meshwright.errors import ShardingSyntaxError
from meshwright.sharding import Mesh, NamedSharding, mesh_of, parse_hlo_sharding
from meshwright.sharding.hlo_parse import parse_annotation
from meshwright.sharding.kinds import in_own_order

AS_TILES = {
    "{mesh['x'=2,'y'=2], [{'x'}, {'y'}]}": "{devices=[2,2]<=[4]}",
    "{mesh['x'=2,'y'=2], [{'y'}, {}], replicated={'x'}}": "{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}",
    "{mesh['x'=4], [{'x':(2)2}, {'x':(1)2}]}": "{devices=[2,2]<=[2,2]T(1,0)}",
    "{mesh['x'=2,'y'=2], device_ids=(1,0,3,2), [{'x'}, {'y'}]}": "{devices=[2,2]1,0,3,2}",
    "{mesh['x'=2,'y'=2], device_ids=([2,2]T(1,0)), [{'x'}, {'y'}]}": "{devices=[2,2]0,2,1,3}",
    "{mesh['x'=2,'y'=2], device_ids=([4]), [{'x'}, {'y'}]}": "{devices=[2,2]<=[4]}",
    "{mesh['x'=2,'y'=2], [{'x'}, {}], unreduced={'y'}}": "{devices=[2,1,2]<=[4] last_tile_dims={unreduced}}",
    "{mesh['x'=2,'y'=2], [{'x', ?}, {?}]}": "{devices=[2,1,2]<=[4] last_tile_dim_replicate}",
    "{mesh['x'=2,'y'=2], [{'y'}], manual={'x'}}": "{devices=[2,2]<=[2,2]T(1,0) last_tile_dims={manual}}",
    "{mesh['a b'=6,'y'=1], [{'a b':(2)3, 'y'}]}": "{devices=[3,2]<=[2,3]T(1,0) last_tile_dim_replicate}",
    "{{mesh['x'=4], [{'x'}]}, {replicated}}": "{{devices=[4]<=[4]}, {replicated}}",
}


@pytest.mark.parametrize("text", AS_TILES)
def test_as_tile_assignments(text):
    assert str(parse_hlo_sharding(text)) == AS_TILES[text]


def test_the_mesh_is_kept():
    found = parse_annotation("{mesh['x'=4], device_ids=(3,2,1,0), [{'x':(1)2, ?}, {}], replicated={'x':(2)2}}")
    assert found.mesh.shape == {"x": 4} and found.device_ids == (3, 2, 1, 0) and found.replicated == ("x:(2)2",)
    assert [(d.axes, d.is_closed) for d in found.dimensions] == [(("x:(1)2",), False), ((), True)]
    assert parse_annotation("{mesh['x'=2], device_ids=(0,1), [{'x'}]}").device_ids == ()


WRONG = {
    "{mesh['x'=2], [{'y'}]}": "axis 'y' is not an axis of the mesh",
    "{mesh['x'=2], [{'x'}, {'x'}]}": "an axis, or a part of one, is used twice",
    "{mesh['x'=4], [{'x':(3)2}]}": "is not a part of axis 'x'",
    "{mesh['x'=2], device_ids=(0,0), [{'x'}]}": "device_ids must be the numbers 0 to 1, each once",
    "{mesh['x'=2], device_ids=([3]), [{'x'}]}": "device_ids must be the numbers 0 to 1, each once",
    "{mesh['x'=2], device_ids=([2]T(1)), [{'x'}]}": "is no permutation of the dimensions",
    "{mesh['x'=2], device_ids=([9999999999]), [{'x'}]}": "an order of 9999999999 devices",
    "{mesh['x'=0], [{'x'}]}": "every axis needs at least one position",
    "{mesh['x'=2,'x'=2], [{'x'}]}": "more than once",
    "{mesh['x'=2], [{?, 'x'}]}": "'?' stands last in a dimension",
    "{mesh['x'=2], [{'x'}], partial={'x'}}": "expected replicated, unreduced or manual, found \"partial={'x'}}\"",
    "{mesh['x'=2], [{x}]}": 'expected "\'"',
    "{mesh['x=2], [{}]}": "a name without an end",
    "{mesh['x'=], [{}]}": "expected a number",
    "{mesh['x'=2], [{'x'}": "expected ']'",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong(text):
    with pytest.raises(ShardingSyntaxError) as caught:
        parse_annotation(text)
    assert WRONG[text] in str(caught.value) and f"sharding {text!r}, position " in str(caught.value)


# --- programs -----------------------------------------------------------------------------------------------
PROGRAM = """HloModule m, entry_computation_layout={(f32[8,4]{1,0}, f32[8,4]{1,0})->f32[8,4]{1,0}}, num_partitions=4

ENTRY main {
  p0 = f32[8,4]{1,0} parameter(0), sharding=FIRST
  p1 = f32[8,4]{1,0} parameter(1), sharding=SECOND
  ROOT a = f32[8,4]{1,0} add(p0, p1), sharding=RESULT
}
"""
A = np.arange(32, dtype=np.float32).reshape(8, 4)


def partitioned(first, second, result):
    program = mw.load(PROGRAM.replace("FIRST", first).replace("SECOND", second).replace("RESULT", result))
    part = program.partition()
    part.verify(A, A[::-1])
    return part


XY = "{mesh['x'=2,'y'=2], [{'x'}, {'y'}]}"


def test_a_program_over_a_named_mesh():
    part = partitioned(XY, "{mesh['x'=2,'y'=2], [{'y'}, {}], replicated={'x'}}", XY)
    assert part.mesh.shape == {"x": 2, "y": 2} and [s.spec for s in part.in_shardings] == [P("x", "y"), P("y", None)]
    assert [c.kind for c in part.collectives] == ["collective_permute"]


def test_programs_over_several_meshes_and_tile_assignments():
    part = partitioned(XY, "{mesh['a'=4], [{'a':(1)2}, {'a':(2)2}]}", "{devices=[2,2]<=[4]}")
    assert part.mesh.size == 4 and not part.collectives


def test_each_value_in_its_own_order_of_devices():
    """A value in another order than most is brought into the mesh's; where all are in it, it is the mesh's."""
    first = "{devices=[2,2]1,0,3,2}"
    part = partitioned(first, "{devices=[2,2]<=[4]}", "{devices=[2,2]<=[4]}")
    (permute,) = part.collectives
    assert permute.kind == "collective_permute" and permute.reason == "input 0 (p0) lies in another order of devices"
    assert permute.bytes_sent == 32
    assert "ppermute[axes=('x0', 'x1') perm=((0, 1), (1, 0), (2, 3), (3, 2))] a" in part.as_text()
    held = {d.id: index for d, index in part.in_shardings[0].devices_indices_map((8, 4)).items()}
    assert held[1] == (slice(0, 4), slice(0, 2)) and held[0] == (slice(0, 4), slice(2, 4))
    assert "source_target_pairs={{0,1},{1,0},{2,3},{3,2}}" in part.as_text("hlo")
    same = partitioned(first, first, first)
    assert not same.collectives and same.in_shardings[0].devices[0].id == 1


def unlike(size):
    """Tile assignments of a 12 x 12 array to ``size`` devices that no mesh has in common."""
    for rows in (n for n in range(1, size + 1) if size % n == 0):
        yield f"{{devices=[{rows},{size // rows}]<=[{size}]}}"
        if rows > 1:
            yield f"{{devices=[{rows},1,{size // rows}]<=[{size // rows},{rows}]T(1,0) last_tile_dim_replicate}}"


@pytest.mark.parametrize("size", [6, 8, 12])
def test_any_tile_assignment_is_one_over_any_mesh(size):
    """With an order of devices of its own; each device holds what it says."""
    shardings = [parse_hlo_sharding(text) for text in unlike(size)]
    for mesh in {mesh_of([s], size) for s in shardings}:
        for sharding in shardings:
            held = in_own_order(sharding, 2, mesh).devices_indices_map((12, 12))
            for device, tile in zip(sharding.tiles.devices.reshape(-1), np.ndindex(sharding.tiles.dims)):
                at = [min(-(-12 // n) * t, 12) for n, t in zip(sharding.tiles.dims, tile)][:2]
                (index,) = (i for d, i in held.items() if d.id == device)
                assert [s.start or 0 for s in index] == at


def test_shardings_without_a_common_mesh():
    """2 x 3 and 3 x 2 devices: the first one gives the axes; others lie in an order of their own."""
    text = PROGRAM.replace("num_partitions=4", "num_partitions=6")
    wide, tall = "{devices=[2,3]<=[6]}", "{devices=[3,2]<=[6]}"
    program = mw.load(text.replace("FIRST", wide).replace("SECOND", tall).replace("RESULT", "{devices=[1,6]<=[6]}"))
    part = program.partition(mw.make_mesh((2, 3), ("x", "y")))
    assert part.verify(A, A[::-1]) and np.array_equal(part.compile()(A, A[::-1]), A + A[::-1])
    held = {d.id: index for d, index in part.in_shardings[1].devices_indices_map((9, 4)).items()}
    assert [held[n] for n in (1, 2)] == [(slice(0, 3), slice(2, 4)), (slice(3, 6), slice(0, 2))]


def test_a_declared_mesh_has_its_own_order():
    natural = "{devices=[2,2]<=[4]}"
    part = partitioned("{mesh['x'=2,'y'=2], device_ids=(1,0,3,2), [{'x'}, {'y'}]}", natural, natural)
    assert part.mesh.flat_ids == (1, 0, 3, 2) and part.in_shardings[0].mesh == part.mesh
    assert [c.reason for c in part.collectives] == [
        "input 1 (p1) lies in another order of devices", "output 0 has to be in another order of devices",
    ]  # fmt: skip


def test_an_output_in_its_own_order():
    part = partitioned(XY, XY, "{devices=[2,2]1,0,3,2}")
    (permute,) = part.collectives
    assert permute.reason == "output 0 has to be in another order of devices"


def test_arrays_over_meshes_that_order_devices_differently():
    devices = np.array(mw.devices())
    natural, turned = (
        NamedSharding(Mesh(devices[order], ("x",)), P("x")) for order in (range(8), [1, 0, 3, 2, 5, 4, 7, 6])
    )
    f = mw.jit(lambda x, y: 2 * x + y, out_shardings=turned)
    x, y = mw.device_put(A, natural), mw.device_put(A, turned)
    z = f(x, y)
    assert np.array_equal(z, 3 * A) and z.sharding == turned
    reasons = [c.reason for c in f.lower(x, y).partition().collectives]
    assert reasons == ["input 1 (y) lies in another order of devices", "output 0 has to be in another order of devices"]
    assert np.array_equal(f.lower(x, y).compile()(x, y), 3 * A) and np.array_equal(y - x, 0 * A)


REGIONS = """HloModule m, entry_computation_layout={(f32[8,4]{1,0}, f32[8,4]{1,0})->f32[8,4]{1,0}}, num_partitions=4

ENTRY main {
  p0 = f32[8,4]{1,0} parameter(0), sharding=ROWS
  p1 = f32[8,4]{1,0} parameter(1), sharding=ROWS
  m0 = f32[2,4]{1,0} custom-call(p0), custom_call_target="SPMDFullToShardShape", sharding=MANUAL
  m1 = f32[2,4]{1,0} custom-call(p1), custom_call_target="SPMDFullToShardShape", sharding=MANUAL
  t = f32[2,4]{1,0} multiply(m0, m0), sharding=MANUAL
  u = f32[2,4]{1,0} add(t, m1), sharding=MANUAL
  v = f32[2,4]{1,0} add(u, m0), sharding=MANUAL
  r = f32[8,4]{1,0} custom-call(v), custom_call_target="SPMDShardToFullShape", sharding=ROWS
  s = f32[8,4]{1,0} custom-call(t), custom_call_target="SPMDShardToFullShape", sharding=ROWS
  ROOT o = f32[8,4]{1,0} add(r, s)
}
"""
NOTATIONS = {
    "tiles": ("{devices=[4,1]<=[4]}", "{manual}"),
    "mesh": ("{mesh['x'=4], [{'x'}, {}]}", "{mesh['x'=4], [{}, {}], manual={'x'}}"),
}


@pytest.mark.parametrize("notation", NOTATIONS)
def test_values_that_meet_in_an_inline_region(notation):
    rows, manual = NOTATIONS[notation]
    program = mw.load(REGIONS.replace("ROWS", rows).replace("MANUAL", manual))
    part = program.partition()
    part.verify()
    assert not part.collectives and np.allclose(program(A, A + 1), 2 * A * A + 2 * A + 1)
