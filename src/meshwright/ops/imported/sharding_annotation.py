"""sharding_annotation: a sharding of an imported program, before a mesh has been chosen.

A GSPMD tile assignment names devices, not axes; the mesh is chosen when the program is partitioned. Annotations then
become :class:`meshwright.ops.sharding.constraint.ShardingConstraint`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.core.words import counted
from meshwright.errors import ShardingError
from meshwright.ir.contract import ArrayLike, Emitted
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Cotangents
from meshwright.ir.rewrite import replaced_in_all
from meshwright.ops.shape.rearrange import Linear1
from meshwright.sharding import HloSharding
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
        return b.annotations.constraint(x, self.sharding, self.unspecified)


def with_annotations(jaxpr: ClosedJaxpr, change: Callable[[Annotation], Annotation]) -> ClosedJaxpr:
    """``jaxpr`` with other annotations, also in what it calls and in its regions."""

    def rule(eqn: JaxprEqn) -> list[JaxprEqn]:
        op = eqn.op
        return [eqn.replace(op=replace(op, sharding=change(op.sharding)))] if isinstance(op, ShardingAnnotation) else []

    return replaced_in_all(jaxpr, lambda _: rule)
