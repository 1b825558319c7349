"""Sharding rules: how the dimensions of an op's operands and results correspond, as data.

A rule maps every dimension to *factors*, the loop dimensions of the op (``i``, ``j``, ``k`` of a matmul), as in einsum
notation and in Shardy's op sharding rules. Propagation, partitioning, the cost model and the reshard planner all read
this one description; none of them looks at op types.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from meshwright.core.records import dataclass

#: if the factor is split, the op is the same on local shapes
PARALLEL = "parallel"
#: if the factor is split, the result is partial, to be reduced over the mesh axes that split it
REDUCTION = "reduction"
#: the factor can be split, but the op's own ``localize`` then has to exchange data (halos, offsets)
WINDOW = "window"
#: the factor cannot be split: operands are gathered along it
REPLICATED = "replicated"

DimFactors = tuple[int, ...]

#: by the number of tiles: the data that every device sends, as a multiple of its tiles of the operands
Passes = Callable[[int], float]


@dataclass(frozen=True)
class GatheredParts:
    """The :data:`Passes` of an op that gathers ``rows`` rows of each tile of a dimension of ``size`` rows."""

    size: int
    rows: int = 1

    def __call__(self, tiles: int) -> float:
        return (tiles - 1) * self.rows * tiles / max(1, self.size)


@dataclass(frozen=True)
class SentTimes:
    """The :data:`Passes` of an op that sends its tiles ``times`` times, whatever their number."""

    times: float = 1.0

    def __call__(self, tiles: int) -> float:
        return self.times


#: the passes of an op that exchanges tiles for parts of another dimension, the last one that can be split, and back
EXCHANGED = SentTimes(2)


@dataclass(frozen=True)
class Factor:
    """One loop dimension of an op.

    ``passes`` is the communication cost of splitting a window factor, unless it is small. ``repeats`` is how many times
    a device then applies the op to its tiles. ``indexed``: its elements are not visited but found by index, so it adds
    no work, and splitting it saves none.
    """

    name: str
    size: int
    kind: str = PARALLEL
    passes: Passes | None = None
    repeats: Passes | None = None
    indexed: bool = False


@dataclass(frozen=True)
class ShardingRule:
    """For every dimension of every operand and result, the factors it consists of, major to minor.

    A dimension without factors is never split. ``reduction`` is the kind of partial result that splitting a reduction
    factor leaves (``"sum"``, ``"masked"``, ``"max"``, ``"min"``, ``"prod"``, ``"and"``, ``"or"``). ``points`` is the
    number of points of the op's loop nest, if it is not the product of the factors (as with the taps of a kernel).
    ``sweeps`` is how often the op reads its operands and writes its results. ``joins`` are the operands that are
    combined with what the op reduces, as that to which a scatter adds: they may be partial over the axes that split the
    reduction.
    """

    factors: tuple[Factor, ...]
    operands: tuple[tuple[DimFactors, ...], ...]
    results: tuple[tuple[DimFactors, ...], ...]
    reduction: str = "sum"
    points: int | None = None
    sweeps: int = 1
    joins: tuple[int, ...] = ()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.factors, self.operands, self.results, self.reduction, self.points, self.joins))

    @cached_property
    def work(self) -> int:
        """The number of points of the op's loop nest: ``points``, or the product of the factor sizes.

        Factors that cannot be split, or are indexed, are not loops but dimensions of operands or results.
        """
        if self.points is not None:
            return self.points
        return math.prod(f.size for f in self.factors if f.kind != REPLICATED and not f.indexed)

    @cached_property
    def is_product(self) -> bool:
        """Whether the op sums over a factor that two operands share, as matrix products and convolutions do.

        Outer products do not: compilers treat them as elementwise. Nor do scatters, which only add.
        """
        if any(f.indexed for f in self.factors):
            return False
        sums = [f for f, factor in enumerate(self.factors) if factor.kind == REDUCTION and factor.size > 1]
        return any(len({o for o, _ in self.operand_dims(f)}) > 1 for f in sums)

    @cached_property
    def merged_dims(self) -> tuple[DimFactors, ...]:
        """The dimensions of operands and results that consist of several factors."""
        return tuple(dict.fromkeys(fs for dims in (*self.operands, *self.results) for fs in dims if len(fs) > 1))

    @cached_property
    def with_whole_windows(self) -> ShardingRule:
        """The rule with the windows whose split costs communication not split."""
        factors = (replace(f, kind=REPLICATED) if f.kind == WINDOW and f.passes else f for f in self.factors)
        return replace(self, factors=tuple(factors))

    @cached_property
    def with_whole_exchanges(self) -> ShardingRule:
        """The rule with the windows whose tiles are exchanged for parts of another dimension not split."""
        if not any(f.passes == EXCHANGED for f in self.factors):
            return self
        return replace(
            self, factors=tuple(replace(f, kind=REPLICATED) if f.passes == EXCHANGED else f for f in self.factors)
        )

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The parts of the rule that share no factor, such as the operands of a barrier.

        The axes of one part do not restrict those of another. Values that cannot be split belong to the first part.
        """
        values = (*self.operands, *self.results)
        groups: list[set[int]] = []
        for dims in values:
            factors = self._split_by(dims)
            if factors:
                met = [g for g in groups if g & factors]
                groups = [g for g in groups if not g & factors] + [factors.union(*met)]
        # A reduction makes all results partial, whatever they consist of, and windows depend on all splits.
        one = any(f.kind not in (PARALLEL, REPLICATED) for f in self.factors)
        if len(groups) < 2 or one:
            return (Part(self, tuple(range(len(self.operands))), tuple(range(len(self.results)))),)
        groups.sort(key=min)
        return tuple(self._part(group, first=group is groups[0]) for group in groups)

    def _split_by(self, dims: tuple[DimFactors, ...]) -> set[int]:
        """The factors of a value that can be split."""
        return {f for fs in dims for f in fs if self.factors[f].kind != REPLICATED}

    def _part(self, group: set[int], first: bool) -> Part:
        def chosen(values: tuple[tuple[DimFactors, ...], ...]) -> tuple[int, ...]:
            used = map(self._split_by, values)
            return tuple(i for i, factors in enumerate(used) if (factors <= group if factors else first))

        ins, outs = chosen(self.operands), chosen(self.results)
        mine = (*(self.operands[i] for i in ins), *(self.results[i] for i in outs))
        number = {f: i for i, f in enumerate(sorted({f for dims in mine for fs in dims for f in fs}))}
        renumbered = [tuple(tuple(number[f] for f in fs) for fs in dims) for dims in mine]
        factors = tuple(self.factors[f] for f in number)
        rule = ShardingRule(factors, tuple(renumbered[: len(ins)]), tuple(renumbered[len(ins) :]), self.reduction)
        return Part(rule, ins, outs)

    def index(self, name: str) -> int:
        """The index of the factor called ``name``. Raises KeyError if there is none."""
        for i, factor in enumerate(self.factors):
            if factor.name == name:
                return i
        raise KeyError(name)

    def is_parallel(self, dim: DimFactors) -> bool:
        """Whether a dimension consists of one parallel factor."""
        return len(dim) == 1 and self.factors[dim[0]].kind == PARALLEL

    def operand_dims(self, factor: int) -> list[tuple[int, int]]:
        """The ``(operand, dimension)`` pairs in which the factor occurs."""
        return [(o, d) for o, dims in enumerate(self.operands) for d, fs in enumerate(dims) if factor in fs]

    def result_dims(self, factor: int) -> list[tuple[int, int]]:
        """The ``(result, dimension)`` pairs in which the factor occurs."""
        return [(o, d) for o, dims in enumerate(self.results) for d, fs in enumerate(dims) if factor in fs]

    def __str__(self) -> str:
        def side(values: tuple[tuple[DimFactors, ...], ...]) -> str:
            return ", ".join("[" + " ".join(self._dim(d) for d in dims) + "]" for dims in values)

        notes = [
            f"{f.name}: {f.kind}" + (f" ({self.reduction})" if f.kind == REDUCTION else "")
            for f in self.factors
            if f.kind != PARALLEL
        ]
        return f"{side(self.operands)} -> {side(self.results)}" + ("; " + ", ".join(notes) if notes else "")

    def _dim(self, factors: DimFactors) -> str:
        if not factors:
            return "1"
        names = [self.factors[f].name for f in factors]
        return names[0] if len(names) == 1 else "(" + " ".join(names) + ")"


@dataclass(frozen=True)
class Part:
    """A part of a rule, with the indices of its operands and results."""

    rule: ShardingRule
    operands: tuple[int, ...]
    results: tuple[int, ...]


DimNames = str | Sequence[str] | None


def make_rule(
    operands: Sequence[Sequence[DimNames]],
    results: Sequence[Sequence[DimNames]],
    sizes: Mapping[str, int],
    kinds: Mapping[str, str] | None = None,
    reduction: str = "sum",
    passes: Mapping[str, Passes] | None = None,
    points: int | None = None,
    repeats: Mapping[str, Passes] | None = None,
    joins: tuple[int, ...] = (),
    indexed: Container[str] = (),
) -> ShardingRule:
    """A rule from names: each dimension is a factor name, several (major to minor), or ``None``.

    Example: ``make_rule([["i", "k"], ["k", "j"]], [["i", "j"]], {"i": 2, "j": 3, "k": 4}, {"k": REDUCTION})`` is a
    matrix product. Factors are numbered in the order of their first occurrence.
    """
    kinds, passes, repeats = kinds or {}, passes or {}, repeats or {}
    order: dict[str, int] = {}

    def dim(names: DimNames) -> DimFactors:
        if names is None:
            return ()
        parts = (names,) if isinstance(names, str) else tuple(names)
        return tuple(order.setdefault(n, len(order)) for n in parts)

    ins = tuple(tuple(dim(d) for d in dims) for dims in operands)
    outs = tuple(tuple(dim(d) for d in dims) for dims in results)
    factors = tuple(
        Factor(n, sizes[n], kinds.get(n, PARALLEL), passes.get(n), repeats.get(n), n in indexed) for n in order
    )
    return ShardingRule(factors, ins, outs, reduction, points, joins=joins)


def pointwise_rule(operand_ranks: Sequence[int], shape: Sequence[int], num_results: int = 1) -> ShardingRule:
    """A rule in which all operands and results have the same dimensions; rank-0 operands have none."""
    names = [f"d{i}" for i in range(len(shape))]
    return make_rule(
        [names if rank else [] for rank in operand_ranks],
        [names] * num_results,
        dict(zip(names, shape)),
    )


def replicated_rule(operand_shapes: Sequence[Sequence[int]], result_shapes: Sequence[Sequence[int]]) -> ShardingRule:
    """A rule by which nothing can be split."""
    return ShardingRule((), tuple(((),) * len(s) for s in operand_shapes), tuple(((),) * len(s) for s in result_shapes))
