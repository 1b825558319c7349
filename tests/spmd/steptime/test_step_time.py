"""How long per-device programs take: what overlaps, what waits, loops, links, and what is said of it."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P
from meshwright.hardware import CHIPS, Chip, Machine
from meshwright.ir.state import extend_axis_env
from meshwright.ops.collective.tiles import AllGather, AllSlice
from meshwright.spmd.reshard.plan import plan_reshard, reshard_cost
from meshwright.spmd.steptime.schedule import step_time
from meshwright.spmd.steptime.traffic import traffic

N = 8
#: an operation and a byte on the wire take a second each, memory and starting take nothing
PLAIN = Chip("plain", {"float32": 1.0}, 1.0, 1e9, 1e9, 1.0, 0.0, 1.0, 0.0, node=N)
MESH = mw.AbstractMesh((N,), ("d",), machine=Machine(PLAIN, (N,)))


def of(*shape, dtype=np.float32):
    return mw.ShapeDtypeStruct(shape, dtype)


def test_collectives_overlap_with_what_does_not_wait_for_them():
    x = np.zeros((2, 3), np.float32)
    gather = AllGather(("d",), (N,), 0)

    def apart(x, w):
        return gather.bind(x), w @ w

    def in_turn(x, w):
        return gather.bind(x), gather.bind(w @ w)

    with extend_axis_env({"d": N}):
        one, two = (mw.make_jaxpr(f)(x, np.zeros((3, 3), np.float32)).jaxpr for f in (apart, in_turn))
    sent, product = 24 * (N - 1), 2 * 27
    assert step_time(one, MESH).seconds == pytest.approx(max(sent, product))
    assert step_time(two, MESH).seconds == pytest.approx(max(sent, product) + 36 * (N - 1))
    assert step_time(two, MESH).links == pytest.approx(sent + 36 * (N - 1))


def test_loops_take_their_trips():
    def f(x, w):
        return lax.fori_loop(0, 5, lambda i, x: x @ w, x)

    jaxpr = mw.make_jaxpr(f)(np.zeros((2, 3), np.float32), np.zeros((3, 3), np.float32)).jaxpr
    assert step_time(jaxpr, MESH).seconds == pytest.approx(5 * (2 * 18 + 1), rel=0.05)


def test_what_is_fused_is_not_written():
    def f(x, w):
        y = x @ w  # reads 2 matrices, writes 1
        z = mnp.tanh(y) * 2.0 + y  # one kernel: reads 1, writes 1
        return z.reshape(-1), z.sum(0)  # reads it again

    matrix = 4 * 64 * 64
    jaxpr = mw.make_jaxpr(f)(np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float32)).jaxpr
    assert sum(traffic(jaxpr)) == pytest.approx(6 * matrix, rel=0.05)

    def update(x, row, i):
        return lax.dynamic_update_slice(x, row, (i, 0))

    jaxpr = mw.make_jaxpr(update)(np.zeros((64, 64), np.float32), np.zeros((1, 64), np.float32), 3).jaxpr
    assert sum(traffic(jaxpr)) == pytest.approx(2 * 4 * 64, abs=20)  # and the start


def test_slices_of_slices_read_what_is_left():
    def picked(x, y):
        return (x + 1)[:8].reshape(4, 2, 64).T[:4] * 2, y[2:][3:5][:1]

    jaxpr = mw.make_jaxpr(picked)(*np.zeros((2, 64, 64), np.float32)).jaxpr
    summed, (kept, row) = 4 * 64 * 64, (v.aval.nbytes for v in jaxpr.outvars)
    assert sum(traffic(jaxpr)) == summed + 2 * row + kept


def test_a_device_reads_its_own_tile_where_it_is():
    tile = AllSlice(("d",), (N,), 0)

    def picked(x, w):
        return tile.bind(mnp.tanh(x)) * 2.0, tile.bind(x) @ w

    with extend_axis_env({"d": N}):
        jaxpr = mw.make_jaxpr(picked)(np.zeros((64, 64), np.float32), np.zeros((64, 8), np.float32)).jaxpr
    # One kernel reads x and writes 8 rows; the product reads 8 rows and w, and writes its result.
    assert sum(traffic(jaxpr)) == 4 * (64 * 64 + 8 * 64) + 4 * (8 * 64 + 64 * 8 + 8 * 8)


def test_what_is_joined_and_counted_is_read_as_it_is_made():
    def joined(x, y):
        rows = lax.broadcasted_iota(np.int32, (64, 64), 0)
        return mnp.where(rows < 5, mnp.concatenate([x[3:], mnp.pad(-y[:2], ((0, 1), (0, 0)))]), 0)

    jaxpr = mw.make_jaxpr(joined)(*np.zeros((2, 64, 64), np.float32)).jaxpr
    assert sum(traffic(jaxpr)) == (61 + 2 + 64) * 4 * 64


@pytest.mark.parametrize("rows,sweeps", [(2, 1), (1000, 10), (1025, 11)])
def test_sorts_merge_their_rows_in_sweeps(rows, sweeps):
    jaxpr = mw.make_jaxpr(lambda x: lax.sort((x, -x), dimension=0))(np.zeros((rows, 3), np.int32)).jaxpr
    sort = next(moved for eqn, moved in zip(jaxpr.eqns, traffic(jaxpr)) if eqn.op.name == "sort")
    assert sort == sweeps * 4 * rows * 3 * 4


# --- of a partitioned program -------------------------------------------------------------------------------
def layer(machine, sizes=(4, 2), batch=32768, width=2048):
    """Forward and backward of a data and tensor parallel block of two products."""
    mesh = mw.AbstractMesh(sizes, ("data", "model"), machine=machine)

    def loss(p, x):
        return (mnp.square(mnp.maximum(x @ p["up"], 0) @ p["down"])).mean()

    where = {"up": NamedSharding(mesh, P(None, "model")), "down": NamedSharding(mesh, P("model"))}
    params = {"up": of(width, 4 * width), "down": of(4 * width, width)}
    step = mw.jit(mw.grad(loss), in_shardings=(where, NamedSharding(mesh, P("data"))), out_shardings=where)
    return step.lower(params, of(batch, width)).partition()


@pytest.fixture(scope="module")
def part():
    return layer("v5e:2x4")


def test_what_a_step_is_made_of(part):
    time = part.time()
    assert time.compute == pytest.approx(part.work.device / 197e12, rel=0.02)
    sent = sum(
        part.mesh.collective_seconds(c.kind, c.axes, c.operand.nbytes, c.result.nbytes) * c.count
        for c in part.collectives
    )
    assert time.communication == pytest.approx(sent) and sent > 0
    assert max(time.compute, time.memory, time.exposed) <= time.seconds
    assert time.seconds <= time.compute + time.memory + time.communication
    assert sum(time.bound_by.values()) == pytest.approx(time.seconds)
    assert sum(p.waited for p in time.critical) == pytest.approx(time.seconds)
    assert part.time() is time


def test_a_time_is_text_and_table(part):
    time = part.time()
    text = str(time)
    assert text.startswith(f"{1e3 * time.seconds:.3g} ms a run on v5e:2x4: arithmetic ")
    assert "critical path: arithmetic" in text and "dot_general at " in text and "all_reduce at " in text
    assert "peak rates of Google Cloud TPU" in text
    rows = time.table()
    assert rows[0]["seconds"] == max(row["seconds"] for row in rows)
    assert set(rows[0]) == {"op", "source", "seconds", "waited", "count", "binds"}
    assert {row["binds"] for row in rows if row["op"] == "all_reduce"} == {"links"}
    assert pickle.loads(pickle.dumps(time)) == time


def test_a_time_says_what_it_guesses(part):
    # float32 of a TPU, how long a link takes to start: no data sheet says so.
    assert {"link_latency", "products[float32]"} <= set(part.time().guessed)
    assert "rests on guessed figures of v5e: link_latency" in str(part.time())
    known = Chip(
        "known", {"float32": 1e14}, 1e14, 1e10, 1e12, 1e11, 1e-6, 1e10, 1e-5, node=N, source="the laboratory's bench"
    )
    time = layer(Machine(known, (N,))).time()
    assert not time.guessed and "guess" not in str(time) and "the laboratory's bench" in str(time)


def test_without_a_machine_it_is_said_what_is_assumed():
    time = layer(None).time()
    assert not time.is_given and "no machine was named: 100 TFLOP/s" in str(time)
    assert "an accelerator of no particular make" in time.headline


def test_the_network_between_nodes_is_slower_than_links_inside():
    inside, across = layer("h100:8", (4, 2)).time(), layer("h100:2x4", (4, 2)).time()
    assert across.communication > 1.5 * inside.communication
    assert "network" in {p.binds for p in across.parts} - {p.binds for p in inside.parts}
    assert across.compute == inside.compute


def test_more_of_what_binds_makes_it_quicker(part):
    chip = CHIPS["v5e"]
    assert layer("v6e:2x4").time().seconds < part.time().seconds
    assert part.time().bound_by["arithmetic"] > 0.5 * part.time().seconds
    small = layer("v5e:2x4", batch=8, width=512).time()
    assert small.bound_by.get("arithmetic", 0.0) < 0.2 * small.seconds
    assert small.compute < small.seconds and chip.name == "v5e"


def test_loops_count_as_often_as_they_run():
    mesh = mw.AbstractMesh((8,), ("d",), machine="v5e:2x4")

    def f(n):
        def run(x, w):
            return lax.scan(lambda x, _: (mnp.tanh(x @ w), None), x, None, length=n)[0]

        split = NamedSharding(mesh, P(None, "d"))
        whole = NamedSharding(mesh, P())
        return mw.jit(run, in_shardings=(split, whole), out_shardings=split).lower(of(256, 512), of(512, 512))

    one, ten = f(1).partition().time(), f(10).partition().time()
    assert ten.compute == pytest.approx(10 * one.compute, rel=0.01)
    (product,) = (p for p in ten.parts if p.op == "dot_general")
    assert product.count == 10
    assert 5 * one.seconds < ten.seconds <= 10 * one.seconds * 1.01


# --- plans for a machine ------------------------------------------------------------------------------------
def test_reshards_are_priced_by_the_links_they_take():
    """The same bytes cost nine times as much between nodes (50 GB/s) as inside of one (450 GB/s)."""
    near = mw.AbstractMesh((2, 8), ("node", "gpu"), machine="h100:2x8")
    shape, item = (1024, 1024), 4
    src, dst = (NamedSharding(near, s).layout(2) for s in (P(("node", "gpu")), P("gpu", "node")))
    plan = plan_reshard(shape, item, src, dst, near)
    assert plan.price >= plan.bytes_sent
    item *= 4096  # so that bytes decide
    both = NamedSharding(near, P("node", "gpu")).layout(2)
    costs = [reshard_cost(shape, item, both, both.with_dim(dim, ()), near) for dim in range(2)]
    sent = [(1 << 34) // 16, (1 << 34) * 7 // 16]
    assert costs[0] == pytest.approx(9 * sent[0], rel=0.05) and costs[1] == pytest.approx(sent[1], rel=0.05)
