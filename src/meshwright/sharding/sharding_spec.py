"""The shardings of ``pmap``: how each dimension is cut, and how the pieces are assigned to a grid of devices.

``ShardingSpec((Unstacked(4), Chunked([2])), (ShardedAxis(0), ShardedAxis(1), Replicated(2)))`` is an array whose first
dimension, of size 4, is unstacked and whose second is cut in two, on a 4 × 2 × 2 grid of devices.

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
from meshwright.sharding.abstract_mesh import AbstractMesh
from meshwright.sharding.base import Sharding
from meshwright.sharding.hlo import HloSharding
from meshwright.sharding.hlo_convert import named_to_hlo
from meshwright.sharding.named import NamedSharding
from meshwright.sharding.spec import PartitionSpec
from meshwright.sharding.tiles import tile_slice

Index = tuple[Any, ...]


@dataclass(frozen=True)
class NoSharding:
    """A dimension that is not cut."""


@dataclass(frozen=True, init=False)
class Chunked:
    """A dimension cut into ``prod(chunks)`` equal pieces; the first of ``chunks`` is the most significant."""

    chunks: tuple[int, ...]

    def __init__(self, chunks: int | Sequence[int]) -> None:
        object.__setattr__(self, "chunks", (chunks,) if isinstance(chunks, int) else tuple(chunks))


@dataclass(frozen=True)
class Unstacked:
    """A dimension of this size of which each piece has one index; pieces do not have the dimension."""

    size: int


@dataclass(frozen=True)
class ShardedAxis:
    """A dimension of the device grid along which the pieces of cut number ``axis`` are assigned."""

    axis: int


@dataclass(frozen=True)
class Replicated:
    """A dimension of the device grid along which all devices hold the same piece."""

    replicas: int


Cut = NoSharding | Chunked | Unstacked
Assignment = ShardedAxis | Replicated


@dataclass(frozen=True, init=False)
class ShardingSpec:
    """See the module. ``sharding`` has an entry per array dimension, ``mesh_mapping`` one per grid dimension.

    Raises:
      ShardingError: a cut does not have exactly one dimension of the grid.
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
        """The number of pieces of each cut, in the order of the dimensions."""
        return tuple(n for entry in self.sharding for n in _pieces(entry))

    @property
    def mesh_shape(self) -> tuple[int, ...]:
        """The shape of the device grid."""
        cuts = self.cuts
        return tuple(cuts[m.axis] if isinstance(m, ShardedAxis) else m.replicas for m in self.mesh_mapping)

    def named(self) -> tuple[AbstractMesh, PartitionSpec]:
        """The grid as a mesh with axes ``cut0``, ``replica0``, ..., and the spec over it."""
        kinds = ("cut" if isinstance(m, ShardedAxis) else "replica" for m in self.mesh_mapping)
        numbers = (m.axis if isinstance(m, ShardedAxis) else i for i, m in enumerate(self.mesh_mapping))
        names = [f"{kind}{number}" for kind, number in zip(kinds, numbers)]
        counted = iter(range(len(self.cuts)))
        entries = [tuple(f"cut{next(counted)}" for _ in _pieces(entry)) for entry in self.sharding]
        return AbstractMesh(self.mesh_shape, names), PartitionSpec(*entries)

    def sharding_proto(self) -> HloSharding:
        """The HLO sharding; an unstacked dimension is written as a split one."""
        return named_to_hlo(NamedSharding(*self.named()), len(self.sharding))

    def indices(self, shape: Sequence[int]) -> np.ndarray:
        """The index of each piece, in an array of the shape of the device grid.

        Raises:
          ShardingError: arrays of ``shape`` cannot be cut in this way.
        """
        self.check(shape)
        mesh, spec = self.named()
        table = NamedSharding(mesh, spec).tile_table(len(self.sharding))
        pieces = np.empty(len(table), object)
        for i, tiles in enumerate(table.tolist()):
            pieces[i] = tuple(map(_index, self.sharding, shape, tiles))
        return pieces.reshape(self.mesh_shape)

    def check(self, shape: Sequence[int], what: str = "array") -> None:
        """Raise unless an array of ``shape`` can be cut in this way.

        Raises:
          ShardingError: names the dimension.
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
        """The spec for an array of this shape and sharding; dimensions in pieces of one row are unstacked.

        Raises:
          ShardingError: the sharding has a single device, or needs padding.
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
    """The use of each dimension of the grid of ``mesh``, where ``parts`` are the atoms of each cut."""
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
