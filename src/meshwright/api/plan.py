"""``mw.plan``: chooses shardings, and a mesh, for a function on a machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any

from meshwright.api.jit import JitFunction, jit
from meshwright.api.planning import Plan, choose_shardings, memory_of, meshes_of
from meshwright.api.shardings import placed
from meshwright.core.tracebacks import boundary
from meshwright.errors import ArgumentError, MeshError
from meshwright.hardware.machine import Machine, machine_for
from meshwright.hardware.machine import machine as machine_named
from meshwright.sharding import AbstractMesh, AnyMesh, Mesh, get_mesh
from meshwright.spmd.memory.limits import require_limit
from meshwright.transforms.wrapped import require_callable


@boundary
def plan(
    f: Callable[..., Any],
    *args: Any,
    machine: str | Machine | None = None,
    memory_limit: float | None = None,
    mesh: AnyMesh | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    donate_argnums: int | Sequence[int] | None = None,
    seconds: float = math.inf,
) -> Plan:
    """Choose the shardings of the arguments of ``f`` on a machine, and the mesh's shape if no ``mesh`` is given.

    The search lets each mesh axis split one kind of dimension of the program (batch, features, heads, ...). It may also
    split arguments that are gathered where they are used. Dimensions that divide evenly come first, those that do
    nearly next. Whole programs are partitioned and timed, the most promising ones as ``jit`` does it, with lookahead;
    the fastest whose predicted peak fits in memory wins.

    Args:
      f: a function, jitted or not; ``args`` are arrays or ``ShapeDtypeStruct``.
      machine: such as ``"v5e:4x4"``, ``"h100:8"``, ``"this"`` (see :func:`meshwright.hardware.machine`).
      memory_limit: bytes per device; None: the machine's memory.
      mesh: the mesh to use; None to choose its shape.
      in_shardings, out_shardings, donate_argnums: as for ``jit``. Shardings given here, or by arrays that were placed,
        are kept; None and ``AUTO`` are chosen.
      seconds: a time limit after which no further designs are tried. Without it, their number depends on the program.

    Raises:
      MemoryLimitError: no design fits; says by how much, and which values are largest.
      MeshError: neither machine nor mesh is known, or they do not fit each other.
      ArgumentError: an unknown chip, or a limit that is not a positive number.

    The search space consists of the shardings used with GSPMD (Xu et al. 2021).

    Example:
      >>> x, w = mw.ShapeDtypeStruct((65536, 256), "bfloat16"), mw.ShapeDtypeStruct((256, 256), "bfloat16")
      >>> plan = mw.plan(lambda x, w: x @ w, x, w, machine="v5e:2x2")
      >>> plan.in_shardings[0].spec[0] == plan.mesh.axis_names[0]  # the batch is split
      True
    """
    require_callable(f, "plan")
    require_limit(memory_limit, "plan")
    if not isinstance(seconds, (int, float)) or not seconds >= 0:
        raise ArgumentError(f"plan: seconds must be a number that is not negative, got {seconds!r}")
    if not isinstance(mesh, (Mesh, AbstractMesh, NoneType)):
        raise MeshError(f"plan: mesh must be a Mesh or an AbstractMesh, got {mesh!r}; a machine is named by machine=")
    given = (in_shardings, out_shardings, donate_argnums)
    if isinstance(f, JitFunction) and any(s is not None for s in given):
        raise ArgumentError("plan: the function is jitted already; give shardings and donated arguments to its jit")
    options = {"in_shardings": in_shardings, "out_shardings": out_shardings, "donate_argnums": donate_argnums}
    jitted = f if isinstance(f, JitFunction) else jit(f, **options)
    program = placed(jitted.traced_open(*args))
    known = mesh if mesh is not None else program.place or get_mesh()
    if isinstance(known, (Mesh, AbstractMesh)):
        meshes: Sequence[AnyMesh] = [_on(known, machine)]
    elif machine is not None:
        meshes = meshes_of(machine_named(machine))
    else:
        raise MeshError("plan: neither a machine nor a mesh is known; give machine='v5e:4x4', or mesh=")
    limit = memory_limit if memory_limit is not None else memory_of(meshes[0])
    return Plan(choose_shardings(program, meshes, limit, seconds=seconds), limit)


def _on(mesh: AnyMesh, machine: str | Machine | None) -> AnyMesh:
    """The mesh with the given machine, if any."""
    if machine is None:
        return mesh
    chosen = machine_for(machine, mesh.size)
    if isinstance(mesh, Mesh):
        return Mesh(mesh.devices, mesh.axis_names, mesh.axis_types, machine=chosen)
    return mesh.on(chosen)
