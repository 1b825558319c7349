"""Compiled programs that take and return arrays."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

from meshwright.core import monitoring
from meshwright.core.avals import ShapedArray, Typed
from meshwright.core.config import config
from meshwright.core.key_types import is_key
from meshwright.core.late import LateModule
from meshwright.core.records import dataclass
from meshwright.errors import ArgumentError, ConcretizationTypeError, MeshError
from meshwright.ir.jaxpr import ClosedJaxpr, Var, has_effects
from meshwright.ir.passes import require_room
from meshwright.ir.tracing import FOREIGN, Tracer
from meshwright.lowering import kernel_gradients, onednn
from meshwright.lowering.lower import DeviceProgram, lower
from meshwright.runtime import programs
from meshwright.runtime.array import Array, from_numpy
from meshwright.runtime.parts import Parts, spread_of
from meshwright.runtime.pjrt import client as pjrt
from meshwright.runtime.pjrt.world import WORLD
from meshwright.runtime.transfers import check_transfer, level_of
from meshwright.runtime.unknown_calls import try_unknown_calls
from meshwright.sharding import Sharding
from meshwright.stablehlo.hlo import module_bytecode

if TYPE_CHECKING:
    from meshwright.runtime import moving
else:
    moving = LateModule("meshwright.runtime.moving")

_LOGGER = logging.getLogger("meshwright")


@dataclass(frozen=True)
class Results:
    """The types and shardings of a program's results, and whether they are committed."""

    avals: Sequence[ShapedArray]
    shardings: Sequence[Sharding]
    committed: bool = False

    def __post_init__(self) -> None:
        # use the memory kind of each type
        placed = [s.with_memory_kind(a.memory) if a.memory else s for a, s in zip(self.avals, self.shardings)]
        object.__setattr__(self, "shardings", placed)


def _in_memory(aval: ShapedArray) -> tuple[tuple[int, ...], np.dtype]:
    """The shape and dtype of a buffer; random keys are stored as their words."""
    if is_key(aval.dtype):
        return (*aval.shape, aval.dtype.words), np.dtype(np.uint32)  # type: ignore[attr-defined]
    return aval.shape, aval.dtype


@dataclass(eq=False)
class Executable:
    """A loaded program. ``constants`` are arrays that are passed before the arguments at every run."""

    #: XLA's executable; None if all results are forwarded arguments
    loaded: Any
    name: str
    out_avals: Sequence[ShapedArray]
    out_shardings: Sequence[Sharding]
    out_committed: bool
    constants: Sequence[Any] = ()
    donated: Sequence[int] = ()
    keep: Any = field(default=None, repr=False)
    #: the program calls Python, so a run waits until all side effects have happened
    waits: bool = False
    #: required shardings of the arguments; None if there is one real device, which holds them all
    in_shardings: Sequence[Sharding] | None = None
    #: results that are unchanged arguments: result number to argument number; the program computes the others
    forwarded: Mapping[int, int] = field(default_factory=dict)
    #: returns XLA's executable with all results, for inspection
    whole: Callable[[], Any] | None = field(default=None, repr=False)
    #: floating-point operations that XLA's cost analysis does not count
    uncounted_flops: float = 0.0
    #: runs the program on buffers, from the second run on
    runner: Callable[[list[Any]], list[Any]] | None = field(default=None, repr=False)

    def take(self, args: Sequence[Any]) -> list[Any]:
        """The buffers of the arguments, moved to the required shardings."""
        if self.in_shardings is None:
            if self._on_a_mesh and level_of("device_to_device") != "allow":
                self._check_moves(args)
            return [x._buffer if type(x) is Array and x._buffer is not None else buffer_of(x) for x in args]
        return [buffer_at(x, s) for x, s in zip(args, self.in_shardings)]

    def _check_moves(self, args: Sequence[Any]) -> None:
        """Apply the transfer guard to arrays that move to a virtual mesh, as if its devices were real."""
        for x in args:
            if type(x) is Array:
                check_move(x, self.out_shardings[0], False)

    @property
    def is_spread(self) -> bool:
        """Whether the program runs on several real devices."""
        return self.in_shardings is not None

    @cached_property
    def _on_a_mesh(self) -> bool:
        return any(len(s.device_set) > 1 for s in self.out_shardings[:1])

    @cached_property
    def inspected(self) -> Any:
        """XLA's executable for inspection; if nothing has to run, that of the program with all results."""
        return self.loaded if self.loaded is not None or self.whole is None else self.whole()

    def cost_analysis(self) -> dict[str, float]:
        """XLA's cost estimates by name, including the operations of library calls."""
        found = self.inspected.cost_analysis()
        return {**found, "flops": found.get("flops", 0.0) + self.uncounted_flops} if self.uncounted_flops else found

    #: one real device computes the results of all devices
    is_virtual: ClassVar[bool] = True

    def __post_init__(self) -> None:
        programs.note(self)

    def run(self, buffers: list[Any]) -> list[Array]:
        """Run on the buffers of the arguments. Asynchronous, unless the program calls Python."""
        outs = self._computed(buffers) if self.loaded is not None else []
        if self.forwarded:
            outs = self._with_forwarded(outs, buffers)
        committed = self.out_committed
        return [Array(a, b, s, committed) for a, b, s in zip(self.out_avals, outs, self.out_shardings)]

    def direct(self) -> Callable[[Sequence[Array]], list[Array]] | None:
        """A fast path that runs the program on arrays, or None.

        There is one, after the first run, if all arguments are used as they are and all results are computed.
        """
        asks = self.constants or self.donated or self.forwarded or self.in_shardings is not None or self._on_a_mesh
        if asks or self.runner is None:
            return None
        runner, avals, shardings, committed = self.runner, self.out_avals, self.out_shardings, self.out_committed

        def run(arrays: Sequence[Array]) -> list[Array]:
            outs = runner([b if (b := x._buffer) is not None else x.buffer for x in arrays])
            return [Array(a, b, s, committed) for a, b, s in zip(avals, outs, shardings)]

        return run

    def _computed(self, buffers: list[Any]) -> list[Any]:
        """The results that are computed, not forwarded."""
        operands = [*self.constants, *buffers] if self.constants else buffers
        if self.runner is not None:
            return self.runner(operands)
        outs = pjrt.execute(self.loaded, operands, self.waits)
        if not self.waits:
            types = [_in_memory(a) for i, a in enumerate(self.out_avals) if i not in self.forwarded]
            self.runner = pjrt.runner(self.loaded, types)
        return outs

    def _with_forwarded(self, computed: Sequence[Any], buffers: Sequence[Any]) -> list[Any]:
        rest = iter(computed)
        return [buffers[self.forwarded[i]] if i in self.forwarded else next(rest) for i in range(len(self.out_avals))]

    def __call__(self, args: Sequence[Any]) -> list[Array]:
        """Run on arrays, NumPy values or numbers.

        Raises:
          ConcretizationTypeError: an argument is a tracer.
        """
        for x in args:
            if isinstance(x, Tracer):
                refuse_traced(self.name, x)
        buffers = self.take(args)
        if self.donated:
            self._check_donated_once(args)
        outs = self.run(buffers)
        for i in self.donated:
            if type(args[i]) is Array:
                args[i].delete()
        return outs

    def _check_donated_once(self, args: Sequence[Any]) -> None:
        at = {id(args[i]): i for i in self.donated if type(args[i]) is Array}
        if len(at) == len(self.donated) == len(args):  # each is another array
            return
        for j, x in enumerate(args):
            if (i := at.get(id(x), j)) != j:
                raise ArgumentError(
                    f"{self.name}: the array of type {x.aval} is donated as argument {i} and passed again as "
                    f"argument {j} (of the flattened arguments); pass a copy, or do not donate it"
                )


def refuse_traced(name: str, x: Tracer) -> NoReturn:
    """Raise, since a compiled program cannot be traced."""
    x.refuse(
        ConcretizationTypeError,
        f"the compiled program {name!r}",
        "transformations cannot look into it. Apply them to the function, and compile the result, as in "
        "jit(grad(f)).lower(...).compile(); or call the jitted function, which is compiled as a part of this one",
    )


def buffer_of(x: Any) -> Any:
    """The buffer of an array; NumPy values and numbers are copied to the device."""
    return as_array(x).buffer


def buffer_at(x: Any, sharding: Sharding) -> Any:
    """The buffer of ``x`` resharded to ``sharding``.

    Raises:
      TransferError: the transfer guard refuses a move between devices.
    """
    if type(x) in FOREIGN:
        x = as_array(x)
    if type(x) is not Array:
        x = as_array(x) if isinstance(x, (int, float, complex)) else from_numpy(x, sharding=sharding)
    elif x.sharding != sharding:
        check_move(x, sharding, False)
    return x.buffer if x.sharding == sharding else moving.buffer_with(x, sharding)


def check_move(x: Array, sharding: Sharding, explicit: bool) -> None:
    """Apply the transfer guard if ``x`` moves to other devices; moves on the same devices are done by programs.

    Uncommitted scalars are exempt, since Python numbers are converted to such arrays.

    Raises:
      TransferError: the guard refuses the move.
    """
    number = x.ndim == 0 and not x.committed
    if level_of("device_to_device") != "allow" and not number and x.sharding.device_set != sharding.device_set:
        check_transfer("device_to_device", explicit, x.aval)


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
    return Place(sharding, in_shardings) if pjrt.has_many() else None


def as_array(x: Any) -> Array:
    """``x`` as an array; Python numbers are weakly typed."""
    if type(x) is Array:
        return x
    if isinstance(x, (int, float, complex)) and not isinstance(x, (bool, np.generic)):
        return from_numpy(np.asarray(x), weak_type=True)
    return FOREIGN[type(x)](x) if type(x) in FOREIGN else from_numpy(x)


def as_result(x: Any) -> Any:
    """``x`` as a function's result: an array, never a NumPy value or a Python number."""
    return x if isinstance(x, Typed) else as_array(x)


def compile_jaxpr(
    jaxpr: ClosedJaxpr, name: str, out_shardings: Sequence[Sharding], quick: bool = False, place: Place | None = None,
    options: tuple[tuple[str, Any], ...] = (),
) -> Executable:  # fmt: skip
    """Compile a program for one device, as :func:`compile_program`."""
    return compile_program(lower(jaxpr, name), Results(jaxpr.out_avals, out_shardings, False), quick, options, place)


def compile_program(
    program: DeviceProgram, results: Results, quick: bool = False, options: tuple[tuple[str, Any], ...] = (),
    place: Place | None = None,
) -> Executable:  # fmt: skip
    """Compile a program for one real device (by default the first), or for the several real devices of ``place``.

    ``quick`` prefers a short compile time over fast code. ``options`` are XLA flags by name.
    """
    reals = None if place is None else reals_of(program.name, place.sharding)
    running, forwarded = without_forwarded(program)
    is_needed = running.jaxpr.jaxpr.outvars or has_effects(running.jaxpr.jaxpr)
    loaded = _loaded(running, quick, options, reals) if is_needed else None
    constants = [as_array(c) for c in program.constants]
    return Executable(
        loaded,
        program.name,
        list(results.avals),
        list(results.shardings),
        results.committed,
        [buffer_of(c) if place is None else place.constant(c) for c in constants],
        list(program.donated),
        constants,
        is_needed and bool(running.emitted[1]),
        None if place is None else place.in_shardings,
        forwarded,
        lambda: _loaded(program, quick, options, reals),
        onednn.uncounted_flops(program.jaxpr) + kernel_gradients.uncounted_flops(program.jaxpr),
    )


def log_level() -> int:
    """The level at which compilations are logged."""
    return logging.WARNING if config.log_compiles else logging.DEBUG


def _loaded(program: DeviceProgram, quick: bool, options: tuple[tuple[str, Any], ...], reals: Any) -> Any:
    started = time.perf_counter()
    require_room(program.jaxpr.jaxpr)
    module, callbacks = program.emitted
    source = module if callbacks else module_bytecode(module)
    try_unknown_calls(program, len(reals or (0,)))
    loaded = pjrt.compile_module(source, program.name, callbacks, quick, program.as_text, options, reals)
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
