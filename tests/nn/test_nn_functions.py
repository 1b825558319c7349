"""Neural-network functions against jax.nn, formulas in NumPy, and differences."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import nn, optim
from meshwright.core.config import config
from meshwright.errors import ArgumentError, DTypeError, ShapeError
from meshwright.ir.tracing import eval_jaxpr, trace_to_jaxpr, typeof
from meshwright.random import key as random_key
from meshwright.transforms.autodiff import grad

RNG = np.random.default_rng(3)
X = RNG.uniform(-3, 3, (4, 6)).astype(np.float32)


def close(got: Any, want: Any, tolerance: float = 2e-5) -> None:
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape and got.dtype == want.dtype
    np.testing.assert_allclose(got.astype(float), want.astype(float), tolerance, tolerance)


def count_ops(f: Any, *args: Any) -> int:
    return len(trace_to_jaxpr(lambda *a: [f(*a)], [typeof(mnp.asarray(a)) for a in args]).jaxpr.eqns)


ACTIVATIONS = """relu relu6 gelu silu swish sigmoid softplus elu leaky_relu selu tanh celu hard_tanh hard_sigmoid
hard_silu hard_swish mish squareplus glu log_sigmoid soft_sign""".split()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    ours, theirs = getattr(nn, name), getattr(jax.nn, name, jnp.tanh)
    close(ours(X), theirs(X))
    close(grad(lambda x: ours(x).sum())(mnp.asarray(X)), jax.grad(lambda x: theirs(x).sum())(X))
    large = np.array([-200.0, 200.0, 0.0, 1.0], np.float32)
    close(ours(large), theirs(large))
    gradient = np.asarray(grad(lambda x: ours(x).sum())(mnp.asarray(large[:2])))
    assert np.isfinite(gradient).all()


def test_exact_gelu_and_relu_at_zero() -> None:
    close(nn.gelu(X, approximate=False), jax.nn.gelu(X, approximate=False))
    assert grad(nn.relu)(0.0).item() == 0.0
    assert nn.relu(np.array([-1, 2])).dtype == np.int32


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
@pytest.mark.parametrize("axis", [-1, 0, (0, 1)])
def test_softmaxes(name: str, axis: Any) -> None:
    ours, theirs = getattr(nn, name), getattr(jax.nn, name)
    weights = RNG.uniform(0, 1, X.shape).astype(np.float32)
    close(ours(X, axis), theirs(X, axis))
    close(ours(X * 1e4, axis), theirs(X * 1e4, axis))
    close(ours(X, axis, where=X > -1), theirs(X, axis, where=X > -1))
    if name != "logsumexp":
        got = grad(lambda x: (ours(x, axis) * weights).sum())(mnp.asarray(X))
        close(got, jax.grad(lambda x: (theirs(x, axis) * weights).sum())(X))
    half = ours(mnp.asarray(X, "bfloat16"), axis)
    assert half.dtype.name == "bfloat16"


def test_logsumexp_of_infinities() -> None:
    x = np.array([[-np.inf, -np.inf], [np.inf, 0.0], [1.0, 2.0]], np.float32)
    close(nn.logsumexp(x, 1), jax.nn.logsumexp(x, 1))
    close(nn.logsumexp(X, 1, b=X * X, keepdims=True), jax.nn.logsumexp(X, 1, b=X * X, keepdims=True))


def test_normalisations() -> None:
    scale, bias = RNG.uniform(0.5, 2, (2, 6)).astype(np.float32)
    mean, deviation = X.mean(-1, keepdims=True), np.sqrt(X.var(-1, keepdims=True) + 1e-5)
    close(nn.layer_norm(X, scale, bias), (X - mean) / deviation * scale + bias)
    close(nn.standardize(X), jax.nn.standardize(X))
    close(nn.standardize(X, 0, where=X > -1), jax.nn.standardize(X, 0, where=X > -1))
    close(nn.rms_norm(X, scale), X / np.sqrt((X * X).mean(-1, keepdims=True) + 1e-6) * scale)
    images = RNG.normal(size=(2, 3, 5, 6)).astype(np.float32)
    groups = images.reshape(2, 3, 5, 2, 3)
    normal = (groups - groups.mean((1, 2, 4), keepdims=True)) / np.sqrt(groups.var((1, 2, 4), keepdims=True) + 1e-5)
    close(nn.group_norm(images, 2, scale, bias), normal.reshape(images.shape) * scale + bias)
    m, v = nn.batch_norm_stats(images)
    close(m, images.mean((0, 1, 2)))
    close(v, images.var((0, 1, 2)))
    close(
        nn.batch_norm(images, m, v, scale, bias),
        (images - m) / np.sqrt(np.asarray(v) + np.float32(1e-5)) * scale + bias,
    )
    assert nn.layer_norm(mnp.asarray(X, "bfloat16")).dtype.name == "bfloat16"


def test_one_hot() -> None:
    labels = np.array([[2, 0], [5, -1]])
    for axis in (-1, 0, 1):
        close(nn.one_hot(labels, 3, axis=axis), jax.nn.one_hot(labels, 3, axis=axis))
    close(nn.one_hot(np.array(1), 2, dtype="int32"), jax.nn.one_hot(np.array(1), 2, dtype="int32"))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "float16", "bfloat16"])
def test_one_hot_of_more_classes_than_a_type_counts(dtype: str) -> None:
    labels = [0, 1, 127, -1, -56] if dtype.startswith(("int", "float", "bf")) else [0, 1, 127, 200, 255]
    rows = nn.one_hot(mnp.asarray(np.array(labels)).astype(dtype), 70_000)
    assert [np.flatnonzero(r).tolist() for r in np.asarray(rows)] == [[v] if v >= 0 else [] for v in labels]


# --- layers -------------------------------------------------------------------------------------------------
def test_conv() -> None:
    x, kernel = (RNG.normal(size=s).astype(np.float32) for s in ((2, 7, 6, 4), (3, 2, 2, 6)))
    for options in (
        {"padding": "SAME", "strides": 2},
        {"padding": "VALID"},
        {"padding": [(1, 0), (2, 1)], "strides": (1, 2)},
    ):
        theirs = {"window_strides": options.get("strides", 1), **options}
        theirs.pop("strides", None)
        strides = theirs["window_strides"]
        theirs["window_strides"] = (strides,) * 2 if isinstance(strides, int) else strides
        want = jax.lax.conv_general_dilated(
            x, kernel, dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=2, **theirs
        )
        close(nn.conv(x, kernel, groups=2, **options), want, 1e-4)
    line = nn.conv(x[:, 0], kernel[0, :, :, :][:, :, :][..., :3].repeat(2, 1), np.ones(3, np.float32), dilation=2)
    assert line.shape == (2, 6, 3)
    up = RNG.normal(size=(3, 2, 4, 5)).astype(np.float32)
    close(nn.conv_transpose(x, up, strides=2), jax.lax.conv_transpose(x, up, (2, 2), "SAME"), 1e-4)
    with pytest.raises(ShapeError, match="spatial"):
        nn.conv(np.ones((2, 3)), np.ones((2, 3)))


def test_pooling() -> None:
    x = RNG.normal(size=(2, 6, 8, 3)).astype(np.float32)
    blocks = x.reshape(2, 3, 2, 4, 2, 3)
    close(nn.avg_pool(x, 2), blocks.mean((2, 4)))
    close(nn.max_pool(x, 2), blocks.max((2, 4)))
    close(nn.max_pool(x, (1, 3), (1, 1), "SAME")[:, :, 1:-1], np.max([x[:, :, :-2], x[:, :, 1:-1], x[:, :, 2:]], 0))
    edge = np.asarray(nn.avg_pool(x, (1, 3), (1, 1), "SAME", count_include_pad=False))[:, :, 0]
    close(edge, x[:, :, :2].mean(2))
    close(grad(lambda x: nn.avg_pool(x, 2).sum())(mnp.asarray(x)), np.full_like(x, 0.25))
    best = (blocks == blocks.max((2, 4), keepdims=True)).reshape(x.shape).astype(np.float32)
    close(grad(lambda x: nn.max_pool(x, 2).sum())(mnp.asarray(x)), best)


def test_dense_embed_dropout() -> None:
    w, b = RNG.normal(size=(6, 5)).astype(np.float32), RNG.normal(size=5).astype(np.float32)
    close(nn.dense(X, w, b), X @ w + b)
    ids = np.array([[1, 0, 3]])
    close(nn.embed(X, ids), X[ids])
    gradient = grad(lambda t: nn.embed(t, np.array([1, 1, 2])).sum())(mnp.asarray(X))
    close(gradient, np.array([0, 2, 1, 0], np.float32)[:, None] * np.ones((1, 6), np.float32))
    ones = np.ones((200, 50), np.float32)
    dropped = np.asarray(nn.dropout(ones, 0.3, random_key(0)))
    assert set(np.unique(dropped)) == {0, np.float32(1 / 0.7)}
    assert abs((dropped == 0).mean() - 0.3) < 0.02
    close(nn.dropout(X, 0.5, None, deterministic=True), X)
    with pytest.raises(ArgumentError, match="rate must be between 0 and 1"):
        nn.dropout(X, 1.5, random_key(0))
    with pytest.raises(ShapeError, match="kernel"):
        nn.dense(X, b)


# --- attention ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize("causal", [True, False])
def test_attention(key_heads: int, causal: bool) -> None:
    q = RNG.normal(size=(2, 5, 4, 8)).astype(np.float32)
    k, v = RNG.normal(size=(2, 2, 7, key_heads, 8)).astype(np.float32)
    bias = RNG.normal(size=(1, 4, 5, 7)).astype(np.float32)
    mask = RNG.uniform(size=(2, 1, 5, 7)) > 0.2
    mask[..., 0] = True
    for options in ({}, {"bias": bias}, {"mask": mask}, {"bias": bias, "mask": mask, "scale": 0.3}):
        want = jax.nn.dot_product_attention(q, k, v, is_causal=causal, **options)
        close(nn.dot_product_attention(q, k, v, is_causal=causal, **options), want, 1e-4)
    loss = lambda m, f: lambda q, k, v: (f(q, k, v, is_causal=causal) ** 2).sum()  # noqa: E731
    got = grad(loss(mnp, nn.dot_product_attention), (0, 1, 2))(*(mnp.asarray(a) for a in (q, k, v)))
    want = jax.grad(loss(jnp, jax.nn.dot_product_attention), (0, 1, 2))(q, k, v)
    for g, w in zip(got, want):
        close(g, w, 1e-3)


def test_attention_errors_and_dtype() -> None:
    x = mnp.ones((1, 3, 2, 4), "bfloat16")
    assert nn.dot_product_attention(x, x, x).dtype.name == "bfloat16"
    with pytest.raises(ShapeError, match="heads must be a multiple of key heads"):
        nn.dot_product_attention(x, mnp.ones((1, 3, 3, 4)), mnp.ones((1, 3, 3, 4)))


# --- losses -------------------------------------------------------------------------------------------------
def test_losses() -> None:
    labels = np.array([0, 5, 2, 2])
    logp = np.asarray(jax.nn.log_softmax(X))
    close(nn.softmax_cross_entropy_with_integer_labels(X, labels), -logp[np.arange(4), labels])
    hot = np.eye(6, dtype=np.float32)[labels]
    close(nn.softmax_cross_entropy(X, hot), -logp[np.arange(4), labels])
    got = grad(lambda x: nn.softmax_cross_entropy_with_integer_labels(x, labels).sum())(mnp.asarray(X))
    close(got, np.asarray(jax.nn.softmax(X)) - hot)
    p = 1 / (1 + np.exp(-X))
    close(
        nn.sigmoid_binary_cross_entropy(X, hot), -(hot * np.log(p) + (1 - hot) * np.log(1 - p)).astype(np.float32), 1e-4
    )
    close(nn.mse(X, 1.0), np.mean((X - 1) ** 2))
    close(nn.mae(X, 1.0), np.mean(np.abs(X - 1)))
    error = np.abs(X - 1)
    close(nn.huber_loss(X, 1.0), np.where(error <= 1, error**2 / 2, error - np.float32(0.5)))
    close(nn.accuracy(X, X.argmax(1) * np.array([1, 1, 0, 1])), np.float32(0.75) if X[2].argmax() else np.float32(1))
    with pytest.raises(DTypeError, match="labels must be integers"):
        nn.softmax_cross_entropy_with_integer_labels(X, hot[:, 0])
    with pytest.raises(ShapeError, match=r"need labels of shape \(4,\)"):
        nn.softmax_cross_entropy_with_integer_labels(X, labels[:3])


# --- initialisers -------------------------------------------------------------------------------------------
SCALED = (
    "glorot_uniform glorot_normal xavier_uniform he_uniform he_normal kaiming_normal lecun_uniform lecun_normal".split()
)


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("shape", [(30, 50), (3, 3, 8, 16)])
def test_scaled_initialisers_are_those_of_jax(name: str, shape: tuple[int, ...]) -> None:
    want = getattr(jax.nn.initializers, name)()(jax.random.PRNGKey(5), shape)
    close(getattr(nn.initializers, name)()(random_key(5), shape), want)


def test_other_initialisers() -> None:
    for name, args in (("normal", (0.3,)), ("uniform", (2.0,)), ("truncated_normal", (0.3,)), ("constant", (7.0,))):
        want = getattr(jax.nn.initializers, name)(*args)(jax.random.PRNGKey(5), (4, 3), jnp.float32)
        close(getattr(nn.initializers, name)(*args)(random_key(5), (4, 3)), want)
    assert nn.initializers.zeros(None, (2,), "bfloat16").dtype.name == "bfloat16"
    want = jax.nn.initializers.variance_scaling(2.0, "fan_out", "normal", 0, 1)(jax.random.PRNGKey(1), (4, 6))
    close(nn.initializers.variance_scaling(2.0, "fan_out", "normal", 0, 1)(random_key(1), (4, 6)), want)
    with pytest.raises(ArgumentError, match="two dimensions at least"):
        nn.initializers.he_normal()(random_key(0), (3,))
    with pytest.raises(ArgumentError, match="variance_scaling"):
        nn.initializers.variance_scaling(1.0, "fan", "normal")


# --- few ops ------------------------------------------------------------------------------------------------
def test_functions_take_few_ops() -> None:
    """These are traced for every layer of every model."""
    limits = {
        nn.softmax: 8, nn.log_softmax: 9, nn.relu: 4, nn.gelu: 6, nn.silu: 2,
        (lambda x: nn.layer_norm(x, np.ones(6, np.float32), np.ones(6, np.float32))): 15,
        nn.rms_norm: 7, (lambda x: nn.dense(x, x.T, None)): 2,
    }  # fmt: skip
    for f, limit in limits.items():
        assert count_ops(f, X) <= limit
    q = np.ones((2, 5, 4, 8), np.float32)
    assert count_ops(lambda q: nn.dot_product_attention(q, q, q, is_causal=True), q) <= 17


# --- optimisers ---------------------------------------------------------------------------------------------
def reference_adamw(p: Any, grads: list[Any], rate: float, decay: float) -> Any:
    m = v = np.zeros_like(p)
    for t, g in enumerate(grads, 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        p = p - rate * ((m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8) + decay * p)
    return p


def test_optimisers() -> None:
    grads = [RNG.normal(size=(3, 2)) for _ in range(5)]
    with config.override("enable_x64", True):
        start = {"w": mnp.asarray(RNG.normal(size=(3, 2)))}
        p0 = np.asarray(start["w"])
        for optimizer, want in (
            (optim.adam(0.1), reference_adamw(p0, grads, 0.1, 0.0)),
            (optim.adamw(0.1, weight_decay=0.2), reference_adamw(p0, grads, 0.1, 0.2)),
            (optim.sgd(0.1), p0 - 0.1 * sum(grads)),
        ):
            params, state = start, optimizer.init(start)
            for g in grads:
                params, state = optimizer.update({"w": mnp.asarray(g)}, state, params)
            np.testing.assert_allclose(np.asarray(params["w"]), want, rtol=2e-5, atol=1e-5)
        velocity, p = 0, p0
        optimizer = optim.sgd(lambda step: 0.1 / (step + 1), momentum=0.9, nesterov=True)
        params, state = start, optimizer.init(start)
        for t, g in enumerate(grads):
            params, state = optimizer.update({"w": mnp.asarray(g)}, state, params)
            velocity = 0.9 * velocity + g
            p = p - 0.1 / (t + 1) * (0.9 * velocity + g)
        np.testing.assert_allclose(np.asarray(params["w"]), p, rtol=1e-6)
        clipped = optim.clip_by_global_norm({"a": mnp.asarray(grads[0]), "b": mnp.asarray(grads[1])}, 0.5)
        assert math.isclose(optim.global_norm(clipped).item(), 0.5, rel_tol=1e-6)


def test_a_small_network_learns() -> None:
    """Functions, gradient and optimiser together: exclusive or."""
    x, y = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32), np.array([0, 1, 1, 0])
    init = nn.initializers.glorot_normal()
    params = {"a": init(random_key(1), (2, 8)), "b": mnp.zeros(8), "c": init(random_key(2), (8, 2))}

    def loss(p: Any) -> Any:
        logits = nn.dense(nn.tanh(nn.dense(x, p["a"], p["b"])), p["c"])
        return nn.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    tune = optim.adam(0.05)
    state = tune.init(params)
    for _ in range(80):
        params, state = tune.update(grad(loss)(params), state, params)
    assert loss(params).item() < 0.1
    jaxpr = trace_to_jaxpr(lambda w: [loss({**params, "a": w})], [typeof(params["a"])])
    close(eval_jaxpr(jaxpr, jaxpr.consts, params["a"])[0], loss(params))


def test_the_derivative_of_relu6_is_chosen_for_complex_numbers() -> None:
    """Beyond its bounds it is 0, also where the tangent is infinite."""
    x = np.array([np.inf + 1j, -np.inf + 1j, 2 + 1j, -1j, complex(np.nan, 1), 7 + 1j], np.complex64)
    for name in ("relu6", "hard_sigmoid"):
        found, wanted = (lib.jvp(getattr(lib.nn, name), (v,), (v,)) for lib, v in ((mw, x), (jax, jnp.asarray(x))))
        np.testing.assert_allclose(found[1], wanted[1], 1e-6)
