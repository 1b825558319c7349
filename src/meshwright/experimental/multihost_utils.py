"""``jax.experimental.multihost_utils``: exchange of values between processes, as NumPy arrays."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from meshwright.api.assembling import make_array_from_process_local_data
from meshwright.api.jit import jit
from meshwright.api.placement import block_until_ready, device_put
from meshwright.core import pytree
from meshwright.core.absent import absent as _absent
from meshwright.core.config import config
from meshwright.core.float0 import is_float0
from meshwright.errors import ArgumentError, DistributedError
from meshwright.numpy import max as maximum_along
from meshwright.runtime.array import Array, from_numpy
from meshwright.runtime.devices import devices, process_count, process_index
from meshwright.runtime.processes import agreement, heartbeats
from meshwright.sharding import Mesh, NamedSharding, PartitionSpec

__all__ = [
    "assert_equal", "broadcast_one_to_all", "global_array_to_host_local_array", "host_local_array_to_global_array",
    "process_allgather", "reached_preemption_sync_point", "sync_global_devices",
]  # fmt: skip


def _values(tree: Any) -> Any:
    return pytree.map(lambda x: x if is_float0(x) else np.asarray(x), tree)


def _one_each() -> Mesh:
    """A one-dimensional mesh of the first device of each process."""
    first = [next(d for d in devices() if d.process_index == p) for p in range(process_count())]
    return Mesh(np.array(first, dtype=object), ("processes",))


def _stacked(x: Any) -> Array:
    """The values ``x`` of all processes, stacked along a new first dimension, which is split over the processes.

    Raises:
      ArgumentError: ``x`` is an array on a mesh.
    """
    if _is_global(x):
        raise ArgumentError(f"a value of this process was expected, got an array with {x.sharding!r}")
    value = np.asarray(x)
    whole = np.empty((process_count(), *value.shape), value.dtype)
    whole[process_index()] = value
    return from_numpy(whole, sharding=NamedSharding(_one_each(), PartitionSpec("processes")))


def _for_all(x: Array) -> np.ndarray:
    """The whole array, gathered from the parts on the processes."""
    if np.ndim(x) and not x.is_fully_addressable and not x.is_fully_replicated:
        x = device_put(x, NamedSharding(_mesh_of(x), PartitionSpec()))
    return np.asarray(x)


def _mesh_of(x: Array) -> Mesh:
    mesh = getattr(x.sharding, "mesh", None)
    return mesh if isinstance(mesh, Mesh) else Mesh(np.array(x.sharding.devices, dtype=object), ("devices",))


@jit
def _largest(x: Any) -> Any:
    return maximum_along(x, 0)


def broadcast_one_to_all(in_tree: Any, is_source: bool | None = None) -> Any:
    """Send a pytree of arrays from the source process to all; returns NumPy arrays.

    The pytrees of all processes must have the same structure, shapes and dtypes.

    Args:
      in_tree: the pytree.
      is_source: whether this process is the source; by default process 0 is.

    Raises:
      ArgumentError: there is only one process, and it is not the source.

    Example:
      >>> from meshwright.experimental import multihost_utils
      >>> multihost_utils.broadcast_one_to_all({"a": mnp.arange(3)})
      {'a': array([0, 1, 2], dtype=int32)}
    """
    source = process_index() == 0 if is_source is None else is_source
    if process_count() == 1:
        if not source:
            raise ArgumentError(
                "broadcast_one_to_all: there is one process, which must be the source; pass is_source=True"
            )
        return _values(in_tree)
    return pytree.map(lambda x: x if is_float0(x) else _broadcast(np.asarray(x), source), in_tree)


def _broadcast(value: np.ndarray, source: bool) -> np.ndarray:
    """The source's value, as the maximum of its bytes and zeros from the other processes."""
    raw = np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)
    received = _for_all(_largest(_stacked(raw if source else np.zeros_like(raw))))
    return np.frombuffer(received.tobytes(), value.dtype).reshape(value.shape)


def process_allgather(in_tree: Any, tiled: bool = False) -> Any:
    """Gather a pytree of arrays from all processes; returns NumPy arrays.

    The arrays are stacked along a new first dimension, or with ``tiled`` concatenated along the first. Of an array on a
    mesh, the whole array is returned.

    Example:
      >>> from meshwright.experimental import multihost_utils
      >>> multihost_utils.process_allgather(np.arange(3)).shape
      (1, 3)
    """

    def gathered(x: Any) -> np.ndarray:
        if _is_global(x):
            return _for_all(x)
        value = _gathered(np.asarray(x))
        return value.reshape(-1, *value.shape[2:]) if tiled and value.ndim > 1 else value

    return pytree.map(gathered, in_tree)


def _gathered(value: np.ndarray) -> np.ndarray:
    """The values of all processes, stacked, with their exact bits."""
    if process_count() == 1:
        return value[None]
    raw = _for_all(_stacked(np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)))
    return np.frombuffer(raw.tobytes(), value.dtype).reshape(process_count(), *value.shape)


def _is_global(x: Any) -> bool:
    return len(getattr(getattr(x, "sharding", None), "device_set", ())) > 1


def assert_equal(in_tree: Any, fail_message: str = "") -> None:
    """Check that a pytree of arrays is the same in all processes.

    Raises:
      DistributedError: it differs from that of process 0; names the leaf and the processes.
      ArgumentTypeError: a leaf is not an array.
    """
    mine = _values(in_tree)
    if process_count() == 1:
        return
    for path, leaf in zip(pytree.paths(mine), pytree.leaves(mine)):
        same = np.array_equal(_broadcast(leaf, process_index() == 0), leaf, equal_nan=leaf.dtype.kind in "fc")
        odd = np.flatnonzero(~process_allgather(np.array(same)))
        if odd.size:
            raise DistributedError(
                f"{fail_message or 'assert_equal'}: value{path} of process {', '.join(map(str, odd))} is not that of "
                "process 0"
            )


_barriers = itertools.count()


def sync_global_devices(name: str) -> None:
    """Wait until all processes have called this with the same ``name``. Their devices may still be computing.

    Raises:
      DistributedError: a process does not call it within ``config.collective_timeout`` seconds, or with another name.
    """
    table = heartbeats.LIVING.table
    if table is None:
        return
    number = next(_barriers)
    table.put(f"meshwright/barrier/{number}/{process_index()}", name.encode())
    what = f"rank {process_index()} waited at sync_global_devices({name!r})"
    for rank in range(process_count()):
        theirs = heartbeats.told(f"meshwright/barrier/{number}/{rank}", rank, config.collective_timeout)
        if theirs is None:
            late = {rank: "is late: it lives, but did not come"}
            raise agreement.blamed(what, heartbeats.suspects((rank,)) or late)
        if theirs.decode() != name:
            raise agreement.blamed(what, {rank: f"is at sync_global_devices({theirs.decode()!r})"})


def reached_preemption_sync_point(step_id: int) -> bool:
    """Whether all processes should save at this step because one is about to be preempted. Always False here."""
    return False


def host_local_array_to_global_array(local_inputs: Any, global_mesh: Any, pspecs: Any) -> Any:
    """Convert a pytree of each process's local arrays to arrays on a mesh; ``pspecs`` is a tree prefix of specs.

    Example:
      >>> from meshwright.experimental import multihost_utils
      >>> mesh = mw.make_mesh((4,), ("x",))
      >>> multihost_utils.host_local_array_to_global_array(np.arange(8), mesh, P("x")).sharding.spec
      P('x',)
    """
    return pytree.map(make_array_from_process_local_data, _shardings(local_inputs, global_mesh, pspecs), local_inputs)


def _shardings(tree: Any, mesh: Any, pspecs: Any) -> Any:
    """A sharding for each leaf, from a tree prefix of specs."""
    marked = pytree.map(
        lambda spec: NamedSharding(mesh, PartitionSpec() if spec is None else spec),
        pspecs,
        is_leaf=lambda s: s is None or isinstance(s, PartitionSpec),
    )
    return pytree.unflatten(pytree.structure(tree), pytree.broadcast_prefix(marked, tree, "pspecs"))


def global_array_to_host_local_array(global_inputs: Any, global_mesh: Any, pspecs: Any) -> Any:
    """The part of each array on a mesh that is in this process; with a single process, the whole array.

    Example:
      >>> from meshwright.experimental import multihost_utils
      >>> mesh = mw.make_mesh((4,), ("x",))
      >>> multihost_utils.global_array_to_host_local_array(mnp.arange(8), mesh, P("x")).shape
      (8,)
    """

    def local(x: Any, sharding: NamedSharding) -> Any:
        placed = device_put(x, sharding)
        if placed.is_fully_addressable:
            return block_until_ready(placed)
        shards = placed.addressable_shards
        starts = [min(s.index[d].start or 0 for s in shards) for d in range(placed.ndim)]
        stops = [
            max(n if s.index[d].stop is None else s.index[d].stop for s in shards) for d, n in enumerate(placed.shape)
        ]
        out = np.empty([b - a for a, b in zip(starts, stops)], placed.dtype)
        for s in shards:
            at = [slice((i.start or 0) - a, (n if i.stop is None else i.stop) - a)
                  for i, a, n in zip(s.index, starts, placed.shape)]  # fmt: skip
            out[tuple(at)] = s.data
        return from_numpy(out)

    return pytree.map(local, global_inputs, _shardings(global_inputs, global_mesh, pspecs))


__getattr__ = _absent("experimental.multihost_utils")
