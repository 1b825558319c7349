"""Buffers on devices, and runs of executables on them.

DLPack import and export do not touch JAX's global state, so they also work if ``jax`` is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from jaxlib import _hlo, _jax

from meshwright.runtime.pjrt import deadlines, platforms, shielded
from meshwright.runtime.pjrt.client import Forked, first_local, real_devices, require_own_process
from meshwright.runtime.pjrt.failures import raise_failure


def execute(executable: Any, buffers: Sequence[Any], wait: bool = False) -> list[Any]:
    """Run on one device; asynchronous, unless ``wait`` is set.

    Raises:
      DeviceError: the run could not be started; DeletedArrayError: a buffer has already been donated.
    """
    return [r[0] for r in execute_on_all(executable, buffers, wait)]


def runner(
    executable: Any, types: Sequence[tuple[tuple[int, ...], Any]], maker: Any = None
) -> Callable[[list[Any]], list[Any]]:
    """A function like :func:`execute` (for several devices, with :func:`joined` operands and results), twice as fast.

    The handlers for results of these shapes and dtypes are made only once.
    """
    where = _on(tuple(executable.local_devices()))
    makers = [_jax.array_result_handler(_Aval(*t), where, committed=True, _skip_checks=True) for t in types]
    start, is_shared = executable.execute_sharded, bool(getattr(maker, "ranks", ()))

    def run(buffers: list[Any]) -> list[Any]:
        if Forked.happened:  # asked here, as a call takes longer
            require_own_process()
        try:
            results: list[Any] = start(buffers).consume_with_handlers(makers)
        except Exception as error:
            raise_failure(error, "the program", maker)
        if results:
            shielded.started(results[0])
            if is_shared:
                deadlines.note_run(results[0])
        return results

    return run


def execute_on_all(executable: Any, arrays: Sequence[Any], wait: bool = False, maker: Any = None) -> list[list[Any]]:
    """Like :func:`execute`, on all devices of the program; returns this process's buffers for each result.

    With several devices, ``arrays`` must come from :func:`joined`.
    """
    require_own_process()
    try:
        if wait:
            running = executable.execute_sharded(arrays, with_tokens=True)
            running.consume_token().block_until_ready()
        else:
            running = executable.execute_sharded(arrays)
        results = running.disassemble_into_single_device_arrays()
    except Exception as error:
        raise_failure(error, "the program", maker)
    if results and results[0]:
        shielded.started(results[0][0])
        if getattr(maker, "ranks", ()):
            deadlines.note_run(results[0][0])
    return results


class _Aval:
    """The attributes of a type that PJRT's arrays need."""

    __slots__ = ("dtype", "shape", "weak_type")

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype, self.weak_type = shape, dtype, False


@cache
def _on(devices: tuple[Any, ...]) -> Any:
    return _jax.GSPMDSharding(_jax.DeviceList(devices), _hlo.HloSharding.replicate())


def joined(buffers: Sequence[Any], shape: tuple[int, ...], dtype: Any, reals: tuple[int, ...]) -> Any:
    """Buffers of the same ``shape`` on the devices ``reals``, as one operand of a program on all of these."""
    where = _on(tuple(real_devices()[r] for r in reals))
    return _jax.ArrayImpl(_Aval(shape, dtype), where, list(buffers), True, _skip_checks=True)


def buffer_from_numpy(value: np.ndarray, real: int, copy: bool) -> Any:
    """A device buffer of a contiguous array. Without ``copy``, aligned memory is shared, except on accelerators.

    XLA releases memory at the end of the last run that uses it, on a thread that must not take the GIL, as the
    interpreter may be shutting down. A DLPack deleter would take it. So NumPy's memory is passed like an argument
    instead, and is released when Python next calls XLA.
    """
    require_own_process()
    return _put(real, value, copy or platforms.is_plugin())


def _put(real: int, value: np.ndarray, copy: bool) -> Any:
    device, kinds = real_devices()[real], _jax.HostBufferSemantics
    kept = kinds.IMMUTABLE_ONLY_DURING_CALL if copy else kinds.ZERO_COPY
    aval = _Aval(value.shape, value.dtype)
    return _jax.batched_device_put(aval, _on((device,)), [value], [device], True, copy, kept, True)


def in_memory(buffer: Any, real: int, kind: str) -> Any:
    """A copy of a buffer in another memory kind of its device; it may share memory if both kinds are the same."""
    device, kept = real_devices()[real], _jax.ArrayCopySemantics.REUSE_INPUT
    where = _jax.SingleDeviceSharding(device, memory_kind=kind)
    return _jax.batched_copy_array_to_devices_with_sharding([buffer], [_jax.DeviceList((device,))], [where], [kept])[0]


def host_value(buffer: Any) -> np.ndarray:
    """A buffer's value as a read-only array, once it is ready. Shares memory on CPUs; a copy on accelerators.

    Raises:
      DeviceError: the computation of the buffer failed; DeletedArrayError: it was donated.
    """
    wait(buffer)
    if not platforms.is_plugin():
        return np.from_dlpack(Exporter(buffer))
    value, _ = buffer._single_device_array_to_np_array_did_copy()
    value.flags.writeable = False
    return value


def dlpack_device(real: int | None = None) -> tuple[int, int]:
    """The DLPack type and number of a real device; ``(1, 0)`` is host memory."""
    if not platforms.is_plugin():
        return (1, 0)
    return platforms.dlpack_device(real_devices()[first_local() if real is None else real])


def is_row_major(buffer: Any, ndim: int) -> bool:
    """Whether an imported buffer is row-major, as programs expect."""
    return str(buffer._pjrt_layout) == "{" + ",".join(map(str, reversed(range(ndim)))) + "}"


def dlpack_capsule(buffer: Any) -> Any:
    """A DLPack capsule of a buffer, sharing its memory; waits until it is ready."""
    wait(buffer)  # unlike the export, this can be interrupted
    return _jax.buffer_to_dlpack_managed_tensor(buffer)


class Exporter:
    """A DLPack exporter for one buffer, for consumers that want the protocol."""

    __slots__ = ("buffer",)

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer

    def __dlpack__(self, **_: Any) -> Any:
        return dlpack_capsule(self.buffer)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def wait(buffer: Any) -> None:
    """Block until a buffer is ready.

    Raises:
      DeviceError: the computation of the buffer failed; DeletedArrayError: it was donated.
    """
    require_own_process()
    maker = getattr(buffer, "maker", None)
    try:
        if deadlines.may_last(buffer, maker):
            return deadlines.limited(buffer.block_until_ready, "it is not computed", maker)
        buffer.block_until_ready()
    except Exception as error:
        raise_failure(error, "the computation", maker)
