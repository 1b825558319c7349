"""Reshard steps carried out on NumPy arrays, one per device: the meaning of a plan, to compare the planner with.

What lies in the padding of an uneven tile is NaN from the start and whenever padding is made, so a step that
lets padding into the array is found out.
"""

from __future__ import annotations

import itertools
import math
import operator
from functools import reduce

import numpy as np

from meshwright.sharding import AbstractMesh, Layout, atom_coordinates, tile_numbers, tile_slices, tile_table
from meshwright.spmd.reshard import steps
from meshwright.spmd.reshard.exchange import exchange_recipe
from meshwright.spmd.reshard.overlap import Overlaps
from meshwright.spmd.reshard.plan import ReshardPlan

Locals = list[np.ndarray]
COMBINE = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}
IDENTITY = {"sum": 0.0, "max": -np.inf, "min": np.inf, "prod": 1.0}


def all_layouts(mesh: AbstractMesh, ndim: int, whole_axes: bool = False) -> list[Layout]:
    """Every layout of ``ndim`` dimensions, over atoms or over whole axes only."""
    names = mesh.axis_names if whole_axes else mesh.atoms
    found = []
    for number in range(len(names) + 1):
        for axes in itertools.permutations(names, number):
            for cuts in itertools.combinations_with_replacement(range(number + 1), ndim - 1):
                ends = (0, *cuts, number)
                runs = (axes[ends[dim] : ends[dim + 1]] for dim in range(ndim))
                found.append(Layout(tuple(mesh.expand(run) for run in runs)))
    return found


def groups(mesh: AbstractMesh, axes: tuple[str, ...]) -> np.ndarray:
    """Device positions, a row per group that differs on ``axes`` only, ordered along them."""
    others = tuple(atom for atom in mesh.atoms if atom not in axes)
    order = np.lexsort((tile_numbers(mesh, axes), tile_numbers(mesh, others)))
    return order.reshape(-1, mesh.sizes(axes))


def tile_of(array: np.ndarray, layout: Layout, mesh: AbstractMesh, device: int) -> np.ndarray:
    counts = [layout.num_tiles(dim, mesh) for dim in range(array.ndim)]
    return array[tile_slices(array.shape, counts, tile_table(layout, mesh)[device])]


def padded(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    out = np.full(shape, np.nan)
    out[tuple(map(slice, array.shape))] = array
    return out


def distribute(array: np.ndarray, layout: Layout, mesh: AbstractMesh) -> Locals:
    """The array on the devices; partial terms are random numbers that make up the value."""
    rng = np.random.default_rng(0)
    shape = layout.local_shape(array.shape, mesh)
    result: Locals = [np.empty(0)] * mesh.size
    for group in groups(mesh, layout.partial):
        whole = tile_of(array, layout, mesh, group[0])
        for device, term in zip(group, _terms(whole, len(group), layout.reduction, rng)):
            result[device] = padded(term, shape)
    return result


def _terms(whole: np.ndarray, number: int, reduction: str, rng: np.random.Generator) -> list[np.ndarray]:
    if number == 1:
        return [whole]
    if reduction == "sum":
        terms = [rng.integers(-9, 9, whole.shape).astype(float) for _ in range(number - 1)]
        return [*terms, whole - sum(terms)]
    offsets = rng.integers(1, 9, (number, *whole.shape)) * (-1 if reduction == "max" else 1)
    offsets[rng.integers(number)] = 0
    return [whole + offset for offset in offsets]


def collect(local: Locals, shape: tuple[int, ...], layout: Layout, mesh: AbstractMesh) -> list[np.ndarray]:
    """What every device's group holds together, without padding."""
    combine = COMBINE.get(layout.reduction, np.add)
    result: Locals = [np.empty(0)] * mesh.size
    for group in groups(mesh, layout.partial):
        whole = reduce(combine, [local[device] for device in group])
        for device in group:
            tile = tile_of(np.empty(shape), layout, mesh, device)
            result[device] = whole[tuple(map(slice, tile.shape))]
    return result


def check_plan(plan: ReshardPlan, shape: tuple[int, ...], src: Layout, dst: Layout, mesh: AbstractMesh) -> None:
    """Runs the plan on an array of numbers and compares every device's tile, also where one is reached on the way."""
    array = np.arange(1.0, 1 + math.prod(shape)).reshape(shape)
    local = distribute(array, src, mesh)
    layout = src
    for (step, after), padded, reached in zip(plan.steps, plan.shapes, plan.reached):
        assert step.apply(layout, mesh) == after
        local = run_step(step, local, padded, layout, after, mesh)
        expected = after.local_shape(padded, mesh)
        assert all(one.shape == expected for one in local), (step, expected, {one.shape for one in local})
        layout = after
        for device, tile in enumerate(collect(local, shape, layout, mesh) if reached else ()):
            np.testing.assert_array_equal(tile, tile_of(array, layout, mesh, device))
    assert layout == dst and (plan.reached[-1] if plan.steps else src == dst)


def run_step(
    step: steps.Step, local: Locals, shape: tuple[int, ...], before: Layout, after: Layout, mesh: AbstractMesh
) -> Locals:
    after_shape = after.local_shape(shape, mesh)
    result: Locals = [np.empty(0)] * mesh.size
    for group in groups(mesh, step.axes if not isinstance(step, steps.Exchange) else mesh.atoms):
        values = [local[device] for device in group]
        for device, value in zip(group, _run(step, values, shape, before, after_shape, mesh)):
            result[device] = value
    return result


def _run(
    step: steps.Step,
    values: Locals,
    shape: tuple[int, ...],
    before: Layout,
    after_shape: tuple[int, ...],
    mesh: AbstractMesh,
) -> Locals:
    match step:
        case steps.AllGather():
            return [_cut(np.concatenate(values, step.dim), after_shape)] * len(values)
        case steps.Slice():
            return [_part(v, step.dim, i, after_shape) for i, v in enumerate(values)]
        case steps.AllToAll():
            chunk_shape = list(values[0].shape)
            chunk_shape[step.dst_dim] = after_shape[step.dst_dim]
            sent = [[_part(v, step.dst_dim, i, chunk_shape) for i in range(len(values))] for v in values]
            return [_cut(np.concatenate(column, step.src_dim), after_shape) for column in zip(*sent)]
        case steps.Permute():
            result = list(values)
            for source, target in step.perm:
                result[target] = values[source]
            assert sorted(target for _, target in step.perm) == list(range(len(values)))
            return result
        case steps.ReduceScatter():
            whole = reduce(COMBINE[step.reduction], values)
            return [_part(whole, step.dim, i, after_shape) for i in range(len(values))]
        case steps.AllReduce():
            return [reduce(COMBINE[step.reduction], values)] * len(values)
        case steps.MakePartial():
            empty = np.full_like(values[0], IDENTITY[step.reduction])
            return [values[0], *[empty] * (len(values) - 1)]
        case steps.Exchange():
            return _exchange(step, values, shape, mesh)
        case steps.Overlap():
            return _overlap(step.plan(mesh), values)
    raise AssertionError(step)


def _part(value: np.ndarray, dim: int, index: int, shape: tuple[int, ...] | list[int]) -> np.ndarray:
    rows = shape[dim]
    needed = list(value.shape)
    needed[dim] = max(needed[dim], (index + 1) * rows)
    return np.take(padded(value, tuple(needed)), range(index * rows, (index + 1) * rows), dim)


def _cut(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return value[tuple(map(slice, shape))]


def _exchange(step: steps.Exchange, values: Locals, shape: tuple[int, ...], mesh: AbstractMesh) -> Locals:
    recipe = exchange_recipe(shape, step.before, step.after, mesh)
    where = atom_coordinates(mesh)
    fronts = []
    for device, value in enumerate(values):
        picked: list = [slice(None)] * len(recipe.view)
        for digit, axis in recipe.slices:
            picked[digit] = where[axis][device]
        fronts.append(value.reshape(recipe.view)[tuple(picked)].transpose(recipe.forward))
    received = [np.full(front.shape, np.nan) for front in fronts]
    assert len(recipe.rounds) in (0, step.rounds)
    if recipe.rounds:
        for shift, perm in zip(np.ndindex(*recipe.groups), recipe.rounds):
            for group in groups(mesh, recipe.axes):
                for source, target in perm:
                    sender, receiver = group[source], group[target]
                    chunk = _shifted(where, recipe.senders, sender, shift, recipe.groups, 1)
                    slot = _shifted(where, recipe.receivers, receiver, shift, recipe.groups, -1)
                    received[receiver][slot] = fronts[sender][chunk]
    else:
        for group in groups(mesh, recipe.senders):
            for i, j in np.ndindex(len(group), len(group)):
                chunk, slot = (tuple(np.unravel_index(k, recipe.groups)) for k in (j, i))
                received[group[j]][slot] = fronts[group[i]][chunk]
    return [value.transpose(recipe.backward).reshape(recipe.result) for value in received]


def _overlap(plan: Overlaps, values: Locals) -> Locals:
    results = [np.full(plan.rows, np.nan) for _ in values]
    values = [np.pad(value, plan.margin, constant_values=np.nan) for value in values]
    for turn in plan.rounds:
        senders, receivers = zip(*turn.perm) if turn.perm else ((), ())
        assert len(set(senders)) == len(senders) and len(set(receivers)) == len(receivers)
        pairs = turn.perm or [(device, device) for device in np.flatnonzero(turn.receives)]
        assert sorted(target for _, target in pairs) == list(np.flatnonzero(turn.receives))
        for buffer in [values[0]] * turn.sends_own + [results[0]] * any(turn.relays):  # every device cuts a chunk out
            assert all(map(operator.le, turn.chunk, buffer.shape)), (turn.chunk, buffer.shape)
        sent = [
            (results if turn.relays and turn.relays[source] else values)[source][_at(turn.takes, source, turn.chunk)]
            for source, _ in pairs
        ]
        for (_, target), chunk in zip(pairs, [chunk.copy() for chunk in sent]):
            assert chunk.shape == turn.chunk
            valid = [slice(None)] * chunk.ndim
            for dim, low, high in turn.valid:
                valid[dim] = slice(low[target], high[target])
            results[target][_at(turn.puts, target, turn.chunk)][tuple(valid)] = chunk[tuple(valid)]
    return results


def _at(tables: tuple[tuple[int, ...], ...], device: int, chunk: tuple[int, ...]) -> tuple[slice, ...]:
    assert all(table[device] >= 0 for table in tables)
    return tuple(slice(table[device], table[device] + rows) for table, rows in zip(tables, chunk))


def _shifted(
    where: dict[str, np.ndarray],
    axes: tuple[str, ...],
    device: int,
    shift: tuple[int, ...],
    sizes: tuple[int, ...],
    sign: int,
) -> tuple[int, ...]:
    return tuple(int(where[a][device] + sign * r) % n for a, r, n in zip(axes, shift, sizes))
