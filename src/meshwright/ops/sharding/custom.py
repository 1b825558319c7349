"""A function with user-defined partitioning: consistent layouts of operands and results, and the per-device function.

Propagation and the partitioner call the user's functions (:class:`Partitioning`); if nothing is split, the op is a call
of its jaxpr.

The interface follows ``jax.experimental.custom_partitioning``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Protocol

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import DifferentiationError, RuleError
from meshwright.ir.contract import ArrayLike
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn, all_eqns
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Cotangents, Dual, Tangent
from meshwright.ir.rewrite import in_jaxprs, replaced
from meshwright.ops.control.regions import OPERAND, OUTPUT, PARAMETER, RESULT, End, RegionOp, Tie
from meshwright.sharding import AbstractMesh, Mesh, NamedSharding
from meshwright.sharding.rule import ShardingRule, replicated_rule

AnyMesh = Mesh | AbstractMesh
#: types with their shardings
Placed = Sequence[tuple[ShapedArray, NamedSharding]]


#: the frontend attribute of its call in module text, which cannot contain Python functions
PARTITIONED_BY_USER = "meshwright.partitioned_by_user"


class Local(NamedTuple):
    """The per-device function, the shardings of its operands, and those of its results."""

    function: Callable[..., Sequence[Any]]
    ins: Sequence[NamedSharding]
    outs: Sequence[NamedSharding]


class Partitioning(Protocol):
    """The user-defined partitioning of a function, on flat values; all shardings are over the given mesh."""

    def inferred(self, mesh: AnyMesh, ins: Placed, outs: Sequence[ShapedArray]) -> Sequence[NamedSharding] | None:
        """The shardings of the results for operands with these shardings; None: unknown."""
        ...

    def suggested(self, mesh: AnyMesh, outs: Placed) -> Sequence[NamedSharding]:
        """The preferred shardings of results whose users want the given ones."""
        ...

    def local(self, mesh: AnyMesh, ins: Placed, outs: Placed) -> Local:
        """The per-device function for these shardings of operands and results; it may return other shardings."""
        ...


@dataclass(frozen=True)
class CustomPartitioning(RegionOp):
    """``jaxpr`` with user-defined partitioning. The last ``num_consts`` operands are values that it closes over, which
    are not passed to the user's functions. ``rule``, if there is one, is all that propagation needs."""

    fun_name: str
    jaxpr: ClosedJaxpr
    partitioning: Partitioning
    rule: ShardingRule | None = None
    num_consts: int = 0
    #: the mesh of the program, once it is known
    mesh: AnyMesh | None = None
    name: ClassVar[str] = "custom_partitioning"
    hidden_params: ClassVar[tuple[str, ...]] = ("partitioning", "num_consts", "mesh")
    kept_whole: ClassVar[bool] = True
    is_manual: ClassVar[bool] = True

    @property
    def params(self) -> dict[str, Any]:
        return {"name": self.fun_name, "jaxpr": self.jaxpr, "rule": self.rule}

    def sharding_rule(self, *avals: ShapedArray) -> ShardingRule:
        shapes = [a.shape for a in avals]
        if self.rule is None:
            return replicated_rule(shapes, [a.shape for a in self.jaxpr.out_avals])
        consts = (((),) * len(s) for s in shapes[len(shapes) - self.num_consts :])
        return replace(self.rule, operands=(*self.rule.operands, *consts))

    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        return tuple(self.jaxpr.out_avals)

    def body(self) -> ClosedJaxpr | None:
        return self.jaxpr

    def regions(self) -> tuple[ClosedJaxpr, ...]:
        return (self.jaxpr,)

    def with_regions(self, regions: Sequence[ClosedJaxpr]) -> CustomPartitioning:
        return replace(self, jaxpr=regions[0])

    def ties(self) -> Iterator[Tie]:
        for side, inside, count in (
            (OPERAND, PARAMETER, len(self.jaxpr.in_avals)),
            (OUTPUT, RESULT, len(self.jaxpr.out_avals)),
        ):
            yield from ((End(side, i), End(inside, i)) for i in range(count))

    def emit(self, b: Builder, *operands: Any) -> Any:
        return b.call(self.fun_name, self.jaxpr, operands, PARTITIONED_BY_USER)

    def jvp_call(self, t: Any, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        raise DifferentiationError(
            f"custom_partitioning {self.fun_name}: how its derivative is partitioned is not known; give it one with "
            "custom_vjp or custom_jvp around it, whose rules may call custom_partitioning functions"
        )

    def batch_call(self, t: Any, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> BatchedResults:
        raise RuleError(
            f"custom_partitioning {self.fun_name}: how it is partitioned with a dimension more is not known; put vmap "
            "inside of it, or custom_vmap around it"
        )

    def partial_eval_call(self, t: Any, known: Sequence[bool], args: Sequence[Any], tape: Any) -> Any:
        return tape.record(self, args)

    def transpose_call(self, t: Any, cts: Sequence[Any], *args: Any) -> Cotangents:
        raise DifferentiationError(
            f"custom_partitioning {self.fun_name}: it need not be linear; give it a derivative with custom_vjp"
        )


def on_mesh(jaxpr: ClosedJaxpr, mesh: AnyMesh) -> ClosedJaxpr:
    """Set the program's mesh in the functions with user-defined partitioning."""
    if not any(isinstance(e.op, CustomPartitioning) for e in all_eqns(jaxpr.jaxpr)):
        return jaxpr

    def told(eqn: JaxprEqn) -> JaxprEqn:
        if isinstance(eqn.op, CustomPartitioning):
            return eqn.replace(op=replace(eqn.op, mesh=mesh))
        return in_jaxprs(eqn, lambda inner: on_mesh(inner, mesh))

    return replaced(jaxpr, told)
