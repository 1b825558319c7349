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
from meshwright.ops.imported.sharding_annotation import Annotation, annotation_text
from meshwright.sharding import AbstractMesh, HloSharding, Layout, layout_to_hlo
from meshwright.sharding.sdy import SdySharding

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
        shardings = *self.in_shardings, *self.out_shardings
        mesh = next((s.mesh for s in shardings if isinstance(s, SdySharding)), None)
        whole, results = b.in_avals, b.out_avals
        params = [
            _cross(b, "SPMDFullToShardShape", x, aval, part, _text(s, aval.ndim), self._inner(part.ndim, mesh))
            for x, s, aval, part in zip(operands, self.in_shardings, whole, self.jaxpr.in_avals)
        ]
        outs = b.call("manual_computation", self.jaxpr, params)
        return [
            _cross(b, "SPMDShardToFullShape", y, part, aval, self._inner(part.ndim, mesh), _text(s, aval.ndim))
            for y, s, aval, part in zip(outs, self.out_shardings, results, self.jaxpr.out_avals)
        ]

    def _inner(self, ndim: int, mesh: AbstractMesh | None) -> str:
        """The sharding of a value in the region, which is replicated along axes that are not manual."""
        if isinstance(self.manual, tuple):
            if mesh is None:
                return "{manual}"
            return str(layout_to_hlo(Layout.replicated(ndim), mesh, mesh.expand(self.manual)))
        tiles = self.manual.tiles
        if tiles is None or "manual" not in self.manual.subgroups:
            return str(self.manual)
        rank = len(tiles.dims) - len(self.manual.subgroups)
        at = rank + self.manual.subgroups.index("manual")
        order = (at, *(d for d in range(len(tiles.dims)) if d != at))
        moved = tiles.transposed(order)
        size = moved.dims[0]
        dims = (*(1,) * ndim, size, moved.num_devices // size)
        return str(HloSharding.tiled(moved.reshaped(dims), ("manual", "replicated")))


def _shown(shardings: Sequence[Annotation | None]) -> str:
    return f"({', '.join('whole' if s is None else str(s) for s in shardings)})"


def _text(sharding: Annotation | None, ndim: int) -> str:
    return "{replicated}" if sharding is None else annotation_text(sharding, ndim)


def _cross(
    b: Builder, target: str, x: Emitted, before: ShapedArray, after: ShapedArray, was: str, becomes: str
) -> Emitted:
    """Emit ``x`` crossing the border of a region, with its sharding before and after; automatic axes may split it
    freely."""
    dims = list(range(before.ndim))
    free = {"backend_config": f'"unspecified_dims={dims}"'} if dims else {}

    def call(name: str, value: Emitted, aval: ShapedArray, text: str) -> Emitted:
        attributes: dict[str, Any] = {"mhlo.sharding": f'"{text}"', **free}
        return b.op("stablehlo.custom_call", [value], [aval], call_target_name=f'"{name}"', **attributes)[0]

    return call(target, call("Sharding", x, before, was), after, becomes)


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
