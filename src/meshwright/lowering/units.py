"""Units, and conversion between the arrays of a real device and the shards of a per-device program.

A unit is a whole mesh axis, or one of its atoms if the program or the target uses a part of the axis. The program is
batched over virtual units; its collectives over real units remain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn
from meshwright.ir.rewrite import in_regions, replaced
from meshwright.ir.tracing import typeof
from meshwright.lowering.target import Target
from meshwright.ops.collective.base import Collective
from meshwright.ops.collective.inside import collectives_in
from meshwright.ops.collective.tiles import AllGather, AllSlice
from meshwright.ops.shape.rearrange import squeeze, transpose
from meshwright.ops.shape.slice_pad import slice_in_dim
from meshwright.sharding import AbstractMesh, Layout
from meshwright.spmd.partition.result import Partition
from meshwright.spmd.reshard.emit import fit_rows


@dataclass(frozen=True)
class Units:
    """The units of a program: ``names`` in mesh order, of which ``virtual`` are to be batched over."""

    mesh: AbstractMesh
    names: tuple[str, ...]
    sizes: dict[str, int]
    of_atom: dict[str, str]
    virtual: tuple[str, ...]

    @staticmethod
    def of(part: Partition, target: Target | None = None, atoms: bool = False) -> Units:
        """The units of a program, all virtual without a target; with ``atoms``, every axis is split into atoms."""
        mesh = part.mesh
        real = target.real if target is not None else ()
        runs = [mesh.coalesce(axes) for lo in (*part.in_layouts, *part.out_layouts) for axes in lo.dims]
        used = [each.axes for each in collectives_in(part.jaxpr.jaxpr)]
        named = {axis for axes in used for axis in axes}
        whole = {a for a in mesh.axis_names if not atoms or not mesh.atoms_of(a)}
        whole = {a for a in whole if len({atom in real for atom in mesh.atoms_of(a)}) < 2}
        for name in (name for run in (*runs, *used) for name in run):
            if name not in mesh.shape:
                whole.discard(mesh.axis_of(mesh.atoms_of(name)[0]))
        names: list[str] = []
        of_atom: dict[str, str] = {}
        for axis in mesh.axis_names:
            parts = mesh.atoms_of(axis)
            if axis in whole and (parts or axis in named):
                names.append(axis)
                of_atom.update(dict.fromkeys(parts, axis))
            else:
                names += parts
                of_atom.update({a: a for a in parts})
        virtual = tuple(n for n in names if not set(mesh.atoms_of(n)).intersection(real))
        return Units(mesh, tuple(names), {n: mesh.axis_size(n) for n in names}, of_atom, virtual)

    def of_atoms(self, atoms: Sequence[str]) -> tuple[str, ...]:
        """The units of a run of atoms."""
        return tuple(dict.fromkeys(self.of_atom[a] for a in atoms))

    def of_axis(self, axis: str) -> list[str]:
        """The units of an axis or sub-axis."""
        return [axis] if axis in self.sizes else [u for u in self.names if _part_of(u, axis)]

    def virtual_of(self, atoms: Sequence[str]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """The virtual units of a run of atoms, and their sizes."""
        names = tuple(u for u in self.of_atoms(atoms) if u in self.virtual)
        return names, tuple(self.sizes[u] for u in names)


def with_units(jaxpr: ClosedJaxpr, units: Units) -> ClosedJaxpr:
    """The program with the axes of collectives replaced by their units."""

    def unit_axes(op: Collective) -> Collective:
        names = [unit for axis in op.axes for unit in units.of_axis(axis)]
        return op if tuple(names) == op.axes else op.over(names, [units.sizes[n] for n in names])

    def rename(eqn: JaxprEqn) -> JaxprEqn:
        if not isinstance(eqn.op, Collective):
            return in_regions(eqn, lambda region: with_units(region, units))
        op = unit_axes(eqn.op)
        return eqn if op is eqn.op else eqn.replace(op=op)

    return replaced(jaxpr, rename)


def _part_of(unit: str, axis: str) -> bool:
    """Whether a unit (an atom) lies inside an axis or sub-axis."""
    name, pre, size = _parse(unit)
    whole, start, extent = _parse(axis)
    if name != whole:
        return False
    return extent is None or (pre >= start and pre * (size or 1) <= start * extent)


def _parse(axis: str) -> tuple[str, int, int | None]:
    name, sep, rest = axis.rpartition(":(")
    if not sep:
        return axis, 1, None
    pre, _, size = rest.partition(")")
    return name, int(pre), int(size)


# --- entering and leaving -----------------------------------------------------------------------------------
def held_aval(aval: ShapedArray, layout: Layout, units: Units) -> ShapedArray:
    """The type of a real device's part of a global array.

    Dimensions that are sharded over real axes are padded to tiles of equal size.
    """
    shape = list(aval.shape)
    for dim, atoms in enumerate(layout.dims):
        names, sizes = units.virtual_of(atoms)
        if names != units.of_atoms(atoms):
            shape[dim] = math.prod(sizes) * -(-shape[dim] // units.mesh.sizes(atoms))
    return aval.update(shape=tuple(shape))


def enter(x: Any, layout: Layout, units: Units) -> Any:
    """The shard of this mesh position, from the array ``x`` of its real device."""
    for dim, atoms in enumerate(layout.dims):
        names, sizes = units.virtual_of(atoms)
        if names:
            n = math.prod(sizes)
            rows = -(-typeof(x).shape[dim] // n)
            x = AllSlice(names, sizes, dim).bind(fit_rows(x, dim, n * rows))
    return x


def leave(x: Any, layout: Layout, shape: Sequence[int], units: Units) -> Any:
    """The array of a real device, of ``shape``, assembled from the shards of all its positions."""
    for dim, atoms in enumerate(layout.dims):
        names, sizes = units.virtual_of(atoms)
        if names:
            x = fit_rows(AllGather(names, sizes, dim).bind(x), dim, shape[dim])
    return x


def first_of(val: Any, dim: int | None) -> Any:
    """The first device's copy of a replicated value."""
    return val if dim is None else squeeze(slice_in_dim(val, 0, 1, axis=dim), [dim])


def every_of(val: Any, dim: int | None) -> Any:
    """All devices' copies of a replicated value, stacked along dimension 0."""
    return val if not dim else transpose(val, [dim, *(d for d in range(typeof(val).ndim) if d != dim)])
