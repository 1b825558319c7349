"""``jax.experimental.multihost_utils`` for one process: what is of all processes is of this one."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.api.placement import block_until_ready, device_put
from meshwright.core import pytree
from meshwright.core.float0 import is_float0
from meshwright.errors import ArgumentError
from meshwright.sharding import NamedSharding, PartitionSpec

__all__ = [
    "assert_equal", "broadcast_one_to_all", "global_array_to_host_local_array", "host_local_array_to_global_array",
    "process_allgather", "reached_preemption_sync_point", "sync_global_devices",
]  # fmt: skip


def _values(tree: Any) -> Any:
    return pytree.map(lambda x: x if is_float0(x) else np.asarray(x), tree)


def broadcast_one_to_all(in_tree: Any, is_source: bool | None = None) -> Any:
    """A tree of arrays as the source process has it, as NumPy arrays: this process is the source.

    Raises:
      ArgumentError: ``is_source`` says that it is not.

    Example:
      >>> from meshwright.experimental import multihost_utils
      >>> multihost_utils.broadcast_one_to_all({"a": mnp.arange(3)})
      {'a': array([0, 1, 2], dtype=int32)}
    """
    if is_source is not None and not is_source:
        raise ArgumentError("broadcast_one_to_all: there is one process, which must be the source; is_source=True")
    return _values(in_tree)


def process_allgather(in_tree: Any, tiled: bool = False) -> Any:
    """A tree of arrays of all processes, as NumPy arrays: along a new first dimension, or joined along the first
    (``tiled``). Those on a mesh are whole already.

    Example:
      >>> from meshwright.experimental import multihost_utils
      >>> multihost_utils.process_allgather(np.arange(3)).shape
      (1, 3)
    """
    return pytree.map(lambda x: np.asarray(x) if tiled or _is_global(x) else np.asarray(x)[None], in_tree)


def _is_global(x: Any) -> bool:
    return len(getattr(getattr(x, "sharding", None), "device_set", ())) > 1


def assert_equal(in_tree: Any, fail_message: str = "") -> None:
    """Check that a tree of arrays is the same in all processes, which of one it is.

    Raises:
      ArgumentTypeError: a leaf that is no array.
    """
    _values(in_tree)


def sync_global_devices(name: str) -> None:
    """Wait until all processes are here: this one is. Devices may still be computing, as elsewhere."""


def reached_preemption_sync_point(step_id: int) -> bool:
    """Whether a process is about to be ended, and all are to save at this step: nobody says so here."""
    return False


def host_local_array_to_global_array(local_inputs: Any, global_mesh: Any, pspecs: Any) -> Any:
    """A tree of each process's arrays as arrays on a mesh; ``pspecs`` is a tree prefix of specs.

    Example:
      >>> from meshwright.experimental import multihost_utils
      >>> mesh = mw.make_mesh((4,), ("x",))
      >>> multihost_utils.host_local_array_to_global_array(np.arange(8), mesh, P("x")).sharding.spec
      PartitionSpec('x',)
    """
    shardings = pytree.map(
        lambda spec: NamedSharding(global_mesh, PartitionSpec() if spec is None else spec),
        pspecs,
        is_leaf=lambda s: s is None or isinstance(s, PartitionSpec),
    )
    return device_put(local_inputs, shardings)


def global_array_to_host_local_array(global_inputs: Any, global_mesh: Any, pspecs: Any) -> Any:
    """The part of each array on a mesh that lies in this process: all of it.

    Example:
      >>> from meshwright.experimental import multihost_utils
      >>> mesh = mw.make_mesh((4,), ("x",))
      >>> multihost_utils.global_array_to_host_local_array(mnp.arange(8), mesh, P("x")).shape
      (8,)
    """
    return block_until_ready(host_local_array_to_global_array(global_inputs, global_mesh, pspecs))
