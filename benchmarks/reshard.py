"""Bytes of reshard plans against the lower bound: what a device must receive at least."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator

from benchmarks.common import table
from meshwright.sharding import AbstractMesh, Layout, tile_slices, tile_table
from meshwright.spmd.reshard.plan import plan_reshard
from meshwright.spmd.reshard.steps import buffer_bytes

ITEMSIZE = 4


def layouts(mesh: AbstractMesh, ndim: int) -> list[Layout]:
    """Every way to split dimensions by whole axes, in every order."""
    found = set()
    axes = mesh.axis_names
    for count in range(len(axes) + 1):
        for order in itertools.permutations(axes, count):
            for dims in itertools.product(range(ndim), repeat=count):
                split: list[tuple[str, ...]] = [()] * ndim
                for axis, dim in zip(order, dims):
                    split[dim] += mesh.atoms_of(axis)
                found.add(Layout(tuple(split)))
    return sorted(found, key=str)


def lower_bound(shape: tuple[int, ...], src: Layout, dst: Layout, mesh: AbstractMesh) -> int:
    """Bytes of its new tile that a device does not hold, at most over devices."""
    counts = [[layout.num_tiles(d, mesh) for d in range(len(shape))] for layout in (src, dst)]
    worst = 0
    for have, want in zip(tile_table(src, mesh), tile_table(dst, mesh)):
        held, wanted = (
            [range(size)[part] for size, part in zip(shape, tile_slices(shape, n, t))]
            for n, t in zip(counts, (have, want))
        )
        both = [max(0, min(h.stop, w.stop) - max(h.start, w.start)) for h, w in zip(held, wanted)]
        worst = max(worst, math.prod(map(len, wanted)) - math.prod(both))
    return worst * ITEMSIZE


def _row(
    name: str, shape: tuple[int, ...], mesh: AbstractMesh, pairs: Iterable[tuple[Layout, Layout]], xla: str
) -> list[str]:
    ratios, above = [], 0
    for src, dst in pairs:
        plan = plan_reshard(shape, ITEMSIZE, src, dst, mesh)
        bound = lower_bound(shape, src, dst, mesh)
        if bound:
            ratios.append(plan.bytes_sent / bound)
        larger = max(buffer_bytes(shape, ITEMSIZE, lo, mesh) for lo in (src, dst))
        above += any(buffer_bytes(shape, ITEMSIZE, after, mesh) > larger for _, after in plan.steps)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return [name, str(len(ratios)), f"{mean:.3f}", f"{max(ratios):.3f}", str(above), xla]


def _random_pairs(found: list[Layout], count: int) -> Iterator[tuple[Layout, Layout]]:
    rng = random.Random(0)
    for _ in range(count):
        yield rng.choice(found), rng.choice(found)


def main() -> None:
    two = AbstractMesh((4, 2), ("data", "model"))
    three = AbstractMesh((2, 2, 2), ("x", "y", "z"))
    large = AbstractMesh((8, 4, 2), ("x", "y", "z"))
    every = itertools.product
    rows = [
        _row("2-D on 4×2, all pairs", (64, 64), two, every(layouts(two, 2), repeat=2), "1.32 / 4"),
        _row("3-D on 4×2, all pairs", (32, 32, 32), two, every(layouts(two, 3), repeat=2), "1.56 / 8"),
        _row("2-D on 2×2×2, 400 random", (64, 64), three, _random_pairs(layouts(three, 2), 400), "1.54 / 12"),
        _row("2-D on 4×2, uneven, all pairs", (61, 45), two, every(layouts(two, 2), repeat=2), ""),
        _row("3-D on 4×2, uneven, 400 random", (31, 17, 29), two, _random_pairs(layouts(two, 3), 400), ""),
        _row("2-D on 8×4×2, 400 random", (256, 128), large, _random_pairs(layouts(large, 2), 400), ""),
        _row("2-D on 8×4×2, uneven, 400 random", (250, 131), large, _random_pairs(layouts(large, 2), 400), ""),
    ]
    table(
        "Resharding: bytes sent over the lower bound",
        ["", "pairs", "geometric mean", "maximum", "plans with a buffer above the larger shard", "XLA, mean / maximum"],
        rows,
        "targets: mean ≤ 1.02, maximum ≤ 1.2, no larger buffer; XLA's figures are of jaxlib 0.10.2",
    )
