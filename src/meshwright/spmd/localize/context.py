"""The context passed to an op's ``localize``: shapes, layouts, and the exchanges that it may need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.op import Op
from meshwright.ir.tracing import typeof
from meshwright.ops.collective.all_reduce import ALL_REDUCE
from meshwright.ops.collective.exchange import AllToAll, Ppermute
from meshwright.ops.collective.tiles import AllGather, AllSlice
from meshwright.ops.elementwise.monoid import monoid_of, nothing
from meshwright.ops.elementwise.table import add, convert, eq, mul, select
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, iota, match_shape
from meshwright.ops.shape.slice_pad import slice_in_dim
from meshwright.sharding import AbstractMesh, Layout
from meshwright.sharding.row_map import RowMap
from meshwright.sharding.rule import REDUCTION, ShardingRule
from meshwright.sharding.window import Shown, Window
from meshwright.spmd.localize.rows import SplitDim, with_rows
from meshwright.spmd.reshard.emit import lookup, named_axes, tile_index


@dataclass(frozen=True)
class LocalContext:
    """One equation being localized: its global avals, its chosen layouts, and the mesh.

    ``counting`` is, for each operand, the dimension along which its elements are known to be 0, 1, 2, …, or None.
    """

    mesh: AbstractMesh
    rule: ShardingRule
    in_avals: tuple[ShapedArray, ...]
    out_avals: tuple[ShapedArray, ...]
    in_layouts: tuple[Layout, ...]
    out_layouts: tuple[Layout, ...]
    counting: tuple[int | None, ...] = ()

    # --- shapes and splits ----------------------------------------------------------------------------------
    @cached_property
    def in_local_shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(lo.local_shape(a.shape, self.mesh) for lo, a in zip(self.in_layouts, self.in_avals))

    @cached_property
    def out_local_shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(lo.local_shape(a.shape, self.mesh) for lo, a in zip(self.out_layouts, self.out_avals))

    def axes(self, operand: int, dim: int) -> tuple[str, ...]:
        """The atoms that split an operand's dimension."""
        return self.in_layouts[operand].dims[dim]

    def result_axes(self, result: int, dim: int) -> tuple[str, ...]:
        """The atoms that split a result's dimension."""
        return self.out_layouts[result].dims[dim]

    def is_split(self, operand: int, dim: int) -> bool:
        return bool(self.in_layouts[operand].dims[dim])

    def is_split_result(self, result: int, dim: int) -> bool:
        return bool(self.out_layouts[result].dims[dim])

    def num_tiles(self, operand: int, dim: int) -> int:
        return self.in_layouts[operand].num_tiles(dim, self.mesh)

    def is_uneven(self, operand: int, dim: int) -> bool:
        """Whether the operand's dimension is padded on some device."""
        return self.in_avals[operand].shape[dim] % self.num_tiles(operand, dim) != 0

    # --- positions ------------------------------------------------------------------------------------------
    def tile_index(self, axes: Sequence[str]) -> Any:
        """This device's position along atoms, an int32 scalar."""
        return tile_index(axes, self.mesh)

    def add_tile_offset(self, x: Any, dim: int) -> Any:
        """``x`` plus the global index of this tile's first row along a dimension of the first result."""
        axes = self.result_axes(0, dim)
        if not axes:
            return x
        offset = mul(self.tile_index(axes), np.int32(self.out_local_shapes[0][dim]))
        return add(x, convert(offset, typeof(x).dtype))

    def counts_rows(self, operand: int, dim: int) -> bool:
        """Whether an operand is known to hold the row numbers along a dimension."""
        return bool(self.counting) and self.counting[operand] == dim

    def number_rows(self, x: Any, operand: int, dim: int) -> Any:
        """Convert row numbers within a tile of an operand's dimension to those within the whole dimension."""
        first = mul(self.tile_index(self.axes(operand, dim)), np.int32(self.in_local_shapes[operand][dim]))
        return add(x, convert(first, typeof(x).dtype))

    def lookup(self, table: Sequence[int], axes: Sequence[str]) -> Any:
        """``table[position along axes]``, an int32 scalar."""
        return lookup(table, axes, self.mesh)

    # --- the default localization ---------------------------------------------------------------------------
    def default(self, op: Op, *operands: Any) -> Any:
        """Bind ``op.localized`` to the operands, with padding masked where it would be reduced."""
        if any(f.kind == REDUCTION for f in self.rule.factors):
            operands = tuple(self._mask_reduced(x, i) for i, x in enumerate(operands))
        return op.localized(self).bind(*operands)

    def _mask_reduced(self, x: Any, operand: int) -> Any:
        for dim, factors in enumerate(self.rule.operands[operand]):
            if any(self.rule.factors[f].kind == REDUCTION for f in factors):
                x = self.mask(x, operand, dim, monoid_of(self.rule.reduction).identity(typeof(x).dtype))
        return x

    def mask(self, x: Any, operand: int, dim: int, fill: Any) -> Any:
        """Replace the padding rows of an operand's dimension by ``fill``."""
        if not self.is_split(operand, dim) or not self.is_uneven(operand, dim):
            return x
        rows, split = typeof(x).shape[dim], self._along(operand, dim)
        starts = [tile * rows for tile in range(split.tiles)]
        return split.keep(x, starts, self.in_avals[operand].shape[dim], fill)

    def only_on(self, x: Any, axes: Sequence[str], tile: int) -> Any:
        """``x`` on the devices at position ``tile`` along atoms, and :func:`nothing` on the others."""
        here = eq(self.tile_index(axes), np.int32(tile))
        return select(here, x, match_shape(nothing(typeof(x).dtype), typeof(x)))

    def place_row(self, x: Any, dim: int, position: int, fill: Any) -> Any:
        """This device's tile of a result that is ``fill`` except for the row ``x`` (of size 1 along ``dim``)."""
        tile = with_rows(x, dim, self.out_local_shapes[0][dim])
        number = self.add_tile_offset(iota(np.int32, (tile.shape[dim],), 0), dim)
        here = broadcast_in_dim(eq(number, np.int32(position)), tile.shape, (dim,))
        return select(here, broadcast_in_dim(x, tile.shape, range(tile.ndim)), match_shape(fill, tile))

    # --- exchanges ------------------------------------------------------------------------------------------
    def all_gather(self, x: Any, axes: Sequence[str], dim: int) -> Any:
        """Gather tiles along atoms at ``dim``."""
        return AllGather(*named_axes(axes, self.mesh), dim).bind(x) if axes else x

    def all_slice(self, x: Any, axes: Sequence[str], dim: int) -> Any:
        """This device's tile, along atoms, of a value that all have whole."""
        return AllSlice(*named_axes(axes, self.mesh), dim).bind(x) if axes else x

    def all_to_all(self, x: Any, axes: Sequence[str], split: int, concat: int) -> Any:
        """Send part ``j`` of ``split`` to device ``j`` along atoms, and concatenate what arrives at ``concat``."""
        return AllToAll(*named_axes(axes, self.mesh), split, concat).bind(x) if axes else x

    def all_reduce(self, x: Any, axes: Sequence[str], kind: str) -> Any:
        """Reduce over atoms with a reduction of this kind."""
        return ALL_REDUCE[kind](*named_axes(axes, self.mesh)).bind(x) if axes else x

    def permute(self, x: Any, axes: Sequence[str], perm: Sequence[tuple[int, int]]) -> Any:
        """Permute tiles along atoms, by pairs (source, target). Devices that are not a target get zeros."""
        return Ppermute(*named_axes(axes, self.mesh), tuple(perm)).bind(x)

    def fetch_shown(self, x: Any, operand: int, dim: int, shown: Shown) -> Any:
        """The rows of an operand's dimension that each tile of the result shows; zero where there are none.

        If tiles show equally many rows each, only these are sent, without the rows between them.
        """
        along = self._along(operand, dim)
        picked = shown.picked(along.tiles)
        if picked is not None:
            return along.fetch(
                slice_in_dim(x, shown.first, None, shown.stride, dim), picked.size, picked.window(along.tiles)
            )
        window = shown.window(along.tiles)
        x = along.fetch(x, self.in_avals[operand].shape[dim], window)
        return slice_in_dim(x, 0, window.length, shown.stride, dim)

    def fetch_window(
        self, x: Any, operand: int, dim: int, window: Window, fill: Any = None, *, cyclic: bool = False
    ) -> Any:
        """The rows of an operand's dimension in the window of this tile of the result.

        Rows outside of the dimension are ``fill`` (zero if None). Rows from the window's stop on are arbitrary, because
        they end up in the padding of the result. With ``cyclic``, which requires tiles without padding, rows wrap
        around at the end. See :mod:`meshwright.sharding.window`.
        """
        return self._along(operand, dim).fetch(x, self.in_avals[operand].shape[dim], window, fill, cyclic)

    def move_rows(self, xs: Sequence[Any], dim: int, axes: Sequence[str], m: RowMap) -> Iterator[Any]:
        """This device's tile of each target of a row map along ``dim``, which ``axes`` split."""
        return SplitDim(dim, tuple(axes), self.mesh).moved(xs, m)

    def cut(self, x: Any, operand: int, dim: int, starts: Sequence[int], length: int, fill: Any = None) -> Any:
        """Rows ``[starts[t], starts[t] + length)`` of this tile; missing rows are ``fill``."""
        return self._along(operand, dim).cut(x, starts, length, fill)

    def _along(self, operand: int, dim: int) -> SplitDim:
        return SplitDim(dim, self.axes(operand, dim), self.mesh)
