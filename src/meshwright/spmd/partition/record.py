"""What partitioning gives: the per-device program, the layouts at its ends, and what is to be said about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from meshwright.core.config import config
from meshwright.core.records import dataclass
from meshwright.core.source import SourceLocation
from meshwright.ir.jaxpr import ClosedJaxpr, Var
from meshwright.sharding import AbstractMesh, Layout
from meshwright.spmd.partition.choose import Question
from meshwright.spmd.passes.pipeline import Change
from meshwright.spmd.propagate import Propagation
from meshwright.spmd.strategy import Strategy


@dataclass(frozen=True)
class Replicated:
    """An operand that is gathered along a dimension which its op cannot have in parts."""

    op: str
    source: SourceLocation
    operand: int
    dim: int
    axes: tuple[str, ...]
    why: str = "the op cannot work on parts of that dimension"

    def __str__(self) -> str:
        return (
            f"{self.op} at {self.source}: operand {self.operand} is gathered along dimension {self.dim} (was split by "
            f"{', '.join(self.axes)}); {self.why}"
        )


@dataclass
class Partition:
    """The per-device program and the layouts of its inputs and outputs."""

    jaxpr: ClosedJaxpr
    mesh: AbstractMesh
    in_layouts: list[Layout]
    out_layouts: list[Layout]
    source: ClosedJaxpr
    propagation: Propagation
    replicated: list[Replicated] = field(default_factory=list)
    #: what the communication passes changed
    changes: list[Change] = field(default_factory=list)
    #: what values on a device stand for: a value of the source, in a layout
    stands_for: dict[Var, tuple[Var, Layout]] = field(default_factory=dict)
    #: what was asked about its products, those of regions too
    products: list[Question] = field(default_factory=list)
    #: the layouts of inputs and outputs that were asked for
    asked: tuple[Sequence[Layout | None], Sequence[Layout | None]] = ((), ())
    #: what was chosen where annotations leave it open
    strategy: Strategy = field(default_factory=Strategy)
    #: sums over devices are made in one order, wherever it runs
    sums_in_order: bool = field(default_factory=lambda: config.reproducible_sums)

    @property
    def described_strategy(self) -> list[str]:
        """What of the strategy is not the default, and in which order sums over devices are made, in words."""
        lines = self.strategy.describe(self.mesh)
        if self.sums_in_order:
            lines.append(
                "sums over devices are made in the order of the mesh (reproducible_sums): where they run, terms are "
                "exchanged and the sums gathered, which sends what an all-reduce does, or small terms are gathered"
            )
        return lines
