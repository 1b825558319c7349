"""What loops carry, what is computed where it is read, which collectives are one, and when memory is freed."""

from dataclasses import replace

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.spmd.memory import compilers
from meshwright.spmd.memory.combine import combine
from meshwright.spmd.memory.kernels import kernels_of
from meshwright.spmd.memory.predict import predict
from meshwright.spmd.memory.priority import fuse_by_bytes
from meshwright.spmd.memory.record import record
from meshwright.spmd.memory.repeats import carry_once
from meshwright.spmd.memory.schedule import kernel_post_order

MESH = mw.AbstractMesh((2,), ("x",))
MIB = 2**20
#: without the workspace of products, which would be larger than what is counted here
CUDA = replace(compilers.CUDA, workspace=0)


def array(*shape, dtype=np.float32):
    return mw.ShapeDtypeStruct(shape, dtype)


def jaxpr_of(fun, *args):
    return mw.jit(fun).trace(*args).jaxpr


def memory(fun, *args):
    return predict(jaxpr_of(fun, *args), MESH, compiler=CUDA)


def kernels(fun, *args):
    """The kernels that are left when those that may be are fused."""
    graph = record(jaxpr_of(fun, *args), MESH, CUDA)
    by_node = kernels_of(graph)
    return fuse_by_bytes(list(by_node.values()), {by_node[r] for r in graph.results}, CUDA)


def test_what_a_body_computes_of_a_value_that_is_carried_twice_is_computed_once():
    def f(x, y):
        def step(carry):
            i, a, b, y = carry
            return i + 1, a, b, mnp.sin(a @ y) + mnp.sin(b @ y)

        return lax.while_loop(lambda carry: carry[0] < 3, step, (0, x, x, y))[3]

    graph = record(jaxpr_of(f, array(256, 256), array(256, 256)), MESH, CUDA)
    (loop,) = [node for node in graph.post_order() if node.op == "while"]
    assert sum(node.op == "matmul" for node in loop.regions[1].post_order()) == 2
    carry_once(graph)
    assert sum(node.op == "matmul" for node in loop.regions[1].post_order()) == 1


def test_bodies_of_loops_have_their_own_arrays_of_constants():
    """One of 1 MiB in the body, and one of as much after the loop."""
    table = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32)

    def f(x):
        return lax.fori_loop(0, 3, lambda i, x: mnp.sin(x) * table, x) + table

    constant, whole = (memory(g, array(512, 512)).temp_bytes for g in (lambda x: x + table, f))
    assert constant == pytest.approx(MIB, rel=0.001)
    assert 2 * MIB <= whole < 2.01 * MIB


def test_gradients_of_weights_read_activations_of_several_dimensions_as_they_are():
    """Their rows are merged, and the matrix is read transposed."""

    def f(x, y):
        return mnp.einsum("bsi,bso->io", x, y)

    assert memory(f, array(4, 256, 512), array(4, 256, 128)).temp_bytes == 0


def test_a_transposed_product_is_the_product_of_exchanged_matrices():
    def f(x, y):
        return mnp.swapaxes(x @ y, 1, 2)

    assert memory(f, array(1, 512, 256), array(1, 256, 512)).temp_bytes == 0
    assert memory(f, array(2, 512, 256), array(2, 256, 512)).temp_bytes == 0


def test_scatters_have_a_block_for_each_part_of_their_updates():
    """Many updates of a small array are computed as they are added, also by two scatters."""

    def f(bins, rows, a, b):
        at = (rows[:, None] * 2 + mnp.minimum(bins, 7)) % 64
        return mnp.zeros(64).at[at].add(a[:, None]), mnp.zeros(64).at[at].add(b[:, None])

    given = array(4096, 16, dtype=np.int32), array(4096, dtype=np.int32), array(4096), array(4096)
    assert memory(f, *given).temp_bytes < 8192


def test_overlapping_windows_read_what_is_written_before():
    """Padded rows are joined before windows of 5 sum them up."""

    def f(x, y):
        joined = mnp.concatenate([y[:, :2], mnp.sin(x), y[:, 2:]], axis=1)
        return lax.reduce_window(joined, 0.0, lax.add, (1, 5, 1), (1, 1, 1), "VALID")

    assert [k.root.op for k in kernels(f, array(8, 32, 256), array(8, 4, 256)) if k.loop and k.root.shape] == [
        "concatenate"
    ]


def test_an_update_does_not_compute_the_array_that_it_writes_over():
    """If that is not computed element by element: it joins two arrays."""

    def f(x, y, i):
        joined = mnp.concatenate([x, y]) * 2
        return lax.dynamic_update_slice(joined, joined[:1] + 1, (i,))

    left = kernels(f, array(2**16), array(2**16), array(dtype=np.int32))
    assert sum("concatenate" in {node.op for node in k.members} for k in left if k.root.op != "slice") >= 1
    (update,) = [k for k in left if k.root.op == "dynamic_update_slice"]
    assert "concatenate" not in {node.op for node in update.members}


def test_tpus_combine_sums_as_late_as_they_can_be():
    """As compiled: those at the same distance from the end of two chains of sums, and one that waits for nothing."""
    mesh, v5e = mw.AbstractMesh((8,), ("d",)), compilers.compiler_for("tpu", "v5e")

    def f(x, y, z):
        for _ in range(3):
            x, y = (lax.psum(mnp.sin(a), "d") for a in (x, y))
        return x, y, lax.psum(z, "d")

    spec = mw.PartitionSpec("d")
    split = mw.shard_map(f, mesh=mesh, in_specs=(spec,) * 3, out_specs=(mw.PartitionSpec(),) * 3)
    part = mw.jit(split).lower(array(64), array(128), array(256)).partition()
    graph = record(part.jaxpr, mesh, v5e)
    by_node = kernels_of(graph)
    results = [by_node[r] for r in graph.results]
    combine(results, [], v5e)
    sums = [k for k in kernel_post_order(results) if k.root.op == "all_reduce"]
    assert [len(k.root.avals) for k in sums] == [2, 2, 3]


@pytest.mark.parametrize(("shift", "permutes"), [(1, 1), (-1, 2)])
def test_permutes_of_the_same_pairs_are_combined(shift, permutes):
    mesh = mw.AbstractMesh((8,), ("d",))

    def f(x, y):
        def pairs(by):
            return [(i, (i + by) % 8) for i in range(8)]

        return lax.ppermute(x, "d", pairs(1)), lax.ppermute(y, "d", pairs(shift))

    spec = mw.PartitionSpec("d")
    split = mw.shard_map(f, mesh=mesh, in_specs=(spec, spec), out_specs=(spec, spec))
    part = mw.jit(split).lower(array(64, 128), array(64, 256)).partition()
    graph = record(part.jaxpr, mesh, CUDA)
    by_node = kernels_of(graph)
    results = [by_node[r] for r in graph.results]
    combine(results, [], CUDA)
    ops = {k for result in results for k in (result, *result.inputs) if k.root.op == "collective_permute"}
    assert len(ops) == permutes


def test_what_frees_memory_runs_early():
    """The product that reads the first matrix runs before others of its size are made, of which there are two."""

    def f(x, y, w):
        first = x @ x.T
        return mnp.sin(mnp.cos(first) @ w) @ w @ x, first @ y

    assert 2 * MIB <= memory(f, array(512, 32), array(512, 32), array(512, 512)).temp_bytes < 2.2 * MIB


def test_the_peak_of_live_values_is_known_beside_what_is_allocated():
    """XLA reports it without the gaps between them: it is what is listed, to the byte."""

    def f(x, *weights):
        kept = []
        for w in weights:
            x = mnp.sort(x @ w, axis=0)
            kept.append(x)
        return sum((k @ k.T).sum() for k in kept[::-1])

    given = [array(512, 256), array(256, 700), array(700, 300), array(300, 500)]
    live, packed = (
        predict(jaxpr_of(f, *given), MESH, compiler=replace(CUDA, counts_live=counted)) for counted in (True, False)
    )
    assert sum(b.nbytes for b in live.buffers) == live.live_bytes < packed.peak_bytes
    assert live.peak_bytes == packed.peak_bytes == packed.live_bytes


@pytest.mark.parametrize(
    "fun",
    [
        lambda x, w: lax.optimization_barrier(mnp.sin(x)) @ w,
        lambda x, w: lax.while_loop(lambda y: y[0, 0] < 5, mnp.sin, mnp.cos(x)) @ w,
        lambda x, w: lax.fori_loop(0, 3, lambda i, y: lax.while_loop(lambda z: z[0, 0] < 5, mnp.sin, y) @ w, x),
    ],
    ids=["barrier", "loop", "loop-in-a-loop"],
)
def test_operations_of_one_value_are_read_by_products(fun):
    """TPUs round what products read: that of a barrier of one value, or of a loop that carries one, is no tuple's."""
    x, w = array(512, 512), array(512, 512)
    assert 2 * MIB <= predict(jaxpr_of(fun, x, w), MESH, compiler=compilers.TPU).peak_bytes <= 6 * MIB
