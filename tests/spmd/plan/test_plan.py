"""Shardings chosen by search: ``mw.plan`` and ``AUTO``."""

from __future__ import annotations

import time

import numpy as np
import pytest

import meshwright as mw
from meshwright import NamedSharding, nn
from meshwright import PartitionSpec as P
from meshwright.errors import ArgumentError, ArgumentTypeError, MemoryLimitError, MeshError
from meshwright.ir.passes import run_passes
from meshwright.spmd.driver import PREPARE
from meshwright.spmd.plan.dimensions import kinds


def of(*shape, dtype=np.float32):
    return mw.ShapeDtypeStruct(shape, dtype)


def loss(params, x):
    for p in params:
        x = x + nn.relu(x @ p["up"] + p["bias"]) @ p["down"]
    return (x * x).mean()


def step(params, x):
    value, grads = mw.value_and_grad(loss)(params, x)
    return value, mw.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def mlp(width, hidden, layers, batch):
    layer = {"up": of(width, hidden), "bias": of(hidden), "down": of(hidden, width)}
    return [layer] * layers, of(batch, width)


def axes_of(sharding, dim):
    entry = (*sharding.spec, *[None] * 8)[dim]
    return entry if isinstance(entry, tuple) else () if entry is None else (entry,)


@pytest.fixture(scope="module")
def large_batch():
    start = time.perf_counter()
    plan = mw.plan(step, *mlp(1024, 4096, 2, 65536), machine="v5e:2x4")
    return plan, time.perf_counter() - start


def test_a_large_batch_is_data_parallel(large_batch):
    plan, seconds = large_batch
    params, x = plan.in_shardings
    assert axes_of(x, 0) == ("data",) and axes_of(x, 1) == ()
    part = plan.partition()
    # Nothing but parameters and their gradients is sent.
    assert part.bytes_sent < 1.1 * 3 * sum(4 * 1024 * 4096 * 2 for _ in params)
    assert part.work.redundancy == pytest.approx(1, rel=0.02)
    assert seconds < 30


def test_what_was_planned_is_what_jit_takes(large_batch):
    plan, _ = large_batch
    params, x = mlp(1024, 4096, 2, 65536)
    jitted = mw.jit(step, in_shardings=plan.in_shardings, out_shardings=plan.out_shardings)
    part = jitted.lower(params, x).partition()
    assert part.bytes_sent == plan.partition().bytes_sent
    assert part.time().seconds == plan.time().seconds
    assert plan.mesh.size == 8 and plan.mesh.machine.name == "v5e:2x4"
    # New parameters lie as the old ones did: the step can be repeated.
    assert mw.tree.leaves(plan.out_shardings[1]) == mw.tree.leaves(plan.in_shardings[0])


def test_a_plan_is_printed_with_what_it_costs(large_batch):
    text = str(large_batch[0])
    assert text.startswith("plan of step on mesh data=8: ") and "a run on v5e:2x4" in text
    assert "x f32[65536,1024]: P('data', None)" in text
    assert "designs tried in" in text and "another: " in text and "rests on guessed figures" in text
    assert repr(large_batch[0]).startswith("Plan('step', AbstractMesh('data': 8")


def test_memory_forces_parameters_apart():
    """Whole parameters on each device are quickest for a batch that large, if they fit."""
    args = mlp(512, 2048, 2, 4096)
    whole = mw.jit(step).lower(*args).partition(num_devices=1).peak_bytes
    small = mw.plan(step, *args, machine="v5e:2x2", memory_limit=whole // 3)
    assert small.peak_bytes <= whole // 3
    params, _ = small.in_shardings
    assert all(any(axes_of(p[name], d) for d in (0, 1)) for p in params for name in ("up", "down"))
    with pytest.raises(MemoryLimitError, match=r"a device needs .* MiB more than the 1.0 MiB allowed. Largest"):
        mw.plan(step, *args, machine="v5e:2x2", memory_limit=2**20)


def test_a_small_batch_splits_the_features():
    """Weights are the larger part: they stay where they are, and activations are sent."""
    plan = mw.plan(lambda params, x: loss(params, x), *mlp(2048, 8192, 2, 8), machine="v5e:2x4")
    (first, _), _ = plan.in_shardings
    assert axes_of(first["up"], 1) == axes_of(first["down"], 0) == ("data",)
    assert plan.partition().bytes_sent < 4 * 2048 * 8192 // 8


def test_what_the_user_said_stays():
    mesh = mw.AbstractMesh((4, 2), ("a", "b"), machine="v5e:2x4")
    params, x = mlp(256, 1024, 1, 1024)
    said = ([{"up": NamedSharding(mesh, P("b")), "bias": None, "down": mw.AUTO}], None)
    plan = mw.plan(step, params, x, mesh=mesh, in_shardings=said)
    assert plan.in_shardings[0][0]["up"].layout(2) == said[0][0]["up"].layout(2)
    assert plan.mesh is mesh


def test_auto_is_a_sharding_of_jit():
    mesh = mw.make_mesh((8,), ("x",), machine="v5e:2x4")
    rng = np.random.default_rng(0)
    params = [{"up": rng.normal(size=(32, 64)), "bias": rng.normal(size=64), "down": rng.normal(size=(64, 32))}]
    params = mw.tree.map(lambda p: p.astype(np.float32) / 8, params)
    x = rng.normal(size=(64, 32)).astype(np.float32)
    with mesh:
        jitted = mw.jit(loss, in_shardings=mw.AUTO)
        found = jitted(params, x)
        inside = mw.jit(lambda p, x: 2 * jitted(p, x))(params, x)
        one = mw.jit(loss, in_shardings=(mw.AUTO, P("x"))).lower(params, x).partition()
    expected = mw.jit(loss)(params, x)
    assert abs(found - expected) < 1e-5 * expected and abs(inside - 2 * expected) < 1e-4 * expected
    assert one.in_shardings[-1].spec == P("x")
    assert repr(mw.AUTO) == "AUTO"
    with pytest.raises(MeshError, match="in_shardings=AUTO needs a mesh"):
        mw.jit(loss, in_shardings=mw.AUTO)(params, x)


def test_a_mesh_keeps_its_types_on_a_machine():
    mesh = mw.make_mesh((2, 2), ("a", "b"), axis_types=(mw.sharding.AxisType.Explicit,) * 2)
    for given in (mesh, mesh.abstract_mesh):
        planned = mw.plan(lambda x: x * 2, np.ones((4, 4), np.float32), mesh=given, machine="v5e:2x2").mesh
        assert planned.axis_types == mesh.axis_types and planned.machine.name == "v5e:2x2"


def test_kinds_of_dimensions():
    traced = mw.jit(step).trace(*mlp(8, 32, 3, 4))
    found = kinds(run_passes(traced.jaxpr, PREPARE).jaxpr)
    sizes = {size: len(kind.places) for kind in found for size in {place.size for place in kind.places}}
    # the batch; the width; the hidden features of all three layers, as one kind
    assert {size: sizes[size] for size in (4, 32)} == {4: 1, 32: 9} and sorted(sizes) == [4, 8, 32]


def test_features_of_several_sizes_are_split_together():
    """Those of two layers, beside a vocabulary that no axis divides."""

    def f(p, x):
        for up, down in p["layers"]:
            x = x + nn.relu(x @ up) @ down
        return nn.log_softmax(x @ p["head"])

    layers = [(of(512, n), of(n, 512)) for n in (4096, 6144)]
    plan = mw.plan(f, {"layers": layers, "head": of(512, 5003)}, of(3, 512), machine="v5e:2x4")
    params = plan.in_shardings[0]
    for up, down in params["layers"]:
        assert axes_of(up, 1) == axes_of(down, 0) and plan.mesh.sizes(axes_of(up, 1)) >= 4
        for weight in (up, down):
            assert plan.mesh.sizes((*axes_of(weight, 0), *axes_of(weight, 1))) == 8
    plan.partition().verify()


def test_bad_requests():
    params, x = mlp(8, 16, 1, 4)
    with pytest.raises(MeshError, match="neither a machine nor a mesh is known"):
        mw.plan(step, params, x)
    with pytest.raises(ArgumentError, match=r"no chip 'v9' is known(\.|; did you mean .*\?) There are"):
        mw.plan(step, params, x, machine="v9:4")
    for limit in (0, "much", [1], float("nan"), True):
        with pytest.raises(ArgumentError, match="memory_limit must be positive"):
            mw.plan(step, params, x, machine="v5e:2x2", memory_limit=limit)
    for seconds in ("long", -1, float("nan")):
        with pytest.raises(ArgumentError, match="seconds must be a number"):
            mw.plan(step, params, x, machine="v5e:2x2", seconds=seconds)
    with pytest.raises(MeshError, match=r"mesh must be a Mesh.*'v5e:2x2'"):
        mw.plan(step, params, x, mesh="v5e:2x2")
    with pytest.raises(ArgumentTypeError, match="plan: expected a function"):
        mw.plan(None, x, machine="v5e:2x2")
    with pytest.raises(ArgumentError, match="jitted already"):
        mw.plan(mw.jit(step), params, x, machine="v5e:2x2", donate_argnums=0)
    with pytest.raises(MeshError, match="v5e:4x4 has 16 devices"):
        mw.plan(step, params, x, machine="v5e:4x4", mesh=mw.AbstractMesh((4,), ("x",)))


@pytest.mark.parametrize("count", [3, 6])
def test_dimensions_that_no_mesh_divides_are_split_unevenly(count):
    plan = mw.plan(step, *mlp(256, 1024, 1, 4096), mesh=mw.AbstractMesh((count,), ("x",)))
    part = plan.partition()
    assert part.work.redundancy < 1.1
    assert part.peak_bytes < whole_peak(4096) / 2
    part.verify()


def test_an_odd_vocabulary_is_split():
    """Of an embedding and a head alone: nothing else is as large."""

    def logits(table, rows):
        return nn.log_softmax(rows @ table.T).sum()

    plan = mw.plan(mw.grad(logits), of(50_257, 64), of(32, 64), mesh=mw.AbstractMesh((8,), ("x",)))
    assert axes_of(plan.in_shardings[0], 0) == ("x",)
    assert plan.partition().bytes_sent < 4 * 32 * 64 * 8


def test_designs_are_compared_with_lookahead():
    """Halo exchanges of a stencil are only found by it: with gathers, one device would be quicker."""

    def waves(speed):
        def one(c, _):
            before, now = c
            p = mw.numpy.pad(now, 1)
            around = p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * now
            return (now, 2 * now - before + speed * around), None

        start = mw.numpy.ones_like(speed)
        return mw.lax.scan(one, (start, start), length=8)[0]

    plan = mw.plan(waves, of(512, 384), mesh=mw.AbstractMesh((8,), ("x",)))
    part = plan.partition()
    assert part.work.redundancy < 1.05
    assert part.bytes_sent <= 8 * 2 * 4 * 512


def test_dimensions_that_only_results_have_are_split():
    """Samples are made from a key."""

    def samples(key, mean):
        drawn = mw.random.normal(key, (4096, 64)) + mean
        return mw.numpy.tanh(drawn @ mw.numpy.ones((64, 64))), drawn.mean()

    plan = mw.plan(samples, mw.random.key(0), of(64), mesh=mw.AbstractMesh((8,), ("x",)))
    assert axes_of(plan.out_shardings[0], 0) == ("x",) and "dimension 0 of result 0" in str(plan)
    assert plan.partition().work.redundancy < 1.02


def whole_peak(batch):
    return mw.jit(step).lower(*mlp(256, 1024, 1, batch)).partition(mw.AbstractMesh((1,), ("x",))).peak_bytes
