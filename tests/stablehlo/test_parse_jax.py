"""Programs that jax lowers, read and run here, against XLA's run of the same text."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from reading_oracle import check_function, check_text, flat, opaque_ops

import meshwright as mw
from meshwright.errors import CompileError, ReplicationWarning
from meshwright.ir.jaxpr import all_eqns

RNG = np.random.default_rng(3)
X = RNG.normal(size=(4, 6)).astype(np.float32)
Y = RNG.normal(size=(4, 6)).astype(np.float32)
POSITIVE = RNG.uniform(0.2, 0.8, size=(3, 5)).astype(np.float32)
INTS = RNG.integers(-9, 9, (5, 7)).astype(np.int32)
WORDS = RNG.integers(0, 2**32, (6, 3), dtype=np.uint32)
COMPLEX = (RNG.normal(size=(3, 4)) + 1j * RNG.normal(size=(3, 4))).astype(np.complex64)
SPECIAL = np.array([[np.nan, 1, -0.0, np.inf], [0.0, -np.inf, 2, np.nan], [3, 3, -1, 2.5]], np.float32)

UNARY = [
    jnp.sin, jnp.cos, jnp.tan, jnp.tanh, jnp.exp, jnp.log, jnp.expm1, jnp.log1p, jnp.sqrt, lax.rsqrt, jnp.cbrt,
    jnp.floor,
    jnp.ceil, jnp.round, lax.logistic, lax.erf, lax.erfc, lax.erf_inv, lax.lgamma, lax.digamma, jnp.sign, jnp.arcsin,
    jnp.arctan, jnp.sinh, jnp.arcsinh, jnp.arctanh, jnp.isfinite, jnp.isnan, jnp.square, jnp.isinf,
]  # fmt: skip


@pytest.mark.parametrize("fun", UNARY, ids=lambda f: f.__name__)
def test_unary(fun):
    check_function(fun, POSITIVE)


BINARY = [
    jnp.add, jnp.subtract, jnp.multiply, jnp.divide, jnp.power, jnp.arctan2, jnp.maximum, jnp.minimum, jnp.nextafter,
    lambda a, b: lax.rem(a, b), jnp.less, jnp.equal, jnp.not_equal, jnp.greater_equal, lambda a, b: lax.complex(a, b),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BINARY)))
def test_binary(number):
    check_function(BINARY[number], np.abs(X) + 0.1, Y)


def test_integers():
    def fun(x, w):
        signed = (x + 3 * x, x // 4, x % 5, jnp.abs(x), -x, x & 6, x | 9, x ^ 5, ~x, x << 2, x >> 1, lax.clz(x))
        return *signed, lax.population_count(w), lax.shift_right_logical(w, jnp.uint32(3)), w.astype(jnp.int8)

    check_function(fun, INTS, WORDS)


def test_complex():
    check_function(lambda z: (jnp.exp(z), z * z.conj(), z.real, z.imag, jnp.abs(z), z + (1 + 2j)), COMPLEX)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.int8, np.uint8, np.int16, np.bool_])
def test_dtypes_and_constants(dtype):
    table = RNG.integers(0, 2, (3, 4)).astype(dtype)
    join = jnp.logical_xor if dtype is np.bool_ else jnp.add
    check_function(lambda x: (x.astype(dtype), join(jnp.asarray(table), x.astype(dtype))), X[:3, :4], rtol=1e-2)


@pytest.mark.parametrize("size", [1, 7, 300])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "float8_e4m3fn", "int4", "bool"])
def test_constants_of_every_size(dtype, size):
    values = RNG.integers(-3, 4, size) + np.arange(size) % 2
    table = values.astype(getattr(ml_dtypes, dtype, None) or np.dtype(dtype))
    wide = {"complex64": np.complex64}.get(dtype, np.float32)
    check_function(lambda x: jnp.asarray(table).astype(wide) + x, np.ones(size, np.float32))


def test_shapes():
    def fun(x):
        return (
            x.reshape(3, 8), x.T, x[::-1, 1:5:2], jnp.pad(x, ((1, 2), (0, 3))),
            lax.pad(x, 2.0, ((1, -1, 2), (-2, 3, 0))),
            jnp.concatenate([x, 2 * x, x[:1]]), jnp.broadcast_to(x[:, None], (4, 3, 6)), jnp.arange(5), x[..., None],
            jnp.squeeze(x[:1]), lax.broadcasted_iota(jnp.int32, (3, 4), 0), jnp.clip(x, -0.5, 0.5),
            jnp.where(x > 0, x, 2.0),
            lax.reduce_precision(x, 5, 4), lax.bitcast_convert_type(x, jnp.int32),
        )  # fmt: skip

    check_function(fun, X)


def test_dots():
    def fun(a, b, c):
        return a @ b, jnp.einsum("bij,bkj->bik", c, c * 2), lax.dot(a, b, precision="highest"), lax.dot_general(
            a.astype(jnp.bfloat16), b.astype(jnp.bfloat16), (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32
        )  # fmt: skip

    check_function(fun, X, Y.T, RNG.normal(size=(3, 4, 5)).astype(np.float32))


def test_reductions():
    def fun(x, n, s):
        plain = (x.sum(1), x.prod(0), x.max((0, 1)), x.min(1), (x > 0).all(1), (x > 0).any(0), n.max(1), n.sum())
        bits = lax.reduce(n, np.int32(0), lax.bitwise_xor, (0,)), lax.reduce(x, np.float32(2), lax.add, (1,))
        where = jnp.argmax(x, 1), jnp.argmin(n, 0), jnp.argmax(s, 1), jnp.argmin(s, 0), jnp.argmax(x > 0, 1)
        return *plain, *bits, *where

    check_function(fun, X, INTS, SPECIAL)


def test_an_unknown_reduction_is_kept():
    def fun(x, y):
        return lax.reduce((x, y), (np.float32(0), np.float32(1)), lambda a, b: (a[0] + b[0], a[1] * b[1]), (1,))

    check_function(fun, X, Y)


def test_sorts():
    def fun(x, s, n):
        return (
            jnp.sort(x, 0), jnp.sort(s, 1), jnp.argsort(n, 1), *lax.sort((n, n * 2), dimension=0, num_keys=2),
            *lax.sort((n % 3, n), dimension=1, num_keys=1), -jnp.sort(-x), *lax.top_k(x, 3), jnp.sort(x > 0),
        )  # fmt: skip

    check_function(fun, X, SPECIAL, INTS)


def test_gathers():
    def fun(x, i, j):
        return (
            x[i],
            x[i, j],
            x[:, j],
            jnp.take(x, i, axis=1, mode="clip"),
            jnp.take_along_axis(x, i[:, None], 1),
            jnp.take(x, i, axis=0),
        )

    check_function(fun, X, np.array([3, 0, 2, 3], np.int32), np.array([5, 1, 0, 2], np.int32))


def test_scatters():
    def fun(x, i, u):
        return (
            x.at[i].set(u, unique_indices=True), x.at[i].add(u), x.at[i].multiply(u), x.at[i].min(u), x.at[i].max(u),
            x.at[i, i].add(1.5), x.at[:, i].add(u.T[:, :2].repeat(3, 0)[:4].repeat(2, 1)[:, :3]),
        )  # fmt: skip

    check_function(fun, X, np.array([2, 0, 3], np.int32), RNG.normal(size=(3, 6)).astype(np.float32))


def test_dynamic_slices():
    def fun(x, i):
        y = lax.dynamic_slice(x, (i, i + 1), (2, 3))
        return y, lax.dynamic_update_slice(x, y * 2, (i + 1, i)), lax.dynamic_index_in_dim(x, i, 1)

    check_function(fun, X, np.int32(2))


CONVOLUTIONS = {
    "plain": {"window_strides": (1, 1), "padding": "SAME"},
    "strided": {"window_strides": (2, 1), "padding": ((1, 2), (0, 1))},
    "dilated": {"window_strides": (1, 1), "padding": ((1, 0), (2, 3)), "rhs_dilation": (2, 1), "lhs_dilation": (1, 3)},
    "channels last": {"window_strides": (1, 2), "padding": "SAME", "dimension_numbers": ("NHWC", "HWIO", "NHWC")},
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_and_gradients(name):
    options = CONVOLUTIONS[name]
    last = "dimension_numbers" in options
    x = RNG.normal(size=(2, 9, 8, 4) if last else (2, 4, 9, 8)).astype(np.float32)
    k = RNG.normal(size=(3, 2, 4, 6) if last else (6, 4, 3, 2)).astype(np.float32)

    def fun(x, k):
        conv = lambda x, k: lax.conv_general_dilated(x, k, **options)  # noqa: E731
        return conv(x, k), *jax.grad(lambda x, k: jnp.sin(conv(x, k)).sum(), (0, 1))(x, k)

    check_function(fun, x, k, rtol=1e-4)


def test_grouped_convolutions():
    x = RNG.normal(size=(4, 6, 7, 5)).astype(np.float32)
    k = RNG.normal(size=(9, 2, 3, 2)).astype(np.float32)

    def fun(x, k):
        conv = lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "SAME", feature_group_count=3)  # noqa: E731
        return conv(x, k), *jax.grad(lambda x, k: jnp.sin(conv(x, k)).sum(), (0, 1))(x, k)

    check_function(fun, x, k, rtol=1e-4)


def test_reversed_convolution():
    text = """func.func public @main(%x: tensor<1x1x6xf32>, %k: tensor<2x1x3xf32>) -> tensor<1x2x6xf32> {
  %0 = stablehlo.convolution(%x, %k) dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0],
    window = {pad = [[1, 1]], reverse = [true]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
    : (tensor<1x1x6xf32>, tensor<2x1x3xf32>) -> tensor<1x2x6xf32>
  return %0 : tensor<1x2x6xf32>
}"""
    x, k = np.arange(6, dtype=np.float32).reshape(1, 1, 6), np.array([[[1, 2, 4]], [[0, 3, -1]]], np.float32)
    (got,) = flat(mw.load(text)(x, k))
    want = np.stack([np.convolve(x[0, 0], row, "same") for row in k[:, 0]])[None]
    np.testing.assert_allclose(got, want)


def test_pooling_and_gradients():
    x = RNG.normal(size=(2, 8, 9, 3)).astype(np.float32)

    def pool(x, init, op):
        return lax.reduce_window(x, init, op, (1, 3, 2, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (0, 1), (0, 0)))

    def fun(x):
        big = lambda x: pool(x, -jnp.inf, lax.max)  # noqa: E731
        return (
            big(x), pool(x, jnp.inf, lax.min), pool(x, 0.0, lax.add), pool(x, 1.0, lax.mul), pool(x, 2.0, lax.add),
            jax.grad(lambda x: jnp.sin(big(x)).sum())(x), jax.grad(lambda x: jnp.sin(pool(x, 0.0, lax.add)).sum())(x),
        )  # fmt: skip

    check_function(fun, x)


def test_cumulative():
    check_function(lambda x: (jnp.cumsum(x, 1), jnp.cumprod(x, 0), lax.cummax(x, 1), lax.cummin(x, 0)), X)
    check_function(lambda x: lax.cumlogsumexp(x, 1), X)


def test_random_bits():
    def fun(key):
        return jax.random.normal(key, (5, 7)), jax.random.randint(key, (9,), 0, 100), jax.random.permutation(key, 11)

    check_function(fun, np.array([5, 17], np.uint32))


def test_an_unknown_custom_call_is_kept_and_warned_of():
    text = jax.jit(lambda x: lax.linalg.cholesky(x @ x.T, symmetrize_input=False)).lower(X).as_text()
    text = text.replace("lapack_spotrf_ffi", "factorize")
    with pytest.warns(ReplicationWarning, match="factorize.* runs whole on every device"):
        program = mw.load(text)
    assert opaque_ops(program) == ["stablehlo.custom_call"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::meshwright.errors.ReplicationWarning")
def test_an_unknown_custom_call_on_which_xlas_compiler_ends_is_refused(refuses):
    call = '"stablehlo.custom_call"({}) {{call_target_name = "SetBound"}} : ({}) -> tensor<4xf32>'
    text = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{ %y = {}\n return %y : tensor<4xf32> }}"
    with refuses(CompileError, "'main'", '"SetBound" at <text>:1', "ended its process with SIG", "as operations"):
        mw.load(text.format(call.format("", "")))(X[0, :4])
    kept = mw.load(text.format(call.format("%x", "tensor<4xf32>")))
    np.testing.assert_array_equal(kept(X[0, :4]), X[0, :4])


def test_optimized_text_is_differentiated():
    def fun(x):
        return lax.scan(lambda c, u: (jnp.sin(c) * u + c, None), 1.0, jnp.sort(x))[0]

    text = jax.jit(fun).lower(X[0]).compile().as_text()
    assert "small_call" in text  # what has the loop, but not what it counts from
    program = mw.load(text)
    assert {"scan", "sort_by"} <= ops_of(program)
    np.testing.assert_allclose(mw.grad(program)(X[0]), jax.grad(fun)(X[0]), rtol=1e-5)


# --- control flow -------------------------------------------------------------------------------------------
def ops_of(program):
    return {e.op.name for e in all_eqns(program.jaxpr.jaxpr)}


def test_scan_and_fori_loop():
    def fun(x, w):
        def body(carry, row):
            carry = jnp.tanh(carry @ w + row)
            return carry, carry.sum()

        last, sums = lax.scan(body, jnp.zeros(6), x)
        return last, sums, lax.fori_loop(2, 7, lambda i, v: v * 1.5 + i, x)

    program = check_function(fun, X, RNG.normal(size=(6, 6)).astype(np.float32))
    assert "scan" in ops_of(program) and "while" not in ops_of(program)


def test_while():
    def fun(x, limit):
        return lax.while_loop(lambda c: (c[0] < limit) & (c[1].sum() < 100), lambda c: (c[0] + 2, c[1] * limit), (0, x))

    program = check_function(fun, np.abs(X), np.int32(9))
    assert "while" in ops_of(program)


@pytest.mark.parametrize("index", [-3, 0, 1, 2, 7])
def test_branches(index):
    def fun(i, x, y):
        chosen = lax.switch(i, [lambda: x + y, lambda: x * 2, lambda: jnp.sin(y)])
        return chosen, lax.cond(x.sum() > 0, lambda v: v + y, lambda v: v - 1, x)

    program = check_function(fun, np.int32(index), X, Y)
    assert "cond" in ops_of(program)


def test_case_out_of_range_is_the_last_branch():
    text = """func.func @main(%i: tensor<i32>, %x: tensor<3xf32>) -> tensor<3xf32> {
  %0 = "stablehlo.case"(%i) ({
    stablehlo.return %x : tensor<3xf32>
  }, {
    %1 = stablehlo.add %x, %x : tensor<3xf32>
    stablehlo.return %1 : tensor<3xf32>
  }) : (tensor<i32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}"""
    x = np.array([1, 2, 4], np.float32)
    for index, factor in ((-1, 2), (0, 1), (1, 2), (2, 2)):
        check_text(text, np.int32(index), x)
        np.testing.assert_array_equal(np.asarray(mw.load(text)(np.int32(index), x)), factor * x)


def test_network_training_step():
    """A convolutional network with its gradient: everything at once."""

    def loss(p, x, t):
        h = jax.nn.relu(lax.conv_general_dilated(x, p["k"], (1, 1), "SAME"))
        h = lax.reduce_window(h, 0.0, lax.add, (1, 1, 2, 2), (1, 1, 2, 2), "VALID").reshape(x.shape[0], -1)
        logits = jax.nn.gelu(h @ p["w"]) @ p["v"]
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), t[:, None], 1))

    def step(p, x, t):
        value, grads = jax.value_and_grad(loss)(p, x, t)
        return value, jax.tree.map(lambda a, g: a - 0.1 * g, p, grads)

    p = {
        "k": RNG.normal(size=(4, 1, 3, 3)), "w": RNG.normal(size=(36, 10)) / 6, "v": RNG.normal(size=(10, 5)) / 3,
    }  # fmt: skip
    p = {n: v.astype(np.float32) for n, v in p.items()}
    text = jax.jit(step).lower(p, np.ones((3, 1, 6, 7), np.float32)[..., :6], np.zeros(3, np.int32)).as_text()
    x, t = RNG.normal(size=(3, 1, 6, 6)).astype(np.float32), np.array([1, 4, 0], np.int32)
    check_text(text, *jax.tree.leaves(p), x, t, rtol=1e-4)
