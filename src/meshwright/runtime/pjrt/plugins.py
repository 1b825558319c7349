"""PJRT plugins: libraries that compile for and run on a kind of hardware. They are found without importing them.

XLA for TPUs is in ``libtpu``. XLA for NVIDIA GPUs is in ``jax-cuda13-pjrt``, which does not need ``jax``, and compiles
without a driver or GPU; ``jax-cuda13-plugin`` has the custom calls of cuSOLVER and similar libraries. Other plugins are
given by the environment variable ``PJRT_NAMES_AND_LIBRARY_PATHS``, as in JAX: ``name:path,name:path``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from jaxlib.version import __version__ as JAXLIB_VERSION

from meshwright.core.config import PLUGINS_VARIABLE
from meshwright.core.late import LateModule
from meshwright.core.records import dataclass
from meshwright.errors import DeviceError, MissingExtraError

if TYPE_CHECKING:
    from importlib import metadata
else:
    metadata = LateModule("importlib.metadata")

_CUDA_KERNELS = ("_solver", "_linalg", "_prng", "_sparse", "_hybrid")


@dataclass(frozen=True)
class Plugin:
    """A plugin's library, the modules with its kernels, and the environment variables for compiling."""

    platform: str
    library: Path
    folder: Path
    kernels: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    #: XLA flags by name
    flags: tuple[tuple[str, object], ...] = ()


def compiler(platform: str, name: str) -> Plugin:
    """The plugin that compiles for ``platform``, for the target called ``name``.

    Raises:
      MissingExtraError: it is not installed, or its version does not match the installed ``jaxlib``.
    """
    plugin = _BY_PLATFORM[platform](f"compiling for {name}")
    # Without autotuning, which needs a GPU, Triton's matrix products would use tiny tiles.
    return replace(plugin, flags=(("xla_gpu_enable_triton_gemm", False),)) if platform == "cuda" else plugin


def runtime(platform: str) -> Plugin:
    """The plugin that runs programs on ``platform``, a kind of hardware or a name defined in the environment.

    Raises:
      MissingExtraError: as for :func:`compiler`.
      DeviceError: there is no plugin of that name, or its library does not exist.
    """
    if platform in _BY_PLATFORM:
        return replace(_BY_PLATFORM[platform](f"running on {platform}"), environment={})
    named = named_libraries()
    if platform not in named:
        raise DeviceError(
            f"config.platform is {platform!r}: there are cpu, {', '.join((*_BY_PLATFORM, *named))}; for a plugin of "
            f"PJRT's, set {PLUGINS_VARIABLE}='{platform}:/path/to/its/library.so' before the start"
        )
    library = named[platform]
    if not library.is_file():
        raise DeviceError(f"{PLUGINS_VARIABLE} says that {platform!r} is {library}, where there is no file")
    return Plugin(platform, library, library.parent)


def named_libraries() -> dict[str, Path]:
    """The plugins defined in the environment.

    Raises:
      DeviceError: an entry has no name or no path.
    """
    named = {}
    for entry in filter(None, os.environ.get(PLUGINS_VARIABLE, "").split(",")):
        name, colon, path = entry.strip().partition(":")
        if not (name and colon and path):
            raise DeviceError(f"{PLUGINS_VARIABLE}: expected name:path,name:path, got the entry {entry!r}")
        named[name] = Path(path)
    return named


def _tpu(purpose: str) -> Plugin:
    what = f"{purpose} needs Google's compiler for TPUs, the package libtpu (213 MB)"
    remedy = (
        "pip install 'meshwright[tpu]' gets it. Its licence is not an open one: by installing it you accept the Google "
        "Cloud Platform Terms of Service (https://cloud.google.com/terms)"
    )
    dist = _installed("libtpu", "0.0.42.", what, remedy)
    environment = {
        # Otherwise it queries a server that exists only on Google's machines, with a timeout of half a minute each.
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
        "TPU_LOG_DIR": "disabled",
        # Otherwise a second process that compiles fails because of a lock file.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    return Plugin("tpu", *_file(dist, "libtpu/libtpu.so"), environment=environment)


def _cuda(purpose: str) -> Plugin:
    version = JAXLIB_VERSION
    what = f"{purpose} needs XLA for NVIDIA's GPUs, the package jax-cuda13-pjrt (124 MB; to compile no GPU, no driver)"
    remedy = f"pip install 'meshwright[cuda]' gets it, in version {version}, which the installed jaxlib has"
    number = next((n for n in ("13", "12") if _version(f"jax-cuda{n}-pjrt") is not None), "13")
    packages = f"jax-cuda{number}-pjrt", f"jax-cuda{number}-plugin"
    dist = _installed(packages[0], version, what, remedy)
    kernels: tuple[str, ...] = ()
    if _version(packages[1]) is not None:
        _installed(packages[1], version, what, remedy)
        kernels = tuple(f"jax_cuda{number}_plugin.{module}" for module in _CUDA_KERNELS)
    return Plugin("cuda", *_file(dist, f"jax_plugins/xla_cuda{number}/xla_cuda_plugin.so"), kernels)


_BY_PLATFORM = {"cuda": _cuda, "tpu": _tpu}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _installed(package: str, version: str, what: str, remedy: str) -> metadata.Distribution:
    try:
        dist = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        raise MissingExtraError(f"{what}, which is not installed; {remedy}") from None
    if not f"{dist.version}.".startswith(version if version.endswith(".") else version + "."):
        needed = version + "*" if version.endswith(".") else version
        raise MissingExtraError(
            f"{what}, in version {needed}, which goes with jaxlib {metadata.version('jaxlib')}; {dist.version} is "
            f"installed. pip install '{package}=={needed}' mends it"
        )
    return dist


def _file(package: metadata.Distribution, name: str) -> tuple[Path, Path]:
    """The path of a package's file, and the folder of installed packages."""
    path = Path(str(package.locate_file(name)))
    if not path.exists():
        raise MissingExtraError(
            f"the package {package.metadata['Name']} {package.version} has no file {name}; install it again with pip "
            f"install --force-reinstall '{package.metadata['Name']}=={package.version}'"
        )
    return path, Path(str(package.locate_file("")))
