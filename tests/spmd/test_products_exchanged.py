"""Products are shared along dimensions that nothing else is split along, where that is quicker and sends no more."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
from meshwright import NamedSharding, lax, nn
from meshwright import PartitionSpec as P
from meshwright.spmd.partition import attempt

N = 8
MESH = mw.AbstractMesh((N,), ("x",))
I, K, J = 1024, 512, 768


def product(a, b, c):
    """``c[i, j] = a[i, k] b[k, j]`` in these layouts."""
    ins = tuple(NamedSharding(MESH, P(*s)) for s in (a, b))
    args = mw.ShapeDtypeStruct((I, K), np.float32), mw.ShapeDtypeStruct((K, J), np.float32)
    return (
        mw.jit(lambda a, b: a @ b, in_shardings=ins, out_shardings=NamedSharding(MESH, P(*c))).lower(*args).partition()
    )


def exchanged(*sizes):
    """Bytes of all-to-alls of arrays of these sizes."""
    return sum(4 * size // N * (N - 1) // N for size in sizes)


@pytest.mark.parametrize(
    ("a", "b", "c", "sent"),
    [
        # Rows, which neither operand nor result are split along, are: the left side and the result change places.
        ((None, "x"), (), (None, "x"), exchanged(I * K, I * J)),
        # Columns: the right side and the result.
        ((), ("x",), ("x",), exchanged(K * J, I * J)),
        # Four tiles of rows and two of columns: each side is exchanged and what is wanted of it gathered, and the
        # result changes columns for rows. Rows alone would need all of the right side.
        ((None, "x"), ("x",), ("x",), exchanged(I * K) + 4 * (I * K // 8 + K * J // 16 + K * J * 3 // 8 + I * J // 16)),
        # Nothing need be sent.
        (("x",), (), ("x",), 0),
    ],
)
def test_bytes(a, b, c, sent):
    part = product(a, b, c)
    assert part.bytes_sent == sent and part.work.redundancy == 1.0
    part.verify()


def test_tiles_along_a_long_axis_are_squares():
    """A sum over 64 devices as eight by eight tiles: each side is exchanged, and what is wanted of it gathered from
    eight. The terms of the result would be twice as many bytes; whole rows would need all of the right side."""
    mesh = mw.AbstractMesh((64,), ("x",))
    ins = NamedSharding(mesh, P(None, "x")), NamedSharding(mesh, P("x"))
    args = mw.ShapeDtypeStruct((512, 2048), np.float32), mw.ShapeDtypeStruct((2048, 512), np.float32)
    part = mw.jit(lambda a, b: a @ b, in_shardings=ins).lower(*args).partition()
    tile = 512 * 2048 // 64
    assert part.bytes_sent == 4 * (tile * 63 // 64 + 7 * tile + tile * 7 // 8 + 7 * tile)
    assert part.work.redundancy == 1.0
    part.verify()


def test_it_is_said():
    part = product((None, "x"), (), (None, "x"))
    assert [c.kind for c in part.collectives] == ["all_to_all"] * 2
    assert any("products may be split along dimensions that nothing else is split along" in note for note in part.notes)
    assert not any("products may be split" in note for note in product(("x",), (), ("x",)).notes)


def test_advice_is_about_the_program_as_it_was_chosen():
    found = product((None, "x"), (), (None, "x")).explain(suggest=True)
    assert all(e.suggestion is None or e.suggestion.bytes_saved > 0 for e in found.entries)


X, Y, XY = ("x",), ("y",), ("x", "y")


def on_two_axes(a, b, c):
    mesh = mw.AbstractMesh((4, 2), ("x", "y"))
    specs = [NamedSharding(mesh, P(*(axes or None for axes in dims))) for dims in (a, b, c)]
    args = mw.ShapeDtypeStruct((I, K), np.float32), mw.ShapeDtypeStruct((K, J), np.float32)
    return mw.jit(lambda a, b: a @ b, in_shardings=tuple(specs[:2]), out_shardings=specs[2]).lower(*args).partition()


@pytest.mark.parametrize(
    ("a", "b", "c", "sent"),
    [
        # Both axes leave the loops that they split: rows over y, columns over x; gathered rows last.
        ((Y, X), (X, Y), ((), ()), I * K * 3 // 8 + K * J // 8 * 3 // 4 + K * J // 8 + I * J * 7 // 8),
        # Rows over y, then x: no value is split by both, and the work is shared by both.
        ((X, ()), ((), ()), (Y, ()), I * K // 8 + I * J * 3 // 8),
    ],
)
def test_axes_on_any_loops(a, b, c, sent):
    part = on_two_axes(a, b, c)
    assert part.work.redundancy < 1.0001 and part.bytes_sent <= 4 * sent
    part.verify()


def test_a_larger_peak_has_to_save_time_and_bytes(monkeypatch):
    given = ((), X), ((), Y), ((), ())
    assert on_two_axes(*given).bytes_sent == 4 * I * K // 4 * 3 // 4 + 4 * I * J * 7 // 8
    monkeypatch.setattr(attempt, "ROUGH", float("inf"))  # no estimate is an answer
    peak = property(lambda self: (4 if self.sent[1] < 3_500_000 else 2) << 30)
    monkeypatch.setattr(attempt.Attempt, "peak", peak)
    assert on_two_axes(*given).bytes_sent > 3_500_000


def test_small_products_are_not_made_several_collectives():
    """An all-reduce of 12 KiB sends 3 KiB more than an all-to-all and two gathers, and starts once."""
    mesh = mw.AbstractMesh((4, 2), ("x", "y"))
    ins = NamedSharding(mesh, P(None, "x")), NamedSharding(mesh, P("x"))
    args = mw.ShapeDtypeStruct((64, 32), np.float32), mw.ShapeDtypeStruct((32, 48), np.float32)
    part = mw.jit(lambda a, b: a @ b, in_shardings=ins, out_shardings=NamedSharding(mesh, P())).lower(*args).partition()
    assert [c.kind for c in part.collectives] == ["all_reduce"]


def test_a_batch_that_devices_share_unevenly():
    """Sixteen rows by three devices: a device with six of them does an eighth more than its part. To share the products
    along features instead, which is even, would send the activations, and more than the parameters."""
    mesh = mw.AbstractMesh((3,), ("d",))
    rows = NamedSharding(mesh, P("d"))
    layer = mw.ShapeDtypeStruct((48, 96), np.float32), mw.ShapeDtypeStruct((96, 48), np.float32)
    x = mw.ShapeDtypeStruct((16, 10, 48), np.float32)

    def step(layers, x, y):
        def loss(layers):
            z = x
            for a, b in layers:
                z = z + nn.relu(z @ a) @ b
            return ((z - y) ** 2).mean()

        return mw.tree.map(lambda p, g: p - 0.1 * g, layers, mw.grad(loss)(layers))

    part = mw.jit(step, in_shardings=rows, out_shardings=rows).lower([layer] * 2, x, x).partition()
    assert {c.operand.size * 3 if c.kind == "all_gather" else c.operand.size for c in part.collectives} == {48 * 96}
    # Each parameter is gathered once, and its gradient scattered.
    assert part.bytes_sent == 2 * 4 * 4 * 48 * 96 * 2 // 3
    part.verify()


def test_matrices_that_are_whole_outside_of_a_loop_are_whole_in_it():
    """Each step multiplies columns by one matrix and rows by the other; in the layout of the result, a device would
    have its rows of the first alone."""
    whole, rows = NamedSharding(MESH, P()), NamedSharding(MESH, P("x"))
    x = mw.ShapeDtypeStruct((256, 256), np.float32)

    def steps(x, a, b):
        return lax.fori_loop(0, 10, lambda i, x: a @ x @ b / 256 + x, x)

    run = mw.jit(steps, in_shardings=(rows, whole, whole), out_shardings=rows)
    part = run.lower(x, x, x).partition()
    assert part.bytes_sent == 10 * exchanged(256 * 256, 256 * 256)
    assert part.work.redundancy == pytest.approx(1, abs=0.01)
    part.verify()
