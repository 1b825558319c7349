"""XLA's runtime clients for each platform, and transfers of values to and from their devices.

The CPU client is part of ``jaxlib``. All others are plugins behind PJRT's C API, which only copies values and supports
neither LAPACK nor the Python callbacks of the CPU client.
"""

from __future__ import annotations

import ctypes
import importlib
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from platform import machine
from typing import Any

from jaxlib import _jax, _profiler
from jaxlib import xla_client as xc
from jaxlib.version import __version__ as jaxlib_version

from meshwright.core.config import config
from meshwright.core.words import counted
from meshwright.errors import DeviceError
from meshwright.runtime.pjrt import freed_memory, plugins
from meshwright.runtime.pjrt.plugins import Plugin
from meshwright.runtime.pjrt.world import WORLD

#: Google's vendor ID on the PCI bus
_GOOGLE = "0x1ae0"
#: the assumed number of a plugin's devices before it has started (a plugin for CPUs needs threads for each)
_DEVICES_OF_A_PLUGIN = 8
#: DLPack's device types by platform; the memory of other platforms counts as the host's
_DLPACK_TYPES = {"cuda": 2, "gpu": 2, "rocm": 10}


def make_client(platform: str, devices: int) -> Any:
    """A client with ``devices`` real devices in this process; 0 stands for one CPU, or for all devices of a plugin.

    Raises:
      DeviceError: the platform does not exist here, or has fewer devices.
      MissingExtraError: it is not installed.
    """
    if platform != "cpu":
        return _plugin_client(plugins.runtime(platform), devices)
    devices = max(devices, 1)
    freed_memory.keep()
    if WORLD.service is None:
        return cpu_client(devices)
    with _threads_for(devices):
        gloo = _jax.make_gloo_tcp_collectives(distributed_client=WORLD.service, hostname=WORLD.host)
        return xc.make_cpu_client(
            distributed_client=WORLD.service, node_id=WORLD.rank, num_nodes=WORLD.count, num_devices=devices,
            collectives=gloo,
        )  # fmt: skip


def cpu_client(devices: int) -> Any:
    """A client with ``devices`` CPU devices, for this process alone."""
    with _threads_for(devices):
        return xc.make_cpu_client(num_devices=devices)


def is_plugin() -> bool:
    """Whether the devices are those of a plugin, which do not share memory with the host."""
    return config.platform != "cpu"


def _plugin_client(plugin: Plugin, devices: int) -> Any:
    if plugin.platform == "tpu" and not _has_tpus():
        raise DeviceError(
            "config.platform is 'tpu', and no device of Google's is on this machine's PCI bus; "
            "PartitionedProgram.compile(target('v5e:2x4')) compiles for TPUs without one"
        )
    try:
        if plugin.platform == "cuda":
            _load_nvidia_libraries()
        if not xc.pjrt_plugin_loaded(plugin.platform):
            api = xc.load_pjrt_plugin_dynamically(plugin.platform, str(plugin.library))
            _profiler.register_plugin_profiler(api)
            _register_kernels(plugin, api)
        if not xc.pjrt_plugin_initialized(plugin.platform):
            xc.initialize_pjrt_plugin(plugin.platform)
        with _threads_for(devices or _DEVICES_OF_A_PLUGIN):
            client = xc.make_c_api_client(plugin.platform, _client_options(plugin.platform), WORLD.service)
    except Exception as error:
        raise DeviceError(
            f"the runtime of config.platform={plugin.platform!r} ({plugin.library}) could not be started: {error}. Is "
            f"it a plugin of the version that goes with jaxlib {jaxlib_version}, and are there such devices here, with "
            "their driver, free for this process? config.update('platform', 'cpu') "
            "computes without them, and PartitionedProgram.compile(target(...)) compiles for them"
        ) from None
    if devices > len(client.local_devices()):
        raise DeviceError(
            f"config.real_devices is {devices}, and {plugin.platform!r} has "
            f"{counted(len(client.local_devices()), 'device')} here"
        )
    return client


def _has_tpus() -> bool:
    """Whether this machine has TPUs. Without any, libtpu would query Google's servers for minutes."""
    return any(f.read_text().strip() == _GOOGLE for f in Path("/sys/bus/pci/devices").glob("*/vendor"))


def _client_options(platform: str) -> Mapping[str, Any]:
    if platform != "cuda":
        return {}
    options = dict(xc.generate_pjrt_gpu_plugin_options())
    if WORLD.own_devices is not None:
        options["visible_devices"] = list(WORLD.own_devices)
    return options | {"node_id": WORLD.rank, "num_nodes": WORLD.count} if WORLD.count > 1 else options


def _load_nvidia_libraries() -> None:
    """Load the libraries of NVIDIA's packages, so that the plugin finds them by name; others are the system's."""
    with suppress(ImportError):
        folders = [Path(p) for p in importlib.import_module("nvidia").__path__]
        libraries = sorted(file for folder in folders for file in folder.glob("*/lib/lib*.so.*"))
        while rest := [file for file in libraries if not _loads(file)]:
            if len(rest) == len(libraries):  # their dependencies are missing; the plugin reports it if it needs them
                return
            libraries = rest


def _loads(library: Path) -> bool:
    """Whether a library can be loaded, which requires that its dependencies are."""
    with suppress(OSError):
        ctypes.CDLL(str(library))
        return True
    return False


def _register_kernels(plugin: Plugin, api: Any) -> None:
    """Register the library calls (cuSOLVER, …) of the plugin's companion package."""
    if not plugin.kernels:
        return
    extension = importlib.import_module(plugin.kernels[0].rpartition(".")[0] + ".cuda_plugin_extension")
    for module in plugin.kernels:
        with suppress(ImportError):  # a module may need a library that is missing here
            for name, kernel in importlib.import_module(module).registrations().items():
                extension.register_custom_call_target(api, name, kernel, "CUDA", 1)
    xc.register_custom_call_handler("CUDA", partial(extension.register_custom_call_target, api))  # for users' kernels


def load_lapack() -> None:
    """Let GPU kernels that compute on the host use SciPy's LAPACK."""
    for name in plugins.runtime(config.platform).kernels if config.platform == "cuda" else ():
        with suppress(ImportError):
            if initialize := getattr(importlib.import_module(name), "initialize", None):
                initialize()


def dlpack_device(device: Any) -> tuple[int, int]:
    """The DLPack type and number of a real device."""
    kind = _DLPACK_TYPES.get(device.platform, 1)
    return kind, device.local_hardware_id if kind != 1 else 0


@contextmanager
def _threads_for(devices: int) -> Iterator[None]:
    """Set the environment variables from which XLA's client reads its settings at startup.

    In a run, each device occupies a thread that waits for the others. With as many threads as devices, two concurrent
    runs could occupy all of them and deadlock. Twice as many are enough.
    """
    before = {name: os.environ.get(name) for name in ("NPROC", "XLA_FLAGS")}
    if devices > 1 or WORLD.count > 1:
        os.environ["NPROC"] = str(max(2 * devices, os.cpu_count() or 1))
    if flags := _flags():
        os.environ["XLA_FLAGS"] = " ".join([before["XLA_FLAGS"] or "", *flags]).strip()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _flags() -> list[str]:
    """The XLA flags for our own options.

    XLA may contract a product and a sum into one FMA instruction, which rounds once instead of twice, and fuses
    differently on a virtual mesh. For reproducible sums, code is generated for processors without FMA.
    """
    flags = []
    if WORLD.count > 1:
        flags.append(f"--xla_cpu_collective_timeout_seconds={math.ceil(config.collective_timeout)}")
    if config.reproducible_sums and machine() in ("x86_64", "AMD64"):
        flags.append("--xla_cpu_max_isa=AVX")
    return flags
