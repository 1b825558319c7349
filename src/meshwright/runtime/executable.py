"""Compiled programs: arrays in, arrays out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.core.config import config
from meshwright.errors import ArgumentError, ConcretizationTypeError, MeshError
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.tracing import Tracer
from meshwright.lowering.lower import DeviceProgram, lower
from meshwright.runtime import programs
from meshwright.runtime.array import Array, from_numpy
from meshwright.runtime.parts import Parts, spread_of
from meshwright.runtime.pjrt import client as pjrt
from meshwright.runtime.pjrt.world import WORLD
from meshwright.sharding import Sharding
from meshwright.stablehlo.hlo import module_bytecode

_LOGGER = logging.getLogger("meshwright")


@dataclass(frozen=True)
class Results:
    """What the arrays that a program gives are: types, shardings, and whether they stay where they are."""

    avals: Sequence[ShapedArray]
    shardings: Sequence[Sharding]
    committed: bool = False


@dataclass
class Executable:
    """A loaded program. ``constants`` are arrays passed before the arguments at every run."""

    loaded: Any
    name: str
    out_avals: Sequence[ShapedArray]
    out_shardings: Sequence[Sharding]
    out_committed: bool
    constants: Sequence[Any] = ()
    donated: Sequence[int] = ()
    keep: Any = field(default=None, repr=False)
    #: it calls Python: a run is over when all its effects have happened
    waits: bool = False
    #: where arguments must be; None: there is one real device, and all are there
    in_shardings: Sequence[Sharding] | None = None

    def take(self, args: Sequence[Any]) -> list[Any]:
        """The buffers of arguments, brought to where the program wants them."""
        if self.in_shardings is None:
            return [buffer_of(x) for x in args]
        return [buffer_at(x, s) for x, s in zip(args, self.in_shardings)]

    #: one device computes for all that its results are on
    is_virtual: ClassVar[bool] = True

    def __post_init__(self) -> None:
        programs.note(self)

    def run(self, buffers: list[Any]) -> list[Array]:
        """Run on buffers (of the arguments, in order); returns without waiting, unless the program calls Python."""
        outs = pjrt.execute(self.loaded, [*self.constants, *buffers] if self.constants else buffers, self.waits)
        committed = self.out_committed
        return [Array(a, b, s, committed) for a, b, s in zip(self.out_avals, outs, self.out_shardings)]

    def __call__(self, args: Sequence[Any]) -> list[Array]:
        """Run on arrays, NumPy values or numbers.

        Raises:
          ConcretizationTypeError: one is traced.
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
        for i in self.donated:
            for j, other in enumerate(args):
                if j != i and type(other) is Array and other is args[i]:
                    raise ArgumentError(
                        f"{self.name}: the array of type {other.aval} is donated as argument {i} and passed again as "
                        f"argument {j} (of the flattened arguments); pass a copy, or do not donate it"
                    )


def refuse_traced(name: str, x: Tracer) -> NoReturn:
    """Raise, since a program cannot be looked into any more once it is compiled."""
    x.refuse(
        ConcretizationTypeError,
        f"the compiled program {name!r}",
        "transformations cannot look into it. Apply them to the function, and compile the result, as in "
        "jit(grad(f)).lower(...).compile(); or call the jitted function, which is compiled as a part of this one",
    )


def buffer_of(x: Any) -> Any:
    """The buffer of an array; NumPy values and numbers are copied to the device."""
    if type(x) is Array:
        return x._buffer if x._buffer is not None else x.buffer
    return as_array(x).buffer


#: brings an array to another sharding, and gives its buffer; ``runtime.moving`` supplies it, as it compiles programs
MOVED: list[Callable[[Array, Sharding], Any]] = []


def buffer_at(x: Any, sharding: Sharding) -> Any:
    """The buffer of ``x`` with a sharding, to which it is brought if it has another."""
    if type(x) is not Array:
        x = as_array(x) if isinstance(x, (int, float, complex)) else from_numpy(x, sharding=sharding)
    return x.buffer if x.sharding == sharding else MOVED[0](x, sharding)


def _reals(name: str, sharding: Sharding) -> tuple[int, ...]:
    """The real devices of a program.

    Raises:
      MeshError: none of them is this process's.
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
    """The devices that run a program, and the shardings of its arguments; constants are on each of them."""

    sharding: Sharding
    in_shardings: Sequence[Sharding]

    def constant(self, value: Array) -> Any:
        """A constant on all devices, as an operand."""
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
    return from_numpy(x)


def compile_jaxpr(
    jaxpr: ClosedJaxpr, name: str, out_shardings: Sequence[Sharding], out_committed: bool = False, quick: bool = False,
    place: Place | None = None,
) -> Executable:  # fmt: skip
    """Compile a program for one device, as :func:`compile_program`."""
    results = Results(jaxpr.out_avals, out_shardings, out_committed)
    return compile_program(lower(jaxpr, name), results, quick, place=place)


def compile_program(
    program: DeviceProgram, results: Results, quick: bool = False, options: tuple[tuple[str, Any], ...] = (),
    place: Place | None = None,
) -> Executable:  # fmt: skip
    """Compile the program of one real device, our first, or of several that run it together: those of ``place``.

    ``quick`` asks for code that is made fast, rather than fast code. ``options`` are flags of XLA, by name, and their
    values.
    """
    started = time.perf_counter()
    module, callbacks = program.emitted
    source = module if callbacks else module_bytecode(module)
    reals = None if place is None else _reals(program.name, place.sharding)
    loaded = pjrt.compile_module(source, program.name, callbacks, quick, program.as_text, options, reals)
    _LOGGER.log(
        logging.WARNING if config.log_compiles else logging.DEBUG,
        "Compiled %s for %s in %.3f s",
        program.name, ", ".join(map(str, program.in_avals)) or "no arguments", time.perf_counter() - started,
    )  # fmt: skip
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
        bool(callbacks),
        None if place is None else place.in_shardings,
    )
