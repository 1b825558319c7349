"""``jax.experimental.global_device_array``: arrays over a mesh, created from parts. Now every array may be one.

Now: ``make_array_from_callback`` and ``make_array_from_single_device_arrays`` with a ``NamedSharding``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright.api.assembling import make_array_from_callback, make_array_from_single_device_arrays
from meshwright.core.words import counted
from meshwright.errors import ArgumentError
from meshwright.runtime.array import Array, Shard
from meshwright.sharding import Mesh, NamedSharding, PartitionSpec

__all__ = ["GlobalDeviceArray", "Shard", "get_shard_indices", "get_shard_shape"]

Index = tuple[slice, ...]


class _GlobalDeviceArrayType(type):
    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, Array) and isinstance(getattr(x, "sharding", None), NamedSharding)


class GlobalDeviceArray(metaclass=_GlobalDeviceArrayType):
    """``GlobalDeviceArray(shape, mesh, mesh_axes, device_buffers)``: an array from its parts on a mesh's devices.

    The result is an ordinary array, and all arrays over a mesh are instances of this class. ``local_shards``,
    ``local_data``, ``mesh`` and ``mesh_axes`` are attributes of arrays.

    Raises:
      ArgumentError: there is not one part per device, or a callback returned a wrong number of parts.
      ShapeError, ShardingError: the parts do not fit.

    Example:
      >>> from meshwright.experimental.global_device_array import GlobalDeviceArray
      >>> whole = np.arange(8)
      >>> mesh = mw.make_mesh((4,), ("x",))
      >>> x = GlobalDeviceArray.from_callback((8,), mesh, P("x"), lambda index: whole[index])
      >>> x, x.local_data(1), x.mesh_axes
      (Array([0, 1, 2, 3, 4, 5, 6, 7], dtype=int32), Array([2, 3], dtype=int32), PartitionSpec('x',))
    """

    def __new__(  # type: ignore[misc]
        cls, global_shape: Sequence[int], global_mesh: Mesh, mesh_axes: Any, device_buffers: Sequence[Array]
    ) -> Array:
        return make_array_from_single_device_arrays(global_shape, _sharding(global_mesh, mesh_axes), device_buffers)

    @classmethod
    def from_callback(
        cls, global_shape: Sequence[int], global_mesh: Mesh, mesh_axes: Any, data_callback: Callable[[Index], Any]
    ) -> Array:
        """Now: ``make_array_from_callback``."""
        return make_array_from_callback(global_shape, _sharding(global_mesh, mesh_axes), data_callback)

    @classmethod
    def from_batched_callback(
        cls,
        global_shape: Sequence[int],
        global_mesh: Mesh,
        mesh_axes: Any,
        data_callback: Callable[[Sequence[Index]], Sequence[Any]],
    ) -> Array:
        """Like :meth:`from_callback`, with a single call for a list of indices, which returns all parts."""
        sharding = _sharding(global_mesh, mesh_axes)
        indices = sharding.addressable_devices_indices_map(tuple(global_shape))
        different = {_key(index): index for index in indices.values()}
        parts = list(data_callback(list(different.values())))
        if len(parts) != len(different):
            raise ArgumentError(
                f"from_batched_callback: the callback gave {counted(len(parts), 'part')} for "
                f"{counted(len(different), 'index', 'indices')}; give one for each"
            )
        by_index = dict(zip(different, parts))
        return make_array_from_callback(global_shape, sharding, lambda index: by_index[_key(index)])

    @classmethod
    def from_batched_callback_with_devices(
        cls,
        global_shape: Sequence[int],
        global_mesh: Mesh,
        mesh_axes: Any,
        data_callback: Callable[[Sequence[tuple[Index, tuple[Any, ...]]]], Sequence[Array]],
    ) -> Array:
        """Like :meth:`from_callback`, with a single call for pairs of an index and its devices.

        The callback returns an array on each device.
        """
        sharding = _sharding(global_mesh, mesh_axes)
        devices: dict[Any, tuple[Index, list[Any]]] = {}
        for device, index in sharding.addressable_devices_indices_map(tuple(global_shape)).items():
            devices.setdefault(_key(index), (index, []))[1].append(device)
        parts = data_callback([(index, tuple(holders)) for index, holders in devices.values()])
        return make_array_from_single_device_arrays(global_shape, sharding, list(parts))


def get_shard_indices(global_shape: Sequence[int], global_mesh: Mesh, mesh_axes: Any) -> dict[Any, Index]:
    """Now: ``sharding.devices_indices_map(shape)``."""
    return _sharding(global_mesh, mesh_axes).devices_indices_map(tuple(global_shape))


def get_shard_shape(global_shape: Sequence[int], global_mesh: Mesh, mesh_axes: Any) -> tuple[int, ...]:
    """Now: ``sharding.shard_shape(shape)``."""
    return _sharding(global_mesh, mesh_axes).shard_shape(tuple(global_shape))


def _sharding(mesh: Mesh, axes: Any) -> NamedSharding:
    return NamedSharding(mesh, axes if isinstance(axes, PartitionSpec) else PartitionSpec(*axes))


def _key(index: Index) -> Any:
    return tuple((s.start, s.stop) for s in index)
