"""Placing arrays on devices and meshes, and constraining shardings inside programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from meshwright.api.shardings import (
    check_fit,
    committed_to,
    flat_shardings,
    has_no_devices,
    is_spec,
    named,
    resolve,
    spread,
    with_devices,
)
from meshwright.api.stages import Lowered
from meshwright.core import pytree
from meshwright.core.avals import ShapedArray
from meshwright.core.config import config
from meshwright.core.key_types import is_key
from meshwright.core.late import LateModule
from meshwright.core.memory_space import Space
from meshwright.core.source import warn
from meshwright.errors import ArgumentError, ArgumentTypeError, PlacementWarning, ShardingError, ShardingTypeError
from meshwright.ir.explicit import decided, is_explicit
from meshwright.ir.op import Op
from meshwright.ir.program import Argument, Program
from meshwright.ir.state import STATE
from meshwright.ir.tracing import EVAL, Tracer, check_alive, infer_cached, typeof
from meshwright.ops.elementwise.table import copy
from meshwright.ops.sharding.constraint import RESHARD, Reshard, ShardingConstraint
from meshwright.ops.sharding.memory_put import MemoryPut
from meshwright.ops.sharding.mesh_cast import CAST_ARRAY
from meshwright.runtime.array import CONVERSIONS, Array, from_numpy
from meshwright.runtime.devices import Device, device_count
from meshwright.runtime.eager import SHARDED, single_op_jaxpr
from meshwright.runtime.op_programs import OpPrograms
from meshwright.runtime.pjrt.world import WORLD
from meshwright.runtime.values import check_move
from meshwright.sharding import (
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    Sharding,
    SingleDeviceSharding,
    explicit_of,
    get_mesh,
    mesh_of_type,
    said_by,
    set_mesh,
)

if TYPE_CHECKING:
    from meshwright.runtime.processes import agreement
else:
    agreement = LateModule("meshwright.runtime.processes.agreement")


def _as_sharding(target: Any) -> Any:
    return SingleDeviceSharding(target) if isinstance(target, Device) else target


def device_put(
    x: Any, device: Any = None, *, src: Any = None, donate: bool = False, may_alias: bool | None = None
) -> Any:
    """Place ``x`` (a tree of arrays) on a device, with a sharding or in a ``mw.memory.Space`` (or a tree prefix of
    these).

    A NumPy array whose memory is 64-byte aligned is not copied: do not write to it afterwards, or pass
    ``may_alias=False``, which always copies. On a virtual mesh arrays are kept in global order, so changing a sharding
    moves no data; the memory of ``x`` is then shared even without ``donate``, and ``src`` has no effect. If a sharding
    spans several processes, all must pass the same value.

    Raises:
      ArgumentError: both ``donate`` and ``may_alias``, which exclude each other.
      ShardingError: a sharding has more entries than the array has dimensions.
      ArgumentTypeError: ``device`` is none of these, or its mesh has no devices; or a leaf is not an array.
      MeshError: a ``PartitionSpec`` without a current mesh. DistributedError: another process passes another value.

    Example:
      >>> mesh = mw.make_mesh((4,), ("x",))
      >>> x = mw.device_put(mnp.arange(8), mw.NamedSharding(mesh, P("x")))
      >>> x.sharding.spec, x.sharding.shard_shape(x.shape)
      (P('x',), (2,))
    """
    if donate and may_alias:
        raise ArgumentError("device_put: donate=True and may_alias=True exclude each other; give one of them")
    avals = _check_leaves("device_put", x)
    leaves, treedef = pytree.flatten(x)
    target = pytree.map(_as_sharding, device, is_leaf=lambda s: is_spec(s) or isinstance(s, Device))
    given = [None] * len(leaves) if target is None else spread(target, x, "device_put", is_spec)
    places = [p if isinstance(p, Space) else resolve(p, "device_put") for p in given]
    check_fit([None if isinstance(p, Space) else p for p in places], avals, pytree.paths(x), "device_put: x")
    return pytree.unflatten(treedef, [_put(v, p, "device_put", may_alias is False) for v, p in zip(leaves, places)])


def put_by(name: str, x: Any, sharding: Sharding | None) -> Any:
    """``x``, which the function ``name`` has made, placed as its argument ``device`` says; unchanged if it is there.

    Raises:
      ShardingError: the sharding does not fit the array. ArgumentTypeError: its mesh has no devices.
    """
    if sharding is None:
        return x
    sharding.check_compatible(typeof(x).shape, name)
    is_there = type(x) is Array and x.committed and x.sharding == sharding
    return x if is_there and not has_no_devices(sharding) else _put(x, sharding, name)


def _put(x: Any, sharding: Sharding | Space | None, what: str, copied: bool = False) -> Any:
    if isinstance(sharding, Space):
        return MemoryPut(sharding.kind).bind(x if isinstance(x, Tracer) else _put(x, None, what, copied))
    if isinstance(x, Tracer):
        return _constraint(x, sharding, what, moves=True)
    sharding = with_devices(sharding, getattr(getattr(x, "sharding", None), "mesh", None))
    if has_no_devices(sharding):
        if STATE.trace is not EVAL:  # a program that may only be partitioned
            return _constraint(_given(x), sharding, what, moves=True)
        raise ArgumentTypeError(f"{what}: {sharding.mesh} has no devices; use a mesh from make_mesh")
    array = _given(x)
    if copied:
        array = copy.bind(array)
    if sharding is None:
        return array
    if array is x:
        check_move(array, sharding, True)
    if WORLD.count > 1 and not array.committed:
        agreement.agree_on_value(array, sharding)
    return Array(array.aval, CONVERSIONS.value.resharded(array, sharding), sharding, committed=True)


def _given(x: Any) -> Array:
    """A value as an array that shares the memory of NumPy arrays."""
    if type(x) is Array:
        return x
    if isinstance(x, (int, float, complex)) and not isinstance(x, (bool, np.generic)):
        return from_numpy(np.asarray(x), weak_type=True, transfer="explicit")
    return from_numpy(x, copy=False, transfer="explicit")


def _constraint(x: Any, sharding: Sharding | None, what: str, moves: bool = False) -> Any:
    """Constrain the layout of a value of a program; what ``moves`` values also changes types along explicit axes.

    Raises:
      ShardingError: a sharding on one of several devices, which only arguments can choose; ``device_put`` warns
        instead.
    """
    check_alive(x)
    target = named(sharding)
    if target is None:
        return x
    if target.host_kind != typeof(x).memory:
        x = MemoryPut(target.host_kind).bind(x)
        if isinstance(target, SingleDeviceSharding):
            return x
    if target.is_explicit and isinstance(target, NamedSharding):
        return Reshard(target).bind(x) if moves else _asserted(x, target, what)
    if not isinstance(target, NamedSharding):
        if isinstance(target, SingleDeviceSharding) and (moves or device_count() == 1):
            if device_count() > 1:
                warn(
                    f"{what}: a traced value is where its program runs, and is not put on {target.device}; place the "
                    "arguments of the function, or use a NamedSharding", PlacementWarning,
                )  # fmt: skip
            return x
        raise ShardingError(
            f"{what}: inside a traced function a value cannot be put on {sharding!r}; place the arguments of the "
            "jitted function, or use a NamedSharding"
        )
    return ShardingConstraint(target).bind(x)


def _asserted(x: Any, target: NamedSharding, what: str) -> Any:
    """Check that the type of ``x`` agrees with the explicit axes of ``target``, and constrain the automatic ones.

    Raises:
      ShardingTypeError: the type differs.
    """
    aval, asserted = typeof(x), explicit_of(target, typeof(x).ndim)
    explicit = set(target.abstract_mesh.of_type(AxisType.Explicit))
    if (asserted is not None and asserted != aval.explicit) or (
        len(explicit) == len(target.mesh.axis_names) and asserted != aval.explicit
    ):
        raise ShardingTypeError(
            f"{what}: the value is {aval} and {target.spec} is asked for; along explicit axes types say how values are "
            "split, and a constraint only makes sure of it: change it with reshard"
        )
    free = [a for a in target.mesh.axis_names if a not in explicit]
    return ShardingConstraint(target).bind(x) if free else x


def device_get(x: Any) -> Any:
    """A tree of arrays as NumPy arrays that share their memory. Tracers, random keys and non-arrays are returned as
    they are.

    Example:
      >>> mw.device_get({"a": mnp.arange(3)})
      {'a': array([0, 1, 2], dtype=int32)}
    """
    return pytree.map(_on_host, x)


def _on_host(x: Any) -> Any:
    check_alive(x)
    if type(x) is Array:
        return x if is_key(x.dtype) else x._host(explicit=True)
    return np.asarray(x) if isinstance(x, np.generic) else x


def _check_leaves(function: str, x: Any) -> list[ShapedArray]:
    """The types of the leaves.

    Raises:
      ArgumentTypeError: a leaf is not an array; names it.
    """
    avals = []
    for path, leaf in zip(pytree.paths(x), pytree.leaves(x)):
        try:
            avals.append(typeof(leaf))
        except ArgumentTypeError as error:
            raise ArgumentTypeError(f"{function}: x{path}: {error}") from None
    return avals


def block_until_ready(x: Any) -> Any:
    """Wait until all arrays of a tree have been computed; returns the tree. Other leaves are ignored.

    Example:
      >>> mw.block_until_ready((mnp.arange(3) + 1, "label"))
      (Array([1, 2, 3], dtype=int32), 'label')
    """
    for leaf in pytree.leaves(x):
        if type(leaf) is Array:
            leaf.block_until_ready()
    return x


def with_sharding_constraint(x: Any, shardings: Any) -> Any:
    """Constrain ``x`` (a tree of arrays) to ``shardings`` (a tree prefix) at this point of the program.

    Raises:
      ShardingError: a spec does not fit its array or mesh, or names a single device inside a traced function.
      MeshError: a ``PartitionSpec`` without a current mesh.

    Example:
      >>> split = mw.NamedSharding(mw.make_mesh((4,), ("x",)), mw.PartitionSpec(None, "x"))
      >>> y = mw.jit(lambda x: mw.with_sharding_constraint(2 * x, split))(mnp.ones((3, 8)))
      >>> y.sharding.spec, y.sharding.shard_shape(y.shape)
      (P(None, 'x'), (3, 2))
    """
    leaves, treedef = pytree.flatten(x)
    targets = flat_shardings(shardings, x, "with_sharding_constraint")
    check_fit(targets, [typeof(v) for v in leaves], pytree.paths(x), "with_sharding_constraint: x")
    return pytree.unflatten(treedef, [_constrained(x, s) for x, s in zip(leaves, targets)])


def _constrained(x: Any, sharding: Any) -> Any:
    if isinstance(x, Tracer) or (sharding is not None and typeof(x).explicit is not None):
        return _constraint(x, sharding, "with_sharding_constraint")
    return _put(x, sharding, "with_sharding_constraint")


def laid_out(x: Any, sharding: Any) -> Any:
    """``x`` with the given sharding; unchanged for None."""
    if sharding is None:
        return x
    return reshard(x, sharding) if _is_explicit(x, sharding) else with_sharding_constraint(x, sharding)


def reshard(xs: Any, out_shardings: Any) -> Any:
    """Change the shardings of ``xs`` (a tree of arrays) to ``out_shardings`` (a tree prefix).

    On arrays this is :func:`device_put`. Along explicit axes it changes types: ``f32[8@x,4]`` becomes ``f32[8,4@x]``,
    and a pending (``unreduced``) sum is reduced. Along automatic axes it is a constraint inside a traced function.

    Raises:
      ShardingError, MeshError: as :func:`with_sharding_constraint`. ShardingTypeError: the new parts are uneven.

    Example:
      >>> mesh = mw.make_mesh((4,), ("x",))
      >>> rows = mw.device_put(mnp.ones((4, 8)), mw.NamedSharding(mesh, P("x", None)))
      >>> columns = mw.reshard(rows, mw.NamedSharding(mesh, P(None, "x")))
      >>> rows.sharding.shard_shape((4, 8)), columns.sharding.shard_shape((4, 8))
      ((1, 8), (4, 2))
    """
    leaves, treedef = pytree.flatten(xs)
    with _mesh_of(leaves):
        targets = flat_shardings(out_shardings, xs, "reshard")
    check_fit(targets, [typeof(v) for v in leaves], pytree.paths(xs), "reshard: x")
    return pytree.unflatten(treedef, [_resharded(x, s) for x, s in zip(leaves, targets)])


def _mesh_of(leaves: Sequence[Any]) -> Any:
    """The mesh whose axes specs name: the current one, or that of the types."""
    types = (typeof(x).explicit for x in leaves)
    mesh = next((mesh_of_type(t.mesh) for t in types if t is not None), None)
    return (
        nullcontext() if mesh is None or get_mesh() is not None else mesh if isinstance(mesh, Mesh) else set_mesh(mesh)
    )


def _resharded(x: Any, sharding: Any) -> Any:
    target = named(sharding)
    if isinstance(target, NamedSharding) and target.is_explicit:
        return Reshard(target).bind(x)
    return _constraint(x, sharding, "reshard") if isinstance(x, Tracer) else _put(x, sharding, "reshard")


def made_as(sharding: Any, make: Callable[[], Any]) -> Any:
    """``make()`` with the given sharding, which decides where ops along explicit axes are otherwise ambiguous.

    Raises:
      ShardingTypeError: it leaves a sum unreduced that the result does not have.
    """
    if said_by(sharding) is None:
        return make()
    with decided() as decisions:
        out = make()
    spec = getattr(sharding, "spec", sharding)
    summed = decisions.summed | (typeof(out).explicit.unreduced if typeof(out).explicit is not None else frozenset())
    more = sorted(getattr(spec, "unreduced", frozenset()) - summed)
    if more:
        raise ShardingTypeError(
            f"out_sharding={spec} leaves a sum over {', '.join(more)} to be made, but no dimension that is summed over "
            f"is split over {', '.join(more)}; name the axes that split what is contracted"
        )
    return reshard(out, sharding) if _is_explicit(out, sharding) else laid_out(out, sharding)


def _is_explicit(x: Any, sharding: Any) -> bool:
    mesh = getattr(sharding, "mesh", None) or get_mesh()
    return typeof(x).explicit is not None or (mesh is not None and AxisType.Explicit in mesh.axis_types)


def _perform_reshard(op: Reshard, x: Any) -> Any:
    mesh = op.sharding.mesh
    mesh = mesh_of_type(mesh) if isinstance(mesh, AbstractMesh) else mesh
    return _put(x, NamedSharding(mesh, op.sharding.spec), "reshard")


RESHARD.fill(_perform_reshard)


def _cast_array(mesh: AbstractMesh, x: Any) -> Array:
    array = _given(x)
    old = named(array.sharding)
    if not isinstance(old, NamedSharding):
        return array
    types = dict(zip(mesh.axis_names, mesh.axis_types))
    return Array(
        array.aval, array.buffer, NamedSharding(old.mesh.update_axis_types(types), PartitionSpec(*old.spec)), True
    )


CAST_ARRAY.fill(_cast_array)


# --- eager ops on a mesh ------------------------------------------------------------------------------------
_PROGRAMS = OpPrograms()


def _evaluate_sharded(op: Op, arrays: Sequence[Array]) -> Any:
    """One op with operands on a mesh: partitioned and compiled like a jitted function."""
    avals = tuple(x.aval for x in arrays)
    is_decided = STATE.decided is not None and is_explicit(avals)
    if is_decided:
        infer_cached(op, avals)  # notes what is summed
    key = (config.tracing, op, is_decided, *((x.aval, x.sharding if x.committed else None) for x in arrays))
    executable = _PROGRAMS.get(key)
    if executable is None:
        jaxpr = single_op_jaxpr(op, [x.aval for x in arrays])
        arguments = tuple(Argument(str(i), x.aval, committed_to(x)) for i, x in enumerate(arrays))
        tree = pytree.structure([0] * len(jaxpr.out_avals))
        program = Program(op.name, jaxpr, arguments, (None,) * len(jaxpr.out_avals), tree, tree)
        # Not ``compile``, which warns: users cannot act on warnings about single ops.
        executable = _PROGRAMS.keep(key, op, Lowered(program).partition().executable)
    outs = executable.run(executable.take(arrays))
    return outs if op.multiple_results else outs[0]


SHARDED.fill(_evaluate_sharded)
