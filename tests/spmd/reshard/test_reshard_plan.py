"""The reshard planner: every plan does what it says, sends little, and keeps to the memory of its ends."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from benchmarks.reshard import lower_bound
from reshard_simulator import all_layouts, check_plan

from meshwright.errors import ShardingError
from meshwright.sharding import AbstractMesh, Layout
from meshwright.spmd.reshard.plan import least_reshard_cost, plan_reshard, reshard_cost
from meshwright.spmd.reshard.steps import (
    AllGather,
    AllReduce,
    AllToAll,
    Exchange,
    Overlap,
    Permute,
    ReduceScatter,
    Slice,
    buffer_bytes,
)

M42 = AbstractMesh((4, 2), ("data", "model"))
M222 = AbstractMesh((2, 2, 2), ("x", "y", "z"))
M842 = AbstractMesh((8, 4, 2), ("a", "b", "c"))
M6 = AbstractMesh((6,), ("x",))
M23 = AbstractMesh((2, 3), ("x", "y"))
ITEMSIZE = 1 << 24  # large, so that bytes decide and not the number of collectives


def partial_layouts(mesh: AbstractMesh, ndim: int, reduction: str) -> list[Layout]:
    """Every layout, partial over each set of the axes that it leaves."""
    found = []
    for layout in all_layouts(mesh, ndim):
        left = [atom for atom in mesh.atoms if atom not in layout.axes_used]
        for number in range(len(left) + 1):
            for partial in itertools.combinations(left, number):
                found.append(layout.with_partial(partial, reduction))
    return found


def check(shape, src, dst, mesh, itemsize=ITEMSIZE):
    plan = plan_reshard(shape, itemsize, src, dst, mesh)
    check_plan(plan, shape, src, dst, mesh)
    cost = reshard_cost(shape, itemsize, src, dst, mesh)
    if any(isinstance(step, Overlap) for step, _ in plan.steps):  # priced by what they send at least
        assert plan.bytes_sent / 3 <= cost <= plan.bytes_sent * 3
    else:
        assert plan.bytes_sent / 4 <= cost <= plan.bytes_sent


def pairs(layouts, number, seed=0):
    every = list(itertools.product(layouts, layouts))
    return random.Random(seed).sample(every, min(number, len(every)))


@pytest.mark.parametrize("mesh", [M42, M23], ids=str)
def test_what_uneven_reshards_cost_is_known_without_planning_their_rounds(mesh):
    for shape in ((61, 45), (64, 45)):
        for src, dst in pairs(all_layouts(mesh, 2), 8):
            cost, plan = (f(shape, ITEMSIZE, src, dst, mesh) for f in (reshard_cost, plan_reshard))
            assert 0.85 * plan.bytes_sent <= cost <= 1.15 * plan.bytes_sent, (shape, src, dst)


@pytest.mark.parametrize("mesh", [M42, M222, M23, AbstractMesh((2, 8), ("node", "gpu"), machine="h100:2x8")], ids=str)
@pytest.mark.parametrize("reduction", ["sum", "masked", "max"])
def test_a_reshard_costs_at_least_its_bound(mesh, reduction):
    """And the bound says something of most reshards that send."""
    layouts, known, sending = partial_layouts(mesh, 2, reduction), 0, 0
    for src, dst in pairs(layouts, 150):
        for shape in ((48, 96), (16, 12), (5, 7)):
            least, cost = (f(shape, 4, src, dst, mesh) for f in (least_reshard_cost, reshard_cost))
            assert 0 <= least <= cost, (shape, src, dst)
            known, sending = known + (least > 0), sending + (cost > 0)
    assert known > sending / 3


# --- correctness --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mesh", [M42, M222, M6, M23], ids=str)
@pytest.mark.parametrize("shape", [(8, 24), (5, 12), (3, 7), (1, 9)], ids=str)
def test_plans_of_a_matrix_are_right(mesh, shape):
    for src, dst in pairs(all_layouts(mesh, 2), 40):
        check(shape, src, dst, mesh)


@pytest.mark.parametrize("shape", [(8,), (12,), (5,), (3,), (0,)], ids=str)
def test_plans_of_a_vector_are_right(shape):
    for mesh in (M42, M6):
        for src, dst in pairs(all_layouts(mesh, 1), 30):
            check(shape, src, dst, mesh)


def test_plans_of_three_dimensions_are_right():
    for src, dst in pairs(all_layouts(M42, 3), 20):
        check((8, 8, 8), src, dst, M42)
        check((3, 8, 5), src, dst, M42)


@pytest.mark.parametrize("reduction", ["sum", "max"])
def test_plans_with_partial_values_are_right(reduction):
    layouts = partial_layouts(M222, 2, reduction)
    for src, dst in pairs(layouts, 25):
        check((8, 8), src, dst, M222)
        check((5, 6), src, dst, M222)


def test_partial_values_of_two_kinds():
    sums, maxima = partial_layouts(M42, 1, "sum"), partial_layouts(M42, 1, "max")
    for src, dst in itertools.islice(itertools.product(sums, maxima), 0, None, 3):
        check((8,), src, dst, M42)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [M42, M222, M6, M23], ids=str)
@pytest.mark.parametrize("shape", [(8, 24), (5, 12), (3, 7), (1, 9)], ids=str)
def test_every_plan_of_a_matrix_is_right(mesh, shape):
    for src, dst in itertools.product(partial_layouts(mesh, 2, "sum"), repeat=2):
        check(shape, src, dst, mesh)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(8,), (12,), (5,), (3,), (0,)], ids=str)
def test_every_plan_of_a_vector_is_right(shape):
    for mesh in (M42, M6, M222, M23):
        for src, dst in itertools.product(partial_layouts(mesh, 1, "sum"), repeat=2):
            check(shape, src, dst, mesh)


# --- cost ---------------------------------------------------------------------------------------------------
def ratios(shape, chosen, mesh):
    """Bytes over the lower bound; free where it is zero; no buffer above the larger shard."""
    for src, dst in chosen:
        plan = plan_reshard(shape, 4, src, dst, mesh)
        limit = max(buffer_bytes(shape, 4, layout, mesh) for layout in (src, dst))
        assert all(buffer_bytes(shape, 4, layout, mesh) <= limit for _, layout in plan.steps), plan
        assert plan.peak_bytes <= 2 * limit
        bound = lower_bound(shape, 4, src, dst, mesh)
        assert plan.bytes_sent >= bound
        if bound:
            yield plan.bytes_sent / bound
        else:
            assert plan.bytes_sent == 0, plan


SWEEPS = {
    "2-D, whole axes of 4x2": ((64, 64), M42, lambda: itertools.product(all_layouts(M42, 2, True), repeat=2)),
    "3-D, whole axes of 4x2": ((32,) * 3, M42, lambda: itertools.product(all_layouts(M42, 3, True), repeat=2)),
    "2-D, parts of axes of 4x2": ((64, 64), M42, lambda: pairs(all_layouts(M42, 2), 200)),
    "3-D, parts of axes of 4x2": ((32,) * 3, M42, lambda: pairs(all_layouts(M42, 3), 100)),
    "2-D, 200 of 2x2x2": ((64, 64), M222, lambda: pairs(all_layouts(M222, 2), 200)),
}


UNEVEN = {
    "2-D, 4x2": ((61, 45), M42, 15, 1.02, 1.1, 1.0),
    "3-D, 4x2": ((31, 17, 29), M42, 8, 1.03, 1.15, 1.0),
    "2-D, 8x4x2": ((250, 131), M842, 4, 1.02, 1.1, 1.0),
}


@pytest.mark.parametrize("name", UNEVEN)
def test_uneven_tiles_are_close_to_the_lower_bound_too(name):
    shape, mesh, number, mean, most, larger = UNEVEN[name]
    every = pairs(all_layouts(mesh, len(shape), True), number)
    plans = [(src, dst, plan_reshard(shape, ITEMSIZE, src, dst, mesh)) for src, dst in every]
    bounds = [lower_bound(shape, ITEMSIZE, src, dst, mesh) for src, dst in every]
    found = [plan.bytes_sent / bound for (_, _, plan), bound in zip(plans, bounds) if bound]
    limits = [max(buffer_bytes(shape, ITEMSIZE, layout, mesh) for layout in pair) for pair in every]
    for src, dst, plan in plans[::4]:
        check_plan(plan, shape, src, dst, mesh)
    assert math.exp(sum(map(math.log, found)) / len(found)) <= mean
    assert max(found) <= most
    assert max(plan.largest_bytes / limit for (_, _, plan), limit in zip(plans, limits)) <= larger
    assert all(step.rounds <= 8 for _, _, plan in plans for step, _ in plan.steps if isinstance(step, Exchange))


def test_rows_are_cut_as_they_are_sent_and_columns_as_they_are_received():
    """Halves of 125 rows cut one of 32 old tiles, and columns of 66 one of 32 new ones."""
    rows, columns, halves = (M842.atoms_of(axis) for axis in "abc")
    src, dst = Layout((rows + columns, halves)), Layout((halves, rows + columns))
    plan = plan_reshard((250, 131), ITEMSIZE, src, dst, M842)
    assert plan.bytes_sent <= 1.03 * lower_bound((250, 131), ITEMSIZE, src, dst, M842)
    assert plan.largest_bytes <= max(buffer_bytes((250, 131), ITEMSIZE, layout, M842) for layout in (src, dst))
    check_plan(plan, (250, 131), src, dst, M842)


def test_small_arrays_take_few_collectives():
    for src, dst in pairs(all_layouts(M42, 2, True), 20):
        plan = plan_reshard((61, 45), 4, src, dst, M42)
        check_plan(plan, (61, 45), src, dst, M42)
        assert plan.collectives(M42) <= 4


def test_even_tiles_overlap_where_that_sends_least():
    # Each device gets a thirty-second of its tile from each of 32; two all-to-alls would send almost twice as much.
    y, x, z = (M842.atoms_of(axis) for axis in "bac")
    src, dst = Layout(((), y + z + x)), Layout((y + x, z))
    plan = plan_reshard((256, 128), ITEMSIZE, src, dst, M842)
    check_plan(plan, (256, 128), src, dst, M842)
    assert [type(step) for step, _ in plan.steps] == [Overlap]
    assert plan.bytes_sent == 256 * 128 // 64 * ITEMSIZE and plan.collectives(M842) == 32
    # a gather after an all-to-all sends the rest of what the all-to-all brought, of which devices had a part
    src, dst = Layout((("model", *M42.atoms_of("data")), ())), Layout(((), ("model",)))
    assert plan_reshard((64, 64), ITEMSIZE, src, dst, M42).bytes_sent == (64 * 32 - 8 * 32) * ITEMSIZE
    assert not any(isinstance(step, Overlap) for step, _ in plan_reshard((64, 64), 4, src, dst, M42).steps)


@pytest.mark.parametrize("name", SWEEPS)
def test_bytes_are_close_to_the_lower_bound(name):
    shape, mesh, chosen = SWEEPS[name]
    found = list(ratios(shape, chosen(), mesh))
    mean = math.exp(sum(map(math.log, found)) / len(found))
    print(f"{name}: {len(found)} pairs, geometric mean {mean:.4f}, maximum {max(found):.3f}")
    assert mean <= 1.02
    assert max(found) <= 1.25


# --- particular plans ---------------------------------------------------------------------------------------
D = M42.atoms_of("data")
D1, D2 = D


def steps(shape, src, dst, mesh=M42, itemsize=4):
    return [step for step, _ in plan_reshard(shape, itemsize, src, dst, mesh).steps]


def test_nothing_to_do():
    layout = Layout((D, ()))
    plan = plan_reshard((8, 8), 4, layout, layout, M42)
    assert plan.steps == () and plan.bytes_sent == 0 and plan.peak_bytes == 64


def test_one_collective_where_one_is_enough():
    shape = (64, 64)
    assert steps(shape, Layout((D, ())), Layout(((), ()))) == [AllGather(D, 0)]
    assert steps(shape, Layout(((), ())), Layout(((*D, "model"), ()))) == [Slice((*D, "model"), 0)]
    assert steps(shape, Layout((D, ("model",))), Layout(((), (("model", *D))))) == [AllToAll(D, 0, 1)]
    assert steps(shape, Layout(((), ()), D, "sum"), Layout(((), ()))) == [AllReduce(D, "sum")]
    assert steps(shape, Layout(((), ()), D, "sum"), Layout((D, ()))) == [ReduceScatter(D, 0, "sum")]
    (permute,) = steps(shape, Layout(((D1, "model"), ())), Layout((("model", D1), ())))
    assert isinstance(permute, Permute) and permute.axes == (D1, "model")
    assert permute.perm == ((0, 0), (1, 2), (2, 1), (3, 3))


def test_a_slice_before_an_all_reduce_makes_it_cheaper():
    src, dst = Layout(((), ()), ("model",), "sum"), Layout((D, ("model",)))
    assert steps((64, 64), src, dst) == [Slice(D, 0), ReduceScatter(("model",), 1, "sum")]


def test_bytes_and_memory_of_a_gather():
    plan = plan_reshard((64, 64), 4, Layout((D, ())), Layout(((), ())), M42)
    assert plan.bytes_sent == 64 * 64 * 4 * 3 // 4
    assert plan.peak_bytes == 64 * 64 * 4 * 5 // 4


def test_tiles_that_do_not_join_get_what_they_overlap():
    # 5 rows in 4 tiles of 2 and in 2 tiles of 3: two neighbours of the four make 4 rows, not 3, but parts of 3 do
    overlap, gather = steps((5,), Layout((D,)), Layout(((D1,),)), itemsize=ITEMSIZE)
    own, *rounds = overlap.plan(M42).rounds
    assert own.perm == () and all(len(dict(turn.perm)) == len(turn.perm) for turn in rounds)
    assert isinstance(gather, AllGather) and [turn.chunk for turn in rounds] == [(1,)]


def test_a_tile_that_many_will_hold_is_gathered_from_parts():
    # 10 rows in 8 tiles of 2 and in 2 tiles of 5, which no four tiles make: parts of the five rows do
    overlap, gather = steps((10, 64), Layout(((*D, "model"), ())), Layout(((D1,), ())), itemsize=ITEMSIZE)
    assert isinstance(overlap, Overlap) and any(overlap.after.inner) and isinstance(gather, AllGather)
    check((10, 64), Layout(((*D, "model"), ())), Layout(((D1,), ())), M42)


def test_parts_of_tiles_are_no_tiles_of_the_array():
    """Of 5 rows in 2 tiles of 3, halves begin at 0, 2, 3 and 5; 4 tiles of the array at 0, 2, 4 and 6."""
    overlap, gather = (plan := plan_reshard((5,), ITEMSIZE, Layout((D,)), Layout(((D2,),)), M42)).steps
    assert isinstance(overlap[0], Overlap) and overlap[1] == Layout(((D2, D1),)) and isinstance(gather[0], AllGather)
    assert plan.reached == (False, True)


def test_tiles_of_which_some_devices_hold_nothing_go_in_two_turns():
    src, dst = Layout(((), (*D, "model"), ())), Layout((D, (), ()))
    plan = plan_reshard((31, 17, 29), ITEMSIZE, src, dst, M42)
    check_plan(plan, (31, 17, 29), src, dst, M42)
    assert plan.bytes_sent <= 1.18 * lower_bound((31, 17, 29), ITEMSIZE, src, dst, M42)


def test_rounds_of_several_sizes_spare_a_larger_buffer():
    a, b, c = (M842.atoms_of(axis) for axis in "abc")
    src, dst = Layout((c, b + a)), Layout((c + a + b, ()))
    plan = plan_reshard((250, 131), ITEMSIZE, src, dst, M842)
    check_plan(plan, (250, 131), src, dst, M842)
    assert plan.largest_bytes == max(buffer_bytes((250, 131), ITEMSIZE, layout, M842) for layout in (src, dst))
    assert plan.bytes_sent <= 1.01 * lower_bound((250, 131), ITEMSIZE, src, dst, M842)


def test_a_dimension_is_padded_where_all_tiles_nest_then():
    # 61 rows in 2 tiles of 31 and 8 tiles of 8: one row more in the first of two, and four of the eight make one
    plan = plan_reshard((61, 48), ITEMSIZE, Layout((("model",), D)), Layout((("model", *D), ())), M42)
    assert [type(step) for step, _ in plan.steps] == [Overlap, AllToAll]
    assert plan.shapes == ((64, 48), (64, 48))
    assert plan.bytes_sent == ITEMSIZE * (12 + 3 * 8 * 12)


@pytest.mark.parametrize("rows", [9, 12])
def test_what_splits_a_whole_dimension_pads_it(rows):
    """For 8 tiles of 2 that are 4 of 4, no device holds all 16 rows: it cuts its own 4 from what it has."""
    shape, tile = (rows,), (D2, "model", D1)
    src, dst = Layout(((),), (D1,), "sum"), Layout((tile,))
    plan = plan_reshard(shape, ITEMSIZE, src, dst, M42)
    assert [step for step, _ in plan.steps] == [Slice((D2, "model"), 0), ReduceScatter((D1,), 0, "sum")]
    assert (plan.bytes_sent, plan.largest_bytes) == (2 * ITEMSIZE, rows * ITEMSIZE)
    assert reshard_cost(shape, ITEMSIZE, src, dst, M42) == plan.price
    check(shape, src, dst, M42)


def test_an_axis_that_is_partial_before_and_after_stays():
    src = Layout(((D1,), ()), (D2, "model"), "sum")
    dst = Layout(((), ()), ("model",), "sum")
    kinds = {axis for step in steps((64, 64), src, dst) for axis in step.axes}
    assert "model" not in kinds


def test_a_large_mesh_is_planned_in_blocks():
    mesh = AbstractMesh((512, 128), ("data", "model"))
    data, model = mesh.atoms_of("data"), mesh.atoms_of("model")
    shape = (65536, 65536)
    src, dst = Layout((data, model)), Layout((model, data))
    plan = plan_reshard(shape, 4, src, dst, mesh)
    shard = buffer_bytes(shape, 4, src, mesh)
    assert plan.bytes_sent <= 2 * shard
    assert steps(shape, Layout((data, ())), Layout(((), data)), mesh) == [AllToAll(data, 0, 1)]


def test_uneven_arrays_on_three_axes_are_planned_in_bounded_time():
    mesh = AbstractMesh((8, 4, 2), ("a", "b", "c"))
    for src, dst in pairs(all_layouts(mesh, 3, whole_axes=True), 8):
        check((5, 70, 9), src, dst, mesh)


def test_steps_read_well():
    text = str(plan_reshard((64, 64), 4, Layout((D, ())), Layout(((), ("model",))), M42))
    assert text.splitlines() == [
        "reshard: sends 6144 bytes, holds 10240 bytes",
        "  slice dim 1 by {model} -> [{data:(1)2, data:(2)2}, {model}]",
        "  all_gather {data:(1)2, data:(2)2} on dim 0 -> [{}, {model}]",
    ]


def test_layouts_that_do_not_fit_are_refused():
    with pytest.raises(ShardingError, match="2 dimensions, the array has 1"):
        plan_reshard((8,), 4, Layout(((), ())), Layout(((),)), M42)
    with pytest.raises(ShardingError, match="not an axis of the mesh"):
        plan_reshard((8,), 4, Layout((("z",),)), Layout(((),)), M42)
