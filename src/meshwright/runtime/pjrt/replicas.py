"""A per-device program compiled by XLA for as many CPU devices as it has replicas: what it then holds, as compiled."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from meshwright.errors import CompileError
from meshwright.runtime.pjrt.client import _jax, xc


@dataclass(frozen=True)
class CompiledMemory:
    """XLA's figures for one device, in bytes; ``alias_bytes`` are results in donated arguments' memory."""

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int

    @classmethod
    def of(cls, executable: Any) -> CompiledMemory:
        """The figures of a loaded executable."""
        stats = executable.get_compiled_memory_stats()
        return cls(
            stats.argument_size_in_bytes,
            stats.output_size_in_bytes,
            stats.alias_size_in_bytes,
            stats.temp_size_in_bytes,
        )

    @property
    def peak_bytes(self) -> int:
        return self.argument_bytes + self.output_bytes + self.temp_bytes - self.alias_bytes


@cache
def _devices(count: int) -> tuple[Any, tuple[Any, ...]]:
    client = xc.make_cpu_client(num_devices=count)
    return client, tuple(client.local_devices())


def compiled_memory(module: str | bytes, replicas: int) -> CompiledMemory:
    """Compile a per-device StableHLO module (text or bytecode); nothing runs.

    Raises:
      CompileError: XLA refused the program.
    """
    client, devices = _devices(replicas)
    options = xc.CompileOptions()
    options.num_replicas, options.num_partitions = replicas, 1
    # XLA's default, whatever XLA_FLAGS say: it decides how scatters are computed, and so which buffers there are.
    options.env_option_overrides = [("xla_cpu_use_fusion_emitters", True)]
    options.device_assignment = xc.DeviceAssignment.create(np.arange(replicas).reshape(replicas, 1))
    try:
        loaded = client.compile_and_load(module, _jax.DeviceList(devices), options)
    except Exception as error:
        if type(error).__name__ not in ("XlaRuntimeError", "JaxRuntimeError"):
            raise
        raise CompileError(f"XLA could not compile the per-device program: {error}") from None
    return CompiledMemory.of(loaded)
