"""HLO shardings: the annotations of values in HLO and StableHLO programs.

``{devices=[4,1,2]<=[8] last_tile_dim_replicate}`` splits dimension 0 in four and keeps every tile on two devices.
Trailing dimensions of the tile assignment that are not dimensions of the array are *subgroups*: devices among which the
value is ``replicated``, ``manual`` (the program itself is per device) or ``unreduced`` (each holds a term of a sum).
Values are always in the canonical form, which is the one that XLA prints.

Source: GSPMD (Xu et al. 2021); the syntax of HLO text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from meshwright.core.records import dataclass
from meshwright.core.words import counted
from meshwright.errors import ShardingError
from meshwright.sharding.tile_assignment import IotaOrder, TileAssignment

# the canonical order of subgroups
SUBGROUPS = ("manual", "unreduced", "replicated")


@dataclass(frozen=True)
class HloSharding:
    """One sharding. ``kind`` determines which of the other fields are used.

    kind: ``replicated``, ``manual``, ``unreduced``, ``unknown``, ``maximal`` (all on ``device``), ``tiled``
      (``tiles``, whose last ``len(subgroups)`` dimensions are subgroups) or ``tuple`` (``elements``).
    group: ``shard_as 1`` or ``shard_like 1``; values of one group should be sharded alike.
    """

    kind: str
    tiles: TileAssignment | None = None
    subgroups: tuple[str, ...] = ()
    device: int = -1
    elements: tuple[HloSharding, ...] = ()
    group: str = ""

    # --- construction ---------------------------------------------------------------------------------------
    @staticmethod
    def replicated() -> HloSharding:
        return HloSharding("replicated")

    @staticmethod
    def maximal(device: int) -> HloSharding:
        return HloSharding("maximal", device=device)

    @staticmethod
    def tuple_of(elements: Sequence[HloSharding]) -> HloSharding:
        return HloSharding("tuple", elements=tuple(elements))

    @staticmethod
    def tiled(tiles: TileAssignment, subgroups: Sequence[str] = ()) -> HloSharding:
        """The canonical form: one subgroup per kind, in order, none of size 1; without any split, not tiled."""
        if isinstance(tiles.order, IotaOrder):
            tiles = replace(tiles, order=IotaOrder.canonical(tiles.order.reshape, tiles.order.transpose))
        rank = len(tiles.dims) - len(subgroups)
        if rank < 0 or any(kind not in SUBGROUPS for kind in subgroups):
            raise ShardingError(
                f"HloSharding: tile dimensions {tiles.dims} with subgroups {tuple(subgroups)}; expected at most "
                f"one subgroup per tile dimension, each of {', '.join(SUBGROUPS)}"
            )
        if not subgroups:
            return HloSharding("tiled", tiles)
        tiles, kinds = _join_subgroups(tiles, rank, tuple(subgroups))
        if len(kinds) == 1 and all(size == 1 for size in tiles.dims[:rank]):
            return HloSharding(kinds[0])
        if "replicated" in kinds:  # the order of replicas has no meaning; the increasing one is canonical
            tiles = tiles.sorted_along(rank + kinds.index("replicated"))
        return HloSharding("tiled", tiles, kinds)

    def with_group(self, group: str) -> HloSharding:
        return replace(self, group=group)

    # --- properties -----------------------------------------------------------------------------------------
    @property
    def rank(self) -> int | None:
        """The number of array dimensions that it applies to; None if any."""
        return len(self.tiles.dims) - len(self.subgroups) if self.tiles else None

    @property
    def tile_counts(self) -> tuple[int, ...]:
        """The number of tiles of each dimension; () if the sharding is not tiled."""
        return self.tiles.dims[: self.rank] if self.tiles else ()

    @property
    def num_devices(self) -> int | None:
        """The number of devices that it names; None if it fits any number."""
        return self.tiles.num_devices if self.tiles else None

    def check(self, ndim: int, num_devices: int, what: str = "value") -> None:
        """Raise ``ShardingError``, naming ``what``, unless it fits an array's rank and the number of devices."""
        if self.rank is not None and self.rank != ndim:
            raise ShardingError(
                f"{what}: sharding {self} is for {counted(self.rank, 'dimension')} but the array has {ndim}; "
                "give one tile count per dimension (and name subgroups in last_tile_dims)"
            )
        if self.num_devices is not None and self.num_devices != num_devices:
            raise ShardingError(
                f"{what}: sharding {self} names {counted(self.num_devices, 'device')} but the program runs on "
                f"{num_devices}; use a tile assignment of {counted(num_devices, 'device')}"
            )
        if self.kind == "maximal" and not 0 <= self.device < num_devices:
            raise ShardingError(
                f"{what}: sharding {self} names a device out of range; the program has devices 0 to {num_devices - 1}"
            )

    def __repr__(self) -> str:
        return f"HloSharding({str(self)!r})"

    def __str__(self) -> str:
        if self.kind == "tuple":
            return "{" + ", ".join(map(str, self.elements)) + "}"
        parts = [self._body()]
        if self.subgroups == ("replicated",):
            parts.append("last_tile_dim_replicate")
        elif self.subgroups:
            parts.append(f"last_tile_dims={{{', '.join(self.subgroups)}}}")
        if self.group:
            parts.append(self.group)
        return "{" + " ".join(parts) + "}"

    def _body(self) -> str:
        if self.kind == "tiled":
            return str(self.tiles)
        return f"maximal device={self.device}" if self.kind == "maximal" else self.kind


def _join_subgroups(
    tiles: TileAssignment, rank: int, subgroups: tuple[str, ...]
) -> tuple[TileAssignment, tuple[str, ...]]:
    """Merge subgroups of one kind into one dimension, in the order of ``SUBGROUPS``; drop those of size 1."""
    if tiles.num_devices == 1:
        return tiles, subgroups[:1]  # nothing is split, so only the kind of subgroup remains
    sizes = tiles.dims[rank:]
    kept = sorted((i for i in range(len(sizes)) if sizes[i] > 1), key=lambda i: SUBGROUPS.index(subgroups[i]))
    tiles = tiles.reshaped((*tiles.dims[:rank], *(size for size in sizes if size > 1)))
    before = sorted(kept)
    order = (*range(rank), *(rank + before.index(i) for i in kept))
    if order != tuple(range(len(order))):
        tiles = tiles.transposed(order)
    kinds = tuple(dict.fromkeys(subgroups[i] for i in kept))
    joined = (math.prod(sizes[i] for i in kept if subgroups[i] == kind) for kind in kinds)
    return tiles.reshaped((*tiles.dims[:rank], *joined)), kinds
