"""What is kept of jitted functions: programs that are ready to run, and traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright.core.caches import on_clear
from meshwright.core.identity import CachesOfFunctions
from meshwright.core.records import dataclass
from meshwright.core.weak import WeakKeys
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.runtime.array import Array
from meshwright.runtime.executable import Executable


@dataclass(frozen=True)
class Ready:
    """A compiled program, and what makes the output of its results."""

    executable: Executable
    unflatten: Callable[[list[Any]], Any]
    #: the numbers of the arguments that it uses; None: all
    kept: tuple[int, ...] | None = None

    def results(self, leaves: Sequence[Any]) -> list[Any]:
        executable = self.executable
        if self.kept is not None:
            leaves = [leaves[i] for i in self.kept]
        return executable(leaves) if executable.donated else executable.run(executable.take(leaves))

    def run(self, leaves: Sequence[Any]) -> Any:
        return self.unflatten(self.results(leaves))

    def direct(self) -> Callable[[Sequence[Array]], Any]:
        """:meth:`run` for arguments that are arrays, of a program that has run: in fewer steps, where it can be."""
        run, unflatten = self.executable.direct(), self.unflatten
        if run is None or self.kept is not None:
            return self.run
        return lambda arrays: unflatten(run(arrays))


class Caches:
    """What is kept of a jitted function; all that jit the same function in the same way have it in common."""

    _all: WeakKeys[Caches, None] = WeakKeys()

    def __init__(self) -> None:
        self.programs: dict[Any, Ready] = {}
        #: what runs them on positional arrays, which are their own leaves
        self.direct: dict[Any, Callable[[Sequence[Array]], Any]] = {}
        self.traces: dict[Any, tuple[ClosedJaxpr, Any]] = {}
        #: traces with the function's shardings as constraints, for calls inside other traces
        self.constrained: dict[ClosedJaxpr, ClosedJaxpr] = {}
        self._all[self] = None

    def clear(self) -> None:
        self.programs.clear()
        self.direct.clear()
        self.traces.clear()
        self.constrained.clear()

    @classmethod
    def clear_all(cls) -> None:
        for caches in cls._all:
            caches.clear()


CACHES: CachesOfFunctions[Caches] = CachesOfFunctions(Caches)
on_clear(Caches.clear_all)
