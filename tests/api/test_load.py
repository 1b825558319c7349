"""Programs from elsewhere: every form, shardings of both kinds, donation, errors with file and line."""

from __future__ import annotations

import itertools
import pickle

import jax
import numpy as np
import pytest
from jaxlib import _hlo, _jax
from jaxlib.mlir import ir

import meshwright as mw
from meshwright import AbstractMesh
from meshwright import PartitionSpec as P
from meshwright.errors import (
    ArgumentError,
    ArgumentTypeError,
    ImportProgramError,
    MeshError,
    MeshwrightError,
    ShapeError,
)
from meshwright.stablehlo.context import new_context
from meshwright.stablehlo.hlo import module_bytecode

X = np.arange(24, dtype=np.float32).reshape(4, 6) / 7
W = np.linspace(-1, 1, 48, dtype=np.float32).reshape(6, 8)

LAYER = """module @layer attributes {mhlo.num_partitions = 8 : i32} {
  func.func public @main(%x: tensor<4x6xf32> {mhlo.sharding = "{devices=[4,1,2]<=[8] last_tile_dim_replicate}"},
                         %w: tensor<6x8xf32> {mhlo.sharding = "{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate}",
                                              jax.buffer_donor = true})
      -> (tensor<4x8xf32> {mhlo.sharding = "{devices=[4,2]<=[8]}"}, tensor<8xf32> {mhlo.sharding = "{replicated}"}) {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
        : (tensor<4x6xf32>, tensor<6x8xf32>) -> tensor<4x8xf32>
    %1 = stablehlo.custom_call @Sharding(%0) {mhlo.sharding = "{devices=[2,4]<=[8]}"}
        : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %2 = stablehlo.tanh %1 : tensor<4x8xf32>
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %3 = stablehlo.reduce(%2 init: %z) applies stablehlo.add across dimensions = [0]
        : (tensor<4x8xf32>, tensor<f32>) -> tensor<8xf32>
    return %2, %3 : tensor<4x8xf32>, tensor<8xf32>
  }
}
"""


def expected():
    y = np.tanh(X @ W)
    return y, y.sum(0)


def check_layer(program, rtol=1e-6):
    outs = program(X, W)
    for got, want in zip(outs, expected(), strict=True):
        np.testing.assert_allclose(np.asarray(got), want, rtol=rtol, atol=1e-6)


# --- forms --------------------------------------------------------------------------------------------------
def module(text=LAYER):
    return ir.Module.parse(text, new_context())


def hlo_proto(text=LAYER):
    computation = _jax.mlir.mlir_module_to_xla_computation(
        module_bytecode(module(text)), use_tuple_args=False, return_tuple=True
    )
    return computation.as_serialized_hlo_module_proto()


def hlo_text():
    return _hlo.XlaComputation(hlo_proto()).as_hlo_text()


def portable():
    with new_context():
        return _jax.mlir.serialize_portable_artifact(LAYER, "1.0.0")


FORMS = {
    "text": lambda: LAYER, "bytes of text": lambda: LAYER.encode(), "bytecode": lambda: module_bytecode(module()),
    "portable artifact": portable, "HLO text": hlo_text, "HLO proto": hlo_proto,
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_in_memory_and_in_a_file(form, tmp_path):
    data = FORMS[form]()
    file = tmp_path / "program"
    file.write_bytes(data.encode() if isinstance(data, str) else data)
    for source in (data, file, str(file)):
        program = mw.load(source)
        check_layer(program)
        assert [str(a) for a in program.in_avals] == ["f32[4,6]", "f32[6,8]"]
        assert [str(a) for a in program.out_avals] == ["f32[4,8]", "f32[8]"]
        assert program.num_partitions == 8
        assert program.partition().bytes_sent == mw.load(LAYER).partition().bytes_sent


def test_tuple_parameters_and_results_become_several():
    computation = _jax.mlir.mlir_module_to_xla_computation(
        module_bytecode(module()), use_tuple_args=True, return_tuple=True
    )
    program = mw.load(computation.as_serialized_hlo_module_proto())
    assert len(program.in_avals) == 2
    check_layer(program)


def test_names_and_source_lines_are_kept():
    def scaled_product(x, w):
        return (x @ w) * 2

    text = jax.jit(scaled_product).lower(X, W).as_text(debug_info=True)
    program = mw.load(text)
    assert [p.name for p in program.parameters] == ["x", "w"]
    line = scaled_product.__code__.co_firstlineno + 1
    product = next(e for e in program.jaxpr.eqns if e.op.name == "dot_general")
    assert (product.source.file.rpartition("/")[2], product.source.line) == ("test_load.py", line)
    assert product.source.function.endswith("scaled_product") and "dot_general" in str(product.source)


# --- shardings ----------------------------------------------------------------------------------------------
def test_shardings_find_a_mesh():
    program = mw.load(LAYER)
    assert program.mesh == AbstractMesh((2, 2, 2), ("x0", "x1", "x2"))
    assert [s.spec for s in program.in_shardings] == [P(("x0", "x1"), None), P(None, "x2")]
    assert program.out_shardings[0].spec == P(("x0", "x1"), "x2")
    assert program.out_shardings[1].spec == P(None)
    assert mw.load(LAYER.replace(' {mhlo.sharding = "{replicated}"}', "")).out_shardings[1] is None
    assert program.donated == [1]
    part = program.partition()
    assert part.num_devices == 8
    part.verify(X, W)
    kinds = {c.kind for c in part.collectives}
    assert kinds and part.bytes_sent > 0


def test_a_mesh_of_the_users_names_the_axes():
    mesh = AbstractMesh((2, 2, 2), ("a", "b", "c"))
    part = mw.load(LAYER).partition(mesh)
    assert part.mesh == mesh
    assert part.in_shardings[0].spec == P(("a", "b"), None)
    part.verify(X, W)


@pytest.mark.parametrize(
    "lowered",
    [
        lambda p: p.lower(),
        lambda p: p.trace().lower(),
        lambda p: p.trace().lower(compiler_options={"xla_cpu_enable_fast_math": True}),
        lambda p: pickle.loads(pickle.dumps(p.lower())),
    ],
    ids=["lower", "trace", "options", "pickled"],
)
def test_what_is_lowered_keeps_the_shardings_of_the_text(lowered):
    program, mesh = mw.load(LAYER), AbstractMesh((8,), ("y",))
    with mw.set_mesh(mesh):
        got = lowered(program).partition()
    assert got.in_shardings == lowered(program).partition().in_shardings == program.partition().in_shardings
    named = AbstractMesh((2, 2, 2), ("a", "b", "c"))
    assert lowered(program).partition(named).in_shardings[0].spec == P(("a", "b"), None)
    assert lowered(program).program.mesh is None


def test_listed_devices_make_a_mesh_in_another_order():
    text = """func.func @main(%x: tensor<8x2xf32> {mhlo.sharding = "{devices=[4,1]3,1,0,2}"}) -> tensor<8x2xf32> {
  %0 = stablehlo.add %x, %x : tensor<8x2xf32>
  return %0 : tensor<8x2xf32>
}"""
    program = mw.load(text)
    assert program.num_partitions == 4
    assert program.mesh.flat_ids == (3, 1, 0, 2)
    x = np.arange(16, dtype=np.float32).reshape(8, 2)
    where = {d.id: i for d, i in program.in_shardings[0].devices_indices_map((8, 2)).items()}
    assert where[3][0] == slice(0, 2) and where[2][0] == slice(6, 8)
    part = program.partition()
    part.verify(x)
    assert not part.collectives


SDY = """module @shardy {
  sdy.mesh @mesh = <["data"=4, "model"=2]>
  func.func @main(%x: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>},
                  %w: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model", ?}]>})
      -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data":(1)2}, {}]>}) {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
        : (tensor<8x6xf32>, tensor<6x4xf32>) -> tensor<8x4xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{"data", "model"}, {?}]> : tensor<8x4xf32>
    %2 = stablehlo.exponential %1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {"model"}]>]>}
        : tensor<8x4xf32>
    return %2 : tensor<8x4xf32>
  }
}"""


def test_shardy():
    program = mw.load(SDY)
    assert program.mesh == AbstractMesh((4, 2), ("data", "model"))
    assert [s.spec for s in program.in_shardings] == [P("data", None), P(None, "model")]
    assert program.out_shardings[0].spec == P("data:(1)2", None)
    part = program.partition()
    x, w = np.sin(np.arange(48, dtype=np.float32)).reshape(8, 6), np.cos(np.arange(24, dtype=np.float32)).reshape(6, 4)
    part.verify(x, w)
    np.testing.assert_allclose(np.asarray(program(x, w)), np.exp(x @ w), rtol=1e-5)
    again = mw.load(program.as_text("stablehlo"))
    assert again.partition(AbstractMesh((4, 2), ("data", "model"))).bytes_sent == part.bytes_sent


def test_binding_does_not_make_the_program_for_one_device(monkeypatch):
    """For that, regions of per-device code are partitioned: as much work as partitioning the program itself."""
    mesh = jax.sharding.AbstractMesh((4,), ("x",))
    step = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P()))
    lowered = step.trace(jax.ShapeDtypeStruct((8,), np.float32)).lower(lowering_platforms=("cpu",))
    program = mw.load(lowered.as_text().encode())
    with monkeypatch.context() as patch:
        patch.setattr("meshwright.api.load.without_regions", None)
        part = program.partition()
        assert [str(a) for a in (*program.in_avals, *program.out_avals)] == ["f32[8]", "f32[2]"]
    assert part.bytes_sent == 2 * 2 * 4 * 3 // 4
    np.testing.assert_array_equal(program(mw.numpy.arange(8.0)), [12, 16])


def test_unspecified_dimensions_are_left_to_the_partitioner():
    rows = 'mhlo.sharding = "{devices=[4,1,2]<=[8] last_tile_dim_replicate}"'
    open_columns = f'backend_config = "unspecified_dims=[1]", {rows}'
    text = LAYER.replace('mhlo.sharding = "{devices=[2,4]<=[8]}"', open_columns)
    part = mw.load(text).partition()
    part.verify(X, W)
    assert not [c for c in part.collectives if c.reason.startswith("with_sharding_constraint")]


def test_text_and_program_survive_a_round_trip():
    program = mw.load(LAYER)
    again = mw.load(program.as_text("stablehlo"))
    check_layer(again)
    assert str(again.parsed.result_shardings) == str(program.parsed.result_shardings)
    assert again.annotations == program.annotations
    assert again.donated == program.donated
    assert program.as_text("hlo").startswith("HloModule")
    assert "sharding_annotation" in program.as_text()


def test_aliases_are_donations():
    text = """func.func @main(%x: tensor<4xf32> {tf.aliasing_output = 1 : i32}, %y: tensor<4xf32>)
    -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = stablehlo.add %x, %y : tensor<4xf32>
  return %y, %0 : tensor<4xf32>, tensor<4xf32>
}"""
    program = mw.load(text)
    assert program.donated == [0]
    assert program.parameters[0].alias == 1
    assert "tf.aliasing_output = 1" in program.as_text("stablehlo")


def test_programs_without_shardings_need_a_mesh():
    program = mw.load("func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }")
    assert program.mesh is None and program.num_partitions == 1
    with pytest.raises(MeshError, match=r"has no shardings.*num_devices=8"):
        program.partition()
    with pytest.raises(MeshError, match=r"has no shardings.*num_devices=8"):
        program.lower().partition()
    assert program.partition(num_devices=4).num_devices == program.lower().partition(num_devices=4).num_devices == 4


def test_64_bit_values_stay_what_they_are():
    text = """func.func @main(%x: tensor<4xf64> {mhlo.sharding = "{devices=[2]<=[2]}"})
    -> (tensor<f64>, tensor<4xui64>) {
  %c = stablehlo.constant dense<[1.0000000001, 2.0, 3.0, 4.0]> : tensor<4xf64>
  %z = stablehlo.constant dense<0.0> : tensor<f64>
  %0 = stablehlo.multiply %x, %c : tensor<4xf64>
  %1 = stablehlo.reduce(%0 init: %z) applies stablehlo.add across dimensions = [0]
      : (tensor<4xf64>, tensor<f64>) -> tensor<f64>
  %i = stablehlo.iota dim = 0 : tensor<4xui64>
  %s = stablehlo.constant dense<5000000000> : tensor<4xui64>
  %2 = stablehlo.add %i, %s : tensor<4xui64>
  return %1, %2 : tensor<f64>, tensor<4xui64>
}"""
    program = mw.load(text)
    x = np.array([1e-12, 1, 2, 3])
    total, counted = program(x)
    assert np.asarray(total) == (x * [1.0000000001, 2, 3, 4]).sum()
    np.testing.assert_array_equal(np.asarray(counted), 5_000_000_000 + np.arange(4, dtype=np.uint64))
    program.partition().verify(x)
    assert not mw.config.enable_x64


# --- size ---------------------------------------------------------------------------------------------------
def test_a_thousand_nested_calls():
    def function(name, callee):
        last = "stablehlo.negate %0 : tensor<f32>"
        call = f"call @{callee}(%0) : (tensor<f32>) -> tensor<f32>" if callee else last
        return f"""func.func @{name}(%x: tensor<f32>) -> tensor<f32> {{
  %c = stablehlo.constant dense<1.0> : tensor<f32>
  %0 = stablehlo.add %x, %c : tensor<f32>
  %1 = {call}
  return %1 : tensor<f32>
}}"""

    names = ["main", *(f"f{i}" for i in range(1000)), ""]
    program = mw.load("\n".join(function(a, b) for a, b in itertools.pairwise(names)))
    assert float(np.asarray(program(np.float32(0.5)))) == -1001.5


def test_large_constants_stay_arrays():
    table = np.arange(2**20, dtype=np.float32)
    text = jax.jit(lambda x: x + table + np.float32(3)).lower(table).as_text()
    program = mw.load(text)
    assert any(isinstance(c, np.ndarray) and c.nbytes == table.nbytes for c in program.jaxpr.consts)
    np.testing.assert_array_equal(np.asarray(program(table)), 2 * table + 3)


def test_a_splat_is_a_broadcast():
    program = mw.load("""func.func @main() -> tensor<1024x1024x512xf32> {
  %c = stablehlo.constant dense<2.5> : tensor<1024x1024x512xf32>
  return %c : tensor<1024x1024x512xf32>
}""")
    assert not program.jaxpr.consts
    assert [e.op.name for e in program.jaxpr.eqns] == ["broadcast_in_dim"]


# --- errors -------------------------------------------------------------------------------------------------
def raises(text, pattern, error=ImportProgramError):
    with pytest.raises(error, match=pattern):
        mw.load(text)


def main(body, results="tensor<f32>", args="%x: tensor<f32>"):
    return f"func.func @main({args}) -> ({results}) {{\n{body}\n}}"


def test_errors_of_parsers_name_file_and_line(tmp_path):
    file = tmp_path / "broken.mlir"
    file.write_text(LAYER.replace("stablehlo.tanh", "stablehlo.tahn"))
    raises(file, r"broken.mlir:10:\d+: .*tahn")
    raises(LAYER[:700], r"<text>:\d+:\d+: ")
    raises("HloModule m\n\nENTRY e {\n  ROOT a = f32[2] nonsense()\n}", r"<text>:4:\d+: ")
    raises(hlo_text()[:300], r"<text>:\d+:\d+: ")
    raises("", "is empty")
    raises(b"\x00\x01\x02garbage\xff", "not a program in a known form")
    raises(hlo_proto()[:60], "not a program in a known form")
    raises(module_bytecode(module())[:200], "<bytes>:")
    raises(as_exported(module_bytecode(module()))[:200], "the bytecode of the export cannot be read")
    raises(2 * as_exported(module_bytecode(module())), "exported.mlir_module_serialized")
    huge = "tensor<2x9223372036854775807xf32>"
    raises(main(f"  return %x : {huge}", huge, f"%x: {huge}"), "argument 0: .* bytes; expected at most")


def as_exported(artifact):
    """In the middle of a FlatBuffer, as ``jax.export`` serializes it."""
    return b"\x18\x00\xff\xfe" + len(artifact).to_bytes(4, "little") + artifact + b"\x00\xff"


def test_what_jax_export_serializes():
    artifact = module_bytecode(module())
    assert mw.load(as_exported(artifact)).as_text() == mw.load(artifact).as_text()


def test_operations_without_meaning_name_their_line():
    token = "  %t = stablehlo.create_token : !stablehlo.token"
    infeed = '  %0:2 = "stablehlo.infeed"(%t) : (!stablehlo.token) -> (tensor<f32>, !stablehlo.token)'
    raises(main(f"{token}\n{infeed}\n  return %0#0 : tensor<f32>"), r"<text>:3: stablehlo.infeed: talks to the host")
    reduce = """  %0 = "stablehlo.all_reduce"(%x) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>"""
    alone = f"module attributes {{mhlo.num_replicas = 1 : i32}} {{\n{main(reduce)}\n}}"
    raises(alone, r"<text>:3: stablehlo.all_reduce: replica_groups name replica 1; the program has replicas 0 to 0")
    uncounted = f"module attributes {{mhlo.num_partitions = 2 : i32}} {{\n{main(reduce)}\n}}"
    raises(
        uncounted, r"has replicas 0 to 0; if it is for several, write mhlo.num_replicas into the module's attributes"
    )
    raises(main("  return %x : tensor<?xf32>", "tensor<?xf32>", "%x: tensor<?xf32>"), r"dynamic shape; export")
    quantized = "  return %x : tensor<2x!quant.uniform<i8:f32, 0.5>>"
    raises(
        main(quantized, "tensor<2x!quant.uniform<i8:f32, 0.5>>", "%x: tensor<2x!quant.uniform<i8:f32, 0.5>>"), "quant"
    )
    second = LAYER.replace("stablehlo.tanh %1", 'stablehlo.tanh %1 {mhlo.sharding = "{devices=[2,2]<=[8]}"}')
    raises(second, "sharding .*", MeshwrightError)


def test_shardings_that_do_not_fit():
    wrong_count = LAYER.replace("[4,2]<=[8]", "[2,2]<=[4]")
    raises(wrong_count, r"<text>:2: func.func: result 0: .* names 4 devices but the program runs on 8")
    wrong_rank = LAYER.replace("{devices=[4,2]<=[8]}", "{devices=[4,2,1]<=[8]}")
    raises(wrong_rank, r"<text>:2: func.func: result 0: .* for 3 dimensions")
    with pytest.raises(MeshError, match=r"for 8 devices, .* has 6"):
        mw.load(LAYER).partition(AbstractMesh((3, 2), ("a", "b")))
    listed = mw.load(LAYER.replace("{devices=[2,4]<=[8]}", "{devices=[2,4]0,1,2,3,4,5,7,6}"))
    listed.partition(AbstractMesh((2, 4), ("a", "b"))).verify()  # inside, devices are in the order of the mesh


def test_programs_without_an_entry():
    raises("module {}", "expected an entry function.*none")
    two = "\n".join(f"func.func @{n}(%x: tensor<f32>) -> tensor<f32> {{ return %x : tensor<f32> }}" for n in "ab")
    raises(two, "the module has 'a', 'b'")
    loop = """func.func @main(%x: tensor<f32>) -> tensor<f32> {
  %0 = call @f(%x) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @f(%x: tensor<f32>) -> tensor<f32> {
  %0 = call @f(%x) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}"""
    raises(loop, "call each other")


def test_wrong_arguments():
    with pytest.raises(ArgumentError, match=r"cannot read 'nowhere.mlir': No such file"):
        mw.load("nowhere.mlir")
    with pytest.raises(ArgumentTypeError, match="expected a path, text or bytes, got int"):
        mw.load(3)
    program = mw.load(LAYER)
    with pytest.raises(ArgumentError, match="takes 2 arrays, got 1"):
        program(X)
    with pytest.raises(ShapeError, match=r"argument arg1 of type f32\[6,8\], got f32\[8,6\]"):
        program(X, W.T)
    with pytest.raises(ArgumentError, match="expected 'jaxpr', 'stablehlo' or 'hlo', got 'c'"):
        program.as_text("c")


@pytest.mark.slow
def test_a_hundred_thousand_ops():
    kind, count = "tensor<64x32xf32>", 100_000
    lines = ['func.func public @main(%a0: tensor<64x32xf32> {mhlo.sharding = "{devices=[8,1]<=[8]}"}, '
             "%w: tensor<32x32xf32>) -> tensor<64x32xf32> {"]  # fmt: skip
    for i in range(count):
        types = f"({kind}, tensor<32x32xf32>) -> {kind}"
        product = f"stablehlo.dot_general %a{i}, %w, contracting_dims = [1] x [0] : {types}"
        sum_ = f"stablehlo.add %a{i}, %a{max(i - 2, 0)} : {kind}"
        lines.append(f"  %a{i + 1} = {(product, f'stablehlo.tanh %a{i} : {kind}', sum_, sum_)[i % 4]}")
    part = mw.load("\n".join([*lines, f"  return %a{count} : {kind}", "}"])).partition()
    assert len(part.jaxpr.eqns) == count
    assert part.bytes_sent == 0


def test_a_program_for_several_devices_that_shards_nothing():
    header = "module @m attributes {mhlo.num_partitions = 6 : i32} {\n"
    part = mw.load(f"{header}{main('  return %x : tensor<f32>')}\n}}").partition()
    assert part.mesh.size == 6


def test_calls_of_exports_for_any_sizes_are_read_at_those_of_the_program():
    """JAX leaves their sizes to XLA, which refines the text before it compiles it."""
    sizes = jax.ShapeDtypeStruct(jax.export.symbolic_shape("n, 6", constraints=["n >= 2"]), "float32")
    exported = jax.export.export(jax.jit(lambda x: jax.numpy.cumsum(x, 0) / x.shape[0]))(sizes)
    lowered = jax.jit(lambda x: jax.numpy.sin(exported.call(2 * x)[1:])).lower(X)
    want = np.sin(np.cumsum(2 * X, 0) / 4)[1:]
    for program in (mw.load(lowered.as_text()), mw.load(lowered.as_text(debug_info=True)), mw.from_jax(lowered)):
        np.testing.assert_allclose(program(X), want, rtol=1e-6)
        assert program.jaxpr.out_avals[0].shape == (3, 6)
