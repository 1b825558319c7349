"""The order of kernels on GPUs, and which of them run as one; what is said of compiled programs is of eight H100s."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import P, lax, nn
from meshwright.api.targets import memory_on
from meshwright.spmd.memory.compilers import CUDA
from meshwright.spmd.memory.kernels import kernels_of
from meshwright.spmd.memory.priority import saved
from meshwright.spmd.memory.record import record

MESH = mw.AbstractMesh((8,), ("d",))
MIB = 2**20


def array(*shape):
    return mw.ShapeDtypeStruct(shape, np.float32)


def memory(fun, specs, out, *args):
    shardings = [mw.NamedSharding(MESH, spec) for spec in specs]
    lowered = mw.jit(fun, in_shardings=tuple(shardings), out_shardings=mw.NamedSharding(MESH, out)).lower(*args)
    return memory_on(lowered.partition(), mw.target("h100:8"))


def test_kernels_that_only_write_results_run_last():
    """Temporaries take 101 MiB: two gathered arrays wait until all are gathered. One after the other they took 80."""

    def f(a, b, c):
        return mnp.sin(a).T, mnp.sin(b).T, mnp.sin(c).T, (mnp.cos(a) @ mnp.cos(a).T).max()

    found = memory(f, (P("d"),) * 3, P(), array(8192, 1024), array(8192, 1280), array(8192, 1536))
    assert found.temp_bytes / MIB == pytest.approx(101, rel=0.1)


def test_kernels_that_read_the_same_array_run_as_one():
    """They read both products and write two arrays: 64 MiB of temporaries."""

    def loss(w, x):
        return (nn.silu(x @ w[0]) @ w[1]).sum()

    weights = [array(512, 2048), array(2048, 512)]
    found = memory(mw.grad(loss), (P(), P("d")), P(), weights, array(16384, 512))
    assert found.temp_bytes / MIB == pytest.approx(64, rel=0.01)


def test_products_are_added_to_matrices_in_their_place():
    """A loop adds products to the result, in its place. Temporaries take 6 MiB, of which cuBLAS's workspace is 4."""

    def f(xs):
        return lax.scan(lambda sums, x: (sums + x.T @ x, None), mnp.zeros((2048, 2048), np.float32), xs)[0]

    found = memory(f, (P(None, "d"),), P(), array(16, 2048, 2048))
    assert found.temp_bytes / MIB == pytest.approx(6, rel=0.01)


@pytest.mark.parametrize(("axis", "microseconds"), [(0, 4.70), (1, 10.40)])
def test_few_blocks_compute_sums_of_columns(axis, microseconds):
    """A block sums up 64 columns: of 4096 that is half a chip. So less is gained if they compute an exponential first.

    The gains are those that XLA's fusion reports.
    """

    def f(x, y):
        e = mnp.exp(x)
        return e.sum(axis), e * y

    graph = record(mw.jit(f).trace(array(1024, 4096), array(1024, 4096)).jaxpr, MESH, CUDA)
    kernels = {k.root.op: k for k in kernels_of(graph).values()}
    producer = kernels["exponential"]
    assert saved(producer, set(), CUDA) / 3.35e6 == pytest.approx(microseconds, abs=0.05)
