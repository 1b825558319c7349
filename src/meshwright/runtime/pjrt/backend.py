"""XLA's low-level interface: computations compiled for numbered devices, and buffers on each of them.

For programs that are already per-device, or that XLA's own partitioner is to partition. It is independent of Meshwright
arrays and functions. The CPU is divided into ``config.num_devices`` devices. The run of each device waits for the
others at collectives, so the client gets two threads per device (``NPROC``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np
from jaxlib import _hlo, _jax
from jaxlib import xla_client as xc

from meshwright.core.records import dataclass
from meshwright.core.words import counted, there_are
from meshwright.errors import (
    ArgumentError,
    ArgumentTypeError,
    CompileError,
    DeviceError,
    ImportProgramError,
    ShapeError,
)
from meshwright.runtime.pjrt.buffers import execute, wait
from meshwright.runtime.pjrt.compiler import SAFE, compile_options, is_shardy
from meshwright.runtime.pjrt.platforms import cpu_client
from meshwright.runtime.pjrt.shielded import shielded

#: XLA's classes by their public names
XLA_CLASSES = {
    "CompileOptions": xc.CompileOptions,
    "DeviceAssignment": xc.DeviceAssignment,
    "HloSharding": _hlo.HloSharding,
    "OpSharding": _hlo.OpSharding,
    "PrimitiveType": _hlo.PrimitiveType,
    "ProgramShape": _hlo.ProgramShape,
    "Shape": _hlo.Shape,
    "XlaComputation": _hlo.XlaComputation,
}


#: the client with a number of CPU devices
client_of = cache(cpu_client)


@dataclass(frozen=True)
class Type:
    """The shape and dtype of a buffer."""

    shape: tuple[int, ...]
    dtype: np.dtype
    weak_type: bool = False

    def __str__(self) -> str:
        return f"{self.dtype.name}{list(self.shape)}"


class Buffer:
    """An array on one device."""

    def __init__(self, pjrt: Any, device: Any, type: Type) -> None:
        self._pjrt = pjrt
        self._device = device
        self.type = type

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> np.dtype:
        return self.type.dtype

    def device(self) -> Any:
        """The device that holds it."""
        return self._device

    def xla_shape(self) -> Any:
        """Its type as an XLA shape."""
        return _hlo.Shape.array_shape(self.dtype, self.shape)

    def to_py(self) -> np.ndarray:
        """Its values as a NumPy array; waits until they are computed."""
        wait(self._pjrt)
        return self._pjrt._single_device_array_to_np_array_did_copy()[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.to_py(), dtype, copy=copy is not False)

    def block_until_ready(self) -> Buffer:
        """Wait until its values are computed; returns the buffer itself."""
        wait(self._pjrt)
        return self

    def is_deleted(self) -> bool:
        """Whether its memory was freed."""
        return self._pjrt.is_deleted()

    def delete(self) -> None:
        """Free its memory."""
        self._pjrt.delete()

    def __repr__(self) -> str:
        return f"Buffer({self.type} on {self._device})"


class LoadedExecutable:
    """A compiled computation with its devices, ordered by replica, then by partition."""

    def __init__(
        self,
        loaded: Any,
        devices: Sequence[Any],
        pjrt: Sequence[Any],
        assignment: np.ndarray,
        put: Callable[..., Buffer],
    ) -> None:
        self._loaded = loaded
        self._put = put
        self._devices = list(devices)
        self._pjrt = list(pjrt)
        self._assignment = assignment

    def __repr__(self) -> str:
        name = self.hlo_modules()[0].name
        return f"LoadedExecutable({name!r}, replicas={self.num_replicas}, partitions={self.num_partitions})"

    @property
    def num_replicas(self) -> int:
        return self._assignment.shape[0]

    @property
    def num_partitions(self) -> int:
        return self._assignment.shape[1]

    def device_assignment(self) -> np.ndarray:
        """The device number of each replica (rows) and partition (columns)."""
        return self._assignment

    def local_devices(self) -> list[Any]:
        """The devices, in the order of the buffers of arguments and results."""
        return list(self._devices)

    def hlo_modules(self) -> list[Any]:
        """The optimized module, as a list of one, with ``to_string()``."""
        return self._loaded.hlo_modules()

    def cost_analysis(self) -> dict[str, float]:
        """XLA's cost estimates for one device, by name."""
        return self._loaded.cost_analysis()

    def get_compiled_memory_stats(self) -> Any:
        """XLA's memory statistics of one device."""
        return self._loaded.get_compiled_memory_stats()

    def serialize(self) -> bytes:
        """The serialized executable, for another process with the same jaxlib."""
        return self._loaded.serialize()

    def size_of_generated_code_in_bytes(self) -> int:
        """The size of the machine code."""
        return self._loaded.size_of_generated_code_in_bytes()

    def execute(self, arguments: Sequence[Any]) -> list[Buffer]:
        """Run on the single device that it was compiled for. Arguments that are not buffers are copied to it.

        Raises:
          ArgumentError: it was compiled for several devices.
          ShapeError: arguments have other types.
        """
        if len(self._devices) != 1:
            raise ArgumentError(
                f"execute: the computation is compiled for {counted(len(self._devices), 'device')}; call "
                "execute_sharded_on_local_devices with a list of buffers, one a device, for each argument"
            )
        return [outs[0] for outs in self.execute_sharded_on_local_devices([[a] for a in arguments])]

    def execute_sharded_on_local_devices(self, arguments: Sequence[Sequence[Any]]) -> list[list[Buffer]]:
        """Run on all devices. Arguments and results are lists of buffers, one per device in :meth:`local_devices`.

        Arguments that are not buffers are copied to their devices.

        Raises:
          ArgumentError: the number of arguments or buffers is wrong, or buffers are on other devices.
          ShapeError: an argument has another type than the one compiled for.
        """
        given = [self._buffers(shards) for shards in arguments]
        self._check(given)
        if len(self._devices) == 1:
            results = [[b] for b in execute(self._loaded, [shards[0]._pjrt for shards in given])]
        else:
            running = self._loaded.execute_sharded([self._array(shards) for shards in given])
            results = running.disassemble_into_single_device_arrays()
        types = self._types[1]
        return [[Buffer(b, d, t) for b, d in zip(outs, self._devices)] for outs, t in zip(results, types, strict=True)]

    def _buffers(self, shards: Sequence[Any]) -> list[Buffer]:
        """An argument's buffers, one per device; the check rejects any beyond these."""
        where = [*self._devices, *[None] * (len(shards) - len(self._devices))]
        return [x if isinstance(x, Buffer) else self._put(x, d) for x, d in zip(shards, where)]

    def _check(self, arguments: Sequence[Sequence[Buffer]]) -> None:
        types = self._types[0]
        if len(arguments) != len(types):
            raise ArgumentError(
                f"execute: the computation takes {counted(len(types), 'argument')}, got {len(arguments)}; give one for "
                "each"
            )
        for i, (shards, type_) in enumerate(zip(arguments, types)):
            if [b._device for b in shards] != self._devices:
                where = ", ".join(str(b._device) for b in shards) or "none"
                raise ArgumentError(
                    f"execute: argument {i} has buffers on {where}; expected one on each of "
                    f"{', '.join(map(str, self._devices))}, in this order (buffer_from_pyval makes them)"
                )
            for b in shards:
                if b.type != type_:
                    raise ShapeError(
                        f"execute: argument {i} is {b.type}, the computation takes {type_} there; make the buffer of "
                        "such an array"
                    )

    def _array(self, shards: Sequence[Buffer]) -> Any:
        sharding = _jax.GSPMDSharding(_jax.DeviceList(tuple(self._pjrt)), _hlo.HloSharding.iota_tile((len(shards),)))
        return _jax.ArrayImpl(shards[0].type, sharding, [b._pjrt for b in shards], True, _skip_checks=True)

    @cached_property
    def _types(self) -> tuple[list[Type], list[Type]]:
        """The types of the parameters and of the results."""
        module = self._loaded.hlo_modules()[0]
        shape = _hlo.XlaComputation(module.as_serialized_hlo_module_proto()).program_shape()
        return _flat(shape.parameter_shapes()), _flat([shape.result_shape()])


def _flat(shapes: Sequence[Any]) -> list[Type]:
    """The types in XLA's shapes, with tuples flattened."""
    flat = [s for shape in shapes for s in (shape.tuple_shapes() if shape.is_tuple() else [shape])]
    return [Type(tuple(s.dimensions()), np.dtype(s.numpy_dtype())) for s in flat]


class PjrtBackend:
    """Compiles for ``devices``, each of which is one CPU device of XLA, and puts buffers on them."""

    def __init__(self, devices: Sequence[Any]) -> None:
        self._devices = list(devices)
        self._client = client_of(len(self._devices))
        self._pjrt = dict(zip(self._devices, self._client.local_devices()))

    @property
    def platform(self) -> str:
        return self._client.platform

    @property
    def platform_version(self) -> str:
        return self._client.platform_version

    def devices(self) -> list[Any]:
        """All devices."""
        return list(self._devices)

    local_devices = devices

    def device_count(self) -> int:
        """The number of devices."""
        return len(self._devices)

    local_device_count = device_count

    def process_index(self) -> int:
        """The index of this process."""
        return 0

    host_id = process_index

    def get_default_device_assignment(self, num_replicas: int, num_partitions: int = 1) -> list[list[Any]]:
        """The first devices, as one list of partitions per replica."""
        ids = self._checked(np.arange(num_replicas * num_partitions).reshape(num_replicas, num_partitions))
        return [[self._devices[i] for i in row] for row in ids]

    def _checked(self, assignment: np.ndarray) -> np.ndarray:
        if assignment.size > len(self._devices) or (assignment.size and assignment.max() >= len(self._devices)):
            replicas, partitions = assignment.shape
            raise DeviceError(
                f"compile: {counted(replicas, 'replica')} of {counted(partitions, 'partition')} need "
                f"{counted(assignment.size, 'device')}, {there_are(len(self._devices))}; set "
                f"config.update('num_devices', {assignment.size}) before the first use"
            )
        return assignment

    def buffer_from_pyval(self, value: Any, device: Any = None) -> Buffer:
        """Copy an array or number to a device (by default the first), keeping its dtype.

        Raises:
          ArgumentError: there is no such device.
          ArgumentTypeError: not an array or number.
        """
        where = self._devices[0] if device is None else device
        if where not in self._pjrt:
            raise ArgumentError(f"buffer_from_pyval: no device {device!r}; there are {self._devices}")
        array = np.array(value, order="C", copy=True)
        if array.dtype.kind not in "biufcV":
            raise ArgumentTypeError(f"buffer_from_pyval: expected an array or a number, got {type(value).__name__}")
        type_, pjrt = Type(array.shape, array.dtype), self._pjrt[where]
        sharding = _jax.GSPMDSharding(_jax.DeviceList((pjrt,)), _hlo.HloSharding.replicate())
        return Buffer(_jax.batched_device_put(type_, sharding, [array], [pjrt], True, enable_x64=True), where, type_)

    def compile(self, computation: Any, compile_options: Any = None) -> LoadedExecutable:
        """Compile an ``XlaComputation``, StableHLO (text, bytecode or a module) or HLO text.

        ``compile_options`` has the numbers of replicas and partitions, and their devices. If there is more than one
        partition, XLA's own partitioner splits the computation by its shardings.

        Raises:
          CompileError: XLA rejected it.
          DeviceError: it needs more devices than there are.
        """
        options = _default_options(computation) if compile_options is None else _copy(compile_options)
        shape = options.num_replicas, options.num_partitions
        given = options.device_assignment
        ids = np.arange(shape[0] * shape[1]).reshape(shape) if given is None else _numbers(given, shape)
        self._checked(ids)
        options.device_assignment = xc.DeviceAssignment.create(ids)
        devices = [self._devices[i] for i in ids.flat]
        pjrt = [self._pjrt[d] for d in devices]
        module, where = _module(computation), _jax.DeviceList(tuple(pjrt))
        build = options.executable_build_options
        build.use_spmd_partitioning = shape[1] > 1
        build.use_shardy_partitioner |= shape[1] > 1 and is_shardy(module)
        try:
            loaded = shielded(lambda: self._client.compile_and_load(module, where, options))
        except (RuntimeError, ValueError) as error:
            reason = "\n".join(line for line in str(error).splitlines() if line and not line.startswith("<unknown>"))
            raise CompileError(
                f"XLA could not compile the computation (expected an XlaComputation, or the text of a module): {reason}"
            ) from None
        return LoadedExecutable(loaded, devices, pjrt, ids, self.buffer_from_pyval)

    def __repr__(self) -> str:
        return f"Backend({self.platform!r}, {counted(len(self._devices), 'device')})"


def _copy(options: Any) -> Any:
    copied = xc.CompileOptions.ParseFromString(options.SerializeAsString())
    copied.env_option_overrides = [*SAFE, *options.env_option_overrides]
    return copied


def _default_options(computation: Any) -> Any:
    """Options for as many replicas as the module is made for."""
    operation = getattr(computation, "operation", None)
    attributes = operation.attributes if operation is not None else {}
    replicas = attributes["mhlo.num_replicas"].value if "mhlo.num_replicas" in attributes else 1
    return compile_options(replicas, 1)


def _numbers(assignment: Any, shape: tuple[int, int]) -> np.ndarray:
    """Device numbers by replica and partition, from an assignment (which only prints them) or nested lists."""
    if isinstance(assignment, xc.DeviceAssignment):
        partitions = re.findall(r"Computation\d+\{([\d ]*)\}", repr(assignment))
        return np.array([[int(n) for n in replicas.split()] for replicas in partitions]).T.reshape(shape)
    return np.array([[getattr(d, "id", d) for d in np.atleast_1d(row)] for row in assignment]).reshape(shape)


def _module(computation: Any) -> Any:
    """The computation in a form that the compiler takes."""
    if isinstance(computation, _hlo.XlaComputation):
        return _jax.mlir.xla_computation_to_mlir_module(computation)
    if isinstance(computation, str) and computation.lstrip().startswith("HloModule"):
        return _module(_hlo.XlaComputation(module_of(computation).as_serialized_hlo_module_proto()))
    return computation


def module_of(text: str) -> Any:
    """XLA's module for HLO text.

    Raises:
      ImportProgramError: the text is not HLO.
    """
    try:
        return _hlo.hlo_module_from_text(text)
    except RuntimeError as error:  # the base class of XLA's error
        raise ImportProgramError(f"hlo_module_from_text: expected the text of an HLO module: {error}") from None


def graph_of(module: Any) -> str:
    """A module as a graph in the DOT language."""
    return _hlo.hlo_module_to_dot_graph(module)


def computation_from_stablehlo(text: str) -> Any:
    """The ``XlaComputation`` for a StableHLO module's text."""
    return _jax.mlir.mlir_module_to_xla_computation(text.encode(), use_tuple_args=False, return_tuple=False)
