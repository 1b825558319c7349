"""The current backend, and versions for bug reports."""

from __future__ import annotations

import platform
import sys
from typing import Any

import numpy as np

from meshwright.core.late import LateModule
from meshwright.core.version import __version__
from meshwright.runtime.devices import default_device, device_count, local_devices, process_count
from meshwright.sharding import AbstractMesh, get_mesh

metadata = LateModule("importlib.metadata")


def default_backend() -> str:
    """The name of the default platform.

    Example:
      >>> mw.default_backend()
      'cpu'
    """
    return default_device().platform


def effects_barrier() -> None:
    """Wait for the effects of all programs. Callers wait for programs with callbacks, so none are ever pending.

    Example:
      >>> mw.jit(lambda x: mw.debug.print("x = {}", x))(3)
      x = 3
      >>> mw.effects_barrier()
    """


def print_environment_info(return_string: bool = False) -> str | None:
    """Print (or return) the versions of libraries and the available devices, for bug reports.

    Example:
      >>> "jaxlib" in mw.print_environment_info(return_string=True)
      True
    """
    versions = {"meshwright": __version__}
    versions |= {name: metadata.version(name) for name in ("jaxlib", "numpy", "ml_dtypes", "optree")}
    lines = [f"{name + ':':<12}{version}" for name, version in versions.items()]
    lines += [
        f"{'python:':<12}{sys.version}",
        f"{'devices:':<12}{device_count()} ({local_devices()[0].device_kind}), {process_count()} process",
        f"{'platform:':<12}{platform.platform()}, {np.dtype(np.intp).itemsize * 8} bit",
    ]
    text = "\n".join(lines)
    if return_string:
        return text
    print(text)
    return None


class _Environment:
    """The current mesh, under older names."""

    @property
    def physical_mesh(self) -> Any:
        """The current mesh; a mesh without axes (``empty``) if there is none."""
        return get_mesh() or AbstractMesh((), ())

    @property
    def shape(self) -> dict[str, int]:
        """Axis sizes of the current mesh by name."""
        return self.physical_mesh.shape


class _ThreadResources:
    """Older name; prefer ``meshwright.get_mesh()``."""

    env = _Environment()


thread_resources = _ThreadResources()
