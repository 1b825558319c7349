"""The result of partitioning: the per-device program, the layouts of its inputs and outputs, and diagnostics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field

from meshwright.core.config import config
from meshwright.core.records import dataclass
from meshwright.core.source import SourceLocation
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn, Var
from meshwright.sharding import AbstractMesh, Layout
from meshwright.sharding.rule import ShardingRule
from meshwright.spmd.partition.question import Question
from meshwright.spmd.passes.pipeline import Change
from meshwright.spmd.propagate import Propagation
from meshwright.spmd.strategy import Strategy


@dataclass(frozen=True)
class Replicated:
    """An operand that is gathered along a dimension because its op cannot work on parts of that dimension."""

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


def gathered_dims(before: Layout, after: Layout) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The dimensions that are split before a reshard and whole after it, and their axes, if not all split others."""
    for dim, (had, has) in enumerate(zip(before.dims, after.dims)):
        if had and not has and not set(had) <= set(after.split_axes):
            yield dim, had


#: an equation with its rule, the layout that its result was computed in, and the one that it should get
Placed = tuple[JaxprEqn, ShardingRule, Layout, Layout]


@dataclass
class Diagnostics:
    """What is noted while a program and its regions are partitioned; for each field, see :class:`Partition`."""

    replicated: list[Replicated] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    placed: list[Placed] = field(default_factory=list)
    stands_for: dict[Var, tuple[Var, Layout]] = field(default_factory=dict)
    stacks_sums: bool = False


@dataclass(frozen=True)
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
    #: for per-device values, the value of the source that they hold a tile of, and its layout
    stands_for: dict[Var, tuple[Var, Layout]] = field(default_factory=dict)
    #: the questions asked of ``choose`` that another strategy may answer otherwise, including those in regions
    questions: list[Question] = field(default_factory=list)
    #: for products, the layout that the result was computed in, and the one that propagation found
    placed: list[Placed] = field(default_factory=list)
    #: loops stack sums over devices, of which each device needs only a part
    stacks_sums: bool = False
    #: the layouts of inputs and outputs that were asked for
    asked: tuple[Sequence[Layout | None], Sequence[Layout | None]] = ((), ())
    #: the choices that annotations leave open
    strategy: Strategy = field(default_factory=Strategy)
    #: sums over devices are computed in a fixed order, whatever the backend
    sums_in_order: bool = field(default_factory=lambda: config.reproducible_sums)

    @property
    def described_strategy(self) -> list[str]:
        """Lines that describe the non-default parts of the strategy, and the order of sums if it is fixed."""
        lines = self.strategy.describe(self.mesh)
        if self.sums_in_order:
            lines.append(
                "sums over devices are made in the order of the mesh (reproducible_sums): where they run, terms are "
                "exchanged and the sums gathered, which sends what an all-reduce does, or small terms are gathered"
            )
        return lines
