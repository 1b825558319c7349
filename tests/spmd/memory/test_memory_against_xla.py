"""Predicted memory against XLA's figures for the compiled per-device program, on programs of many kinds."""

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax, nn
from meshwright import PartitionSpec as P
from meshwright.ops.products.conv import conv_general_dilated
from meshwright.runtime.pjrt.replicas import compiled_memory

MESH = mw.AbstractMesh((4, 2), ("data", "model"))
BF16 = np.dtype(ml_dtypes.bfloat16)


def f32(*shape: int) -> Any:
    return mw.ShapeDtypeStruct(shape, np.float32)


def i32(*shape: int) -> Any:
    return mw.ShapeDtypeStruct(shape, np.int32)


def on(*spec: Any) -> NamedSharding:
    return NamedSharding(MESH, P(*spec))


def products(x, a, b, c):
    return mnp.tanh(mnp.tanh(x @ a) @ b) @ c


def attention(q, k, v):
    scores = mnp.einsum("bqhd,bkhd->bhqk", q, k) / 8.0
    return mnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores, axis=-1), v)


def attention_twice_scaled(q, k):
    """The spread scale has two users: it is an array in memory."""
    scores = mnp.einsum("bqhd,bkhd->bhqk", q, k) * np.float32(0.3)
    weights = nn.softmax(scores, axis=-1)
    return (weights * np.float32(0.3)).sum(-1), weights.max(2)


def normalized(x, weights):
    for w in weights:
        x = x + nn.gelu(nn.layer_norm(x) @ w)
    return x


def half_precision(x, a, b):
    return (mnp.tanh(x @ a) @ b).astype(np.float32)


def cross_entropy(w, x, y):
    def loss(w):
        return -mnp.take_along_axis(nn.log_softmax(x @ w, axis=-1), y[:, None], axis=-1).mean()

    return mw.value_and_grad(loss)(w)


def embedding_step(table, tokens):
    return table - 0.1 * mw.grad(lambda t: (mnp.take(t, tokens, axis=0) ** 2).sum())(table)


def recurrent(w, xs):
    def step(h, x):
        h = mnp.tanh(h @ w + x)
        return h, h

    return lax.scan(step, mnp.zeros((64, 128), np.float32), xs)[1]


def layers_step(ws, x):
    def loss(ws):
        return (lax.scan(lambda x, w: (x + mnp.tanh(x @ w), None), x, ws)[0] ** 2).sum()

    return ws - 0.1 * mw.grad(loss)(ws)


def either(p, x):
    return lax.cond(p, lambda x: (mnp.sin(x) @ x.T) @ x, lambda x: x * 2, x)


def sorted_sums(x):
    return mnp.cumsum(mnp.sort(x, axis=1), axis=1)


def convolutions_step(kernels, x):
    def loss(kernels):
        y = x
        for k in kernels:
            y = mnp.maximum(conv_general_dilated(y, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")), 0)
        return (y**2).mean()

    return [k - 0.1 * g for k, g in zip(kernels, mw.grad(loss)(kernels))]


def forces(x, masses):
    """Between all pairs of bodies; what is between pairs gets no memory."""
    apart = x[None] - x[:, None]
    return (apart * (masses[None] * ((apart * apart).sum(-1) + 1e-3) ** -1.5)[..., None]).sum(1)


def diffused(x):
    """A stencil on a torus, a few times."""

    def step(_, x):
        return x + 0.1 * (sum(mnp.roll(x, by, dim) for by in (1, -1) for dim in (0, 1)) - 4 * x)

    return lax.fori_loop(0, 10, step, x)


def gated(y):
    gate, up = mnp.split(y, 2, -1)
    return nn.silu(gate) * up


def momentum_step(params, moments, x, y):
    def loss(params):
        h = x
        for w, b in params:
            h = mnp.tanh(h @ w + b)
        return ((h - y) ** 2).mean()

    moments = mw.tree.map(lambda m, g: 0.9 * m + g, moments, mw.grad(loss)(params))
    return mw.tree.map(lambda p, m: p - 0.1 * m, params, moments), moments


QKV = [f32(8, 256, 8, 64)] * 3
HEADS = on("data", None, "model")
LAYERS = [(f32(256, 512), f32(512)), (f32(512, 512), f32(512)), (f32(512, 128), f32(128))]
PLACED = [(on(None, "model"), on("model")), (on("model"), on()), (on(), on())]

Case = tuple[Callable[..., Any], Sequence[Any], Sequence[Any], Any, tuple[int, ...]]
CASES: dict[str, Case] = {
    "products": (
        products,
        [f32(512, 256), f32(256, 1024), f32(1024, 512), f32(512, 384)],
        [on("data"), on(None, "model"), on("model"), on()],
        None,
        (),
    ),
    "attention": (attention, QKV, [HEADS] * 3, None, ()),
    "attention_twice_scaled": (attention_twice_scaled, QKV[:2], [HEADS] * 2, None, ()),
    "normalized": (
        normalized,
        [f32(8, 128, 256), [f32(256, 256)] * 3],
        [on("data"), [on(None, "model")] * 3],
        None,
        (),
    ),
    "half_precision": (
        half_precision,
        [mw.ShapeDtypeStruct(s, BF16) for s in ((512, 256), (256, 1024), (1024, 192))],
        [on("data"), on(None, "model"), on("model")],
        None,
        (),
    ),
    "cross_entropy": (
        cross_entropy,
        [f32(128, 4000), f32(512, 128), i32(512)],
        [on(None, "model"), on("data"), on("data")],
        None,
        (),
    ),
    "embedding_step": (embedding_step, [f32(10000, 64), i32(64, 32)], [on("model"), on("data")], None, ()),
    "recurrent": (recurrent, [f32(128, 128), f32(20, 64, 128)], [on(), on(None, "data")], None, ()),
    "layers_step": (layers_step, [f32(12, 256, 256), f32(256, 256)], [on(), on("data")], on(), (0,)),
    "either": (
        either,
        [mw.ShapeDtypeStruct((), np.bool_), f32(512, 256)],
        [on(), on("data")],
        None,
        (),
    ),
    "cholesky": (mnp.linalg.cholesky, [f32(32, 64, 64)], [on("data")], None, ()),
    "svd": (lambda x: mnp.linalg.svd(x).U, [f32(32, 64, 48)], [on("data")], None, ()),
    "eigh": (mnp.linalg.eigh, [f32(32, 64, 64)], [on("data")], None, ()),
    "fft": (lambda x: mnp.abs(mnp.fft.fft2(x)), [f32(32, 64, 64)], [on("data")], None, ()),
    "sorted_sums": (sorted_sums, [f32(256, 1000)], [on("data")], None, ()),
    "convolutions_step": (
        convolutions_step,
        [[f32(3, 3, 3, 16), f32(3, 3, 16, 32), f32(3, 3, 32, 32)], f32(32, 24, 24, 3)],
        [[on()] * 3, on("data")],
        [on()] * 3,
        (0,),
    ),
    "forces": (forces, [f32(512, 3), f32(512)], [on("data"), on("data")], on("data"), ()),
    "diffused": (diffused, [f32(256, 512)], [on("data", "model")], on("data", "model"), ()),
    "gated": (gated, [f32(512, 1024)], [on(None, ("data", "model"))], on(None, ("data", "model")), ()),
    "joined": (
        lambda x, y: mnp.concatenate([x, y], -1),
        [f32(256, 512)] * 2,
        [on(None, "data")] * 2,
        on(None, "data"),
        (),
    ),
    "momentum_step": (
        momentum_step,
        [LAYERS, LAYERS, f32(1024, 256), f32(1024, 128)],
        [PLACED, PLACED, on("data"), on("data")],
        (PLACED, PLACED),
        (0, 1),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_prediction(name: str) -> None:
    fun, args, ins, outs, donated = CASES[name]
    run = mw.jit(fun, in_shardings=tuple(ins), out_shardings=outs, donate_argnums=donated)
    part = run.lower(*args).partition()
    found = compiled_memory(part.as_text("stablehlo"), MESH.size)
    memory = part.memory
    assert memory.argument_bytes == found.argument_bytes
    assert memory.alias_bytes == found.alias_bytes
    assert memory.peak_bytes == pytest.approx(found.peak_bytes, rel=0.02)
    assert memory.temp_bytes == pytest.approx(found.temp_bytes, rel=0.02, abs=4096)


def test_donated_arguments_that_are_copied() -> None:
    """With few rows, updates are computed in parts and gathered: other uses of the weights may come after them."""
    run = mw.jit(
        momentum_step,
        in_shardings=(PLACED, PLACED, on("data"), on("data")),
        out_shardings=(PLACED, PLACED),
        donate_argnums=(0, 1),
    )
    part = run.lower(LAYERS, LAYERS, f32(256, 256), f32(256, 128)).partition()
    found = compiled_memory(part.as_text("stablehlo"), MESH.size)
    assert part.memory.alias_bytes == found.alias_bytes
    assert part.memory.peak_bytes == pytest.approx(found.peak_bytes, rel=0.02)
