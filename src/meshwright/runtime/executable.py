"""Compiled programs: arrays in, arrays out."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.core.config import config
from meshwright.errors import ArgumentError, ConcretizationTypeError
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.tracing import Tracer
from meshwright.lowering.lower import DeviceProgram, lower
from meshwright.runtime.array import Array, from_numpy
from meshwright.runtime.pjrt import client as pjrt
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
        buffers = [buffer_of(x) for x in args]
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


def as_array(x: Any) -> Array:
    """``x`` as an array; Python numbers are weakly typed."""
    if type(x) is Array:
        return x
    if isinstance(x, (int, float, complex)) and not isinstance(x, (bool, np.generic)):
        return from_numpy(np.asarray(x), weak_type=True)
    return from_numpy(x)


def compile_jaxpr(
    jaxpr: ClosedJaxpr, name: str, out_shardings: Sequence[Sharding], out_committed: bool = False, quick: bool = False
) -> Executable:
    """Compile a program for one device, as :func:`compile_program`."""
    return compile_program(lower(jaxpr, name), Results(jaxpr.out_avals, out_shardings, out_committed), quick)


def compile_program(
    program: DeviceProgram, results: Results, quick: bool = False, options: tuple[tuple[str, Any], ...] = ()
) -> Executable:
    """Compile the program of one device.

    ``quick`` asks for code that is made fast, rather than fast code. ``options`` are flags of XLA, by name, and their
    values.
    """
    started = time.perf_counter()
    module, callbacks = program.emitted
    source = module if callbacks else module_bytecode(module)
    loaded = pjrt.compile_module(source, program.name, callbacks, quick, program.as_text, options)
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
        [buffer_of(c) for c in constants],
        list(program.donated),
        constants,
        bool(callbacks),
    )
