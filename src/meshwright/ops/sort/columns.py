"""Sorting along a split dimension whose tiles are long: columnsort.

T. Leighton, "Tight bounds on the complexity of parallel sorting" (1985): the columns of a matrix, here the tiles, are
sorted, dealt to each other row by row, sorted, put back, and sorted again. By then every element is close to its place,
and only the borders of neighbours have to be merged. A device sends its tile twice and sorts it three times, for any
number of tiles, whereas a network (:mod:`~meshwright.ops.sort.network`) sends and sorts it once per round.

Why borders of :func:`border` elements suffice: let all elements be 0 or 1, which is enough for any algorithm of fixed
comparisons (Knuth, The Art of Computer Programming 3, 5.2.2, theorem Z). A sorted column is dealt to ``t`` columns so
that earlier ones get at most one 0 more than later ones. From all ``t``, the first gets at most ``t`` more than the
last. So the sorted columns differ in at most ``t`` rows, and row by row, from the first 1 to the last 0, these have at
most ``t (t - 1)`` elements: if they are ``t`` rows, each column dealt more to the first, so the last 0 of the last row
stands left of the first 1 of the first row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.ir.contract import Localizer
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.table import mul, sub
from meshwright.ops.indexing.dynamic_slice import dynamic_slice_in_dim
from meshwright.ops.shape.rearrange import reshape
from meshwright.ops.shape.slice_pad import concatenate, pad, slice_in_dim
from meshwright.ops.sort.network import Before, Sorter, halves


def border(tiles: int) -> int:
    """The number of elements between the first and the last one that may be out of place before the last step."""
    return tiles * (tiles - 1)


def depth(rows: int, tiles: int) -> int:
    """The rows of a tile of ``rows`` that is padded so that it can be dealt evenly."""
    return -(-rows // tiles) * tiles


def fits(rows: int, tiles: int) -> bool:
    """Whether tiles are long enough: the two borders of one do not overlap."""
    return depth(rows, tiles) >= 2 * border(tiles)


def sort_by_columns(
    ctx: Localizer, dim: int, arrays: Sequence[Any], sort: Sorter, before: Before, last: Callable[[np.dtype], Any]
) -> list[Any]:
    """Sort tiles of ``arrays`` into the global order along the dimension; ``last`` sorts after all others.

    For the other arguments, see :func:`meshwright.ops.sort.tiles.sort_tiles`.
    """
    axes, tiles = ctx.axes(0, dim), ctx.num_tiles(0, dim)
    rows = typeof(arrays[0]).shape[dim]
    added = depth(rows, tiles) - rows
    full = [_extended(x, dim, added, last(typeof(x).dtype)) for x in arrays] if added else arrays
    mixed = sort([_exchanged(ctx, x, dim, axes, tiles, dealt=True) for x in sort(full)])
    close = sort([_exchanged(ctx, x, dim, axes, tiles, dealt=False) for x in mixed])
    done = _merged_borders(ctx, dim, axes, close, sort, before, tiles)
    return [_moved_up(ctx, x, dim, axes, tiles, added) for x in done] if added else done


def _extended(x: Any, dim: int, rows: int, fill: Any) -> Any:
    return pad(x, fill, [(0, rows if d == dim else 0, 0) for d in range(typeof(x).ndim)])


def _exchanged(ctx: Localizer, x: Any, dim: int, axes: Sequence[str], tiles: int, dealt: bool) -> Any:
    """The rows that a tile gets if row ``i`` of each goes to tile ``i % tiles`` (``dealt``), or else part ``i`` of
    ``tiles`` consecutive parts to tile ``i``; in any order."""
    shape = typeof(x).shape
    rows = shape[dim] // tiles
    parts = reshape(x, (*shape[:dim], *((rows, tiles) if dealt else (tiles, rows)), *shape[dim + 1 :]))
    split, concat = (dim + 1, dim) if dealt else (dim, dim + 1)
    return reshape(ctx.all_to_all(parts, axes, split, concat), shape)


def _merged_borders(
    ctx: Localizer, dim: int, axes: Sequence[str], tiles: Sequence[Any], sort: Sorter, before: Before, count: int
) -> list[Any]:
    """Sorted tiles, with the last rows of each merged with the first ones of the next."""
    rows, width = typeof(tiles[0]).shape[dim], border(count)
    inner = range(count - 1)
    top = [slice_in_dim(x, 0, width, axis=dim) for x in tiles]
    bottom = [slice_in_dim(x, rows - width, rows, axis=dim) for x in tiles]
    above = [ctx.permute(x, axes, [(i, i + 1) for i in inner]) for x in bottom]
    below = [ctx.permute(x, axes, [(i + 1, i) for i in inner]) for x in top]
    second, first = ctx.lookup([0, *[2] * (count - 1)], axes), ctx.lookup([*[1] * (count - 1), 0], axes)
    top = sort(halves(top, above, second, dim, before, idle=True))
    bottom = sort(halves(bottom, below, first, dim, before, idle=True))
    middle = [slice_in_dim(x, width, rows - width, axis=dim) for x in tiles]
    return [concatenate(parts, dim) for parts in zip(top, middle, bottom)]


def _moved_up(ctx: Localizer, x: Any, dim: int, axes: Sequence[str], tiles: int, added: int) -> Any:
    """The rows that stand in a tile if none of them has ``added`` rows more: those of tile ``i`` begin ``i * added``
    rows earlier."""
    rows, most = typeof(x).shape[dim], (tiles - 1) * added
    ends = slice_in_dim(x, rows - most, rows, axis=dim)
    earlier = ctx.permute(ends, axes, [(i, i + 1) for i in range(tiles - 1)])
    start = sub(np.int32(most), mul(ctx.tile_index(axes), np.int32(added)))
    return dynamic_slice_in_dim(concatenate([earlier, x], dim), start, rows - added, dim)
