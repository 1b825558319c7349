"""Compiles lowered programs for real devices."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from meshwright.core import monitoring
from meshwright.core.config import config
from meshwright.core.records import dataclass
from meshwright.errors import MeshError
from meshwright.ir.jaxpr import ClosedJaxpr, Var, has_effects
from meshwright.ir.passes import require_room
from meshwright.lowering import kernel_gradients, onednn
from meshwright.lowering.lower import DeviceProgram, lower
from meshwright.runtime.array import Array
from meshwright.runtime.executable import Executable, Results
from meshwright.runtime.parts import Parts, spread_of
from meshwright.runtime.pjrt.client import has_many
from meshwright.runtime.pjrt.compiler import Build, Flags, compile_module
from meshwright.runtime.pjrt.world import WORLD
from meshwright.runtime.unknown_calls import unknown_calls
from meshwright.runtime.values import as_array, buffer_at, buffer_of
from meshwright.sharding import Sharding
from meshwright.stablehlo.hlo import module_bytecode

_LOGGER = logging.getLogger("meshwright")


def reals_of(name: str, sharding: Sharding) -> tuple[int, ...]:
    """The real devices of a program.

    Raises:
      MeshError: none of them belongs to this process.
    """
    spread = spread_of(sharding)
    if not spread.here:
        raise MeshError(
            f"{name!r} runs on {sharding.devices[:8]}, none of which is a device of this process, {WORLD.rank}; "
            "call it in the processes that have them, or take devices of all (devices(), make_mesh)"
        )
    return spread.reals


@dataclass(frozen=True)
class Place:
    """The devices that run a program, and the shardings of its arguments; constants are replicated over them."""

    sharding: Sharding
    in_shardings: Sequence[Sharding]

    def constant(self, value: Array) -> Any:
        """A constant replicated over all devices, as an operand."""
        buffer = buffer_at(value, self.sharding)
        if not isinstance(buffer, Parts):
            return buffer
        return buffer.joined(spread_of(self.sharding), value.shape, value.dtype)


def one_device(sharding: Sharding, in_shardings: Sequence[Sharding]) -> Place | None:
    """The place of a program for one real device, that of ``sharding``; None if there is only one."""
    return Place(sharding, in_shardings) if has_many() else None


def build_of(name: str, place: Place | None, flags: Flags = (), quick: bool = False) -> Build:
    """How XLA compiles a program for a place, by default the first real device of this process.

    Raises:
      MeshError: none of the place's devices belongs to this process.
    """
    return Build(None if place is None else reals_of(name, place.sharding), flags, quick)


def compile_jaxpr(
    jaxpr: ClosedJaxpr, name: str, out_shardings: Sequence[Sharding], quick: bool = False, place: Place | None = None,
    flags: Flags = (),
) -> Executable:  # fmt: skip
    """Lower and compile a program for one real device. ``quick`` prefers a short compile time over fast code."""
    results = Results(jaxpr.out_avals, out_shardings, False)
    return compile_program(lower(jaxpr, name), results, place, build_of(name, place, flags, quick))


def compile_program(program: DeviceProgram, results: Results, place: Place | None, build: Build) -> Executable:
    """Compile a lowered program. ``build`` is that for the place (see :func:`build_of`)."""
    running, forwarded = without_forwarded(program)
    is_needed = running.jaxpr.jaxpr.outvars or has_effects(running.jaxpr.jaxpr)
    loaded = _loaded(running, build) if is_needed else None
    constants = [as_array(c) for c in program.constants]
    return Executable(
        loaded,
        program.name,
        list(results.avals),
        list(results.shardings),
        results.committed,
        constants=[buffer_of(c) if place is None else place.constant(c) for c in constants],
        donated=list(program.donated),
        keep=constants,
        waits=is_needed and bool(running.emitted[1]),
        in_shardings=None if place is None else place.in_shardings,
        forwarded=forwarded,
        whole=lambda: _loaded(program, build),
        uncounted_flops=onednn.uncounted_flops(program.jaxpr) + kernel_gradients.uncounted_flops(program.jaxpr),
    )


def log_level() -> int:
    """The level at which compilations are logged."""
    return logging.WARNING if config.log_compiles else logging.DEBUG


def _loaded(program: DeviceProgram, build: Build) -> Any:
    started = time.perf_counter()
    require_room(program.jaxpr.jaxpr)
    module, callbacks = program.emitted
    source = module if callbacks else module_bytecode(module)
    with unknown_calls(program, len(build.reals or (0,))):
        loaded = compile_module(source, program.name, build, callbacks, program.as_text)
    seconds = time.perf_counter() - started
    _LOGGER.log(
        log_level(),
        "Compiled %s for %s in %.3f s",
        program.name, ", ".join(map(str, program.in_avals)) or "no arguments", seconds,
    )  # fmt: skip
    monitoring.DURATIONS.record(monitoring.COMPILED, seconds, fun_name=program.name)
    return loaded


def without_forwarded(program: DeviceProgram) -> tuple[DeviceProgram, dict[int, int]]:
    """The program without results that are arguments that are not donated, and a map from these to the arguments."""
    inner, shift = program.jaxpr.jaxpr, len(program.constants)
    number = {v: i for i, v in enumerate(inner.invars[shift:]) if i not in program.donated}
    forwarded = {o: number[v] for o, v in enumerate(inner.outvars) if isinstance(v, Var) and v in number}
    if not forwarded:
        return program, forwarded
    kept = [o for o in range(len(inner.outvars)) if o not in forwarded]
    donated = {i: None if o is None else kept.index(o) for i, o in program.donated.items() if o not in forwarded}
    jaxpr = program.jaxpr.replace(jaxpr=inner.replace(outvars=[inner.outvars[o] for o in kept]))
    return replace(program, jaxpr=jaxpr, donated=donated), forwarded
