"""Kernels that XLA makes one of on TPUs and GPUs, since they read one array; figures are those of a compiled v5e."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.spmd.memory.compilers import CUDA, compiler_for
from meshwright.spmd.memory.kernels import kernels_of
from meshwright.spmd.memory.predict import predict
from meshwright.spmd.memory.priority import fuse_by_bytes
from meshwright.spmd.memory.record import record
from meshwright.spmd.memory.schedule import kernel_post_order
from meshwright.spmd.memory.siblings import run_together, written_together

MESH = mw.AbstractMesh((2,), ("x",))
V5E = compiler_for("tpu", "v5e")


def array(*shape, dtype=np.float32):
    return mw.ShapeDtypeStruct(shape, dtype)


def groups(fun, *args, compiler=V5E):
    """How many kernels run as one, for each group of them, and the number of all kernels."""
    graph = record(mw.jit(fun).trace(*args).jaxpr, MESH, compiler)
    by_node = kernels_of(graph)
    results = {by_node[r] for r in graph.results}
    fuse_by_bytes(list(by_node.values()), results, compiler)
    kernels = kernel_post_order([by_node[r] for r in graph.results])
    if not compiler.into_products:
        return [len(group) for group in written_together(kernels)], len(kernels)
    left, found = run_together(kernels, results)
    return [len(group) for group in found], len([k for k in left if k.root.op not in ("parameter", "constant")])


def test_all_that_reads_an_array_runs_as_one():
    def distances(x, *ys):
        return [((x - y) ** 2).sum(1) for y in ys]

    for compiler in (V5E, CUDA):
        assert groups(distances, *[array(512, 1024)] * 5, compiler=compiler)[0] == [4]


def test_what_moves_elements_as_it_computes_runs_as_one():
    def sides(x):
        return [mnp.pad(x, 1), mnp.pad(x, 1, constant_values=1)]

    for compiler in (V5E, CUDA):
        assert groups(sides, array(512, 1024), compiler=compiler)[0] == [2]


def test_sums_over_different_dimensions_run_as_one_on_tpus():
    def sums(x, a, b):
        return (x * a).sum(0), (x * b).sum(1)

    args = array(512, 1024), array(512, 1024), array(512, 1024)
    assert groups(sums, *args)[0] == [2]
    assert groups(sums, *args, compiler=CUDA)[0] == []


def test_what_one_loop_computes_and_reads_in_its_place_is_not_written():
    """Two values that are costly to compute, and three products of them."""

    def products(a, b):
        x, y = mnp.tanh(a), mnp.tanh(b)
        return x * x, x * y, y * y

    assert groups(products, array(512, 1024), array(512, 1024)) == ([3], 3)


def test_what_waits_for_one_of_a_loop_is_not_in_it():
    """The function is computed with the difference; the quotient needs a sum over the function."""

    def normalized(x, y):
        z = mnp.tanh(x)
        return z, z / (z * y).sum(1, keepdims=True), z - y

    assert groups(normalized, array(512, 1024), array(512, 1024)) == ([2], 4)


def test_what_follows_a_product_runs_with_it():
    def followed(x, a, b):
        return mnp.tanh(x * (x @ a)), mnp.tanh(x * (x @ b))

    assert groups(followed, array(512, 512), array(512, 512), array(512, 512))[0] == []


def test_loops_read_an_array_once_for_several_sums():
    """As compiled, within 1 %: the array stays in main memory. Read twice, it would be copied for the second time."""

    def fock(e, d):
        def step(d, _):
            return mnp.einsum("ijkl,kl->ij", e, d) - 0.5 * mnp.einsum("ikjl,kl->ij", e, d), None

        return lax.scan(step, d, None, length=5)[0]

    memory = predict(mw.jit(fock).trace(array(32, 32, 32, 32), array(32, 32)).jaxpr, MESH, compiler=V5E)
    assert memory.live_bytes == pytest.approx(16_861_184, rel=0.01)
