"""Source-target pairs of collective permutes that move whole tiles between devices."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from meshwright.sharding import AbstractMesh, Layout
from meshwright.spmd.reshard.steps import Permute

#: the position of a tile in the grid of tiles
Tile = tuple[int, ...]


def permute_between(before: Layout, after: Layout, mesh: AbstractMesh) -> Permute:
    """The permute from ``before`` to ``after``, which must have equal tile counts in every dimension.

    Only atoms whose place or weight changes take part. A device that already holds its tile keeps it. If several
    devices hold a tile, senders and receivers are paired in order.
    """
    held, target = _weights(before, mesh), _weights(after, mesh)
    moving = {atom for atom in held.keys() | target.keys() if held.get(atom) != target.get(atom)}
    axes = mesh.in_mesh_order(moving)
    sizes = [mesh.axis_size(atom) for atom in axes]
    coordinates = dict(zip(axes, np.indices(sizes).reshape(len(sizes), -1)))
    have, want = (_tiles(weights, coordinates, before.rank) for weights in (held, target))
    return Permute(axes, tuple(_pairs(have, want)), after.dims)


def _weights(layout: Layout, mesh: AbstractMesh) -> dict[str, tuple[int, int]]:
    """For every atom, the dimension that it shards and its stride in tiles."""
    weights = {}
    for dim, atoms in enumerate(layout.dims):
        weight = 1
        for atom in reversed(atoms):
            weights[atom] = (dim, weight)
            weight *= mesh.axis_size(atom)
    return weights


def _tiles(weights: dict[str, tuple[int, int]], coordinates: dict[str, np.ndarray], rank: int) -> list[Tile]:
    count = len(next(iter(coordinates.values())))
    tiles = np.zeros((rank, count), dtype=np.int64)
    for atom, coordinate in coordinates.items():
        if atom in weights:
            dim, weight = weights[atom]
            tiles[dim] += weight * coordinate
    return list(zip(*tiles.tolist()))


def _pairs(have: list[Tile], want: list[Tile]) -> list[tuple[int, int]]:
    kept = [(device, device) for device in range(len(have)) if have[device] == want[device]]
    holders: dict[Tile, list[int]] = defaultdict(list)
    for device, tile in enumerate(have):
        if tile != want[device]:
            holders[tile].append(device)
    receivers = [device for device in reversed(range(len(want))) if have[device] != want[device]]
    moved = [(holders[want[device]].pop(), device) for device in receivers]
    return sorted(kept + moved)
