"""Chips, machines, and how the axes of a mesh lie on them."""

import json
import pickle
from functools import partial

import numpy as np
import pytest

import meshwright as mw
from meshwright.api import measuring
from meshwright.errors import ArgumentError, MeshError
from meshwright.hardware import CHIPS, Chip, this
from meshwright.hardware.links import LINE, NETWORK, RING, SWITCH, Link, seconds_of

machine, chip = mw.hardware.machine, mw.hardware.chip


# --- the table ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", CHIPS)
def test_every_chip_has_a_source_and_plausible_figures(name):
    chip = CHIPS[name]
    assert chip.name == name and chip.source
    rate, figure = chip.product_rate("bfloat16")
    assert 1e14 < rate < 1e16 and figure == "products[bfloat16]"
    # An operation for each byte that the memory brings: between 50 and 600 on all current accelerators.
    assert 50 < rate / chip.memory_bandwidth < 600
    assert 5 < chip.memory_bandwidth / (chip.link_bandwidth * 2) < 50 or not chip.torus
    guessed = {"products[float32]", "vector", "link_latency", "network_bandwidth", "network_latency", "launch",
               "on_chip_bandwidth"}  # fmt: skip
    assert bool(chip.launch) == bool(chip.on_chip_bandwidth) == (not chip.torus)
    assert chip.guessed <= guessed | {f"products[float32, {precision}]" for precision in ("high", "highest")}
    assert chip.name in str(chip) and "TFLOP/s" in str(chip)


def test_names_that_drivers_give():
    names = ["NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "TPU v5 lite"]
    assert [chip(n).name for n in names] == ["h200", "h100", "a100", "v5e"]
    for slower in ("NVIDIA H100 PCIe", "NVIDIA H200 NVL", "NVIDIA A100-SXM4-40GB"):
        with pytest.raises(ArgumentError, match="no chip"):
            chip(slower)


def test_rates_of_products_that_round_less():
    """On an H200 such a product of 8,192 rows ran at 51 TFLOP/s, one that rounds to TF32 at 367."""
    h200, v5e = CHIPS["h200"], CHIPS["v5e"]
    assert h200.product_rate("float32", "highest") == (h200.vector, "products[float32, highest]")
    assert h200.product_rate("float32", "high") == h200.product_rate("float32")
    assert h200.product_rate("bfloat16", "highest") == h200.product_rate("bfloat16")
    assert v5e.product_rate("complex64", "highest")[0] == v5e.product_rate("bfloat16")[0] / 24
    x = mw.ShapeDtypeStruct((4096, 4096), np.float32)
    mesh = mw.AbstractMesh((1,), ("x",), machine="h200:1")
    products = [partial(mw.lax.dot, precision=p) for p in (None, "highest")]
    seconds = [mw.jit(f).lower(x, x).partition(mesh).time().seconds for f in products]
    assert seconds[1] / seconds[0] == pytest.approx(494.7 / 66.9, rel=0.01)


def test_accelerators_are_measured_by_programs(tmp_path, monkeypatch):
    for name, small in {"_SIDE": 64, "_STEPS": 4, "_BYTES": 1 << 16, "_LOOP": 10, "_STARTED": ("cpu",)}.items():
        monkeypatch.setattr(measuring, name, small)
    monkeypatch.setattr(measuring, "_seconds", partial(measuring._seconds, least=1e-3))
    monkeypatch.setattr(this, "_is_host", lambda: False)
    monkeypatch.setenv("MESHWRIGHT_HARDWARE", str(tmp_path / "this.json"))
    this.this_chip.cache_clear()
    found = machine("this").chip
    assert found.source == "measured on virtual cpu" and "link_bandwidth" in found.guessed
    assert found.product_rate("float32", "highest")[1] == "products[float32, highest]"
    assert found.launch > 0 and found.on_chip_bandwidth == found.vector / 2
    assert all(v > 0 for v in found.products.values()) and (tmp_path / "this-cpu.json").is_file()
    kept = json.loads((tmp_path / "this-cpu.json").read_text()) | {"vector": 123.0}
    for on, is_kept in ((kept["on"], True), ("another device", False)):
        (tmp_path / "this-cpu.json").write_text(json.dumps(kept | {"on": on}))
        this.this_chip.cache_clear()
        assert (machine("this").chip.vector == 123.0) == is_kept
    this.this_chip.cache_clear()


def test_rates_of_types_without_a_unit():
    h100, v5e = CHIPS["h100"], CHIPS["v5e"]
    assert h100.product_rate("float16") == h100.product_rate("bfloat16")
    assert h100.product_rate("float64") == (pytest.approx(66.9e12), "products[float64]")
    assert v5e.product_rate("float64") == (v5e.vector / 2, "vector")
    assert h100.product_rate("complex64")[0] == h100.product_rate("float32")[0] / 4
    assert v5e.product_rate("float8_e4m3fn") == (197e12, "products[bfloat16]")


def test_unknown_chips_are_refused_with_the_list():
    with pytest.raises(ArgumentError, match=r"no chip 'v5a' is known; did you mean .*'v5e'.*v4, v5e, .*b200.*'this'"):
        machine("v5a:2x2")
    with pytest.raises(ArgumentError, match=r"expected a chip and a shape"):
        machine("v5e:2by2")
    with pytest.raises(ArgumentError, match=r"memory_bandwidth must be positive"):
        Chip("mine", {"float32": 1e12}, 1e12, 1e9, -1.0, 1e9, 0.0, 1e9, 0.0)
    with pytest.raises(ArgumentError, match="precise must give operations a second"):
        Chip("mine", {"float32": 1e12}, 1e12, 1e9, 1e9, 1e9, 0.0, 1e9, 0.0, precise={"highest": 0})


# --- machines -----------------------------------------------------------------------------------------------
def test_names_of_machines():
    pod = machine("v5e:16x16")
    assert (pod.shape, pod.wrap, pod.size, pod.memory_bytes) == ((16, 16), (True, True), 256, 16 * 2**30)
    assert machine("v5e:8").shape == (2, 4) and machine("v5e:2x4").wrap == (False, False)
    assert machine("v5litepod:4x4") == machine("v5e:4x4")
    assert machine("v5p:4x4x8").wrap == (True,) * 3 and machine("v5p:64").shape == (4, 4, 4)
    assert machine("v4:2x2x4").wrap == (False, False, True)
    h100 = machine("h100", nodes=16)
    assert (h100.size, h100.nodes, h100.name) == (128, 16, "h100:16x8")
    assert machine("h100:128") == h100 == machine("h100:16x8")
    assert machine("h100").size == 8 and machine("h100:4").size == 4
    # A program sees two devices of one chip, each with half of everything.
    assert machine("tpu7x:2x2x1").size == 8 and machine("tpu7x:2x2x1").memory_bytes == 96 * 2**30
    assert machine("v5e:16x16", slices=2).size == 512


NO_SHAPES = {
    "v5e:4x4x4": "2 dimensions, got 3; write it as v5e:4x4",
    "v5e:32x32": "largest slice of v5e is 16x16; give slices=",
    "h100:12": "a node has 8 h100; write h100:2x8",
    "v5e:0x4": "positive",
}


@pytest.mark.parametrize(("text", "said"), NO_SHAPES.items(), ids=NO_SHAPES)
def test_shapes_that_there_are_not(text, said):
    with pytest.raises(MeshError, match=said):
        machine(text)
    with pytest.raises(ArgumentError, match=r"come in slices, not nodes"):
        machine("v5e:2x2", nodes=2)


def test_this_computer_is_measured_and_kept(tmp_path, monkeypatch):
    file = tmp_path / "deep" / "this.json"
    monkeypatch.setenv("MESHWRIGHT_HARDWARE", str(file))
    this.this_chip.cache_clear()
    measured = machine("this:8")
    assert measured.size == 8 and measured.memory_bytes * 8 == measured.chip.memory_bytes
    assert all(1e8 < measured.chip.products[dtype] < 1e15 for dtype in ("float32", "float64"))
    assert 1e8 < measured.chip.memory_bandwidth < 1e13
    found = json.loads(file.read_text())
    found["vector"] = 123.0
    file.write_text(json.dumps(found))
    this.this_chip.cache_clear()
    assert machine("this").chip.vector == 123.0  # kept, not measured again
    found["cores"] = -1
    file.write_text(json.dumps(found))
    this.this_chip.cache_clear()
    assert machine("this").chip.vector != 123.0  # of another computer
    this.this_chip.cache_clear()


# --- meshes on machines -------------------------------------------------------------------------------------
def lies_on(mesh):
    return {axis: [(link.topology, link.size, link.stride) for link in links] for axis, links in mesh.fabric.links}


def test_axes_lie_on_whole_dimensions_or_parts_of_them():
    on = mw.AbstractMesh((16, 16), ("data", "model"), machine="v5e:16x16")
    assert lies_on(on) == {"data": [(RING, 16, 1)], "model": [(RING, 16, 1)]}
    on = mw.AbstractMesh((4, 16), ("data", "model"), machine="v5p:4x4x4")
    assert lies_on(on) == {"data": [(RING, 4, 1)], "model": [(RING, 4, 1)] * 2}
    on = mw.AbstractMesh((2, 4, 2), ("a", "b", "c"), machine="v5e:4x4")
    assert lies_on(on) == {"a": [(LINE, 2, 1)], "b": [(LINE, 4, 1)], "c": [(LINE, 2, 1)]} or lies_on(on) == {
        "a": [(LINE, 2, 2)],
        "b": [(LINE, 2, 1), (LINE, 2, 2)],
        "c": [(LINE, 2, 1)],
    }
    on = mw.AbstractMesh((32, 4), ("data", "model"), machine="h100:16x8")
    assert lies_on(on) == {"data": [(NETWORK, 16, 1), (SWITCH, 2, 1)], "model": [(SWITCH, 4, 1)]}
    on = mw.AbstractMesh((2, 16, 16), ("replica", "data", "model"), machine=machine("v5e:16x16", slices=2))
    assert lies_on(on) == {"replica": [(NETWORK, 2, 1)], "data": [(RING, 16, 1)], "model": [(RING, 16, 1)]}


def test_meshes_that_do_not_fit():
    with pytest.raises(MeshError, match=r"v5e:4x4 has 16 devices, the mesh .data=4, model=2. 8"):
        mw.AbstractMesh((4, 2), ("data", "model"), machine="v5e:4x4")
    with pytest.raises(
        MeshError, match=r"does not fit what connects its devices, from far to near: network 3, switch 8"
    ):
        mw.AbstractMesh((4, 6), ("x", "y"), machine="h100:3x8")
    assert mw.AbstractMesh((4, 2), ("data", "model"), machine="h100").machine.size == 8


def test_a_mesh_on_a_machine_is_another_mesh():
    plain, on = mw.AbstractMesh((4, 2), ("d", "m")), mw.AbstractMesh((4, 2), ("d", "m"), machine="v5e:2x4")
    assert plain != on and on == plain.on("v5e:2x4") and on != plain.on("h100:8")
    assert (
        repr(on) == "AbstractMesh('d': 4, 'm': 2, axis_types=(Auto, Auto), machine='v5e:2x4')"
        and repr(plain) == "AbstractMesh('d': 4, 'm': 2, axis_types=(Auto, Auto))"
    )
    assert pickle.loads(pickle.dumps(on)) == on and plain.machine is None
    part = on.restricted(["m"])
    assert part.shape == {"m": 2} and part.fabric.links == on.fabric.links[1:]
    assert pickle.loads(pickle.dumps(part)) == part != mw.AbstractMesh((2,), ("m",))
    assert mw.make_mesh((2, 1), ("d", "m"), machine="h100:2").machine.name == "h100:2"


# --- collectives on links -----------------------------------------------------------------------------------
def test_times_of_rings_lines_and_switches():
    ring, line, switch = (Link(kind, 8, 50e9, 1e-6) for kind in (RING, LINE, SWITCH))
    whole, n = 8e9, 8
    sent = whole * (n - 1) / n
    assert seconds_of("all_gather", [ring], whole / n, whole) == pytest.approx(sent / 100e9 + 4e-6)
    assert seconds_of("all_gather", [line], whole / n, whole) == pytest.approx(sent / 50e9 + 7e-6)
    assert seconds_of("all_gather", [switch], whole / n, whole) == pytest.approx(sent / 50e9 + 7e-6)
    assert seconds_of("reduce_scatter", [ring], whole, whole / n) == seconds_of("all_gather", [ring], whole / n, whole)
    assert seconds_of("all_reduce", [ring], whole, whole) == pytest.approx(2 * (sent / 100e9 + 4e-6))
    # What one half of a ring has for the other goes over the two links between them.
    assert seconds_of("all_to_all", [ring], whole, whole) == pytest.approx(whole * n / 8 / 50e9 + 4e-6)
    assert seconds_of("all_to_all", [switch], whole, whole) == pytest.approx(sent / 50e9 + 7e-6)
    assert seconds_of("collective_permute", [ring], whole, whole) == pytest.approx(whole / 50e9 + 1e-6)
    assert seconds_of("all_gather", [], whole, whole) == 0


def test_small_sums_are_made_in_one_step():
    """Each device gets what all have and adds it: faster than a gather along one dimension and a sum over another."""
    long, short = Link("line", 4, 50e9, 1e-6), Link("line", 2, 50e9, 1e-6)
    together = seconds_of("all_reduce", [long, short], 4.0, 4.0)
    assert together == pytest.approx(4e-6, rel=0.01)
    apart = seconds_of("all_gather", [long], 4.0, 16.0) + seconds_of("all_reduce", [short], 16.0, 16.0)
    assert together < apart
    large = 1e9
    assert seconds_of("all_reduce", [long, short], large, large) == pytest.approx(2 * 7 / 8 * large / 100e9, rel=0.01)


def test_trees_win_where_little_is_sent():
    network = Link(NETWORK, 64, 50e9, 8e-6)
    assert seconds_of("all_reduce", [network], 64.0, 64.0) == pytest.approx(2 * 6 * 8e-6, rel=0.01)
    assert seconds_of("all_reduce", [network], 64e9, 64e9) == pytest.approx(2 * 64e9 * 63 / 64 / 50e9, rel=0.01)


def test_several_dimensions_of_a_torus_work_at_once():
    one, two = [Link(RING, 16, 50e9, 0.0)], [Link(RING, 4, 50e9, 0.0)] * 2
    assert seconds_of("all_gather", one, 1e9 / 16, 1e9) == pytest.approx(
        2 * seconds_of("all_gather", two, 1e9 / 16, 1e9)
    )


def test_what_goes_far_goes_in_parts():
    near, far = Link(SWITCH, 8, 450e9, 0.0), Link(NETWORK, 4, 50e9, 0.0)
    found = seconds_of("all_gather", [far, near], 1e9 / 32, 1e9)
    assert found == pytest.approx(1e9 / 8 * 3 / 4 / 50e9 + 1e9 * 7 / 8 / 450e9)


def test_groups_over_parts_of_axes():
    mesh = mw.AbstractMesh((32, 4), ("data", "model"), machine="h100:16x8")
    levels = mesh.fabric.levels
    assert [(x.topology, x.size) for x in levels([("data", 1, 32)])] == [(NETWORK, 16), (SWITCH, 2)]
    assert [(x.topology, x.size) for x in levels([("data", 16, 2)])] == [(SWITCH, 2)]
    assert [(x.topology, x.size) for x in levels([("data", 1, 4), ("model", 1, 4)])] == [(NETWORK, 4), (SWITCH, 4)]
    ring = mw.AbstractMesh((16, 16), ("data", "model"), machine="v5e:16x16").fabric.levels
    assert [(x.topology, x.size, x.stride) for x in ring([("data", 1, 4)])] == [(LINE, 4, 4)]
    assert [(x.topology, x.size, x.stride) for x in ring([("data", 4, 4)])] == [(LINE, 4, 1)]


@pytest.mark.parametrize("inside", ["constraint", "region"])
def test_a_mesh_that_names_no_machine_is_on_the_one_that_others_name(inside):
    """A model's own mesh, inside of a program that is planned or run for a machine."""

    def squared(x, mesh):
        on = mw.NamedSharding(mesh, mw.PartitionSpec("x"))
        if inside == "constraint":
            return mw.lax.with_sharding_constraint(x.T, on) @ x
        return mw.shard_map(lambda x: x * mw.lax.psum(x.sum(), "x"), mesh=mesh, in_specs=on.spec, out_specs=on.spec)(x)

    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    for kind in mw.AbstractMesh, lambda *args, **more: mw.make_mesh(*args, **more):
        plain, named = kind((8,), ("x",)), kind((8,), ("x",), machine="v5e:2x4")
        for outer, inner in ((named, plain), (plain, named)):
            on = mw.NamedSharding(outer, mw.PartitionSpec("x"))
            part = mw.jit(squared, static_argnums=1, in_shardings=on).lower(x, inner).partition()
            assert part.mesh.machine == named.machine
            part.verify(x)
    other = mw.AbstractMesh((8,), ("x",), machine="h100:8")
    with pytest.raises(mw.errors.MeshError, match="mesh"):
        mw.jit(
            squared, static_argnums=1, in_shardings=mw.NamedSharding(named.abstract_mesh, mw.PartitionSpec("x"))
        ).lower(x, other).partition()
