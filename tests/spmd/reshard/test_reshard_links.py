"""Where links differ, copies on fast links carry parts over slow ones."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from reshard_simulator import all_layouts, check_plan

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding
from meshwright import PartitionSpec as P
from meshwright.hardware.machine import machine
from meshwright.sharding import AbstractMesh, Layout
from meshwright.spmd.reshard.plan import plan_reshard, reshard_cost
from meshwright.spmd.reshard.steps import AllGather, AllReduce, Exchange, ReduceScatter, Slice

NODES = AbstractMesh((2, 8), ("node", "gpu"), machine="h100:2x8")
SLICES = AbstractMesh((2, 4, 4), ("slice", "x", "y"), machine=machine("v5e:4x4", slices=2))
GPU = NODES.atoms_of("gpu")
LARGE = 1 << 16  # bytes of an element: bytes decide, not latency
SIZE = (64, 64)


def steps(src, dst, mesh=NODES, itemsize=LARGE, size=SIZE):
    return [step for step, _ in plan_reshard(size, itemsize, src, dst, mesh).steps]


def far_bytes(plan, src, size, mesh, far):
    """The bytes that a device sends over the network."""
    layouts = [src, *(layout for _, layout in plan.steps)]
    return sum(
        step.bytes_sent(size, LARGE, before, mesh) for (step, _), before in zip(plan.steps, layouts) if far in step.axes
    )


WHOLE = Layout(((), ()))
SUM = WHOLE.with_partial(("node",), "sum")
HIERARCHICAL = {
    "gather": (Layout((("node",), ())), WHOLE, [Slice(GPU, 1), AllGather(("node",), 0), AllGather(GPU, 1)], 1 / 2),
    "all-reduce": (SUM, WHOLE, [Slice(GPU, 0), AllReduce(("node",), "sum"), AllGather(GPU, 0)], 1),
    "reduce-scatter": (
        SUM, Layout((("node",), ())), [Slice(GPU, 1), ReduceScatter(("node",), 0, "sum"), AllGather(GPU, 1)], 1 / 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HIERARCHICAL)
def test_an_eighth_goes_over_the_network(name):
    """Eight devices of a node hold copies: each sends an eighth to the other node, and the node puts it together."""
    src, dst, expected, sent = HIERARCHICAL[name]
    plan = plan_reshard(SIZE, LARGE, src, dst, NODES)
    assert [step for step, _ in plan.steps] == expected
    assert far_bytes(plan, src, SIZE, NODES, "node") == sent * math.prod(SIZE) * LARGE / 8
    one = NODES.wire_price("all_gather", ("node",), math.prod(SIZE) * LARGE / 2, math.prod(SIZE) * LARGE)
    assert plan.price < one * sent * 0.7
    assert reshard_cost(SIZE, LARGE, src, dst, NODES) == plan.price


@pytest.mark.parametrize("name", HIERARCHICAL)
def test_one_collective_where_parts_would_not_help(name):
    src, dst, expected, _ = HIERARCHICAL[name]
    assert steps(src, dst, itemsize=4) == expected[1:-1]  # a start costs more
    for mesh in (AbstractMesh((2, 8), ("node", "gpu")), AbstractMesh((2, 4), ("node", "gpu"), machine="h100:8")):
        assert steps(src, dst, mesh) == expected[1:-1]


def test_a_collective_over_fast_and_slow_links_stays_whole():
    """Such a one goes by levels inside."""
    both = ("node", *GPU)
    assert steps(WHOLE.with_partial(both, "sum"), WHOLE) == [AllReduce(both, "sum")]
    assert steps(Layout((both, ())), WHOLE) == [AllGather(both, 0)]


def test_copies_on_slow_links_are_no_help():
    src, dst = Layout((GPU, ())), WHOLE
    assert steps(src, dst) == [AllGather(GPU, 0)]


def test_exchanges_that_rename_devices_of_other_nodes_are_priced_as_that():
    before, after = (("node", *GPU), ()), (GPU, ("node",))
    exchange = Exchange(GPU[-1:], before, after, 2)
    assert exchange.wires(NODES) == ("node", *GPU)
    plan = plan_reshard(SIZE, LARGE, Layout(before), Layout(after), NODES)
    assert plan.price >= math.prod(SIZE) * LARGE / 16 / 2 * 9  # half of the devices have nothing of what they need


@pytest.mark.parametrize("mesh", [NODES, SLICES], ids=str)
def test_plans_by_parts_are_right(mesh):
    layouts = all_layouts(mesh, 2, whole_axes=True)
    far = mesh.axis_names[0]
    sums = [layout.with_partial((far,), "sum") for layout in layouts if far not in layout.axes_used]
    every = [*itertools.product(layouts, layouts), *itertools.product(sums, layouts)]
    found = 0
    for number, (src, dst) in enumerate(random.Random(0).sample(every, 25)):
        for size in ((64, 32), (61, 32))[: 1 + (number % 5 == 0)]:
            plan = plan_reshard(size, LARGE, src, dst, mesh)
            check_plan(plan, size, src, dst, mesh)
            ends = [type(step) for step, _ in plan.steps[:1] + plan.steps[-1:]]
            found += ends == [Slice, AllGather]
    assert found >= 2


def test_programs_send_parts_between_nodes():
    mesh = AbstractMesh((2, 4), ("node", "gpu"), machine="h100:2x4")
    rows, whole = NamedSharding(mesh, P("node")), NamedSharding(mesh, P())

    def f(x, w):
        return mnp.sin(x), x.T @ w

    n = 1024
    large = [mw.ShapeDtypeStruct((n, n), np.float32)] * 2
    part = mw.jit(f, in_shardings=(rows, rows), out_shardings=(whole, whole)).lower(*large).partition(mesh)
    kinds = [(c.kind, c.axes) for c in part.collectives]
    assert sorted(kinds) == sorted([
        ("all_gather", ("node",)), ("all_gather", ("gpu",)), ("all_reduce", ("node",)), ("all_gather", ("gpu",)),
    ])  # fmt: skip
    far = [c for c in part.collectives if c.axes == ("node",)]
    assert sum(c.bytes_sent for c in far) == n * n * 4 / 4 * (1 / 2 + 1)
    part.verify()


def test_scalars_have_a_price():
    src, dst = Layout((), ("node",), "sum"), Layout(())
    assert steps(src, dst, size=()) == [AllReduce(("node",), "sum")]
    assert reshard_cost((), LARGE, src, dst, NODES) == plan_reshard((), LARGE, src, dst, NODES).price > 0
