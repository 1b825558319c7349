"""The compilers for hardware: packages that a user installs, found without importing them.

XLA for TPUs is inside ``libtpu``, that for NVIDIA's GPUs in ``jax-cuda13-pjrt`` (which needs no ``jax``, and to compile
no driver and no GPU); ``jax-cuda13-plugin`` has the calls of cuSOLVER and its like.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from meshwright.errors import MissingExtraError
from meshwright.runtime.pjrt.replicas import JAXLIB_VERSION

_CUDA_KERNELS = ("_solver", "_linalg", "_prng", "_sparse", "_hybrid")


@dataclass(frozen=True)
class Plugin:
    """A compiler's library, the modules with its kernels, and the environment that it wants."""

    platform: str
    library: Path
    folder: Path
    kernels: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    #: XLA's flags, by name
    flags: tuple[tuple[str, object], ...] = ()


def plugin(platform: str, name: str) -> Plugin:
    """The compiler for ``platform``, for the target called ``name``.

    Raises:
      MissingExtraError: it is not installed, or in a version that does not go with the installed ``jaxlib``.
    """
    return _tpu(name) if platform == "tpu" else _cuda(name)


def _tpu(name: str) -> Plugin:
    what = f"compiling for {name} needs Google's compiler for TPUs, the package libtpu (213 MB)"
    remedy = (
        "pip install 'meshwright[tpu]' gets it. Its licence is not an open one: by installing it you accept the Google "
        "Cloud Platform Terms of Service (https://cloud.google.com/terms)"
    )
    found = _installed("libtpu", "0.0.42.", what, remedy)
    environment = {
        # Else it asks a server that only Google's machines have, half a minute for each question.
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
        "TPU_LOG_DIR": "disabled",
        # Else the second process that compiles ends over a lock file.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    return Plugin("tpu", *_file(found, "libtpu/libtpu.so"), environment=environment)


def _cuda(name: str) -> Plugin:
    version = JAXLIB_VERSION
    what = f"compiling for {name} needs XLA for NVIDIA's GPUs, the package jax-cuda13-pjrt (124 MB; no GPU, no driver)"
    remedy = f"pip install 'meshwright[cuda]' gets it, in version {version}, which the installed jaxlib has"
    number = next((n for n in ("13", "12") if _version(f"jax-cuda{n}-pjrt") is not None), "13")
    packages = f"jax-cuda{number}-pjrt", f"jax-cuda{number}-plugin"
    found = _installed(packages[0], version, what, remedy)
    kernels: tuple[str, ...] = ()
    if _version(packages[1]) is not None:
        _installed(packages[1], version, what, remedy)
        kernels = tuple(f"jax_cuda{number}_plugin.{module}" for module in _CUDA_KERNELS)
    library = _file(found, f"jax_plugins/xla_cuda{number}/xla_cuda_plugin.so")
    # Without autotuning, for which it takes a GPU, Triton's products have tiny tiles.
    return Plugin("cuda", *library, kernels, flags=(("xla_gpu_enable_triton_gemm", False),))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _installed(package: str, version: str, what: str, remedy: str) -> metadata.Distribution:
    try:
        found = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        raise MissingExtraError(f"{what}, which is not installed; {remedy}") from None
    if not f"{found.version}.".startswith(version if version.endswith(".") else version + "."):
        wanted = version + "*" if version.endswith(".") else version
        raise MissingExtraError(
            f"{what}, in version {wanted}, which goes with jaxlib {metadata.version('jaxlib')}; {found.version} is "
            f"installed. pip install '{package}=={wanted}' mends it"
        )
    return found


def _file(package: metadata.Distribution, name: str) -> tuple[Path, Path]:
    """A file of a package, and the folder that packages are in."""
    found = Path(str(package.locate_file(name)))
    if not found.exists():
        raise MissingExtraError(
            f"the package {package.metadata['Name']} {package.version} has no file {name}; install it again with pip "
            f"install --force-reinstall '{package.metadata['Name']}=={package.version}'"
        )
    return found, Path(str(package.locate_file("")))
