"""Calls of imported programs that say how they are split, from functions that know no mesh while they are traced."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import ClassVar

from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn
from meshwright.ir.rewrite import in_regions, replaced
from meshwright.ops.control.call import Jit
from meshwright.sharding import AnyMesh


@dataclass(frozen=True)
class ImportedCall(Jit):
    """A call of ``jaxpr``, the program for one device; ``over`` is the program over a mesh, with its shardings as
    constraints and its manual regions."""

    over: Callable[[AnyMesh], ClosedJaxpr] | None = None
    name: ClassVar[str] = "imported_call"
    hidden_params: ClassVar[tuple[str, ...]] = (*Jit.hidden_params, "over")


def bind_imported(jaxpr: ClosedJaxpr, mesh: AnyMesh) -> ClosedJaxpr:
    """``jaxpr`` with the shardings of the imported programs that it calls.

    Inside manual regions, values are parts, and the programs are called for one device.

    Raises:
      MeshError, ShardingError, ImportProgramError: the mesh does not fit a program's shardings.
    """

    done: dict[int, tuple[ClosedJaxpr, ClosedJaxpr]] = {}  # functions may be called often, level upon level
    on_mesh = cache(lambda over: over(mesh))

    def applied(inner: ClosedJaxpr) -> ClosedJaxpr:
        if id(inner) not in done:
            done[id(inner)] = inner, replaced(inner, bound)
        return done[id(inner)][1]

    def bound(eqn: JaxprEqn) -> JaxprEqn:
        op = eqn.op
        if isinstance(op, ImportedCall) and op.over is not None:
            return eqn.replace(op=Jit(op.fun_name, on_mesh(op.over), op.inline))
        if not op.holds_jaxprs or op.is_manual:
            return eqn
        body = op.body()  # of derivatives, it is traced only now
        if body is None:
            return in_regions(eqn, applied)
        new = applied(body)
        return eqn if new is body else eqn.replace(op=Jit(op.scope_name, new))

    return applied(jaxpr)
