"""In which orders arrays lie on GPUs: transposes move nothing where an array can be written or read in another order.

The figures are of programs as XLA compiled them for an H100.
"""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax, nn
from meshwright.errors import MissingExtraError
from meshwright.spmd.memory.compilers import compiler_for
from meshwright.spmd.memory.layout_constraints import regrouped
from meshwright.spmd.memory.layout_normalization import normalize
from meshwright.spmd.memory.record import record

H100 = compiler_for("cuda", "h100")
LINE = mw.AbstractMesh((8,), ("d",))


def array(*shape, dtype=np.float32):
    return mw.ShapeDtypeStruct(shape, dtype)


def exchanged(x, y):
    """Products that are written the other way round."""
    return mnp.swapaxes(x @ y, 1, 2)


def marched(p, q):
    """The gradient of a distance from points, whose dimension is first as it is computed, and last as it is mapped."""

    def distance(p):
        return -nn.logsumexp(-8 * (mnp.linalg.norm(p[None] - q[:, :3], axis=-1) - q[:, 3])) / 8

    return mw.vmap(mw.vmap(mw.grad(distance)))(p)


def chains(a, b):
    """Loops of which one stacks what the other reads: both carry it in the order that it has for the loops alone."""

    def likelihood(a, b):
        def step(c, row):
            return nn.logsumexp(c[:, None] + a, axis=0) + row, None

        return nn.logsumexp(lax.scan(step, b[0], b[1:])[0])

    return mw.grad(lambda a: mw.vmap(lambda b: likelihood(a, b))(b).sum())(a)


def masked(r, w, v, u):
    """A matrix that one product reads as it is, and one transposed: it is computed once."""
    return (r * w) @ v, (r.T * w.T) @ u


PROGRAMS = {
    "exchanged": (exchanged, (array(2, 512, 256), array(2, 256, 512))),
    "marched": (marched, (array(64, 128, 3), array(12, 4))),
    "chains": (chains, (array(32, 32), array(8, 64, 32))),
    "masked": (masked, (array(256, 384), array(256, 384), array(384, 16), array(256, 16))),
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


def check(graph):
    for node in graph.post_order():
        for region in node.regions:
            check(region)
        (x, *_) = node.operands or (node,)
        if node.op == "transpose":
            assert node.shape == tuple(x.shape[d] for d in node.attributes["permutation"])
        elif node.op == "reshape":
            assert node.avals[0].size == x.avals[0].size
        elif node.op == "broadcast_in_dim":
            dims = node.attributes["broadcast_dimensions"]
            assert list(dims) == sorted(dims) and x.shape == tuple(node.shape[d] for d in dims)
        elif node.op == "reduce" and len(node.avals) == 1:
            left = [n for d, n in enumerate(x.shape) if d not in node.attributes["dimensions"]]
            assert sorted(left) == sorted(node.shape)
        elif node.elementwise:
            assert {y.shape for y in node.operands} <= {node.shape, ()}


@pytest.mark.parametrize("name", PROGRAMS)
def test_operations_on_arrays_as_they_lie_have_shapes_that_fit(name):
    fun, args = PROGRAMS[name]
    graph = record(mw.jit(fun).trace(*args).jaxpr, LINE, H100)
    ends = [[x.avals for x in end] for end in (graph.parameters, graph.results)]
    graph = normalize(graph)
    check(graph)
    assert ends == [[x.avals for x in end] for end in (graph.parameters, graph.results)]


@pytest.mark.parametrize(
    ("before", "order", "after", "expected"),
    [
        ((8, 4, 16), (0, 1, 2), (32, 16), (0, 1)),
        ((8, 4, 16), (2, 0, 1), (32, 16), (1, 0)),
        ((8, 4, 16), (1, 0, 2), (32, 16), None),
        ((8, 16), (1, 0), (8, 1, 16), (2, 0, 1)),
        ((8, 1), (1, 0), (8,), None),
    ],
)
def test_orders_after_reshapes_are_those_in_which_elements_follow_each_other(before, order, after, expected):
    assert regrouped(before, order, after) == expected
