"""Which kernels XLA's cost model for GPUs makes; the figures are of programs as compiled for an H100."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.errors import MissingExtraError
from meshwright.spmd.memory.compilers import compiler_for
from meshwright.spmd.memory.predict import predict

H100 = compiler_for("cuda", "h100")
LINE = mw.AbstractMesh((8,), ("d",))
KIB = 1024


def array(*shape, dtype=np.float32):
    return mw.ShapeDtypeStruct(shape, dtype)


def repeated(steps):
    """Sums over 16 of rows of 2, of what is computed with a number in each step."""

    def f(x):
        for i in range(steps):
            x = mnp.maximum(x, 0.1 + i) if i % 2 else x * (1.5 + i)
        return x.sum(3)

    return f


def masked(x, *factors):
    """The same, with an array for each step."""
    for i, factor in enumerate(factors):
        x = mnp.maximum(x, factor[..., None]) if i % 2 else x * factor[..., None]
    return x.sum(3)


def functions(x, y):
    return (mnp.sin(x) * y).sum(3)


def pairs(x):
    """Forces between all pairs: a sum over two elements, from which others are computed."""
    apart = x[:, :, :, None] - x[:, :, None]
    squared = (apart * apart).sum(-1) + 1e-2
    return (mnp.where(squared < 1, 24 / squared, 0)[..., None] * apart).sum(3)


def accumulated(x):
    """Exponents of sums along rows of 64, and sums along these. A window of 16 would compute each 16 times."""
    return mnp.cumsum(mnp.exp(mnp.cumsum(x, 1)), 1)


def batched(x, i):
    """The gradient of elements by numbers: these are written beside those of the batch, for gather and scatter."""
    return mw.grad(lambda x: mnp.sin(mnp.take_along_axis(x, i, 1)).sum())(x)


def accumulated_across(x):
    """Sums along the first of two dimensions, which stays the first."""
    return mnp.cumsum(mnp.sin(mnp.exp(x)), 0)


def outer(a, b, c):
    return mnp.einsum("btk,bd->btkd", a, b) * c


WHOLE, HALF = array(8, 16, 16, 16, 2), array(8, 16, 16, 16)
#: programs, and the bytes of their temporaries as compiled
COMPILED = {
    "9 numbers": (repeated(9), (WHOLE,), 0),
    "10 numbers": (repeated(10), (WHOLE,), 256 * KIB),
    "9 arrays": (masked, (WHOLE, *[HALF] * 9), 0),
    "functions": (functions, (WHOLE, WHOLE), 256 * KIB),
    "pairs": (pairs, (array(8, 16, 16, 2),), 128 * KIB),
    "windows": (accumulated, (array(16384, 64),), 4352 * KIB),
    "columns": (accumulated_across, (array(64, 16384),), 4352 * KIB),
    "gathers": (batched, (array(8, 64, 128), array(8, 512, 128, dtype=np.int32)), 6144 * KIB),
    "outer products": (outer, (array(4, 128, 21), array(4, 128), array(4, 128, 21, 128)), 0),
}


@pytest.mark.parametrize("name", COMPILED)
def test_kernels_are_those_that_xla_makes(name):
    fun, args, temporaries = COMPILED[name]
    assert predict(mw.jit(fun).trace(*args).jaxpr, LINE, compiler=H100).temp_bytes == temporaries


@pytest.mark.parametrize("name", COMPILED)
def test_peaks_are_those_of_programs_compiled_for_an_h100(name):
    fun, args, _ = COMPILED[name]
    whole = mw.NamedSharding(LINE, mw.PartitionSpec())
    part = mw.jit(fun, in_shardings=(whole,) * len(args)).lower(*args).partition()
    try:
        report = part.compile(mw.target("h100:8"), progress=lambda seconds, held: None)
    except MissingExtraError as error:
        pytest.skip(str(error))
    assert report.predicted.memory.live_bytes == pytest.approx(report.peak_bytes, rel=1e-3)
