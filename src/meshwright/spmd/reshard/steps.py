"""The steps of a reshard as data: the effect of each on a layout, and its cost.

``axes`` are atomic axes, major to minor. A step acts on every group of devices that differ only along its axes.
Costs are the bytes that one device sends, by the formulas of ring algorithms, on padded local shapes:

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
rows. A gather of b out of (a, b) therefore needs g_b * ceil(D / (n_a * n_b)) == ceil(D / n_a), unless no axis
shards the dimension afterwards (the rows past D are then cut off). A slice needs the same, unless the dimension was
not sharded before (it is then padded first). ``joins`` checks this condition; if it does not hold, the step is not
allowed. In these cases ``overlap`` is used. It may also change the padding of a dimension, so that later steps are
allowed.

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
    """Whether ``moved`` adjacent tiles of a dimension of ``size`` rows form one of ``kept`` tiles."""
    return kept == 1 or moved * -(-size // (kept * moved)) == -(-size // kept)


def dims_in_parts(tiling: Tiling, mesh: AbstractMesh) -> set[int]:
    """The dimensions whose tiles are parts of larger tiles, and not what splitting them by all axes at once gives."""
    splits = ((size, mesh.sizes(outer), mesh.sizes(inner)) for size, outer, inner in zip(*tiling))
    return {dim for dim, split in enumerate(splits) if not joins(*split)}


def buffer_bytes(shape: Sequence[int], itemsize: int, layout: Layout, mesh: AbstractMesh) -> int:
    """The size of one device's buffer, padding included."""
    return itemsize * math.prod(layout.local_shape(shape, mesh))


@dataclass(frozen=True)
class AllGather:
    """Gathers ``dim`` over the minor-most ``axes`` that shard it."""

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
    """Shards ``dim`` further, minor-most, over ``axes`` over which the value is replicated."""

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
    """Moves the minor-most ``axes`` of ``src_dim`` to ``dst_dim``, as its minor-most."""

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
    """Changes several dimensions at once, from the tiling ``before`` to ``after``; see ``exchange``.

    ``axes`` are the axes of the all-to-all. If ``rounds`` is 1, the step is one all-to-all over them, with its cost.
    Otherwise it is ``rounds`` permutes of one chunk each, which together send one buffer.
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
    """Moves whole tiles between devices; the value is then sharded by ``dims``.

    ``perm`` has a pair (source, target) of row-major indices over ``axes`` for every device of a group, including those
    that keep their tile.
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
    """Changes the tiling to one that need not nest in it: every device receives what its new tile lacks.

    ``size`` is the array's shape without padding; ``before`` and ``after`` give the padding. ``start``: the cost of
    starting a permute, in elements.
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
        """A lower bound of the elements that a device sends, without planning; infinite if too expensive to plan."""
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
    """Reduces a partial value over ``axes``, which then shard ``dim``, minor-most."""

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
    """Reduces a partial value over ``axes``, over which it is then replicated."""

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
    """Makes a replicated value partial over ``axes``: kept at index 0, the reduction's identity elsewhere."""

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
    """The number of collectives of a step."""
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
