"""In which order values lie in a TPU's memory, by the plan, and as compiled for a v5e."""

import re

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P
from meshwright import lax
from meshwright.core.avals import ShapedArray
from meshwright.runtime.pjrt.plugins import compiler
from meshwright.spmd.memory.assignment import assign
from meshwright.spmd.memory.compilers import compiler_for
from meshwright.spmd.memory.graph import Node
from meshwright.spmd.memory.order_rules import (
    carried,
    compact,
    moves_nothing,
    ordered_bytes,
    reshaped,
    tiles_of,
    wanted,
)
from meshwright.spmd.memory.predict import predict
from meshwright.spmd.memory.record import record

MESH = mw.AbstractMesh((8,), ("d",))
V5E = compiler_for("tpu", "v5e")


def array(*shape, dtype=np.float32):
    return mw.ShapeDtypeStruct(shape, dtype)


def planned(fun, *args):
    return assign(record(mw.jit(fun).trace(*args).jaxpr, MESH, V5E))


def orders(plan, shape):
    """The orders of a plan's values of a shape."""
    return {plan.orders[node] for node in plan.graph.post_order() if node.avals and node.shape == shape}


# --- orders -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("shape", "order"),
    [((256, 120), (0, 1)), ((288, 10, 8, 16), (0, 3, 2, 1)), ((32, 288, 8), (1, 2, 0)), ((9, 100, 600), (2, 1, 0))],
)
def test_arguments_have_the_order_with_the_least_padding(shape, order):
    """As compiled; of several orders, the one that is most like that of rows."""
    assert compact(ShapedArray(shape, np.float32)) == order


def test_dimensions_of_size_one_are_padded_where_they_are_along_tiles():
    aval = ShapedArray((8, 1, 20000), np.float32)
    assert ordered_bytes(aval, (2, 1, 0)) == 8 * 20096 * 4
    assert ordered_bytes(aval, (2, 0, 1)) == 8 * 20096 * 4
    assert ordered_bytes(aval, (1, 2, 0)) == 8 * 20000 * 128 * 4


@pytest.mark.parametrize(
    ("before", "order", "after", "found"),
    [
        ((6, 10, 4), (2, 0, 1), (60, 4), None),  # rows are not next to each other
        ((6, 10, 4), (2, 1, 0), (60, 4), (1, 0)),
        ((60, 4), (0, 1), (6, 10, 4), (1, 0, 2)),
        ((60, 4), (0, 1), (1, 60, 4), (1, 2, 0)),
        ((6, 10), (1, 0), (4, 15), (1, 0)),
    ],
)
def test_reshapes_keep_elements_in_a_row(before, order, after, found):
    assert reshaped(before, order, after) == found


def test_reshapes_move_nothing_if_tiles_stay_tiles():
    assert moves_nothing((16, 256), (1, 0), (2, 8, 256), (2, 1, 0))
    assert not moves_nothing((18, 256), (1, 0), (2, 9, 256), (2, 1, 0))  # 9 rows are not whole tiles
    assert not moves_nothing((16, 256), (1, 0), (16, 2, 128), (2, 1, 0))  # lanes are split


# --- plans --------------------------------------------------------------------------------------------------
def test_a_plan_is_printed():
    text = str(planned(lambda x, y: mnp.sin(x) + mnp.cos(y).T, array(8, 640), array(640, 8)))
    assert text.splitlines() == [
        "%0 = parameter(): f32[8,640]{1,0}",
        "%1 = parameter(): f32[640,8]{0,1}",
        "%2 = sine(%0): f32[8,640]{1,0}",
        "%3 = cosine(%1): f32[640,8]{0,1}",
        "%4 = transpose(%3): f32[8,640]{1,0}",
        "%5 = add(%2, %4): f32[8,640]{1,0}",
        "return %5",
    ]


def test_transposes_are_views():
    plain, turned = (
        predict(mw.jit(fun).trace(array(1024, 300)).jaxpr, MESH, compiler=V5E).temp_bytes
        for fun in (lambda x: mnp.sin(x) + 1, lambda x: mnp.sin(x.T).T + 1)
    )
    assert plain == turned


def test_several_products_have_the_dimensions_of_matrices_along_tiles():
    """The argument, whose tiles are along the batch, is copied; what is computed of products is in their order."""
    plan = planned(lambda w, x: mnp.tanh(mnp.einsum("ijdk,bid->ijkb", w, x)), array(288, 10, 8, 16), array(32, 288, 8))
    assert orders(plan, (288, 10, 16, 32)) == {(3, 2, 1, 0)}
    assert any(copy.order[:2] in ((3, 2), (2, 3)) for copy in plan.copies)


def test_gathered_and_added_rows_are_copied_for_results():
    """Rows are along the lanes. What is computed of them is in the order of arguments and results."""
    rows, table, numbers = array(4096, 12), array(512, 12), array(4096, dtype=np.int32)
    taken = planned(lambda t, i, x: t[i] * x, table, numbers, rows)
    assert orders(taken, (4096, 12)) == {(1, 0), (0, 1)}
    added = planned(lambda t, i, x: t - mnp.zeros((512, 12), np.float32).at[i].add(x), table, numbers, rows)
    kinds = {node.op: added.orders[node] for node in added.graph.post_order() if node.shape == (512, 12)}
    assert kinds["scatter"] == (1, 0)
    assert kinds["parameter"] == kinds["subtract"] == (0, 1)


@pytest.mark.parametrize(
    ("rows", "times", "mebibytes"), [((4, 16), 1, 13.03), ((64,), 1, 4.03), ((4,), 1, 2.6), ((2,), 2, 16.16)]
)
def test_values_are_copied_where_rows_are_found_by_number(rows, times, mebibytes):
    """Within 1 % of what a v5e compiles: what is computed of arguments has their order, unless it is read so twice."""

    def added(x, numbers):
        return mnp.sin(mnp.zeros((1024, *rows), np.float32).at[numbers].add(mnp.cos(x))).sum(0)

    def gathered(x, numbers):
        y = mnp.cos(x)
        return mnp.sin(y[numbers]).sum(0) + mnp.tan(y[numbers + 1]).sum(0)

    x = array(4096, *rows) if times == 1 else array(16384, *rows)
    traced = mw.jit(added if times == 1 else gathered).trace(x, array(4096, dtype=np.int32))
    held = predict(traced.jaxpr, MESH, compiler=V5E).peak_bytes / 2**20
    assert held == pytest.approx(mebibytes, rel=0.01)


def sums(x, k):
    return mnp.zeros((512, *x.shape[1:]), np.float32).at[k].add(x)


@pytest.mark.parametrize(
    ("fun", "compiled"),
    [
        (lambda x, k, t: (x - t[k]) ** 2, 5292032),  # copied into the order of the argument
        (lambda x, k, t: ((x - t[k]) ** 2, t * 2), 13173248),  # and the result of several into that of results
        (lambda x, k, t: (mnp.sin(t[k]), x * 2), 9224704),
        (lambda x, k, t: (((x - t[k]) ** 2).sum(1), t * 2), 5095936),
        (lambda x, k, t: ((x - t[k]) ** 2, sums(x, k)), 13173760),
        (lambda x, k, t: (t - sums(x, k), t * 2), 4817920),
    ],
)
def test_one_of_several_results_has_the_order_of_its_rows(fun, compiled):
    """Results that follow from gathered rows: in programs of several, they are computed as the rows lie. The bytes are
    those of libtpu 0.0.42."""
    traced = mw.jit(fun).trace(array(8192, 8), array(8192, dtype=np.int32), array(512, 8))
    assert predict(traced.jaxpr, MESH, compiler=V5E).live_bytes == pytest.approx(compiled, rel=0.04)


def test_loops_stack_parts_in_whole_tiles():
    """The step is not along tiles, though this would pad less."""

    def walk(x):
        return lax.scan(lambda c, _: (mnp.sin(c), c), x, None, length=1280)[1]

    assert orders(planned(walk, array(20, 30)), (1280, 20, 30)) <= {(2, 1, 0), (1, 2, 0), (0, 2, 1)}
    body = next(iter(planned(walk, array(20, 30)).inside.values()))[-1]
    assert 0 not in next(order for node, order in body.orders.items() if node.shape == (1280, 20, 30))[:2]


def test_barriers_hold_back_only_what_is_used():
    """As compiled: the gradient of a linear step does not need what checkpoints keep, which take 3 MiB."""

    def steps(u):
        return (
            lax.scan(mw.checkpoint(lambda u, _: (u + 0.1 * mnp.roll(u, 1, 0), None)), u, None, length=20)[0] ** 2
        ).sum()

    assert predict(mw.jit(mw.grad(steps)).trace(array(100, 300)).jaxpr, MESH, compiler=V5E).temp_bytes < 2**20


def mixed(x, by):
    """A pixel shuffle: channels become ``by`` × ``by`` positions."""
    n, h, w, c = x.shape
    x = mnp.sin(x).reshape(n, h, w, by, by, c // by // by).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(n, by * h, by * w, c // by // by)


@pytest.mark.parametrize(
    ("fun", "shape", "compiled"),
    [
        (lambda x: mixed(x, 3), (2, 60, 60, 27), 39813120),  # read in an order whose lanes are 3 wide
        (lambda x: mixed(x, 4), (2, 128, 128, 48), 213909504),
        (lambda x: mixed(x, 2), (8, 64, 64, 32), 88080384),  # read in the order with the least padding, then copied
        (lambda x: mixed(x, 2), (8, 15, 15, 120), 9216000),
        (lambda x: mnp.sin(x).reshape(256, 3, 100), (768, 100), 1556480),  # rows are not next to each other
        (lambda x: mnp.sin(x).reshape(768, 100), (256, 3, 100), 1556480),
        (lambda x: mnp.sin(x).transpose(1, 0, 2).reshape(640, 20), (10, 64, 20), 962560),
        (lambda x: mnp.sin(x).reshape(12, 64, 300), (768, 300), 3047424),
    ],
)
def test_reshapes_read_what_follows_in_a_row(fun, shape, compiled):
    """Operands are copied into an order in which elements follow each other as in the result. To the byte as libtpu
    0.0.42 compiles it for a v5e."""
    traced = mw.jit(fun).trace(array(*shape))
    assert predict(traced.jaxpr, MESH, compiler=V5E).live_bytes == compiled


def test_orders_pass_reshapes_that_split_lanes_if_they_pad_little_more():
    """Not if another order has half the bytes; dimensions of size 1 do not count."""
    wide, apart = (ShapedArray(shape, np.float32) for shape in ((16, 32, 128), (16, 32, 8, 16)))
    split = Node("reshape", (Node("parameter", (), (wide,)),), (apart,))
    assert carried(split, 0, (2, 1, 0)) is None
    assert carried(split, 0, (1, 2, 0)) == (1, 3, 2, 0)
    narrow, longer = (ShapedArray(shape, np.float32) for shape in ((16, 32, 8), (16, 32, 8, 1)))
    unit = Node("reshape", (Node("parameter", (), (narrow,)),), (longer,))
    assert wanted(unit, 0, (3, 2, 1, 0)) == (2, 1, 0)


def test_outer_products_put_shared_dimensions_first():
    """Also an array whose dimensions are only exchanged for that."""

    def scaled(x, y):
        return mnp.sin(lax.dot_general(mnp.sin(x), y, (((), ()), ((2, 0), (1, 0)))))

    nodes = planned(scaled, array(128, 3, 256), array(128, 256)).graph.post_order()
    moved = [node for node in nodes if node.shape == (256, 128, 3) and node.operands[0].op == "sine"]
    assert [node.op for node in moved] == ["transpose"]


# --- as compiled --------------------------------------------------------------------------------------------
def attention(p, x):
    q, k, v = ((x @ w).reshape(-1, 72, 6, 24) for w in p)
    s = mnp.exp(mnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.2)
    return mnp.einsum("bhqk,bkhd->bqhd", s, v)


def shuffled(x):
    n, h, w, _ = x.shape
    x = mnp.sin(x).reshape(n, h, w, 3, 3, 3).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(n, 3 * h, 3 * w, 3) * 2


def looked_up(t, i):
    return mnp.cos(t[i]) + 1


COMPILED = {
    "several products": (attention, ([array(144, 144)] * 3, array(64, 72, 144)), (8, 6, 72, 72)),
    "split lanes": (shuffled, (array(16, 60, 60, 27),), (2, 60, 3, 60, 3, 3)),
    "rows": (looked_up, (array(3000, 10), array(8, 500, dtype=np.int32)), (3000, 10)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_orders_are_those_of_compiled_programs(name):
    """The tiles of values of one shape, in the plan and in the text of the compiled module."""
    try:
        compiler("tpu", "v5e:2x4")
    except mw.errors.MissingExtraError:
        pytest.skip("no compiler for TPUs")
    fun, args, shape = COMPILED[name]
    data = mw.NamedSharding(MESH, P("d"))
    whole = mw.NamedSharding(MESH, P())
    specs = tuple(whole if isinstance(x, list) or x.shape == (3000, 10) else data for x in args)
    part = mw.jit(fun, in_shardings=specs).lower(*args).partition()
    dims = ",".join(map(str, shape))
    text = part.compile(mw.target("v5e:2x4"), progress=lambda seconds, held: None).text
    found = {tuple(map(int, order.split(","))) for order in re.findall(rf"\w+\[{dims}\]{{([\d,]+)", text)}
    plan = assign(record(part.jaxpr, MESH, V5E))
    copied = {copy.order for copy in plan.copies if copy.node is not None and copy.node.operands[copy.i].shape == shape}
    ours = orders(plan, shape) | copied
    assert {tiles_of(shape, order) for order in ours} <= {tiles_of(shape, order) for order in found}


def test_the_largest_part_of_a_concatenation_decides_its_order():
    large, small, whole = (ShapedArray((20, n), np.float32) for n in (64, 1, 65))
    parts = tuple(Node("parameter", (), (aval,)) for aval in (large, small))
    joined = Node("concatenate", parts, (whole,), {"dimension": 1})
    assert carried(joined, 0, (1, 0)) == (1, 0)
    assert carried(joined, 1, (0, 1)) is None


@pytest.mark.parametrize("shape", [(0, 64), (8, 0), (0, 1)])
def test_arrays_without_elements(shape):
    """Reshapes of these, among others that are copied, had no order."""

    def empty(x):
        y = x.reshape(0, 2, 4).transpose(2, 0, 1)
        return y, x.reshape(4, 0, 3).sum(0), (x.T @ x).reshape(-1), y.reshape(0, 5) * 2, x @ x.T

    plan = planned(empty, array(*shape))
    assert all(sorted(order) == list(range(len(order))) for order in plan.orders.values())
    assert reshaped(shape, (1, 0), (2, 0, 4)) == (2, 1, 0)


def test_vectors_stay_along_the_lanes_in_bodies_of_loops():
    """As compiled, 2.3 MiB for two arrays of 0.2, whose dimension of 8 is padded to 128."""

    def shots(x, sources):
        def step(c, v):
            return mnp.sin(c) + mnp.pad(v[:, None, None], ((0, 0), (2, 45), (2, 45))), None

        return lax.scan(step, x, sources)[0]

    args = array(8, 48, 48), array(5, 8)
    memory = predict(mw.jit(shots).trace(*args).jaxpr, MESH, compiler=V5E)
    assert memory.temp_bytes == pytest.approx(2.25 * 2**20, rel=0.1)


def test_columns_are_padded_in_their_order():
    column = Node("parameter", (), (ShapedArray((64, 1), np.float32),))
    zero = Node("constant", (), (ShapedArray((), np.float32),), {"value": 0.0})
    padded = Node("pad", (column, zero), (ShapedArray((64, 300), np.float32),))
    assert carried(padded, 0, (0, 1)) == (0, 1)
    assert carried(padded, 1, ()) is None
