"""with_sharding_constraint: an identity that fixes how its value lies on the mesh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Literal, Var
from meshwright.ir.op import BatchAxis, Builder
from meshwright.ops.shape import Linear1
from meshwright.sharding import UNCONSTRAINED, NamedSharding, PartitionSpec, named_to_hlo
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
        entries.insert(dim, axis.spmd or UNCONSTRAINED)  # type: ignore[arg-type]
        return ShardingConstraint(NamedSharding(self.sharding.mesh, PartitionSpec(*entries))).bind(x), dim

    def sharding_rule(self, x: ShapedArray) -> ShardingRule:
        return pointwise_rule([x.ndim], x.shape)

    def emit(self, b: Builder, x: Any) -> Any:
        text = str(named_to_hlo(self.sharding, b.in_avals[0].ndim))
        return b.op(
            "stablehlo.custom_call", [x], b.out_avals, call_target_name='"Sharding"',
            **{"mhlo.sharding": f'"{text}"'},
        )[0]  # fmt: skip


def constrain(
    jaxpr: ClosedJaxpr, in_shardings: Sequence[Any] | None = None, out_shardings: Sequence[Any] | None = None
) -> ClosedJaxpr:
    """``jaxpr`` with constraints on its inputs and outputs, and on those of its constants that lie on a mesh.

    This is what the shardings of a jitted function mean where it is called by another.
    """
    inner = jaxpr.jaxpr
    wanted = list(zip(inner.constvars, map(_placed, jaxpr.consts)))
    wanted += zip(inner.invars, in_shardings or ())
    before: list[JaxprEqn] = []
    constrained = {var: _constrained(var, s, before) for var, s in wanted if isinstance(s, NamedSharding)}
    eqns = inner.eqns
    if constrained:
        eqns = [e.replace(invars=[_read(a, constrained) for a in e.invars]) for e in eqns]
    outs = [_read(a, constrained) for a in inner.outvars]
    after: list[JaxprEqn] = []
    for i, sharding in enumerate(out_shardings or ()):
        if isinstance(sharding, NamedSharding):
            outs[i] = _constrained(outs[i], sharding, after)
    if not before and not after:
        return jaxpr
    return jaxpr.replace(jaxpr=inner.replace(eqns=[*before, *eqns, *after], outvars=outs))


def _placed(value: Any) -> Any:
    """The sharding of a constant that the user placed."""
    return value.sharding if getattr(value, "committed", False) else None


def _read(atom: Atom, env: dict[Var, Var]) -> Atom:
    return atom if isinstance(atom, Literal) else env.get(atom, atom)


def _constrained(atom: Atom, sharding: NamedSharding, eqns: list[JaxprEqn]) -> Var:
    out = Var(atom.aval)
    eqns.append(JaxprEqn(ShardingConstraint(sharding), [atom], [out]))
    return out
