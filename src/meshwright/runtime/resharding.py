"""Resharding of arrays.

Between shardings over the same devices, a compiled program with the collectives of the reshard planner moves the data.
Between different devices of this process, the parts are assembled and sliced again in host memory.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.core.caches import on_clear
from meshwright.core.key_types import is_key
from meshwright.errors import ShardingError
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
from meshwright.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, PositionalSharding, Sharding
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
    if old == new and not old.is_one and _ordered(x.sharding) and _ordered(target):
        return _mover(x.aval, _flat(x.sharding, x.ndim), _flat(target, x.ndim)).run([x.buffer])[0].buffer
    if not is_whole_here(x.sharding, x.ndim) and _ordered(x.sharding):
        whole = NamedSharding(_flat_mesh(x.sharding), PartitionSpec())
        x = Array(x.aval, buffer_with(x, whole), whole)
    return from_numpy(np.asarray(x), sharding=target, transfer="none").buffer


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


def _ordered(sharding: Sharding) -> bool:
    """Whether the devices are in ascending order, as on a flat mesh."""
    ids = [getattr(d, "id", d) for d in sharding.devices]
    return isinstance(sharding, (NamedSharding, PositionalSharding)) and ids == sorted(ids)


def _flat_mesh(sharding: Sharding) -> Mesh:
    return Mesh(np.array(sharding.devices, dtype=object), ("devices",))


@lru_cache(maxsize=4096)
def _flat(sharding: Sharding, ndim: int) -> NamedSharding:
    """The same sharding over a mesh of one axis, with sub-axes of that axis in place of the original axes."""
    named = sharding.to_named() if isinstance(sharding, PositionalSharding) else sharding
    if not isinstance(named, NamedSharding):
        raise ShardingError(f"expected a sharding over a mesh, got {sharding!r}")
    mesh = named.abstract_mesh
    flat = _flat_mesh(named)
    atoms = dict(zip(mesh.atoms, _parts(flat.abstract_mesh, mesh)))
    layout = named.layout(ndim)
    return NamedSharding(flat, PartitionSpec(*(tuple(atoms[a] for a in dim) for dim in layout.dims)))


def _parts(flat: AbstractMesh, mesh: AbstractMesh) -> list[str]:
    """The sub-axis of the flat mesh for each atom."""
    parts, before = [], 1
    for size in mesh.atom_sizes:
        parts.append(flat.axis_names[0] if size == flat.size else f"{flat.axis_names[0]}:({before}){size}")
        before *= size
    return parts


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
