"""Traces collectives back to the annotations that caused them."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.sharding import AbstractMesh
from meshwright.spmd.origin import Annotation, Origins
from meshwright.spmd.reason import Reason
from meshwright.spmd.report import Collective, atoms_joined


def origin_of(reason: Reason, axis: str, origins: Origins) -> Annotation | None:
    """The annotation that brought an axis to the value that was resharded, or to the equation that needs it."""
    atoms = [reason.value] if reason.value is not None else []
    if reason.user is not None:
        atoms += [*reason.user.invars, *reason.user.outvars]
    return next((origin for atom in atoms if (origin := origins.of(atom, axis)) is not None), None)


def causes(collective: Collective, origins: Origins, mesh: AbstractMesh, names: Sequence[str]) -> tuple[str, ...]:
    """The annotations that the axes of a collective come from, in words."""
    lines: dict[str, None] = {}
    for reason in collective.reasons:
        grouped: dict[Annotation | None, list[str]] = {}
        for axis in atoms_joined(collective, mesh):
            grouped.setdefault(origin_of(reason, axis, origins), []).append(axis)
        for origin, axes in grouped.items():
            if origin is not None:
                lines[f"{', '.join(mesh.coalesce(axes))} in {origin.describe(names)}"] = None
    return tuple(lines)
