"""Dimensions that reshapes take apart into parts with other tiles: weights are moved, not activations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax, nn
from meshwright import PartitionSpec as P
from meshwright.ops.shape.rearrange import ReshapeRows

MESH = mw.AbstractMesh((2, 4), ("d", "t"))
RNG = np.random.default_rng(11)
B, S, M, H = 16, 24, 32, 4


def f32(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


#: queries, keys and values of projections in one, in the order that libraries have
PROJECTED = {
    "sliced": lambda z: [y.reshape(*z.shape[:2], H, -1) for y in mnp.split(z, 3, -1)],
    "heads in thirds": lambda z: mnp.moveaxis(z.reshape(*z.shape[:2], 3, H, -1), 2, 0),
    "thirds, then heads": lambda z: [
        y.reshape(*z.shape[:2], H, -1) for y in mnp.moveaxis(z.reshape(*z.shape[:2], 3, M), 2, 0)
    ],
    "turned": lambda z: z.reshape(*z.shape[:2], 3, H, -1).transpose(2, 0, 3, 1, 4).swapaxes(2, 3),
}


def attention(params: Any, x: Any, projected: Any) -> Any:
    q, k, v = projected(x @ params["qkv"] + params["bias"])
    weights = nn.softmax(mnp.einsum("bqhd,bkhd->bhqk", q, k), -1)
    return x + mnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape) @ params["out"]


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


#: layouts of what attention's small step gets: x, the fused weight, and the output projection
LAYOUTS = {
    "columns": (P("d"), P(None, "t"), P("t", None)),
    "columns and rows": (P("d"), P("d", "t"), P("t", "d")),
    "split sequences": (P("d", "t"), P(None, "t"), P("t", None)),
    "sequences and rows": (P("d", "t"), P("t", None), P("t", None)),
    "sequences alone": (P(None, "t"), P("t", None), P("t", None)),
}


def stepped(order: str, layouts: Any) -> Any:
    """A step of training of one layer of attention: activations as large as the weights."""
    x, qkv, out = layouts

    def step(params: Any, x: Any) -> Any:
        grads = mw.grad(lambda p: (attention(p, x, PROJECTED[order]) ** 2).mean())(params)
        return mw.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    params = {"qkv": f32(M, 3 * M) / 8, "bias": f32(3 * M), "out": f32(M, M) / 8}
    specs = {"qkv": qkv, "bias": P(), "out": out}, x
    on = mw.tree.map(lambda s: NamedSharding(MESH, s), specs, is_leaf=lambda s: isinstance(s, P))
    return mw.jit(step, in_shardings=on).lower(params, f32(B // 2, S // 2, M)).partition()


@pytest.mark.parametrize("layouts", LAYOUTS)
def test_a_step_with_small_activations_sends_no_more_than_with_sliced_projections(layouts):
    part, sliced = stepped("heads in thirds", LAYOUTS[layouts]), stepped("sliced", LAYOUTS[layouts])
    assert part.bytes_sent <= 1.02 * sliced.bytes_sent
    assert part.work.redundancy <= 1.02 * sliced.work.redundancy
    assert part.peak_bytes <= 1.12 * sliced.peak_bytes
    part.verify()


def test_what_is_laid_out_as_its_parts_is_planned_again_alike(tmp_path):
    part = stepped("heads in thirds", LAYOUTS["sequences alone"])
    assert "what is multiplied in parts is laid out as the parts are" in str(part.explain())
    with mw.dump_ir(tmp_path):  # plans the strategy that was found once more
        again = stepped("heads in thirds", LAYOUTS["sequences alone"])
    assert str(again.jaxpr) == str(part.jaxpr) and again.part.strategy == part.part.strategy


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


def test_rows_for_very_many_devices_are_not_planned_one_by_one():
    """To plan the messages between 4,096 devices took half a minute."""
    rows = ReshapeRows((3, 16384), 0, 1).sharding_rule(mw.typeof(mnp.zeros(49152))).factors[-1].passes
    assert 0 < rows(8) < math.inf and rows(4096) == math.inf
    mesh = mw.AbstractMesh((4096,), ("x",))
    ins, outs = (NamedSharding(mesh, spec) for spec in (P("x"), P(None, "x")))
    f = mw.jit(lambda a: mnp.sin(a).reshape(3, 16384), in_shardings=ins, out_shardings=outs)
    part = f.lower(mw.ShapeDtypeStruct((49152,), np.float32)).partition()
    assert "reshape_rows" not in str(part.jaxpr) and part.bytes_sent <= 4 * 49152
