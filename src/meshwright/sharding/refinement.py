"""The common refinement of meshes that are grids of one set of devices.

Every axis of a mesh counts some digits of a device's number. Two meshes have a common refinement if the digits of each
can be cut so that those of the other are sequences of the pieces: 8 and 2 x 4 have 2 x 4, 2 x 4 and 4 x 2 have
2 x 2 x 2, and 2 x 3 and 3 x 2 have none.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

from meshwright.core.records import dataclass
from meshwright.sharding.abstract_mesh import AbstractMesh
from meshwright.sharding.base import Sharding
from meshwright.sharding.kinds import MeshOf, atoms_over, over
from meshwright.sharding.mesh import AnyMesh, Mesh
from meshwright.sharding.named import NamedSharding

Axes = tuple[str, ...]


@dataclass(frozen=True)
class Refinement:
    """A mesh; and for each of the given meshes, its axes as axes of this one, major to minor."""

    mesh: AnyMesh
    pieces: Mapping[AnyMesh, Mapping[str, Axes]]


def common_refinement(meshes: Collection[AnyMesh]) -> Refinement | None:
    """The mesh with the fewest axes of which every axis of ``meshes`` is a sequence.

    None if there is none: their devices or numbers of devices differ, or they cut these at other boundaries. A result
    over a mesh that is none of ``meshes`` is shown over the first of them that can express all the others.
    """
    return next((refined for base in meshes if (refined := _cut_like(base, meshes)) is not None), None)


def _cut_like(base: AnyMesh, meshes: Collection[AnyMesh]) -> Refinement | None:
    """The mesh made of ``base`` by cutting its axes; None if that does not give the axes of all ``meshes``."""
    as_atoms: dict[AnyMesh, dict[str, Axes]] = {}
    for mesh in meshes:
        found = {axis: atoms_over(base, mesh, (axis,)) for axis in mesh.axis_names}
        as_atoms[mesh] = {axis: atoms for axis, atoms in found.items() if atoms is not None}
        if len(as_atoms[mesh]) < len(found):
            return None
    axes = [pair for mesh in (base, *meshes) for pair in as_atoms[mesh].items()]
    runs = _runs(base.abstract_mesh, [atoms for _, atoms in axes])
    named = _named(runs, axes)
    trivial: dict[str, str] = {}
    for axis in dict.fromkeys(axis for axis, atoms in axes if not atoms):
        taken = {*named, *trivial.values()}
        trivial[axis] = _numbered(axis, taken) if axis in taken else axis
    sizes = {**{n: base.abstract_mesh.sizes(run) for n, run in named.items()}, **dict.fromkeys(trivial.values(), 1)}
    start = {run[0]: name for name, run in named.items()}
    pieces = {
        mesh: {a: tuple(start[x] for x in atoms if x in start) if atoms else (trivial[a],) for a, atoms in own.items()}
        for mesh, own in as_atoms.items()
    }
    return Refinement(_with_axes(base, sizes, meshes), pieces)


def _runs(mesh: AbstractMesh, axes: Sequence[Axes]) -> list[Axes]:
    """All atoms of a mesh, in as few runs as let each of ``axes`` be a sequence of runs."""
    where = {atom: i for i, atom in enumerate(mesh.atoms)}
    starts = {len(where)}
    for atoms in filter(None, axes):
        at = [where[atom] for atom in atoms]
        starts |= {at[0], at[-1] + 1}
        starts |= {end for i, j in itertools.pairwise(at) if j != i + 1 for end in (i + 1, j)}
    return [mesh.atoms[i:j] for i, j in itertools.pairwise(sorted(starts))]


def _named(runs: Sequence[Axes], axes: Sequence[tuple[str, Axes]]) -> dict[str, Axes]:
    """The runs by the name of an axis that they are, or else of one that they are a part of and a number."""
    named: dict[str, Axes] = {}
    for run in runs:
        whole = next((axis for axis, atoms in axes if atoms == run and axis not in named), None)
        part_of = next(axis for axis, atoms in axes if run[0] in atoms)
        named[whole or _numbered(f"{part_of}_", {*named, *(axis for axis, _ in axes)})] = run
    return named


def _numbered(name: str, taken: Collection[str]) -> str:
    return next(n for i in itertools.count() if (n := f"{name}{i}") not in taken)


def _with_axes(base: AnyMesh, sizes: Mapping[str, int], meshes: Collection[AnyMesh]) -> AnyMesh:
    """One of ``meshes`` if it has these axes, otherwise a mesh whose shardings are shown as those of ``base``."""
    for mesh in meshes:
        if list(mesh.shape.items()) == list(sizes.items()) and _ids(mesh) == _ids(base):
            return mesh
    if not isinstance(base, Mesh):
        return AbstractMesh(tuple(sizes.values()), tuple(sizes), machine=base.machine)
    return MeshOf(base.devices.reshape(tuple(sizes.values())), tuple(sizes), _Shown(base), machine=base.machine)


def _ids(mesh: AnyMesh) -> tuple[int, ...]:
    return mesh.flat_ids if isinstance(mesh, Mesh) else tuple(range(mesh.size))


@dataclass(frozen=True)
class _Shown:
    """Shows shardings over the axes of a mesh of the user's."""

    mesh: Mesh

    def __call__(self, sharding: NamedSharding, shape: tuple[int, ...]) -> Sharding:
        shown = over(sharding, self.mesh)
        return sharding if shown is None else shown.update(memory_kind=sharding.host_kind)
