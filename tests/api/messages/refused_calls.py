"""Calls that each interface refuses. What it says then stands in ``<interface>.txt`` beside this file."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import AbstractMesh, NamedSharding, P, lax
from meshwright.builder import Builder
from meshwright.experimental import mesh_utils, multihost_utils
from meshwright.experimental.custom_partitioning import custom_partitioning
from meshwright.experimental.global_device_array import GlobalDeviceArray
from meshwright.experimental.maps import soft_pmap, xmap
from meshwright.experimental.pjit import pjit
from meshwright.experimental.shard_map import shard_map as old_shard_map
from meshwright.interpreters import sharded_jit
from meshwright.lib import xla_bridge, xla_extension
from meshwright.sharding import GSPMDSharding, PmapSharding, PositionalSharding, ShardingSpec
from meshwright.sharding.sharding_spec import Chunked, NoSharding, Replicated, ShardedAxis, Unstacked

Call = Callable[[], Any]
X = np.arange(32, dtype=np.float32).reshape(8, 4)
DEVICES = mw.devices()
GRID = mw.make_mesh((4, 2), ("x", "y"))
FEW = mw.make_mesh((2, 2), ("x", "y"))
ROWS, COLUMNS = NamedSharding(GRID, P("x")), NamedSharding(GRID, P(None, "y"))
ENV = [("i", 4), ("j", 2)]


def same(x: Any) -> Any:
    return x


def first(x: Any, y: Any) -> Any:
    return x


def add(left: Any, right: Any) -> Any:
    return left + right


# --- xla_computation ------------------------------------------------------------------------------------------
def hlo(fun: Any, *args: Any, **options: Any) -> Call:
    return lambda: mw.xla_computation(fun, **options)(*args)


XLA_COMPUTATION = {
    "an axis that is not there": hlo(lambda x: lax.psum(x, "k"), X, axis_env=ENV),
    "no environment": hlo(lambda x: lax.psum(x, "i"), X),
    "a size of none": hlo(same, X, axis_env=[("i", 0)]),
    "an axis twice": hlo(same, X, axis_env=[("i", 2), ("i", 4)]),
    "no pairs": hlo(same, X, axis_env=["ij"]),
    "a size that is no number": hlo(same, X, axis_env=[("i", "j")]),
    "groups that the axis does not have": hlo(lambda x: lax.psum(x, "i", axis_index_groups=[[0, 9]]), X, axis_env=ENV),
    "a scatter that does not divide": hlo(lambda x: lax.psum_scatter(x, "i"), X[:3], axis_env=ENV),
    "an exchange that does not divide": hlo(lambda x: lax.all_to_all(x, "i", 0, 1), X[:3], axis_env=ENV),
    "a permutation out of range": hlo(lambda x: lax.ppermute(x, "j", [(0, 5)]), X, axis_env=ENV),
    "a permutation with a source twice": hlo(lambda x: lax.ppermute(x, "i", [(0, 1), (0, 2)]), X, axis_env=ENV),
    "another platform": lambda: mw.xla_computation(same, backend="tpu"),
    "no function": lambda: mw.xla_computation(3),
    "no array": hlo(same, "text"),
    "a result that is no array": hlo(lambda x: "text", X),
    "parts of different numbers": hlo(first, X, X, in_parts=((4, 1), (8, 1))),
    "parts of another rank": hlo(first, X, X, in_parts=((4,), None)),
    "parts of another tree": hlo(first, X, X, in_parts=((4, 1),)),
    "parts of the output of another tree": hlo(first, X, X, out_parts=((4, 1), (4, 1))),
}

# --- pmap -----------------------------------------------------------------------------------------------------
Y = X[:4, :3]
PMAP = {
    "a scalar": lambda: mw.pmap(same)(np.float32(3)),
    "an axis out of range": lambda: mw.pmap(same, in_axes=2)(Y),
    "an axis out of range, below": lambda: mw.pmap(same, in_axes=-3)(Y),
    "no argument is mapped": lambda: mw.pmap(same, in_axes=None)(Y),
    "axes for other arguments": lambda: mw.pmap(same, in_axes=(0, 0))(Y),
    "axes of another tree": lambda: mw.pmap(same, in_axes=({"a": 0},))({"b": Y}),
    "an axis that is no number": lambda: mw.pmap(same, in_axes="x")(Y),
    "an axis of the output out of range": lambda: mw.pmap(same, out_axes=3)(Y),
    "sizes that differ": lambda: mw.pmap(first)(Y, {"b": Y[0], "c": Y.T, "d": Y}),
    "another axis_size": lambda: mw.pmap(same, axis_size=2)(Y),
    "nothing to map": lambda: mw.pmap(lambda: 0)(),
    "a static argument that is not there": lambda: mw.pmap(first, static_broadcasted_argnums=1)(Y),
    "a static argument that is not hashable": lambda: mw.pmap(first, static_broadcasted_argnums=1)(Y, [1]),
    "no rows": lambda: mw.pmap(same)(np.zeros((0, 2))),
    "more than there are devices": lambda: mw.pmap(same)(np.zeros(9)),
    "more than devices=": lambda: mw.pmap(same, devices=DEVICES[:3])(Y),
    "nested, too few devices": lambda: mw.pmap(mw.pmap(same))(np.zeros((4, 4))),
    "nested, too few of devices=": lambda: mw.pmap(mw.pmap(same), devices=DEVICES[:4])(np.zeros((2, 4))),
    "devices= inside": lambda: mw.pmap(mw.pmap(same, devices=DEVICES[:2]))(np.zeros((4, 2))),
    "a result that differs has no axis": lambda: mw.pmap(lambda x: {"a": x, "b": 1.0}, out_axes=None)(Y),
    "a result that is no array": lambda: mw.pmap(lambda x: "text")(Y),
    "an argument that is no array": lambda: mw.pmap(same)("text"),
    "no devices": lambda: mw.pmap(same, devices=[]),
    "a device twice": lambda: mw.pmap(same, devices=DEVICES[:1] * 2),
    "no device": lambda: mw.pmap(same, devices=[0]),
    "devices and a backend": lambda: mw.pmap(same, devices=DEVICES, backend="cpu"),
    "another platform": lambda: mw.pmap(same, backend="gpu"),
    "no function": lambda: mw.pmap(3),
    "an axis name that is not there": lambda: mw.pmap(lambda x: lax.psum(x, "k"), "i")(Y),
    "compiled for another shape": lambda: mw.pmap(same).lower(Y).compile()(Y[:2]),
}


# --- shard_map --------------------------------------------------------------------------------------------------
def region(fun: Any, ins: Any, outs: Any, *args: Any, **options: Any) -> Call:
    return lambda: mw.shard_map(fun, **{"mesh": GRID, **options}, in_specs=ins, out_specs=outs)(*args)


def one_branch_waits(x: Any) -> Any:
    return lax.cond(x[0, 0] > 0, lambda: lax.psum(x, "x"), lambda: x.sum(0) * 0 + x)


SHARD_MAP = {
    "an output varies": region(same, P("x"), P(), X),
    "outputs vary": region(lambda x: (x, {"s": x.sum()}), P("x", "y"), (P("x"), P()), X),
    "a collective that some do not come to": region(one_branch_waits, P("x"), P("x"), X),
    "a cast of what varies": region(lambda x: lax.pvary(x, "x"), P("x"), P("x"), X),
    "an unknown axis": region(same, P("q"), P("q"), X),
    "an unknown axis inside": region(lambda x: lax.psum(x, "z"), P("x"), P("x"), X),
    "an axis twice": region(same, P("x", "x"), P("x"), X),
    "a spec that is too long": region(same, P(None, None, "x"), P(), X),
    "a spec that is too long for a result": region(lambda x: x.sum(), P("x"), P("x"), X),
    "a size that does not divide": region(same, P("x"), P("x"), X[:5]),
    "too few specs": region(first, (P("x"),), P("x"), X, X),
    "specs of another tree": region(first, (P("x"), {"a": P()}), P("x"), X, {"b": X}),
    "specs of results of another tree": region(lambda x: (x, x), P("x"), (P("x"),) * 3, X),
    "no spec": region(same, "x", P("x"), X),
    "no mesh": region(same, P("x"), P("x"), X, mesh=None),
    "something that is no mesh": region(same, P("x"), P("x"), X, mesh=3),
    "a spec names an automatic axis": region(same, P("x"), P("x"), X, axis_names={"y"}),
    "axis_names that are not of the mesh": region(same, P("x"), P("x"), X, axis_names={"q"}),
    "auto that is not of the mesh": lambda: old_shard_map(same, GRID, P("x"), P("x"), auto={"q"})(X),
    "nested over the same axes": region(
        lambda x: mw.shard_map(same, mesh=GRID, in_specs=P("x"), out_specs=P("x"))(x), P("x"), P("x"), X
    ),
    "an argument that is no array": region(same, P("x"), P("x"), "text"),
    "a result that is no array": region(lambda x: "text", P("x"), P("x"), X),
    "no function": lambda: mw.shard_map(3, mesh=GRID, in_specs=P("x"), out_specs=P("x")),
    "an argument on another device": lambda: mw.jit(mw.shard_map(same, mesh=GRID, in_specs=P("x"), out_specs=P("x")))(
        mw.device_put(X, DEVICES[3])
    ),
    "a constraint along a manual axis": region(lambda x: mw.with_sharding_constraint(x, ROWS), P("x"), P("x"), X),
}


# --- jit --------------------------------------------------------------------------------------------------------
def on(sharding: Any, value: Any = X) -> Any:
    return mw.device_put(value, sharding)


JIT = {
    "in_shardings for other arguments": lambda: mw.jit(add, in_shardings=(ROWS,))(X, X),
    "in_shardings of another tree": lambda: mw.jit(lambda t: t["a"], in_shardings=({"b": ROWS},))({"a": X}),
    "out_shardings of another tree": lambda: mw.jit(lambda x: (x, x), out_shardings={"a": ROWS})(X),
    "no sharding": lambda: mw.jit(add, in_shardings=("x", None))(X, X),
    "a spec without a mesh": lambda: mw.jit(add, in_shardings=P("x"))(X, X),
    "a spec with more entries than dimensions": lambda: mw.jit(
        add, in_shardings=(None, NamedSharding(GRID, P("x", "y", None)))
    )(X, X),
    "an unknown axis": lambda: NamedSharding(GRID, P(None, "rows")),
    "an axis twice": lambda: NamedSharding(GRID, P("x", "x")),
    "a committed argument that lies otherwise": lambda: mw.jit(add, in_shardings=ROWS)(on(COLUMNS), on(COLUMNS)),
    "arguments on two meshes": lambda: mw.jit(add)(on(ROWS), on(NamedSharding(FEW, P("x")))),
    "arguments on two devices": lambda: mw.jit(add)(on(DEVICES[1]), on(DEVICES[3])),
    "two sets of devices that read alike": lambda: mw.jit(add)(
        on(PositionalSharding(DEVICES[:4]).reshape(4, 1)), on(PositionalSharding(DEVICES[4:]).reshape(4, 1))
    ),
    "a mesh and a device": lambda: on(ROWS) + on(DEVICES[3]),
    "a closed-over array elsewhere": lambda: mw.jit(lambda x: x + on(NamedSharding(FEW, P())))(on(ROWS)),
    "an output on another device": lambda: mw.jit(
        add, in_shardings=ROWS, out_shardings=mw.SingleDeviceSharding(DEVICES[2])
    )(X, X),
    "device and shardings": lambda: mw.jit(same, device=DEVICES[0], in_shardings=ROWS),
    "another platform": lambda: mw.jit(same, backend="tpu"),
    "an argument that is no array": lambda: mw.jit(add)(X, {"a": "text"}),
    "a result that is no array": lambda: mw.jit(lambda x: {"a": "text"})(X),
    "a static argument that is not hashable": lambda: mw.jit(first, static_argnums=1)(X, [1]),
    "a static argument that is not there": lambda: mw.jit(same, static_argnums=2)(X),
    "static and donated": lambda: mw.jit(first, static_argnums=0, donate_argnums=0)(1, X),
    "no function": lambda: mw.jit(3),
    "a donated array": lambda: donated(),
    "an option of the compiler": lambda: mw.jit(lambda x: x + 1, compiler_options={"xla_no_such_flag": True})(X),
}


def donated() -> Any:
    x = mnp.ones(3)
    mw.jit(lambda x: x + 1, donate_argnums=0)(x)
    return x + 1


COMPILED = mw.jit(add, in_shardings=(ROWS, ROWS)).lower(X, X).compile()
AOT = {
    "too few arguments": lambda: COMPILED(X),
    "an argument by keyword": lambda: COMPILED(X, right=X),
    "types": lambda: COMPILED(X[:4], X.astype("i4")),
    "shardings": lambda: COMPILED(on(COLUMNS), on(COLUMNS)),
    "devices": lambda: COMPILED(on(DEVICES[3]), X),
    "types, shardings and devices": lambda: (
        mw.jit(lambda a, b, c: a, in_shardings=ROWS, keep_unused=True)
        .lower(X, X, X)
        .compile()(X[:, :3], on(COLUMNS), on(DEVICES[3]))
    ),
    "no array": lambda: COMPILED(X, "text"),
    "traced": lambda: mw.grad(lambda x: COMPILED(x, X).sum())(X),
    "a mesh without devices": lambda: (
        mw.jit(same, in_shardings=NamedSharding(AbstractMesh((2,), ("x",)), P("x"))).lower(X).compile()
    ),
    "a partition without a mesh": lambda: mw.jit(same).lower(X).partition(),
    "a partition on another mesh": lambda: (
        mw.jit(same, in_shardings=ROWS).lower(X).partition(mw.AbstractMesh((2, 2), ("x", "z")))
    ),
    "partitioned, another type": lambda: mw.jit(add, in_shardings=ROWS).partition(X, X)(X, X[:4]),
    "a text of no kind": lambda: mw.jit(same).lower(X).as_text("llvm"),
    "a text of a compiled program": lambda: COMPILED.as_text("hlo"),
    "an option of the compiler": lambda: (
        mw.jit(lambda x: x + 1).lower(X).compile(compiler_options={"xla_no_such_flag": 1})
    ),
}


# --- pjit, sharded_jit, xmap --------------------------------------------------------------------------------------
def under(mesh: Any, make: Call) -> Call:
    def call() -> Any:
        with mesh:
            return make()

    return call


def mapped(fun: Any, ins: Any, outs: Any, *args: Any, **options: Any) -> Call:
    return under(GRID, lambda: xmap(fun, ins, outs, **options)(*args))


parts, cut = sharded_jit.PartitionSpec, sharded_jit.sharded_jit
OLD = {
    "pjit: no mesh": lambda: pjit(same, in_axis_resources=P("x"), out_axis_resources=None)(X),
    "pjit: two names of one argument": lambda: pjit(same, P("x"), in_shardings=P("x")),
    "pjit: two names of one argument, results": lambda: pjit(same, out_axis_resources=P("x"), out_shardings=P("x")),
    "pjit: an unknown axis": under(GRID, lambda: pjit(same, P("z"), None)(X)),
    "pjit: specs for other arguments": under(GRID, lambda: pjit(same, (P("x"), P("y")), None)(X)),
    "sharded_jit: different numbers of parts": lambda: cut(first, (parts(2, 1), parts(4)), None),
    "sharded_jit: no parts": lambda: cut(same, None, None),
    "sharded_jit: more parts than devices": lambda: cut(same, parts(16), None),
    "sharded_jit: names of axes": lambda: parts("x"),
    "soft_pmap: another axis": lambda: soft_pmap(same, in_axes=1),
    "soft_pmap: a size that the devices do not divide": lambda: soft_pmap(same)(X[:3]),
    "a global array of too few parts": lambda: GlobalDeviceArray((8, 4), GRID, P("x"), [on(DEVICES[0], X[:2])]),
    "a batch of too few parts": lambda: GlobalDeviceArray.from_batched_callback((8, 4), GRID, P("x"), lambda i: []),
    "the mesh of an array that lies on none": lambda: mnp.ones(3).mesh,
    "xmap: two axes on one of the mesh": mapped(
        lambda a, b: a * b,
        ({0: "i"}, {0: "j"}),
        {0: "i", 1: "j"},
        X[:, 0],
        X[0],
        axis_resources={"i": "x", "j": "x"},
    ),
    "xmap: an argument has both": mapped(same, ["i", "j"], ["i", "j"], X, axis_resources={"i": "x", "j": "x"}),
    "xmap: a result has an axis that out_axes has not": mapped(first, ({0: "i"}, {}), {}, X[:, 0], X),
    "xmap: an axis that the mesh does not have": mapped(same, {0: "i"}, {0: "i"}, X, axis_resources={"i": "q"}),
    "xmap: sizes that differ": mapped(first, ({0: "i"}, {0: "i"}), {0: "i"}, X, X[0]),
    "xmap: another size than axis_sizes": mapped(same, {0: "i"}, {0: "i"}, X, axis_sizes={"i": 6}),
    "xmap: dimensions that are not there": mapped(same, ["i", "j", "k"], {}, X),
    "xmap: a size that does not divide": mapped(same, {0: "i"}, {0: "i"}, X[:6], axis_resources={"i": "x"}),
    "xmap: out_axes has an unknown axis": lambda: xmap(same, {0: "i"}, {0: "z"}),
    "xmap: axis_resources has an unknown axis": lambda: xmap(same, {0: "i"}, {}, axis_resources={"z": "x"}),
    "xmap: an axis twice": lambda: xmap(same, {0: "i", 1: "i"}, {}),
    "xmap: a negative dimension": lambda: xmap(same, {-1: "i"}, {}),
    "xmap: no axes": lambda: xmap(same, "i", {}),
    "xmap: an axis of the mesh twice": lambda: xmap(same, {0: "i"}, {}, axis_resources={"i": ("x", "x")}),
    "xmap: no mesh": lambda: xmap(same, {0: "i"}, {0: "i"}, axis_resources={"i": "x"})(X),
}

# --- shardings and meshes -----------------------------------------------------------------------------------------
SHARDINGS = {
    "GSPMD: by hand": lambda: GSPMDSharding(DEVICES, "{manual}"),
    "GSPMD: other devices": lambda: GSPMDSharding(DEVICES, "{devices=[4]<=[4]}"),
    "GSPMD: no sharding": lambda: GSPMDSharding(DEVICES, "{devices=[4}"),
    "Pmap: other devices": lambda: PmapSharding(DEVICES, ShardingSpec([Unstacked(4)], [ShardedAxis(0)])),
    "Pmap: whole, on how many": lambda: PmapSharding.default((8, 2), None),
    "spec: a cut without an axis": lambda: ShardingSpec([Chunked([2])], [Replicated(4)]),
    "spec: a dimension that does not divide": lambda: ShardingSpec(
        [Chunked([2]), NoSharding()], [ShardedAxis(0)]
    ).indices((3, 3)),
    "Positional: another shape": lambda: PositionalSharding(DEVICES).reshape(3, 2),
    "Positional: another rank": lambda: on(PositionalSharding(DEVICES)),
    "kind of memory": lambda: NamedSharding(GRID, P(), memory_kind="vram"),
    "mesh: names": lambda: mw.Mesh(np.array(DEVICES).reshape(4, 2), ("x",)),
    "mesh: a device twice": lambda: mw.Mesh(np.array([DEVICES[0]] * 2), ("x",)),
    "make_mesh: more devices": lambda: mw.make_mesh((8, 2), ("x", "y")),
    "create_device_mesh": lambda: mesh_utils.create_device_mesh((8, 2)),
    "create_hybrid_device_mesh": lambda: mesh_utils.create_hybrid_device_mesh((4,), (2,)),
    "device_put_sharded: other devices": lambda: mw.device_put_sharded([1, 2, 3], DEVICES[:2]),
    "device_put_sharded: other types": lambda: mw.device_put_sharded([np.ones(2, "f"), np.ones(3, "f")], DEVICES[:2]),
    "device_put_sharded: other trees": lambda: mw.device_put_sharded([(1,), [1]], DEVICES[:2]),
    "device_put_replicated: no devices": lambda: mw.device_put_replicated(1, []),
    "device_buffer": lambda: mw.device_put_replicated(np.arange(3), DEVICES).device_buffer,
    "devices of another platform": lambda: mw.devices("gpu"),
    "devices of another process": lambda: mw.local_devices(3),
    "broadcast": lambda: multihost_utils.broadcast_one_to_all(1, is_source=False),
    "picture: a spec that is too long": lambda: mw.debug.visualize_sharding((8,), NamedSharding(GRID, P("x", "y"))),
    "picture: no room": lambda: mw.debug.visualize_sharding((8, 8), ROWS, max_width=2),
    "picture: no array": lambda: mw.debug.visualize_array_sharding("text"),
    "picture: no callback": lambda: mw.debug.inspect_array_sharding(X, callback=3),
}

# --- export -------------------------------------------------------------------------------------------------------
SHAPE = mw.ShapeDtypeStruct((8, 4), "float32")
EXPORTED = mw.export.export(mw.jit(lambda p, x: x @ p["w"]))({"w": mw.ShapeDtypeStruct((4, 3), "float32")}, SHAPE)
WRITTEN = bytes(EXPORTED.serialize())


def elsewhere() -> Any:
    return mw.export.export(mw.jit(same), platforms=["tpu"])(SHAPE).call(X)


EXPORT = {
    "a function that is not jitted": lambda: mw.export.export(len),
    "an unknown platform": lambda: mw.export.export(mw.jit(same), platforms=["vax"]),
    "kernels of the CPU": lambda: mw.export.export(mw.jit(mnp.linalg.eigvals), platforms=["tpu"])(
        SHAPE.update(shape=(3, 3))
    ),
    "other types": lambda: EXPORTED.call({"w": X[:, :3]}, X.astype("i4")),
    "another tree": lambda: EXPORTED.call({"v": X[:4, :3]}, X),
    "no array": lambda: EXPORTED.call({"w": "text"}, X),
    "another platform": elsewhere,
    "no bytes of ours": lambda: mw.export.deserialize(b"other"),
    "cut off": lambda: mw.export.deserialize(WRITTEN[:100]),
    "changed": lambda: mw.export.deserialize(WRITTEN[:-9] + b"x" + WRITTEN[-8:]),
    "of a later format": lambda: mw.export.deserialize(WRITTEN.replace(b'"format": 1', b'"format": 9')),
}

# --- builder and backend --------------------------------------------------------------------------------------------
B, OTHER = Builder(), Builder()
p, foreign = B.parameter(0, "f32[4,4]"), OTHER.parameter(0, "f32[4,4]")
BUILDER = {
    "an unknown op": lambda: B.op("dot_genral", p, p),
    "an attribute is missing": lambda: B.op("dot_general", p, p),
    "an unknown attribute": lambda: B.op("add", p, p, axis=1),
    "too few operands": lambda: B.op("add", p),
    "an operand of another builder": lambda: B.op("add", p, foreign),
    "an operand that is no value": lambda: B.op("add", p, X),
    "types that do not fit": lambda: B.op("mul", B.constant(1), 0.5),
    "a parameter twice": lambda: B.parameter(0, "f32[]"),
    "no type": lambda: B.parameter(5, "f33[2]"),
    "a constant that does not fill": lambda: B.constant([1, 2, 3], "f32[2]"),
    "no sharding": lambda: B.set_sharding(p, 3),
    "a region that reaches out": lambda: B.region(lambda: B.op("neg", p)),
    "no results": lambda: B.build(),
}
BACKEND_OF = xla_bridge.get_backend
TWO = mw.xla_computation(add)(np.float32(1), np.float32(1))


def compiled_for(*args: Any) -> Any:
    given = [BACKEND_OF().buffer_from_pyval(*(a if isinstance(a, tuple) else (a,))) for a in args]
    return BACKEND_OF().compile(TWO).execute(given)


BACKEND = {
    "another platform": lambda: BACKEND_OF("tpu"),
    "too few arguments": lambda: compiled_for(np.float32(1)),
    "on another device": lambda: compiled_for(np.float32(1), (np.float32(1), DEVICES[1])),
    "another type": lambda: compiled_for(np.float32(1), np.float64(1)),
    "more replicas than devices": lambda: BACKEND_OF().compile(TWO, xla_bridge.get_compile_options(9, 1)),
    "several replicas": lambda: BACKEND_OF().compile(TWO, xla_bridge.get_compile_options(2, 1)).execute([1, 2]),
    "no program": lambda: BACKEND_OF().compile("module { nonsense }"),
    "no HLO": lambda: xla_extension.hlo_module_from_text("HloModule {"),
}


# --- profiler and monitor ---------------------------------------------------------------------------------------------
def twice() -> Any:
    with tempfile.TemporaryDirectory() as folder, mw.profiler.trace(folder):
        mw.profiler.start_trace(folder)


INSPECT = {
    "no profile is recorded": lambda: mw.profiler.stop_trace(),
    "a profile in a profile": twice,
    "a link": lambda: mw.profiler.start_trace("folder", create_perfetto_link=True),
    "no folder": lambda: mw.profiler.read_profile(Path("no_such_folder")),
    "no server": lambda: mw.profiler.stop_server(),
    "an interval of none": lambda: mw.smi.initialise_tracking(0),
    "no code": lambda: mw.manual_program(mw.jit(same)),
    "no code for a callback": lambda: mw.manual_program(
        mw.jit(lambda x: mw.pure_callback(np.sin, x, x), in_shardings=ROWS).lower(X)
    ),
}


# --- explicit shardings -----------------------------------------------------------------------------------------------
TYPED = mw.make_mesh((2, 4), ("x", "y"), axis_types=(mw.sharding.AxisType.Explicit,) * 2)


def typed(make: Callable[..., Any], *specs: Any) -> Call:
    def call() -> Any:
        with mw.set_mesh(TYPED):
            return make(*(mw.reshard(np.ones((8, 8), np.float32), spec) for spec in specs))

    return call


EXPLICIT = {
    "one axis for two dimensions": typed(lambda a, b: a @ b, P("x", None), P(None, "x")),
    "a sum over what is split": typed(lambda a, b: a @ b, P(None, "x"), P("x", None)),
    "two axes for one dimension": typed(add, P("x"), P("y")),
    "terms of a sum": typed(mnp.sin, P("x", unreduced={"y"})),
    "an unknown axis": typed(lambda a: mw.reshard(a, P("q")), P("x")),
    "a size that does not divide": typed(lambda a: mw.reshard(a[:3], P("x")), P()),
    "a constraint that would change": typed(lambda a: mw.with_sharding_constraint(a, P("y")), P("x")),
    "a carry that changes": typed(lambda a, b: lax.scan(lambda c, _: (b, None), a, None, length=2), P("x"), P("y")),
    "an axis twice": lambda: P("x", unreduced={"x"}),
    "no mesh": lambda: mw.reshard(X, P("x")),
}


# --- functions that users partition -------------------------------------------------------------------------------
def custom(rule: Any = None, partition: Any = None, args: Any = (X,), fun: Any = None, **said: Any) -> Call:
    def whole(mesh: Any, ins: Any, out: Any) -> Any:
        return partition(mesh) if partition else (mesh, same, out.sharding, tuple(s.sharding for s in ins))

    def call() -> Any:
        made = custom_partitioning(fun or (lambda *xs: xs[0]))
        made.def_partition(whole, sharding_rule=rule, **said)
        return mw.jit(made, in_shardings=ROWS).lower(*args).partition()

    return call


partitioned_by_key = custom_partitioning(lambda *, x: x)
partitioned_by_key.def_partition(same)
partitioned_static = custom_partitioning(lambda x, n=1: x, static_argnums=1)
partitioned_static.def_partition(same)
CUSTOM = {
    "no partition": lambda: custom_partitioning(same)(X),
    "a partition that is no function": lambda: custom_partitioning(same).def_partition(3),
    "keyword-only": lambda: mw.jit(lambda x: partitioned_by_key(x=x)).lower(X),
    "a static argument that is traced": lambda: mw.jit(partitioned_static).lower(X, X),
    "mapped": lambda: mw.jit(mw.vmap(lambda x: partitioned_static(x, 1))).lower(X),
    "its derivative": lambda: mw.jit(mw.grad(lambda x: partitioned_static(x, 1).sum())).lower(X),
    "no four things": custom(partition=lambda mesh: (mesh, same)),
    "another mesh": custom(partition=lambda mesh: (FEW, same, ROWS, (ROWS,))),
    "no shardings": custom(partition=lambda mesh: (mesh, same, P("x"), (P("x"),))),
    "a sharding over other devices": custom(partition=lambda mesh: (mesh, same, NamedSharding(FEW, P()), (ROWS,))),
    "shardings of another structure": custom(partition=lambda mesh: (mesh, same, (ROWS, ROWS), (ROWS,))),
    "results of another structure": custom(partition=lambda mesh: (mesh, lambda x: (x, x), ROWS, (ROWS,))),
    "results of another shape": custom(partition=lambda mesh: (mesh, same, ROWS, (NamedSharding(mesh, P()),))),
    "parts that are not equal": custom(
        partition=lambda mesh: (mesh, same, NamedSharding(mesh, P("x")), (ROWS,)), fun=lambda x: x[:7]
    ),
    "a rule of no kind": custom(rule=3),
    "a rule without an arrow": custom(rule="i j"),
    "a rule with words": custom(rule="i-j -> i j"),
    "a rule with open parentheses": custom(rule="(i j -> i j"),
    "a rule with one factor in parentheses": custom(rule="(i) j -> i j"),
    "leading dimensions that come last": custom(rule="i ... -> i ..."),
    "an unknown factor": custom(rule="i j -> i j", reduction_factors=("k",)),
    "a factor of two kinds": custom(rule="i j -> i j", reduction_factors=("j",), permutation_factors=("j",)),
    "a factor without a size": custom(rule="(i k) j -> (i k) j"),
    "a factor with a size too many": custom(rule="i j -> i j", i=8),
    "sizes that are no product": custom(rule="(i k) j -> (i k) j", i=3, k=2),
    "sizes that differ for a factor": custom(rule="i j -> j i"),
    "a rule for other arguments": custom(rule="i j, i j -> i j"),
    "a rule for other dimensions": custom(rule="i j k -> i j k"),
    "factors without a text": custom(reduction_factors=("i",)),
}


INTERFACES: dict[str, dict[str, Call]] = {
    "xla_computation": XLA_COMPUTATION,
    "pmap": PMAP,
    "shard_map": SHARD_MAP,
    "jit": JIT,
    "ahead_of_time": AOT,
    "pjit_sharded_jit_xmap": OLD,
    "shardings": SHARDINGS,
    "explicit": EXPLICIT,
    "export": EXPORT,
    "builder": BUILDER,
    "backend": BACKEND,
    "profiler": INSPECT,
    "custom_partitioning": CUSTOM,
}
