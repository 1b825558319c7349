"""Ops that compute nothing: names for rematerialization policies, and a barrier against optimizations across it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from meshwright.core import pytree
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.contract import ArrayLike, Emitted
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Cotangents, Dual, Linear, Op, Tangent, Zero
from meshwright.ir.reading import Reader, reads
from meshwright.ops.control.regions import merge, omit, pick
from meshwright.ops.shape.rearrange import Unchanged
from meshwright.sharding.rule import ShardingRule, make_rule


@dataclass(frozen=True)
class Named(Unchanged):
    """The operand, under a name that policies of ``checkpoint`` refer to."""

    label: str
    name: ClassVar[str] = "name"
    takes_keys: ClassVar[bool] = True

    @property
    def params(self) -> dict[str, Any]:
        return {"name": self.label}

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        return self.bind(*primals), tangents[0]

    def transpose(self, ct: Any, x: Any) -> Cotangents:
        return [ct]

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        return self.bind(*args), dims[0]


@dataclass(frozen=True)
class OptimizationBarrier(Op):
    """The operands, all computed before any of the results is used; the compiler does not optimize across it."""

    name: ClassVar[str] = "optimization_barrier"
    is_view: ClassVar[bool] = True
    takes_keys: ClassVar[bool] = True
    computes: ClassVar[bool] = False
    multiple_results: ClassVar[bool] = True

    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        return avals

    def typed(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        return avals

    def aligned(self, args: Sequence[Any]) -> tuple[Op, Sequence[Any]]:
        return self, args

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        return self.bind(*primals), self._of_some(tangents)

    def transpose(self, cts: Sequence[Any], *args: Any) -> Cotangents:
        linear = [isinstance(x, Linear) for x in args]
        return merge(linear, self._of_some(pick(cts, linear)), [None] * len(args))

    def _of_some(self, values: Sequence[Any]) -> list[Any]:
        """Apply the barrier only to nonzero values: a materialized zero might be multiplied by infinities."""
        nonzero = [not isinstance(v, Zero) for v in values]
        return merge(nonzero, optimization_barrier(pick(values, nonzero)), omit(values, nonzero))

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        return self.bind(*args), list(dims)

    def sharding_rule(self, *avals: ShapedArray) -> ShardingRule:
        names = [[f"x{i}d{d}" for d in range(a.ndim)] for i, a in enumerate(avals)]
        sizes = {n: s for ns, a in zip(names, avals) for n, s in zip(ns, a.shape)}
        return make_rule(names, names, sizes)

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        return b.op("stablehlo.optimization_barrier", operands, b.out_avals)


def optimization_barrier(values: Sequence[Any]) -> list[Any]:
    """``values`` behind a barrier."""
    return OptimizationBarrier().bind(*values) if values else []


@reads("stablehlo.optimization_barrier")
def _read_barrier(r: Reader) -> list[Any]:
    values, tree = pytree.flatten(list(r.operands))  # tokens are not values
    outs: list[Any] = pytree.unflatten(tree, optimization_barrier(values))
    return outs
