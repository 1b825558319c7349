"""The modules of ``jax.experimental`` that exist here, and names that used to be defined there."""

from __future__ import annotations

from contextlib import AbstractContextManager

from meshwright.api.callbacks import io_callback
from meshwright.core.absent import absent
from meshwright.core.late import late_attributes, submodules
from meshwright.core.options import enable_x64
from meshwright.sharding import PartitionSpec

__all__ = ["PartitionSpec", "disable_x64", "enable_x64", "io_callback"]


def disable_x64() -> AbstractContextManager[None]:
    """Now ``meshwright.enable_x64(False)``."""
    return enable_x64(False)


__getattr__, __dir__ = late_attributes(
    __name__,
    {},
    submodules(
        __name__,
        "checkify",
        "compilation_cache",
        "compute_on",
        "custom_partitioning",
        "export",
        "global_device_array",
        "hijax",
        "jet",
        "layout",
        "maps",
        "mesh_utils",
        "multihost_utils",
        "ode",
        "pjit",
        "random",
        "serialize_executable",
        "shard_alike",
        "sparse",
        "shard_map",
    ),
    absent("experimental"),
)
