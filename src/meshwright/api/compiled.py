"""``Compiled``: a program ready to run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

from meshwright.api.calls import Taken
from meshwright.api.stage import Stage
from meshwright.core import pytree
from meshwright.ir.program import Program
from meshwright.runtime.array import default_sharding
from meshwright.runtime.eager import check_finite
from meshwright.runtime.executable import Executable
from meshwright.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding


class Compilable(Protocol):
    """The stage that a compiled program is made of."""

    program: Program

    def compile(self) -> Compiled: ...


def single_device(program: Program) -> SingleDeviceSharding:
    """Where a program runs that has no mesh."""
    return default_sharding() if program.place is None else SingleDeviceSharding(program.place)


class Compiled(Stage):
    """A program ready to run; call it with arguments of the types it was made for."""

    def __init__(self, stage: Compilable, executable: Executable, in_shardings: Sequence[Sharding]) -> None:
        self.stage = stage
        self.program = stage.program
        self.executable = executable
        self._in_shardings = in_shardings

    def __reduce__(self) -> Any:
        # What is compiled is of this process: another one compiles again.
        return _compiled, (self.stage,)

    def __deepcopy__(self, memo: Any) -> Compiled:
        return self

    @cached_property
    def _taken(self) -> Taken:
        program = self.program
        place: Sharding | None = None  # what takes arrays in any tree takes them from anywhere
        if program.mesh is not None:
            place = NamedSharding(program.mesh, PartitionSpec())
        elif program.in_tree is not None:
            place = single_device(program)
        return Taken(program, "compiled", [a.sharding for a in program.arguments], place)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        program = self.program
        with program.precision():
            outs = self.executable(self._taken.leaves(args, kwargs))
        check_finite(program.name, outs)
        return pytree.unflatten(program.out_tree, outs)

    def as_text(self) -> str:
        """The optimized HLO that XLA runs."""
        return self.executable.loaded.get_hlo_text()

    def memory_analysis(self) -> Any:
        """XLA's memory statistics of the program (bytes of arguments, outputs, temporaries)."""
        return self.executable.loaded.get_compiled_memory_stats()

    def cost_analysis(self) -> dict[str, float]:
        """XLA's cost estimates, by name (``"flops"``, ``"bytes accessed"``)."""
        return self.executable.loaded.cost_analysis()

    @property
    def input_shardings(self) -> Any:
        return pytree.unflatten(self.in_tree, self._in_shardings)

    @property
    def output_shardings(self) -> Any:
        return pytree.unflatten(self.program.out_tree, self.executable.out_shardings)

    def __repr__(self) -> str:
        return f"Compiled({self.program.name!r})"


def _compiled(stage: Compilable) -> Compiled:
    return stage.compile()
