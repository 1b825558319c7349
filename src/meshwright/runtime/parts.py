"""Arrays over several real devices: the part on each, slicing into parts, and assembling parts.

A device of a mesh is *virtual* if it shares a real device with others. A real device has one buffer per array, with the
tiles of its devices in global order. A dimension that is not sharded over real devices is not padded in it; one that is
has full tiles, the last of them padded. With a single real device, the buffer is the array in global order. With one
real device per device, it is the local shard, as on a cluster.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from meshwright.core.records import dataclass
from meshwright.errors import DeviceError, MeshError
from meshwright.runtime.pjrt.buffers import joined
from meshwright.runtime.pjrt.client import first_local, is_local
from meshwright.sharding import Sharding

#: for each dimension, the tiles that a real device holds, or None if every real device holds all
Tiles = tuple[tuple[int, ...] | None, ...]


class Parts:
    """The buffers of an array on this process's real devices, in ascending order of the devices.

    They are held as single buffers, as one joined operand of programs, or both; each form is made when it is first
    needed. ``maker`` is the program that computes them.
    """

    __slots__ = ("__weakref__", "_buffers", "_joined", "maker")

    def __init__(self, buffers: Sequence[Any] | None, joined: Any = None, maker: Any = None) -> None:
        self._buffers, self._joined, self.maker = buffers, joined, maker

    @property
    def buffers(self) -> Sequence[Any]:
        """The single buffers."""
        if self._buffers is None:
            self._buffers = self._joined._arrays
        return self._buffers

    @property
    def operand(self) -> Any:
        """The result of an earlier :meth:`joined`, or None."""
        return self._joined

    def joined(self, spread: Spread, shape: tuple[int, ...], dtype: Any) -> Any:
        """The buffers as one operand for a program."""
        if self._joined is None:
            self._joined = joined(self.buffers, shape, dtype, spread.here)
        return self._joined

    def _held(self) -> Sequence[Any]:
        return self.buffers if self._joined is None else (self._joined,)

    def block_until_ready(self) -> None:
        for buffer in self._held():
            buffer.block_until_ready()

    def is_ready(self) -> bool:
        return all(b.is_ready() for b in self._held())

    def is_deleted(self) -> bool:
        return any(b.is_deleted() for b in self._held())


@dataclass(frozen=True)
class Spread:
    """The numbers of the real devices behind a sharding: of all processes (``reals``), and of this one (``here``)."""

    reals: tuple[int, ...]
    here: tuple[int, ...]

    @cached_property
    def is_one(self) -> bool:
        """Whether it is a single real device of this process, so that arrays are plain buffers."""
        return len(self.reals) == 1 and self.here == self.reals


def real_of(device: Any) -> int:
    """The number of the real device behind ``device``; for plain numbers, that of this process's first one."""
    hardware_id = getattr(device, "hardware_id", None)
    return first_local() if hardware_id is None else hardware_id


@lru_cache(maxsize=4096)
def spread_of(sharding: Sharding) -> Spread:
    """The real devices behind a sharding's devices."""
    reals = tuple(sorted({real_of(d) for d in sharding.devices}))
    return Spread(reals, tuple(r for r in reals if is_local(r)))


@lru_cache(maxsize=4096)
def tiles_of(sharding: Sharding, ndim: int) -> dict[int, Tiles]:
    """The tiles of an ``ndim``-dimensional array on each real device.

    Raises:
      MeshError: the tiles of a real device do not form a block.
    """
    table, counts = sharding.tile_table(ndim), sharding.tile_counts(ndim)
    rows: dict[int, list[Any]] = {}
    for device, tiles in zip(sharding.devices, table.tolist()):
        rows.setdefault(real_of(device), []).append(tuple(tiles))
    held = {real: [sorted({t[d] for t in tiles}) for d in range(ndim)] for real, tiles in rows.items()}
    for real, tiles in rows.items():
        if len(set(tiles)) != math.prod(map(len, held[real])) or len({tuple(map(len, h)) for h in held.values()}) > 1:
            raise MeshError(
                f"{sharding!r} gives real device {real} the tiles {sorted(set(tiles))}, which are no block; devices of "
                "one process (or real device) must be neighbours along axes of the mesh: exchange its axes, or make "
                "it with make_mesh"
            )
    whole = [all(len(h[d]) == counts[d] for h in held.values()) for d in range(ndim)]
    return {real: tuple(None if w else tuple(t) for w, t in zip(whole, h)) for real, h in held.items()}


# --- slicing ------------------------------------------------------------------------------------------------
def cut(value: np.ndarray, sharding: Sharding, real: int) -> np.ndarray:
    """The part of ``value`` on a real device, padded with zeros."""
    counts = sharding.tile_counts(value.ndim)
    for dim, (tiles, n) in enumerate(zip(tiles_of(sharding, value.ndim)[real], counts)):
        if tiles is not None:
            value = _taken(value, dim, tiles, -(-value.shape[dim] // n))
    return value


def _taken(value: np.ndarray, dim: int, tiles: tuple[int, ...], rows: int) -> np.ndarray:
    pieces = []
    for first, count in _runs(tiles):
        at = (slice(None),) * dim
        piece = value[(*at, slice(first * rows, (first + count) * rows))]
        missing = count * rows - piece.shape[dim]
        if missing:
            piece = np.pad(piece, [(0, missing if d == dim else 0) for d in range(value.ndim)])
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, dim)


def _runs(tiles: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The first tile and the length of each run of consecutive tiles."""
    for _, run in itertools.groupby(enumerate(tiles), lambda pair: pair[1] - pair[0]):
        members = [tile for _, tile in run]
        yield members[0], len(members)


# --- assembling ---------------------------------------------------------------------------------------------
def assembled(parts: Sequence[np.ndarray], sharding: Sharding, shape: Sequence[int]) -> np.ndarray:
    """The global array assembled from its parts on this process's real devices.

    Raises:
      DeviceError: some parts exist only in other processes.
    """
    held, here = tiles_of(sharding, len(shape)), spread_of(sharding).here
    if not is_whole_here(sharding, len(shape)):
        raise DeviceError(
            f"an array of shape {tuple(shape)} with {sharding!r} lies on devices of other processes too; "
            "multihost_utils.process_allgather(x) gets all of it, x.addressable_shards is what is here"
        )
    counts = sharding.tile_counts(len(shape))
    whole = np.empty(tuple(shape), parts[0].dtype)
    for part, real in zip(parts, here):
        pairs = [list(_places(t, n, size)) for t, n, size in zip(held[real], counts, shape)]
        for places in itertools.product(*pairs):
            whole[tuple(to for _, to in places)] = part[tuple(from_ for from_, _ in places)]
    return whole


@lru_cache(maxsize=4096)
def is_whole_here(sharding: Sharding, ndim: int) -> bool:
    """Whether this process's devices together hold all tiles."""
    held, here = tiles_of(sharding, ndim), spread_of(sharding).here
    count = math.prod(n for n, t in zip(sharding.tile_counts(ndim), next(iter(held.values()))) if t is not None)
    held_tiles = {tile for real in here for tile in itertools.product(*(t for t in held[real] if t is not None))}
    return bool(here) and len(held_tiles) == count


def _places(tiles: tuple[int, ...] | None, n: int, size: int) -> Iterator[tuple[slice, slice]]:
    """Pairs of slices: the same rows in a part, and in the whole array."""
    if tiles is None:
        yield slice(None), slice(None)
        return
    rows, at = -(-size // n), 0
    for first, count in _runs(tiles):
        start, stop = min(first * rows, size), min((first + count) * rows, size)
        yield slice(at, at + stop - start), slice(start, stop)
        at += count * rows


def shard_in_part(sharding: Sharding, shape: Sequence[int], position: int) -> tuple[slice, ...]:
    """The position, within its real device's part, of the shard of the device at ``position`` of the sharding."""
    ndim = len(shape)
    tiles, counts = sharding.tile_table(ndim)[position].tolist(), sharding.tile_counts(ndim)
    held = tiles_of(sharding, ndim)[real_of(sharding.devices[position])]
    slices = []
    for tile, n, size, mine in zip(tiles, counts, shape, held):
        rows = -(-size // n)
        have = max(min((tile + 1) * rows, size) - tile * rows, 0)
        start = min(tile * rows, size) if mine is None else mine.index(tile) * rows
        slices.append(slice(start, start + have))
    return tuple(slices)
