"""Layouts: where the elements of one value are on a mesh.

A layout says for each dimension which atomic axes split it (major to minor), and over which atoms the value is
*partial*: every device holds a term, and the value is their sum (or max, min, product, and, or). Propagation infers
layouts, the partitioner chooses among them, and the reshard planner moves between them.

In a *masked* sum only one device has the value, such as the row ``x[0]``. The others hold negative zeros, the identity
of floating-point addition. It is completed like other sums, but must not be multiplied before: zero times infinity is
NaN.

Tiles are *flat*, as in XLA and JAX: a dimension of size D split n ways has tiles of c = ceil(D / n) rows. Tile t holds
the rows [t*c, min((t+1)*c, D)), which may be fewer than c or none at all. Every device's buffer has c rows; those past
the end of the tile are padding.

Source: GSPMD (Xu et al. 2021, section 3.1) for tiles and partial values; Shardy for axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import lru_cache
from typing import Any

from meshwright.core.records import dataclass
from meshwright.core.words import counted
from meshwright.errors import ShardingError
from meshwright.sharding.abstract_mesh import AbstractMesh
from meshwright.sharding.spec import PartitionSpec

REDUCTIONS = ("sum", "masked", "max", "min", "prod", "and", "or")


def joined_reduction(first: str, second: str) -> str | None:
    """The reduction of a value that has two kinds of partial axes; None if they cannot be combined."""
    return first if first == second else "masked" if {first, second} == {"sum", "masked"} else None


@dataclass(frozen=True, eq=False, repr=False)
class Layout:
    """``Layout(dims=(("data",), ()), partial=("model",), reduction="sum")``, over the atoms of one mesh.

    ``partial`` is in mesh order. ``reduction`` is how to combine partial values, "" without partial axes.
    """

    dims: tuple[tuple[str, ...], ...]
    partial: tuple[str, ...] = ()
    reduction: str = ""
    _hash: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.dims, self.partial, self.reduction)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Layout):
            return NotImplemented
        return self.dims == other.dims and self.partial == other.partial and self.reduction == other.reduction

    def __reduce__(self) -> tuple[Any, ...]:  # the hash is not pickled, as string hashes differ between processes
        return Layout, (self.dims, self.partial, self.reduction)

    def __str__(self) -> str:
        return self._text(lambda atoms: atoms)

    def __repr__(self) -> str:
        return f"Layout({self})"

    def format(self, mesh: AbstractMesh) -> str:
        """Like ``str``, with adjacent atoms merged into the axes of ``mesh``."""
        return self._text(mesh.coalesce)

    def _text(self, names: Any) -> str:
        dims = ", ".join("{" + ", ".join(names(atoms)) + "}" for atoms in self.dims)
        partial = f" +{self.reduction}{{{', '.join(names(self.partial))}}}" if self.partial else ""
        return f"[{dims}]{partial}"

    # --- properties -----------------------------------------------------------------------------------------
    @staticmethod
    @lru_cache(maxsize=65536)
    def tiled(dims: tuple[tuple[str, ...], ...]) -> Layout:
        """The layout with these axes and no partial ones, interned so that comparisons are fast."""
        return Layout(dims)

    @staticmethod
    def replicated(ndim: int) -> Layout:
        """The layout in which every device holds the whole value."""
        return Layout.tiled(((),) * ndim)

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def split_axes(self) -> tuple[str, ...]:
        """The atoms that split dimensions, in the order of the dimensions."""
        return tuple(atom for atoms in self.dims for atom in atoms)

    @property
    def axes_used(self) -> frozenset[str]:
        """The atoms that split a dimension or are partial; the value is replicated over the others."""
        return frozenset(self.split_axes).union(self.partial)

    def num_tiles(self, dim: int, mesh: AbstractMesh) -> int:
        return mesh.sizes(self.dims[dim])

    def local_shape(self, shape: Sequence[int], mesh: AbstractMesh) -> tuple[int, ...]:
        """The shape of one device's buffer, padding included: ceil(D / n) per dimension."""
        pairs = zip(shape, self.dims, strict=True)
        return tuple(-(-size // mesh.sizes(atoms)) if atoms else size for size, atoms in pairs)

    def padded_shape(self, shape: Sequence[int], mesh: AbstractMesh) -> tuple[int, ...]:
        """The shape of all buffers together: n * ceil(D / n) per dimension."""
        local = self.local_shape(shape, mesh)
        return tuple(size * mesh.sizes(atoms) for size, atoms in zip(local, self.dims))

    # --- derived layouts ------------------------------------------------------------------------------------
    def with_dim(self, dim: int, atoms: Sequence[str]) -> Layout:
        """The same layout with dimension ``dim`` split by ``atoms``."""
        dims = (*self.dims[:dim], tuple(atoms), *self.dims[dim + 1 :])
        return Layout(dims, self.partial, self.reduction)

    def without(self, atoms: Sequence[str]) -> Layout:
        """The same layout with no dimension split by any of these atoms; the same object if none is."""
        if not atoms or set(atoms).isdisjoint(self.split_axes):
            return self
        return Layout(tuple(tuple(a for a in d if a not in atoms) for d in self.dims), self.partial, self.reduction)

    def with_partial(self, atoms: Sequence[str], reduction: str, mesh: AbstractMesh | None = None) -> Layout:
        """The same tiles, partial over ``atoms``, which are sorted in mesh order if ``mesh`` is given."""
        if not atoms:
            return self.drop_partial()
        return Layout(self.dims, mesh.in_mesh_order(atoms) if mesh else tuple(atoms), reduction)

    def drop_partial(self) -> Layout:
        """The same tiles after the partial values have been combined."""
        return Layout.tiled(self.dims) if self.partial else self

    # --- specs ----------------------------------------------------------------------------------------------
    @staticmethod
    def from_spec(spec: PartitionSpec, ndim: int, mesh: AbstractMesh) -> Layout:
        """The layout of ``ndim`` dimensions under ``spec``; unconstrained dimensions are not split."""
        if len(spec) > ndim:
            raise ShardingError(
                f"{spec} has {counted(len(spec), 'entry', 'entries')} but the array has {counted(ndim, 'dimension')}; "
                f"give at most {counted(ndim, 'entry', 'entries')}, one per dimension"
            )
        layout = Layout(tuple(mesh.expand(spec.axes(dim)) for dim in range(ndim)))
        layout.validate(ndim, mesh)
        return layout

    def to_spec(self, mesh: AbstractMesh) -> PartitionSpec:
        """The tiles as a spec with one entry per dimension; parts of axes stay sub-axes (``x:(1)2``)."""
        return PartitionSpec(*(mesh.coalesce(atoms) for atoms in self.dims))

    def validate(self, shape: Sequence[int] | int, mesh: AbstractMesh) -> None:
        """Raise ``ShardingError`` unless this is a layout on ``mesh`` for ``shape``, which may be just a rank."""
        ndim = shape if isinstance(shape, int) else len(shape)
        if len(self.dims) != ndim:
            raise ShardingError(f"layout {self} has {counted(len(self.dims), 'dimension')}, the array has {ndim}")
        used = (*self.split_axes, *self.partial)
        for atom in used:
            if mesh.atoms_of(atom) != (atom,):
                raise ShardingError(
                    f"layout {self}: {atom!r} is not an atomic axis of {mesh}; use mesh.atoms_of({atom!r})"
                )
        twice = sorted({atom for atom in used if used.count(atom) > 1})
        if twice:
            raise ShardingError(
                f"layout {self} uses {', '.join(mesh.coalesce(mesh.in_mesh_order(twice)))} more than once; "
                "an axis can split one dimension only"
            )
        if self.partial != mesh.in_mesh_order(self.partial):
            raise ShardingError(f"layout {self}: partial axes must stand in mesh order {mesh.atoms}")
        if bool(self.partial) != (self.reduction in REDUCTIONS):
            raise ShardingError(
                f"layout {self}: reduction {self.reduction!r} with partial axes {self.partial}; expected one "
                f"of {', '.join(REDUCTIONS)} with partial axes, and '' without"
            )
