"""Programs on several real devices of one or more processes.

Each real device runs the per-device program, batched over the virtual axes of the mesh. Along real axes, XLA executes
the collectives: in memory between devices of one process, and over its network layer between processes. The module has
one replica per real device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from functools import cache, partial
from typing import Any, ClassVar

from meshwright.core.avals import ShapedArray
from meshwright.core.config import config
from meshwright.core.dtypes import as_dtype
from meshwright.core.records import dataclass
from meshwright.lowering.lower import DeviceProgram
from meshwright.runtime.array import Array
from meshwright.runtime.compiling import Place
from meshwright.runtime.executable import Executable, Results
from meshwright.runtime.host_calls import Failures, deferring, refuse_inside
from meshwright.runtime.parts import Parts, Spread, spread_of
from meshwright.runtime.pjrt.buffers import execute_on_all, runner
from meshwright.runtime.pjrt.compiler import Flags
from meshwright.runtime.pjrt.deadlines import limited
from meshwright.runtime.pjrt.platforms import is_plugin
from meshwright.runtime.pjrt.world import ranks_of
from meshwright.runtime.processes.agreement import agree
from meshwright.runtime.processes.heartbeats import note_run
from meshwright.runtime.warm import Known
from meshwright.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, Sharding


def needs_spread(mesh: Mesh | AbstractMesh) -> bool:
    """Whether the mesh has devices on more than one real device, or in other processes."""
    return isinstance(mesh, Mesh) and not spread_of(NamedSharding(mesh, PartitionSpec())).is_one


@dataclass(eq=False)
class SpreadExecutable(Executable):
    """A program on several real devices of one or more processes. Arrays have one buffer per real device."""

    spread: Spread = field(default_factory=lambda: Spread((), ()))
    #: returns the lowered program; if it came from the disk cache, it is lowered on demand
    lowered: Callable[[], DeviceProgram] | None = field(default=None, repr=False)
    #: the types of the operands on each device
    local_avals: Sequence[ShapedArray] = field(default=(), repr=False)
    #: the errors of its Python callbacks; None if it has none
    failures: Failures | None = None
    started: bool = False
    connected: bool = False
    #: the participating processes; empty if this is the only one
    ranks: tuple[int, ...] = ()
    is_virtual: ClassVar[bool] = False

    def run(self, buffers: list[Any]) -> list[Array]:
        refuse_inside(self.name, self.spread.reals)
        if self.ranks:
            self._note_run()
        return super().run(buffers)

    def direct(self) -> Callable[[Sequence[Array]], list[Array]] | None:
        if self.constants or self.donated or self.forwarded or self.ranks or self.runner is None:
            return None
        runner, wanted = self.runner, self.in_shardings or ()
        avals, shardings, committed = self.out_avals, self.out_shardings, self.out_committed

        def run(arrays: Sequence[Array]) -> list[Array]:
            refuse_inside(self.name, self.spread.reals)
            operands = [x._buffer.operand for x, s in zip(arrays, wanted) if x.sharding == s and x._buffer is not None]
            if len(operands) < len(arrays) or any(o is None for o in operands):  # to be joined, moved, or refused
                return self.run(self.take(arrays))
            outs = runner(operands)
            return [Array(a, Parts(None, b, self), s, committed) for a, b, s in zip(avals, outs, shardings)]

        return run

    def _computed(self, buffers: list[Any]) -> list[Any]:
        spread = self.spread
        operands = [*self.constants, *(b.joined(spread, a.shape, a.dtype) for b, a in zip(buffers, self.local_avals))]
        if self.runner is not None:
            return [Parts(None, joined, self) for joined in self.runner(operands)]
        outs = self._executed(operands)
        if not self.waits:
            self.runner = runner(self.loaded, [(b[0].shape, b[0].dtype) for b in outs], self)
        return [Parts(b, maker=self) for b in outs]

    def _executed(self, arrays: list[Any]) -> list[list[Any]]:
        """The buffers of the results, for each result.

        In the first run processes connect to each other. XLA's timeout for that is fixed at 30 s, so this run is
        awaited here under our own.
        """
        first = bool(self.ranks) and not self.connected
        run = partial(execute_on_all, self.loaded, arrays, self.waits or first, self)
        if first:
            run = partial(limited, run, "the first run is not done", self)
        if self.failures is not None:
            run = partial(self.failures.run, run, self.name, self.ranks)
        outs = run()
        self.connected = True
        return outs

    def _note_run(self) -> None:
        """Before the first run, check that all processes are about to run the same program."""
        if not self.started and self.lowered is not None:
            agree(self.name, self.lowered, self.ranks)
            self.started = True
        note_run(self.name)


def compile_spread(
    source: tuple[Any, ...], lowered: Callable[[], DeviceProgram], results: Results, mesh: Mesh,
    in_shardings: Sequence[Sharding], flags: Flags = (),
) -> SpreadExecutable:  # fmt: skip
    """Compile ``lowered()``, the program of the real devices of ``mesh``.

    ``source`` is a tuple of everything that determines the program, starting with its name. If all processes find the
    executable for it in the disk cache, the program is neither lowered nor compiled.

    Raises:
      CompileError: XLA rejected the program.
    """
    name, place = source[0], Place(NamedSharding(mesh, PartitionSpec()), in_shardings)
    ranks = ranks_of(place.sharding.devices)
    # Processes that compile together wait for each other, so they must agree on the program before that.
    together = config.compilation_cache_dir is not None or is_plugin()
    lowered, shares = cache(lowered), len(ranks) > 1 and together
    known = Known.of(source, flags, place)
    found = known.recalled(results)
    if shares and not agree(name, lowered, ranks, known.title, found is not None):
        found = None  # one process compiles it for all of them
    base, facts, failures = (*found, None) if found else _compiled(lowered(), results, known)
    return SpreadExecutable(
        **vars(base), spread=spread_of(place.sharding), lowered=lowered, failures=failures, started=shares,
        local_avals=[ShapedArray(tuple(shape), as_dtype(dtype)) for shape, dtype in facts["types"]],
        ranks=ranks if len(ranks) > 1 else (),
    )  # fmt: skip


def _compiled(
    program: DeviceProgram, results: Results, known: Known
) -> tuple[Executable, dict[str, Any], Failures | None]:
    """The executable of a lowered program, the facts noted about it, and the record of its callbacks' errors."""
    assert known.place is not None
    program, failures = deferring(program, spread_of(known.place.sharding).reals)
    executable = known.compiled(program, results)
    facts = {"types": [(a.shape, a.dtype.name) for a in program.in_avals]}
    known.remember(executable, program, **facts)
    return executable, facts, failures
