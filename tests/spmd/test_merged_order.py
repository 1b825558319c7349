"""Dimensions of which several are split are merged in the order of their tiles, where nothing depends on the order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, P, lax, nn

MESH = mw.AbstractMesh((2, 4), ("d", "r"))
SPLIT = P("d", "r")
B, S, WIN, W = 4, 16, 4, 8
IMAGES = mw.ShapeDtypeStruct((B, S, S, W), np.float32)
SQUARE = mw.ShapeDtypeStruct((W, W), np.float32)


def windows(x: Any) -> Any:
    parts = x.reshape(B, S // WIN, WIN, S // WIN, WIN, W).transpose(0, 1, 3, 2, 4, 5)
    return parts.reshape(-1, WIN * WIN, W)


def images(z: Any) -> Any:
    parts = z.reshape(B, S // WIN, S // WIN, WIN, WIN, W).transpose(0, 1, 3, 2, 4, 5)
    return parts.reshape(B, S, S, W)


def attention(x: Any, w: Any) -> Any:
    z = windows(x)
    q = (z @ w).reshape(*z.shape[:2], 2, W // 2)
    p = nn.softmax(mnp.einsum("nihd,njhd->nhij", q, q))
    return images(mnp.einsum("nhij,njhd->nihd", p, q).reshape(z.shape))


def shifted(x: Any, w: Any) -> Any:
    return mnp.roll(attention(mnp.roll(x, (-2, -2), (1, 2)), w), (2, 2), (1, 2))


def sent(f: Any, out: P | None = SPLIT) -> int:
    where = NamedSharding(MESH, SPLIT), NamedSharding(MESH, P())
    results = None if out is None else NamedSharding(MESH, out)
    part = mw.jit(f, in_shardings=where, out_shardings=results).lower(IMAGES, SQUARE).partition(MESH)
    part.verify()
    assert part.work.product_redundancy == 1, part.explain()
    return part.bytes_sent


#: two rows of all images of a device, which a shift sends each time
BORDER = B // 2 * 2 * S * W * 4


def test_windows_stay_where_they_are() -> None:
    assert sent(attention) == 0


def test_shifted_windows_exchange_borders() -> None:
    assert sent(shifted) == 2 * BORDER


def test_gradients_send_what_weights_need() -> None:
    """The gradient of a weight is the sum over all windows, in any order."""
    weight = 2 * W * W * 4 * 7 // 8
    gradients = mw.grad(lambda x, w: (shifted(x, w) ** 2).sum(), (0, 1))
    assert sent(gradients, out=None) <= 4 * BORDER + weight + 64


ORDERED = {
    "numbered": lambda x, w: images(windows(x) + mnp.arange(B * 16.0)[:, None, None]),
    "reversed": lambda x, w: images(windows(x)[::-1] @ w),
    "summed up": lambda x, w: images(mnp.cumsum(windows(x) @ w, 0)),
    "a result": lambda x, w: windows(x) @ w,
    "parted otherwise": lambda x, w: (windows(x) @ w).reshape(2, -1, WIN * WIN, W),
    "the largest": lambda x, w: mnp.argmax(windows(x) @ w, 0),
    "one of them": lambda x, w: (windows(x) @ w)[3],
    "random": lambda x, w: images(windows(x) * mw.random.normal(mw.random.key(3), (B * 16, 1, 1))),
    "multiplied by others": lambda x, w: mnp.einsum("nij,nkj->ik", windows(x), mnp.sin(windows(x)) @ w),
    "all of them": lambda x, w: (windows(x) @ w).max(0),
}


@pytest.mark.parametrize("name", ORDERED)
def test_where_the_order_matters_results_are_the_same(name: str) -> None:
    where = NamedSharding(MESH, P("d", "r")), NamedSharding(MESH, P())
    mw.jit(ORDERED[name], in_shardings=where).lower(IMAGES, SQUARE).partition(MESH).verify()


def test_values_are_equal() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=a.shape).astype(np.float32) for a in (IMAGES, SQUARE))
    mesh = mw.make_mesh((2, 4), ("d", "r"))
    where = NamedSharding(mesh, P("d", "r")), NamedSharding(mesh, P())
    np.testing.assert_allclose(mw.jit(shifted, in_shardings=where)(x, w), shifted(x, w), rtol=1e-4, atol=1e-5)


#: the reshape that takes windows apart gives another array's dimensions too, or dimensions of size 1 between them
PARTED = {
    "with others at once": lambda z: z.reshape(4, 48, 5),
    "all into one": lambda z: z.reshape(4, -1),
    "with size 1 between": lambda z: z.reshape(4, 1, 8, 6, 5),
    "with size 1 behind": lambda z: z.reshape(4, 8, 1, 6, 5),
    "as they were": lambda z: z.reshape(4, 8, 6, 5),
}


@pytest.mark.parametrize("name", PARTED)
def test_merged_dimensions_are_taken_apart_in_other_reshapes(name: str) -> None:
    x, where = mw.ShapeDtypeStruct((4, 8, 6, 5), np.float32), NamedSharding(MESH, SPLIT)
    part = mw.jit(lambda x: PARTED[name](mnp.sin(x.reshape(32, 6, 5))), in_shardings=where).lower(x).partition(MESH)
    part.verify()


# --- parts that are concatenated ------------------------------------------------------------------------------
ROWS = mw.AbstractMesh((4, 2), ("d", "t"))
BATCH = mw.ShapeDtypeStruct((8, 16, 32), np.float32)
WEIGHTS = mw.ShapeDtypeStruct((32, 64), np.float32), mw.ShapeDtypeStruct((64, 32), np.float32)


def network(p: Any, x: Any) -> Any:
    return nn.gelu(x @ p[0]) @ p[1]


def guided(p: Any, x: Any, c: Any) -> Any:
    """With and without a prompt: ``c`` is for both."""
    with_prompt, without = mnp.split(network(p, mnp.concatenate([x, x]) + c[:, None]), 2)
    return without + 4 * (with_prompt - without)


def steps(p: Any, x: Any, c: Any) -> Any:
    return lax.fori_loop(0, 5, lambda i, x: guided(p, x, mnp.concatenate([c, mnp.cos(c)])), x)


def steps_of_given(p: Any, x: Any, c: Any) -> Any:
    c = mnp.concatenate([c, mnp.cos(c)])
    return lax.fori_loop(0, 5, lambda i, x: guided(p, x, c), x)


def critic(p: Any, x: Any, y: Any) -> Any:
    real, fake = mnp.split(network(p, mnp.concatenate([x, y])), 2)
    return nn.softplus(-real).mean() + nn.softplus(fake).mean()


def one_part(p: Any, x: Any, y: Any) -> Any:
    real, fake = mnp.split(network(p, mnp.concatenate([x, y])), 2)
    return (real * lax.stop_gradient(fake)).mean()


def moved_rows(f: Any, c: mw.ShapeDtypeStruct) -> int:
    """The bytes sent along the axis of the batch, other than by sums; the partition is verified."""
    weights, rows = (NamedSharding(ROWS, P(None, "t")), NamedSharding(ROWS, P("t"))), NamedSharding(ROWS, P("d"))
    part = mw.jit(f, in_shardings=(weights, rows, rows)).lower(WEIGHTS, BATCH, c).partition()
    part.verify()
    return sum(c.bytes_sent for c in part.collectives if c.kind != "all_reduce")


def test_batches_that_are_concatenated_and_cut_again_stay_where_they_are() -> None:
    prompts = mw.ShapeDtypeStruct((8, 32), np.float32)
    assert moved_rows(steps, prompts) == 0
    assert moved_rows(mw.grad(critic), BATCH) == 0
    assert moved_rows(mw.grad(one_part), BATCH) == 0


def test_small_arguments_of_a_loop_are_brought_into_the_order_of_tiles() -> None:
    """Before the loop at most each device's rows of the prompts are sent, and nothing in it."""
    assert moved_rows(steps_of_given, mw.ShapeDtypeStruct((8, 32), np.float32)) <= 2 * 2 * 2 * 32 * 4


@pytest.mark.parametrize("end", [lambda z: z, lambda z: z[4:12], lambda z: mnp.cumsum(z, 0)[:8], lambda z: z[::2]])
def test_where_the_order_of_concatenated_rows_matters_results_are_the_same(end: Any) -> None:
    moved_rows(lambda p, x, y: end(network(p, mnp.concatenate([x, y]))), BATCH)
