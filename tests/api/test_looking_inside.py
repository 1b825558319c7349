"""What stages show: the program for all devices with its manual regions, and what XLA makes of that of one device."""

import jax
import jax.scipy.linalg
import jax.scipy.special
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, P, lax

A = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
B = np.random.default_rng(1).normal(size=(4, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def mesh():
    return mw.make_mesh((4, 2), ("x", "y"))


@pytest.fixture(scope="module")
def product(mesh):
    """A sharded product that needs an all-reduce: function, arguments, lowered, compiled."""
    x = mw.device_put(A, NamedSharding(mesh, P("x", "y")))
    w = mw.device_put(B, NamedSharding(mesh, P("y", None)))
    f = mw.jit(lambda x, w: mnp.sin(x @ w), out_shardings=NamedSharding(mesh, P("x")))
    lowered = f.lower(x, w)
    return f, (x, w), lowered, lowered.compile()


def test_compiled_text_is_what_one_device_runs(product, refuses):
    _, _, lowered, compiled = product
    text = compiled.as_text()
    assert "is_scheduled=true" in text and "replica_count=8" in text and "->f32[2,8]{1,0}}" in text
    assert "all-reduce(" in text and "replica_groups={{0,1},{2,3},{4,5},{6,7}}" in text
    assert 'op_name="jit(<lambda>)/sin"' in text and "test_looking_inside.py" in text
    assert "ynn_fusion" not in text  # XLA's experimental kernels are off, here too
    virtual = compiled.as_text("virtual")
    assert "all-reduce" not in virtual and "f32[8,8]" in virtual
    assert compiled.runtime_executable().hlo_modules()[0].to_string() == virtual
    with refuses(mw.errors.ArgumentError, "'device' or 'virtual'"):
        compiled.as_text("hlo")
    text = lowered.as_text()
    assert '#sdy.sharding<@mesh, [{"x"}, {"y"}]>' in text and "mhlo.num_partitions = 8" in text


def test_costs_are_those_of_one_device(product):
    _, _, lowered, compiled = product
    for stage in (lowered, compiled):
        assert stage.memory_analysis().argument_size_in_bytes == (8 * 4 // 8 + 4 * 8 // 2) * 4
        assert 2 * 8 * 4 * 8 / 8 <= stage.cost_analysis()["flops"] < 2 * 8 * 4 * 8 / 4
    alone = mw.jit(lambda x: x + 1).lower(A)
    assert alone.cost_analysis()["flops"] == alone.compile().cost_analysis()["flops"] == 32
    planned = NamedSharding(mw.AbstractMesh((4, 2), ("x", "y")), P("x"))
    assert mw.jit(lambda x: x + 1, in_shardings=planned).lower(A).cost_analysis()["flops"] == 8


def test_types_and_formats_of_a_compiled_program(product, mesh):
    _, _, _, compiled = product
    (x, w), named = compiled.in_avals
    assert (str(x), str(w), named, str(compiled.out_avals)) == ("f32[8,4]", "f32[4,8]", {}, "f32[8,8]")
    (x, w), _ = compiled.input_formats
    assert (x.sharding.spec, x.layout.major_to_minor) == (P("x", "y"), (0, 1))
    assert compiled.output_formats.sharding.spec == P("x")


@pytest.mark.parametrize("shardy", [True, False])
def test_manual_regions_are_shown_and_read_again(mesh, shardy):
    def f(a, b):
        c = lax.psum(a @ b, "y") + lax.axis_index("y") * 0
        d = lax.ppermute(c, "x", [(i, (i + 1) % 4) for i in range(4)])
        parts = lax.all_to_all(d, "x", 1, 0, tiled=True)
        return lax.all_gather(d, "x", tiled=True), lax.psum_scatter(c, "x", scatter_dimension=1, tiled=True), parts

    out_specs = (P(), P(None, "x"), P("x"))
    region = mw.shard_map(f, mesh=mesh, in_specs=(P("x", "y"), P("y")), out_specs=out_specs, check_vma=False)
    step = mw.jit(lambda a, b: [2 * y for y in region(a, b)])
    lowered, want = step.lower(A, B), step(A, B)
    with mw.config.override("use_shardy_partitioner", shardy):
        text = lowered.as_text()
    gspmd = "@SPMDFullToShardShape", "@SPMDShardToFullShape", "call @shmap_body"
    for part in ("sdy.mesh @mesh", 'manual_axes={"x", "y"}') if shardy else gspmd:
        assert part in text
    assert "tensor<2x2xf32>, tensor<2x8xf32>" in text and "stablehlo.partition_id" in text
    groups = "replica_groups = dense<[[0, 1], [2, 3], [4, 5], [6, 7]]>"
    assert "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, " + groups in text
    for written in (text, lowered.as_text("hlo")):
        program = mw.load(written)
        for got, expected in zip(program(A, B), want, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-6)
    kinds = [c.kind for c in program.partition().collectives]
    assert sorted(kinds) == ["all_gather", "all_reduce", "all_to_all", "collective_permute", "reduce_scatter"]
    assert "all-to-all" in lowered.compile().as_text()


def test_regions_that_are_automatic_along_an_axis_compute_what_they_did(mesh):
    partly = mw.shard_map(
        lambda a: lax.psum(a, "x"), mesh=mesh, in_specs=P("x"), out_specs=P(), axis_names={"x"}
    )  # fmt: skip
    lowered = mw.jit(partly).lower(A)
    np.testing.assert_allclose(mw.load(lowered.as_text())(A), A.reshape(4, 2, 4).sum(0), rtol=1e-6)


def test_a_mapped_function_shows_its_region():
    text = mw.pmap(lambda x: lax.psum(x, "i"), axis_name="i").lower(A).as_text()
    assert "sdy.manual_computation" in text and "tensor<1x4xf32>" in text
    assert "dense<[[0, 1, 2, 3, 4, 5, 6, 7]]>" in text


def test_compiler_options_at_every_stage(refuses):
    f = mw.jit(lambda x: mnp.exp(x) / 3)
    wrong = {"xla_no_such_flag": True}
    for run in (
        lambda: mw.jit(f, compiler_options=wrong)(A),
        lambda: f.lower(A, compiler_options=wrong).compile(),
        lambda: f.trace(A).lower(compiler_options=wrong).compile(),
        lambda: f.lower(A).compile(compiler_options=wrong),
    ):
        with refuses(mw.errors.CompileError, "xla_no_such_flag"):
            run()
    fast = f.lower(A, compiler_options={"xla_cpu_enable_fast_math": True}).compile()
    np.testing.assert_allclose(fast(A), np.exp(A) / 3, rtol=1e-5)


def test_functions_of_the_array_library_lower():
    assert "module @jit_sum" in mnp.sum.lower(A, axis=1).as_text()
    assert float(mnp.sin.lower(2.0).compile()(2.0)) == np.float32(np.sin(np.float32(2.0)))
    chosen = mnp.where.trace(mw.ShapeDtypeStruct((3,), bool), np.ones(3, np.float32), 0.0)
    assert [str(a) for a in chosen.in_avals] == ["bool[3]", "f32[3]"]
    assert "stablehlo.add" in mnp.add.lower(A, A).as_text()
    text = mnp.linalg.norm.lower(A, axis=1, keepdims=True).as_text()
    assert "tensor<8x1xf32>" in text
    assert mnp.argsort.lower(A, axis=0).out_info.shape == (8, 4)


def test_functions_that_jax_has_jitted_show_their_stages():
    for theirs, ours in ((jax.nn, mw.nn), (jax.scipy.special, mw.scipy.special), (jax.scipy.linalg, mw.scipy.linalg)):
        jitted = [n for n in ours.__all__ if hasattr(getattr(theirs, n, None), "lower")]
        assert jitted and not [n for n in jitted if not hasattr(getattr(ours, n), "lower")]
    assert "stablehlo.exponential" in mw.nn.softmax.lower(A, axis=0).as_text()
