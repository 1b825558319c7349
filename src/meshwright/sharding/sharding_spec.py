"""How ``pmap`` says where things are: how each dimension of an array is cut, and where the pieces lie on a grid.

``ShardingSpec((Unstacked(4), Chunked([2])), (ShardedAxis(0), ShardedAxis(1), Replicated(2)))`` is an array whose first
dimension of size 4 is taken apart, whose second is cut in two, on a 4 × 2 × 2 grid of devices.

Source: the ``ShardingSpec`` of JAX (``jax.interpreters.pxla``).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from meshwright.core.records import dataclass
from meshwright.core.words import counted
from meshwright.errors import ShardingError
from meshwright.sharding.base import Sharding
from meshwright.sharding.hlo import HloSharding
from meshwright.sharding.hlo_convert import named_to_hlo
from meshwright.sharding.mesh import AbstractMesh
from meshwright.sharding.named import NamedSharding
from meshwright.sharding.spec import PartitionSpec
from meshwright.sharding.tiles import tile_slice

Index = tuple[Any, ...]


@dataclass(frozen=True)
class NoSharding:
    """The dimension is whole."""


@dataclass(frozen=True, init=False)
class Chunked:
    """The dimension is cut in ``prod(chunks)`` equal pieces; the first of ``chunks`` is the major one."""

    chunks: tuple[int, ...]

    def __init__(self, chunks: int | Sequence[int]) -> None:
        object.__setattr__(self, "chunks", (chunks,) if isinstance(chunks, int) else tuple(chunks))


@dataclass(frozen=True)
class Unstacked:
    """The dimension of this size is taken apart: pieces are without it."""

    size: int


@dataclass(frozen=True)
class ShardedAxis:
    """A dimension of the device grid along which the piece number of cut ``axis`` counts: cuts are numbered from 0."""

    axis: int


@dataclass(frozen=True)
class Replicated:
    """A dimension of the device grid along which all have the same."""

    replicas: int


Cut = NoSharding | Chunked | Unstacked
Assignment = ShardedAxis | Replicated


@dataclass(frozen=True, init=False)
class ShardingSpec:
    """See the module. ``sharding`` has one entry a dimension, ``mesh_mapping`` one a dimension of the device grid.

    Raises:
      ShardingError: a cut that no dimension of the grid is for, or several are.
    """

    sharding: tuple[Cut, ...]
    mesh_mapping: tuple[Assignment, ...]

    def __init__(self, sharding: Sequence[Cut], mesh_mapping: Sequence[Assignment]) -> None:
        object.__setattr__(self, "sharding", tuple(sharding))
        object.__setattr__(self, "mesh_mapping", tuple(mesh_mapping))
        named = sorted(m.axis for m in self.mesh_mapping if isinstance(m, ShardedAxis))
        if named != list(range(len(self.cuts))):
            raise ShardingError(
                f"{self}: the cuts {list(self.cuts)} are numbered from 0, and each needs one ShardedAxis; mesh_mapping "
                f"has {named}"
            )

    @property
    def cuts(self) -> tuple[int, ...]:
        """The numbers of pieces, dimension by dimension."""
        return tuple(n for entry in self.sharding for n in _pieces(entry))

    @property
    def mesh_shape(self) -> tuple[int, ...]:
        """The shape of the device grid."""
        cuts = self.cuts
        return tuple(cuts[m.axis] if isinstance(m, ShardedAxis) else m.replicas for m in self.mesh_mapping)

    def named(self) -> tuple[AbstractMesh, PartitionSpec]:
        """The grid as a mesh with the axes ``cut0``, ``replica0``, ..., and what splits which dimension."""
        kinds = ("cut" if isinstance(m, ShardedAxis) else "replica" for m in self.mesh_mapping)
        numbers = (m.axis if isinstance(m, ShardedAxis) else i for i, m in enumerate(self.mesh_mapping))
        names = [f"{kind}{number}" for kind, number in zip(kinds, numbers)]
        counted = iter(range(len(self.cuts)))
        entries = [tuple(f"cut{next(counted)}" for _ in _pieces(entry)) for entry in self.sharding]
        return AbstractMesh(self.mesh_shape, names), PartitionSpec(*entries)

    def sharding_proto(self) -> HloSharding:
        """As HLO writes it; a dimension that is taken apart is one that is cut."""
        return named_to_hlo(NamedSharding(*self.named()), len(self.sharding))

    def indices(self, shape: Sequence[int]) -> np.ndarray:
        """The index of each piece, in an array of the shape of the device grid.

        Raises:
          ShardingError: a shape that cannot be cut so.
        """
        self.check(shape)
        mesh, spec = self.named()
        table = NamedSharding(mesh, spec).tile_table(len(self.sharding))
        pieces = np.empty(len(table), object)
        for i, tiles in enumerate(table.tolist()):
            pieces[i] = tuple(map(_index, self.sharding, shape, tiles))
        return pieces.reshape(self.mesh_shape)

    def check(self, shape: Sequence[int], what: str = "array") -> None:
        """Raise unless an array of ``shape`` can be cut so.

        Raises:
          ShardingError: naming the dimension.
        """
        if len(shape) != len(self.sharding):
            raise ShardingError(
                f"{what}: {self} is for {counted(len(self.sharding), 'dimension')}, the shape is {tuple(shape)}"
            )
        for dim, (size, entry) in enumerate(zip(shape, self.sharding)):
            n = prod(_pieces(entry))
            if size != n if isinstance(entry, Unstacked) else size % n:
                raise ShardingError(
                    f"{what}: dimension {dim} of shape {tuple(shape)} cannot be cut as {entry}: its size must be "
                    + (f"{n}" if isinstance(entry, Unstacked) else f"a multiple of {n}, pad it")
                )

    @staticmethod
    def of(sharding: Sharding, shape: Sequence[int]) -> ShardingSpec:
        """The spec of an array of this shape and sharding; dimensions in pieces of one row are taken apart.

        Raises:
          ShardingError: a sharding of a single device, or one that pads.
        """
        named = sharding.to_named()
        if not isinstance(named, NamedSharding):
            raise ShardingError(f"ShardingSpec.of: {sharding!r} is of one device; it has no grid")
        mesh, layout = named.abstract_mesh, named.layout(len(shape))
        parts: list[tuple[str, ...]] = []  # the atoms of each cut
        entries: list[Cut] = []
        for dim, (size, atoms) in enumerate(zip(shape, layout.dims)):
            own = [mesh.atoms_of(name) for name in mesh.coalesce(atoms)]
            if not own and size == 1 and named.spec.axes(dim):
                own = [()]  # cut by an axis of size one
            entries.append(_entry(size, [mesh.sizes(part) for part in own]))
            parts += own
        spec = ShardingSpec(entries, _mapping(mesh, parts))
        spec.check(shape, "ShardingSpec.of")
        return spec


def _entry(size: int, chunks: Sequence[int]) -> Cut:
    if not chunks:
        return NoSharding()
    return Unstacked(size) if list(chunks) == [size] else Chunked(chunks)


def _mapping(mesh: AbstractMesh, parts: Sequence[tuple[str, ...]]) -> list[Assignment]:
    """What each dimension of the grid of ``mesh`` is for, where ``parts`` are the atoms of each cut."""
    cut = {atom: number for number, atoms in enumerate(parts) for atom in atoms}
    runs = [(cut.get(a), mesh.axis_size(a)) for a in mesh.atoms]
    mapping: list[Assignment] = []
    for number, group in itertools.groupby(runs, lambda run: run[0]):
        mapping.append(Replicated(prod(n for _, n in group)) if number is None else ShardedAxis(number))
    return [*(ShardedAxis(i) for i, atoms in enumerate(parts) if not atoms), *mapping]


def spec_to_indices(shape: Sequence[int], spec: ShardingSpec) -> tuple[Index, ...]:
    """The index of each device's piece of an array of ``shape``, in the order of devices."""
    return tuple(spec.indices(shape).flat)


def _pieces(entry: Cut) -> tuple[int, ...]:
    if isinstance(entry, Unstacked):
        return (entry.size,)
    return entry.chunks if isinstance(entry, Chunked) else ()


def _index(entry: Cut, size: int, tile: int) -> Any:
    return tile if isinstance(entry, Unstacked) else tile_slice(size, prod(_pieces(entry)), tile)
