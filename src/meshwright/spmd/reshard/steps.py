"""The steps a reshard is made of, as data: what each does to a layout and what it costs.

``axes`` are atomic axes, major to minor. A step acts on every group of devices that differ only on its axes.
Costs are bytes that one device sends, by the ring algorithms' formulas, on padded local shapes:

=====================  =========================================  ===========================================
kind                   what it does                               bytes sent, group of g
=====================  =========================================  ===========================================
all_gather             minor-most axes of ``dim`` join            out * (g-1) / g
all_slice              each device keeps its own part of ``dim``  0
all_to_all             minor-most axes of one dim go to another   n * (g-1) / g
collective_permute     whole tiles change places                  n
overlap                tiles become any others, in permutes       the chunks of all of them
reduce_scatter         a partial value is combined and split      in * (g-1) / g
all_reduce             a partial value is combined                2 * n * (g-1) / g
make_partial           kept on index 0, identity elsewhere        0
=====================  =========================================  ===========================================

Uneven dimensions follow the flat convention (see ``meshwright.sharding.layout``): a buffer is ceil(D / n)
rows. A gather of b out of (a, b) therefore needs g_b * ceil(D / (n_a * n_b)) == ceil(D / n_a), unless nothing
is left to split the dimension (the rows past D are then cut off); a slice needs the same, unless the
dimension was whole (it is then padded first). ``joins`` states this; where it does not hold the step does not
exist. What they cannot do, ``overlap`` does: it may also change how far a dimension is padded, so that the steps
that follow exist.

Source: Rink et al. 2021, "Memory-efficient array redistribution through portable collective communication".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from meshwright.core.records import dataclass
from meshwright.sharding import AbstractMesh, Layout
from meshwright.spmd.reshard.exchange import chains, wired
from meshwright.spmd.reshard.overlap import Overlaps, Tiling, least_overlaps, plan_overlaps


def joins(size: int, kept: int, moved: int) -> bool:
    """Whether ``moved`` neighbouring tiles of a dimension of ``size`` rows make up one of ``kept`` tiles."""
    return kept == 1 or moved * -(-size // (kept * moved)) == -(-size // kept)


def buffer_bytes(shape: Sequence[int], itemsize: int, layout: Layout, mesh: AbstractMesh) -> int:
    """The size of one device's buffer, padding included."""
    return itemsize * math.prod(layout.local_shape(shape, mesh))


@dataclass(frozen=True)
class AllGather:
    """The minor-most ``axes`` of ``dim`` stop splitting it."""

    axes: tuple[str, ...]
    dim: int
    kind: ClassVar[str] = "all_gather"

    def apply(self, layout: Layout, mesh: AbstractMesh) -> Layout:
        atoms = layout.dims[self.dim]
        return layout.with_dim(self.dim, atoms[: len(atoms) - len(self.axes)])

    def bytes_sent(self, shape: Sequence[int], itemsize: int, before: Layout, mesh: AbstractMesh) -> int:
        return (mesh.sizes(self.axes) - 1) * buffer_bytes(shape, itemsize, before, mesh)

    def __str__(self) -> str:
        return f"all_gather {_names(self.axes)} on dim {self.dim}"


@dataclass(frozen=True)
class Slice:
    """``axes`` that the value is replicated over split ``dim`` further, minor-most."""

    axes: tuple[str, ...]
    dim: int
    kind: ClassVar[str] = "all_slice"

    def apply(self, layout: Layout, mesh: AbstractMesh) -> Layout:
        return layout.with_dim(self.dim, layout.dims[self.dim] + self.axes)

    def bytes_sent(self, shape: Sequence[int], itemsize: int, before: Layout, mesh: AbstractMesh) -> int:
        return 0

    def __str__(self) -> str:
        return f"slice dim {self.dim} by {_names(self.axes)}"


@dataclass(frozen=True)
class AllToAll:
    """The minor-most ``axes`` of ``src_dim`` become the minor-most of ``dst_dim``."""

    axes: tuple[str, ...]
    src_dim: int
    dst_dim: int
    kind: ClassVar[str] = "all_to_all"

    def apply(self, layout: Layout, mesh: AbstractMesh) -> Layout:
        atoms = layout.dims[self.src_dim]
        moved = layout.with_dim(self.src_dim, atoms[: len(atoms) - len(self.axes)])
        return moved.with_dim(self.dst_dim, moved.dims[self.dst_dim] + self.axes)

    def bytes_sent(self, shape: Sequence[int], itemsize: int, before: Layout, mesh: AbstractMesh) -> int:
        chunk = before.with_dim(self.dst_dim, before.dims[self.dst_dim] + self.axes)
        return (mesh.sizes(self.axes) - 1) * buffer_bytes(shape, itemsize, chunk, mesh)

    def __str__(self) -> str:
        return f"all_to_all {_names(self.axes)} from dim {self.src_dim} to dim {self.dst_dim}"


@dataclass(frozen=True)
class Exchange:
    """Several dimensions change at once, from tiles ``before`` to tiles ``after``; see ``exchange`` for how.

    ``axes`` are those whose chunks go all to all. Where ``rounds`` is 1, it is one all-to-all over them (its bytes
    those of an all-to-all); else so many permutes of a chunk each, together of one buffer.
    """

    axes: tuple[str, ...]
    before: tuple[tuple[str, ...], ...]
    after: tuple[tuple[str, ...], ...]
    rounds: int

    @property
    def kind(self) -> str:
        return "all_to_all" if self.rounds == 1 else "collective_permute"

    def apply(self, layout: Layout, mesh: AbstractMesh) -> Layout:
        return Layout(self.after, layout.partial, layout.reduction)

    def bytes_sent(self, shape: Sequence[int], itemsize: int, before: Layout, mesh: AbstractMesh) -> int:
        size = buffer_bytes(shape, itemsize, Layout(self.after), mesh)
        return size - size // mesh.sizes(self.axes) if self.rounds == 1 else size

    def wires(self, mesh: AbstractMesh) -> tuple[str, ...]:
        """The axes along which devices send: where they are renamed, more than ``axes``."""
        return mesh.in_mesh_order(wired(chains(self.before, self.after, dict(zip(mesh.atoms, mesh.atom_sizes))) or []))

    def __str__(self) -> str:
        how = "all_to_all" if self.rounds == 1 else f"collective_permute in {self.rounds} rounds"
        return f"{how} over {_names(self.axes)} from {Layout(self.before)} to {Layout(self.after)}"


@dataclass(frozen=True)
class Permute:
    """Whole tiles change places, after which the value is split by ``dims``.

    ``perm`` holds a pair (source, target) of row-major indices over ``axes`` for every device of a group, those
    that keep their tile included.
    """

    axes: tuple[str, ...]
    perm: tuple[tuple[int, int], ...]
    dims: tuple[tuple[str, ...], ...]
    kind: ClassVar[str] = "collective_permute"

    def apply(self, layout: Layout, mesh: AbstractMesh) -> Layout:
        return Layout(self.dims, layout.partial, layout.reduction)

    def bytes_sent(self, shape: Sequence[int], itemsize: int, before: Layout, mesh: AbstractMesh) -> int:
        return buffer_bytes(shape, itemsize, before, mesh)

    def __str__(self) -> str:
        return f"collective_permute over {_names(self.axes)} to {Layout(self.dims)}"


@dataclass(frozen=True)
class Overlap:
    """Tiles become others that need not nest in them: every device gets what its new tile lacks.

    ``size`` is that of the array. Its dimensions are padded as ``before`` and ``after`` say. ``start``: the elements
    that starting a permute counts for.
    """

    axes: tuple[str, ...]
    size: tuple[int, ...]
    before: Tiling
    after: Tiling
    start: int
    kind: ClassVar[str] = "collective_permute"

    def plan(self, mesh: AbstractMesh) -> Overlaps:
        overlaps = plan_overlaps(self.size, self.before, self.after, mesh, self.start)
        assert overlaps is not None, "only overlaps that have a plan are made steps"
        return overlaps

    def is_possible(self, mesh: AbstractMesh) -> bool:
        """Whether it has a plan."""
        return plan_overlaps(self.size, self.before, self.after, mesh, self.start) is not None

    def least(self, mesh: AbstractMesh) -> float:
        """The elements that a device sends at least, without planning; infinite if that takes too much."""
        return least_overlaps(self.size, self.before, self.after, mesh)

    def apply(self, layout: Layout, mesh: AbstractMesh) -> Layout:
        return Layout(self.after.layout.dims, layout.partial, layout.reduction)

    def bytes_sent(self, shape: Sequence[int], itemsize: int, before: Layout, mesh: AbstractMesh) -> int:
        return itemsize * sum(self.plan(mesh).sent)

    def __str__(self) -> str:
        padded = f", padded to {self.after.shape}" if self.after.shape != self.size else ""
        inner = f", each tile split to {Layout(self.after.inner)}" if any(self.after.inner) else ""
        return f"collective_permute of overlaps over {_names(self.axes)} to {Layout(self.after.dims)}{inner}{padded}"


@dataclass(frozen=True)
class ReduceScatter:
    """The value is combined over ``axes``, which then split ``dim``, minor-most."""

    axes: tuple[str, ...]
    dim: int
    reduction: str
    kind: ClassVar[str] = "reduce_scatter"

    def apply(self, layout: Layout, mesh: AbstractMesh) -> Layout:
        left = tuple(atom for atom in layout.partial if atom not in self.axes)
        split = layout.with_dim(self.dim, layout.dims[self.dim] + self.axes)
        return split.with_partial(left, layout.reduction)

    def bytes_sent(self, shape: Sequence[int], itemsize: int, before: Layout, mesh: AbstractMesh) -> int:
        after = self.apply(before, mesh)
        return (mesh.sizes(self.axes) - 1) * buffer_bytes(shape, itemsize, after, mesh)

    def __str__(self) -> str:
        return f"reduce_scatter {self.reduction} over {_names(self.axes)} on dim {self.dim}"


@dataclass(frozen=True)
class AllReduce:
    """The value is combined over ``axes``, over which it is replicated afterwards."""

    axes: tuple[str, ...]
    reduction: str
    kind: ClassVar[str] = "all_reduce"

    def apply(self, layout: Layout, mesh: AbstractMesh) -> Layout:
        left = tuple(atom for atom in layout.partial if atom not in self.axes)
        return layout.with_partial(left, layout.reduction)

    def bytes_sent(self, shape: Sequence[int], itemsize: int, before: Layout, mesh: AbstractMesh) -> int:
        group = mesh.sizes(self.axes)
        return -(-2 * buffer_bytes(shape, itemsize, before, mesh) * (group - 1) // group)

    def __str__(self) -> str:
        return f"all_reduce {self.reduction} over {_names(self.axes)}"


@dataclass(frozen=True)
class MakePartial:
    """A replicated value becomes partial: kept at index 0 over ``axes``, the reduction's identity elsewhere."""

    axes: tuple[str, ...]
    reduction: str
    kind: ClassVar[str] = "make_partial"

    def apply(self, layout: Layout, mesh: AbstractMesh) -> Layout:
        return layout.with_partial(layout.partial + self.axes, self.reduction, mesh)

    def bytes_sent(self, shape: Sequence[int], itemsize: int, before: Layout, mesh: AbstractMesh) -> int:
        return 0

    def __str__(self) -> str:
        return f"make partial {self.reduction} over {_names(self.axes)}"


Step = AllGather | Slice | AllToAll | Exchange | Permute | Overlap | ReduceScatter | AllReduce | MakePartial


def collectives(step: Step, mesh: AbstractMesh) -> int:
    """How many collectives a step is."""
    match step:
        case Overlap():
            return len(step.plan(mesh).sent)
        case Exchange():
            return step.rounds
        case Slice() | MakePartial():
            return 0
    return 1


def _names(axes: tuple[str, ...]) -> str:
    return "{" + ", ".join(axes) + "}"
