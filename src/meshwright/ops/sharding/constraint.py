"""with_sharding_constraint: an identity that fixes the sharding of its value."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.core.slots import Slot
from meshwright.ir.contract import ArrayLike, Emitted
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Var
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Cotangents
from meshwright.ir.rewrite import in_regions, renamed, replaced, resolve
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.table import copy
from meshwright.ops.shape.rearrange import Moves
from meshwright.sharding import (
    UNCONSTRAINED,
    AxisType,
    NamedSharding,
    PartitionSpec,
    mesh_of_type,
    typed_by,
)
from meshwright.sharding.rule import ShardingRule, pointwise_rule
from meshwright.sharding.sdy import SdySharding


@dataclass(frozen=True)
class Leeway:
    """Properties of a constraint other than the axes of each dimension, as in Shardy's annotations.

    open: dimensions that further axes may split.
    priorities: one per dimension (default: all 0); those with priority 0 are propagated first, then those with 1, ...
    replicated: axes that must not split the value.
    unreduced: axes over which the value may remain a pending sum.
    """

    open: tuple[int, ...] = ()
    priorities: tuple[int, ...] = ()
    replicated: tuple[str, ...] = ()
    unreduced: tuple[str, ...] = ()

    def with_dim(self, dim: int) -> Leeway:
        """The same with an additional dimension at ``dim``."""
        moved = tuple(d + (d >= dim) for d in self.open)
        priorities = (*self.priorities[:dim], 0, *self.priorities[dim:]) if self.priorities else ()
        return dataclasses.replace(self, open=moved, priorities=priorities)


#: a constraint without any freedom
STRICT = Leeway()


@dataclass(frozen=True)
class ShardingConstraint(Moves):
    """The operand with the given sharding; ``UNCONSTRAINED`` dimensions are left to the partitioner."""

    sharding: NamedSharding
    leeway: Leeway = STRICT
    name: ClassVar[str] = "sharding_constraint"

    @property
    def params(self) -> dict[str, Any]:
        params = {"sharding": self.sharding}
        return params if self.leeway == STRICT else {**params, "leeway": self.leeway}

    def is_open(self, dim: int) -> bool:
        """Whether the partitioner may split a dimension further."""
        return dim in self.leeway.open or self.sharding.spec.is_unconstrained(dim)

    def stated_shardings(self) -> Sequence[NamedSharding]:
        return [self.sharding]

    @property
    def is_same_on_tiles(self) -> bool:
        return False  # which tiles there are is what it says, so no rewrite may compute it with others

    def infer(self, x: ShapedArray) -> ShapedArray:
        self.sharding.check_compatible(x.shape, "with_sharding_constraint")
        return x

    def transpose(self, ct: Any, x: Any) -> Cotangents:
        return [self.bind(ct)]

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        (x,), (dim,) = args, dims
        entries = list(self.sharding.spec)
        entries += [None] * max(0, dim - len(entries))  # type: ignore[operator]
        entries.insert(dim, axis.spmd or UNCONSTRAINED)  # type: ignore[arg-type]
        sharding = NamedSharding(self.sharding.mesh, PartitionSpec(*entries))
        return ShardingConstraint(sharding, self.leeway.with_dim(dim)).bind(x), dim  # type: ignore[arg-type]

    def sharding_rule(self, x: ShapedArray) -> ShardingRule:
        return pointwise_rule([x.ndim], x.shape)

    def emit(self, b: Builder, x: Emitted) -> Emitted | Sequence[Emitted]:
        return b.annotations.constraint(x, self.annotation(b.in_avals[0].ndim), ())

    def annotation(self, ndim: int) -> SdySharding:
        """What a module says of the operand."""
        stated, leeway = SdySharding.of(self.sharding, ndim), self.leeway
        priorities = leeway.priorities or (0,) * ndim
        dims = (
            dataclasses.replace(dim, is_closed=dim.is_closed and d not in leeway.open, priority=priorities[d])
            for d, dim in enumerate(stated.dimensions)
        )
        unreduced = stated.unreduced or leeway.unreduced
        return dataclasses.replace(stated, dimensions=tuple(dims), replicated=leeway.replicated, unreduced=unreduced)


#: reshards an array
RESHARD: Slot[Callable[[Reshard, Any], Any]] = Slot("the move of arrays", "meshwright.api.placement")


@dataclass(frozen=True)
class Reshard(ShardingConstraint):
    """The operand with another sharding in its type; only this op changes the types of explicit axes.

    Over unreduced axes of the operand, the sum is reduced; over those of the result, it stays pending.
    """

    name: ClassVar[str] = "reshard"
    #: shown in the type of the result
    hidden_params: ClassVar[tuple[str, ...]] = ("sharding", "leeway")
    in_python: ClassVar[bool] = True

    def perform(self, x: Any) -> Any:
        """Reshard an array."""
        return RESHARD.value(self, x)

    def infer(self, x: ShapedArray) -> ShapedArray:
        return typed_by(super().infer(x), self.sharding)

    def typed(self, x: ShapedArray) -> ShapedArray:
        return self.infer(x)

    def transpose(self, ct: Any, x: Any) -> Cotangents:
        return [with_type(ct, x.aval.cotangent(), self.sharding.mesh)]

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        (x,), (dim,) = args, dims
        explicit, spec = typeof(x).explicit, self.sharding.spec
        mapped = () if explicit is None else explicit.spec.axes(dim)
        sums = {"unreduced": spec.unreduced, "reduced": spec.reduced}
        entries = [*spec, *[None] * (typeof(x).ndim - 1 - len(spec))]
        sharding = NamedSharding(self.sharding.mesh, PartitionSpec(*entries[:dim], mapped, *entries[dim:], **sums))
        return Reshard(sharding, self.leeway.with_dim(dim)).bind(x), dim  # type: ignore[arg-type]

    def annotation(self, ndim: int) -> SdySharding:
        return self.as_constraint(ndim).annotation(ndim)

    def as_constraint(self, ndim: int) -> ShardingConstraint:
        """The constraint for the partitioner: automatic axes are free, and an unreduced sum need not be reduced."""
        mesh, spec = self.sharding.mesh, self.sharding.spec
        is_open = len(mesh.abstract_mesh.of_type(AxisType.Explicit)) < len(mesh.axis_names)
        leeway = Leeway(tuple(range(ndim)) if is_open else (), unreduced=tuple(sorted(spec.unreduced)))
        return ShardingConstraint(NamedSharding(mesh, PartitionSpec(*spec)), leeway)


def with_type(x: Any, aval: ShapedArray, mesh: Any = None) -> Any:
    """``x`` with the explicit sharding of a type, over ``mesh`` or the mesh of that type."""
    mine, target = typeof(x).explicit, aval.explicit
    if mine is target or (mine is None and target is None) or mine == target:
        return x
    if mesh is None:
        mesh = mesh_of_type((target or mine).mesh)
    return Reshard(NamedSharding(mesh, PartitionSpec() if target is None else target.spec)).bind(x)


def without_constraints(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """``jaxpr`` with constraints replaced by identities, also in its regions."""

    def free(eqn: JaxprEqn) -> JaxprEqn:
        return eqn.replace(op=copy) if isinstance(eqn.op, ShardingConstraint) else in_regions(eqn, without_constraints)

    return replaced(jaxpr, free)


def constrain(
    jaxpr: ClosedJaxpr, in_shardings: Sequence[Any] | None = None, out_shardings: Sequence[Any] | None = None
) -> ClosedJaxpr:
    """``jaxpr`` with constraints on its inputs and outputs, and on constants that are on a mesh.

    These are the shardings of a jitted function when another one calls it.
    """
    inner = jaxpr.jaxpr
    shardings = list(zip(inner.constvars, map(_placed, jaxpr.consts)))
    shardings += zip(inner.invars, in_shardings or ())
    before: list[JaxprEqn] = []
    constrained = {var: _constrained(var, s, before) for var, s in shardings if isinstance(s, NamedSharding)}
    eqns = [renamed(e, constrained) for e in inner.eqns]
    outs = [resolve(constrained, a) for a in inner.outvars]
    after: list[JaxprEqn] = []
    for i, sharding in enumerate(out_shardings or ()):
        if isinstance(sharding, NamedSharding):
            outs[i] = _constrained(outs[i], sharding, after)
    if not before and not after:
        return jaxpr
    return jaxpr.replace(jaxpr=inner.replace(eqns=[*before, *eqns, *after], outvars=outs))


def _placed(value: Any) -> Any:
    """The sharding of a constant that the user placed."""
    return value.sharding.to_named() if getattr(value, "committed", False) else None


def _constrained(atom: Atom, sharding: NamedSharding, eqns: list[JaxprEqn]) -> Var:
    op = Reshard(sharding) if sharding.is_explicit else ShardingConstraint(sharding)
    out = Var(op.infer(atom.aval))
    eqns.append(JaxprEqn(op, [atom], [out]))
    return out
