"""The caches of jitted functions: programs that are ready to run, and traces."""

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
    """A compiled program, and a function that builds the output from its results."""

    executable: Executable
    unflatten: Callable[[list[Any]], Any]
    #: the numbers of the arguments that the program uses; None: all
    kept: tuple[int, ...] | None = None

    def results(self, leaves: Sequence[Any]) -> list[Any]:
        executable = self.executable
        if self.kept is not None:
            leaves = [leaves[i] for i in self.kept]
        return executable(leaves) if executable.donated else executable.run(executable.take(leaves))

    def run(self, leaves: Sequence[Any]) -> Any:
        return self.unflatten(self.results(leaves))

    def direct(self) -> Callable[[Sequence[Array]], Any]:
        """A faster equivalent of :meth:`run` for arguments that are arrays, where possible, once the program has
        run."""
        run, unflatten = self.executable.direct(), self.unflatten
        if run is None or self.kept is not None:
            return self.run
        return lambda arrays: unflatten(run(arrays))


class Caches:
    """The caches of a jitted function, shared by all that jit the same function with the same options."""

    _all: WeakKeys[Caches, None] = WeakKeys()

    def __init__(self) -> None:
        self.programs: dict[Any, Ready] = {}
        #: fast paths for calls with positional arrays, which are their own leaves
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
