"""Matrix products in every layout of operands and result: bytes sent, against the best known.

The best is found by enumeration: each mesh axis splits one of the three loops of the product, and operands and result
are resharded accordingly (``reshard`` compares the bytes of reshards with a lower bound). Along an axis that does not
split any value, all devices do the same. With one axis there are 27 layouts; with two there are 729, of which 150 are
sampled.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from benchmarks.common import table
from meshwright.sharding import AbstractMesh, Layout
from meshwright.spmd.reshard.plan import plan_reshard

SIZES = {"i": 1024, "j": 768, "k": 512}
#: operands and result of ``c[i, j] = a[i, k] b[k, j]``
VALUES = ("ik", "kj", "ij")

#: the axes that split each dimension of a value
Dims = tuple[tuple[str, ...], ...]


def layouts(axes: Sequence[str]) -> list[Dims]:
    """Every way to split two dimensions by whole axes, with the first axis the most significant."""
    places = itertools.product((None, 0, 1), repeat=len(axes))
    return [tuple(tuple(a for a, p in zip(axes, place) if p == d) for d in (0, 1)) for place in places]


def best(given: Sequence[Dims], mesh: AbstractMesh) -> int:
    """The least bytes for a product that is shared along all axes that split one of its values."""
    used = [a for a in mesh.axis_names if any(a in dims for value in given for dims in value)]
    found = []
    for order in itertools.permutations(used):
        for loops in itertools.product("ijk", repeat=len(order)):
            split = {loop: tuple(a for a, at in zip(order, loops) if at == loop) for loop in "ijk"}
            found.append(_bytes(given, split, mesh))
    return min(found, default=0)


def _bytes(given: Sequence[Dims], split: dict[str, tuple[str, ...]], mesh: AbstractMesh) -> int:
    """The bytes sent for the product if its loops are split in this way."""
    total = 0
    for value, dims in zip(VALUES, given):
        inside = tuple(split[loop] for loop in value)
        pair = _layout(dims, mesh), _layout(inside, mesh, split["k"] if value == "ij" else ())
        before, after = pair if value != "ij" else pair[::-1]
        total += plan_reshard(tuple(SIZES[loop] for loop in value), 4, before, after, mesh).bytes_sent
    return total


def _layout(dims: Dims, mesh: AbstractMesh, partial: Sequence[str] = ()) -> Layout:
    found = tuple(tuple(atom for a in axes for atom in mesh.atoms_of(a)) for axes in dims)
    terms = tuple(atom for a in mesh.axis_names if a in partial for atom in mesh.atoms_of(a))
    return Layout(found, terms, "sum" if terms else "")


def ours(given: Sequence[Dims], mesh: AbstractMesh) -> tuple[int, float]:
    """The bytes that a device sends, and the work of all devices over the ideal, without idle axes."""
    import meshwright as mw
    from meshwright import PartitionSpec as P

    specs: list[Any] = [mw.NamedSharding(mesh, P(*(axes or None for axes in dims))) for dims in given]
    args = [mw.ShapeDtypeStruct(tuple(SIZES[loop] for loop in value), np.float32) for value in VALUES[:2]]
    run = mw.jit(lambda a, b: a @ b, in_shardings=tuple(specs[:2]), out_shardings=specs[2])
    part = run.lower(*args).partition(mesh)
    idle = math.prod(n for a, n in mesh.shape.items() if not any(a in dims for value in given for dims in value))
    return part.bytes_sent, part.work.redundancy / idle


def _row(name: str, mesh: AbstractMesh, cases: Iterable[Sequence[Dims]]) -> list[str]:
    ratios, work, free, worst = [], [], 0, ("", 0.0)
    for given in cases:
        sent, times = ours(given, mesh)
        least = best(given, mesh)
        work.append(times)
        if not least:
            free += sent > 0
            continue
        ratios.append(max(sent, 1) / least)
        worst = max(worst, (str(given), ratios[-1]), key=lambda entry: entry[1])
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    above = str(sum(r > 1.05 for r in ratios) + free)
    return [name, str(len(work)), f"{mean:.3f}", f"{max(ratios):.3f}", above, f"{max(work):.2f}", worst[0]]


def main() -> None:
    one, two = AbstractMesh((8,), ("x",)), AbstractMesh((4, 2), ("x", "y"))
    drawn = random.Random(0).sample(list(itertools.product(layouts(("x", "y")), repeat=3)), 150)
    table(
        "A matrix product 1024×512×768 in all layouts: bytes sent over the best",
        ["", "layouts", "geometric mean", "maximum", "above 1.05", "most work/ideal", "the worst"],
        [
            _row("one axis of 8", one, itertools.product(layouts(("x",)), repeat=3)),
            _row("two axes, 4×2", two, drawn),
        ],
        "targets: at most 1.05 of the bytes and 1.02 of the work, but where less than a quarter of the bytes is sent",
    )


if __name__ == "__main__":
    main()
