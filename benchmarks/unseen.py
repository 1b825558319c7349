"""Peak memory of programs that the model was not made for: what we predict beside what XLA's compilers say.

Half of them (``SEEN``) may be looked into when the model is changed. Nobody looks into the compiled text of the other
half, ``UNSEEN``, which was drawn by lot: its errors say what to expect of a new program. Needs
``meshwright[tpu,cuda]``; XLA's figures are kept in ``docs/unseen.json``, with a digest of the module that they are of.
``MESHWRIGHT_ONLY`` limits it to programs or targets that contain one of its words.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import meshwright as mw
import meshwright.numpy as mnp
from benchmarks.common import table
from benchmarks.shapes import bf16, ints, lowered_on, mesh_of, sgd, typed
from meshwright import PartitionSpec as P
from meshwright import lax, nn
from meshwright.api.targets import memory_on
from meshwright.errors import MissingExtraError
from meshwright.spmd.report import human_bytes
from meshwright.stablehlo.hlo import module_text

KEPT = Path(__file__).parents[1] / "docs" / "unseen.json"
TARGETS = "v5e:2x4", "h100:8"
F32, BF16, I32 = np.float32, mnp.bfloat16, np.int32
PROGRAMS: dict[str, Callable[[], Any]] = {}


def program(make: Callable[[], Any]) -> Callable[[], Any]:
    """Register a function that returns a partition, by its name."""
    PROGRAMS[make.__name__] = make
    return make


def _partition(*program: Any) -> Any:
    """The partition of what :func:`benchmarks.shapes.lowered_on` takes."""
    return lowered_on(*program).partition()


# --- convolutions -------------------------------------------------------------------------------------------
@program
def diffusion_unet() -> Any:
    """Predicts noise: residual blocks with group norm and time embeddings, attention at the lowest resolution."""
    mesh = mesh_of(data=8)
    widths = 64, 128

    def block(p: Any, x: Any, t: Any) -> Any:
        h = nn.conv(nn.silu(nn.group_norm(x, 8)), p["a"]) + (t @ p["t"])[:, None, None]
        h = nn.conv(nn.silu(nn.group_norm(h, 8)), p["b"])
        return h + (nn.conv(x, p["skip"]) if "skip" in p else x)

    def shapes(n: int, m: int) -> Any:
        found: Any = {"a": (3, 3, n, m), "b": (3, 3, m, m), "t": (128, m)}
        return found if n == m else {**found, "skip": (1, 1, n, m)}

    def loss(p: Any, x: Any, noise: Any, t: Any) -> Any:
        angles = t[:, None] * mnp.exp(mnp.linspace(0.0, -9.0, 64, dtype=F32))
        t = mnp.concatenate([mnp.sin(angles), mnp.cos(angles)], -1)
        a = block(p["down0"], nn.conv(x + noise, p["in"]), t)
        b = block(p["down1"], nn.avg_pool(a, 2), t)
        n, height, width, c = b.shape
        h = nn.group_norm(b, 8).reshape(n, height * width, 1, c)
        mixed = nn.dot_product_attention(h @ p["q"], h @ p["k"], h @ p["v"])
        b = block(p["mid"], b + (mixed @ p["o"]).reshape(b.shape), t)
        up = b.repeat(2, 1).repeat(2, 2)
        a = block(p["up"], mnp.concatenate([up, a], -1), t)
        return mnp.mean((nn.conv(a, p["out"]) - noise) ** 2)

    lo, hi = widths
    params = {
        "in": (3, 3, 4, lo), "down0": shapes(lo, lo), "down1": shapes(lo, hi), "mid": shapes(hi, hi),
        "up": shapes(hi + lo, lo), "out": (3, 3, lo, 4), **dict.fromkeys("qkvo", (hi, hi)),
    }  # fmt: skip
    image = (64, 32, 32, 4)
    d = P("data")
    return _partition(sgd(loss), mesh, (params, image, image, (64,)), (P(), d, d, d), (P(), P()), (0,))


@program
def segmentation_rows() -> Any:
    """A U-Net on large images whose rows are split: convolutions exchange edges."""

    def loss(p: Any, x: Any, y: Any) -> Any:
        a = nn.relu(nn.conv(nn.relu(nn.conv(x, p["a"])), p["b"]))
        b = nn.relu(nn.conv(nn.max_pool(a, 2), p["c"]))
        c = nn.relu(nn.conv(nn.max_pool(b, 2), p["d"]))
        b = nn.relu(nn.conv(mnp.concatenate([c.repeat(2, 1).repeat(2, 2), b], -1), p["e"]))
        a = nn.relu(nn.conv(mnp.concatenate([b.repeat(2, 1).repeat(2, 2), a], -1), p["f"]))
        logits = nn.conv(a, p["g"])
        return nn.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    params = {"a": (3, 3, 3, 16), "b": (3, 3, 16, 16), "c": (3, 3, 16, 32), "d": (3, 3, 32, 64), "e": (3, 3, 96, 32),
              "f": (3, 3, 48, 16), "g": (1, 1, 16, 8)}  # fmt: skip
    rows = P(None, "rows")
    args = params, (2, 512, 512, 3), ints(2, 512, 512)
    return _partition(mw.value_and_grad(loss), mesh_of(rows=8), args, (P(), rows, rows), (P(), P()))


@program
def image_decoder() -> Any:
    """A generator: transposed convolutions with batch norm from a latent vector, and its gradient."""

    def loss(p: Any, z: Any, target: Any) -> Any:
        h = nn.relu(z @ p["in"]).reshape(-1, 4, 4, 256)
        for name in ("a", "b", "c"):
            h = nn.conv_transpose(h, p[name]["kernel"], strides=2)
            h = nn.relu(nn.standardize(h, (0, 1, 2)) * p[name]["scale"] + p[name]["shift"])
        return mnp.mean(mnp.abs(nn.tanh(nn.conv_transpose(h, p["out"], strides=2)) - target))

    def level(n: int, m: int) -> Any:
        return {"kernel": (4, 4, n, m), "scale": (m,), "shift": (m,)}

    params = {"in": (128, 4096), "a": level(256, 128), "b": level(128, 64), "c": level(64, 32), "out": (4, 4, 32, 3)}
    d = P("data")
    args = params, (128, 128), (128, 64, 64, 3)
    return _partition(mw.value_and_grad(loss), mesh_of(data=8), args, (P(), d, d), (P(), P()))


@program
def resnet_momentum() -> Any:
    """Residual blocks with batch norm over all devices, running means, and momentum."""

    def normed(p: Any, x: Any) -> Any:
        mean, var = nn.batch_norm_stats(x)
        return nn.batch_norm(x, mean, var, p["scale"], p["shift"])

    def loss(p: Any, x: Any, y: Any) -> Any:
        x = nn.max_pool(nn.relu(nn.conv(x, p["stem"], strides=2)), 2)
        for stage in p["stages"]:
            stride = 1 if stage["a"].shape[2] == stage["a"].shape[3] else 2
            h = nn.relu(normed(stage["na"], nn.conv(x, stage["a"], strides=stride)))
            h = normed(stage["nb"], nn.conv(h, stage["b"]))
            x = nn.relu(h + (nn.conv(x, stage["skip"], strides=stride) if stride > 1 else x))
        logits = x.mean((1, 2)) @ p["head"]
        return nn.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(p: Any, m: Any, x: Any, y: Any) -> Any:
        value, g = mw.value_and_grad(loss)(p, x, y)
        m = mw.tree.map(lambda m, g: 0.9 * m + g, m, g)
        return value, mw.tree.map(lambda p, m: p - 0.1 * m, p, m), m

    def stage(n: int, m: int) -> Any:
        found: Any = {"a": (3, 3, n, m), "b": (3, 3, m, m), "na": {"scale": (m,), "shift": (m,)},
                      "nb": {"scale": (m,), "shift": (m,)}}  # fmt: skip
        return found if n == m else {**found, "skip": (1, 1, n, m)}

    params = {"stem": (7, 7, 3, 64), "head": (256, 100),
              "stages": [stage(64, 64), stage(64, 128), stage(128, 128), stage(128, 256)]}  # fmt: skip
    d = P("data")
    args = params, params, (64, 128, 128, 3), ints(64)
    return _partition(step, mesh_of(data=8), args, (P(), P(), d, d), (P(), P(), P()), (0, 1))


@program
def vqvae() -> Any:
    """Images as codes of a book: the nearest one forward, straight through backward."""

    def loss(p: Any, x: Any) -> Any:
        h = nn.relu(nn.conv(x, p["a"], strides=2))
        z = nn.conv(nn.relu(nn.conv(h, p["b"], strides=2)), p["c"])
        flat = z.reshape(-1, z.shape[-1])
        far = (flat**2).sum(1)[:, None] - 2 * flat @ p["book"].T + (p["book"] ** 2).sum(1)
        q = p["book"][mnp.argmin(far, 1)].reshape(z.shape)
        commit = mnp.mean((lax.stop_gradient(q) - z) ** 2) + mnp.mean((q - lax.stop_gradient(z)) ** 2)
        h = nn.relu(nn.conv_transpose(z + lax.stop_gradient(q - z), p["d"], strides=2))
        return mnp.mean((nn.conv_transpose(h, p["e"], strides=2) - x) ** 2) + commit

    params = {"a": (4, 4, 3, 64), "b": (4, 4, 64, 128), "c": (1, 1, 128, 64), "book": (1024, 64), "d": (4, 4, 64, 64),
              "e": (4, 4, 64, 3)}  # fmt: skip
    args = params, (64, 64, 64, 3)
    return _partition(mw.value_and_grad(loss), mesh_of(data=8), args, (P(), P("data")), (P(), P()))


@program
def wavenet() -> Any:
    """Gated causal convolutions of growing dilation over sound."""
    layers, width = 6, 128

    def loss(p: Any, x: Any, y: Any) -> Any:
        h, total = x @ p["in"], 0.0
        for i, q in enumerate(p["layers"]):
            pad = [(2**i, 0)]
            a = nn.conv(h, q["filter"], padding=pad, dilation=2**i)
            b = nn.conv(h, q["gate"], padding=pad, dilation=2**i)
            z = mnp.tanh(a) * nn.sigmoid(b)
            h, total = h + z @ q["out"], total + z @ q["skip"]
        logits = nn.relu(total) @ p["head"]
        return nn.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    one = {"filter": (2, width, width), "gate": (2, width, width), "out": (width, width), "skip": (width, width)}
    params = {"in": (32, width), "layers": [one] * layers, "head": (width, 256)}
    d = P("data")
    args = params, (16, 4096, 32), ints(16, 4096)
    return _partition(sgd(loss), mesh_of(data=8), args, (P(), d, d), (P(), P()), (0,))


@program
def discriminator_spectral_norm() -> Any:
    """A critic of images whose kernels are divided by their largest singular value, and a gradient penalty."""

    def normed(w: Any, u: Any) -> Any:
        flat = w.reshape(-1, w.shape[-1])
        v = flat @ u
        v = v / (mnp.linalg.norm(v) + 1e-6)
        u = v @ flat
        return w / (v @ flat @ (u / (mnp.linalg.norm(u) + 1e-6)))

    def critic(p: Any, u: Any, x: Any) -> Any:
        for w, one in zip(p["conv"], u["conv"]):
            x = nn.leaky_relu(nn.conv(x, normed(w, one), strides=2), 0.2)
        return (x.reshape(x.shape[0], -1) @ normed(p["head"], u["head"]))[:, 0]

    def loss(p: Any, u: Any, real: Any, fake: Any) -> Any:
        return mnp.mean(nn.relu(1 - critic(p, u, real))) + mnp.mean(nn.relu(1 + critic(p, u, fake)))

    sizes = 3, 64, 128, 256
    params = {"conv": [(4, 4, a, b) for a, b in itertools.pairwise(sizes)], "head": (8 * 8 * 256, 1)}
    u = {"conv": [(n,) for n in sizes[1:]], "head": (1,)}
    image, d = (64, 64, 64, 3), P("data")
    args = params, u, image, image
    return _partition(sgd(loss), mesh_of(data=8), args, (P(), P(), d, d), (P(), P()), (0,))


# --- transformers -------------------------------------------------------------------------------------------
def _layer_shapes(width: int, hidden: int) -> dict[str, tuple[int, ...]]:
    square = dict.fromkeys("qkvo", (width, width))
    return {**square, "up": (width, hidden), "down": (hidden, width), "ln1": (width,), "ln2": (width,)}


def _layer(p: Any, x: Any, heads: int, causal: bool = True) -> Any:
    h = nn.rms_norm(x, p["ln1"])
    q, k, v = ((h @ p[n]).reshape(*x.shape[:2], heads, -1) for n in "qkv")
    x = x + nn.dot_product_attention(q, k, v, is_causal=causal).reshape(x.shape) @ p["o"]
    return x + nn.gelu(nn.rms_norm(x, p["ln2"]) @ p["up"]) @ p["down"]


def _language(p: Any, tokens: Any, heads: int) -> Any:
    x = p["table"][tokens]
    for layer in p["layers"]:
        x = _layer(layer, x, heads)
    logits = (x @ p["table"].T)[:, :-1]
    return nn.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def _language_shapes(width: int, layers: int, words: int) -> Any:
    return {"table": (words, width), "layers": [_layer_shapes(width, 4 * width)] * layers}


@program
def masked_autoencoder() -> Any:
    """A vision transformer that sees a quarter of the patches, and a small one that fills in the rest."""
    patches, seen = 196, 49

    def loss(p: Any, x: Any, order: Any) -> Any:
        h = x @ p["in"] + p["places"]
        h = mnp.take_along_axis(h, order[:, :seen, None], axis=1)
        for layer in p["encoder"]:
            h = _layer(layer, h, 8, causal=False)
        h = h @ p["narrow"]
        hidden = mnp.broadcast_to(p["mask"], (h.shape[0], patches - seen, h.shape[-1]))
        h = mnp.take_along_axis(mnp.concatenate([h, hidden], 1), mnp.argsort(order, 1)[..., None], axis=1)
        for layer in p["decoder"]:
            h = _layer(layer, h, 4, causal=False)
        return mnp.mean((h @ p["out"] - x) ** 2)

    params = {"in": (768, 512), "places": (patches, 512), "encoder": [_layer_shapes(512, 2048)] * 2,
              "narrow": (512, 256), "mask": (256,), "decoder": [_layer_shapes(256, 1024)],
              "out": (256, 768)}  # fmt: skip
    d = P("data")
    args = params, (64, patches, 768), ints(64, patches)
    return _partition(mw.value_and_grad(loss), mesh_of(data=8), args, (P(), d, d), (P(), P()))


@program
def adafactor_sharded() -> Any:
    """Parameters that are fully sharded; second moments as sums of rows and of columns."""

    def update(p: Any, g: Any, row: Any, column: Any) -> Any:
        square = g * g + 1e-30
        row = 0.99 * row + 0.01 * square.mean(-1)
        column = 0.99 * column + 0.01 * square.mean(-2)
        g = g * lax.rsqrt(row / row.mean())[:, None] * lax.rsqrt(column)
        g = g / mnp.maximum(1.0, mnp.sqrt(mnp.mean(g * g)))
        return p - 1e-2 * g, row, column

    def step(p: Any, rows: Any, columns: Any, tokens: Any) -> Any:
        value, g = mw.value_and_grad(lambda p: _language(p, tokens, 8))(p)
        flat = [mw.tree.leaves(x) for x in (p, g, rows, columns)]
        new = [(a - 1e-2 * b, r, c) if a.ndim < 2 else update(a, b, r, c) for a, b, r, c in zip(*flat)]
        return value, *(mw.tree.unflatten(mw.tree.structure(p), list(x)) for x in zip(*new))

    def leaf(x: Any) -> bool:
        return isinstance(x, tuple)

    params = _language_shapes(512, 2, 8192)
    rows, columns = (mw.tree.map(cut, params, is_leaf=leaf) for cut in (lambda s: s[:1], lambda s: s[-1:]))
    d = P("data")
    args = params, rows, columns, ints(16, 512)
    return _partition(step, mesh_of(data=8), args, (d, d, d, d), (P(), d, d, d), (0, 1, 2))


@program
def accumulated() -> Any:
    """Gradients of four parts of a batch, summed in a loop."""

    def step(p: Any, tokens: Any) -> Any:
        def add(total: Any, part: Any) -> Any:
            return mw.tree.map(mnp.add, total, mw.grad(lambda p: _language(p, part, 8))(p)), None

        total, _ = lax.scan(add, mw.tree.map(mnp.zeros_like, p), tokens)
        return mw.tree.map(lambda p, g: p - 1e-3 * g, p, total)

    args = _language_shapes(512, 2, 8192), ints(4, 16, 256)
    return _partition(step, mesh_of(data=8), args, (P(), P(None, "data")), P(), (0,))


@program
def adamw_zero1() -> Any:
    """Parameters on every device, moments and their update split, data parallel."""

    def step(p: Any, m: Any, v: Any, tokens: Any) -> Any:
        value, g = mw.value_and_grad(lambda p: _language(p, tokens, 8))(p)
        m = mw.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = mw.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, v, g)
        p = mw.tree.map(lambda p, m, v: p - 1e-3 * (m / (mnp.sqrt(v) + 1e-8) + 0.01 * p), p, m, v)
        return value, p, m, v

    shapes, d = _language_shapes(512, 3, 8192), P("data")
    args = shapes, shapes, shapes, ints(32, 256)
    return _partition(step, mesh_of(data=8), args, (P(), d, d, d), (P(), P(), d, d), (0, 1, 2))


@program
def muon_sharded() -> Any:
    """Updates made orthogonal by Newton and Schulz's iteration; parameters are fully sharded."""

    def orthogonal(g: Any) -> Any:
        x = (g / (mnp.linalg.norm(g) + 1e-7)).astype(BF16)
        tall = x.shape[0] > x.shape[1]
        x = x.T if tall else x
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
        return (x.T if tall else x).astype(F32)

    def step(p: Any, m: Any, tokens: Any) -> Any:
        value, g = mw.value_and_grad(lambda p: _language(p, tokens, 8))(p)
        m = mw.tree.map(lambda m, g: 0.95 * m + g, m, g)
        p = mw.tree.map(lambda p, m: p - 2e-2 * (orthogonal(m) if m.ndim == 2 else m), p, m)
        return value, p, m

    shapes, d = _language_shapes(512, 2, 8192), P("data")
    args = shapes, shapes, ints(16, 256)
    return _partition(step, mesh_of(data=8), args, (d, d, d), (P(), d, d), (0, 1))


@program
def lora_sharded() -> Any:
    """Low-rank adapters of frozen weights in 16 bits, which are fully sharded."""

    def adapted(x: Any, w: Any, a: Any, b: Any) -> Any:
        return x @ w + (x @ a) @ b

    def loss(adapters: Any, base: Any, x: Any, y: Any) -> Any:
        for p, q in zip(base, adapters):
            h = nn.rms_norm(x, p["ln1"])
            heads = [adapted(h, p[n], *q[n]).reshape(*x.shape[:2], 8, -1) for n in "qv"]
            k = (h @ p["k"]).reshape(heads[0].shape)
            x = x + nn.dot_product_attention(heads[0], k, heads[1], is_causal=True).reshape(x.shape) @ p["o"]
            x = x + nn.silu(nn.rms_norm(x, p["ln2"]) @ p["up"]) @ p["down"]
        return mnp.mean((x.astype(F32) - y) ** 2)

    width, rank = 1024, 16
    base = [typed(_layer_shapes(width, 4 * width), BF16)] * 3
    adapter = {n: [bf16(width, rank), bf16(rank, width)] for n in "qv"}
    d = P("data")
    args = [adapter] * 3, base, bf16(16, 512, width), (16, 512, width)
    return _partition(sgd(loss), mesh_of(data=8), args, (P(), d, d, d), (P(), P()), (0,))


@program
def mixed_precision_seq2seq() -> Any:
    """An encoder and a decoder in 16 bits, weights in 32, smoothed labels; tensor and data parallel."""

    def attend(p: Any, x: Any, y: Any, causal: bool) -> Any:
        q, k, v = ((z @ p[n]).reshape(*z.shape[:2], 8, -1) for n, z in zip("qkv", (x, y, y)))
        return nn.dot_product_attention(q, k, v, is_causal=causal).reshape(x.shape) @ p["o"]

    def loss(p: Any, source: Any, target: Any) -> Any:
        p = mw.tree.map(lambda w: w.astype(BF16), p)
        x, y = p["table"][source], p["table"][target]
        for layer in p["encoder"]:
            x = _layer(layer, x, 8, causal=False)
        for layer in p["decoder"]:
            y = y + attend(layer["cross"], y, x, causal=False)
            y = _layer(layer["self"], y, 8)
        logp = nn.log_softmax((y @ p["table"].T).astype(F32))
        right = mnp.take_along_axis(logp[:, :-1], target[:, 1:, None], -1)
        return -0.9 * right.mean() - 0.1 * logp.mean()

    width = 512
    layer, cross = _layer_shapes(width, 4 * width), dict.fromkeys("qkvo", (width, width))
    params = {"table": (16384, width), "encoder": [layer] * 2, "decoder": [{"cross": cross, "self": layer}] * 2}

    def specs(name: str) -> Any:
        return P(None, "model") if name in ("q", "k", "v", "up") else P("model") if name in ("o", "down") else P()

    where: Any = {n: specs(n) for n in layer}
    across: Any = {n: specs(n) for n in cross}
    where = {"table": P("model"), "encoder": [where] * 2, "decoder": [{"cross": across, "self": where}] * 2}
    d = P("data")
    args = params, ints(32, 256), ints(32, 256)
    return _partition(mw.value_and_grad(loss), mesh_of(data=2, model=4), args, (where, d, d), (P(), where))


@program
def cached_decoding() -> Any:
    """One token for each sequence, with caches of keys and values that are written in place; heads are split."""
    layers, width, heads, length, batch = 4, 2048, 16, 2048, 8

    def step(p: Any, cache: Any, x: Any, at: Any) -> Any:
        new = []
        for q, (ks, vs) in zip(p["layers"], cache):
            h = nn.rms_norm(x, q["ln1"])
            one, k, v = ((h @ q[n]).reshape(batch, 1, heads, -1) for n in "qkv")
            ks, vs = (lax.dynamic_update_slice(c, y, (0, at, 0, 0)) for c, y in ((ks, k), (vs, v)))
            scores = mnp.einsum("bqhd,bkhd->bhqk", one, ks).astype(F32) / np.float32(np.sqrt(width // heads))
            scores = mnp.where(mnp.arange(length) <= at, scores, -1e30)
            mixed = mnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores).astype(BF16), vs)
            x = x + mixed.reshape(x.shape) @ q["o"]
            x = x + nn.silu(nn.rms_norm(x, q["ln2"]) @ q["up"]) @ q["down"]
            new.append((ks, vs))
        return mnp.argmax(x[:, 0] @ p["head"], -1), new

    layer = typed(_layer_shapes(width, 4 * width), BF16)
    cache = [(bf16(batch, length, heads, width // heads),) * 2] * layers
    heads_split = P(None, None, "model")
    where = {n: P(None, "model") if n in ("q", "k", "v", "up") else P("model") if n in ("o", "down") else P()
             for n in layer}  # fmt: skip
    params = {"layers": [layer] * layers, "head": bf16(width, 32768)}
    specs = {"layers": [where] * layers, "head": P(None, "model")}
    caches = [(heads_split,) * 2] * layers
    args = params, cache, bf16(batch, 1, width), ints()
    return _partition(step, mesh_of(model=8), args, (specs, caches, P(), P()), (P(), caches), (1,))


@program
def speculative_check() -> Any:
    """A draft of five tokens, checked with the large model's probabilities; rejected ones are drawn again."""
    width, heads, length, batch, draft, words = 1024, 16, 1024, 64, 5, 32000

    def step(p: Any, ks: Any, vs: Any, tokens: Any, q: Any, u: Any) -> Any:
        x = p["table"][tokens]
        h = nn.rms_norm(x, p["ln1"])
        one, k, v = ((h @ p[n]).reshape(batch, draft, heads, -1) for n in "qkv")
        keys, values = mnp.concatenate([ks, k], 1), mnp.concatenate([vs, v], 1)
        mask = mnp.arange(length + draft)[None] <= length + mnp.arange(draft)[:, None]
        mixed = nn.dot_product_attention(one, keys, values, mask=mask)
        x = x + mixed.reshape(x.shape) @ p["o"]
        x = x + nn.gelu(nn.rms_norm(x, p["ln2"]) @ p["up"]) @ p["down"]
        probs = nn.softmax((x @ p["table"].T).astype(F32))
        theirs, ours = (mnp.take_along_axis(z, tokens[..., None], -1)[..., 0] for z in (q, probs))
        kept = mnp.cumprod((u < ours / theirs).astype(I32), 1)
        rest = nn.relu(probs - q)
        again = mnp.argmax(rest / rest.sum(-1, keepdims=True), -1)
        return mnp.where(kept > 0, tokens, again), kept.sum(1)

    params = typed({"table": (words, width), **_layer_shapes(width, 4 * width)}, BF16)
    cache, d = bf16(batch, length, heads, width // heads), P("data")
    args = params, cache, cache, ints(batch, draft), (batch, draft, words), (batch, draft)
    return _partition(step, mesh_of(data=8), args, (P(), d, d, d, d, d), (d, d))


@program
def beam_search() -> Any:
    """A step of a beam: the best continuations of all beams, and caches gathered for them."""
    batch, beams, words, width, length = 64, 4, 16384, 512, 128

    def step(p: Any, state: Any, scores: Any, history: Any, at: Any) -> Any:
        x = p["table"][history[:, :, 0]]
        z, r = mnp.split(nn.sigmoid(mnp.concatenate([x, state], -1) @ p["gates"]), 2, -1)
        state = (1 - z) * state + z * mnp.tanh(mnp.concatenate([x, r * state], -1) @ p["cell"])
        logp = nn.log_softmax(state @ p["table"].T) + scores[..., None]
        best, index = lax.top_k(logp.reshape(batch, beams * words), beams)
        beam, word = index // words, index % words
        history = mnp.take_along_axis(history, beam[..., None], 1)
        history = mnp.where(mnp.arange(length) == at, word[..., None], history)
        return mnp.take_along_axis(state, beam[..., None], 1), best, history

    params = {"table": (words, width), "gates": (2 * width, 2 * width), "cell": (2 * width, width)}
    d = P("data")
    args = params, (batch, beams, width), (batch, beams), ints(batch, beams, length), ints()
    return _partition(step, mesh_of(data=8), args, (P(), d, d, d, P()), (d, d, d))


@program
def blockwise_attention() -> Any:
    """Attention in blocks with running maxima, computed again backward, sequences and heads split."""
    block = 256

    def attend(q: Any, k: Any, v: Any) -> Any:
        def one(carry: Any, kv: Any) -> Any:
            top, total, out = carry
            s = mnp.einsum("bqhd,bkhd->bhqk", q, kv[0])
            new = mnp.maximum(top, s.max(-1))
            old, p = mnp.exp(top - new), mnp.exp(s - new[..., None])
            out = out * old[..., None] + mnp.einsum("bhqk,bkhd->bhqd", p, kv[1])
            return (new, total * old + p.sum(-1), out), None

        b, n, h, d = q.shape
        blocks = [mnp.moveaxis(x.reshape(b, n // block, block, h, d), 1, 0) for x in (k, v)]
        start = mnp.full((b, h, n), -1e30, F32), mnp.zeros((b, h, n), F32), mnp.zeros((b, h, n, d), F32)
        (_, total, out), _ = lax.scan(mw.checkpoint(one), start, tuple(blocks))
        return out / total[..., None]

    def loss(q: Any, k: Any, v: Any) -> Any:
        return (attend(q * 0.125, k, v) ** 2).sum()

    spec = P("data", None, "model")
    shape = (4, 2048, 16, 64)
    return _partition(
        mw.grad(loss, (0, 1, 2)), mesh_of(data=2, model=4), (shape,) * 3, (spec,) * 3, (spec,) * 3
    )  # fmt: skip


@program
def sorted_experts() -> Any:
    """Tokens go to two of eight experts: sorted by expert, cut at a capacity, and put back."""
    experts, width, hidden, tokens = 8, 512, 2048, 8192
    room = tokens * 2 // experts

    def loss(p: Any, x: Any) -> Any:
        gates = nn.softmax(x @ p["router"])
        weight, chosen = lax.top_k(gates, 2)
        order = mnp.argsort(chosen.reshape(-1))
        expert = chosen.reshape(-1)[order]
        place = mnp.arange(2 * tokens) - mnp.searchsorted(expert, mnp.arange(experts))[expert]
        slot = mnp.where(place < room, expert * room + place, experts * room)
        buffer = mnp.zeros((experts * room + 1, width), F32).at[slot].set(x[order // 2])
        h = mnp.einsum("ecd,edf->ecf", buffer[:-1].reshape(experts, room, width), p["up"])
        y = mnp.einsum("ecf,efd->ecd", nn.gelu(h), p["down"]).reshape(-1, width)
        y = mnp.concatenate([y, mnp.zeros((1, width), F32)])[slot] * weight.reshape(-1)[order][:, None]
        return (mnp.zeros_like(x).at[order // 2].add(y) ** 2).mean()

    params = {"router": (width, experts), "up": (experts, width, hidden), "down": (experts, hidden, width)}
    where = {"router": P(), "up": P("expert"), "down": P("expert")}
    return _partition(
        mw.value_and_grad(loss), mesh_of(expert=8), (params, (tokens, width)), (where, P("expert")), (P(), where)
    )  # fmt: skip


# --- recurrences and loops ----------------------------------------------------------------------------------
@program
def lstm() -> Any:
    """Two layers of a long short-term memory over characters, and their gradients."""
    width, length, batch = 512, 128, 256

    def cell(w: Any, carry: Any, x: Any) -> Any:
        h, c = carry
        i, f, g, o = mnp.split(mnp.concatenate([x, h], -1) @ w, 4, -1)
        c = nn.sigmoid(f) * c + nn.sigmoid(i) * mnp.tanh(g)
        h = nn.sigmoid(o) * mnp.tanh(c)
        return (h, c), h

    def loss(p: Any, tokens: Any) -> Any:
        x = p["table"][tokens.T]
        zero = mnp.zeros((x.shape[1], width), F32)
        for w in p["cells"]:
            _, x = lax.scan(lambda carry, y, w=w: cell(w, carry, y), (zero, zero), x)
        logits = x[:-1] @ p["head"]
        return nn.softmax_cross_entropy_with_integer_labels(logits, tokens.T[1:]).mean()

    params = {"table": (256, width), "cells": [(2 * width, 4 * width)] * 2, "head": (width, 256)}
    return _partition(
        sgd(loss), mesh_of(data=8), (params, ints(batch, length)), (P(), P("data")), (P(), P()), (0,)
    )  # fmt: skip


@program
def selective_states() -> Any:
    """A layer as Mamba's: a short convolution, states by an associative scan, gates; channels are split."""
    width, states, length, batch = 1024, 16, 512, 4

    def loss(p: Any, x: Any) -> Any:
        u, z = mnp.split(x @ p["in"], 2, -1)
        u = nn.silu(nn.conv(u, p["conv"], padding=[(3, 0)], groups=width))
        step = nn.softplus(u * p["step"] + p["bias"])
        b, c = u @ p["b"], u @ p["c"]
        decay = mnp.exp(-step[..., None] * mnp.exp(p["a"]))
        push = (step * u)[..., None] * b[:, :, None]

        def join(left: Any, right: Any) -> Any:
            return left[0] * right[0], right[0] * left[1] + right[1]

        h = lax.associative_scan(join, (decay, push), axis=1)[1]
        y = mnp.einsum("blds,bls->bld", h, c) + u * p["skip"]
        return mnp.mean(((y * nn.silu(z)) @ p["out"]) ** 2)

    params = {"in": (512, 2 * width), "conv": (4, 1, width), "step": (width,), "bias": (width,), "b": (width, states),
              "c": (width, states), "a": (width, states), "skip": (width,), "out": (width, 512)}  # fmt: skip
    where = {n: P("model") for n in params} | {"in": P(None, "model"), "conv": P(None, None, "model")}
    return _partition(
        mw.value_and_grad(loss), mesh_of(model=8), (params, (batch, length, 512)), (where, P()), (P(), where)
    )  # fmt: skip


@program
def kalman() -> Any:
    """Filters of many series: small matrices, a solve for each step, and the gradient of the likelihood."""
    size, seen, series, length = 16, 4, 512, 64

    def loss(p: Any, ys: Any) -> Any:
        a, c = p["a"], p["c"]

        def step(carry: Any, y: Any) -> Any:
            x, cov = carry
            x = x @ a.T
            cov = a @ cov @ a.T + mnp.eye(size, dtype=F32) * mnp.exp(p["q"])
            s = c @ cov @ c.T + mnp.eye(seen, dtype=F32) * mnp.exp(p["r"])
            low = mnp.linalg.cholesky(s)
            gain = mnp.swapaxes(mnp.linalg.solve(s, c @ cov), -1, -2)
            e = y - x @ c.T
            x = x + (gain @ e[..., None])[..., 0]
            cov = cov - gain @ c @ cov
            z = lax.linalg.triangular_solve(low, e[..., None], left_side=True, lower=True)
            return (x, cov), (z**2).sum() + mnp.log(mnp.diagonal(low, axis1=-2, axis2=-1)).sum()

        n = ys.shape[1]
        start = mnp.zeros((n, size), F32), mnp.broadcast_to(mnp.eye(size, dtype=F32), (n, size, size))
        return lax.scan(step, start, ys)[1].sum()

    params = {"a": (size, size), "c": (seen, size), "q": (), "r": ()}
    args = params, (length, series, seen)
    return _partition(mw.value_and_grad(loss), mesh_of(data=8), args, (P(), P(None, "data")), (P(), P()))


@program
def sinkhorn() -> Any:
    """Optimal transport between clouds of points: alternate normalizations in a loop, its gradient by recomputing."""

    def loss(x: Any, y: Any) -> Any:
        cost = ((x**2).sum(1)[:, None] + (y**2).sum(1) - 2 * x @ y.T) * 10

        def step(carry: Any, _: Any) -> Any:
            f, g = carry
            f = -nn.logsumexp(g[None] - cost, axis=1)
            return (f, -nn.logsumexp(f[:, None] - cost, axis=0)), None

        start = mnp.zeros(x.shape[0], F32), mnp.zeros(y.shape[0], F32)
        (f, g), _ = lax.scan(mw.checkpoint(step), start, None, length=20)
        return (mnp.exp(f[:, None] + g - cost) * cost).sum()

    rows = P("rows")
    return _partition(
        mw.value_and_grad(loss), mesh_of(rows=8), ((8192, 64), (4096, 64)), (rows, P()), (P(), rows)
    )  # fmt: skip


@program
def neural_ode() -> Any:
    """Runge and Kutta's steps of a network in a scan, and the gradient through them."""
    width = 512

    def field(p: Any, x: Any, t: Any) -> Any:
        return mnp.tanh(mnp.tanh(x @ p["a"] + t * p["t"]) @ p["b"]) @ p["c"]

    def loss(p: Any, x: Any, y: Any) -> Any:
        h = np.float32(0.05)

        def step(x: Any, t: Any) -> Any:
            k1 = field(p, x, t)
            k2 = field(p, x + h / 2 * k1, t + h / 2)
            k3 = field(p, x + h / 2 * k2, t + h / 2)
            return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + field(p, x + h * k3, t + h)), None

        x, _ = lax.scan(step, x, mnp.arange(20, dtype=F32) * h)
        return mnp.mean((x - y) ** 2)

    params = {"a": (64, width), "t": (width,), "b": (width, width), "c": (width, 64)}
    d = P("data")
    return _partition(
        sgd(loss), mesh_of(data=8), (params, (8192, 64), (8192, 64)), (P(), d, d), (P(), P()), (0,)
    )  # fmt: skip


@program
def pipeline() -> Any:
    """Stages on devices in a row: microbatches go from one to the next in a loop, forward and backward."""
    mesh, width, parts, rows = mesh_of(stage=8), 1024, 16, 128

    def run(w: Any, x: Any) -> Any:
        def inside(w: Any, x: Any) -> Any:
            here, last = lax.axis_index("stage"), lax.axis_size("stage") - 1

            def tick(state: Any, t: Any) -> Any:
                first = lax.dynamic_index_in_dim(x, mnp.minimum(t, parts - 1), 0, keepdims=False)
                h = mnp.where(here == 0, first, state)
                h = h + mnp.tanh(h @ w[0, 0]) @ w[0, 1]
                out = mnp.where(here == last, h, 0)
                return lax.ppermute(h, "stage", [(i, i + 1) for i in range(7)]), out

            _, outs = lax.scan(tick, mnp.zeros((rows, width), F32), mnp.arange(parts + 7))
            return lax.psum(outs[7:], "stage")

        return mw.shard_map(inside, mesh=mesh, in_specs=(P("stage"), P()), out_specs=P(), check_vma=False)(w, x)

    def loss(w: Any, x: Any) -> Any:
        return mnp.mean(run(w, x) ** 2)

    stages = P("stage")
    args = (8, 2, width, width), (parts, rows, width)
    return _partition(mw.value_and_grad(loss), mesh, args, (stages, P()), (P(), stages))


# --- tables, graphs and search ------------------------------------------------------------------------------
@program
def graph_net() -> Any:
    """Messages along edges, summed at nodes; edges are split, nodes are everywhere."""
    nodes, edges, width = 16384, 131072, 64

    def loss(p: Any, x: Any, e: Any, sender: Any, receiver: Any, y: Any) -> Any:
        for q in p:
            message = nn.relu(mnp.concatenate([x[sender], x[receiver], e], -1) @ q["edge"])
            e = e + message
            total = mw.ops.segment_sum(message, receiver, nodes)
            x = x + nn.relu(mnp.concatenate([x, total], -1) @ q["node"])
        return mnp.mean((x - y) ** 2)

    params = [{"edge": (3 * width, width), "node": (2 * width, width)}] * 2
    d = P("edges")
    args = params, (nodes, width), (edges, width), ints(edges), ints(edges), (nodes, width)
    return _partition(sgd(loss), mesh_of(edges=8), args, (P(), P(), d, d, d, P()), (P(), P()), (0,))


@program
def click_rates() -> Any:
    """Recommendation: tables whose rows are split, products of all pairs of features, and a network."""
    tables, rows, width, batch = 8, 65536, 64, 4096

    def loss(p: Any, dense: Any, ids: Any, y: Any) -> Any:
        h = nn.relu(dense @ p["a"]) @ p["b"]
        found = [t[ids[:, i]] for i, t in enumerate(p["tables"])]
        z = mnp.stack([h, *found], 1)
        pairs = mnp.einsum("bnd,bmd->bnm", z, z)
        i, j = np.triu_indices(tables + 1, 1)
        x = mnp.concatenate([h, pairs[:, i, j]], -1)
        logits = (nn.relu(x @ p["c"]) @ p["d"])[:, 0]
        return nn.sigmoid_binary_cross_entropy(logits, y).mean()

    params = {"tables": [(rows, width)] * tables, "a": (13, 512), "b": (512, width),
              "c": (width + tables * (tables + 1) // 2, 512), "d": (512, 1)}  # fmt: skip
    where = {n: P() for n in "abcd"} | {"tables": [P("model")] * tables}
    d = P("data")
    args = params, (batch, 13), ints(batch, tables), (batch,)
    return _partition(
        sgd(loss), mesh_of(data=2, model=4), args, (where, d, d, d), (P(), where), (0,)
    )  # fmt: skip


@program
def retrieval() -> Any:
    """The hundred best of a million items for each query: items are split, two rounds of the best."""

    def best(q: Any, items: Any, bias: Any) -> Any:
        score, index = lax.top_k(q @ items.T + bias, 100)
        return nn.softmax(score), items[index].mean(1)

    args = (64, 64), (262144, 64), (262144,)
    d = P("items")
    return _partition(best, mesh_of(items=8), args, (P(), d, d), (P(), P()))


@program
def nearest_neighbours() -> Any:
    """Votes of the sixteen nearest points, queries split."""

    def classify(x: Any, points: Any, labels: Any) -> Any:
        far = (x**2).sum(1)[:, None] - 2 * x @ points.T + (points**2).sum(1)
        near, index = lax.top_k(-far, 16)
        votes = nn.one_hot(labels[index], 100) * mnp.exp(near)[..., None]
        return votes.sum(1)

    args = (4096, 128), (16384, 128), ints(16384)
    return _partition(classify, mesh_of(queries=8), args, (P("queries"), P(), P()), P("queries"))


@program
def contrastive() -> Any:
    """Two towers whose features are compared with those of the whole batch."""
    width = 512

    def tower(p: Any, x: Any) -> Any:
        for w in p["layers"]:
            x = x + nn.gelu(nn.layer_norm(x) @ w[0]) @ w[1]
        y = x @ p["out"]
        return y / mnp.linalg.norm(y, axis=-1, keepdims=True)

    def loss(p: Any, a: Any, b: Any) -> Any:
        logits = tower(p["a"], a) @ tower(p["b"], b).T * mnp.exp(p["scale"])
        rows, columns = nn.log_softmax(logits, 1), nn.log_softmax(logits, 0)
        return -(mnp.diagonal(rows).mean() + mnp.diagonal(columns).mean()) / 2

    one = {"layers": [[(width, 2048), (2048, width)]] * 2, "out": (width, 256)}
    d = P("data")
    args = {"a": one, "b": one, "scale": ()}, (4096, width), (4096, width)
    return _partition(mw.value_and_grad(loss), mesh_of(data=8), args, (P(), d, d), (P(), P()))


# --- numerics -----------------------------------------------------------------------------------------------
@program
def whitening() -> Any:
    """Covariances of many groups, and their inverse square roots by eigenvalues."""

    def white(x: Any) -> Any:
        x = x - x.mean(1, keepdims=True)
        cov = mnp.einsum("gnd,gne->gde", x, x) / x.shape[1]
        w, v = mnp.linalg.eigh(cov)
        root = mnp.einsum("gde,ge,gfe->gdf", v, lax.rsqrt(w + 1e-3), v)
        return x @ root

    return _partition(white, mesh_of(groups=8), ((64, 512, 64),), (P("groups"),), P("groups"))


@program
def poisson() -> Any:
    """Poisson's equation on a torus: Fourier transforms in three dimensions, planes split."""
    n = 128

    def solve(f: Any) -> Any:
        k = mnp.fft.fftfreq(n, dtype=F32) * n
        square = k[:, None, None] ** 2 + k[:, None] ** 2 + k**2
        spectrum = mnp.fft.fftn(f.astype(np.complex64)) / mnp.where(square == 0, 1, square)
        return mnp.fft.ifftn(spectrum).real

    return _partition(solve, mesh_of(planes=8), ((n, n, n),), (P("planes"),), P("planes"))


@program
def gaussian_process() -> Any:
    """Likelihoods of several processes by Cholesky's decomposition, and their gradient."""

    def loss(p: Any, x: Any, y: Any) -> Any:
        far = ((x[:, :, None] - x[:, None]) ** 2 * mnp.exp(p["scale"])).sum(-1)
        cov = mnp.exp(-far) + 1e-2 * mnp.eye(x.shape[1], dtype=F32)
        low = mnp.linalg.cholesky(cov)
        z = lax.linalg.triangular_solve(low, y[..., None], left_side=True, lower=True)
        return (z**2).sum() / 2 + mnp.log(mnp.diagonal(low, axis1=-2, axis2=-1)).sum()

    d = P("tasks")
    args = {"scale": (8,)}, (16, 512, 8), (16, 512)
    return _partition(mw.value_and_grad(loss), mesh_of(tasks=8), args, (P(), d, d), (P(), P()))


@program
def physics_informed() -> Any:
    """Burgers' equation: second derivatives of a network at points, and the gradient of the residual."""

    def network(p: Any, t: Any, x: Any) -> Any:
        h = mnp.stack([t, x])
        for w, b in p[:-1]:
            h = mnp.tanh(h @ w + b)
        return (h @ p[-1][0] + p[-1][1])[0]

    def residual(p: Any, t: Any, x: Any) -> Any:
        u = network(p, t, x)
        ut, ux = mw.grad(network, (1, 2))(p, t, x)
        uxx = mw.grad(mw.grad(network, 2), 2)(p, t, x)
        return ut + u * ux - 0.003 * uxx

    def loss(p: Any, t: Any, x: Any) -> Any:
        return (mw.vmap(residual, (None, 0, 0))(p, t, x) ** 2).mean()

    sizes = 2, 256, 256, 256, 1
    params = [[(a, b), (b,)] for a, b in itertools.pairwise(sizes)]
    d = P("points")
    return _partition(
        sgd(loss), mesh_of(points=8), (params, (32768,), (32768,)), (P(), d, d), (P(), P()), (0,)
    )  # fmt: skip


@program
def particles() -> Any:
    """Bodies that attract each other, in steps of a symplectic integrator; bodies are split."""

    def forces(x: Any) -> Any:
        apart = x[None] - x[:, None]
        near = ((apart**2).sum(-1) + 0.01) ** -1.5
        return (apart * near[..., None]).sum(1)

    def run(x: Any, v: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            x, v = carry
            v = v + 0.005 * forces(x)
            x = x + 0.01 * v
            return (x, v + 0.005 * forces(x)), ((v**2).sum(), x[:8])

        return lax.scan(step, (x, v), None, length=50)

    d = P("bodies")
    return _partition(run, mesh_of(bodies=8), ((4096, 3), (4096, 3)), (d, d), ((d, d), (P(), P())), (0, 1))


@program
def chunked_vocabulary() -> Any:
    """Cross entropies of a large vocabulary in chunks of tokens, whose logits are computed again backward."""
    words, width, chunks = 32768, 1024, 8

    def loss(p: Any, tokens: Any) -> Any:
        x = _layer(p["layer"], p["table"][tokens], 8)
        parts = x.reshape(chunks, -1, width), mnp.roll(tokens, -1, 1).reshape(chunks, -1)

        def one(total: Any, part: Any) -> Any:
            logits = part[0] @ p["table"].T
            return total + nn.softmax_cross_entropy_with_integer_labels(logits, part[1]).sum(), None

        return lax.scan(mw.checkpoint(one), mnp.zeros((), F32), parts)[0] / tokens.size

    params = {"table": (words, width), "layer": _layer_shapes(width, 4 * width)}
    where = {"table": P("model"), "layer": {n: P() for n in params["layer"]}}
    return _partition(
        mw.value_and_grad(loss), mesh_of(data=2, model=4), (params, ints(16, 512)), (where, P("data")), (P(), where)
    )  # fmt: skip


# --- what was drawn, and measuring --------------------------------------------------------------------------
_DRAWN = random.Random(7).sample(sorted(PROGRAMS), len(PROGRAMS) // 2)
SEEN, UNSEEN = sorted(PROGRAMS.keys() - {*_DRAWN}), sorted(_DRAWN)


def partitioned(name: str) -> Any:
    """A program's partition, without warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mw.errors.MeshwrightWarning)
        return PROGRAMS[name]()


def main() -> None:
    kept: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    only = os.environ.get("MESHWRIGHT_ONLY", "").split()
    rows, errors, seconds = [], dict[tuple[str, str], list[float]](), 0.0
    for name in (*SEEN, *UNSEEN):
        chosen = [where for where in TARGETS if not only or any(word in f"{name} {where}" for word in only)]
        part = partitioned(name) if chosen else None
        for where in chosen:
            target = mw.target(where)
            start = time.perf_counter()
            predicted = memory_on(part, target).live_bytes
            seconds += time.perf_counter() - start
            text = module_text(part.module(target.platform))
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            found = kept.get(f"{name} {where}", {})
            if found.get("module") != digest:
                try:
                    report = part.compile(target, progress=lambda seconds, held: None)
                except MissingExtraError as error:
                    print(error)
                    continue
                found = kept[f"{name} {where}"] = {"module": digest, "peak": report.peak_bytes}
                KEPT.write_text(json.dumps(kept, indent=1) + "\n")
            error = predicted / found["peak"] - 1
            kind = "seen" if name in SEEN else "unseen"
            errors.setdefault((kind, where), []).append(abs(error))
            rows.append([kind, name, where, human_bytes(found["peak"]), human_bytes(predicted), f"{error:+.1%}"])
    rows += [
        [kind, f"{len(found)} programs", where, "", f"median {statistics.median(found):.1%}", f"{max(found):.1%}"]
        for (kind, where), found in errors.items()
    ]
    table(
        "Peak memory", ["set", "program", "target", "XLA", "predicted", "error"], rows, f"predicted in {seconds:.1f} s"
    )


if __name__ == "__main__":
    main()
