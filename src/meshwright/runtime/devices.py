"""Devices. By default, there is one process with ``config.num_devices`` *virtual* devices on one real device.

With ``config.real_devices``, or on an accelerator, a process has several real devices, and its devices are distributed
evenly over them: one each, unless ``num_devices`` is larger. All processes have the same number of devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from meshwright.core.config import config, platform_named
from meshwright.core.expected import as_integers, as_tuple, refused
from meshwright.core.records import dataclass
from meshwright.core.slots import Slot
from meshwright.core.words import counted, there_are
from meshwright.errors import ArgumentError, ConfigError, DeviceError, MeshError
from meshwright.hardware.machine import Machine
from meshwright.hardware.placement import placed
from meshwright.runtime.pjrt.client import real_devices
from meshwright.runtime.pjrt.platforms import is_plugin
from meshwright.runtime.pjrt.world import WORLD
from meshwright.sharding import AxisType, Mesh
from meshwright.sharding.memory_kind import DEVICE, KINDS, checked_kind
from meshwright.sharding.mesh import LOCAL_MESH
from meshwright.sharding.pmapped import OWN_DEVICES

#: counts the memory of live arrays on devices
MEMORY_STATS: Slot[Callable[[Sequence[Device]], dict[Device, dict[str, int]]]] = Slot(
    "the count of memory", "meshwright.runtime.memory_stats"
)


@dataclass(frozen=True)
class Device:
    """A device that can be placed on a mesh: a real one, or a virtual one that shares a real one."""

    id: int
    platform: str = "cpu"
    process_index: int = 0
    #: the real device behind it, which virtual ones share
    hardware_id: int = 0
    #: its number within its process
    local_hardware_id: int = 0
    is_virtual: bool = True

    def __repr__(self) -> str:
        return f"{self.platform.capitalize()}Device(id={self.id})"

    def __str__(self) -> str:
        return f"{self.platform}:{self.id}"

    def __call__(self) -> Device:
        """Returns itself, since ``x.device()`` was a method of JAX's arrays until 2024."""
        return self

    @property
    def device_kind(self) -> str:
        """The kind of hardware, such as ``NVIDIA H200``; for a virtual device, the platform."""
        return "virtual " + self.platform if self.is_virtual else str(real_devices()[self.hardware_id].device_kind)

    def memory_stats(self) -> dict[str, int]:
        """``bytes_in_use``, ``peak_bytes_in_use`` (the highest count so far), ``num_allocs`` and ``bytes_limit``.

        On an accelerator, the figures are XLA's. On CPUs and virtual devices, this device's shards of live arrays are
        counted.

        Example:
          >>> x = mnp.ones((256, 256))
          >>> mw.devices()[0].memory_stats()["bytes_in_use"] >= 256 * 256 * 4
          True
        """
        return MEMORY_STATS.value([self])[self]

    def addressable_memories(self) -> list[Memory]:
        """The memories that the device can address, its default memory first."""
        return [Memory(self, kind) for kind in KINDS]

    def default_memory(self) -> Memory:
        """The device's default memory."""
        return Memory(self, DEVICE)

    def memory(self, kind: str) -> Memory:
        """The device's memory of a kind.

        Raises:
          ShardingError: there is no memory of this kind.
        """
        return Memory(self, checked_kind(kind, "memory") or DEVICE)

    @property
    def is_addressable(self) -> bool:
        """Whether the device belongs to this process."""
        return self.process_index == WORLD.rank


@dataclass(frozen=True)
class Memory:
    """A memory that a device can address. On CPUs, all kinds are the same memory."""

    device: Device
    kind: str

    @property
    def platform(self) -> str:
        return self.device.platform

    def addressable_by_devices(self) -> list[Device]:
        """The devices that can address this memory."""
        return [self.device]

    def __repr__(self) -> str:
        return f"{self.device!r}:{self.kind}"


@cache
def _all_devices() -> tuple[Device, ...]:
    for name in ("num_devices", "real_devices", "platform", "collective_timeout"):
        config.freeze(name, "the devices are already in use; set it before the first use of meshwright")
    own = config.real_devices or (len(real_devices()) // WORLD.count if is_plugin() else 0)
    real, count = own or 1, max(config.num_devices, own)
    if count % real:
        raise ConfigError(
            f"config: {counted(count, 'device')} (num_devices) cannot be shared out evenly among {real} real ones "
            "(real_devices); make one a multiple of the other"
        )
    return tuple(
        Device(p * count + i, config.platform, p, p * real + i // (count // real), i, own != count)
        for p in range(WORLD.count)
        for i in range(count)
    )


def are_listed() -> bool:
    """Whether the devices have been initialized."""
    return _all_devices.cache_info().currsize > 0


@cache
def _own_devices() -> tuple[Device, ...]:
    return tuple(d for d in _all_devices() if d.process_index == WORLD.rank)


def require_backend(backend: str | None, what: str) -> None:
    """Raise unless ``backend`` is None or the platform in use.

    Raises:
      DeviceError: names both.
    """
    if backend is None:
        return  # does not initialize the devices
    if not isinstance(backend, str):
        raise refused(f"{what}: backend", "a platform's name", backend)
    platform = _all_devices()[0].platform
    if platform_named(backend) != platform:
        raise DeviceError(
            f"{what}: backend={backend!r}, but the backend here is {platform!r}; leave it out, or choose another with "
            "config.update('platform', ...) before devices are first used"
        )


def devices(backend: str | None = None) -> list[Device]:
    """All devices of all processes.

    Example:
      >>> mw.devices()[:3]  # of 8 virtual ones
      [CpuDevice(id=0), CpuDevice(id=1), CpuDevice(id=2)]
    """
    require_backend(backend, "devices")
    return list(_all_devices())


def local_devices(
    process_index: int | None = None, backend: str | None = None, host_id: int | None = None
) -> list[Device]:  # fmt: skip
    """The devices of this process.

    Example:
      >>> mw.local_devices()[-1]  # of 8 virtual ones
      CpuDevice(id=7)
    """
    require_backend(backend, "local_devices")
    requested = process_index if process_index is not None else host_id
    if requested is not None and not 0 <= requested < WORLD.count:
        raise ArgumentError(
            f"local_devices: there are processes 0 to {WORLD.count - 1}, got {requested}; leave it out for this one"
        )
    rank = WORLD.rank if requested is None else requested
    return [d for d in _all_devices() if d.process_index == rank]


OWN_DEVICES.fill(local_devices)


@LOCAL_MESH.fill
def _local_mesh(mesh: Mesh) -> Mesh:
    mine = np.vectorize(lambda d: d.process_index == WORLD.rank, otypes=[bool])(mesh.devices)
    if mine.all():
        return mesh
    block = np.ix_(*(np.unique(places) for places in np.nonzero(mine)))
    if not mine.any() or not mine[block].all():
        raise MeshError(f"local_mesh: the devices of process {WORLD.rank} are no block of {mesh}; order them so")
    return Mesh(mesh.devices[block], mesh.axis_names, mesh.axis_types)


def device_count(backend: str | None = None) -> int:
    """The number of devices of all processes.

    Example:
      >>> mw.device_count()  # after config.update("num_devices", 8)
      8
    """
    require_backend(backend, "device_count")
    return len(_all_devices())


def local_device_count(backend: str | None = None) -> int:
    """The number of devices of this process.

    Example:
      >>> mw.local_device_count() * mw.process_count() == mw.device_count()
      True
    """
    require_backend(backend, "local_device_count")
    return len(_own_devices())


def process_index(backend: str | None = None) -> int:
    """This process's number.

    Example:
      >>> mw.process_index()
      0
    """
    require_backend(backend, "process_index")
    return WORLD.rank


def process_count(backend: str | None = None) -> int:
    """The number of processes.

    Example:
      >>> mw.process_count()
      1
    """
    require_backend(backend, "process_count")
    return WORLD.count


def process_indices(backend: str | None = None) -> list[int]:
    """The numbers of all processes.

    Example:
      >>> mw.process_indices()
      [0]
    """
    require_backend(backend, "process_indices")
    return list(range(WORLD.count))


def host_id(backend: str | None = None) -> int:
    """Older name of :func:`process_index`.

    Example:
      >>> mw.host_id()
      0
    """
    return process_index(backend)


def host_count(backend: str | None = None) -> int:
    """Older name of :func:`process_count`.

    Example:
      >>> mw.host_count()
      1
    """
    return process_count(backend)


def host_ids(backend: str | None = None) -> list[int]:
    """Older name of :func:`process_indices`.

    Example:
      >>> mw.host_ids()
      [0]
    """
    return process_indices(backend)


def default_device() -> Device:
    """The device on which arrays are created by default."""
    chosen = config.default_device
    return _own_devices()[0] if chosen is None or isinstance(chosen, str) else chosen


def make_mesh(
    axis_shapes: Sequence[int],
    axis_names: Sequence[str],
    axis_types: Sequence[AxisType] | None = None,
    *,
    devices: Sequence[Device] | None = None,
    machine: Machine | str | None = None,
) -> Mesh:
    """A mesh of the first devices, row by row; devices with coordinates are ordered so that neighbours are connected.

    ``axis_types`` says who decides how values are split over each axis: the partitioner (``AxisType.Auto``, the
    default) or their types (``AxisType.Explicit``, the default of JAX 0.10). The default differs from JAX's because the
    partitioner is made for programs that are written for one device without any shardings, and types refuse some of
    these. ``machine`` (``"v5e:2x4"``) is the hardware for which plans are made.

    Raises:
      MeshError: there are fewer devices than the mesh has positions (says how to get more), a size is not positive, or
        the numbers of sizes, names and types differ.

    Example:
      >>> mesh = mw.make_mesh((2, 4), ("x", "y"))
      >>> mesh, mesh.shape
      (Mesh(axis_sizes=(2, 4), axis_names=('x', 'y'), axis_types=(Auto, Auto)), {'x': 2, 'y': 4})
    """
    shape = as_integers("make_mesh: axis_shapes", axis_shapes)
    names = as_tuple("make_mesh: axis_names", "a sequence of strings", axis_names)
    available = _all_devices() if devices is None else as_tuple("make_mesh: devices", "a sequence of devices", devices)
    if any(s < 1 for s in shape):
        raise MeshError(f"make_mesh: axis sizes must be positive, got {shape}; give how many devices each has")
    needed = int(np.prod(shape)) if shape else 1
    if needed > len(available):
        raise MeshError(
            f"make_mesh: a mesh of shape {shape} needs {counted(needed, 'device')}, "
            f"{there_are(len(available))}; set meshwright.config.update('num_devices', "
            f"{-(-needed // WORLD.count)}) (or MESHWRIGHT_NUM_DEVICES={-(-needed // WORLD.count)}) before first "
            f"use{' in each process' if WORLD.count > 1 else ''}, or use AbstractMesh to plan without devices"
        )
    return Mesh(placed(available[:needed], shape), names, axis_types, machine=machine)
