"""In which orders arrays lie on GPUs: transposes move nothing where an array can be written or read in another order.

The figures are of programs as XLA compiled them for an H100.
"""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.errors import MissingExtraError
from meshwright.spmd.memory.compilers import compiler_for
from meshwright.spmd.memory.layout_constraints import assign_layouts, regrouped
from meshwright.spmd.memory.layout_normalization import normalize
from meshwright.spmd.memory.record import record

H100 = compiler_for("cuda", "h100")
LINE = mw.AbstractMesh((8,), ("d",))


def array(*shape, dtype=np.float32):
    return mw.ShapeDtypeStruct(shape, dtype)


def turned(x, y):
    """What is computed in the order of an argument, and read the other way round by a product and a sum."""
    z = mnp.sin(mnp.exp(x).transpose(2, 0, 1) * y)
    return z.transpose(1, 2, 0) * mnp.cos(z).sum(0)[..., None]


def solved(a, b):
    """A matrix that a solve reads by columns, and a product by rows."""
    low = mnp.tril(mnp.exp(a))
    return low @ mw.scipy.linalg.solve_triangular(low, b, lower=True)


def stacked(x, w):
    """A loop that stacks arrays whose dimensions are read the other way round afterwards."""

    def step(x, w):
        x = mnp.sin(x @ w)
        return x, x

    y = lax.scan(step, x, w)[1]
    return lax.scan(lambda c, z: (mnp.sin(c * z), None), mnp.ones((16, 128)), mnp.exp(y).transpose(2, 0, 1))[0]


def heads(x, w):
    """The gradient of attention, of which each head is a matrix."""

    def f(x):
        q, k, v = mnp.split(x @ w, 3, -1)
        q, k, v = (a.reshape(4, 128, 4, 32) for a in (q, k, v))
        s = mnp.einsum("bqhd,bkhd->bhqk", mnp.sin(q), k)
        return mnp.einsum("bhqk,bkhd->bqhd", mnp.exp(s), v).sum()

    return mw.grad(f)(x)


def points(p, q):
    d = mnp.sqrt(((p[:, :, None] - q) ** 2).sum(-1) + 1e-3).transpose(2, 0, 1)
    e = mnp.exp(-8 * d)
    s = mnp.log(e.sum(0))
    return s, (mnp.exp(s)[..., None] * e.transpose(1, 2, 0)).max(-1)


def power(w, q):
    p = mnp.linalg.qr(w @ q)[0]
    return p, w.T @ p


PROGRAMS = {
    "turned": (turned, (array(64, 64, 128), array(128, 64, 64))),
    "solved": (solved, (array(512, 512), array(512, 64))),
    "stacked": (stacked, (array(128, 128), array(16, 128, 128))),
    "heads": (heads, (array(4, 128, 128), array(128, 384))),
    "points": (points, (array(64, 128, 3), array(12, 3))),
    "power": (power, (array(1024, 512), array(512, 64))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_peaks_are_those_of_programs_compiled_for_an_h100(name):
    fun, args = PROGRAMS[name]
    whole = mw.NamedSharding(LINE, mw.PartitionSpec())
    part = mw.jit(fun, in_shardings=(whole,) * len(args), out_shardings=whole).lower(*args).partition()
    try:
        report = part.compile(mw.target("h100:8"), progress=lambda seconds, held: None)
    except MissingExtraError as error:
        pytest.skip(str(error))
    assert report.predicted.memory.live_bytes == pytest.approx(report.peak_bytes, rel=1e-3)
