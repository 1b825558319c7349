"""Putting arrays on devices and meshes, and fixing layouts inside programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from meshwright.api.shardings import check_fit, flat_shardings, is_spec
from meshwright.api.stages import Argument, Lowered, Program
from meshwright.core import pytree
from meshwright.errors import ArgumentTypeError
from meshwright.ir.op import Op
from meshwright.ir.tracing import Tracer, typeof
from meshwright.ops.sharding_constraint import ShardingConstraint
from meshwright.runtime.array import Array, from_numpy
from meshwright.runtime.devices import Device
from meshwright.runtime.eager import SHARDED, single_op_jaxpr
from meshwright.runtime.executable import as_array
from meshwright.sharding import AbstractMesh, NamedSharding, Sharding, SingleDeviceSharding


def _as_sharding(target: Any) -> Any:
    return SingleDeviceSharding(target) if isinstance(target, Device) else target


def device_put(x: Any, device: Any = None) -> Any:
    """``x`` (a tree of arrays) on a device or with a sharding (or a tree prefix of these).

    A NumPy array is not copied where that is possible: do not write to it afterwards. On a virtual mesh arrays are kept
    in global order, so that changing a sharding moves nothing.

    Raises:
      ShardingError: a sharding with more entries than the array has dimensions, or over a mesh without devices.
    """
    leaves, treedef = pytree.flatten(x)
    target = pytree.map(_as_sharding, device, is_leaf=lambda s: is_spec(s) or isinstance(s, Device))
    shardings = flat_shardings(target, x, "device_put")
    check_fit(shardings, [typeof(v) for v in leaves], pytree.paths(x), "device_put: array")
    return pytree.unflatten(treedef, [_put(v, s) for v, s in zip(leaves, shardings)])


def _put(x: Any, sharding: Sharding | None) -> Any:
    if isinstance(x, Tracer):
        return ShardingConstraint(sharding).bind(x) if isinstance(sharding, NamedSharding) else x
    if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, AbstractMesh):
        raise ArgumentTypeError(f"device_put: {sharding.mesh!r} has no devices; use a mesh from make_mesh")
    array = as_array(x) if isinstance(x, (Array, int, float, complex)) else from_numpy(x, copy=False)
    if sharding is None:
        return array
    return Array(array.aval, array.buffer, sharding, committed=True)


def device_get(x: Any) -> Any:
    """A tree of arrays as NumPy arrays that share their memory."""
    return pytree.map(lambda v: np.asarray(v), x)


def block_until_ready(x: Any) -> Any:
    """Wait until all arrays of a tree have been computed; returns the tree."""
    for leaf in pytree.leaves(x):
        if isinstance(leaf, Array):
            leaf.block_until_ready()
    return x


def with_sharding_constraint(x: Any, shardings: Any) -> Any:
    """``x`` (a tree of arrays), laid out as ``shardings`` (a tree prefix) says at this point of the program.

    Raises:
      ShardingError: a spec that does not fit its array or mesh.
    """
    leaves, treedef = pytree.flatten(x)
    found = flat_shardings(shardings, x, "with_sharding_constraint")
    check_fit(found, [typeof(v) for v in leaves], pytree.paths(x), "with_sharding_constraint: value")
    outs = []
    for value, sharding in zip(leaves, found):
        if isinstance(sharding, NamedSharding):
            value = ShardingConstraint(sharding).bind(value) if isinstance(value, Tracer) else _put(value, sharding)
        outs.append(value)
    return pytree.unflatten(treedef, outs)


def reshard(x: Any, shardings: Any) -> Any:
    """``x`` with other shardings: :func:`device_put` on arrays, a constraint inside a traced function."""
    return with_sharding_constraint(x, shardings)


# --- eager ops on a mesh ------------------------------------------------------------------------------------
_sharded_cache: dict[Any, Any] = {}


def _evaluate_sharded(op: Op, arrays: Sequence[Array]) -> Any:
    """One op some of whose operands lie on a mesh: partitioned and compiled like a jitted function."""
    key = (op, *((x.aval, x.sharding if x.committed else None) for x in arrays))
    executable = _sharded_cache.get(key)
    if executable is None:
        jaxpr = single_op_jaxpr(op, [x.aval for x in arrays])
        arguments = tuple(Argument(f"[{i}]", x.aval, x.sharding if x.committed else None) for i, x in enumerate(arrays))
        tree = pytree.structure([0] * len(jaxpr.out_avals))
        program = Program(op.name, jaxpr, arguments, (None,) * len(jaxpr.out_avals), tree, tree)
        executable = _sharded_cache[key] = Lowered(program).compile().executable
    outs = executable.run([x.buffer for x in arrays])
    return outs if op.multiple_results else outs[0]


SHARDED.append(_evaluate_sharded)
