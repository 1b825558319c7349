"""Arrays assembled from per-device parts, as by ``jax.make_array_from_*``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.core import pytree
from meshwright.core.dtypes import as_dtype, canonical, requested
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, ArgumentTypeError, ShapeError, ShardingError
from meshwright.runtime.array import Array, from_numpy, index_text
from meshwright.runtime.memory_stats import alive
from meshwright.sharding import AbstractMesh, PmapSharding, Sharding


def make_array_from_callback(
    shape: Sequence[int], sharding: Sharding, data_callback: Callable[[tuple[slice, ...]], Any], dtype: Any = None
) -> Array:
    """An array with this shape and sharding whose part at ``index`` is ``data_callback(index)``.

    ``index`` has one slice per dimension. The callback is called once per distinct part, however many devices hold it.

    Raises:
      ShapeError: a part does not have the shape of its index.
      ShardingError: the sharding does not fit the shape, or has no devices.

    Example:
      >>> split = mw.NamedSharding(mw.make_mesh((4,), ("x",)), P("x"))
      >>> whole = np.arange(8) ** 2
      >>> x = mw.make_array_from_callback((8,), split, lambda index: whole[index])
      >>> x, x.addressable_data(1)
      (Array([ 0,  1,  4,  9, 16, 25, 36, 49], dtype=int32), Array([4, 9], dtype=int32))
    """
    function = "make_array_from_callback"
    pieces: dict[Any, Any] = {}
    indices, here = _indices(function, tuple(shape), sharding), sharding.addressable_devices
    for index in (index for device, index in indices.items() if device in here):
        key = tuple((s.start, s.stop) if isinstance(s, slice) else s for s in index)
        if key not in pieces:
            pieces[key] = index, np.asarray(data_callback(index))
    return _assembled(function, tuple(shape), sharding, list(pieces.values()), dtype)


def make_array_from_single_device_arrays(
    shape: Sequence[int], sharding: Sharding, arrays: Sequence[Array], *, dtype: Any = None
) -> Array:
    """An array with this shape and sharding, assembled from one array on each addressable device.

    Raises:
      ArgumentError: not exactly one array per device.
      ShapeError: a part does not have the shape of its index.
      ShardingError: the sharding does not fit the shape, or has no devices.

    Example:
      >>> split = mw.NamedSharding(mw.make_mesh((2,), ("x",)), P("x"))
      >>> parts = [mw.device_put(mnp.arange(3) + 10 * i, device) for i, device in enumerate(mw.devices()[:2])]
      >>> mw.make_array_from_single_device_arrays((6,), split, parts)
      Array([ 0,  1,  2, 10, 11, 12], dtype=int32)
    """
    function = "make_array_from_single_device_arrays"
    here = sharding.addressable_devices if isinstance(sharding, Sharding) else ()
    indices = {d: i for d, i in _indices(function, tuple(shape), sharding).items() if d in here}
    for number, x in enumerate(arrays):
        if type(x) is not Array or x.sharding.num_devices != 1:
            raise ArgumentTypeError(f"{function}: arrays[{number}] must be an array on one device, got {x!r}")
    by_device = {next(iter(x.devices())): x for x in arrays}
    if set(by_device) != set(indices) or len(by_device) != len(arrays):
        raise ArgumentError(
            f"{function}: expected one array on each of {sorted(map(str, indices))}, got {len(arrays)} on "
            f"{sorted(map(str, by_device))}; place them with device_put"
        )
    parts = [(index, np.asarray(by_device[device])) for device, index in indices.items()]
    return _assembled(function, tuple(shape), sharding, parts, dtype)


def make_array_from_process_local_data(sharding: Any, local_data: Any, global_shape: Any = None) -> Any:
    """A global array, or tree of them, of which ``local_data`` is this process's part.

    For a tree of data, ``sharding`` and ``global_shape`` are tree prefixes. Where ``global_shape`` (or an entry of it)
    is None, the global size of a dimension is its local size times the number of processes it is split over. An entry
    equal to the local size means that every process has the whole dimension. Where a process has several tiles of a
    dimension, its data is these, one after the other, also if others are between them.

    Raises:
      ShapeError: ``global_shape`` does not fit the data and the sharding.
      ShardingError: the sharding does not fit the shape, has no devices, or leaves a size open, because processes have
        different numbers of tiles, or some of them the same and others not.

    Example:
      >>> split = mw.NamedSharding(mw.make_mesh((4,), ("x",)), P("x"))
      >>> mw.make_array_from_process_local_data(split, np.arange(8.0)).sharding.spec
      P('x',)
    """
    leaves, tree = pytree.flatten(local_data)
    whole = global_shape is None or (isinstance(global_shape, (tuple, list)) and not any(map(_is_shape, global_shape)))
    shapes = (
        [global_shape] * len(leaves)
        if whole
        else pytree.broadcast_prefix(global_shape, local_data, f"{_LOCAL} global_shape", _is_shape)
    )
    shardings = pytree.broadcast_prefix(sharding, local_data, f"{_LOCAL} sharding")
    return pytree.unflatten(tree, [_from_local(s, x, g) for s, x, g in zip(shardings, leaves, shapes)])


_LOCAL = "make_array_from_process_local_data"


def _is_shape(x: Any) -> bool:
    return isinstance(x, (tuple, list)) and all(n is None or isinstance(n, (int, np.integer)) for n in x)


def _from_local(sharding: Sharding, local_data: Any, global_shape: Sequence[int | None] | None) -> Array:
    function, value = _LOCAL, np.asarray(local_data)
    given = (None,) * value.ndim if global_shape is None else tuple(global_shape)
    if len(given) != value.ndim:
        raise ShapeError(
            f"{function}: global_shape {given} has {counted(len(given), 'entry', 'entries')}, the data is of shape "
            f"{value.shape}"
        )
    _indices(function, value.shape, sharding)
    places = [_rows(sharding, d, n, g) for d, (n, g) in enumerate(zip(value.shape, given))]
    for dim, (size, (rows, whole)) in enumerate(zip(value.shape, places)):
        if rows.size != size:
            raise ShapeError(
                f"{function}: this process has rows {_ranges(rows)} of dimension {dim}, of {whole}, and local_data of "
                f"shape {value.shape} has {size} (global_shape is {given}); give those rows, or all of them"
            )
    if all(rows.size == whole for rows, whole in places):
        return from_numpy(value, sharding=sharding, transfer="explicit")
    full = _blank([whole for _, whole in places], value.dtype)
    full[np.ix_(*(rows for rows, _ in places))] = value
    return from_numpy(full, sharding=sharding, copy=False, transfer="explicit")


def _rows(sharding: Sharding, dim: int, size: int, given: int | None) -> tuple[np.ndarray, int]:
    """The rows of a dimension on this process, and the global size.

    Raises:
      ShardingError: the process has none, or the global size is open.
    """
    count, held = sharding.tile_counts(dim + 1)[dim], _tiles_by_process(sharding, dim)
    here = next((getattr(d, "process_index", 0) for d in sharding.addressable_devices), None)
    if here is None:
        raise ShardingError(f"{_LOCAL}: no device of {sharding} is of this process; give it to those that have some")
    tiles = held[here]
    if given is None and any(len(t) != len(tiles) or (t != tiles and set(t) & set(tiles)) for t in held.values()):
        others = ", ".join(f"process {p} {t}" for p, t in sorted(held.items()))
        raise ShardingError(
            f"{_LOCAL}: processes share dimension {dim} unevenly ({others} of {count} tiles), so its size does not "
            "follow from the data; give it in global_shape"
        )
    whole = size * count // len(tiles) if given is None else given
    if size == whole:
        return np.arange(whole), whole
    rows = -(-whole // count)
    return np.concatenate([np.arange(min(t * rows, whole), min((t + 1) * rows, whole)) for t in tiles]), whole


def _tiles_by_process(sharding: Sharding, dim: int) -> dict[int, list[int]]:
    """The tiles of a dimension that each process has, in order."""
    held: dict[int, set[int]] = {}
    for tile, device in zip(sharding.tile_table(dim + 1)[:, dim], sharding.devices):
        held.setdefault(getattr(device, "process_index", 0), set()).add(int(tile))
    return {process: sorted(tiles) for process, tiles in held.items()}


def _ranges(rows: np.ndarray) -> str:
    """Ascending numbers as text: ``0:4, 8:12``."""
    blocks = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1) if rows.size else []
    return ", ".join(f"{b[0]}:{b[-1] + 1}" for b in blocks) or "0:0"


def _blank(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """An array to be filled, of a dtype that arrays have: what remains is not converted later. Pages that are never
    written take no physical memory."""
    return np.zeros(shape, canonical(as_dtype(dtype)))


def _indices(function: str, shape: tuple[int, ...], sharding: Any) -> dict[Any, tuple[slice, ...]]:
    """The index of each device's part.

    Raises:
      ShardingError: the sharding does not fit, or has no devices.
    """
    if not isinstance(sharding, Sharding) or isinstance(getattr(sharding, "mesh", None), AbstractMesh):
        raise ShardingError(f"{function}: expected a sharding over devices, got {sharding!r}; see make_mesh")
    sharding.check_compatible(shape, f"{function}: the array")
    return sharding.devices_indices_map(shape)


def _assembled(
    function: str, shape: tuple[int, ...], sharding: Sharding, parts: Sequence[tuple[Any, np.ndarray]], dtype: Any
) -> Array:
    if not parts and dtype is None:
        raise ArgumentError(f"{function}: no device of this process has a part of the array; give its dtype")
    kind = parts[0][1].dtype if dtype is None else requested(dtype, function)
    whole = _blank(shape, kind)
    for index, part in parts:
        if part.shape != whole[index].shape:
            where = ", ".join(map(index_text, index))
            raise ShapeError(
                f"{function}: the part at [{where}] of an array of shape {shape} must have shape {whole[index].shape}, "
                f"got {part.shape}"
            )
        whole[index] = part
    return from_numpy(whole, sharding=sharding, copy=False, transfer="explicit")


def device_put_sharded(shards: Sequence[Any], devices: Sequence[Any]) -> Any:
    """Stack arrays (or trees of them) along a new leading dimension, one on each of ``devices``; input for ``pmap``.

    Prefer ``device_put`` of the stacked array with a ``NamedSharding``.

    Raises:
      ArgumentError: the numbers of shards and devices differ, or trees have different structures.
      ShapeError: shards have different shapes or dtypes.

    Example:
      >>> x = mw.device_put_sharded([mnp.ones(3), mnp.zeros(3)], mw.devices()[:2])
      >>> x.shape, [shard.data.shape for shard in x.addressable_shards]
      ((2, 3), [(3,), (3,)])
    """
    function = "device_put_sharded"
    if len(shards) != len(devices) or not shards:
        raise ArgumentError(
            f"{function}: {counted(len(shards), 'shard')} for {counted(len(devices), 'device')}; give one shard a "
            "device"
        )
    trees = {pytree.structure(s) for s in shards}
    if len(trees) > 1:
        raise ArgumentError(
            f"{function}: the shards must have one structure, got {' and '.join(sorted(map(pytree.show, trees)))}; "
            "give trees that are alike"
        )
    return pytree.map(lambda *leaves: _stacked(function, leaves, devices), *shards)


def device_put_replicated(x: Any, devices: Sequence[Any]) -> Any:
    """Replicate an array (or a tree of them) along a new leading dimension, once per device; input for ``pmap``.

    Prefer ``device_put`` with a replicated ``NamedSharding``, which adds no dimension.

    Raises:
      ArgumentError: ``devices`` is empty.

    Example:
      >>> mw.device_put_replicated(mnp.ones(3), mw.devices()[:2]).shape
      (2, 3)
    """
    if not devices:
        raise ArgumentError("device_put_replicated: no devices; pass devices()")
    return pytree.map(lambda leaf: _stacked("device_put_replicated", [leaf] * len(devices), devices), x)


def _stacked(function: str, leaves: Sequence[Any], devices: Sequence[Any]) -> Array:
    values = [np.asarray(leaf) for leaf in leaves]
    types = list(dict.fromkeys((v.shape, v.dtype) for v in values))
    if len(types) > 1:
        raise ShapeError(
            f"{function}: the shards must have one shape and dtype, got "
            + " and ".join(f"{dtype.name}{list(shape)}" for shape, dtype in types)
            + "; pad or convert them"
        )
    whole = np.stack(values)
    weak = all(isinstance(leaf, (int, float, complex)) or getattr(leaf, "weak_type", False) for leaf in leaves)
    return from_numpy(whole, sharding=PmapSharding.default(whole.shape, 0, devices), copy=False, weak_type=weak)


def copy_to_host_async(x: Any) -> Any:
    """Start copying the arrays of ``x``, a tree, to the host, and return ``x``. Here they are in host memory already.

    Raises:
      DeletedArrayError: an array was deleted or donated.

    Example:
      >>> mw.copy_to_host_async({"a": mnp.arange(3)})
      {'a': Array([0, 1, 2], dtype=int32)}
    """
    for leaf in pytree.leaves(x):
        if type(leaf) is Array:
            leaf.copy_to_host_async()
    return x


def live_arrays(platform: str | None = None) -> list[Array]:
    """All arrays that hold memory, found by walking the objects Python's garbage collector tracks; for finding leaks.

    Args:
      platform: list only arrays on this platform, for example ``"cpu"``.

    Example:
      >>> x = mnp.arange(5)
      >>> any(y is x for y in mw.live_arrays())
      True
    """
    return [x for x in alive() if platform is None or {d.platform for d in x.devices()} == {platform}]
