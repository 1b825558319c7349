"""On TPUs, all-to-alls of narrow rows send rows of 128 elements; the others stay."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
from meshwright import PartitionSpec as P
from meshwright import lax
from meshwright.ir.jaxpr import all_eqns
from meshwright.ir.passes import inline_calls
from meshwright.lowering.lanes import fill_lanes
from meshwright.ops.collective.exchange import AllToAll

#: operands, types, and the dimensions that are split and joined, of which the tiles for 4 devices have narrow rows
NARROW = [
    ((128, 32), np.float32, 0, 1),
    ((32, 128), np.complex64, 1, 0),
    ((4, 16, 32), np.int32, 1, 2),
    ((8, 3, 64, 4), np.float32, 2, 0),
    ((64, 8, 4, 3), np.float32, 0, 1),
    ((4, 1, 128), np.float32, 2, 0),
]
#: those that have wide rows, rows that are packed, tiles that are not whole rows, or columns that fill the lanes
OTHERS = [
    ((64, 256), np.float32, 0, 1),
    ((128, 512), np.float32, 1, 0),
    ((64, 96), np.float32, 0, 1),
    ((128, 32), np.float16, 0, 1),
    ((128, 32), np.int8, 0, 1),
    ((8, 12), np.float32, 0, 1),
    ((512, 64), np.float32, 1, 0),
]


def sent(shape, dtype, split, concat):
    """A function that exchanges tiles between 4 devices, of arrays that have 4 of these shapes along the first
    dimension, with its operand."""
    mesh = mw.make_mesh((4,), ("x",))
    exchange = mw.shard_map(
        lambda x: lax.all_to_all(x, "x", split, concat, tiled=True), mesh=mesh, in_specs=P("x"), out_specs=P("x")
    )
    x = np.arange(4 * np.prod(shape)).reshape(4 * shape[0], *shape[1:])
    return mw.jit(exchange), x.astype(dtype) * (1 + 2j if dtype is np.complex64 else 1)


def exchanges(jaxpr):
    return [e for e in all_eqns(jaxpr.jaxpr) if isinstance(e.op, AllToAll)]


@pytest.mark.parametrize("case", NARROW, ids=str)
def test_rows_are_full_and_values_stay(case):
    f, x = sent(*case)
    jaxpr = inline_calls(mw.make_jaxpr(f)(x))
    after = fill_lanes(jaxpr)
    (eqn,) = exchanges(after)
    assert eqn.invars[0].aval.shape[-1] == 128
    assert eqn.invars[0].aval.size == np.prod(case[0])
    np.testing.assert_array_equal(mw.core.eval_jaxpr(after.jaxpr, after.consts, x)[0], f(x))


@pytest.mark.parametrize("case", OTHERS, ids=str)
def test_what_stays(case):
    f, x = sent(*case)
    jaxpr = inline_calls(mw.make_jaxpr(f)(x))
    assert exchanges(jaxpr)
    assert fill_lanes(jaxpr) is jaxpr


def test_only_on_tpus():
    """A split transform sends what it sent, in rows of 128 elements only where a TPU's compiler gets the module."""
    mesh = mw.AbstractMesh((8,), ("x",))
    rows = mw.NamedSharding(mesh, P("x"))
    x = mw.ShapeDtypeStruct((256, 256), np.complex64)
    part = mw.jit(lambda x: mw.numpy.fft.fft2(x), in_shardings=rows, out_shardings=rows).lower(x).partition()
    shapes = {p: [t for line in str(part.module(p)).splitlines() if "all_to_all" in line for t in ("8x8x128", "256x32")
                  if f"<{t}x" in line] for p in ("cpu", "cuda", "tpu")}  # fmt: skip
    assert set(shapes["tpu"]) == {"8x8x128"}
    assert "8x8x128" not in shapes["cpu"] + shapes["cuda"]
