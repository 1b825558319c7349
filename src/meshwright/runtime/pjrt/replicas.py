"""Compiles a per-device program with XLA for one CPU device per replica, to inspect the result."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jaxlib
from jaxlib import xla_client as xc

from meshwright.core.records import dataclass
from meshwright.runtime.pjrt.compiler import OURS, compile_on, compile_options

#: the program that compiles for targets (see :mod:`meshwright.targets.child`), and the folder that contains jaxlib
CHILD = Path(__file__).with_name("target_child.py")
JAXLIB = str(Path(jaxlib.__path__[0]).parent)


@dataclass(frozen=True)
class CompiledMemory:
    """XLA's memory statistics of one device, in bytes; ``alias_bytes`` are results in memory of donated arguments."""

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int

    @classmethod
    def of(cls, executable: Any) -> CompiledMemory:
        """The statistics of a loaded executable."""
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
def _client(devices: int) -> Any:
    return xc.make_cpu_client(num_devices=devices)


def _compiled(module: Any, replicas: int, overrides: Sequence[tuple[str, Any]], callbacks: Sequence[Any] = ()) -> Any:
    options = compile_options(replicas, 1)
    # XLA's default regardless of XLA_FLAGS, as it determines how scatters are computed, and so the buffers.
    options.env_option_overrides = [("xla_cpu_use_fusion_emitters", True), *overrides]
    return compile_on(_client(replicas), module, options, "XLA could not compile the per-device program", callbacks)


def compiled_for_replicas(
    module: Any, replicas: int, overrides: Sequence[tuple[str, Any]] = (), callbacks: Sequence[Any] = ()
) -> Any:
    """XLA's executable of a per-device StableHLO module, compiled for ``replicas`` CPU devices but not run.

    The module is text, bytecode, or one that calls ``callbacks`` by number.

    Raises:
      CompileError: XLA rejected the program.
    """
    return _compiled(module, replicas, [*OURS, *overrides], callbacks)


def compiled_memory(module: str | bytes, replicas: int) -> CompiledMemory:
    """The memory of a per-device StableHLO module (text or bytecode) on one device, compiled with XLA's defaults.

    Raises:
      CompileError: XLA rejected the program.
    """
    return CompiledMemory.of(_compiled(module, replicas, ()))
