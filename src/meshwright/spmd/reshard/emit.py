"""Emits reshard plans: each step becomes collectives and local ops of the program that is being recorded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.errors import PartitionError
from meshwright.ir.tracing import typeof
from meshwright.ops.collective.all_reduce import ALL_REDUCE
from meshwright.ops.collective.base import axis_index_of
from meshwright.ops.collective.exchange import AllToAll, Ppermute
from meshwright.ops.collective.tiles import AllGather, AllSlice, ReduceScatter
from meshwright.ops.elementwise.monoid import monoid_of
from meshwright.ops.elementwise.table import (
    add,
    and_,
    eq,
    ge,
    lt,
    mul,
    rem,
    scalar_like,
    select,
    zeros_like,
)
from meshwright.ops.indexing import dynamic_slice as windows
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, iota, match_shape
from meshwright.ops.shape.rearrange import reshape, squeeze, transpose
from meshwright.ops.shape.slice_pad import pad, slice_in_dim
from meshwright.sharding import AbstractMesh, Layout
from meshwright.sharding.window import affine
from meshwright.spmd.reshard import steps as S
from meshwright.spmd.reshard.exchange import Recipe, exchange_recipe
from meshwright.spmd.reshard.overlap import Overlaps, Round

#: positions are counted from the start: none is negative
dynamic_slice = partial(windows.dynamic_slice, allow_negative_indices=False)
dynamic_update_slice = partial(windows.dynamic_update_slice, allow_negative_indices=False)


def named_axes(axes: Sequence[str], mesh: AbstractMesh) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The axis names and sizes of a collective over these atoms."""
    names = mesh.coalesce(axes)
    return names, tuple(mesh.axis_size(n) for n in names)


def tile_index(axes: Sequence[str], mesh: AbstractMesh) -> Any:
    """This device's position along atoms (int32 scalar)."""
    return axis_index_of(*named_axes(axes, mesh))


def fit_rows(x: Any, dim: int, rows: int) -> Any:
    """``x`` sliced or zero-padded at the end of ``dim`` to ``rows`` rows."""
    have = typeof(x).shape[dim]
    if have > rows:
        return slice_in_dim(x, 0, rows, axis=dim)
    if have < rows:
        config = [(0, 0, 0)] * typeof(x).ndim
        config[dim] = (0, rows - have, 0)
        return pad(x, np.zeros((), typeof(x).dtype), config)
    return x


def lookup(table: Sequence[int], axes: Sequence[str], mesh: AbstractMesh) -> Any:
    """``table[position along axes]``: an int32 scalar."""
    line = affine(table)
    if line is None:
        row = dynamic_slice(np.asarray(table, np.int32), [tile_index(axes, mesh)], (1,))
        return squeeze(row, [0])
    first, step = line
    if step == 0:
        return np.int32(first)
    return add(mul(tile_index(axes, mesh), np.int32(step)), np.int32(first))


def is_marked(marks: Sequence[bool], axes: Sequence[str], mesh: AbstractMesh) -> Any:
    """Whether ``marks[position along axes]`` is true: a bool scalar."""
    return eq(lookup(marks, axes, mesh), np.int32(1))


def emit_step(x: Any, step: S.Step, shape: Sequence[int], after: Layout, mesh: AbstractMesh) -> Any:
    """Emit one step on this device's shard of an array of global ``shape``, which includes padding added by steps."""
    rows = after.local_shape(shape, mesh)
    if isinstance(step, S.Permute):
        names, sizes = named_axes(step.axes, mesh)
        return Ppermute(names, sizes, step.perm).bind(x)
    if isinstance(step, S.Overlap):
        return _emit_overlaps(x, step.plan(mesh), mesh)
    if isinstance(step, S.Exchange):
        return _emit_exchange(x, exchange_recipe(shape, step.before, step.after, mesh), mesh)
    names, sizes = named_axes(step.axes, mesh)
    n = math.prod(sizes)
    match step:
        case S.AllGather(dim=dim):
            return fit_rows(AllGather(names, sizes, dim).bind(x), dim, rows[dim])
        case S.Slice(dim=dim) if typeof(x).shape[dim] == rows[dim]:
            return x  # one row is the first tile's, and the others have none: they may hold anything
        case S.Slice(dim=dim):
            return AllSlice(names, sizes, dim).bind(fit_rows(x, dim, n * rows[dim]))
        case S.ReduceScatter(dim=dim, reduction=reduction):
            return ReduceScatter(names, sizes, dim, reduction).bind(fit_rows(x, dim, n * rows[dim]))
        case S.AllReduce(reduction=reduction):
            return ALL_REDUCE[reduction](names, sizes).bind(x)
        case S.AllToAll(src_dim=src, dst_dim=dst):
            moved = AllToAll(names, sizes, dst, src).bind(fit_rows(x, dst, n * rows[dst]))
            return fit_rows(moved, src, rows[src])
        case S.MakePartial(reduction=reduction):
            identity = match_shape(monoid_of(reduction).identity(typeof(x).dtype), typeof(x))
            return select(eq(tile_index(step.axes, mesh), np.int32(0)), x, identity)
    raise PartitionError(f"unknown reshard step {step}")


# --- exchanges ----------------------------------------------------------------------------------------------
def _emit_exchange(x: Any, recipe: Recipe, mesh: AbstractMesh) -> Any:
    """Emit a :class:`Recipe`, whose docstring numbers the steps."""
    x = reshape(x, recipe.view)
    for digit, axis in recipe.slices:
        names, sizes = named_axes((axis,), mesh)
        x = AllSlice(names, sizes, digit).bind(x)
    x = transpose(squeeze(x, [d for d, _ in recipe.slices]), recipe.forward)
    k = len(recipe.groups)
    rest = typeof(x).shape[k:]
    if not recipe.rounds:
        names, sizes = named_axes(recipe.senders, mesh)
        x = reshape(x, (1, math.prod(recipe.groups), *rest))
        x = AllToAll(names, sizes, 1, 0).bind(x)
        x = reshape(x, (*recipe.groups, *rest))
    else:
        x = _in_rounds(x, recipe, mesh)
    return reshape(transpose(x, recipe.backward), recipe.result)


def _in_rounds(x: Any, recipe: Recipe, mesh: AbstractMesh) -> Any:
    names, sizes = named_axes(recipe.axes, mesh)
    k = len(recipe.groups)
    rest = typeof(x).shape[k:]
    result = zeros_like(x)
    zeros = [np.int32(0)] * len(rest)
    for number, perm in enumerate(recipe.rounds):
        shifts = [int(s) for s in np.unravel_index(number, recipe.groups)] if k else []
        sent = [_turned(axis, s, mesh) for axis, s in zip(recipe.senders, shifts)]
        chunk = dynamic_slice(x, [*sent, *zeros], (*([1] * k), *rest)) if k else x
        chunk = Ppermute(names, sizes, perm).bind(chunk)
        if not k:
            return chunk
        put = [_turned(axis, -s % group, mesh) for axis, s, group in zip(recipe.receivers, shifts, recipe.groups)]
        result = dynamic_update_slice(result, chunk, [*put, *zeros])
    return result


def _turned(axis: str, shift: int, mesh: AbstractMesh) -> Any:
    """This device's position along an atom plus ``shift``, modulo its size."""
    index = tile_index((axis,), mesh)
    return rem(add(index, np.int32(shift)), np.int32(mesh.axis_size(axis))) if shift else index


# --- overlaps -----------------------------------------------------------------------------------------------
def _emit_overlaps(x: Any, plan: Overlaps, mesh: AbstractMesh) -> Any:
    """Emit the rounds of an overlap: slice chunks from ``x``, permute them, and write them to the result."""
    names, sizes = named_axes(plan.axes, mesh)
    result = match_shape(scalar_like(0, x), ShapedArray(plan.rows, typeof(x).dtype))
    if any(map(any, plan.margin)):
        x = pad(x, scalar_like(0, x), [(low, high, 0) for low, high in plan.margin])
    for turn in plan.rounds:
        chunk = _taken(x, result, turn, plan.axes, mesh)
        if turn.perm:
            chunk = Ppermute(names, sizes, turn.perm).bind(chunk)
        at = [lookup(table, plan.axes, mesh) for table in turn.puts]
        came = _came(turn, plan.axes, mesh)
        if came is not None:
            chunk = select(came, chunk, dynamic_slice(result, at, turn.chunk))
        result = dynamic_update_slice(result, chunk, at)
    return result


def _taken(x: Any, result: Any, turn: Round, axes: Sequence[str], mesh: AbstractMesh) -> Any:
    """The chunk that this device sends: a slice of its input or, if it relays, of what it has received."""
    at = [lookup(table, axes, mesh) for table in turn.takes]
    if not turn.relays:
        return dynamic_slice(x, at, turn.chunk)
    relayed = dynamic_slice(result, at, turn.chunk)
    if not turn.sends_own:
        return relayed
    return select(is_marked(turn.relays, axes, mesh), relayed, dynamic_slice(x, at, turn.chunk))


def _came(turn: Round, axes: Sequence[str], mesh: AbstractMesh) -> Any:
    """A mask of the valid elements of a received chunk; None if all are valid on every device."""
    if not turn.valid:
        return None if all(turn.receives) else is_marked(turn.receives, axes, mesh)
    inside = []
    for dim, low, high in turn.valid:
        rows = iota(np.int32, turn.chunk[dim : dim + 1], 0)
        here = and_(ge(rows, lookup(low, axes, mesh)), lt(rows, lookup(high, axes, mesh)))
        inside.append(broadcast_in_dim(here, turn.chunk, (dim,)))
    return reduce(and_, inside)
