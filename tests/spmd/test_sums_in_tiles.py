"""Sums over devices that stay in tiles until something needs them whole: sequence parallelism, found."""

import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P
from meshwright.spmd.partition import lookahead
from meshwright.spmd.passes import scattered_sums
from meshwright.spmd.report import starts

LAYERS, BATCH, TOKENS, WIDTH, HEADS, TENSOR = 2, 2, 256, 256, 4, 4
MESH = mw.AbstractMesh((TENSOR,), ("model",))
SUM = BATCH * TOKENS * WIDTH * 4


def norm(x: Any, scale: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / mnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale


def attention(h: Any, p: Any) -> Any:
    q, k, v = (mnp.einsum("bsd,dhe->bhse", h, w) for w in (p["q"], p["k"], p["v"]))
    weights = mw.nn.softmax(mnp.einsum("bhse,bhte->bhst", q, k) / 4.0, -1)
    return mnp.einsum("bhst,bhte,hed->bsd", weights, v, p["out"])


def forward(params: Any, x: Any) -> Any:
    for p in params:
        x = x + attention(norm(x, p["first"]), p)
        x = x + mnp.tanh(norm(x, p["second"]) @ p["up"]) @ p["down"]
    return x


def arguments(width: int = WIDTH) -> Any:
    """Weights as Megatron splits them, and rows that all devices have."""

    def of(shape: tuple[int, ...], *spec: Any) -> Any:
        return mw.ShapeDtypeStruct(shape, np.float32, sharding=mw.NamedSharding(MESH, P(*spec)))

    heads = of((width, HEADS, width // HEADS), None, "model")
    layer = {
        "q": heads, "k": heads, "v": heads, "out": of((HEADS, width // HEADS, width), "model"),
        "up": of((width, 4 * width), None, "model"), "down": of((4 * width, width), "model"),
        "first": of((width,)), "second": of((width,)),
    }  # fmt: skip
    return [layer] * LAYERS, of((BATCH, TOKENS, width))


def partitioned(fun: Any, *args: Any) -> mw.PartitionedProgram:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mw.jit(fun).lower(*args).partition()


@pytest.fixture
def as_it_was(monkeypatch):
    """Partitions without them."""

    def partition(fun: Any, *args: Any) -> mw.PartitionedProgram:
        with monkeypatch.context() as patch:
            patch.setattr(scattered_sums, "LARGE", 1 << 62)
            mw.clear_caches()
            return partitioned(fun, *args)

    return partition


def test_the_residual_stream_of_a_step_stays_in_tiles(as_it_was):
    """Each all-reduce of the forward and of the backward pass becomes two halves; what is between is done once."""

    def loss(params: Any, x: Any) -> Any:
        return (forward(params, x) ** 2).sum()

    step = mw.value_and_grad(loss)
    before, part = as_it_was(step, *arguments()), partitioned(step, *arguments())
    part.verify()
    kinds = Counter(c.kind for c in part.collectives if c.bytes_sent > SUM // 4)
    assert kinds["all_reduce"] <= 1 and kinds["reduce_scatter"] >= 4 * LAYERS - 2, kinds
    assert part.bytes_sent <= 1.01 * before.bytes_sent
    assert part.work.device < before.work.device
    assert part.peak_bytes < before.peak_bytes
    assert part.time().seconds < before.time().seconds
    assert "sums over devices stay in tiles" in str(part.explain())


def test_two_halves_start_like_the_whole(as_it_was, monkeypatch):
    """An all-reduce takes the hops of both, so that sums which take no longer than these are kept in tiles too."""
    monkeypatch.setattr(lookahead, "turns", lambda *_: iter(()))  # of such small weights, these would be gathered
    before, part = as_it_was(forward, *arguments(64)), partitioned(forward, *arguments(64))
    assert starts(part.jaxpr.jaxpr) == starts(before.jaxpr.jaxpr) == 4 * LAYERS
    assert {c.kind for c in part.collectives} >= {"reduce_scatter", "all_gather"}
    assert part.bytes_sent == before.bytes_sent
    assert part.work.redundancy < 1.005 < before.work.redundancy
    assert part.time().seconds < 0.95 * before.time().seconds


def test_each_half_says_why_it_is_there():
    """Of all sums that a residual stream is made of, the nearest are named."""
    part = partitioned(mw.grad(lambda p, x: (forward(p, x) ** 2).sum()), *arguments())
    halves = [c for c in part.collectives if c.kind in ("reduce_scatter", "all_gather")]
    assert len(halves) > 8 * LAYERS - 6
    for c in halves:
        assert 1 <= len(c.reasons) <= 3
        assert all("in partial sums over model" in str(reason) for reason in c.reasons), c


def test_where_nothing_is_gained_nothing_changes():
    """A sum that is the result has nothing after it to be done in tiles."""
    args = (
        mw.ShapeDtypeStruct((256, 512), np.float32, sharding=mw.NamedSharding(MESH, P(None, "model"))),
        mw.ShapeDtypeStruct((512, 256), np.float32, sharding=mw.NamedSharding(MESH, P("model"))),
    )
    whole = mw.jit(mnp.matmul, out_shardings=mw.NamedSharding(MESH, P()))
    part = whole.lower(*args).partition()
    assert [c.kind for c in part.collectives] == ["all_reduce"]


def test_small_sums_are_one_collective():
    part = partitioned(mw.grad(lambda p, x: (forward(p, x) ** 2).sum()), *arguments(16))
    assert BATCH * TOKENS * 16 * 4 < scattered_sums.LARGE
    assert {c.kind for c in part.collectives} == {"all_reduce"}
    part.verify()
