"""The program as propagation sees it: a flat list of equations with their sharding rules, including those of regions.

A control-flow op is replaced by the equations of its regions and, for each of its ties, an equation stating that the
tied values have the same dimensions. A manual region that is automatic along some axes is also replaced by its
equations: its parameters are tied to the factor of the operands' dimensions that the manual axes leave. A sharding
group becomes one equation over all of its values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache

from meshwright.core.records import dataclass
from meshwright.core.weak import once_for_each
from meshwright.ir.jaxpr import Atom, Jaxpr, JaxprEqn, Literal, Var
from meshwright.ops.control.regions import OPERAND, OUTPUT, PARAMETER, RESULT, End, RegionOp, Tie
from meshwright.ops.sharding.constraint import Leeway, ShardingConstraint
from meshwright.ops.sharding.manual import ShardMap
from meshwright.ops.sharding.propagation_marks import ShardingGroup
from meshwright.sharding import NamedSharding, PartitionSpec
from meshwright.sharding.rule import PARALLEL, REPLICATED, WINDOW, DimFactors, ShardingRule, make_rule, pointwise_rule
from meshwright.spmd.rules import eqn_rule

Ruled = tuple[JaxprEqn, ShardingRule]


@dataclass(frozen=True)
class Flat:
    """The equations of a program and its regions, with what does not depend on the order in which axes spread."""

    eqns: Sequence[JaxprEqn]
    rules: Sequence[ShardingRule]
    #: the operands and results of each equation
    atoms: Sequence[Sequence[Atom]]
    #: 0 for equations that pass values through; 1 for those that contract, have windows, or broadcast
    levels: Sequence[int]
    #: whether equations pass values through where the dimensions along which they have windows are not split
    passes: Sequence[bool]
    #: the indices of the equations that read or produce a value
    neighbours: Mapping[Var, Sequence[int]]


@once_for_each
def flatten(jaxpr: Jaxpr) -> Flat:
    """Flatten a jaxpr without calls; cached for as long as the jaxpr lives."""
    pairs = list(_with_regions(jaxpr))
    pairs += _groups([eqn for eqn, _ in pairs])
    atoms = [(*eqn.invars, *eqn.outvars) for eqn, _ in pairs]
    neighbours: dict[Var, list[int]] = {}
    for i, values in enumerate(atoms):
        for value in dict.fromkeys(a for a in values if isinstance(a, Var)):
            neighbours.setdefault(value, []).append(i)
    rules = [rule for _, rule in pairs]
    return Flat(
        [eqn for eqn, _ in pairs], rules, atoms, list(map(_level, rules)), list(map(_passes, rules)), neighbours
    )


@lru_cache(maxsize=65536)
def _level(rule: ShardingRule) -> int:
    return 0 if _passes(rule) and all(f.kind != WINDOW for f in rule.factors) else 1


@lru_cache(maxsize=65536)
def _passes(rule: ShardingRule) -> bool:
    if any(f.kind not in (PARALLEL, REPLICATED, WINDOW) for f in rule.factors):
        return False
    kept = {f for dims in rule.results for fs in dims for f in fs}
    if any(f.kind == WINDOW and n not in kept for n, f in enumerate(rule.factors)):
        return False  # the largest of a row, say, is not the row

    def free(dims: tuple[DimFactors, ...]) -> set[int]:
        return {f for fs in dims for f in fs if rule.factors[f].kind == PARALLEL}

    results = set().union(*map(free, rule.results))
    return any(free(dims) == results for dims in rule.operands)


def _with_regions(jaxpr: Jaxpr) -> Iterator[Ruled]:
    for eqn in jaxpr.eqns:
        op = eqn.op
        if isinstance(op, ShardMap):
            yield from _manual(op, eqn)
        elif isinstance(op, RegionOp) and not op.kept_whole:
            ties = [(tie, _tie(tie, eqn)) for tie in op.ties()]
            yield from (ruled for tie, ruled in ties if tie[-1].side == PARAMETER)
            for region in op.regions():
                yield from _with_regions(region.jaxpr)
            yield from (ruled for tie, ruled in ties if tie[-1].side != PARAMETER)
        else:
            yield eqn, eqn_rule(eqn)


def is_tie(eqn: JaxprEqn) -> bool:
    """Whether an equation of a flattened program ties values of a region to those outside."""
    return isinstance(eqn.op, RegionOp) and not eqn.op.kept_whole


def is_tie_of_loop(eqn: JaxprEqn) -> bool:
    """Whether an equation of a flattened program ties values of a loop to those outside."""
    return isinstance(eqn.op, RegionOp) and not eqn.op.kept_whole and not eqn.op.chooses


def _tie(tie: Tie, eqn: JaxprEqn) -> Ruled:
    """A tie as an equation whose rule states that all tied values have the same dimensions."""
    bodies = [r.jaxpr for r in eqn.op.regions()]
    values: dict[str, Callable[[End], Sequence[Atom]]] = {
        OPERAND: lambda end: eqn.invars,
        RESULT: lambda end: eqn.outvars,
        PARAMETER: lambda end: bodies[end.body].invars,
        OUTPUT: lambda end: bodies[end.body].outvars,
    }
    atoms = [values[end.side](end)[end.index] for end in tie]
    shape = atoms[0].aval.shape[tie[0].stacked :]
    names = [f"d{d}" for d in range(len(shape))]
    dims = [[None, *names] if end.stacked else names for end in tie]
    rule = make_rule(dims[:-1], dims[-1:], dict(zip(names, shape)))
    return JaxprEqn(eqn.op, atoms[:-1], atoms[-1:], eqn.source), rule  # type: ignore[arg-type]


# --- manual regions -----------------------------------------------------------------------------------------
def _manual(op: ShardMap, eqn: JaxprEqn) -> Iterator[Ruled]:
    """Constraints for the manual axes of operands and results, the region's equations, and the ties between them."""
    inner = op.jaxpr.jaxpr
    for atom, spec, var in zip(eqn.invars, op.in_specs, inner.invars):
        if isinstance(atom, Var):
            cut = Var(atom.aval)
            rule = pointwise_rule([cut.aval.ndim], cut.aval.shape)
            yield JaxprEqn(_cut(op, spec, cut), [atom], [cut], eqn.source), rule
            if op.automatic:
                yield JaxprEqn(op, [cut], [var], eqn.source), make_rule(*_parts(spec, cut, var, entering=True))
    if op.automatic:
        yield from _with_regions(inner)
    for out, spec, atom in zip(eqn.outvars, op.out_specs, inner.outvars):
        yield JaxprEqn(_cut(op, spec, out), [], [out], eqn.source), pointwise_rule([], out.aval.shape)
        if op.automatic and isinstance(atom, Var):
            yield JaxprEqn(op, [atom], [out], eqn.source), make_rule(*_parts(spec, out, atom, entering=False))


def _cut(op: ShardMap, spec: PartitionSpec, var: Var) -> ShardingConstraint:
    """Constrain ``var`` to be split as ``spec`` says by manual axes; automatic axes may split it further."""
    free = tuple(range(var.aval.ndim)) if op.automatic else ()
    return ShardingConstraint(NamedSharding(op.mesh, spec), Leeway(free, replicated=tuple(op.manual) if free else ()))


def _parts(
    spec: PartitionSpec, whole: Var, part: Var, entering: bool
) -> tuple[list[list[list[str]]], list[list[list[str]]], dict[str, int]]:
    """The dimensions and sizes of a rule by which a dimension of ``whole`` is a manual factor times one of ``part``."""
    sizes: dict[str, int] = {}
    outer, inner = [], []
    for d, size in enumerate(part.aval.shape):
        sizes[f"d{d}"] = size
        inner.append([f"d{d}"])
        outer.append([f"d{d}"])
        if spec.axes(d):
            sizes[f"m{d}"] = whole.aval.shape[d] // max(1, size) if size else 1
            outer[d].insert(0, f"m{d}")
    return ([outer], [inner], sizes) if entering else ([inner], [outer], sizes)


# --- groups -------------------------------------------------------------------------------------------------
def _groups(eqns: list[JaxprEqn]) -> Iterator[Ruled]:
    """For every sharding group, an equation stating that its values have the same dimensions."""
    members: dict[tuple[str, int], list[JaxprEqn]] = {}
    for eqn in eqns:
        if isinstance(eqn.op, ShardingGroup) and not isinstance(eqn.invars[0], Literal):
            members.setdefault((eqn.op.group, eqn.outvars[0].aval.ndim), []).append(eqn)
    for (_, rank), group in members.items():
        if len(group) > 1:
            values = [eqn.outvars[0] for eqn in group]
            shape = [min(v.aval.shape[d] for v in values) for d in range(rank)]
            rule = pointwise_rule([rank] * (len(values) - 1), shape)
            tie = ShardingGroup(group[-1].op.group, exact=False)  # type: ignore[attr-defined]
            yield JaxprEqn(tie, values[:-1], values[-1:], group[-1].source), rule
