"""Random programs, partitioned by us and by XLA: time, bytes, work and peak of both, by the same model.

``found_in(number)`` says where ours is worse. Both are counted as XLA compiles them (``compare.compiled_figures``), so
that what XLA simplifies is no difference. What is worse in one figure but takes less time by as much is a trade, and
meant.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from random_memory import drawn_programs

import meshwright as mw
from meshwright.api.compare import PartitionFigures, compiled_figures, xla_figures
from meshwright.errors import CompileError, MeshwrightWarning
from meshwright.ops.sharding.constraint import without_constraints
from meshwright.spmd.work import operations_of

MESHES = [((8,), ("x",)), ((4, 2), ("x", "y"))]
#: what sizes of the fuzz are multiplied with: most are then divided by all devices
SCALE = 32
#: which of the programs of a seed is taken: the first one is always the simplest there is
DRAWN = 2
#: how many times as large as XLA's a figure of ours may be
ALLOWED = 1.05
#: differences that no step notices: in seconds, bytes a device sends, operations it does, bytes it holds
NOTICED = {"time": 1e-7, "bytes": 1 << 10, "work": 1e5, "peak": 1 << 14}


@dataclass(frozen=True)
class Compared:
    """The figures of both partitions of one program; time and work only where what XLA made can be read."""

    program: str
    ours: Mapping[str, float]
    theirs: Mapping[str, float]
    note: str = ""

    def worse(self) -> list[str]:
        """The figures in which ours is worse."""
        return [n for n in self.theirs if self._is_more(n)]

    def is_trade(self) -> bool:
        """Whether what is worse is paid for: the step is shorter by as much as any other figure is larger."""
        if "time" not in self.theirs or "time" in self.worse():
            return False
        return all(self.ratio(n) * self.ratio("time") <= 1 for n in self.worse())

    def ratio(self, name: str) -> float:
        """A figure of ours in terms of XLA's."""
        return (self.ours[name] + NOTICED[name]) / (self.theirs[name] + NOTICED[name])

    def _is_more(self, name: str) -> bool:
        mine, other = self.ours[name], self.theirs[name]
        return mine > ALLOWED * other and mine - other > NOTICED[name]

    def __str__(self) -> str:
        lines = [f"{n}: {self.ours[n]:.4g} of ours, {self.theirs[n]:.4g} of XLA's" for n in self.theirs]
        return "\n".join([", ".join(self.worse()), *lines, *filter(None, [self.note]), self.program])


def compared(lowered: Any, mesh: mw.AbstractMesh) -> Compared:
    """Both partitions of a program, from its text.

    Raises:
      CompileError: XLA refused it.
    """
    text = lowered.as_text("stablehlo")
    program = mw.load(text)
    theirs = xla_figures(text.encode(), program, mesh)
    ours = compiled_figures(program, mesh=mesh)
    share = operations_of(without_constraints(program.bound(mesh).jaxpr).jaxpr) / mesh.size
    mine, known = _figures(ours, share), _figures(theirs, share)
    return Compared(text, {n: v for n, v in mine.items() if n in known}, known, theirs.note or ours.note)


def _figures(figures: PartitionFigures, share: float) -> dict[str, float]:
    """Figures by name; ``share`` are the operations of a device where nothing is done twice."""
    found = {"bytes": float(figures.bytes_sent), "peak": float(figures.memory_bytes)}
    if figures.redundancy is not None and figures.run_seconds is not None:
        found |= {"time": figures.run_seconds, "work": figures.redundancy * share}
    return found


def found_in(number: int) -> str:
    """Where our partition of a program is worse than XLA's; "" if nowhere."""
    lowered, mesh, description = drawn_programs(number, SCALE, DRAWN, MESHES, free=False)[-1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MeshwrightWarning)
        try:
            found = compared(lowered, mesh)
        except CompileError as error:
            return f"[meant: XLA refuses it] {error}\n{description}"
    if not found.worse():
        return ""
    text = f"{description}\n{found}"
    return f"[meant: a trade] {text}" if found.is_trade() else text


if __name__ == "__main__":
    for each in map(int, sys.argv[1:]):
        print(each, found_in(each))
