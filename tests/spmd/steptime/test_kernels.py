"""On GPUs: kernels that start one after the other, rows that stay on the chip, and what an H200 took."""

from dataclasses import replace
from functools import reduce

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax, nn, random
from meshwright.hardware import CHIPS
from meshwright.ops.sort.network import bitonic
from meshwright.spmd.steptime.kernels import ROW, moved_by_kernels
from meshwright.spmd.steptime.traffic import traffic

H200 = CHIPS["h200"]


def time_on(machine, f, *shapes):
    mesh = mw.AbstractMesh((1,), ("x",), machine=mw.hardware.machine(machine, devices=1))
    return mw.jit(f).lower(*(mw.ShapeDtypeStruct(s, np.float32) for s in shapes)).partition(mesh).time()


def bytes_and_kernels(f, *shapes):
    jaxpr = mw.make_jaxpr(f)(*(mw.ShapeDtypeStruct(s, np.float32) for s in shapes)).jaxpr
    moved = moved_by_kernels(jaxpr)
    return sum(each.nbytes for each in moved), sum(each.kernels.starts for each in moved), sum(traffic(jaxpr))


def applied(f, times):
    return lambda x: reduce(lambda y, _: f(y), range(times), x)


N, SMALL, LARGE = (2048, 2048), (512, 512), (1 << 18, 1024)
#: milliseconds (docs/targets.md)
MEASURED = {
    "softmax": (nn.softmax, [(1 << 18, 1024)], 0.526),
    "standardize": (lambda x: nn.standardize(x, -1), [(1 << 18, 1024)], 0.526),
    "running sums": (lambda x: mnp.cumsum(x, 1), [(1 << 18, 1024)], 1.65),
    "sort": (mnp.sort, [(16384, 1024)], 0.821),
    "Cholesky": (mnp.linalg.cholesky, [N], 0.68),
    "LU": (lambda a: lax.linalg.lu(a)[0], [N], 4.62),
    "QR": (mnp.linalg.qr, [N], 10.7),
    "eigenvalues": (lambda a: mnp.linalg.eigh(a)[0], [SMALL], 4.66),
    "singular values": (lambda a: mnp.linalg.svd(a, compute_uv=False), [SMALL], 18.4),
    "loop": (lambda x: lax.fori_loop(0, 1000, lambda i, x: x * 0.5 + 1, x), [(8,)], 8.04),
    "an exponential": (lambda x: lax.exp(x) * 0.1 - 0.1, [LARGE], 0.536),
    "16 exponentials": (applied(lambda x: lax.exp(x) * 0.1 - 0.1, 16), [LARGE], 1.54),
    "16 hyperbolic tangents": (lambda x: applied(lax.tanh, 16)(x.astype("bfloat16")).sum(), [LARGE], 3.03),
    "GELU": (lambda x: nn.gelu(x, approximate=False), [LARGE], 0.809),
    "random words": (lambda: random.bits(random.key(1), LARGE), [], 0.803),
    "uniform numbers": (lambda: random.uniform(random.key(1), LARGE), [], 0.837),
    "normal numbers": (lambda: random.normal(random.key(1), LARGE), [], 1.39),
}


@pytest.mark.parametrize("name", MEASURED)
def test_within_a_factor_of_two_of_what_was_measured(name):
    f, shapes, milliseconds = MEASURED[name]
    assert 0.5 < 1e3 * time_on("h200", f, *shapes).seconds / milliseconds < 2


def test_arithmetic_goes_on_while_memory_is_read():
    """Of a fused kernel the longer counts, not the sum over its equations."""
    short, long = (time_on("h200", applied(lax.exp, n), LARGE) for n in (2, 32))
    memory = 2 * 4 * LARGE[0] * LARGE[1] / H200.memory_bandwidth
    assert short.seconds == pytest.approx(memory, rel=0.01) and short.bound_by["memory"] == short.seconds
    assert long.seconds == pytest.approx(32 * 18 * LARGE[0] * LARGE[1] / H200.vector, rel=0.01)


def test_kernels_that_start_bind_small_loops():
    f, shapes, _ = MEASURED["loop"]
    time = time_on("h200", f, *shapes)
    assert time.seconds == pytest.approx(1000 * 2 * H200.launch, rel=0.01)
    assert time.bound_by["starts"] == pytest.approx(time.seconds) == sum(p.waited for p in time.critical)
    assert {(p.op, p.count, p.binds) for p in time.critical} >= {("add", 1000, "starts"), ("scan", 1000, "starts")}
    assert "kernels that start 8.04 ms" in time.headline and "launch" in time.guessed
    for without in ("v5e", replace(H200, launch=0.0)):  # compiled whole, or not known
        assert time_on(without, f, *shapes).seconds < 1e-4 * time.seconds


def test_rows_stay_on_the_chip():
    row = ROW
    one, whole = 4 * 64 * row, (64, row)
    assert bytes_and_kernels(nn.softmax, whole) == (2 * one, 1, pytest.approx(4 * one, rel=0.01))
    assert bytes_and_kernels(lambda x: nn.softmax(x) @ x.T, whole)[:2] == (4 * one + 4 * 64 * 64, 2)
    longer, columns = (32, 2 * row), lambda x: nn.softmax(x, axis=0)
    assert bytes_and_kernels(nn.softmax, longer)[0] == pytest.approx(4 * one, rel=0.01)
    assert bytes_and_kernels(columns, whole)[0] == pytest.approx(4 * one, rel=0.02)
    both = bytes_and_kernels(lambda x: (e := mnp.exp(x), e / e.sum(-1, keepdims=True)), whole)  # a result is written
    assert both[:2] == (4 * one, 1)
    assert bytes_and_kernels(lambda x: x.sum(-1), whole)[1] == 1


def test_fused_equations_are_one_kernel():
    def adam(p, m, g):
        m = 0.9 * m + 0.1 * g
        return p - 1e-3 * m / (mnp.sqrt(m) + 1e-8), m

    assert bytes_and_kernels(adam, *[(64, 64)] * 3)[1] == 1
    assert bytes_and_kernels(lambda x: mnp.tanh(x @ x).reshape(-1), (64, 64))[1] == 2


#: what XLA (jaxlib 0.10.2) compiles of a sort for an H200
@pytest.mark.parametrize("rows, kernels, steps", [(1, 1, 1), (1024, 1, 55), (4096, 1, 78), (1 << 20, 45, 174)])
def test_kernels_of_a_sort(rows, kernels, steps):
    assert bitonic(rows) == (kernels, steps)


@pytest.mark.parametrize("f", [mnp.linalg.cholesky, mnp.linalg.eigh, lambda a: lax.linalg.lu(a)])
def test_batches_of_small_matrices_start_no_more(f):
    single, small, large = (time_on("h200", f, s).starting for s in [(24, 24), (64, 24, 24), (3, 700, 700)])
    assert small == pytest.approx(single, rel=0.5) and large < 4.1e-6 * 3 * 1500
