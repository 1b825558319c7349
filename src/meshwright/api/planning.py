"""Choosing the shardings of a program's unconstrained arguments, for a mesh or for a machine."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from meshwright.api.partitioned import PartitionedProgram
from meshwright.api.partitioning import partition_program, program_on_platform
from meshwright.api.shardings import placed
from meshwright.core import pytree
from meshwright.core.avals import ShapedArray
from meshwright.core.printed import Printed
from meshwright.core.records import dataclass
from meshwright.errors import MeshError
from meshwright.hardware.machine import Machine
from meshwright.ir.program import Program
from meshwright.sharding import AbstractMesh, AnyMesh, Mesh, NamedSharding, get_mesh
from meshwright.spmd.plan.search import Layouts, Request, SearchResult, search
from meshwright.spmd.report import human_bytes
from meshwright.spmd.steptime.report import Time, human_seconds
from meshwright.transforms.keys import on_words

#: axis names of meshes made for a machine
AXES = ("data", "model")
#: number of arrays listed in a printed plan
_SHOWN = 24


@dataclass(frozen=True)
class Chosen:
    """The program with chosen shardings, and the search that found them."""

    program: Program
    outcome: SearchResult
    seconds: float


def choose_shardings(
    program: Program,
    meshes: Sequence[AnyMesh],
    memory_limit: float | None,
    auto: Sequence[int] | None = None,
    seconds: float = math.inf,
) -> Chosen:
    """Choose the best of ``meshes``, and shardings for unconstrained arguments (those in ``auto``, if given) and
    results.

    Raises:
      MemoryLimitError: no design fits.
    """
    start = time.perf_counter()
    concrete = {mesh.abstract_mesh: mesh for mesh in meshes}
    program, _ = program_on_platform(program, meshes[0])
    with program.precision():
        jaxpr = on_words(program.jaxpr)

        def layouts(shardings: Sequence[Any], avals: Sequence[ShapedArray], mesh: AbstractMesh) -> Layouts:
            named = (NamedSharding(mesh, s.spec) if isinstance(s, NamedSharding) else None for s in shardings)
            return [None if s is None else s.layout(a.ndim) for s, a in zip(named, avals)]

        request = Request(
            jaxpr,
            lambda mesh: layouts([a.sharding for a in program.arguments], jaxpr.in_avals, mesh),
            lambda mesh: layouts(program.out_shardings, jaxpr.out_avals, mesh),
            [mesh.abstract_mesh for mesh in meshes],
            memory_limit,
            program.donated,
            seconds,
            None if auto is None else frozenset(auto),
        )
        outcome = search(request)
    mesh = concrete[outcome.best.design.mesh]
    in_layouts, out_layouts = outcome.best.layouts

    def on(stated: Any, layout: Any, ndim: int) -> Any:
        if isinstance(stated, NamedSharding) and stated.mesh.abstract_mesh == mesh.abstract_mesh:
            return stated  # keep the user's spelling
        return None if layout is None else NamedSharding.from_layout(mesh, replace(layout, dims=layout.dims[:ndim]))

    arguments = tuple(
        replace(a, sharding=on(a.sharding, lo, a.aval.ndim)) for a, lo in zip(program.arguments, in_layouts)
    )
    results = tuple(on(s, lo, a.ndim) for s, lo, a in zip(program.out_shardings, out_layouts, program.out_avals))
    chosen = replace(program, arguments=arguments, out_shardings=results, place=mesh)
    return Chosen(chosen, outcome, time.perf_counter() - start)


def with_chosen(program: Program, auto: Sequence[int]) -> Program:
    """The program with chosen shardings for the arguments numbered ``auto``, on its mesh or the current one.

    Raises:
      MeshError: there is no mesh. MemoryLimitError: no design fits the mesh's machine.
    """
    mesh = placed(program).place or get_mesh()
    if not isinstance(mesh, (Mesh, AbstractMesh)):
        raise MeshError(
            f"{program.name}: in_shardings=AUTO needs a mesh; set one with set_mesh(mesh) or 'with mesh:', or use "
            "meshwright.plan(f, *args, machine=...), which chooses one too"
        )
    return choose_shardings(program, [mesh], memory_of(mesh), auto).program


def memory_of(mesh: AnyMesh) -> float | None:
    """Bytes of memory per device, if the mesh's machine is known."""
    fabric = mesh.abstract_mesh.fabric
    return fabric.machine.memory_bytes if fabric.is_given else None


def meshes_of(machine: Machine) -> list[AbstractMesh]:
    """Meshes with one or two axes that map well onto a machine."""
    n = machine.size
    shapes = [(n,)] + [(n // b, b) for b in range(2, n // 2 + 1) if n % b == 0]
    meshes = []
    for shape in shapes:
        try:
            meshes.append(AbstractMesh(shape, AXES[: len(shape)], machine=machine))
        except MeshError:
            continue  # the machine's links do not allow these axes
    return meshes


class Plan(Printed):
    """Shardings chosen for a function.

    ``in_shardings`` and ``out_shardings`` are in the form ``jit`` takes, in the trees of the positional arguments and
    the output; ``mesh`` is the mesh. It prints the choices and their cost.
    """

    def __init__(self, chosen: Chosen, memory_limit: float | None) -> None:
        self._chosen = chosen
        self.memory_limit = memory_limit

    @property
    def mesh(self) -> AnyMesh:
        """The mesh, with its axes and machine."""
        return self._chosen.program.place

    @property
    def in_shardings(self) -> tuple[Any, ...]:
        """One tree of shardings per positional argument."""
        args, _ = pytree.unflatten(self._chosen.program.in_tree, self.partition().in_shardings)
        return tuple(args)

    @property
    def out_shardings(self) -> Any:
        """Shardings in the tree of the output."""
        return pytree.unflatten(self._chosen.program.out_tree, self.partition().out_shardings)

    @cached_property
    def _part(self) -> PartitionedProgram:
        best, limit = self._chosen.outcome.best, self.memory_limit
        part = partition_program(self._chosen.program, strategy=best.part.strategy if best.ahead else None)
        if limit is not None and part.peak_bytes > limit:  # lookahead may have traded memory for time
            part = PartitionedProgram(self._chosen.program, best.part)
        return part

    def partition(self) -> PartitionedProgram:
        """The per-device program."""
        return self._part

    def time(self) -> Time:
        """The predicted time of a run on the machine."""
        return self.partition().time()

    @property
    def peak_bytes(self) -> int:
        """Predicted peak memory of one device."""
        return self.partition().peak_bytes

    def __str__(self) -> str:
        part, outcome = self.partition(), self._chosen.outcome
        axes = " × ".join(f"{name}={size}" for name, size in self.mesh.shape.items())
        limit = f" of {human_bytes(self.memory_limit)}" if self.memory_limit is not None else ""
        lines = [
            f"plan of {part.name} on mesh {axes}: {part.time().headline}",
            f"a device holds {human_bytes(part.peak_bytes)}{limit}, sends {human_bytes(part.bytes_sent)} and does "
            f"{part.work.redundancy:.2f} times its part of the arithmetic",
        ]
        sides = (("", part.names, part.in_avals, part.in_shardings),
                 ("result", [""] * len(part.out_avals), part.out_avals, part.out_shardings))  # fmt: skip
        for side, names, avals, shardings in sides:
            rows = [f"  {side}{name} {aval}: {s.spec}" for name, aval, s in zip(names, avals, shardings)]
            lines += rows[:_SHOWN] + ([f"  and {len(rows) - _SHOWN} more"] if len(rows) > _SHOWN else [])
        lines.append(f"{len(outcome.tried)} designs tried in {self._chosen.seconds:.1f} s")
        others = sorted((t for t in outcome.tried if t is not outcome.best), key=lambda t: t.seconds)[:3]
        for t in others:
            held = f", {human_bytes(t.memory.peak_bytes)} held" if t.memory is not None else ""
            lines.append(f"  another: {describe(t.design, outcome, part.names)}: {human_seconds(t.seconds)}{held}")
        return "\n".join([*lines, *(f"note: {note}" for note in part.time().notes)])

    def __repr__(self) -> str:
        return f"Plan({self.partition().name!r}, {self.mesh}, {human_seconds(self.time().seconds)} a run)"


def describe(design: Any, outcome: SearchResult, names: Sequence[str]) -> str:
    """A design as text: what each axis splits."""
    parts = []
    for axis, size, use in zip(design.mesh.axis_names, design.mesh.axis_sizes, design.uses):
        of = "nothing"
        if use.kind is not None:
            first = outcome.kinds[use.kind].divided_by(size)[0]
            result = first.value - len(names)
            of = f"dimension {first.dim} of {names[first.value] if result < 0 else f'result {result}'}"
        parts.append(f"{axis}={size} splits {of}{' and all the rest' if use.shards_rest else ''}")
    return ", ".join(parts)
