"""Modules as values, attention's lengths and windows, further functions, optimisers and schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, nn, optim, random
from meshwright import PartitionSpec as P
from meshwright.core.config import config

RNG = np.random.default_rng(2)


def close(got: Any, want: Any, tolerance: float = 2e-5) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=tolerance, atol=tolerance)


# --- modules ------------------------------------------------------------------------------------------------
class Linear(nn.Module):
    kernel: mw.Array
    bias: mw.Array
    activation: Callable[[Any], Any] = nn.static(default=nn.tanh)

    @classmethod
    def init(cls, key: Any, inputs: int, outputs: int, **options: Any) -> Linear:
        return cls(nn.initializers.glorot_normal()(key, (inputs, outputs)), mnp.zeros(outputs), **options)

    def __call__(self, x: Any) -> Any:
        return self.activation(nn.dense(x, self.kernel, self.bias))


class Network(nn.Module):
    layers: list[Linear]
    scale: Any = 1.0

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x * self.scale


def network() -> Network:
    keys = random.split(random.key(0), 2)
    return Network([Linear.init(keys[0], 3, 8), Linear.init(keys[1], 8, 2, activation=nn.identity)])


def test_modules_are_pytrees() -> None:
    model, x = network(), RNG.normal(size=(5, 3)).astype(np.float32)
    assert len(mw.tree.leaves(model)) == 5
    assert mw.tree.paths(model)[:2] == [".layers[0].kernel", ".layers[0].bias"]
    doubled = mw.tree.map(lambda p: p * 2, model)
    assert isinstance(doubled.layers[1], Linear) and doubled.layers[1].activation is nn.identity
    close(doubled.layers[0].kernel, 2 * np.asarray(model.layers[0].kernel))
    gradient = mw.jit(mw.grad(lambda m: (m(x) ** 2).sum()))(model)
    assert isinstance(gradient, Network) and gradient.layers[0].kernel.shape == (3, 8)
    assert mw.tree.structure(model) == mw.tree.structure(network())
    changed = model.replace(layers=[model.layers[0].replace(activation=nn.relu), model.layers[1]])
    assert mw.tree.structure(changed) != mw.tree.structure(model)
    close(model.replace(scale=3.0)(x), 3 * np.asarray(model(x)))


def test_modules_learn_on_a_mesh() -> None:
    mesh = mw.make_mesh((2, 4), ("data", "model"))
    x = RNG.normal(size=(16, 3)).astype(np.float32)
    y = np.stack([x.sum(1), x.prod(1)], 1)
    model, tune = network(), optim.adam(0.02)

    def step(model: Network, state: Any, x: Any, y: Any) -> Any:
        loss, grads = mw.value_and_grad(lambda m: nn.mse(m(x), y))(model)
        return loss, *tune.update(optim.clip_by_global_norm(grads, 1.0), state, model)

    def on(*spec: Any) -> Any:
        return NamedSharding(mesh, P(*spec))

    placed = Network([Linear(on(None, "model"), on("model")), Linear(on("model"), on(), activation=nn.identity)], on())
    run = mw.jit(step, in_shardings=(placed, None, on("data"), on("data")))
    state, losses = tune.init(model), []
    for _ in range(60):
        loss, model, state = run(model, state, x, y)
        losses.append(float(loss))
    assert losses[-1] < 0.4 * losses[0]
    part = run.lower(model, state, x, y).partition()
    assert part.bytes_sent > 0
    part.verify(model, state, x, y)


def test_wrong_modules(refuses: Any) -> None:
    with refuses(ValueError, "Module Wrong", "class method"):

        class Wrong(nn.Module):
            w: Any

            def __init__(self) -> None: ...

    with pytest.raises(AttributeError, match="cannot assign"):
        network().scale = 2.0  # type: ignore[misc]


# --- attention ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "options",
    [
        {"query_seq_lengths": np.array([5, 2]), "key_value_seq_lengths": np.array([3, 6])},
        {"local_window_size": 1},
        {"local_window_size": (2, 0), "is_causal": True},
        {"key_value_seq_lengths": np.array([6, 4]), "local_window_size": (1, 2)},
    ],
    ids=str,
)
def test_attention_lengths_and_windows(options: dict[str, Any]) -> None:
    q, k, v = (RNG.normal(size=s).astype(np.float32) for s in ((2, 5, 4, 8), (2, 6, 2, 8), (2, 6, 2, 8)))
    theirs = {n: v.astype(np.int32) if isinstance(v, np.ndarray) else v for n, v in options.items()}
    close(nn.dot_product_attention(q, k, v, **options), jax.nn.dot_product_attention(q, k, v, **theirs))
    got = mw.grad(lambda q: (nn.dot_product_attention(q, k, v, **options) ** 2).sum())(q)
    close(got, jax.grad(lambda q: (jax.nn.dot_product_attention(q, k, v, **theirs) ** 2).sum())(q), 1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"query_seq_lengths": np.array([5, 2]), "key_value_seq_lengths": np.array([0, 6])},
        {"local_window_size": (1, 0), "is_causal": True, "scale": 2.0},
        {"bias": RNG.normal(size=(2, 1, 5, 6)).astype(np.float32), "mask": RNG.random((1, 4, 5, 6)) < 0.4},
    ],
    ids=["plain", "lengths", "window", "bias and mask"],
)
def test_attention_with_its_residual_in_narrow_types(options: dict[str, Any], dtype: str) -> None:
    q, k, v = (RNG.normal(size=s).astype(jnp.dtype(dtype)) for s in ((2, 5, 4, 8), (2, 6, 2, 8), (2, 6, 2, 8)))
    theirs = {n: v.astype(np.int32) if v is not None and n.endswith("lengths") else v for n, v in options.items()}
    out, total = nn.dot_product_attention(q, k, v, **options, return_residual=True)
    want, want_total = jax.nn.dot_product_attention(q, k, v, **theirs, return_residual=True)
    assert (out.dtype, total.dtype) == (want.dtype, want_total.dtype)
    eps = float(jnp.finfo(dtype).eps)
    close(np.float64(out), np.float64(want), 8 * eps)
    close(np.clip(np.float64(total), -9e9, None), np.clip(np.float64(want_total), -9e9, None), 8 * eps)
    if dtype == "float32":
        close(total, want_total)
        for attend, grad, given in (
            (nn.dot_product_attention, mw.grad, options),
            (jax.nn.dot_product_attention, jax.grad, theirs),
        ):
            both = grad(lambda q: sum((y**2).sum() for y in attend(q, k, v, **given, return_residual=True)))(q)  # noqa: B023
            close(both, grad(lambda q: (attend(q, k, v, **given) ** 2).sum())(q), 1e-4)  # noqa: B023


def test_attention_refuses(refuses: Any) -> None:
    x = np.ones((2, 3, 4, 8), np.float32)
    with refuses(TypeError, "key_value_seq_lengths", "(2,)", "f32[3]"):
        nn.dot_product_attention(x, x, x, key_value_seq_lengths=np.ones(3, np.float32))
    with refuses(ValueError, "local_window_size", "-1"):
        nn.dot_product_attention(x, x, x, local_window_size=-1)


# --- functions ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["identity", "sparse_plus", "sparse_sigmoid", "log1mexp"])
def test_activations_against_jax(name: str) -> None:
    x = np.linspace(0.05, 40, 101) if name == "log1mexp" else np.linspace(-3, 3, 100)
    ours, theirs = getattr(nn, name), getattr(jax.nn, name)
    with config.override("enable_x64", True), jax.enable_x64(True):
        close(ours(x), theirs(x), 1e-12)
        close(mw.grad(lambda x: ours(x).sum())(x), jax.grad(lambda x: theirs(x).sum())(x), 1e-12)
        if name == "log1mexp":
            assert np.isfinite(np.asarray(mw.grad(lambda x: ours(x))(1e-300)))


def test_logmeanexp() -> None:
    x, where = RNG.normal(size=(3, 4, 5)).astype(np.float32) + 500, RNG.integers(0, 2, (3, 4, 5)) > 0
    for options in ({}, {"axis": 1}, {"axis": (0, -1), "keepdims": True}, {"axis": (0, 2), "where": where}):
        close(nn.logmeanexp(x, **options), jax.nn.logmeanexp(x, **options))


def test_instance_norm(refuses: Any) -> None:
    x, scale, bias = (RNG.normal(size=s).astype(np.float32) for s in ((2, 5, 6, 3), 3, 3))
    mean, variance = x.mean((1, 2), keepdims=True), x.var((1, 2), keepdims=True)
    close(nn.instance_norm(x, scale, bias), (x - mean) / np.sqrt(variance + 1e-5) * scale + bias)
    with refuses(TypeError, "instance_norm", "(2, 5)", "layer_norm"):
        nn.instance_norm(x[:, :, 0, 0])


def test_losses() -> None:
    logp = np.log(np.array([[0.2, 0.5, 0.3], [0.6, 0.3, 0.1]]))
    q = np.array([[0.0, 0.25, 0.75], [0.1, 0.8, 0.1]])
    want = [0.25 * np.log(0.5) + 0.75 * np.log(2.5), 0.1 * np.log(1 / 6) + 0.8 * np.log(8 / 3)]
    close(nn.kl_divergence(logp, q), want)
    assert np.isfinite(np.asarray(mw.grad(lambda q: nn.kl_divergence(logp, q).sum())(q.astype("float32")))).all()
    close(nn.hinge_loss(np.array([0.5, -2.0, 3.0]), np.array([1.0, 1.0, -1.0])), [0.5, 3.0, 4.0])
    close(nn.cosine_similarity(np.array([[3.0, 4.0], [1.0, 0.0]]), np.array([[4.0, 3.0], [0.0, 2.0]])), [0.96, 0.0])
    assert np.isfinite(np.asarray(mw.grad(lambda x: nn.cosine_similarity(x, np.ones(2)))(mnp.zeros(2)))).all()


# --- optimisers ---------------------------------------------------------------------------------------------
def reference(name: str, p: Any, grads: list[Any]) -> Any:
    s = np.full_like(p, 0.1) if name == "adagrad" else np.zeros_like(p)
    m = np.zeros_like(p)
    for g in grads:
        if name == "adagrad":
            s = s + g * g
            p = p - 0.1 * g / np.sqrt(s + 1e-7)
        elif name == "rmsprop":
            s = 0.9 * s + 0.1 * g * g
            m = 0.5 * m + g / np.sqrt(s + 1e-8)
            p = p - 0.1 * m
        else:
            p = p - 0.1 * (np.sign(0.9 * m + 0.1 * g) + 1e-3 * p)
            m = 0.99 * m + 0.01 * g
    return p


@pytest.mark.parametrize("name, options", [("adagrad", {}), ("rmsprop", {"momentum": 0.5}), ("lion", {})])
def test_optimisers(name: str, options: dict[str, Any]) -> None:
    with config.override("enable_x64", True):
        p, grads = RNG.normal(size=(3, 2)), [RNG.normal(size=(3, 2)) for _ in range(4)]
        tune = getattr(optim, name)(0.1, **options)
        params, state = [mnp.asarray(p)], tune.init([mnp.asarray(p)])
        update = mw.jit(tune.update)
        for g in grads:
            params, state = update([mnp.asarray(g)], state, params)
        close(params[0], reference(name, p, grads), 1e-7)
        assert int(state["step"]) == 4


@pytest.mark.parametrize("tune", [optim.adam(0.1), optim.sgd(0.1, 0.9), optim.lion(0.1), optim.rmsprop(0.1)])
def test_states_keep_their_types(tune: Any) -> None:
    params = {"w": mnp.ones((3, 2), "bfloat16"), "b": mnp.zeros(2)}
    state = tune.init(params)
    new, after = tune.update(params, state, params)
    assert mw.tree.map(lambda x: x.dtype, new) == mw.tree.map(lambda x: x.dtype, params)
    assert [x.dtype for x in mw.tree.leaves(after)] == [x.dtype for x in mw.tree.leaves(state)]


SCHEDULES = [
    (optim.constant(0.3), lambda s: 0.3),
    (optim.linear(1.0, 0.2, 8, begin=3), lambda s: 1 - 0.8 * np.clip((s - 3) / 8, 0, 1)),
    (optim.cosine_decay(2.0, 10, end=0.5), lambda s: 0.5 + 0.75 * (1 + np.cos(np.pi * min(s, 10) / 10))),
    (optim.warmup_cosine(1.0, 4, 12, end=0.1),
     lambda s: s / 4 if s < 4 else 0.1 + 0.45 * (1 + np.cos(np.pi * min(s - 4, 8) / 8))),
    (optim.exponential_decay(1.0, 5, 0.5), lambda s: 0.5 ** (s / 5)),
    (optim.exponential_decay(1.0, 5, 0.5, staircase=True, end=0.2), lambda s: max(0.5 ** (s // 5), 0.2)),
    (optim.piecewise_constant(1.0, {9: 0.1, 5: 0.5}), lambda s: 1.0 if s < 5 else 0.5 if s < 9 else 0.05),
]  # fmt: skip


@pytest.mark.parametrize("schedule, want", SCHEDULES, ids=range(len(SCHEDULES)))
def test_schedules(schedule: Any, want: Any) -> None:
    expected = [want(s) for s in range(16)]
    close([schedule(s) for s in range(16)], expected, 1e-6)
    if not isinstance(schedule(0), float):
        close(mw.jit(mw.vmap(schedule))(np.arange(16)), expected, 1e-6)


def test_clipping_and_bad_settings(refuses: Any) -> None:
    tree = {"a": np.array([3.0, -5.0, 0.5], np.float32), "b": np.float32(-2.0)}
    clipped = optim.clip_by_value(tree, 2.5)
    assert clipped["a"].tolist() == [2.5, -2.5, 0.5] and clipped["b"].item() == -2.0
    assert optim.global_norm({"z": np.array([3 + 4j], np.complex64)}).item() == 5.0
    same = optim.clip_by_global_norm(tree, 100.0)
    np.testing.assert_array_equal(same["a"], tree["a"])
    for run, words in (
        (lambda: optim.clip_by_value(tree, -1.0), ("limit", "-1")),
        (lambda: optim.linear(0.0, 1.0, 0), ("linear", "steps")),
        (lambda: optim.warmup_cosine(1.0, 5, 5), ("warmup=5",)),
    ):
        with refuses(ValueError, *words):
            run()
