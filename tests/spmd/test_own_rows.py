"""Experts split over devices: between the products of a feed-forward network nothing is summed."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as jnp
from meshwright import PartitionSpec as P
from meshwright import lax

M, K, N, G = 96, 8, 12, 8
RNG = np.random.default_rng(0)
UP, DOWN = (RNG.normal(size=shape).astype(np.float32) / 3 for shape in ((G, K, 2 * N), (G, N, K)))
X = RNG.normal(size=(M, K)).astype(np.float32)
SIZES = np.array([20, 0, 31, 7, 1, 17, 12, 5], np.int32)
OTHER = SIZES[::-1].copy()
MESH = mw.AbstractMesh((2, 4), ("d", "e"), machine="v5e:2x4")


def sharding(*spec):
    return mw.NamedSharding(MESH, P(*spec))


def network(up, down, x, sizes, between=lambda h: h, last=None):
    gate, value = jnp.split(lax.ragged_dot(x, up, sizes), 2, -1)
    return lax.ragged_dot(between(gate / (1 + jnp.exp(-gate)) * value), down, sizes if last is None else last)


def partitioned(fun, *more, outs=None):
    shardings = (sharding("e"), sharding("e"), sharding("d"), *[sharding()] * (1 + len(more)))
    part = mw.jit(fun, in_shardings=shardings, out_shardings=outs).lower(UP, DOWN, X, SIZES, *more).partition()
    part.verify(UP, DOWN, X, SIZES, *more)
    return [(c.kind, c.axes) for c in part.collectives]


def test_a_network_of_experts_is_summed_once():
    assert partitioned(network, outs=sharding("d")) == [("all_reduce", ("e",))]


def test_and_its_gradient_once():
    def gradient(up, down, x, sizes):
        return mw.grad(lambda *a: (network(*a, sizes) ** 2).sum(), (0, 1, 2))(up, down, x)

    sent = partitioned(gradient, outs=(sharding("e"), sharding("e"), sharding("d")))
    assert sorted(sent) == [("all_reduce", ("d",)), ("all_reduce", ("d",)), ("all_reduce", ("e",))]


@pytest.mark.parametrize(("step", "steps"), [(lambda h: h + h * 0.5, 30), (lambda h: h * 1.001, 400)])
def test_long_programs_between_the_products(step, steps):
    """Sums of sums of one value are reached along very many ways, and unrolled loops are long chains."""

    def between(h):
        for _ in range(steps):
            h = step(h)
        return h

    sent = partitioned(lambda *args: network(*args, between=between), outs=sharding("d"))
    assert sent == [("all_reduce", ("e",))]


def test_routed_tokens():
    """As models have it: each token goes to two experts, in order of experts, and back."""
    logits = RNG.normal(size=(K, G)).astype(np.float32)

    def mixture(up, down, x, sizes, logits):
        weights, chosen = lax.top_k(jnp.exp(x @ logits), 2)
        order = jnp.argsort(chosen.reshape(-1))
        counts = jnp.bincount(chosen.reshape(-1), length=G)
        out = network(up, down, jnp.repeat(x, 2, 0)[order], counts)
        back = jnp.zeros_like(out).at[order].set(out).reshape(M, 2, K)
        return (back * weights[..., None]).sum(1)

    over_experts = [kind for kind, axes in partitioned(mixture, logits) if "e" in axes]
    assert over_experts == ["all_reduce"]


def test_tokens_split_over_experts_are_gathered_and_scattered():
    """What is between could be split as the tokens are, at the price of its sums."""
    types = [(16, 2048, 8192), (16, 4096, 2048), (8192, 2048)]
    up, down, x = (mw.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in types)
    shardings = (sharding("e"), sharding("e"), sharding(("d", "e")), sharding())
    lowered = mw.jit(network, in_shardings=shardings, out_shardings=shardings[2])
    part = lowered.lower(up, down, x, mw.ShapeDtypeStruct((16,), np.int32)).partition()
    assert [(c.kind, c.axes) for c in part.collectives] == [("all_gather", ("e",)), ("reduce_scatter", ("e",))]


@pytest.mark.parametrize(
    "between",
    [
        lambda h: jnp.roll(h, 1, 0),
        lambda h: h - h.mean(0),
        lambda h: jnp.flip(h, 0),
        lambda h: jnp.cumsum(h, 0),
        lambda h: h[RNG.permutation(M)],
    ],
    ids=["roll", "mean", "flip", "cumsum", "permutation"],
)
def test_rows_that_meet_others_are_summed(between):
    sent = partitioned(lambda *a: network(*a, between=between), outs=sharding("d"))
    assert len(sent) > 1


def test_other_groups_read_other_rows():
    sent = partitioned(
        lambda up, down, x, sizes, last: network(up, down, x, sizes, last=last), OTHER, outs=sharding("d")
    )
    assert len(sent) > 1


def test_rows_that_are_returned_are_summed():
    def both(up, down, x, sizes):
        h = lax.ragged_dot(x, up, sizes)[:, :N]
        return lax.ragged_dot(h, down, sizes), h

    assert len(partitioned(both, outs=(sharding("d"), sharding("d")))) > 1


def test_a_batch_with_groups_of_its_own_is_not_mixed():
    """Rows of one group are not those of the same number of another entry of the batch."""
    sizes = np.stack([SIZES, OTHER])
    op = mw.vmap(lax.ragged_dot, (0, None, 0))

    def reversed_between(up, down, x, sizes):
        return op(jnp.flip(op(x, up, sizes)[:, :, :N], 0), down, sizes)

    shardings = (sharding("e"), sharding("e"), sharding(), sharding())
    x = np.stack([X, X * 2])
    mw.jit(reversed_between, in_shardings=shardings).lower(UP, DOWN, x, sizes).partition().verify(UP, DOWN, x, sizes)


# --- scans --------------------------------------------------------------------------------------------------
LAYERS = 3
STACKED = tuple(np.stack([w, w[::-1], 2 * w]) for w in (UP, DOWN))
BY_LAYER = np.stack([SIZES, OTHER, np.roll(SIZES, 3)])


def over_experts(fun, *args, outs=None):
    shardings = (sharding(None, "e"), sharding(None, "e"), sharding("d"), sharding())
    part = mw.jit(fun, in_shardings=shardings, out_shardings=outs).lower(*args).partition()
    part.verify(*args)
    return [(c.kind, c.operand.shape) for c in part.collectives if "e" in c.axes and c.operand.ndim > 1]


def layers(up, down, x, sizes):
    return lax.scan(lambda x, w: (x + network(w[0], w[1], x, w[2]), None), x, (up, down, sizes))[0]


def test_what_a_scan_keeps_for_its_derivative_is_not_summed():
    """Tokens are replicated over experts: a layer is summed once on its way, and once on the way back."""

    def gradient(up, down, x, sizes):
        return mw.grad(lambda *a: (layers(*a, sizes) ** 2).sum(), (0, 1, 2))(up, down, x)

    sent = over_experts(gradient, *STACKED, X, BY_LAYER, outs=(sharding(None, "e"), sharding(None, "e"), sharding("d")))
    assert sent == [("all_reduce", (M // 2, K))] * 2


def in_two_scans(second):
    """Products up in one scan, products down in another, of rows and sizes that ``second`` makes of those of the
    first."""

    def fun(up, down, x, sizes):
        hidden = lax.scan(lambda c, w: (c, lax.ragged_dot(x, w[0], w[1])[:, :N]), 0, (up, sizes))[1]
        hidden, sizes = second(hidden, sizes)
        return lax.scan(lambda c, w: (c + lax.ragged_dot(w[1] ** 2, w[0], w[2]), None), 0 * x, (down, hidden, sizes))[0]

    return over_experts(fun, *STACKED, X, BY_LAYER, outs=sharding("d"))


@pytest.mark.parametrize(
    ("second", "kept"),
    [
        (lambda h, s: (h, s), True),
        (lambda h, s: (h, s[::-1]), False),
        (lambda h, s: (h[::-1], s), False),
        (lambda h, s: (h[::-1], s[::-1]), False),
        (lambda h, s: (h, s[:1] + 0 * s), False),
    ],
    ids=["same", "other-sizes", "other-rows", "both", "one-size"],
)
def test_rows_go_from_scan_to_scan(second, kept):
    sent = in_two_scans(second)
    assert all(shape[-1] != N for _, shape in sent) == kept


def test_rows_that_a_scan_returns_are_summed():
    def fun(up, down, x, sizes):
        hidden = lax.scan(lambda c, w: (c, lax.ragged_dot(x, w[0], w[1])[:, :N]), 0, (up, sizes))[1]
        out = lax.scan(lambda c, w: (c + lax.ragged_dot(w[1], w[0], w[2]), None), 0 * x, (down, hidden, sizes))[0]
        return out, hidden

    sent = over_experts(fun, *STACKED, X, BY_LAYER, outs=(sharding("d"), sharding(None, "d")))
    assert len(sent) > 1
