"""Windows along a split dimension: which part of a window may be in a device's tile, and where."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.records import dataclass
from meshwright.ir.contract import Localizer
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.clamp import clamp
from meshwright.ops.elementwise.table import convert, mul, scalar_like, sub


def _clamped(start: Any, size: int, length: int) -> Any:
    """The clamped position of a window of ``length`` in ``size``, as int32."""
    top = min(size - length, int(np.iinfo(typeof(start).dtype).max))
    return convert(clamp(scalar_like(0, start), start, scalar_like(top, start)), dtypes.int32)


def known_place(ctx: Localizer, dim: int, start: Any, length: int) -> tuple[int, int] | None:
    """The tile that contains a window along a dimension of the first operand, and the row in it, if they are static."""
    if not isinstance(start, (int, np.integer, np.ndarray)) or not length:
        return None
    size, rows = ctx.in_avals[0].shape[dim], ctx.in_local_shapes[0][dim]
    first = min(max(int(start), 0), size - length)
    return divmod(first, rows) if first // rows == (first + length - 1) // rows else None


@dataclass(frozen=True)
class TileWindow:
    """The location of the window of an operand's dimension in this device's tile.

    Only the ``rows`` rows of the tile from ``near`` on can be in the window. The first of them is row ``shift`` of the
    window, and outside it if that is negative or at least ``length``.
    """

    dim: int
    length: int
    rows: int
    near: Any
    shift: Any

    @staticmethod
    def of(ctx: Localizer, dim: int, start: Any, length: int) -> TileWindow:
        size, tile = ctx.in_avals[0].shape[dim], ctx.in_local_shapes[0][dim]
        first = mul(ctx.tile_index(ctx.axes(0, dim)), np.int32(tile))
        local = sub(_clamped(start, size, length), first)
        rows = min(length, tile)
        near = clamp(np.int32(0), local, np.int32(tile - rows))
        return TileWindow(dim, length, rows, near, sub(near, local))
