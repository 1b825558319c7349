"""Loaded programs, which take and return arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any, ClassVar, NoReturn

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.core.key_types import is_key
from meshwright.core.records import dataclass
from meshwright.errors import ArgumentError, ConcretizationTypeError
from meshwright.ir.tracing import Tracer
from meshwright.runtime import live_programs
from meshwright.runtime.array import Array
from meshwright.runtime.pjrt.buffers import execute, runner
from meshwright.runtime.transfers import level_of
from meshwright.runtime.values import buffer_at, buffer_of, check_move
from meshwright.sharding import Sharding


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
        live_programs.note(self)

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
        outs = execute(self.loaded, operands, self.waits)
        if not self.waits:
            types = [_in_memory(a) for i, a in enumerate(self.out_avals) if i not in self.forwarded]
            self.runner = runner(self.loaded, types)
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
