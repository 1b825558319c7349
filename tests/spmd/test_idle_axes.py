"""Products that an axis splits nothing of are shared along it where that is quicker and sends no more."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, nn
from meshwright import PartitionSpec as P
from meshwright.cli import digits
from meshwright.spmd.partition import idle, lookahead

MESH = mw.AbstractMesh((4, 2), ("data", "model"))
BATCH, IMAGE, CHANNELS, WIDE = 64, 8, 64, (32, 32)


def loss(params, x):
    x = nn.relu(nn.conv(x, params["first"]))
    return (nn.relu(nn.conv(nn.avg_pool(x, 2), params["second"])) ** 2).sum()


@cache
def convolutions():
    """Two convolutions and their gradients; the channels of the second are split over ``model``."""
    first, second = WIDE
    shapes = {"first": (3, 3, CHANNELS, first), "second": (3, 3, first, second)}
    where = {"first": NamedSharding(MESH, P()), "second": NamedSharding(MESH, P(None, None, None, "model"))}
    params = {k: mw.ShapeDtypeStruct(s, np.float32) for k, s in shapes.items()}
    step = mw.jit(
        mw.grad(loss), in_shardings=(where, NamedSharding(MESH, P("data"))), out_shardings=where,
    )  # fmt: skip
    return step.lower(params, mw.ShapeDtypeStruct((BATCH, IMAGE, IMAGE, CHANNELS), np.float32)).partition()


def test_what_is_sent_done_and_held(monkeypatch):
    part, (first, second) = convolutions(), WIDE
    pooled = 4 * BATCH // 4 * (IMAGE // 2) ** 2 * first
    weights = 4 * 9 * CHANNELS * first // 2, 4 * 9 * first * second // 2
    # What the second takes is gathered, the sum of its gradient scattered; the first's gradient is gathered.
    assert part.bytes_sent == 2 * pooled // 2 + sum(2 * w * 3 // 4 for w in weights) + weights[0]
    assert part.work.product_redundancy == 1.0
    part.verify()
    for others in ("shares", "elsewhere"):
        monkeypatch.setattr(lookahead, others, lambda *_: iter(()))
    without = convolutions.__wrapped__()
    assert without.work.product_redundancy > 1.03 and without.bytes_sent >= part.bytes_sent
    assert part.peak_bytes < 0.8 * without.peak_bytes and part.time().seconds < without.time().seconds


def test_it_is_said():
    part = convolutions()
    assert any("model shares products along dimension 3 of their results" in note for note in part.notes)
    text = str(part.explain())
    assert "model in the products at test_idle_axes.py" in text and "share along dimension 3" in text


def test_the_network_of_the_demo():
    part = digits.step_on(MESH).lower(*digits.like(100)).partition()
    assert part.work.redundancy < 1.02 and part.bytes_sent <= 347_500 and part.peak_bytes < 1_100_000


def test_nothing_is_shared_that_would_send_more():
    """All of the result is wanted everywhere: a product that all devices do needs nothing sent."""
    whole = NamedSharding(MESH, P())
    x = mw.ShapeDtypeStruct((64, 64), np.float32)
    part = mw.jit(lambda a, b: a @ b, in_shardings=(whole, whole), out_shardings=whole).lower(x, x).partition()
    assert part.bytes_sent == 0 and not part.notes


def test_a_dimension_that_is_split_may_be_split_further(monkeypatch):
    """Experts over ``data`` are shared by ``model`` too; less of their tokens is sent so, not more."""
    on = NamedSharding(MESH, P("data"))

    def loss(x, w1, w2):
        x = mnp.swapaxes(x.reshape(8, 8, 8, 256), 0, 1).reshape(8, 64, 256)  # of each group some go to each expert
        return ((nn.relu(x @ w1) @ w2) ** 2).sum()

    def partitioned():
        step = mw.jit(mw.grad(loss, (1, 2)), in_shardings=(on, on, on))
        shapes = [(8, 64, 256), (8, 256, 512), (8, 512, 256)]
        return step.lower(*(mw.ShapeDtypeStruct(s, np.float32) for s in shapes)).partition()

    part, sent = partitioned(), 8 * 64 * 256 * 4 // 8
    assert part.work.redundancy < 1.01 and part.bytes_sent == sent * 3 // 4
    assert [out.spec[0] for out in part.out_shardings] == [("data", "model")] * 2
    part.verify()
    monkeypatch.setattr(lookahead, "shares", lambda *_: iter(()))
    without = partitioned()
    assert without.work.redundancy == 2.0 and without.bytes_sent > part.bytes_sent
    assert part.peak_bytes < 0.8 * without.peak_bytes and part.time().seconds < 0.7 * without.time().seconds


def test_more_may_be_sent_where_the_step_is_much_shorter(monkeypatch):
    """Nobody split the batch: ``data`` does, though sums of the weights' gradients take the place of fewer sums."""
    width, wide, batch = 256, 1024, 512

    def loss(w1, w2, x):
        return ((nn.gelu(x @ w1) @ w2) ** 2).sum()

    def partitioned():
        ins = NamedSharding(MESH, P(None, "model")), NamedSharding(MESH, P("model")), NamedSharding(MESH, P())
        shapes = (width, wide), (wide, width), (batch, width)
        step = mw.jit(mw.grad(loss, (0, 1)), in_shardings=ins)
        return step.lower(*(mw.ShapeDtypeStruct(s, np.float32) for s in shapes)).partition()

    part = partitioned()
    assert part.work.product_redundancy == 1.0
    # The sum of a quarter of the batch, and those of the gradients of both weights, which stay in tiles.
    assert part.bytes_sent <= 4 * (batch // 4 * width + 2 * width * wide // 2 * 3 // 4)
    monkeypatch.setattr(lookahead, "shares", lambda *_: iter(()))
    without = partitioned()
    assert part.bytes_sent < 2 * without.bytes_sent and part.time().seconds < 0.7 * without.time().seconds
    assert without.work.product_redundancy == 4.0 and part.peak_bytes < 0.8 * without.peak_bytes


def test_many_matrices_that_are_sums_over_devices_are_decomposed_in_parts():
    """Each device receives the sums of its matrices only, solves with them, and sends the solutions."""
    devices, rows, groups, size = 8, 256, 32, 16

    def solve(x, y):
        square = mnp.einsum("ngi,ngj->gij", x, x) + mnp.eye(size, dtype=np.float32)
        return mnp.linalg.solve(square, mnp.einsum("ngi,ng->gi", x, y)[..., None])[..., 0]

    mesh = mw.AbstractMesh((devices,), ("d",))
    split, whole = NamedSharding(mesh, P("d")), NamedSharding(mesh, P())
    args = mw.ShapeDtypeStruct((rows, groups, size), np.float32), mw.ShapeDtypeStruct((rows, groups), np.float32)
    part = mw.jit(solve, in_shardings=(split, split), out_shardings=whole).lower(*args).partition()
    matrices, vectors = 4 * groups * size * size, 4 * groups * size
    assert part.bytes_sent <= (matrices + 2 * vectors) * (devices - 1) // devices
    assert part.work.redundancy < 1.05
    assert part.verify()
    assert "d in the work at" in str(part.explain())


def test_loops_look_up_rows_of_a_split_table_in_parts(monkeypatch):
    """A binary search: what it carries is split, and the table gathered once. It was put together in every step."""
    n = 64

    def search(steps):
        table, wanted = mnp.cumsum(steps), mnp.arange(n) / n

        def halve(_, bounds):
            low, high = bounds
            middle = (low + high) // 2
            right = table[middle] < wanted
            return mnp.where(right, middle, low), mnp.where(right, high, middle)

        return mw.lax.fori_loop(0, 7, halve, (mnp.zeros(n, np.int32), mnp.full(n, n, np.int32)))[1]

    mesh = mw.AbstractMesh((8,), ("x",))
    lowered = mw.jit(search, in_shardings=NamedSharding(mesh, P("x"))).lower(mw.ShapeDtypeStruct((n,), np.float32))
    part = lowered.partition()
    assert part.bytes_sent == 4 * (n + 8) * 7 // 8 and part.work.redundancy < 1.3
    assert "x shares work along dimension 0" in " ".join(part.notes)
    part.verify()
    monkeypatch.setattr(lookahead, "shares", lambda *_: iter(()))
    without = lowered.partition()
    assert without.bytes_sent > 8 * part.bytes_sent and without.work.redundancy > 3


@pytest.mark.parametrize(
    ("fun", "shape", "spec"),
    [
        (lambda x: (abs(mnp.fft.rfft(x)) ** 2).sum(0), (64, 96), P("x", "y")),
        (lambda x: (abs(mnp.fft.rfft(x)) ** 2).sum(), (16, 6, 24), P("x", None, "y")),
        (lambda x: mnp.linalg.qr(x)[1].sum(), (64, 8, 8), P("x", None, "y")),
        (lambda x: mnp.linalg.qr(x)[1].sum(), (16, 8, 8), P(None, "x", "y")),
        (lambda x: mnp.linalg.svd(x, compute_uv=False).sum(), (64, 4, 4), P(None, "x", "y")),
    ],
)
def test_axes_of_what_has_to_be_whole_split_what_numbers_it(fun, shape, spec):
    """Power spectra and decompositions of what is split: devices exchange it once, and repeat nothing."""
    mesh = mw.AbstractMesh((2, 4), ("x", "y"))
    lowered = mw.jit(fun, in_shardings=NamedSharding(mesh, spec)).lower(mw.ShapeDtypeStruct(shape, np.float32))
    part = lowered.partition()
    assert {c.kind for c in part.collectives} == {"all_to_all", "all_reduce"}
    assert part.work.redundancy < 1.05
    part.verify()


def sorted_and_summed(x, w):
    """What is sorted is whole on ``model``; only a sum over the sorted rows is needed."""
    return (mnp.sort(x, axis=1)[:, :2] * w).sum()


def test_work_that_is_no_product_is_shared_too():
    """Half of the rows are sorted on each of the devices that would all sort the same ones."""
    x, w = mw.ShapeDtypeStruct((64, 512), np.float32), mw.ShapeDtypeStruct((64, 2), np.float32)
    on = NamedSharding(MESH, P("data")), NamedSharding(MESH, P("data"))
    part = mw.jit(sorted_and_summed, in_shardings=on).lower(x, w).partition()
    assert part.work.redundancy < 1.05
    assert [c.bytes_sent for c in part.collectives] == [2 * 4 * 7 // 8]
    assert any("model shares work along dimension 0" in note for note in part.notes)
    part.verify()


@pytest.mark.parametrize("fun", [lambda x: mnp.sort(x, axis=1), lambda x: x[(mnp.abs(x[:, 0]) * 9).astype(np.int32)]])
def test_results_that_nobody_annotated_stay_as_they_are(fun):
    """To sort or look up rows in parts would return them in parts."""
    x = mw.ShapeDtypeStruct((64, 512), np.float32)
    on = NamedSharding(MESH, P("data")), NamedSharding(MESH, P())
    part = mw.jit(lambda y, x: (y.sum(), fun(x)), in_shardings=on).lower(x, x).partition()
    assert not any(part.out_shardings[1].spec) and part.work.redundancy > 1.5
    part.verify()


def test_a_few_bytes_more_do_not_count():
    """Products in a loop, repeated on all devices, where nothing but one scalar was sent: a scalar in each step is no
    reason to repeat them."""

    def step(y, x, w):
        def body(v, _):
            return 0.5 * v + (w @ v).mean(), None

        return mw.lax.scan(body, x + y.mean(), None, length=4)[0]

    on = NamedSharding(MESH, P("data")), NamedSharding(MESH, P()), NamedSharding(MESH, P())
    args = [mw.ShapeDtypeStruct(shape, np.float32) for shape in ((64,), (512,), (4096, 512))]
    part = mw.jit(step, in_shardings=on, out_shardings=NamedSharding(MESH, P())).lower(*args).partition()
    assert part.work.redundancy < 1.1 and part.bytes_sent < 64
    part.verify()


def windows(x, w):
    """Products with windows of images, which are merged with the images in the order of the devices' tiles."""
    tiled = x.reshape(4, 4, 8, 4, 8, 96).transpose(0, 1, 3, 2, 4, 5).reshape(64, 64, 96)
    return nn.relu(nn.relu(tiled @ w) @ w).sum(0)


def summed_in_steps(x, y):
    """Terms of sums over devices are added in every step."""
    step = mw.lax.scan(lambda total, rows: (total + rows[0].T @ rows[1], None), mnp.zeros((512, 512)), (x, y))
    return step[0].sum(0)


@pytest.mark.parametrize(
    ("fun", "shapes", "specs"),
    [
        (windows, [(4, 32, 32, 96), (96, 96)], [P("model", "data"), P()]),
        (summed_in_steps, [(32, 64, 512)] * 2, [P(None, ("data", "model"))] * 2),
    ],
)
def test_what_is_split_in_another_form_is_not_repeated(fun, shapes, specs):
    """There is nothing to share, and no time is spent on trying. Results stay as they are."""
    args = [mw.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    part = mw.jit(fun, in_shardings=tuple(NamedSharding(MESH, spec) for spec in specs)).lower(*args).partition()
    assert part.work.redundancy < 1.1 and not any(part.out_shardings[0].spec)
    assert not any(" shares " in note for note in part.notes)
    alone = idle.seconds_alone(part.part.source, part.part.mesh)
    for leading in (True, False):
        assert not [*idle.shares(part.part, part.time().seconds, alone, leading)]
    part.verify()
