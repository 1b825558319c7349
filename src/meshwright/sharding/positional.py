"""Shardings that are a grid of devices without axis names.

``PositionalSharding(devices).reshape(4, 2)`` splits dimension 0 in four and dimension 1 in two. After
``.replicate(0)``, all devices along this axis of the grid hold the same tile, the union of the previous ones.

Source: the ``PositionalSharding`` that JAX had until 0.6.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from meshwright.core.words import counted
from meshwright.errors import ShardingError
from meshwright.sharding.base import Sharding
from meshwright.sharding.kinds import MeshOf
from meshwright.sharding.mesh import device_array
from meshwright.sharding.named import NamedSharding
from meshwright.sharding.spec import PartitionSpec


class PositionalSharding(Sharding):
    """A grid of cells; each cell is the set of devices that hold one tile."""

    has_memory_kinds = False

    def __init__(self, devices: Any, _cells: np.ndarray | None = None) -> None:
        array = device_array(devices, "PositionalSharding")
        if array.size == 0:
            raise ShardingError("PositionalSharding: expected at least one device, got none; pass devices()")
        self._devices: tuple[Any, ...] = tuple(array.flat)
        if len(set(self._devices)) != len(self._devices):
            raise ShardingError("PositionalSharding: a device is given twice; give every device once")
        # cells[i, j, ..., r]: position in _devices of the r-th device that holds tile (i, j, ...)
        positions = np.arange(array.size).reshape(*array.shape, 1) if _cells is None else _cells
        self._cells = positions
        self._hash = hash((positions.shape, self._tiles))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PositionalSharding):
            return NotImplemented
        return self._cells.shape == other._cells.shape and self._tiles == other._tiles

    def __hash__(self) -> int:
        return self._hash

    @property
    def _arguments(self) -> tuple[Any, ...]:
        return self._devices, self._cells

    def __repr__(self) -> str:
        names = np.empty(self.shape, dtype=object)
        for index in np.ndindex(*self.shape):
            names[index] = "{" + ", ".join(_device_name(self._devices[i]) for i in self._cells[index]) + "}"
        body = np.array2string(names, formatter={"object": str}, separator=" ")
        return f"PositionalSharding({body}, shape={self.shape})"

    @cached_property
    def _tiles(self) -> tuple[frozenset[Any], ...]:
        """The set of devices of each cell."""
        rows = self._cells.reshape(-1, self._cells.shape[-1]).tolist()
        return tuple(frozenset(self._devices[i] for i in row) for row in rows)

    # --- the grid -------------------------------------------------------------------------------------------
    @property
    def shape(self) -> tuple[int, ...]:
        return self._cells.shape[:-1]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def T(self) -> PositionalSharding:
        return self.transpose()

    def reshape(self, *shape: Any) -> PositionalSharding:
        """The same cells in a grid of another shape; -1 is as in NumPy."""
        new = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        try:
            grid = np.arange(int(np.prod(self.shape))).reshape(new).shape
        except ValueError:
            raise ShardingError(
                f"PositionalSharding.reshape: a grid of shape {self.shape} cannot become {new}; "
                "the number of cells must stay the same"
            ) from None
        return self._with_cells(self._cells.reshape(*grid, self._cells.shape[-1]))

    def transpose(self, *axes: int) -> PositionalSharding:
        order = axes or tuple(reversed(range(self.ndim)))
        return self._with_cells(self._cells.transpose(*order, self.ndim))

    def replicate(self, axis: int | None = None, keepdims: bool = True) -> PositionalSharding:
        """Merge all cells along ``axis`` (None: along every axis) into one cell with all of their devices."""
        axes = tuple(range(self.ndim)) if axis is None else (axis % self.ndim if self.ndim else axis,)
        if axis is not None and not -self.ndim <= axis < self.ndim:
            raise ShardingError(
                f"PositionalSharding.replicate: axis {axis} of a grid with shape {self.shape}; use an axis of the grid"
            )
        kept = tuple(a for a in range(self.ndim) if a not in axes)
        merged = self._cells.transpose(*kept, *axes, self.ndim)
        shape = tuple(1 if a in axes else n for a, n in enumerate(self.shape) if keepdims or a not in axes)
        return self._with_cells(np.sort(merged.reshape(*shape, -1), axis=-1))

    def _with_cells(self, cells: np.ndarray) -> PositionalSharding:
        return PositionalSharding(self._devices, np.ascontiguousarray(cells))

    # --- as a sharding --------------------------------------------------------------------------------------
    @cached_property
    def devices(self) -> tuple[Any, ...]:
        return tuple(self._devices[i] for i in self._cells.flat)

    @property
    def is_fully_replicated(self) -> bool:
        return all(n == 1 for n in self.shape)

    def tile_counts(self, ndim: int) -> tuple[int, ...]:
        return (*self.shape, *(1,) * (ndim - self.ndim))

    def tile_table(self, ndim: int) -> np.ndarray:
        counts, replicas = self.tile_counts(ndim), self._cells.shape[-1]
        tiles = np.indices(counts, dtype=np.int64).reshape(ndim, int(np.prod(counts))).T
        return np.repeat(tiles, replicas, axis=0)

    def check_compatible(self, shape: Sequence[int], what: str = "array") -> None:
        if len(shape) != self.ndim and not (self.is_fully_replicated and self.ndim <= len(shape)):
            raise ShardingError(
                f"{what}: {self} is a grid of {counted(self.ndim, 'dimension')} but the shape {tuple(shape)} has "
                f"{len(shape)}; reshape the sharding to {counted(len(shape), 'dimension')}"
            )

    def to_named(self) -> NamedSharding:
        """The same sharding over a mesh with an axis per dimension of the grid (``x0``, ...) and one, ``replica``."""
        return self._named

    @cached_property
    def _named(self) -> NamedSharding:
        names = tuple(f"x{i}" for i in range(self.ndim))
        grid = np.array(self.devices, dtype=object).reshape(self._cells.shape)
        return NamedSharding(MeshOf(grid, (*names, "replica"), _back), PartitionSpec(*names))


def _back(sharding: NamedSharding, shape: tuple[int, ...]) -> PositionalSharding:
    """The grid whose cells hold the tiles of ``sharding``."""
    ndim = len(shape)
    counts = sharding.tile_counts(ndim)
    table = sharding.tile_table(ndim)
    order = np.lexsort(table.T[::-1]) if ndim else np.arange(len(table))  # stable: replicas stay as they are
    return PositionalSharding(sharding.devices, order.reshape(*counts, -1))


def _device_name(device: Any) -> str:
    platform = getattr(device, "platform", None)
    if isinstance(platform, str):
        return f"{platform.upper()} {device.id}"
    return str(getattr(device, "id", device))
