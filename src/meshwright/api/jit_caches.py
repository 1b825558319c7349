"""The caches of jitted functions: programs that are ready to run, and traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright.api.updated_references import own_values
from meshwright.core.caches import on_clear
from meshwright.core.identity import CachesOfFunctions
from meshwright.core.records import dataclass
from meshwright.core.weak import WeakKeys
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.runtime.array import Array
from meshwright.runtime.executable import Executable
from meshwright.sharding import NamedSharding


@dataclass(frozen=True)
class Ready:
    """A compiled program, and a function that builds the output from its results."""

    executable: Executable
    unflatten: Callable[[list[Any]], Any]
    #: the numbers of the arguments that the program uses; None: all
    kept: tuple[int, ...] | None = None
    #: the sharding in which a program on a mesh takes each argument, None for unused ones; None: on one device
    takes: Sequence[Any] | None = None

    def serves(self, compiled_for: Sequence[Any], types: Sequence[Any]) -> bool:
        """Whether a program that was ``compiled_for`` some types of arguments can be run on arguments of ``types``.

        It can if they differ in arguments that lie where the program takes them, and that it was free to place: step
        counters and new parameters, which a training step returns on its mesh.
        """
        if self.takes is None:
            return False
        rows = zip(compiled_for, types, self.takes)
        return all(had is now or had == now or _is_placed(now, had, takes) for had, now, takes in rows)

    def results(self, leaves: Sequence[Any]) -> list[Any]:
        executable = self.executable
        if self.kept is not None:
            leaves = [leaves[i] for i in self.kept]
        if executable.donated:
            return executable(own_values(leaves, executable.donated))
        return executable.run(executable.take(leaves))

    def run(self, leaves: Sequence[Any]) -> Any:
        return self.unflatten(self.results(leaves))

    def direct(self) -> Callable[[Sequence[Array]], Any]:
        """A faster equivalent of :meth:`run` for arguments that are arrays, where possible, once the program has
        run."""
        run, unflatten = self.executable.direct(), self.unflatten
        if run is None or self.kept is not None:
            return self.run
        return lambda arrays: unflatten(run(arrays))


def _is_placed(now: Any, had: Any, takes: Any) -> bool:
    """Whether ``now``, a type and a sharding, has the type of an argument that lay anywhere, and lies in ``takes``."""
    if not isinstance(now, tuple) or now[0] is not had or not isinstance(takes, NamedSharding):
        return False
    sharding = now[1]
    return (
        isinstance(sharding, NamedSharding)
        and sharding.mesh == takes.mesh
        and sharding.is_equivalent_to(takes, had.ndim)
    )


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

    def serving(self, start: tuple[Any, ...], types: Sequence[Any]) -> Ready | None:
        """A program for arguments that lay anywhere, if those of these types lie where it takes them."""
        n = len(start)
        known = self.programs.copy()  # another thread may add to them
        return next((r for key, r in known.items() if key[:n] == start and r.serves(key[n:], types)), None)

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
