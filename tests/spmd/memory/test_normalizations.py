"""Kernels of GPUs that hold rows, transposes and joined sums there; figures are those of programs compiled for H100."""

import json

import numpy as np
import pytest
from benchmarks import targets
from benchmarks.fields import LOTS

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import nn
from meshwright.api.targets import memory_on
from meshwright.spmd.memory.compilers import CUDA
from meshwright.spmd.memory.kernels import kernels_of
from meshwright.spmd.memory.priority import fuse_by_bytes
from meshwright.spmd.memory.record import record
from meshwright.spmd.memory.siblings import written_together

MESH = mw.AbstractMesh((2,), ("x",))


def array(*shape, dtype=np.float32):
    return mw.ShapeDtypeStruct(shape, dtype)


def fused(fun, *args):
    """All kernels, in post-order."""
    graph = record(mw.jit(fun).trace(*args).jaxpr, MESH, CUDA)
    by_node = kernels_of(graph)
    return fuse_by_bytes(list(by_node.values()), {by_node[r] for r in graph.results}, CUDA)


def kernels(fun, *args):
    """The kernels that compute, without those of numbers."""
    return [k for k in fused(fun, *args) if k.root.op not in ("parameter", "constant") and k.root.shape and not k.view]


def scaled(x):
    return x * mnp.reciprocal(mnp.sqrt(mnp.mean(mnp.square(x), -1, keepdims=True) + 1e-6))


def test_a_row_is_read_once_for_its_sum_and_its_place():
    assert len(kernels(scaled, array(512, 2048))) == 1


def test_two_sums_of_a_row_are_one_kernel_too():
    assert len(kernels(lambda x: nn.softmax(x, axis=-1), array(512, 2048))) == 1


@pytest.mark.parametrize("x", [array(512, 32768), array(512, 2048, dtype=np.complex64)], ids=["long", "complex"])
def test_rows_that_do_not_fit_are_read_twice(x):
    assert len(kernels(scaled, x)) > 1


def test_sums_of_columns_are_no_rows():
    assert len(kernels(lambda x: x - x.max(0), array(512, 2048))) == 2


def test_a_sum_that_others_read_is_written():
    def both(x):
        total = mnp.mean(mnp.square(x), -1, keepdims=True)
        return x * total, total

    assert len(kernels(both, array(512, 2048))) > 1


def test_rows_take_in_what_is_computed_element_by_element():
    assert len(kernels(lambda x, y, z: mnp.tanh(scaled(x * y) + z), *[array(512, 2048)] * 3)) == 1


def groups(fun, *args):
    """How many kernels run as one, for each group of them."""
    return [len(group) for group in written_together(fused(fun, *args))]


def test_kernels_of_equally_many_elements_run_as_one_unless_one_transposes_by_tiles():
    def both(order):
        return lambda x: (mnp.tanh(x), mnp.transpose(x, order) * 2)

    assert groups(both((1, 0, 2)), array(64, 4, 128)) == [2]
    assert groups(both((0, 2, 1)), array(64, 4, 128)) == [2]  # in no tiles, as rows of 4 are too short
    assert groups(both((0, 2, 1)), array(64, 64, 128)) == []


def test_what_is_read_in_another_order_is_computed_before():
    """A sum of many arrays is not computed where neighbours are not read together, unless in tiles."""

    def turned(*xs):
        total = sum(xs[1:], xs[0])
        return mnp.transpose(total, (2, 0, 1)) * 2, mnp.transpose(total, (2, 1, 0)) * 3

    assert len(kernels(turned, *[array(1024, 4, 1024)] * 4)) == 3
    assert len(kernels(lambda *xs: mnp.transpose(sum(xs[1:], xs[0])), *[array(1024, 1024)] * 4)) == 1


@pytest.mark.parametrize("where", ["h100:8", "h200:2x8"])
def test_a_layer_with_attention_as_compiled(where):
    """The gradient of logits is written in 32 bits, then rounded for two products, in the order of each."""
    peak = json.loads(targets.KEPT.read_text())[f"llama {where}"]["peak"]
    part = targets.subject("llama", mw.target(where).size).part
    assert memory_on(part, mw.target(where)).live_bytes == pytest.approx(peak, rel=0.06)


def test_what_is_reduced_together_is_joined_and_cut_apart():
    """As compiled: the results are cut from the sum of the joined gradients while that is still there."""
    lot = next(lot for lot, _ in LOTS if "simclr" in lot)
    part = lot.lowered("simclr", {8: "h100:8"})[0].partition()
    assert memory_on(part, mw.target("h100:8")).live_bytes == pytest.approx(46_399_784, rel=0.01)
