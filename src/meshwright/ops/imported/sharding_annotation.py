"""sharding_annotation: a sharding of an imported program, before a mesh has been chosen.

A GSPMD tile assignment names devices, not axes; the mesh is chosen when the program is partitioned. Annotations then
become :class:`meshwright.ops.sharding.constraint.ShardingConstraint`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.core.words import counted
from meshwright.errors import ShardingError
from meshwright.ir.contract import ArrayLike, Emitted
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Cotangents
from meshwright.ops.shape.rearrange import Linear1
from meshwright.sharding import HloSharding, NamedSharding, named_to_hlo
from meshwright.sharding.hlo_convert import sdy_to_hlo
from meshwright.sharding.rule import ShardingRule, pointwise_rule
from meshwright.sharding.sdy import SdySharding

Annotation = HloSharding | SdySharding


def annotated_rank(sharding: Annotation) -> int | None:
    """The rank of values that a sharding describes; None if it fits any."""
    return sharding.rank if isinstance(sharding, HloSharding) else len(sharding.dimensions)


@dataclass(frozen=True)
class ShardingAnnotation(Linear1):
    """The operand, annotated with ``sharding``; the partitioner may choose the ``unspecified`` dimensions."""

    sharding: Annotation
    unspecified: tuple[int, ...] = ()
    name: ClassVar[str] = "sharding_annotation"
    moves_only: ClassVar[bool] = True

    def infer(self, x: ShapedArray) -> ShapedArray:
        rank = annotated_rank(self.sharding)
        if rank is not None and rank != x.ndim:
            raise ShardingError(f"sharding {self.sharding} is for {counted(rank, 'dimension')}, the value is {x}")
        return x

    def transpose(self, ct: Any, x: Any) -> Cotangents:
        return [self.bind(ct)]

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        # Without a mesh, it is unknown how a sharding extends to an additional dimension.
        return args[0], dims[0]

    def sharding_rule(self, x: ShapedArray) -> ShardingRule:
        return pointwise_rule([x.ndim], x.shape)

    def emit(self, b: Builder, x: Emitted) -> Emitted | Sequence[Emitted]:
        free = list(self.unspecified)
        if isinstance(self.sharding, SdySharding):
            free = [d for d, dimension in enumerate(self.sharding.dimensions) if not dimension.is_closed]
        attributes: dict[str, Any] = {"backend_config": f'"unspecified_dims={free}"'} if free else {}
        attributes["mhlo.sharding"] = f'"{annotation_text(self.sharding, b.in_avals[0].ndim)}"'
        return b.op("stablehlo.custom_call", [x], b.out_avals, call_target_name='"Sharding"', **attributes)[0]


def annotation_text(sharding: Annotation, ndim: int) -> str:
    """A sharding in GSPMD's notation."""
    if isinstance(sharding, HloSharding):
        return str(sharding)
    if sharding.device_ids:
        return str(sdy_to_hlo(sharding))
    return str(named_to_hlo(NamedSharding(sharding.mesh, sharding.spec()), ndim))
