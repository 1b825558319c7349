"""One PJRT client, compilation and buffers.

Everything here uses private names of ``jaxlib``; the pinned release is 0.10. DLPack import and export do not touch
JAX's global state, so they also work if ``jax`` is imported.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from jaxlib import _hlo, _jax
from jaxlib import xla_client as xc
from jaxlib.cpu import _lapack

from meshwright.core.config import config
from meshwright.core.late import LateModule
from meshwright.errors import CompileError, DeletedArrayError, DeviceError, MeshwrightError
from meshwright.ops.control.callback import failure_in
from meshwright.runtime.pjrt import deadlines, platforms, shielded
from meshwright.runtime.pjrt.contexts import with_module
from meshwright.runtime.pjrt.world import WORLD

if TYPE_CHECKING:
    from meshwright.runtime.pjrt import disk_cache
else:
    disk_cache = LateModule("meshwright.runtime.pjrt.disk_cache")

_starting = threading.Lock()

for _name, _kernel in _lapack.registrations().items():
    if _name.endswith("_ffi"):
        xc.register_custom_call_target(_name, _kernel, platform="cpu", api_version=1)


#: name prefixes of kernels that call LAPACK: on CPUs, and on the host of GPUs
_LAPACK = ("lapack_", "cuhybrid_")


def calls_lapack(module: str | bytes) -> bool:
    """Whether a module, as text or bytecode, calls LAPACK."""
    if isinstance(module, bytes):
        return any(name.encode() in module for name in _LAPACK)
    return any(name in module for name in _LAPACK)


@cache
def load_lapack() -> None:
    """Register SciPy's LAPACK for the kernels. Takes 0.1 s, so it is only done for programs that call LAPACK."""
    _lapack.initialize()
    platforms.load_lapack()


@cache
def _start() -> Any:
    make = partial(platforms.make_client, config.platform, config.real_devices)
    if WORLD.note_run is None or WORLD.count == 1:
        return make()
    WORLD.note_run("the start of its devices")  # all processes wait for each other here
    try:
        return deadlines.limited(make, "not all devices are there", _STARTING)
    except RuntimeError as error:
        _raise(error, "the start of the devices", _STARTING)


_STARTING = "the start of the devices, which all processes make together"


class _Process:
    """Detects whether this process was forked after the client was started, whose threads a fork does not have."""

    forked = False


def _note_fork() -> None:
    global _starting
    _starting = threading.Lock()
    _Process.forked = _start.cache_info().currsize > 0


os.register_at_fork(after_in_child=_note_fork)


def require_own_process() -> None:
    """Raise in a forked process that cannot run programs: it would hang.

    Raises:
      DeviceError: the process was forked after the first use of a device.
    """
    if _Process.forked:
        raise DeviceError(
            "this process was forked from one that had used meshwright already: the threads that run programs did not "
            "come along. Start processes with multiprocessing.get_context('spawn') (or 'forkserver'), or fork before "
            "the first array is made"
        )


def is_started() -> bool:
    """Whether the client has been started; its devices can then no longer be changed."""
    return _start.cache_info().currsize > 0


def client() -> Any:
    """The client of ``config.platform``, created once at first use; thread-safe."""
    require_own_process()
    with _starting:
        return _start()


def _is_xla_error(error: Exception) -> bool:
    return type(error).__name__ in ("XlaRuntimeError", "JaxRuntimeError")


def _raise(error: Exception, what: str, maker: Any = None) -> NoReturn:
    """Raise the user-facing error for a failed run or wait; ``maker`` is the executable, if known."""
    if not _is_xla_error(error):
        raise error
    of_callback = failure_in(str(error))
    if of_callback is not None:
        raise of_callback from of_callback.__cause__
    of_others = WORLD.behind(error, maker) if WORLD.service is not None else None
    if of_others is not None:
        raise of_others from None
    raise _failure(error, what) from None


def _failure(error: Exception, what: str) -> MeshwrightError:
    if "deleted or donated" in str(error):
        return DeletedArrayError(
            "an array was used whose memory had been donated through another array that shares it (device_put does not "
            "copy); use the function's result, or do not donate it"
        )
    return DeviceError(f"{what} failed on the device: {error}")


@cache
def real_devices() -> tuple[Any, ...]:
    """PJRT's devices of all processes, in the numbering of :class:`~meshwright.runtime.devices.Device`."""
    devices = sorted(client().devices(), key=lambda d: (d.process_index, d.id))
    used = config.real_devices or len(devices)
    return tuple(d for _, mine in groupby(devices, lambda d: d.process_index) for d in list(mine)[:used])


@cache
def has_many() -> bool:
    """Whether there are several real devices."""
    return len(real_devices()) > 1


@cache
def first_local() -> int:
    """The number of the first real device of this process."""
    return next(i for i in range(len(real_devices())) if is_local(i))


def is_local(real: int) -> bool:
    """Whether a real device belongs to this process."""
    return real_devices()[real].process_index == client().process_index()


#: for imported programs: not XLA's experimental library of kernels, whose compiler crashes on some of them
SAFE = [("xla_cpu_experimental_ynn_fusion_type", "")]
#: for our own: its convolutions, one by one. Those that it computes wrong are rewritten (lowering/convolutions.py)
OURS = [("xla_cpu_experimental_ynn_fusion_type", "LIBRARY_FUSION_TYPE_INDIVIDUAL_CONVOLUTION")]

#: plain code: no MLIR-based fusion emitters and no LLVM optimisation, which take most of the time of a small program
_QUICK = [
    ("xla_cpu_use_fusion_emitters", "False"),
    ("xla_backend_optimization_level", "0"),
    ("xla_llvm_disable_expensive_passes", "True"),
]


#: the MLIR-based fusion emitters; the older ones do not support a few functions of complex numbers
_COMPLETE = [("xla_cpu_use_fusion_emitters", "True")]


#: each process autotunes kernels by itself
_ALONE = ("xla_gpu_shard_autotuning", "False")


def _compile_options(
    reals: tuple[int, ...], quick: bool, complete: bool = False, overrides: tuple[tuple[str, Any], ...] = ()
) -> Any:
    is_alone = config.platform == "cuda" and WORLD.count > 1 and not _compile_together(real_devices()[r] for r in reals)
    return _options_for(reals, quick, complete, (*overrides, _ALONE) if is_alone else overrides)


def _compile_together(devices: Iterable[Any]) -> bool:
    """Whether all processes compile a program at the same time, so that they can share autotuning.

    They do not if the program runs in some processes only, or if one process compiles it for all (disk cache).
    """
    return len({d.process_index for d in devices}) == WORLD.count and not disk_cache.is_used()


@cache
def _options_for(reals: tuple[int, ...], quick: bool, complete: bool, overrides: tuple[tuple[str, Any], ...]) -> Any:
    options = compile_options(len(reals), 1)
    ids = np.array([[real_devices()[r].id] for r in reals])
    options.device_assignment = xc.DeviceAssignment.create(ids)
    if platforms.is_plugin():
        options.env_option_overrides = []  # the ones below are for the CPU
    elif quick or complete:
        options.env_option_overrides = [*OURS, *(_COMPLETE if complete else _QUICK)]
    if overrides:
        options.env_option_overrides = [*options.env_option_overrides, *overrides]
    return options


def compile_options(replicas: int, partitions: int) -> Any:
    """XLA's options for a program on ``replicas * partitions`` devices."""
    options = xc.CompileOptions()
    options.env_option_overrides = OURS
    options.num_replicas, options.num_partitions = replicas, partitions
    devices = np.arange(replicas * partitions).reshape(replicas, partitions)
    options.device_assignment = xc.DeviceAssignment.create(devices)
    return options


def load(
    client: Any,
    module: Any,
    options: Any,
    what: str,
    callbacks: Sequence[Any] = (),
    text: Callable[[], str] | None = None,
    reals: Sequence[int] | None = None,
) -> Any:
    """Compile ``module`` for the devices of ``client``, or for the real devices ``reals`` of our own client.

    ``what`` is the beginning of error messages. With its ``text``, the disk cache is used, except for programs with
    callbacks.

    Raises:
      CompileError: XLA rejected the program; includes its message.
    """
    used = tuple(client.local_devices()) if reals is None else tuple(real_devices()[r] for r in reals)
    devices = _jax.DeviceList(used)
    host = [list(callbacks)] if callbacks else []

    def compile() -> Any:
        make = partial(with_module, module, lambda read: client.compile_and_load(read, devices, options, *host))
        if WORLD.count > 1 and platforms.is_plugin() and _compile_together(used):
            return deadlines.limited(
                make, "it is not compiled", "compiling, of which processes do parts for each other"
            )
        return shielded.shielded(make)

    try:
        if text is None or callbacks:
            return compile()
        return disk_cache.compiled(text, client, devices, options, compile)
    except Exception as error:
        if not _is_xla_error(error):
            raise
        raise CompileError(f"{what}: {error}") from None


def keeps_programs() -> bool:
    """Whether programs may be loaded from the disk cache without lowering, which skips dumps of the passes."""
    return config.dump_ir is None and disk_cache.is_used()


def note_name(mark: bytes, overrides: tuple[tuple[str, Any], ...], reals: tuple[int, ...] | None) -> str:
    """The disk cache's key for a program with this fingerprint, compiled in this environment."""
    reals = (first_local(),) if reals is None else reals
    return disk_cache.note_name(mark, client(), _compile_options(reals, False, overrides=overrides))


def recalled(mark: bytes, overrides: tuple[tuple[str, Any], ...], reals: tuple[int, ...] | None) -> Any:
    """The executable and the noted facts of a program with this fingerprint; None if not in the disk cache."""
    reals = (first_local(),) if reals is None else reals
    devices = _jax.DeviceList(tuple(real_devices()[r] for r in reals))
    options = _compile_options(reals, False, overrides=overrides)
    if (noted := disk_cache.noted(mark, client(), options)) is None:
        return None
    key, (calls_lapack, facts) = noted
    if calls_lapack:
        load_lapack()
    loaded = disk_cache.loaded(key, client(), devices, options)
    return None if loaded is None else (loaded, facts)


def remember(
    mark: bytes, text: str, facts: Any, overrides: tuple[tuple[str, Any], ...], reals: tuple[int, ...] | None
) -> None:
    """Note ``facts`` about a program under its fingerprint before lowering, if the disk cache has the program."""
    reals = (first_local(),) if reals is None else reals
    noted = [calls_lapack(text), facts]
    disk_cache.remember(mark, text, noted, client(), _compile_options(reals, False, overrides=overrides))


def compile_module(
    module: Any,
    name: str,
    callbacks: Sequence[Callable[..., Any]] = (),
    quick: bool = False,
    text: Callable[[], str] | None = None,
    overrides: tuple[tuple[str, Any], ...] = (),
    reals: tuple[int, ...] | None = None,
) -> Any:
    """Compile StableHLO bytecode, or a module that calls the Python functions ``callbacks`` by number.

    There is one replica per real device in ``reals``, by default this process's first. ``quick`` prefers a short
    compile time over fast code. ``text()`` is the program's text, for the disk cache.

    Raises:
      CompileError: XLA rejected the program; includes its message. DeviceError: it calls Python on an accelerator.
    """
    if callbacks and platforms.is_plugin():
        raise DeviceError(
            f"{name!r} calls Python, which programs on {config.platform!r} cannot; return the values and use them "
            "outside of the program, or compute on the CPU (config.platform)"
        )
    if callbacks or calls_lapack(module):
        load_lapack()  # a module with callbacks cannot be searched as text
    what = f"XLA could not compile {name!r}"
    reals = (first_local(),) if reals is None else reals
    try:
        options = _compile_options(reals, quick, overrides=overrides)
        return load(client(), module, options, what, callbacks, text, reals)
    except CompileError as error:
        if "UNIMPLEMENTED" not in str(error):
            raise
    return load(client(), module, _compile_options(reals, quick, True, overrides), what, callbacks, text, reals)


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
        if _Process.forked:
            require_own_process()
        try:
            results: list[Any] = start(buffers).consume_with_handlers(makers)
        except Exception as error:
            _raise(error, "the program", maker)
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
        _raise(error, "the program", maker)
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


def is_row_major(buffer: Any) -> bool:
    """Whether an imported buffer is row-major, as programs expect."""
    return str(buffer._pjrt_layout) == "{" + ",".join(map(str, reversed(range(buffer.ndim)))) + "}"


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
        _raise(error, "the computation", maker)
