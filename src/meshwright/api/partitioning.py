"""Partitioning a program that has a mesh, optionally within a memory limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from meshwright.api.partitioned import PartitionedProgram
from meshwright.api.shardings import over_mesh
from meshwright.core.avals import ShapedArray
from meshwright.core.config import config
from meshwright.core.expected import as_number
from meshwright.core.key_types import is_key
from meshwright.errors import MemoryLimitError, MeshError
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn, Var, all_eqns
from meshwright.ir.program import Program
from meshwright.ops.control.platform import depends_on_platform, on_platform
from meshwright.ops.imported.imported_call import bind_imported
from meshwright.ops.sharding.constraint import ShardingConstraint
from meshwright.ops.sharding.custom import on_mesh
from meshwright.ops.sharding.inspect_sharding import InspectSharding
from meshwright.sharding import UNCONSTRAINED, AnyMesh, Layout, Mesh, NamedSharding, PartitionSpec
from meshwright.spmd.driver import partition
from meshwright.spmd.memory.compilers import platform_of
from meshwright.spmd.memory.limits import does_not_fit, require_limit
from meshwright.spmd.passes.holding_less import holding_less
from meshwright.spmd.strategy import AS_WRITTEN, Strategy
from meshwright.transforms.keys import on_words


def partition_program(
    program: Program, combine_bytes: int = 0, memory_limit: float | None = None, strategy: Strategy | None = None
) -> PartitionedProgram:
    """Partition a program that has a mesh; shardings that are ``None`` are chosen.

    ``combine_bytes`` is the bucket size for combining small collectives; 0: do not combine. ``memory_limit`` is in
    bytes per device; to fit, values that the program would keep are communicated or computed again. Without a
    ``strategy``, the best one is searched for.

    Raises:
      ArgumentError: ``combine_bytes`` is negative, or the limit is not positive. MeshError: the program has no mesh.
      MemoryLimitError: the program does not fit; says by how much, and which values are largest.
    """
    require_limit(memory_limit, "partition")
    as_number("partition: combine_bytes", combine_bytes)
    if (mesh := program.mesh) is None:
        raise MeshError(
            f"partition: no sharding of {program.name!r} names a mesh; pass in_shardings=NamedSharding(mesh, spec) "
            "to jit, use arrays placed with device_put, set_mesh, or call .partition(mesh)"
        )

    program, platform = program_on_platform(program, mesh)

    def layouts(shardings: Iterable[Any], avals: Sequence[ShapedArray]) -> list[Layout | None]:
        over = (over_mesh(s, mesh) for s in shardings)
        return [s.layout(a.ndim) if isinstance(s, NamedSharding) else None for s, a in zip(over, avals)]

    with program.precision():
        jaxpr = _with_whole_keys(on_mesh(on_words(bind_imported(program.jaxpr, mesh)), mesh), program.out_avals, mesh)
        ins = layouts((a.sharding for a in program.arguments), jaxpr.in_avals)
        outs = layouts(program.out_shardings, jaxpr.out_avals)

        def partitioned(strategy: Strategy | None = None) -> PartitionedProgram:
            part = partition(jaxpr, mesh.abstract_mesh, ins, outs, combine_bytes, strategy, program.called)
            return PartitionedProgram(program, part, platform)

        found = partitioned(strategy)
        if memory_limit is not None and found.peak_bytes > memory_limit:
            found = _within(found, partitioned, memory_limit)
    for eqn in all_eqns(found.jaxpr.jaxpr):
        if isinstance(eqn.op, InspectSharding) and eqn.op.layout is not None:
            eqn.op.callback(NamedSharding.from_layout(mesh, eqn.op.layout))
    return found


def program_on_platform(program: Program, mesh: AnyMesh) -> tuple[Program, str | None]:
    """The program as it is on the platform of a mesh, and that platform if anything in it depends on it.

    That is the platform of the mesh's devices, which run it, or else of its machine, or else the current one.
    """
    if not depends_on_platform(program.jaxpr):
        return program, None
    abstract = mesh.abstract_mesh
    device = mesh.devices.flat[0] if isinstance(mesh, Mesh) else None
    platform = getattr(device, "platform", config.platform if abstract.machine is None else platform_of(abstract))
    return replace(program, jaxpr=on_platform(program.jaxpr, platform)), platform


def _with_whole_keys(jaxpr: ClosedJaxpr, out_avals: Sequence[ShapedArray], mesh: AnyMesh) -> ClosedJaxpr:
    """The program on words, where a device has all words of a key or none for results that are keys."""
    keys = [i for i, aval in enumerate(out_avals) if is_key(aval.dtype)]
    if not keys:
        return jaxpr
    eqns, outs = list(jaxpr.jaxpr.eqns), list(jaxpr.jaxpr.outvars)
    for i in keys:
        words, result = outs[i], Var(outs[i].aval)
        spec = PartitionSpec(*[UNCONSTRAINED] * (result.aval.ndim - 1), None)
        eqns.append(JaxprEqn(ShardingConstraint(NamedSharding(mesh, spec)), [words], [result]))
        outs[i] = result
    return jaxpr.replace(jaxpr=jaxpr.jaxpr.replace(eqns=eqns, outvars=outs))


def _within(
    found: PartitionedProgram, partitioned: Callable[[Strategy], PartitionedProgram], limit: float
) -> PartitionedProgram:
    """The first program within the limit, among variants that save memory by communicating or computing more."""
    least = found
    for other in _holding_less(found, partitioned):
        if other.peak_bytes <= limit:
            return other
        least = min(least, other, key=lambda p: p.peak_bytes)
    raise MemoryLimitError(f"{found.name}: {does_not_fit(least.memory, limit)}")


def _holding_less(
    found: PartitionedProgram, partitioned: Callable[[Strategy], PartitionedProgram]
) -> Iterator[PartitionedProgram]:
    """Variants of the fastest program that take less memory, and the program partitioned as annotated, which may
    too."""
    part = found.part
    for jaxpr in holding_less(part.jaxpr, part.mesh, part.in_layouts):
        yield PartitionedProgram(found.program, replace(part, jaxpr=jaxpr), found.platform)
    if part.strategy != AS_WRITTEN:
        plain = partitioned(AS_WRITTEN)
        yield plain
        yield from _holding_less(plain, partitioned)
