"""Dimensions that reshapes take apart into parts with other tiles: weights are moved, not activations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax, nn
from meshwright import PartitionSpec as P

MESH = mw.AbstractMesh((2, 4), ("d", "t"))
RNG = np.random.default_rng(11)
B, S, M, H = 16, 24, 32, 4


def f32(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


#: queries, keys and values of projections in one, in the order that libraries have
PROJECTED = {
    "sliced": lambda z: [y.reshape(B, S, H, -1) for y in mnp.split(z, 3, -1)],
    "heads in thirds": lambda z: mnp.moveaxis(z.reshape(B, S, 3, H, -1), 2, 0),
    "thirds, then heads": lambda z: [y.reshape(B, S, H, -1) for y in mnp.moveaxis(z.reshape(B, S, 3, M), 2, 0)],
    "turned": lambda z: z.reshape(B, S, 3, H, -1).transpose(2, 0, 3, 1, 4).swapaxes(2, 3),
}


def attention(params: Any, x: Any, projected: Any) -> Any:
    q, k, v = projected(x @ params["qkv"] + params["bias"])
    weights = nn.softmax(mnp.einsum("bqhd,bkhd->bhqk", q, k), -1)
    return x + mnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(B, S, M) @ params["out"]


def trained(order: str, scanned: bool) -> Any:
    """Value and gradients of two layers in tensor parallel, partitioned and verified."""
    params = {"qkv": f32(2, M, 3 * M) / 8, "bias": f32(2, 3 * M), "out": f32(2, M, M) / 8}
    specs = {"qkv": P(None, None, "t"), "bias": P(None, "t"), "out": P(None, "t")}

    def loss(params: Any, x: Any) -> Any:
        def layer(x: Any, p: Any) -> Any:
            return attention(p, x, PROJECTED[order]), None

        if scanned:
            return (lax.scan(layer, x, params)[0] ** 2).mean()
        for n in range(2):
            x, _ = layer(x, {name: p[n] for name, p in params.items()})
        return (x**2).mean()

    on = {name: NamedSharding(MESH, spec) for name, spec in specs.items()}, NamedSharding(MESH, P("d"))
    x = f32(B, S, M)
    part = mw.jit(mw.value_and_grad(loss), in_shardings=on).lower(params, x).partition()
    part.verify(params, x)
    return part


@pytest.mark.parametrize("scanned", [False, True], ids=["unrolled", "scanned"])
@pytest.mark.parametrize("order", [name for name in PROJECTED if name != "sliced"])
def test_projections_in_one_send_what_sliced_ones_do(order, scanned):
    part, sliced = trained(order, scanned), trained("sliced", scanned)
    assert part.bytes_sent <= 1.02 * sliced.bytes_sent
    assert part.work.redundancy <= 1.02 * sliced.work.redundancy
    assert part.peak_bytes <= 1.05 * sliced.peak_bytes


#: what may come between a product and the reshape, each of a value along the dimension and others
BETWEEN = {
    "nothing": lambda z, b: z,
    "a bias": lambda z, b: z + b,
    "a function": lambda z, b: mnp.tanh(z) * 2,
    "two uses": lambda z, b: z * nn.sigmoid(z),
    "half width": lambda z, b: z.astype(mnp.bfloat16).astype(np.float32),
    "a choice": lambda z, b: mnp.where(b > 0, z, -z),
    "turned": lambda z, b: mnp.moveaxis(mnp.moveaxis(z, -1, 0), 0, -1) + 1,
    "a norm of rows": lambda z, b: z / mnp.sqrt((z**2).mean(1, keepdims=True)),
    "counted": lambda z, b: z + mnp.arange(z.shape[-1]),
    "a norm along it": lambda z, b: z / mnp.sqrt((z**2).mean(-1, keepdims=True)),
    "also as a result": lambda z, b: (z, z),
}


@pytest.mark.parametrize("parts", [(3, 4, 2), (2, 3, 4), (3, 8), (5, 4)])
@pytest.mark.parametrize("between", BETWEEN)
def test_values_are_right_whatever_comes_between(between, parts):
    n = int(np.prod(parts))

    def f(w: Any, b: Any, x: Any, heads: Any) -> Any:
        z = BETWEEN[between](x @ w, b)
        z, *more = z if isinstance(z, tuple) else (z,)
        y = z.reshape(*z.shape[:-1], *parts)
        split = parts.index(4) if 4 in parts else 1
        scaled = y * heads.reshape([-1 if d == split else 1 for d in range(len(parts))])
        return (scaled.sum() ** 2).mean() + sum((m**2).sum() for m in more), scaled

    split = parts.index(4) if 4 in parts else 1
    args = f32(6, n), f32(n), f32(4, 5, 6), f32(parts[split])
    specs = P(None, "t"), P(), P("d"), P("t")
    on = tuple(NamedSharding(MESH, s) for s in specs)
    g = mw.value_and_grad(f, argnums=(0, 1, 2), has_aux=True)
    mw.jit(g, in_shardings=on).lower(*args).partition().verify(*args)


@pytest.mark.parametrize("order", ["sliced", "heads in thirds"])
def test_a_constraint_on_what_is_taken_apart_holds(order):
    """The user said how its tiles are, so they are moved, whatever would be less."""

    def f(w: Any, x: Any, heads: Any) -> Any:
        z = lax.with_sharding_constraint(x @ w, NamedSharding(MESH, P("d", None, "t")))
        q, k, v = PROJECTED[order](mnp.tanh(z))
        return (q * k + v) * heads[:, None]

    args = f32(6, 3 * M), f32(B, S, 6), f32(H)
    on = tuple(NamedSharding(MESH, s) for s in (P(None, "t"), P("d"), P("t")))
    part = mw.jit(f, in_shardings=on).lower(*args).partition()
    part.verify(*args)
    assert part.bytes_sent > args[0].nbytes
