"""with_sharding_constraint: an identity that fixes how its value lies on the mesh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from meshwright.core.avals import ShapedArray
from meshwright.ir.op import BatchAxis, Builder
from meshwright.ops.shape import Linear1
from meshwright.sharding import UNCONSTRAINED, NamedSharding, PartitionSpec
from meshwright.sharding import named_to_hlo
from meshwright.sharding.rule import ShardingRule, pointwise_rule


@dataclass(frozen=True)
class ShardingConstraint(Linear1):
    """The operand, laid out as ``sharding`` says; ``UNCONSTRAINED`` dimensions are left to the partitioner."""

    sharding: NamedSharding
    name: ClassVar[str] = "sharding_constraint"
    moves_only: ClassVar[bool] = True

    def infer(self, x: ShapedArray) -> ShapedArray:
        self.sharding.check_compatible(x.shape, "with_sharding_constraint")
        return x

    def transpose(self, ct: Any, x: Any) -> Sequence[Any]:
        return [self.bind(ct)]

    def batch(self, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        (x,), (dim,) = args, dims
        entries = list(self.sharding.spec)
        entries += [None] * max(0, dim - len(entries))  # type: ignore[operator]
        entries.insert(dim, UNCONSTRAINED)  # type: ignore[arg-type]
        return ShardingConstraint(NamedSharding(self.sharding.mesh, PartitionSpec(*entries))).bind(x), dim

    def sharding_rule(self, x: ShapedArray) -> ShardingRule:
        return pointwise_rule([x.ndim], x.shape)

    def emit(self, b: Builder, x: Any) -> Any:
        text = str(named_to_hlo(self.sharding, b.in_avals[0].ndim))
        return b.op(
            "stablehlo.custom_call", [x], b.out_avals, call_target_name='"Sharding"',
            **{"mhlo.sharding": f'"{text}"'},
        )[0]  # fmt: skip
