"""Precision, ragged products, patches and shapes of convolutions, and ``composite``, beside ``jax.lax``."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax as peer

import meshwright as mw
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P
from meshwright.errors import ArgumentError, ArgumentTypeError, DTypeError, RuleError, ShapeError
from meshwright.runtime.pjrt.buffers import Exporter, buffer_from_numpy, execute
from meshwright.runtime.pjrt.compiler import compile_module
from meshwright.stablehlo.emit import LoweringOptions, lower_to_stablehlo
from meshwright.stablehlo.hlo import module_bytecode, module_text

X = (np.arange(21, dtype=np.float32) * 5 % 13 - 6).reshape(7, 3)
EXPERTS = (np.arange(48, dtype=np.float32) * 7 % 17 - 8).reshape(4, 3, 4)
SIZES = np.array([2, 0, 3, 1], np.int32)
IMAGE = (np.arange(2 * 5 * 6 * 3, dtype=np.float32) % 7 - 3).reshape(2, 5, 6, 3)
NHWC = ("NHWC", "HWIO", "NHWC")


def ragged(L, dims, ragged_dims, group_dims):
    return L.RaggedDotDimensionNumbers(dims, ragged_dims, group_dims)


CASES = {
    "ragged rows": lambda L: L.ragged_dot(X, EXPERTS, SIZES),
    "ragged rows, in another dtype": lambda L: L.ragged_dot(
        X.astype(jnp.bfloat16), EXPERTS.astype(jnp.bfloat16), SIZES, preferred_element_type=np.float32),
    "ragged contraction": lambda L: L.ragged_dot_general(
        X, X[:, :2] * 3, SIZES, ragged(L, (((0,), (0,)), ((), ())), (0,), ())),
    "ragged rows of a batch": lambda L: L.ragged_dot_general(
        np.stack([X, X * 2]), np.stack([EXPERTS, EXPERTS[::-1]], 1), np.stack([SIZES, SIZES[::-1]]),
        ragged(L, (((2,), (2,)), ((0,), (1,))), (1,), (0,))),
    "patches": lambda L: L.conv_general_dilated_patches(IMAGE, (2, 3), (1, 2), "SAME", dimension_numbers=NHWC),
    "patches, dilated": lambda L: L.conv_general_dilated_patches(
        IMAGE.transpose(0, 3, 1, 2), (2, 2), (2, 1), ((1, 0), (0, 2)), (1, 2), (2, 1)),
    "local": lambda L: L.conv_general_dilated_local(
        IMAGE, np.arange(4 * 5 * 12 * 2, dtype=np.float32).reshape(4, 5, 12, 2) % 5 - 2, (1, 1), "VALID", (2, 2),
        dimension_numbers=NHWC),
    "broadcast_like": lambda L: L.broadcast_like(X[:1], np.zeros((2, 7, 3))),
    "dot of numbers": lambda L: L.dot(
        X, EXPERTS, dimension_numbers=(((1,), (1,)), ((), ())), precision=(L.Precision.HIGH, L.Precision.HIGHEST)),
    "dot of two dtypes": lambda L: L.dot(X.astype(jnp.bfloat16), X.T),
    "dot in another dtype": lambda L: L.dot(X.astype(np.int8), X.T.astype(np.int8), preferred_element_type=np.int32),
    "reshape by dimensions": lambda L: L.reshape(EXPERTS, (4, 12), (2, 0, 1)),
    "top_k along an axis": lambda L: L.top_k(EXPERTS, 2, axis=1),
    "slice_in_dim": lambda L: L.slice_in_dim(X, -5, None, 2),
    "dynamic_slice of an index array": lambda L: L.dynamic_slice(X, np.array([-3, 1]), (2, 2)),
    "dynamic_slice without negatives": lambda L: L.dynamic_slice(
        X, (np.int32(6), np.int32(-1)), (2, 1), allow_negative_indices=(False, True)),
    "dynamic_index_in_dim": lambda L: L.dynamic_index_in_dim(X, np.int32(-2), 0, keepdims=False),
}  # fmt: skip


def check(ours, theirs, rtol=1e-6):
    for a, b in zip(mw.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_as_jax(name):
    check(CASES[name](lax), CASES[name](peer))


def test_gradients_of_ragged_products():
    def loss(L, x, experts):
        return (L.ragged_dot(x, experts, SIZES) ** 2).sum()

    ours = mw.grad(lambda x, e: loss(lax, x, e), argnums=(0, 1))(X, EXPERTS)
    check(ours, jax.grad(lambda x, e: loss(peer, x, e), argnums=(0, 1))(X, EXPERTS))


@pytest.mark.filterwarnings("ignore::meshwright.errors.PaddingWarning")
def test_ragged_products_batched_and_on_a_mesh():
    xs, sizes = np.stack([X, X[::-1]]), np.stack([SIZES, SIZES[::-1]])
    found = mw.vmap(lax.ragged_dot, in_axes=(0, None, 0))(xs, EXPERTS, sizes)
    check(found, jnp.stack([peer.ragged_dot(x, EXPERTS, s) for x, s in zip(xs, sizes)]))
    mesh = mw.make_mesh((2, 2), ("x", "e"))
    shardings = mw.NamedSharding(mesh, P("x")), mw.NamedSharding(mesh, P("e")), mw.NamedSharding(mesh, P())
    check(mw.jit(lax.ragged_dot, in_shardings=shardings)(X, EXPERTS, SIZES), peer.ragged_dot(X, EXPERTS, SIZES))


@pytest.mark.parametrize(
    "run",
    [
        lambda L: L.conv_shape_tuple((2, 3, 8, 9), (4, 3, 3, 2), (2, 1), ((1, 1), (0, 3))),
        lambda L: L.conv_general_shape_tuple((2, 8, 9, 3), (3, 2, 3, 4), (2, 1), "SAME", NHWC),
        lambda L: L.conv_transpose_shape_tuple((2, 8, 9, 3), (3, 2, 3, 4), (2, 3), "SAME", NHWC),
        lambda L: L.conv_transpose_shape_tuple((2, 8, 9, 3), (3, 2, 3, 4), (2, 1), ((1, 0), (2, 2)), NHWC),
        lambda L: L.reduce_window_shape_tuple((7, 6), (3, 2), (2, 1), ((0, 0), (1, 1)), (1, 2), (2, 1)),
        lambda L: L.conv_general_permutations(("NHWC", "WHOI", "CNHW")),
    ],
)
def test_shapes(run):
    assert [np.ravel(part).tolist() for part in run(lax)] == [np.ravel(part).tolist() for part in run(peer)]


# --- precision ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "word", [None, "default", "fastest", "bfloat16", "high", "tensorfloat32", "float32", "highest"]
)
def test_precision_is_found_by_its_names(word):
    if word != "bfloat16":
        assert lax.Precision(word).name == peer.Precision(word).name
    assert repr(lax.Precision(word)) == f"Precision.{lax.Precision(word).name}" and str(lax.Precision.HIGH) == "HIGH"


@pytest.mark.parametrize("precision", [lax.Precision.HIGHEST, "highest", "float32", peer.Precision.HIGHEST])
def test_precision_is_emitted(precision):
    for run in (
        lambda x: lax.dot(x, x.T, precision=precision),
        lambda x: lax.conv(x[None, None], x[None, None], (1, 1), "SAME", precision=precision),
        lambda x: mw.numpy.matmul(x, x.T, precision=precision),
        lambda x: mw.numpy.einsum("ij,kj->ik", x, x, precision=precision),
        lambda x: mw.numpy.tensordot(x, x.T, 1, precision=precision),
    ):
        assert mw.jit(run).lower(X).as_text().count("HIGHEST") == 2


@pytest.mark.parametrize("name", ["tensordot", "inner", "vdot", "vecdot"])
def test_preferred_element_type(name):
    x, y = np.arange(6, dtype=np.int8).reshape(2, 3), np.arange(6, dtype=np.int8).reshape(2, 3) * 9
    run = lambda m: getattr(m, name)(x, y, preferred_element_type=np.int32)  # noqa: E731
    check(run(mw.numpy), run(jnp))
    for sliding in ("convolve", "correlate"):
        run = lambda m, f=sliding: getattr(m, f)(x[1] * 9, y[1] / 9, preferred_element_type=np.float32)  # noqa: E731
        check(run(mw.numpy), run(jnp))


#: the type of two operands, their shape and that of sums, and the types of the product that GPUs are given
ON_GPUS = {
    ("int8", "int8", (2, 3), "int32"): "i32 i32 i32", ("int8", "int8", (64, 64), "int32"): "i8 i8 i32",
    ("int8", "int8", (64, 64), "bfloat16"): "f32 f32 f32", ("int8", "int8", (2, 3), "int8"): "i8 i8 i8",
    ("int32", "int32", (2, 3), "float32"): "f32 f32 f32", ("bool", "bool", (2, 3), "float32"): "f32 f32 f32",
    ("int32", "bfloat16", (2, 3), "float32"): "f32 f32 f32", ("float16", "bfloat16", (2, 3), "float32"): "f32 f32 f32",
    ("float32", "float32", (2, 3), "bfloat16"): "f32 f32 f32",
    ("bfloat16", "bfloat16", (2, 3), "float32"): "bf16 bf16 f32",
    ("float8_e4m3fn", "float8_e4m3fn", (2, 3), "float32"): "f8E4M3FN f8E4M3FN f32",
}  # fmt: skip


@pytest.mark.parametrize("lhs, rhs, shape, result", ON_GPUS)
def test_types_of_products_on_gpus(lhs, rhs, shape, result):
    """An H200 gave twice the sums of a small product of int8, which XLA makes a library call; what XLA compiles for one
    of the others is in ``tests/targets``."""
    run = lambda x, y: lax.dot_general(x, y, (((1,), (1,)), ((), ())), preferred_element_type=result)  # noqa: E731
    jaxpr = mw.make_jaxpr(run)(*(mw.ShapeDtypeStruct(shape, d) for d in (lhs, rhs)))
    on_cpu, on_gpu = (module_text(lower_to_stablehlo(jaxpr, LoweringOptions(platform=p))) for p in ("cpu", "cuda"))
    (product,) = (line for line in on_gpu.splitlines() if "dot_general" in line)
    assert " ".join(re.findall(r"x([a-z]\w+)>", product)) == ON_GPUS[lhs, rhs, shape, result]
    assert "stablehlo.convert" not in on_cpu


SHAPES = {"feature_group_count": ((2, 4, 6, 5), (4, 2, 3, 2)), "batch_group_count": ((2, 4, 6, 5), (4, 4, 3, 2))}


@pytest.mark.parametrize("groups", ["feature_group_count", "batch_group_count"])
@pytest.mark.parametrize("lhs, rhs, result, count", [
    ("int8", "int8", "int8", 1), ("int8", "int8", "int32", 1), ("uint8", "uint8", "uint16", 1),
    ("int16", "int16", "int64", 1), ("int32", "int32", "int32", 3), ("uint32", "uint32", "uint32", 3),
    ("int32", "int32", "int64", 4), ("int64", "int64", "int64", 10), ("uint64", "uint64", "uint8", 1),
])  # fmt: skip
def test_convolutions_of_integers_on_gpus(lhs, rhs, result, count, groups):
    """cuDNN has no sums that wrap: they are made in float64 (of pieces, ``count`` times), here by a CPU."""
    rng = np.random.default_rng(0)
    x, w = (rng.integers(np.iinfo(d).min, np.iinfo(d).max, s, d) for d, s in zip((lhs, rhs), SHAPES[groups]))
    run = lambda x, w: lax.conv_general_dilated(  # noqa: E731
        x, w, (1, 2), "SAME", **{groups: 2}, preferred_element_type=result)  # fmt: skip
    with mw.enable_x64():
        jaxpr = mw.make_jaxpr(run)(x, w)
        module = lower_to_stablehlo(jaxpr, LoweringOptions(platform="cuda"))
        want = np.asarray(run(x.astype(np.int64), w.astype(np.int64)).astype(result))
    sums = [line for line in module_text(module).splitlines() if "stablehlo.convolution" in line]
    assert len(sums) == count and all(line.endswith("xf64>") for line in sums)
    loaded = compile_module(module_bytecode(module), "convolution")
    (out,) = execute(loaded, [buffer_from_numpy(v, 0, copy=True) for v in (x, w)])
    np.testing.assert_array_equal(np.from_dlpack(Exporter(out)), want)


# --- names ----------------------------------------------------------------------------------------------------
ALGORITHMS = ("F16_F16_F16", "BF16_BF16_F32", "BF16_BF16_F32_X3", "BF16_BF16_F32_X6", "F32_F32_F32")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e4m3fn"])
@pytest.mark.parametrize("preset", ALGORITHMS)
def test_algorithms_as_jax(preset, dtype):
    outs, backwards = [], []
    for L, grad, asarray in ((lax, mw.grad, mw.numpy.asarray), (peer, jax.grad, jnp.asarray)):
        x = asarray(X / 7, dtype)
        algorithm = getattr(L.DotAlgorithmPreset, preset)
        outs.append(L.dot(x, x.T, precision=algorithm))
        backwards.append(grad(lambda x, L=L, by=algorithm: L.dot(x, x.T, precision=by)[0, 1].astype("float32"))(x))
    for got, want in (outs, backwards):
        assert got.dtype == want.dtype == dtype
        np.testing.assert_allclose(np.asarray(got, np.float32), np.asarray(want, np.float32), rtol=1e-5, atol=1e-6)


def test_algorithms_by_name_and_by_types():
    x = mw.numpy.full((1, 2), 1 + 2.0**-12)
    for precision in ("F16_F16_F16", lax.DotAlgorithm("float16", np.float16, mw.numpy.float16)):
        assert float(lax.dot(x, x.T, precision=precision)[0, 0]) == 2 and not float((x @ x.T)[0, 0]) == 2
    lowered = mw.jit(lambda x: mw.numpy.einsum("ij,kj->ik", x, x, precision="BF16_BF16_F32_X3")).lower(X)
    text = lowered.as_text()
    assert "num_primitive_operations = 3" in text
    assert "algorithm=dot_bf16_bf16_f32_x3" in lowered.as_text("hlo")
    assert mw.load(text).as_text("stablehlo").count("num_primitive_operations = 3") == 1
    with mw.default_matmul_precision("BF16_BF16_F32"):
        assert "algorithm" in mw.jit(lambda x: x @ x.T).lower(X).as_text()
        assert "algorithm" not in mw.jit(lambda x: x @ x.T).lower(X.astype(int)).as_text()
    sharded = NamedSharding(mw.AbstractMesh((2, 2), ("a", "b")), P(None, "b"))
    part = mw.jit(lambda x: lax.dot(x, x.T, precision="F16_F16_F16"), in_shardings=sharded).lower(X).partition()
    assert part.verify().outputs[0].relative == 0


def test_algorithms_are_refused_where_there_are_none(refuses):
    half = X.astype(np.float16)
    with refuses(ArgumentError, "F16_F16_F32", "for CPUs", "BF16_BF16_F32_X6"):
        lax.dot(half, half.T, precision="F16_F16_F32")
    with refuses(DTypeError, "real floats", "int32"):
        lax.dot(SIZES, SIZES, precision="F32_F32_F32")
    with refuses(DTypeError, "floats of 8 bits", "float32"):
        lax.dot(X, X.T, precision=lax.DotAlgorithmPreset.ANY_F8_ANY_F8_F32)
    with refuses(DTypeError, "int32 is no float"):
        lax.dot(X, X.T, precision=lax.DotAlgorithm("int32", "float32", "float32"))
    with refuses(ArgumentError, "for matrix products"):
        lax.conv(IMAGE, IMAGE, (1, 1), "SAME", precision="F32_F32_F32")


def test_composite():
    tangent = lax.composite(lambda x, scale: scale * mw.numpy.sin(x) / mw.numpy.cos(x), "my.tangent", version=2)
    peers = peer.composite(lambda x, scale: scale * jnp.sin(x) / jnp.cos(x), "my.tangent", version=2)
    check(tangent(X, scale=3), peers(X, scale=3), 1e-5)
    (call,) = mw.make_jaxpr(lambda x: tangent(x, scale=3))(X).jaxpr.eqns
    assert call.op.params["name"] == "my.tangent"
    check(mw.grad(lambda x: tangent(x, scale=2).sum())(X), 2 / np.cos(X) ** 2, 1e-5)
    assert mw.vmap(lambda x: tangent(x, scale=1))(X).shape == X.shape


def test_layouts_of_results():
    mesh = mw.make_mesh((2, 2), ("x", "y"))
    split = mw.NamedSharding(mesh, P("x", "y"))
    for y in (
        lax.full((4, 6), 7, sharding=split),
        lax.broadcasted_iota(np.int32, (4, 6), 1, out_sharding=split),
        mw.jit(lambda x: lax.dot_general(x, x, (((1,), (1,)), ((), ())), out_sharding=split))(X[:4]),
        mw.jit(lambda x: lax.reshape(x, (4, 3), out_sharding=mw.NamedSharding(mesh, P("x"))))(X[:4].ravel()),
        mw.jit(lambda x: mw.numpy.matmul(x, x.T, out_sharding=split))(X[:4]),
        mw.jit(lambda x: mw.numpy.einsum("ij,kj->ik", x, x, out_sharding=split))(X[:4]),
        mw.jit(lambda x: mw.numpy.tensordot(x, x.T, 1, out_sharding=split))(X[:4]),
    ):
        assert y.sharding.shard_shape(y.shape)[0] == 2


def test_refusals(refuses):
    with refuses(ArgumentError, "precision", "tensorfloat32"):
        lax.dot(X, X.T, precision="exact")
    with refuses(DTypeError, "group_sizes", "integers"):
        lax.ragged_dot(X, EXPERTS, SIZES * 1.0)
    with refuses(ShapeError, "group_sizes", "[4, g]", "(1, 4)"):
        lax.ragged_dot_general(
            EXPERTS, EXPERTS, SIZES[None], lax.RaggedDotDimensionNumbers((((1,), (1,)), ((0,), (0,))), (1,), ())
        )
    with refuses(ShapeError, "ragged_dot", "each of group_sizes"):
        lax.ragged_dot(X, EXPERTS, SIZES[:3])
    with refuses(RuleError, "group_offset"):
        lax.ragged_dot(X, EXPERTS, SIZES, group_offset=np.int32(1))
    with refuses(ArgumentError, "group dimension"):
        lax.ragged_dot_general(X, X, SIZES, lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), ()))
    with refuses(ShapeError, "conv_general_dilated_local", "positions"):
        lax.conv_general_dilated_local(
            IMAGE, np.ones((4, 4, 12, 2), np.float32), (1, 1), "VALID", (2, 2), dimension_numbers=NHWC
        )
    with refuses(ArgumentTypeError, "composite"):
        lax.composite(lambda x: x, "")
    with refuses(ShapeError, "broadcast_like", "(7, 3)"):
        lax.broadcast_like(X, np.zeros((2, 3)))
