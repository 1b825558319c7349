"""Blocks: runs of atomic axes that a reshard moves together.

A 512 x 128 mesh has sixteen atoms, far too many to search over, but most reshards move an axis such as ``data`` as a
whole. Atoms that are adjacent in both the source and the target form one block. A block is split where a permute may
need it: where the other layout has a boundary at the same tile count of the dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.sharding import AbstractMesh, Layout

Place = tuple[str, int, int]  # ("dim", dimension, position), ("partial", 0, 0) or ("free", 0, 0)


def blocks_of(src: Layout, dst: Layout, mesh: AbstractMesh) -> tuple[tuple[str, ...], ...]:
    """The atoms that a reshard from ``src`` to ``dst`` may move, as blocks, without those that are partial in both."""
    src_places, dst_places = _places(src), _places(dst)
    sequences = [*src.dims, *_outside(src, dst)]
    cuts: set[str] = set()  # atoms that start a block
    for sequence in sequences:
        for i, atom in enumerate(sequence):
            if i == 0 or not (
                _follows(src_places, sequence[i - 1], atom) and _follows(dst_places, sequence[i - 1], atom)
            ):
                cuts.add(atom)
    _cut_at_equal_counts(src, dst, mesh, cuts)
    return tuple(block for sequence in sequences for block in _split(sequence, cuts))


def in_blocks(atoms: Sequence[str], blocks: Sequence[tuple[str, ...]]) -> tuple[int, ...]:
    """A run of atoms as block numbers."""
    starts = {block[0]: number for number, block in enumerate(blocks)}
    return tuple(starts[atom] for atom in atoms if atom in starts)


def _places(layout: Layout) -> dict[str, Place]:
    places: dict[str, Place] = dict.fromkeys(layout.partial, ("partial", 0, 0))
    for dim, atoms in enumerate(layout.dims):
        places.update({atom: ("dim", dim, i) for i, atom in enumerate(atoms)})
    return places


def _follows(places: dict[str, Place], first: str, second: str) -> bool:
    a, b = places.get(first, ("free", 0, 0)), places.get(second, ("free", 0, 0))
    return a[:2] == b[:2] and (a[0] != "dim" or a[2] + 1 == b[2])


def _outside(src: Layout, dst: Layout) -> Iterator[tuple[str, ...]]:
    """The touched atoms that split nothing in ``src``: in the order of ``dst``, then those that split nothing."""
    inside = set(src.split_axes)
    for atoms in dst.dims:
        yield tuple(atom for atom in atoms if atom not in inside)
    inside.update(dst.split_axes, dst.partial)
    yield tuple(atom for atom in src.partial if atom not in inside)


def _cut_at_equal_counts(src: Layout, dst: Layout, mesh: AbstractMesh, cuts: set[str]) -> None:
    """Cuts blocks until both layouts have boundaries at the same tile counts, as far as atoms allow."""
    pairs = [pair for ours, theirs in zip(src.dims, dst.dims) for pair in ((ours, theirs), (theirs, ours))]
    changed = True
    while changed:
        changed = False
        for mine, other in pairs:
            boundaries = {count for count, atom in _starts(other, mesh).items() if atom is None or atom in cuts}
            for count, atom in _starts(mine, mesh).items():
                if atom is not None and count in boundaries and atom not in cuts:
                    cuts.add(atom)
                    changed = True


def _starts(atoms: Sequence[str], mesh: AbstractMesh) -> dict[int, str | None]:
    """The atoms by the tile count in front of them, and None by the count of all."""
    starts: dict[int, str | None] = {}
    count = 1
    for atom in atoms:
        starts[count] = atom
        count *= mesh.axis_size(atom)
    return {**starts, count: None}


def _split(sequence: Sequence[str], cuts: set[str]) -> Iterator[tuple[str, ...]]:
    block: list[str] = []
    for atom in sequence:
        if atom in cuts and block:
            yield tuple(block)
            block = []
        block.append(atom)
    if block:
        yield tuple(block)
