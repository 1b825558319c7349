"""Products are shared along dimensions that nothing else is split along, where that is quicker and sends no more."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
from meshwright import NamedSharding
from meshwright import PartitionSpec as P
from meshwright.spmd.partition import lookahead

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
        # Rows: the left side, and the smaller right side is gathered; the terms of the result would be more.
        ((None, "x"), ("x",), ("x",), exchanged(I * K) + 4 * K * J * (N - 1) // N),
        # Nothing need be sent.
        (("x",), (), ("x",), 0),
    ],
)
def test_bytes(a, b, c, sent):
    part = product(a, b, c)
    assert part.bytes_sent == sent and part.work.redundancy == 1.0
    part.verify()


def test_it_is_said():
    part = product((None, "x"), (), (None, "x"))
    assert [c.kind for c in part.collectives] == ["all_to_all"] * 2
    assert any("products may be split along dimensions that nothing else is split along" in note for note in part.notes)
    assert not any("products may be split" in note for note in product(("x",), (), ("x",)).notes)


def test_advice_is_about_the_program_as_it_was_chosen():
    found = product((None, "x"), (), (None, "x")).explain(suggest=True)
    assert all(e.suggestion is None or e.suggestion.bytes_saved > 0 for e in found.entries)


def test_a_larger_peak_has_to_save_more_time(monkeypatch):
    """A fifth of the time is not worth two fifths of the peak, and half of it is worth a twentieth."""
    mesh = mw.AbstractMesh((4, 2), ("x", "y"))
    args = mw.ShapeDtypeStruct((I, K), np.float32), mw.ShapeDtypeStruct((K, J), np.float32)
    ins = NamedSharding(mesh, P("y")), NamedSharding(mesh, P("x"))
    step = mw.jit(lambda a, b: a @ b, in_shardings=ins, out_shardings=NamedSharding(mesh, P()))
    chosen = step.lower(*args).partition()
    assert [c.kind for c in product((), ("x",), ()).collectives] == ["all_to_all", "all_gather"]
    monkeypatch.setattr(lookahead, "HELD", 0)
    exchanged = step.lower(*args).partition()
    assert exchanged.bytes_sent < chosen.bytes_sent
    assert exchanged.memory.peak_bytes > 1.3 * chosen.memory.peak_bytes


def test_small_products_are_not_made_several_collectives():
    """An all-reduce of 12 KiB sends 3 KiB more than an all-to-all and two gathers, and starts once."""
    mesh = mw.AbstractMesh((4, 2), ("x", "y"))
    ins = NamedSharding(mesh, P(None, "x")), NamedSharding(mesh, P("x"))
    args = mw.ShapeDtypeStruct((64, 32), np.float32), mw.ShapeDtypeStruct((32, 48), np.float32)
    part = mw.jit(lambda a, b: a @ b, in_shardings=ins, out_shardings=NamedSharding(mesh, P())).lower(*args).partition()
    assert [c.kind for c in part.collectives] == ["all_reduce"]
