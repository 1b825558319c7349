"""Tracing, differentiating, lowering and partitioning a GPT-2 training step, with one source for both libraries.

Times are CPU times.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.common import alternate, in_process, ratio, table

LAYERS, WIDTH, HEADS, SEQUENCE, VOCABULARY, BATCH = 12, 768, 12, 256, 50257, 8


def parameter_shapes() -> dict[str, Any]:
    """The shapes of the parameters, by name."""
    d = WIDTH
    block = {
        "ln1": {"scale": (d,), "bias": (d,)},
        "attn": {"qkv": (d, 3 * d), "qkv_bias": (3 * d,), "out": (d, d), "out_bias": (d,)},
        "ln2": {"scale": (d,), "bias": (d,)},
        "mlp": {"up": (d, 4 * d), "up_bias": (4 * d,), "down": (4 * d, d), "down_bias": (d,)},
    }
    return {
        "wte": (VOCABULARY, d),
        "wpe": (SEQUENCE, d),
        "blocks": [block for _ in range(LAYERS)],
        "ln": {"scale": (d,), "bias": (d,)},
    }


def make_step(mod: Any, xp: Any, nn: Any) -> Any:
    """The training step (loss, gradient, Adam), given a NumPy-like module, its ``nn``, and its transformations."""

    def layer_norm(x: Any, p: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        centred = x - mean
        variance = (centred * centred).mean(-1, keepdims=True)
        return centred * mod.lax.rsqrt(variance + 1e-5) * p["scale"] + p["bias"]

    def attention(x: Any, p: Any) -> Any:
        b, s, d = x.shape
        qkv = (x @ p["qkv"] + p["qkv_bias"]).reshape(b, s, 3, HEADS, d // HEADS)
        q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        scores = xp.einsum("bqhd,bkhd->bhqk", q, k) / float(np.sqrt(d // HEADS))
        causal = xp.tril(xp.ones((s, s), bool))
        weights = nn.softmax(xp.where(causal, scores, -1e9), axis=-1)
        mixed = xp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(b, s, d)
        return mixed @ p["out"] + p["out_bias"]

    def forward(params: Any, tokens: Any) -> Any:
        x = params["wte"][tokens] + params["wpe"]
        for p in params["blocks"]:
            x = x + attention(layer_norm(x, p["ln1"]), p["attn"])
            h = nn.gelu(layer_norm(x, p["ln2"]) @ p["mlp"]["up"] + p["mlp"]["up_bias"])
            x = x + h @ p["mlp"]["down"] + p["mlp"]["down_bias"]
        return layer_norm(x, params["ln"]) @ params["wte"].T

    def loss(params: Any, tokens: Any, labels: Any) -> Any:
        logp = nn.log_softmax(forward(params, tokens), axis=-1)
        return -xp.take_along_axis(logp, labels[..., None], axis=-1).mean()

    def step(params: Any, mu: Any, nu: Any, tokens: Any, labels: Any) -> Any:
        value, grads = mod.value_and_grad(loss)(params, tokens, labels)
        tree_map = mod.tree.map
        mu = tree_map(lambda m, g: 0.9 * m + 0.1 * g, mu, grads)
        nu = tree_map(lambda v, g: 0.95 * v + 0.05 * g * g, nu, grads)
        params = tree_map(lambda p, m, v: p - 3e-4 * m / (xp.sqrt(v) + 1e-8), params, mu, nu)
        return value, params, mu, nu

    return step


def arguments(struct: Any) -> tuple[Any, ...]:
    """Parameters, both moments, tokens and labels as ``ShapeDtypeStruct`` of a library."""
    params = map_shapes(lambda s: struct(s, np.float32), parameter_shapes())
    tokens = struct((BATCH, SEQUENCE), np.int32)
    return params, params, params, tokens, tokens


def map_shapes(f: Any, shapes: Any) -> Any:
    """Apply ``f`` to every shape (a tuple) in a tree of dicts and lists."""
    if isinstance(shapes, dict):
        return {k: map_shapes(f, v) for k, v in shapes.items()}
    return [map_shapes(f, v) for v in shapes] if isinstance(shapes, list) else f(shapes)


def sharded_step() -> Any:
    """The step, lowered with Megatron's shardings on a mesh of 4 × 2 devices."""
    import meshwright as mw
    import meshwright.nn as nn
    import meshwright.numpy as mnp
    from meshwright import NamedSharding
    from meshwright import PartitionSpec as P

    mesh = mw.AbstractMesh((4, 2), ("data", "model"))
    specs = {
        "qkv": P(None, "model"), "qkv_bias": P("model"), "out": P("model"), "up": P(None, "model"),
        "up_bias": P("model"), "down": P("model"), "wte": P("model"),
    }  # fmt: skip

    def place(tree: Any, name: str = "") -> Any:
        if isinstance(tree, dict):
            return {k: place(v, k) for k, v in tree.items()}
        if isinstance(tree, list):
            return [place(v) for v in tree]
        return NamedSharding(mesh, specs.get(name, P()))

    weights = place(parameter_shapes())
    batch = NamedSharding(mesh, P("data"))
    return mw.jit(
        make_step(mw, mnp, nn),
        in_shardings=(weights, weights, weights, batch, batch),
        out_shardings=(NamedSharding(mesh, P()), weights, weights, weights),
    ).lower(*arguments(mw.ShapeDtypeStruct))


def ours() -> dict[str, float]:
    """CPU seconds of each stage, after warming up with a small program."""
    import meshwright as mw
    import meshwright.nn as nn
    import meshwright.numpy as mnp

    stages = _stages(mw, mnp, nn, lambda lowered: lowered.module)
    mesh = mw.AbstractMesh((2,), ("x",))
    rows = mw.NamedSharding(mesh, mw.PartitionSpec("x"))
    mw.jit(lambda x: mnp.sin(x) @ x, in_shardings=rows).lower(mw.ShapeDtypeStruct((2, 2), np.float32)).partition()
    sharded = sharded_step()
    begin = time.process_time()
    part = sharded.partition()
    return {**stages, "partition": time.process_time() - begin, "sent": part.bytes_sent}


def _stages(library: Any, numpy: Any, nn: Any, module_of: Callable[[Any], Any]) -> dict[str, float]:
    """CPU seconds of tracing and lowering in a library, and the number of ops."""
    step = make_step(library, numpy, nn)
    library.jit(lambda x: numpy.sin(x) @ x).lower(library.ShapeDtypeStruct((2, 2), np.float32)).as_text()
    args = arguments(library.ShapeDtypeStruct)
    start = time.process_time()
    traced = library.jit(step).trace(*args)
    traced_at = time.process_time()
    module_of(traced.lower())
    lowered_at = time.process_time()
    return {"trace": traced_at - start, "lower": lowered_at - traced_at, "ops": len(traced.jaxpr.eqns)}


def jax_peer() -> dict[str, float]:
    """The same with JAX."""
    import jax
    import jax.numpy as jnp

    return _stages(jax, jnp, jax.nn, lambda lowered: lowered.compiler_ir("stablehlo"))


def main() -> None:
    found = alternate(
        {
            "ours": lambda: in_process("benchmarks.gpt2", "ours"),
            "jax": lambda: in_process("benchmarks.gpt2", "jax_peer", env={"JAX_PLATFORMS": "cpu"}),
        },
        rounds=3,
    )
    ours_, jax_ = found["ours"], found["jax"]
    if isinstance(ours_, str) or isinstance(jax_, str):
        table("GPT-2 training step", ["", "result"], [["Meshwright", str(ours_)], ["JAX", str(jax_)]])
        return
    total, peer = ours_["trace"] + ours_["lower"], jax_["trace"] + jax_["lower"]

    def seconds(value: float) -> str:
        return f"{value:.3f} s"

    rows = [
        ["trace, with gradient", seconds(ours_["trace"]), seconds(jax_["trace"]), ratio(ours_["trace"], jax_["trace"])],
        ["lower to StableHLO", seconds(ours_["lower"]), seconds(jax_["lower"]), ratio(ours_["lower"], jax_["lower"])],
        ["both", seconds(total), seconds(peer), ratio(total, peer)],
        ["propagate and partition, 4×2", seconds(ours_["partition"]), "-", ratio(ours_["partition"], peer)],
        ["top-level equations", str(int(ours_["ops"])), str(int(jax_["ops"])), "-"],
    ]
    table(
        f"GPT-2 training step: {LAYERS} layers, width {WIDTH}, {HEADS} heads, sequence {SEQUENCE}",
        ["", "Meshwright", "JAX", "ratio to JAX"], rows,
        "targets: both ≤ 1; propagate and partition ≤ 2 times JAX's trace and lower",
    )  # fmt: skip
