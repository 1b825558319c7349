"""What public functions say to arguments that they cannot use: the argument, what was expected, what came."""

import re

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding
from meshwright import PartitionSpec as P
from meshwright.errors import ArgumentError, ArgumentTypeError, ConfigError, MeshError, MeshwrightError, ShapeError

AXES = ("data", "model")
MESH = mw.make_mesh((4, 2), AXES)
X, W = mnp.ones((8, 4)), mnp.ones((4, 6))


@pytest.fixture(scope="module")
def lowered():
    placed = NamedSharding(MESH, P("data")), NamedSharding(MESH, P(None, "model"))
    return mw.jit(lambda a, b: a @ b, in_shardings=placed).lower(X, W)


@pytest.fixture(scope="module")
def part(lowered):
    return lowered.partition()


def mapped(f, **options):
    spec = {"in_specs": P("data"), "out_specs": P("data")} | options
    return mw.shard_map(f, mesh=MESH, check_vma=False, **spec)(X)


CALLS = {
    "no sizes": lambda: mw.make_mesh(None, AXES),
    "one size": lambda: mw.make_mesh(4, "x"),
    "sizes that are text": lambda: mw.AbstractMesh("42", AXES),
    "a size that is no integer": lambda: mw.make_mesh((4.5, 2), AXES),
    "no names": lambda: mw.AbstractMesh((4, 2), None),
    "names that are none": lambda: mw.sharding.Mesh(mw.devices()[:2], 3),
    "no devices": lambda: mw.make_mesh((4, 2), AXES, devices=3),
    "no types": lambda: mw.make_mesh((4, 2), AXES, axis_types=3),
    "no device": lambda: mw.SingleDeviceSharding("cpu:0"),
    "jit device": lambda: mw.jit(mnp.sin, device=[]),
    "jit backend": lambda: mw.jit(mnp.sin, backend=3),
    "jit options": lambda: mw.jit(mnp.sin, compiler_options="x"),
    "axes of shard_map": lambda: mapped(lambda a: a, axis_names=3),
    "axis of psum": lambda: mapped(lambda a: mw.lax.psum(a, None)),
    "axis twice": lambda: mapped(lambda a: mw.lax.psum(a, ("data", "data"))),
    "no pairs": lambda: mapped(lambda a: mw.lax.ppermute(a, "data", 3)),
    "pairs of one": lambda: mapped(lambda a: mw.lax.ppermute(a, "data", [0])),
    "pairs of text": lambda: mapped(lambda a: mw.lax.ppermute(a, "data", ["ab"])),
    "pairs of halves": lambda: mapped(lambda a: mw.lax.ppermute(a, "data", [(0.5, 1)])),
    "plan: mesh": lambda: mw.plan(mnp.sin, X, machine="v5e:2x2", mesh="x"),
    "plan: memory": lambda: mw.plan(mnp.sin, X, machine="v5e:2x2", memory_limit="x"),
    "nodes that are text": lambda: mw.target("h100", nodes="x"),
    "half a node": lambda: mw.target("h100", nodes=1.5),
    "processes": lambda: mw.distributed.initialize("localhost:1", "x", 0),
    "no path of a checkpoint": lambda: mw.checkpoint_io.restore(3),
    "no path to save to": lambda: mw.checkpoint_io.save({"x": X}, "folder"),
    "no path of an executable": lambda: mw.load_executable(3),
    "no name of a chip": lambda: mw.hardware.chip(3),
    "devices that are text": lambda: mw.hardware.machine("h100", devices="x"),
    "rings of no dimension": lambda: mw.hardware.machine("v5e:4x4", wrap=3),
    "rings of some dimensions": lambda: mw.hardware.machine("v5e:4x4", wrap=(True,)),
    "argnums": lambda: mw.grad(mnp.sum, argnums=1.5)(X),
    "mesh axes of vmap": lambda: mw.vmap(mnp.sin, spmd_axis_name=3),
    "devices of pmap": lambda: mw.pmap(mnp.sin, devices=3),
    "static arguments of pmap": lambda: mw.pmap(mnp.sin, static_broadcasted_argnums="x"),
    "donated arguments of pmap": lambda: mw.pmap(mnp.sin, donate_argnums=1.5),
    "a shape that is none": lambda: mw.ShapeDtypeStruct(3, "float32"),
    "a shape of text": lambda: mw.ShapeDtypeStruct("a", "float32"),
    "a negative size": lambda: mw.ShapeDtypeStruct((-3,), "float32"),
    "no sharding": lambda: mw.ShapeDtypeStruct((3,), "float32", sharding=3),
    "steps that are no integer": lambda: mw.lax.scan(lambda c, y: (c, y), 0.0, None, length=1.5),
    "negative steps": lambda: mw.lax.scan(lambda c, y: (c, y), 0.0, None, length=-1),
    "no branches": lambda: mw.lax.switch(0, None, X),
    "no name of an option": lambda: mw.config.update(3, 1),
    "unknown option": lambda: mw.config.zz,
    "an option assigned to": lambda: setattr(mw.config, "enable_x64", True),
}


SAID = re.compile(r"expected|must be|more than once|give a bool for each|no option|config\.update|takes")


def error_of(call, *args):
    try:
        call(*args)
    except Exception as error:
        return error


def test_what_is_none_is_refused():
    errors = {name: error_of(call) for name, call in CALLS.items()}
    assert not {n: e for n, e in errors.items() if not isinstance(e, MeshwrightError) or not SAID.search(str(e))}


OF_PROGRAMS = {
    "partition(mesh)": (MeshError, lambda lowered, part: lowered.partition("x")),
    "partition(num_devices)": (ArgumentTypeError, lambda lowered, part: lowered.partition(num_devices=1.5)),
    "partition(num_devices=0)": (ArgumentError, lambda lowered, part: lowered.partition(num_devices=0)),
    "partition(combine_bytes)": (ArgumentTypeError, lambda lowered, part: lowered.partition(combine_bytes="x")),
    "load().partition()": (ArgumentTypeError, lambda lowered, part: mw.load(lowered.as_text()).bound(num_devices="8")),
    "load().partition(mesh)": (MeshError, lambda lowered, part: mw.load(lowered.as_text()).bound(8)),
    "report": (ArgumentTypeError, lambda lowered, part: part.report(3)),
    "contract": (ArgumentTypeError, lambda lowered, part: mw.testing.contract(part, None)),
    "diff": (ArgumentTypeError, lambda lowered, part: part.diff(3)),
    "verify(text)": (ArgumentTypeError, lambda lowered, part: part.verify("a", "b")),
    "verify(shapes)": (ShapeError, lambda lowered, part: part.verify(X, X)),
    "verify(count)": (ArgumentError, lambda lowered, part: part.verify(X)),
    "verify(rtol)": (ArgumentTypeError, lambda lowered, part: part.verify(rtol=None)),
    "verify(atol)": (ArgumentError, lambda lowered, part: part.verify(atol=-1)),
    "verify(finite)": (ArgumentError, lambda lowered, part: part.verify(finite=float("nan"))),
    "verify(seed)": (ArgumentTypeError, lambda lowered, part: part.verify(seed="x")),
    "verify(seed=-1)": (ArgumentError, lambda lowered, part: part.verify(seed=-1)),
}


def test_of_programs(lowered, part):
    errors = {name: (kind, error_of(call, lowered, part)) for name, (kind, call) in OF_PROGRAMS.items()}
    assert not {n: (k, e) for n, (k, e) in errors.items() if not isinstance(e, k) or not SAID.search(str(e))}


def test_what_numpy_makes_is_taken(part):
    sizes = np.array([4, 2])
    assert mw.make_mesh(sizes, AXES) == MESH and mw.AbstractMesh(sizes, AXES).size == 8
    assert mw.make_mesh((8,), "x").axis_names == mw.sharding.Mesh(mw.devices(), "x").axis_names == ("x",)
    assert mapped(lambda a: mw.lax.ppermute(a, "data", np.array([[0, 1]])))[2:4].tolist() == X[:2].tolist()
    part.verify(np.ones((8, 4)), np.ones((4, 6), np.int32), rtol=np.float32(1e-6), seed=np.int64(1))


def test_options_are_still_attributes():
    assert not hasattr(mw.config, "zz") and getattr(mw.config, "zz", 3) == 3
    with pytest.raises(ConfigError, match=r"config.update\('debug_nans', True\)"):
        mw.config.debug_nans = True
    assert mw.config.debug_nans is False
