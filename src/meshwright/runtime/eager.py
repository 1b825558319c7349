"""Eager evaluation, op by op, with a cache of compiled single-op programs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meshwright.core import dtypes, source
from meshwright.core.config import config
from meshwright.core.late import LateModule
from meshwright.core.slots import Slot
from meshwright.core.weak import once_for_each
from meshwright.errors import MeshError, NonFiniteError
from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr, JaxprEqn, Var, sub_jaxprs
from meshwright.ir.op import Op
from meshwright.ir.state import set_trace
from meshwright.ir.tracing import EVAL, EVALUATE, Tracer, check_alive, eval_jaxpr, infer_cached, typeof
from meshwright.ops.elementwise.table import BitcastConvert, convert, copy
from meshwright.ops.primitive import without_primitives
from meshwright.ops.random.keys import KeyOp
from meshwright.runtime.array import CONVERSIONS, Array, Conversions, default_sharding, from_numpy
from meshwright.runtime.compiling import compile_jaxpr, one_device
from meshwright.runtime.executable import Executable
from meshwright.runtime.op_programs import OpPrograms
from meshwright.runtime.parts import spread_of
from meshwright.runtime.pjrt import platforms
from meshwright.runtime.pjrt.buffers import host_value
from meshwright.runtime.pjrt.client import has_many
from meshwright.runtime.pjrt.world import ranks_of
from meshwright.runtime.values import as_array
from meshwright.sharding import Mesh, Sharding, SingleDeviceSharding
from meshwright.transforms.key_reuse import note_op

if TYPE_CHECKING:
    from meshwright.runtime import resharding
    from meshwright.runtime.processes import agreement
else:
    resharding = LateModule("meshwright.runtime.resharding")
    agreement = LateModule("meshwright.runtime.processes.agreement")

_PROGRAMS = OpPrograms()
#: the largest result that is computed with NumPy
_MOST_HOST_BYTES = 1 << 16
#: up to this total size of operands and results, compile time matters more than the speed of the code
_MOST_QUICK_BYTES = 1 << 16

#: evaluates an op with operands on a mesh, with the partitioner
SHARDED: Slot[Callable[[Op, Sequence[Array]], Any]] = Slot(
    "the evaluation of ops on a mesh", "meshwright.api.placement"
)
#: evaluates a ``shard_map`` region
REGION: Slot[Callable[[Op, Sequence[Array]], Any]] = Slot("the evaluation of regions", "meshwright.api.shard_map")


def single_op_jaxpr(op: Op, avals: Sequence[Any]) -> ClosedJaxpr:
    """A program that consists of ``op`` alone."""
    invars = [Var(a) for a in avals]
    out = infer_cached(op, tuple(avals))
    outvars = [Var(a) for a in (out if op.multiple_results else (out,))]
    return without_primitives(ClosedJaxpr(Jaxpr([], invars, outvars, [JaxprEqn(op, invars, outvars)], op.name)))


def _evaluate_body(body: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
    """Evaluate a call equation by equation.

    Functions with custom derivatives, checkpointed functions and similar ones are traced again at each call. As one
    program they would be compiled at each call, while their single ops are cached. Jitted functions are traced once.
    """
    with set_trace(EVAL):
        outs = eval_jaxpr(body, body.consts, *args)
    return [x if type(x) is Array else as_array(x) for x in outs]


def _stated(op: Op) -> Slot[Callable[[Op, Sequence[Array]], Any]] | None:
    """The evaluator of an op that determines its own devices, or whose body does; None for any other op."""
    if _has_devices(op):
        return REGION if op.holds_jaxprs else SHARDED
    return SHARDED if any(map(_says_devices, sub_jaxprs(op))) else None


def _has_devices(op: Op) -> bool:
    return any(isinstance(s.mesh, Mesh) for s in op.stated_shardings())


@once_for_each
def _says_devices(jaxpr: Jaxpr) -> bool:
    return any(_stated(eqn.op) is not None for eqn in jaxpr.eqns)


def _performed(op: Op, args: Sequence[Any]) -> Any:
    """The results of an op evaluated in Python, as arrays."""
    for x in args:
        check_alive(x)
    outs = op.perform(*args)
    if op.moves_only and platforms.is_plugin() and type(outs) is Array and outs.aval.memory != typeof(args[0]).memory:
        return Array(outs.aval, resharding.buffer_with(args[0], outs.sharding), outs.sharding, outs.committed)
    return [as_array(x) if isinstance(x, np.ndarray) else x for x in outs] if op.multiple_results else outs


def evaluate(op: Op, args: Sequence[Any]) -> Any:
    """Evaluate ``op`` on concrete values."""
    if op.in_python:
        return _performed(op, args)
    if op.holds_jaxprs and not op.plain_call and (body := op.body()) is not None:
        return _evaluate_body(body, args)
    if config.debug_key_reuse:
        note_op(op, args)
    if isinstance(op, KeyOp):
        x = as_array(args[0])
        infer_cached(op, (x.aval,))
        return op.of_array(x)
    arrays = [x if type(x) is Array else _operand(x) for x in args]
    if (run := _stated(op)) is not None:
        return check_finite(op.name, run.value(op, arrays))
    committed = [x for x in arrays if x.committed]
    many = has_many()
    place: Sharding | None = None
    if committed:
        place = _common_place(op, committed)
        if place is None:
            return check_finite(op.name, SHARDED.value(op, arrays))
    elif many:
        place = default_sharding()
    key = (config.tracing, op, *(x.aval for x in arrays), spread_of(place) if many and place else None)
    executable = _PROGRAMS.get(key)
    if executable is None:
        if op.moved is not None and (out := _moved(op, arrays, place)) is not None:
            out.committed = bool(committed)
            return check_finite(op.name, out)
        # virtual devices share compiled programs
        executable = _compiled(op, arrays, key, place if many and place else default_sharding())
    outs = executable.run(executable.take(arrays))
    if place is not None:
        for x in outs:
            x.sharding = place.with_memory_kind(x.aval.memory) if x.aval.memory else place
            x.committed = bool(committed)
    return check_finite(op.name, outs if op.multiple_results else outs[0])


def _operand(x: Any) -> Array:
    if isinstance(x, Tracer):
        check_alive(x)
    return as_array(x)


def _common_place(op: Op, committed: Sequence[Array]) -> Sharding | None:
    """The device that the operands are committed to; None if one of them is on a mesh.

    Raises:
      MeshError: the operands are committed to different devices.
    """
    place: SingleDeviceSharding | None = None
    for x in committed:
        if type(x.sharding) is not SingleDeviceSharding:
            return None
        if place is not None and place.device != x.sharding.device:
            raise MeshError(
                f"{op.name}: one operand is on {place.device}, another on {x.sharding.device}; move them to one "
                "device or mesh with device_put first"
            )
        place = x.sharding
    return None if place is None else place.with_memory_kind(None)


def _compiled(op: Op, arrays: Sequence[Array], key: Hashable, home: Sharding) -> Executable:
    """The compiled program of ``op`` alone, cached under ``key``."""
    jaxpr = single_op_jaxpr(op, [x.aval for x in arrays])
    # a loop over small arrays may still run for a long time
    quick = not op.holds_jaxprs and sum(a.nbytes for a in (*jaxpr.in_avals, *jaxpr.out_avals)) <= _MOST_QUICK_BYTES
    homes = [home] * len(jaxpr.out_avals)
    place = one_device(home, [home] * len(arrays))
    return _PROGRAMS.keep(key, op, compile_jaxpr(jaxpr, op.name, homes, quick=quick, place=place))


def _moved(op: Op, arrays: Sequence[Array], place: Sharding | None) -> Array | None:
    """The result of ``op`` by NumPy, if that is exact and cheaper than compiling; else None."""
    if platforms.is_plugin():
        return None  # the data would have to be copied from the accelerator and back
    out = infer_cached(op, tuple(x.aval for x in arrays))
    if out.nbytes > _MOST_HOST_BYTES or not all(x.dtype in dtypes.NUMPY_DTYPES and x.is_ready() for x in arrays):
        return None
    if out.dtype not in dtypes.NUMPY_DTYPES:
        return None
    value = op.moved(*[host_value(x.buffer) for x in arrays])  # type: ignore[misc]
    return from_numpy(value, out.dtype, place, weak_type=out.weak_type, transfer="none")


def _holds(x: Array, test: Callable[[np.ndarray], Any]) -> bool:
    if not dtypes.is_inexact(x.dtype):
        return False
    if not x.is_fully_addressable:  # the following must be done by all processes or by none
        mine = any(_holds(shard.data, test) for shard in x.addressable_shards)
        ranks = ranks_of(x.sharding.devices)
        return str(True) in agreement.exchanged(str(mine), ranks, "the check of results").values()
    value = np.asarray(x)
    return bool(test(value if x.dtype in dtypes.NUMPY_DTYPES else value.astype(np.float32)).any())


def check_finite(name: str, out: Any) -> Any:
    """With ``debug_nans`` or ``debug_infs`` set, raise if a result contains NaN or infinity.

    Raises:
      NonFiniteError: names the op and the user's source line.
    """
    if config.debug_nans or config.debug_infs:
        for x in out if isinstance(out, list) else [out]:
            for enabled, option, test, what in (
                (config.debug_nans, "debug_nans", np.isnan, "a NaN"),
                (config.debug_infs, "debug_infs", np.isinf, "an infinity"),
            ):
                if enabled and _holds(x, test):
                    raise NonFiniteError(
                        f"{name} made {what} in a result of type {x.aval} at {source.current()}; look at its operands "
                        f"there, or switch the check off with config.update({option!r}, False)"
                    )
    return out


EVALUATE.fill(evaluate)


def _to_carrier(x: Array, carrier: np.dtype) -> Array:
    with set_trace(EVAL):  # the array is known, whatever is being traced
        return BitcastConvert(carrier).bind(x) if carrier.kind == "u" else convert(x, carrier)


def _from_carrier(carried: Array, aval: Any, sharding: Sharding, committed: bool) -> Array:
    with set_trace(EVAL):
        typed = BitcastConvert(aval.dtype).bind(carried) if carried.dtype.kind == "u" else convert(carried, aval.dtype)
    return Array(typeof(typed).update(weak_type=aval.weak_type), typed.buffer, sharding, committed)


def _copy(x: Array) -> Any:
    return evaluate(copy, [x]).buffer


def _resharded(x: Array, sharding: Sharding) -> Any:
    return resharding.buffer_with(x, sharding)


CONVERSIONS.fill(Conversions(_to_carrier, _from_carrier, _copy, _resharded))
