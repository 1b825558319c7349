"""``memory_put``: places a value in another memory of its devices, such as the host's.

XLA's CPU devices have one memory, so there nothing moves: types, shardings and reports only record the memory. For
other devices it becomes the annotation for XLA's host offloading (``annotate_device_placement``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.contract import Emitted
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn, Var
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Cotangents
from meshwright.ops.shape.rearrange import Linear1
from meshwright.sharding.rule import ShardingRule, pointwise_rule


@dataclass(frozen=True)
class MemoryPut(Linear1):
    """The operand in memory of a ``kind``; None is the device's own."""

    kind: str | None
    name: ClassVar[str] = "memory_put"
    takes_keys: ClassVar[bool] = True
    moves_only: ClassVar[bool] = True
    computes: ClassVar[bool] = False
    in_python: ClassVar[bool] = True

    def perform(self, x: Any) -> Any:
        """The same array, marked as being in that memory."""
        if not hasattr(x, "buffer"):
            return x
        return type(x)(x.aval, x.buffer, x.sharding.with_memory_kind(self.kind), x.committed)

    def infer(self, x: ShapedArray) -> ShapedArray:
        return x.update(memory=self.kind)

    def typed(self, x: ShapedArray) -> ShapedArray:
        return self.infer(x)

    def transpose(self, ct: Any, x: Any) -> Cotangents:
        return [MemoryPut(x.aval.memory).bind(ct)]

    def batch(self, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> BatchedResults:
        return self.bind(*args), dims[0]

    def sharding_rule(self, x: ShapedArray) -> ShardingRule:
        return pointwise_rule([x.ndim], x.shape)

    def emit(self, b: Builder, x: Emitted) -> Emitted | Sequence[Emitted]:
        if b.platform == "cpu":
            return x
        attributes: dict[str, Any] = {
            "mhlo.frontend_attributes": f'{{_xla_buffer_placement = "{self.kind or "device"}"}}'
        }
        placed = b.op(
            "stablehlo.custom_call", [x], b.out_avals, call_target_name='"annotate_device_placement"',
            has_side_effect=True, **attributes,
        )  # fmt: skip
        return placed[0]


def in_memories(jaxpr: ClosedJaxpr, shardings: Sequence[Any]) -> ClosedJaxpr:
    """``jaxpr`` with results in the memory that their shardings name, if any."""
    outs, eqns = list(jaxpr.jaxpr.outvars), []
    for i, (atom, sharding) in enumerate(zip(outs, shardings)):
        if sharding is not None and sharding.host_kind != atom.aval.memory:
            moved = outs[i] = Var(atom.aval.update(memory=sharding.host_kind))
            eqns.append(JaxprEqn(MemoryPut(sharding.host_kind), [atom], [moved]))
    return jaxpr.replace(jaxpr=jaxpr.jaxpr.replace(eqns=[*jaxpr.eqns, *eqns], outvars=outs)) if eqns else jaxpr
