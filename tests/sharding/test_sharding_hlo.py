"""HLO shardings: text as XLA reads and prints it, and the way to layouts and back."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from jax.sharding import AbstractMesh as JaxMesh
from jax.sharding import NamedSharding as JaxNamedSharding
from jax.sharding import PartitionSpec as JaxSpec
from jaxlib._hlo import HloSharding as XlaSharding

from meshwright.errors import ShardingError, ShardingSyntaxError
from meshwright.sharding import (
    AbstractMesh,
    HloSharding,
    Layout,
    Mesh,
    NamedSharding,
    PartitionSpec,
    hlo_convert,
    parse_hlo_sharding,
)

P = PartitionSpec

TEXTS = """
{replicated}
{manual}
{unknown}
{unreduced}
{maximal device=3}
{devices=[4,2]<=[8]}
{devices=[4,2]<=[4,2]T(0,1)}
{devices=[4,2]<=[2,2,2]T(0,1,2)}
{devices=[8,1]<=[2,2,2]T(2,1,0)}
{devices=[4,2]0,1,2,3,4,5,6,7}
{devices=[4,2]7,6,5,4,3,2,1,0}
{devices=[4,2,1]<=[8] last_tile_dim_replicate}
{devices=[4,2,1]<=[8] last_tile_dims={manual}}
{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}
{devices=[2,2,2]<=[2,2,2]T(0,1,2) last_tile_dim_replicate}
{devices=[1,1,8]<=[8] last_tile_dim_replicate}
{devices=[1,1,8]<=[8] last_tile_dims={manual}}
{devices=[1,4]<=[4] last_tile_dims={unreduced}}
{devices=[2,1,2,2]<=[8] last_tile_dims={manual, replicated}}
{devices=[2,1,2,2]<=[8] last_tile_dims={replicated, manual}}
{devices=[2,1,2,2]<=[8] last_tile_dims={replicated, replicated}}
{devices=[2,1,2,2]<=[2,2,2]T(2,1,0) last_tile_dims={manual, replicated}}
{devices=[2,1,2,2,2]<=[16] last_tile_dims={unreduced, replicated, manual}}
{devices=[2,2,2]<=[8] last_tile_dims={unreduced}}
{devices=[2,2,2]<=[8] last_tile_dims={replicated,unreduced}}
{devices=[2,2]0,2,1,3 last_tile_dim_replicate}
{devices=[2,2]1,0,3,2 last_tile_dim_replicate}
{devices=[2,2,2]7,6,5,4,3,2,1,0 last_tile_dims={manual,replicated}}
{devices=[2,4]0,1,2,3,7,6,5,4 last_tile_dims={manual}}
{devices=[6,4]<=[4,6]T(1,0) last_tile_dim_replicate}
{devices=[2,3,4]<=[6,4]T(1,0) last_tile_dims={replicated,manual}}
{devices=[1,1]<=[1] last_tile_dim_replicate}
{devices=[4,2]<=[8] shard_as 1}
{replicated shard_like 2}
{manual shard_as 1}
{maximal device=3 shard_as 2}
{devices=[4,2]<=[8] metadata={op_name="x}"}}
{replicated metadata={{op_name="a"}, {op_name="c"}}}
{}
{{replicated}, {devices=[2]<=[2]}}
{ {replicated} }
""".strip().splitlines()


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_that_of_xla(text):
    ours = str(parse_hlo_sharding(text))
    assert ours == str(XlaSharding.from_string(text))
    assert str(parse_hlo_sharding(ours)) == ours


def random_text(rng):
    reshape = [rng.choice([2, 2, 4]) for _ in range(rng.randint(1, 4))]
    transpose = rng.sample(range(len(reshape)), len(reshape))
    left, dims = int(np.prod(reshape)), []
    for _ in range(rng.randint(0, 2)):
        dims.append(rng.choice([d for d in range(1, left + 1) if left % d == 0]))
        left //= dims[-1]
    groups = []
    while left > 1:
        dims.append(rng.choice([d for d in range(2, left + 1) if left % d == 0]))
        left //= dims[-1]
        groups.append(rng.choice(["manual", "replicated", "unreduced"]))
    order = f"<=[{','.join(map(str, reshape))}]"
    if len(reshape) > 1:
        order += f"T({','.join(map(str, transpose))})"
    suffix = f" last_tile_dims={{{', '.join(groups)}}}" if groups else ""
    return f"{{devices=[{','.join(map(str, dims or [1]))}]{order}{suffix}}}" if dims else "{replicated}"


def test_random_iota_text_is_that_of_xla():
    rng = random.Random(0)
    for _ in range(2000):
        text = random_text(rng)
        assert str(parse_hlo_sharding(text)) == str(XlaSharding.from_string(text)), text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected '{'"),
        ("{foo}", "expected devices="),
        ("{replicated", "expected '}'"),
        ("{replicated} x", "expected the end"),
        ("{devices=[4,2]<=[8", "expected ']'"),
        ("{devices=[4,2]<=[7]}", "8 tiles but 7 devices"),
        ("{devices=[4,2]0,1}", "8 tiles but 2 devices"),
        ("{devices=[2]0,0}", "listed twice"),
        ("{devices=[0]<=[0]}", "not zero"),
        ("{devices=[2,2]<=[2,2]T(0,0)}", "no permutation"),
        ("{devices=[2]<=[2] last_tile_dims={foo}}", "expected replicated, manual or unreduced"),
        ("{devices=[2]<=[2] last_tile_dims={manual, manual}}", "at most one subgroup per tile"),
        ("{replicated last_tile_dim_replicate}", "no tile assignment"),
        ('{replicated metadata={op_name="a"}', "not closed|expected"),
        ("{maximal device=}", "expected numbers"),
    ],
)
def test_text_that_cannot_be_read(text, message):
    with pytest.raises(ShardingSyntaxError, match=message):
        parse_hlo_sharding(text)


def test_check():
    sharding = parse_hlo_sharding("{devices=[4,1,2]<=[8] last_tile_dim_replicate}")
    sharding.check(2, 8)
    assert (sharding.rank, sharding.num_devices, sharding.tile_counts) == (2, 8, (4, 1))
    with pytest.raises(ShardingError, match=r"parameter 0: .* is for 2 dimensions but the array has 3"):
        sharding.check(3, 8, "parameter 0")
    with pytest.raises(ShardingError, match="names 8 devices but the program runs on 4"):
        sharding.check(2, 4)
    with pytest.raises(ShardingError, match="out of range"):
        HloSharding.maximal(8).check(0, 8)


# --- named shardings ----------------------------------------------------------------------------------------
def specs(names, ndim):
    entries = [None]
    for number in range(1, len(names) + 1):
        entries += itertools.permutations(names, number)
    for spec in itertools.product(entries, repeat=ndim):
        used = [axis for entry in spec for axis in entry or ()]
        if len(set(used)) == len(used):
            yield spec


@pytest.mark.parametrize("sizes", [(4, 2), (2, 2, 2), (2, 3, 4), (8,), (2, 1, 4), (3, 6)], ids=str)
def test_named_shardings_print_as_in_jax(sizes):
    names = tuple("abc")[: len(sizes)]
    mesh, theirs = AbstractMesh(sizes, names), JaxMesh(sizes, names)
    for spec in specs(names, 2):
        expected = JaxNamedSharding(theirs, JaxSpec(*spec))._to_xla_hlo_sharding(2)
        assert str(hlo_convert.named_to_hlo(NamedSharding(mesh, P(*spec)), 2)) == str(expected), spec


@pytest.mark.parametrize("sizes", [(4, 2), (2, 2, 2), (2, 3, 4), (3, 6)], ids=str)
def test_layouts_come_back(sizes):
    names = tuple("abc")[: len(sizes)]
    mesh = AbstractMesh(sizes, names)
    for spec in specs(names, 2):
        layout = Layout.from_spec(P(*spec), 2, mesh)
        free = [atom for atom in mesh.atoms if atom not in layout.axes_used]
        for partial in ((), free[:1], free):
            expected = layout.with_partial(partial, "sum")
            assert hlo_convert.hlo_to_layout(hlo_convert.layout_to_hlo(expected, mesh), 2, mesh) == expected
        sharding = hlo_convert.layout_to_hlo(layout, mesh, manual=free[:1])
        assert hlo_convert.hlo_to_layout(sharding, 2, mesh) == layout
        assert hlo_convert.manual_axes(sharding, mesh) == tuple(free[:1])


def test_shardings_without_tiles():
    mesh = AbstractMesh((4, 2), ("a", "b"))
    assert hlo_convert.hlo_to_layout(parse_hlo_sharding("{replicated}"), 2, mesh) == Layout.replicated(2)
    assert hlo_convert.hlo_to_layout(parse_hlo_sharding("{manual}"), 2, mesh) == Layout.replicated(2)
    assert hlo_convert.manual_axes(parse_hlo_sharding("{manual}"), mesh) == mesh.atoms
    assert hlo_convert.hlo_to_layout(parse_hlo_sharding("{unreduced}"), 1, mesh) == Layout(((),), mesh.atoms, "sum")
    for text in ("{unknown}", "{maximal device=1}", "{{replicated}}"):
        with pytest.raises(ShardingError, match="has no layout"):
            hlo_convert.hlo_to_layout(parse_hlo_sharding(text), 2, mesh)


def test_a_sharding_that_does_not_follow_the_mesh():
    with pytest.raises(ShardingError, match="does not follow the axes"):
        hlo_convert.hlo_to_layout(parse_hlo_sharding("{devices=[3,2]<=[6]}"), 2, AbstractMesh((2, 3), ("a", "b")))


# --- meshes for programs that have none ---------------------------------------------------------------------
def check_mesh(texts, num_devices, sizes):
    """The mesh of the shardings, and that every one of them has a layout there that holds the same tiles."""
    shardings = [parse_hlo_sharding(text) for text in texts]
    mesh, order = hlo_convert.mesh_of(shardings, num_devices), hlo_convert.device_order_of(shardings, num_devices)
    assert mesh == AbstractMesh(sizes, [f"x{i}" for i in range(len(sizes))])
    for sharding in shardings:
        if sharding.kind == "tiled":
            layout = hlo_convert.hlo_to_layout(sharding, sharding.rank, mesh, order)
            held = NamedSharding.from_layout(mesh, layout).tile_table(sharding.rank)
            devices = sharding.tiles.devices.reshape(-1)
            tiles = np.stack(np.unravel_index(np.arange(num_devices), sharding.tiles.dims), axis=1)
            for position, device in enumerate(order):
                assert (held[position] == tiles[list(devices).index(device), : sharding.rank]).all()
    return order


def test_meshes_by_common_refinement():
    check_mesh(["{devices=[4,2]<=[8]}"], 8, (4, 2))
    check_mesh(["{devices=[8]<=[8]}"], 8, (8,))
    check_mesh(["{replicated}"], 8, (8,))
    check_mesh(["{devices=[4,2]<=[8]}", "{devices=[2,4]<=[4,2]T(1,0)}"], 8, (4, 2))
    check_mesh(["{devices=[4,2]<=[8]}", "{devices=[2,4]<=[8]}"], 8, (2, 2, 2))
    check_mesh(["{{devices=[2,1,4]<=[8] last_tile_dim_replicate}, {maximal device=0}}"], 8, (2, 4))
    check_mesh(["{devices=[3,2]<=[2,3]T(1,0)}"], 6, (2, 3))
    check_mesh(["{devices=[2,3]<=[3,2]T(1,0)}", "{devices=[6]<=[6]}"], 6, (3, 2))
    check_mesh(["{devices=[2,2,2]<=[2,2,2]T(0,2,1) last_tile_dims={manual, replicated}}"], 8, (2, 2, 2))


def test_devices_that_are_no_iota():
    assert check_mesh(["{devices=[4]3,1,2,0}"], 4, (4,)) == (3, 1, 2, 0)
    order = (3, 1, 2, 0, 7, 5, 6, 4)
    texts = [
        "{devices=[2,4]3,1,2,0,7,5,6,4}",
        "{devices=[4,2]3,7,1,5,2,6,0,4}",
        "{devices=[2,4]0,1,2,3,4,5,6,7 last_tile_dim_replicate}",
        "{devices=[2,4]2,3,6,7,0,1,4,5 last_tile_dim_replicate}",
    ]
    assert check_mesh(texts, 8, (2, 2, 2)) == order
    assert check_mesh(["{devices=[8]7,6,5,4,3,2,1,0}"], 8, (8,)) == tuple(range(8))[::-1]


def test_a_mesh_of_permuted_devices_is_found_again():
    rng = random.Random(0)
    for _ in range(20):
        order = rng.sample(range(8), 8)
        grid = np.array(order).reshape(4, 2)
        flat = ",".join(map(str, order))
        turned = ",".join(map(str, grid.T.reshape(-1)))
        check_mesh([f"{{devices=[4,2]{flat}}}", f"{{devices=[2,4]{turned}}}"], 8, (4, 2))


def test_one_device():
    assert hlo_convert.mesh_of([parse_hlo_sharding("{replicated}")], 1).empty


def test_a_mesh_of_devices_prints_positions():
    class Device:
        def __init__(self, id):
            self.id = id

    mesh = Mesh(np.array([Device(i) for i in (3, 1, 2, 0)]).reshape(2, 2), ("a", "b"))
    assert str(hlo_convert.named_to_hlo(NamedSharding(mesh, P("a", "b")), 2)) == "{devices=[2,2]<=[4]}"
