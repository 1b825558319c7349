"""Manual regions of imported programs, before a mesh has been chosen.

Shardy has one operation with a region (``sdy.manual_computation``). GSPMD marks where values enter and leave a region
(``SPMDFullToShardShape``, ``SPMDShardToFullShape``); the operations between are collected into a region when the
program is read. Either becomes :class:`meshwright.ops.sharding.manual.ShardMap` when the program is partitioned.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import ShapeError
from meshwright.ir.contract import Emitted
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.op import Builder, Op
from meshwright.ops.control.regions import RegionOp
from meshwright.ops.imported.sharding_annotation import Annotation
from meshwright.sharding import HloSharding

#: the names of the manual axes, or the sharding of a value of the region, whose subgroup ``manual`` determines them
ManualAxes = tuple[str, ...] | HloSharding


@dataclass(frozen=True)
class ManualComputation(RegionOp):
    """``jaxpr`` on parts of the operands. Shardings are those of the whole operands and results; None: replicated."""

    in_shardings: tuple[Annotation | None, ...]
    jaxpr: ClosedJaxpr
    out_shardings: tuple[Annotation | None, ...]
    manual: ManualAxes
    results: tuple[ShapedArray, ...]
    name: ClassVar[str] = "manual_computation"
    hidden_params: ClassVar[tuple[str, ...]] = ("results",)

    @property
    def params(self) -> dict[str, Any]:
        shown = {n: _shown(getattr(self, n)) for n in ("in_shardings", "out_shardings")}
        return {**super().params, **shown}

    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        return self.results

    def regions(self) -> tuple[ClosedJaxpr, ...]:
        return (self.jaxpr,)

    def with_regions(self, regions: Sequence[ClosedJaxpr]) -> ManualComputation:
        return dataclasses.replace(self, jaxpr=regions[0])

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        region = ManualRegion(self.name, self.jaxpr, self.in_shardings, self.out_shardings, self.manual)
        return b.annotations.region(region, operands)


@dataclass(frozen=True)
class ManualRegion:
    """What a module says of a manual region. Shardings are those outside; None: replicated along manual axes."""

    name: str
    jaxpr: ClosedJaxpr
    ins: Sequence[Annotation | None]
    outs: Sequence[Annotation | None]
    manual: ManualAxes


def _shown(shardings: Sequence[Annotation | None]) -> str:
    return f"({', '.join('whole' if s is None else str(s) for s in shardings)})"


# --- the borders of a region --------------------------------------------------------------------------------
@dataclass(frozen=True)
class Border(Op):
    """Base class: a value enters or leaves a manual region.

    GSPMD gives the sharding after the border. Shardy in HLO text names the ``manual`` axes and gives the sharding of
    the whole value, None if there is none.
    """

    sharding: Annotation | None
    aval: ShapedArray
    unspecified: tuple[int, ...] = ()
    manual: tuple[str, ...] = ()
    of_operands: ClassVar[bool] = False
    #: whether the value enters the region; otherwise it leaves it
    enters: ClassVar[bool] = False

    def infer(self, x: ShapedArray) -> ShapedArray:
        if x.ndim != self.aval.ndim or x.dtype != self.aval.dtype:
            raise ShapeError(f"{self.name}: the operand is {x}, the result {self.aval}; expected another size alone")
        return self.aval


@dataclass(frozen=True)
class FullToShard(Border):
    """The part of a value at one position along the manual axes."""

    name: ClassVar[str] = "full_to_shard"
    enters: ClassVar[bool] = True


@dataclass(frozen=True)
class ShardToFull(Border):
    """The value assembled from its parts."""

    name: ClassVar[str] = "shard_to_full"
