"""A transformer layer with Megatron's shardings: bytes sent against the textbook (Shoeybi et al. 2019, section 3)."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.common import table

BATCH, SEQUENCE, WIDTH, HEADS, DATA, TENSOR = 8, 128, 256, 8, 2, 4


def shapes() -> dict[str, tuple[int, ...]]:
    """The shapes of the parameters, by name."""
    d = WIDTH
    return {
        "ln1": (d,), "q": (d, d), "k": (d, d), "v": (d, d), "out": (d, d), "ln2": (d,), "up": (d, 4 * d),
        "up_bias": (4 * d,), "down": (4 * d, d),
    }  # fmt: skip


def layer(params: dict[str, Any], x: Any) -> Any:
    """One layer on ``(batch, sequence, width)``."""
    import meshwright.numpy as mnp
    from meshwright import nn

    b, s, d = x.shape

    def heads(y: Any) -> Any:
        return y.reshape(b, s, HEADS, d // HEADS)

    h = nn.layer_norm(x, params["ln1"])
    q, k, v = (heads(h @ params[n]) for n in "qkv")
    scores = mnp.einsum("bqhd,bkhd->bhqk", q, k) / np.float32(np.sqrt(d // HEADS))
    mixed = mnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores), v).reshape(b, s, d)
    x = x + mixed @ params["out"]
    h = nn.layer_norm(x, params["ln2"])
    return x + nn.gelu(h @ params["up"] + params["up_bias"]) @ params["down"]


def partitioned() -> Any:
    """The forward and backward pass, partitioned."""
    import meshwright as mw
    from meshwright import NamedSharding
    from meshwright import PartitionSpec as P

    mesh = mw.AbstractMesh((DATA, TENSOR), ("data", "tensor"))
    columns, rows = P(None, "tensor"), P("tensor")
    specs = {"q": columns, "k": columns, "v": columns, "up": columns, "up_bias": rows, "out": rows, "down": rows}
    weights = {n: NamedSharding(mesh, specs.get(n, P())) for n in shapes()}
    batch = NamedSharding(mesh, P("data"))

    def step(params: Any, x: Any, ct: Any) -> Any:
        y, pull = mw.vjp(layer, params, x)
        return (y, *pull(ct))

    struct = mw.ShapeDtypeStruct
    params = {n: struct(s, np.float32) for n, s in shapes().items()}
    x = struct((BATCH, SEQUENCE, WIDTH), np.float32)
    run = mw.jit(step, in_shardings=(weights, batch, batch), out_shardings=(batch, weights, batch))
    return run.lower(params, x, x).partition()


def measure() -> dict[str, int]:
    """The bytes sent by the forward and backward pass, and the textbook's."""
    part = partitioned()
    local = sum(a.nbytes for a in part.jaxpr.in_avals[: len(shapes())])
    activations = BATCH // DATA * SEQUENCE * WIDTH * 4
    textbook = 8 * activations * (TENSOR - 1) // TENSOR + 2 * local * (DATA - 1) // DATA
    return {"ours": part.bytes_sent, "textbook": textbook, "explain": part.explain()}  # type: ignore[dict-item]


def main() -> None:
    found = measure()
    table(
        f"A transformer layer, forward and backward, data {DATA} × tensor {TENSOR}: bytes sent by a device",
        ["", "bytes", "ratio"],
        [
            ["textbook: 8·b·s·h·(t-1)/t + 2·Ψ·(d-1)/d", f"{found['textbook']:,}", "1.00"],
            ["Meshwright", f"{found['ours']:,}", f"{found['ours'] / found['textbook']:.3f}"],
        ],
        "target: at most the textbook's",
    )
