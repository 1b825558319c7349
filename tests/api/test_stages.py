"""The stages of a jitted function, and the texts and objects that each gives."""

import re

import numpy as np
import pytest
from jaxlib import _hlo
from jaxlib.mlir import ir

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, errors
from meshwright import PartitionSpec as P

MESH = mw.make_mesh((4, 2), ("data", "model"))
TILED, ROWS, COLUMNS, WHOLE = (NamedSharding(MESH, P(*s)) for s in (("data", "model"), ("data",), (None, "model"), ()))
X = np.arange(64, dtype=np.float32).reshape(8, 8) / 64
W = np.arange(128, dtype=np.float32).reshape(8, 16) / 128


def layer(x, w):
    with mw.named_scope("layer"):
        return mnp.tanh(x @ w)  # the line that locations name


STEP = mw.jit(layer, in_shardings=(TILED, NamedSharding(MESH, P("model"))), out_shardings=ROWS)
LINE = layer.__code__.co_firstlineno + 2


def parsed(text):
    return _hlo.hlo_module_from_text(text)


# --- trace --------------------------------------------------------------------------------------------------
def test_traced():
    traced = STEP.trace(X, W)
    assert [str(a) for a in traced.in_avals] == ["f32[8,8]", "f32[8,16]"]
    assert [str(a) for a in traced.out_avals] == ["f32[8,16]"] and traced.fun_name == "layer"
    assert str(traced.jaxpr).splitlines()[0] == "{ lambda ; a:f32[8,8] b:f32[8,16]. let"
    assert str(traced) == str(traced.jaxpr) and "2 eqns" in repr(traced)
    assert STEP.eval_shape(X, W) == mw.ShapeDtypeStruct((8, 16), np.float32, sharding=ROWS)


def test_stages_take_types_for_arguments():
    x, w = (mw.ShapeDtypeStruct(v.shape, v.dtype) for v in (X, W))
    compiled = mw.jit(layer).lower(x, w).compile()
    np.testing.assert_allclose(compiled(X, W), np.tanh(X @ W), rtol=1e-6)
    placed = mw.ShapeDtypeStruct(X.shape, X.dtype, sharding=TILED)
    assert "sharding={devices=[4,2]<=[8]}" in mw.jit(layer).lower(placed, w).as_text("hlo")


# --- lower --------------------------------------------------------------------------------------------------
def hlo_line(text, what):
    (line,) = (line for line in text.splitlines() if what in line)
    return line


def test_hlo_has_shardings_on_parameters_and_results():
    out = (WHOLE, None, TILED)
    step = mw.jit(lambda a, b, c: (a + 1, b + 2, c + 3), in_shardings=(TILED, WHOLE, ROWS), out_shardings=out)
    text = step.lower(X, X, X).as_text("hlo")
    assert "sharding={devices=[4,2]<=[8]}" in hlo_line(text, "parameter(0)")
    assert "sharding={replicated}" in hlo_line(text, "parameter(1)")
    assert "sharding={devices=[4,1,2]<=[8] last_tile_dim_replicate}" in hlo_line(text, "parameter(2)")
    root = hlo_line(text, "ROOT")
    assert re.search(r"sharding=\{\{replicated\}, .*\{devices=\[4,2\]<=\[8\]\}\}", root)
    assert parsed(text).to_string()


@pytest.mark.parametrize(("sharding", "want"), [(TILED, "{devices=[4,2]<=[8]}"), (WHOLE, "{replicated}")])
def test_hlo_of_a_single_result_has_its_sharding(sharding, want):
    text = mw.jit(mnp.sin, in_shardings=COLUMNS, out_shardings=sharding).lower(X).as_text("hlo")
    assert f"sharding={want}" in hlo_line(text, "ROOT")


def test_stablehlo_has_shardings_names_and_lines():
    lowered = STEP.lower(X, W)
    text = lowered.as_text()
    assert text == lowered.as_text("stablehlo") and "stablehlo.dot_general" in text and "num_partitions = 8" in text
    assert (
        '#sdy.sharding<@mesh, [{"data"}, {"model"}]>' in text
        and '-> (tensor<8x16xf32> {jax.result_info = "result", sdy.sharding' in text
    )
    assert "loc(" not in text
    located = lowered.as_text(debug_info=True)
    assert f'test_stages.py":{LINE}' in located and 'loc("jit(layer)/layer/tanh"' in located


def test_names_of_scopes_transformations_and_arguments_stay_to_the_end():
    def model(params, x):
        with mw.named_scope("dense"):
            return mnp.tanh(x @ params["w"]).sum()

    lowered = mw.jit(mw.grad(model)).lower({"w": W}, X)
    located = lowered.as_text(debug_info=True)
    for name in ("jit(model)/jvp(model)/dense/tanh", "jit(model)/transpose(jvp(model))/dense/mul", "params['w']"):
        assert f'loc("{name}"' in located, name
    assert "jax.result_info = \"result['w']\"" in lowered.as_text()
    optimized = lowered.compile().as_text()
    assert 'op_name="jit(model)/transpose(jvp(model))/dense/' in optimized
    assert "params__w__" in lowered.as_text("hlo") and "= f32[" in lowered.as_text("hlo")


def test_functions_are_named_where_they_are_called_not_where_they_were_traced():
    inner = mw.jit(lambda x: mnp.sin(x))

    def outer(x):
        with mw.named_scope("first"):
            y = inner(x)
        with mw.named_scope("second"):
            return inner(y) + mw.vmap(mnp.cos)(y)

    text = mw.jit(outer).lower(X).compile().as_text()
    for scope in ("first/jit(<lambda>)/sin", "second/jit(<lambda>)/sin", "second/vmap(cos)/cos"):
        assert f'op_name="jit(outer)/{scope}"' in text, scope
    part = mw.jit(outer).lower(X).partition(mw.AbstractMesh((2,), ("d",)))
    stacks = [eqn.source.name_stack for eqn in part.jaxpr.eqns]
    assert stacks == ["first/jit(<lambda>)", "second/jit(<lambda>)", "second/vmap(cos)", "second"]


def test_compiler_ir():
    lowered = STEP.lower(X, W)
    for dialect in ("stablehlo", "mhlo"):
        assert isinstance(lowered.compiler_ir(dialect), ir.Module)
    assert lowered.as_text("mhlo") == lowered.as_text("stablehlo")
    hlo = lowered.compiler_ir("hlo")
    assert hlo.as_hlo_text() == lowered.as_text("hlo") and hlo.as_hlo_text().startswith("HloModule jit_layer")
    assert hlo.as_hlo_dot_graph().startswith("digraph")
    proto = hlo.as_serialized_hlo_module_proto()
    assert isinstance(proto, bytes) and "tanh" in _hlo.XlaComputation(proto).as_hlo_text()
    assert "Lowered('layer', (f32[8,8], " in repr(lowered) and "stablehlo.tanh" in lowered._repr_html_()


def test_unknown_dialects(refuses):
    lowered = STEP.lower(X, W)
    for use in (lowered.compiler_ir, lowered.as_text):
        with refuses(ValueError, "'stablehlo', 'mhlo' or 'hlo'", "'llvm'"):
            use("llvm")
    with refuses(ValueError, "'jaxpr', 'stablehlo' or 'hlo'", "'mlir'"):
        lowered.partition().as_text("mlir")


# --- partition ----------------------------------------------------------------------------------------------
def test_partitioned_programs_run_on_the_user_s_trees():
    def step(params, *, x):
        y = x @ params["w"]
        return {"out": y, "norm": (y * y).sum()}

    sharding = NamedSharding(MESH, P("data"))
    part = mw.jit(step).lower({"w": W}, x=mw.device_put(X, sharding)).partition()
    out = part({"w": W}, x=X)
    np.testing.assert_allclose(out["out"], X @ W, rtol=1e-6)
    np.testing.assert_allclose(out["norm"], np.sum((X @ W) ** 2), rtol=1e-5)
    assert set(out) == {"out", "norm"} and out["out"].sharding.is_equivalent_to(part.out_shardings[1], 2)


def test_partitioned_programs_refuse_other_arguments(refuses):
    part = STEP.lower(X, W).partition()
    np.testing.assert_allclose(part(X, W), np.tanh(X @ W), rtol=1e-6)
    with refuses(TypeError, "'layer'", "partitioned", "argument w", "f32[8,16]", "f32[8,8]"):
        part(X, X)
    with refuses(TypeError, "'layer'", "(*, *)", "(*,)"):
        part(X)
    other = mw.make_mesh((2, 2), ("data", "model"))
    with refuses(errors.MeshError, "argument x", "'data': 2"):
        part(mw.device_put(X, NamedSharding(other, P("data"))), W)
    with refuses(errors.MeshError, "no devices", "make_mesh", "verify"):
        mw.jit(lambda x: x).lower(X).partition(mw.AbstractMesh((2,), ("d",)))(X)


def test_partitioned_loaded_programs_run():
    program = mw.load(STEP.lower(X, W).as_text())
    part = program.partition(mw.make_mesh((8,), ("d",)))
    np.testing.assert_allclose(part(X, W), np.asarray(program(X, W)), rtol=1e-6)
    np.testing.assert_allclose(part([X], {"w": W}), np.asarray(program(X, W)), rtol=1e-6)


# --- compile ------------------------------------------------------------------------------------------------
def test_compiled():
    compiled = STEP.lower(X, W).compile()
    out = compiled(X, W)
    np.testing.assert_allclose(out, np.tanh(X @ W), rtol=1e-6)
    assert compiled.as_text().startswith("HloModule jit_layer")
    assert 2 * 8 * 8 * 16 / 8 <= compiled.cost_analysis()["flops"] < 2 * 8 * 8 * 16  # of one device
    assert compiled.memory_analysis().argument_size_in_bytes == X.nbytes // 8 + W.nbytes // 2
    (arguments, keywords) = compiled.input_shardings
    assert keywords == {} and arguments[0].is_equivalent_to(TILED, 2)
    assert compiled.output_shardings.is_equivalent_to(ROWS, 2) and out.sharding.is_equivalent_to(ROWS, 2)


def test_compiled_programs_refuse_other_arguments(refuses):
    compiled = STEP.lower(X, W).compile()
    with refuses(TypeError, "'layer'", "argument w", "f32[8,16]", "f32[8,8]", "compiled again"):
        compiled(X, X)
    with refuses(TypeError, "argument x", "f32[8,8]", "i32[8,8]"):
        compiled(X.astype(np.int32), W)
    with refuses(TypeError, "'layer'", "(*, *)", "(*,)"):
        compiled(X)
    with refuses(TypeError, "'layer'", "(*, *)", "{'w': *}"):
        compiled(X, w=W)
    with refuses(TypeError, "'layer'", "argument w", "'text'", "str"):
        compiled(X, "text")
    other = mw.make_mesh((2, 2), ("data", "model"))
    with refuses(errors.MeshError, "argument x", "compiled program", "'data': 2", "device_put"):
        compiled(mw.device_put(X, NamedSharding(other, P("data"))), W)
    # Within the mesh an argument is brought to where the program wants it, if that is asked for.
    with mw.config.override("move_arguments", True), pytest.warns(errors.MovedArgumentWarning):
        np.testing.assert_allclose(compiled(mw.device_put(X, COLUMNS), W), np.tanh(X @ W), rtol=1e-6)


# --- partition ----------------------------------------------------------------------------------------------
def test_partitioned_program():
    part = STEP.lower(X, W).partition()
    assert part.mesh == MESH and part.num_devices == 8
    assert [a.shape for a in part.jaxpr.in_avals] == [(2, 4), (4, 16)]
    assert [s.is_equivalent_to(t, 2) for s, t in zip(part.in_shardings, (TILED, NamedSharding(MESH, P("model"))))]
    assert part.out_shardings[0].is_equivalent_to(ROWS, 2)
    (reduce,) = part.collectives
    assert (reduce.kind, reduce.axes, reduce.group_size, reduce.count) == ("all_reduce", ("model",), 2, 1)
    assert reduce.bytes_sent == part.bytes_sent == 2 * (2 * 16 * 4) * 1 // 2
    assert reduce.source.line == LINE and "tanh" in reduce.reason and "dot_general" in reduce.reason
    assert part.peak_bytes >= 4 * (2 * 4 + 4 * 16 + 2 * 16)
    assert "all_reduce over model" in part.explain() and f"test_stages.py:{LINE}" in part.explain()
    assert all(d.relative < 1e-5 for d in part.verify(X, W)) and all(d.relative < 1e-5 for d in part.verify())
    assert "1 collective," in repr(part) and "all_reduce" in part._repr_html_()


def test_verify_takes_the_programs_arguments(refuses):
    with refuses(ValueError, "verify", "2 arrays", "got 1"):
        STEP.lower(X, W).partition().verify(X)


def groups_of(text, op):
    groups = re.search(r"replica_groups=\{(.*?\})\}", hlo_line(text, f" {op}(")).group(1)
    return [[int(n) for n in group.split(",")] for group in re.findall(r"\{([\d,]+)\}", groups)]


def test_per_device_texts():
    part = STEP.lower(X, W).partition()
    jaxpr = part.as_text()
    assert jaxpr == part.as_text("jaxpr") and "psum[axes=('model',)]" in jaxpr and "a:f32[2,4]" in jaxpr
    assert "stablehlo.all_reduce" in part.as_text("stablehlo")
    text = part.as_text("hlo")
    assert parsed(text).to_string()
    assert groups_of(text, "all-reduce") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert "(f32[2,4]{1,0}, f32[4,16]{1,0})->f32[2,16]{1,0}" in text


@pytest.mark.parametrize(
    ("axis", "groups"), [("data", [[0, 2, 4, 6], [1, 3, 5, 7]]), ("model", [[0, 1], [2, 3], [4, 5], [6, 7]])]
)
def test_replica_groups_are_device_numbers_along_the_axis(axis, groups):
    gather = mw.jit(lambda x: x * 2, in_shardings=NamedSharding(MESH, P(axis)), out_shardings=WHOLE)
    text = gather.lower(X).partition().as_text("hlo")
    assert parsed(text).to_string() and groups_of(text, "all-gather") == groups


def test_replica_groups_of_a_mesh_in_another_order():
    devices = np.array(mw.devices())[[3, 1, 2, 0, 7, 6, 5, 4]].reshape(2, 4)
    mesh = mw.Mesh(devices, ("a", "b"))
    total = mw.jit(lambda x: mnp.sum(x, axis=0), in_shardings=NamedSharding(mesh, P("b")))
    text = total.lower(X).partition().as_text("hlo")
    assert sorted(map(sorted, groups_of(text, "all-reduce"))) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert groups_of(text, "all-reduce")[0] == [3, 1, 2, 0]


def test_permutes_and_all_to_alls_parse():
    move = mw.jit(lambda x: x + 1, in_shardings=ROWS, out_shardings=NamedSharding(MESH, P(None, "data")))
    text = move.lower(X).partition().as_text("hlo")
    assert parsed(text).to_string() and "all-to-all" in text
    shift = mw.jit(lambda x: mnp.roll(x, 1, axis=0), in_shardings=NamedSharding(MESH, P(("data", "model"))))
    text = shift.lower(X).partition().as_text("hlo")
    assert parsed(text).to_string()
    pairs = re.findall(r"\{(\d+),(\d+)\}", "".join(re.findall("source_target_pairs=(.*)", text)))
    assert {(int(source), int(target)) for source, target in pairs} >= {(i, (i + 1) % 8) for i in range(8)}


def test_partitioning_for_given_devices():
    lowered = mw.jit(layer).lower(X, W)
    assert lowered.partition(num_devices=4).mesh.shape == {"devices": 4}
    assert lowered.partition(mw.AbstractMesh((512,), ("data",))).num_devices == 512


def test_types_of_results_have_the_shardings_that_are_asked_for():
    mesh = mw.make_mesh((4, 2), ("x", "y"))
    rows = NamedSharding(mesh, P("x"))
    f = mw.jit(lambda v: {"rows": v * 2, "sum": mnp.sum(v)}, out_shardings={"rows": rows, "sum": None})
    for found in (mw.eval_shape(f, np.ones((8, 4), "float32")), f.eval_shape(np.ones((8, 4), "float32"))):
        assert (found["rows"].shape, found["rows"].sharding, found["sum"].sharding) == ((8, 4), rows, None)
    assert mw.eval_shape(lambda v: f(v), np.ones((8, 4), "float32"))["rows"].sharding is None


# --- another machine ----------------------------------------------------------------------------------------
def test_a_program_is_partitioned_for_another_machine():
    """Shardings over a mesh with devices, also inside, and the costs on hardware that is not here."""
    rows = NamedSharding(MESH, P("data"))

    def region(x):
        with_columns = mw.with_sharding_constraint(2 * x, P(None, "model"))
        return mw.lax.psum(with_columns, "data")

    def program(x, w):
        y = mw.with_sharding_constraint(layer(x, w), rows)
        return mw.shard_map(region, mesh=MESH, in_specs=P("data"), out_specs=P(), axis_names={"data"})(y)

    lowered = mw.jit(program, in_shardings=(TILED, None), out_shardings=COLUMNS).lower(X, W)
    here, there = lowered.partition(), lowered.partition(MESH.abstract_mesh.on("v5e:4x2"))
    assert there.mesh == MESH.abstract_mesh.on("v5e:4x2") and here.mesh == MESH
    assert [s.mesh for s in there.in_shardings] == [there.mesh] * 2
    # There, starting kernels takes nearly all of a step, and nothing is moved for fewer bytes.
    assert (here.bytes_sent, there.bytes_sent) == (128, 224) and there.time().seconds > here.time().seconds
    there.verify(X, W)
    with pytest.raises(errors.MeshError, match="has no devices"):
        there(X, W)
    with pytest.raises(errors.MeshError, match="leave the mesh out"):
        lowered.partition(mw.AbstractMesh((4, 2), ("data", "other"), machine="v5e:4x2"))


def test_regions_in_regions_are_partitioned_for_another_machine():
    """The mesh of the inner one says of the outer one's axes that they are manual."""

    def columns(x):
        return mw.lax.psum(mw.with_sharding_constraint(x, P("model")), "data")

    def program(x, w):
        inner = mw.shard_map(
            lambda y: mw.lax.psum(y, "model"), in_specs=P(None, "model"), out_specs=P(), axis_names={"model"}
        )
        summed = lambda y: inner(y) + columns(y)[:, :1]  # noqa: E731
        return mw.shard_map(summed, mesh=MESH, in_specs=P("data"), out_specs=P("data"), axis_names={"data"})(x @ w)

    with mw.set_mesh(MESH):
        lowered = mw.jit(program, in_shardings=(TILED, None)).lower(X, W)
    there = lowered.partition(MESH.abstract_mesh.on("v5e:4x2"))
    assert str(there.jaxpr) == str(lowered.partition().jaxpr)
    there.verify()
