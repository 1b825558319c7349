"""Compiles modules with XLA, and finds compiled ones in the disk cache."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxlib import _jax
from jaxlib import xla_client as xc
from jaxlib.cpu import _lapack
from jaxlib.mlir import ir

from meshwright.core.config import config
from meshwright.core.late import LateModule
from meshwright.core.records import dataclass
from meshwright.errors import CompileError, DeviceError
from meshwright.runtime.pjrt import deadlines, platforms, shielded
from meshwright.runtime.pjrt.client import client, first_local, real_devices
from meshwright.runtime.pjrt.contexts import with_module
from meshwright.runtime.pjrt.failures import is_xla_error
from meshwright.runtime.pjrt.world import WORLD, ranks_of
from meshwright.stablehlo.dialects import new_context

if TYPE_CHECKING:
    from meshwright.runtime.pjrt import disk_cache
else:
    disk_cache = LateModule("meshwright.runtime.pjrt.disk_cache")

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


#: Shardy's operations and attributes, in text, and in the frontend attributes of HLO
_SHARDY = re.compile(r"\bsdy\.(mesh|sharding|manual)")
#: constants with more elements are not printed
_FEW = 16


def is_shardy(module: Any) -> bool:
    """Whether the shardings of a module (text, bytecode or parsed) are Shardy's. GSPMD does not see those, and fails
    where there are constraints among them."""
    if isinstance(module, bytes):
        if b"sdy" not in module:
            return False
        try:
            module = ir.Module.parse(module, new_context())
        except ir.MLIRError:  # XLA raises the same error, which is reported there
            return False
    text = module if isinstance(module, str) else module.operation.get_asm(large_elements_limit=_FEW)
    return _SHARDY.search(text) is not None


@cache
def load_lapack() -> None:
    """Register SciPy's LAPACK for the kernels. Takes 0.1 s, so it is only done for programs that call LAPACK."""
    _lapack.initialize()
    platforms.load_lapack()


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

#: XLA flags by name
Flags = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Build:
    """How a program is compiled: for which real devices, with a replica on each, and with which flags.

    ``reals`` is None for the first one of this process. ``quick`` prefers a short compile time over fast code;
    ``complete`` asks for code generators that support all functions.
    """

    reals: tuple[int, ...] | None = None
    flags: Flags = ()
    quick: bool = False
    complete: bool = False

    @property
    def devices(self) -> tuple[Any, ...]:
        return tuple(real_devices()[r] for r in ((first_local(),) if self.reals is None else self.reals))

    @property
    def options(self) -> Any:
        """XLA's options."""
        is_alone = config.platform == "cuda" and WORLD.count > 1 and not _compile_together(self.devices)
        return _options_of(replace(self, flags=(*self.flags, _ALONE)) if is_alone else self)


def _compile_together(devices: Iterable[Any]) -> bool:
    """Whether all processes compile a program at the same time, so that they can share autotuning.

    They do not if the program runs in some processes only, or if one process compiles it for all (disk cache).
    """
    return len(ranks_of(devices)) == WORLD.count and not disk_cache.is_used()


@cache
def _options_of(build: Build) -> Any:
    options = compile_options(len(build.devices), 1)
    options.device_assignment = xc.DeviceAssignment.create(np.array([[d.id] for d in build.devices]))
    if platforms.is_plugin():
        options.env_option_overrides = []  # the ones below are for the CPU
    elif build.quick or build.complete:
        options.env_option_overrides = [*OURS, *(_COMPLETE if build.complete else _QUICK)]
    if build.flags:
        options.env_option_overrides = [*options.env_option_overrides, *build.flags]
    return options


def compile_options(replicas: int, partitions: int) -> Any:
    """XLA's options for a program on ``replicas * partitions`` devices."""
    options = xc.CompileOptions()
    options.env_option_overrides = OURS
    options.num_replicas, options.num_partitions = replicas, partitions
    devices = np.arange(replicas * partitions).reshape(replicas, partitions)
    options.device_assignment = xc.DeviceAssignment.create(devices)
    return options


def compile_module(
    module: Any,
    name: str,
    build: Build = Build(),  # noqa: B008
    callbacks: Sequence[Callable[..., Any]] = (),
    text: Callable[[], str] | None = None,
) -> Any:
    """Compile StableHLO bytecode, or a module that calls the Python functions ``callbacks`` by number.

    With its ``text()``, the disk cache is used, except for programs with callbacks.

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
    try:
        return _built(module, name, build, callbacks, text)
    except CompileError as error:
        if "UNIMPLEMENTED" not in str(error):
            raise
    return _built(module, name, replace(build, complete=True), callbacks, text)


def _built(
    module: Any, name: str, build: Build, callbacks: Sequence[Any], text: Callable[[], str] | None
) -> Any:  # fmt: skip
    devices, options = build.devices, build.options
    make = _compilation(client(), devices, module, options, callbacks)
    compile = partial(shielded.shielded, make)
    if WORLD.count > 1 and platforms.is_plugin() and _compile_together(devices):
        what = "compiling, of which processes do parts for each other"
        compile = partial(deadlines.limited, make, "it is not compiled", what)
    with _refused(f"XLA could not compile {name!r}"):
        if text is None or callbacks:
            return compile()
        return disk_cache.compiled(text, client(), _jax.DeviceList(devices), options, compile)


def compile_on(client: Any, module: Any, options: Any, what: str, callbacks: Sequence[Any] = ()) -> Any:
    """Compile ``module`` for the devices of another client than our own.

    Raises:
      CompileError: XLA rejected the program; ``what`` begins the message.
    """
    with _refused(what):
        return shielded.shielded(_compilation(client, client.local_devices(), module, options, callbacks))


def _compilation(
    client: Any, devices: Iterable[Any], module: Any, options: Any, callbacks: Sequence[Any]
) -> Callable[[], Any]:
    where, host = _jax.DeviceList(tuple(devices)), [list(callbacks)] if callbacks else []
    return partial(with_module, module, lambda read: client.compile_and_load(read, where, options, *host))


@contextmanager
def _refused(what: str) -> Iterator[None]:
    """Raise XLA's errors as ours."""
    try:
        yield
    except Exception as error:
        if not is_xla_error(error):
            raise
        raise CompileError(f"{what}: {error}") from None


# --- programs that need not be lowered ----------------------------------------------------------------------
def keeps_programs() -> bool:
    """Whether programs may be loaded from the disk cache without lowering, which skips dumps of the passes."""
    return config.dump_ir is None and disk_cache.is_used()


def note_name(mark: bytes, build: Build) -> str:
    """The disk cache's key for a program with this fingerprint, compiled in this environment."""
    return disk_cache.note_name(mark, client(), build.options)


def recalled(mark: bytes, build: Build) -> Any:
    """The executable and the noted facts of a program with this fingerprint; None if not in the disk cache."""
    if (noted := disk_cache.noted(mark, client(), build.options)) is None:
        return None
    key, (calls_lapack, facts) = noted
    if calls_lapack:
        load_lapack()
    loaded = disk_cache.loaded(key, client(), _jax.DeviceList(build.devices), build.options)
    return None if loaded is None else (loaded, facts)


def remember(mark: bytes, text: str, facts: Any, build: Build) -> None:
    """Note ``facts`` about a program under its fingerprint before lowering, if the disk cache has the program."""
    disk_cache.remember(mark, text, [calls_lapack(text), facts], client(), build.options)
