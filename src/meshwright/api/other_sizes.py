"""Programs that name axes of a mesh, on a mesh whose axes have these names and other sizes.

Shardy's shardings say which axes split a value, not how many devices these have. So a program that is written for the
eight devices of one machine says all that a pod needs to know, unless parts of it are per-device code, which fixes the
sizes of parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from meshwright.api.shardings import committed_to, named, program_on
from meshwright.core.words import counted
from meshwright.errors import MeshError
from meshwright.ir.jaxpr import ClosedJaxpr, all_eqns
from meshwright.ir.program import Program
from meshwright.ops.imported.sharding_annotation import Annotation, with_annotations
from meshwright.sharding import AbstractMesh, AnyMesh, NamedSharding
from meshwright.sharding.sdy import SdySharding
from meshwright.stablehlo.parsed import ParsedProgram
from meshwright.stablehlo.read_shardings import MeshDeclaration


def _mesh_named_by(annotations: Sequence[Annotation]) -> AbstractMesh | None:
    """The only mesh that shardings name; None if they say more or less."""
    named = [s for s in annotations if isinstance(s, SdySharding) and not s.device_ids]
    meshes = {s.mesh for s in named if s.mesh.axis_names}
    if len(named) < len(annotations) or len(meshes) != 1:
        return None
    mesh = meshes.pop()
    return mesh if {a for s in named for a in _axes(s)} <= set(mesh.axis_names) else None  # not parts of axes


def axes_named_by(annotations: Sequence[Annotation]) -> tuple[str, ...] | None:
    """The axes of the only mesh that shardings name, in the order of its devices; None if they say more or less."""
    mesh = _mesh_named_by(annotations)
    return None if mesh is None else mesh.axis_names


def gives_sizes(mesh: AnyMesh, annotations: Sequence[Annotation]) -> bool:
    """Whether ``mesh`` has the axes that shardings name, with other sizes."""
    named = _mesh_named_by(annotations)
    if named is None or not set(named.axis_names) <= set(mesh.axis_names):
        return False
    return any(mesh.shape[a] != n for a, n in named.shape.items())


def _axes(sharding: SdySharding) -> list[str]:
    return [*(a for d in sharding.dimensions for a in d.axes), *sharding.replicated, *sharding.unreduced]


def with_sizes_of(
    parsed: ParsedProgram, annotations: Sequence[Annotation], has_regions: bool, num_devices: int, mesh: AnyMesh
) -> ParsedProgram:
    """The program, written for ``num_devices``, as it would be written for ``mesh``, which has other sizes.

    Raises:
      MeshError: the program fixes its number of devices, or the mesh lacks one of the axes that it names.
    """
    names = axes_named_by(annotations)
    what = f"partition: {parsed.name!r} has shardings for {counted(num_devices, 'device')}, {mesh} has {mesh.size}; "
    if names is None or has_regions:
        why = "parts of it are per-device code" if has_regions else "they number devices"
        raise MeshError(what + f"as {why}, use a mesh of {counted(num_devices, 'device')}")
    if not set(names) <= set(mesh.axis_names):
        axes = ", ".join(map(repr, names))
        raise MeshError(what + f"use a mesh of {counted(num_devices, 'device')}, or of any number with the axes {axes}")

    def resized(sharding: Annotation) -> Annotation:
        return replace(sharding, mesh=mesh.abstract_mesh) if isinstance(sharding, SdySharding) else sharding

    def end(sharding: Annotation | None) -> Annotation | None:
        return None if sharding is None else resized(sharding)

    return replace(
        parsed,
        jaxpr=with_annotations(parsed.jaxpr, resized),
        arguments=tuple(replace(a, sharding=end(a.sharding)) for a in parsed.arguments),
        result_shardings=tuple(map(end, parsed.result_shardings)),
        num_partitions=mesh.size,
        meshes={name: MeshDeclaration(mesh.abstract_mesh) for name in parsed.meshes},
    )


def of_size(annotations: Sequence[Annotation], num_devices: int) -> AbstractMesh:
    """A mesh of one axis, that which the shardings name if they name one."""
    names = axes_named_by(annotations) or ()
    return AbstractMesh((num_devices,), names if len(names) == 1 else ("devices",))


def program_with_sizes_of(program: Program, mesh: AnyMesh) -> Program:
    """A traced program over the axes of ``mesh``, which has those of the program's mesh, with other sizes.

    Raises:
      MeshError: it lacks one, or the program fixes the sizes.
    """
    own = program.mesh
    assert own is not None, "a program without a mesh"
    what = f"partition: the program's shardings are over {own}, not {mesh}"
    if not set(own.axis_names) <= set(mesh.axis_names):
        raise MeshError(
            f"{what}, which lacks some of its axes; leave the mesh out, or lower it with shardings over the other"
        )
    if fixed := _what_fixes_sizes(program.jaxpr):
        raise MeshError(f"{what}, and {fixed}, which fixes their sizes; leave the mesh out, or trace it for the other")
    return program_on(program, mesh, _over_sizes_of)


def _over_sizes_of(sharding: Any, mesh: AnyMesh) -> Any:
    resolved = named(sharding)
    if not isinstance(resolved, NamedSharding):
        return resolved
    return NamedSharding(mesh, resolved.spec, memory_kind=resolved.memory_kind)


def _what_fixes_sizes(jaxpr: ClosedJaxpr) -> str:
    """What in a program is per-device code, is typed by a mesh, or lies on its devices; empty: nothing."""
    if any(committed_to(value) is not None for value in jaxpr.consts if hasattr(value, "committed")):
        return "it closes over arrays that lie there"
    for eqn in all_eqns(jaxpr.jaxpr):
        if any(a.aval.explicit is not None for a in (*eqn.invars, *eqn.outvars)):
            return f"types of values at {eqn.source} state them"
        if eqn.op.is_manual:
            return f"{eqn.op.name} at {eqn.source} is per-device code"
    return ""
