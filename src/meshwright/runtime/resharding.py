"""Resharding of arrays.

Between shardings over the same devices, a compiled program with the collectives of the reshard planner moves the data,
if the axes of one mesh can express both. Otherwise, and between different devices, whole values are sliced in host
memory.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.core.caches import on_clear
from meshwright.core.key_types import is_key
from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr, JaxprEqn, Var
from meshwright.lowering.batched import described, on_target
from meshwright.lowering.lower import DeviceProgram, lower
from meshwright.lowering.target import Target
from meshwright.ops.elementwise.table import copy
from meshwright.runtime.array import Array, from_numpy
from meshwright.runtime.executable import Executable, Results
from meshwright.runtime.parts import Parts, is_whole_here, spread_of, tiles_of
from meshwright.runtime.pjrt import platforms
from meshwright.runtime.pjrt.buffers import in_memory
from meshwright.runtime.spread import compile_spread
from meshwright.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, over
from meshwright.sharding.memory_kind import DEVICE
from meshwright.spmd.driver import partition


def buffer_with(x: Array, target: Sharding) -> Any:
    """The buffer of ``x`` resharded to ``target``; the same buffer if nothing has to move.

    Raises:
      DeviceError: other processes hold parts of ``x`` that the move would need.
    """
    if is_key(x.dtype):
        return buffer_with(x.words(), target)
    old, new = spread_of(x.sharding), spread_of(target)
    kinds = {x.sharding.host_kind, target.host_kind} if platforms.is_plugin() else set()
    if old == new and len(kinds) < 2 and tiles_of(x.sharding, x.ndim) == tiles_of(target, x.ndim):
        return x.buffer
    if kinds - {None}:
        return _of_memory(x, target)
    if old == new and not old.is_one and (ends := _over_one_mesh(x.sharding, target)) is not None:
        return _moved(x, *ends)
    if not is_whole_here(x.sharding, x.ndim) and isinstance(source := x.sharding.to_named(), NamedSharding):
        whole = NamedSharding(source.mesh, PartitionSpec())
        x = Array(x.aval, _moved(x, source, whole), whole)
    return from_numpy(np.asarray(x), sharding=target, transfer="none").buffer


def _moved(x: Array, source: NamedSharding, target: NamedSharding) -> Any:
    return _mover(x.aval, source, target).run([x.buffer])[0].buffer


def _of_memory(x: Array, target: Sharding) -> Any:
    """Move between memory kinds of an accelerator; a change of devices happens in device memory."""
    if x.sharding.host_kind is not None:
        x = Array(x.aval, _in_memory(x.buffer, x.sharding, None), x.sharding.with_memory_kind(None))
    buffer = buffer_with(x, target.with_memory_kind(None))
    return buffer if target.host_kind is None else _in_memory(buffer, target, target.host_kind)


def _in_memory(buffer: Any, sharding: Sharding, kind: str | None) -> Any:
    here = spread_of(sharding).here
    if isinstance(buffer, Parts):
        return Parts([in_memory(b, real, kind or DEVICE) for b, real in zip(buffer.buffers, here)])
    return in_memory(buffer, here[0], kind or DEVICE)


@lru_cache(maxsize=4096)
def _over_one_mesh(source: Sharding, target: Sharding) -> tuple[NamedSharding, NamedSharding] | None:
    """Both shardings over the mesh of one of them; None if the axes of neither can express the other."""
    ends = source.to_named(), target.to_named()
    for end in ends:
        if isinstance(end, NamedSharding):
            a, b = (over(e, end.mesh) if isinstance(e, NamedSharding) else None for e in ends)
            if a is not None and b is not None:
                return a, b
    return None


@lru_cache(maxsize=1024)
def _mover(aval: ShapedArray, source: NamedSharding, target: NamedSharding) -> Executable:
    """The compiled program that reshards an array of this type."""
    x, y = Var(aval), Var(aval)
    jaxpr = ClosedJaxpr(Jaxpr([], [x], [y], [JaxprEqn(copy, [x], [y])], "reshard"))
    mesh = source.mesh
    assert isinstance(mesh, Mesh)
    where = Target.of(mesh)
    part = partition(jaxpr, mesh.abstract_mesh, [source.layout(aval.ndim)], [target.layout(aval.ndim)])
    source_of = "reshard", described(part), where.wiring

    def lowered() -> DeviceProgram:
        return lower(on_target(part, where), "reshard", where)

    return compile_spread(source_of, lowered, Results([aval], [target], True), mesh, [source])


on_clear(_mover.cache_clear)
