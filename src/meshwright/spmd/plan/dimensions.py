"""Finds the logical dimensions of a program, such as batch, features, or heads, without their names.

Dimensions that some op needs laid out alike (those with a common factor in a sharding rule, like equal letters in
einsum) are one throughout the program. The dimensions of repeated layers are different but play the same part: they
belong to arguments of the same types. They form one *kind*, for which the decision is made once.

Source: inferring named dimensions in this way is from Automap (Schaarschmidt et al. 2021).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import Atom, Jaxpr, Var
from meshwright.sharding.evenness import well_divided
from meshwright.sharding.rule import PARALLEL, REDUCTION, WINDOW, DimFactors, ShardingRule
from meshwright.spmd.flatten import Flat, flatten

#: a value and the number of one of its dimensions
Dim = tuple[Var, int]


class Place(NamedTuple):
    """A dimension of an argument, or of a result, which are counted after the arguments."""

    value: int
    dim: int
    size: int


@dataclass(frozen=True)
class Kind:
    """Dimensions that play the same part.

    ``places`` are those of arguments, or, if no argument has them, of results. ``weight`` is the total bytes of
    operands and results of equations that have such a dimension. ``meets``: the numbers of the other kinds that some
    value has besides this one.
    """

    places: tuple[Place, ...]
    weight: int
    meets: frozenset[int] = frozenset()

    def divided_by(self, count: int) -> list[Place]:
        """The dimensions that ``count`` devices divide evenly, or if there are none, nearly so. An odd vocabulary stays
        whole where heads are split."""
        return well_divided({place: (place.size, count) for place in self.places})


def unions(kinds: Sequence[Kind]) -> list[Kind]:
    """Kinds that one mesh axis can split together, since no value has two of them, as one kind; heaviest first.

    Heads, hidden features of an MLP and the vocabulary are such: Megatron's tensor parallelism (Shoeybi et al. 2019)
    splits all three.
    """
    found: dict[frozenset[int], Kind] = {}
    for first in range(len(kinds)):
        members = [first]
        for other, kind in enumerate(kinds):
            if other not in members and not kind.meets.intersection(members):
                members.append(other)
        parts = [kinds[n] for n in members]
        if len(parts) > 1:
            places = tuple(place for kind in parts for place in kind.places)
            found[frozenset(members)] = Kind(places, sum(kind.weight for kind in parts))
    return sorted(found.values(), key=lambda kind: -kind.weight)


def kinds(jaxpr: Jaxpr) -> list[Kind]:
    """The kinds of dimensions of a program's arguments and results, by decreasing weight."""
    flat = flatten(jaxpr)
    joined = [members for eqn, rule in zip(flat.eqns, flat.rules) for members in _joined(eqn.invars, eqn.outvars, rule)]
    union = _Union()
    for first, *others in joined:
        for other in others:
            union.join(first, other)
    weights: Counter[Dim] = Counter()
    for var, dim in itertools.chain.from_iterable(joined):
        weights[union.root((var, dim))] += var.aval.nbytes
    places = _places(jaxpr.invars, 0, union)
    made = _places(jaxpr.outvars, len(jaxpr.invars), union)
    places = {root: where for root, where in {**made, **places}.items() if root in weights}
    avals = [v.aval for v in (*jaxpr.invars, *jaxpr.outvars)]
    groups = sorted(_alike(avals, places), key=lambda roots: -sum(weights[r] for r in roots))
    meets = _meetings(flat, union, {root: n for n, roots in enumerate(groups) for root in roots})
    return [
        Kind(tuple(p for r in roots for p in places[r]), sum(weights[r] for r in roots), frozenset(meets[n]))
        for n, roots in enumerate(groups)
    ]


def _places(atoms: Sequence[Atom], first: int, union: _Union) -> dict[Dim, list[Place]]:
    """The dimensions of values that are numbered from ``first``, by the dimension that stands for them."""
    places: dict[Dim, list[Place]] = {}
    for number, atom in enumerate(atoms, first):
        if isinstance(atom, Var):
            for dim, size in enumerate(atom.aval.shape):
                if size > 1:
                    places.setdefault(union.root((atom, dim)), []).append(Place(number, dim, size))
    return places


def _alike(avals: Sequence[ShapedArray], places: Mapping[Dim, Sequence[Place]]) -> Iterable[list[Dim]]:
    """Dimensions of equal arguments, such as those of repeated layers, together."""
    alike: dict[object, list[Dim]] = {}
    for root, where in places.items():
        parts = frozenset((avals[n].shape, avals[n].dtype, dim) for n, dim, _ in where)
        alike.setdefault(parts, []).append(root)
    return alike.values()


def _meetings(flat: Flat, union: _Union, numbers: Mapping[Dim, int]) -> dict[int, set[int]]:
    """For the number of each kind, those of the other kinds that some value has besides it."""
    meets: dict[int, set[int]] = {n: set() for n in numbers.values()}
    for var in {a for atoms in flat.atoms for a in atoms if isinstance(a, Var)}:
        roots = (union.root((var, dim)) for dim in range(var.aval.ndim))
        here = {numbers[root] for root in roots if root in numbers}
        for n in here:
            meets[n] |= here - {n}
    return meets


def _joined(ins: Sequence[Atom], outs: Sequence[Atom], whole: ShardingRule) -> Iterator[list[Dim]]:
    """For each factor of an equation, the dimensions of which it is the major factor."""
    for part in whole.parts:
        rule = part.rule
        atoms = [*(ins[i] for i in part.operands), *(outs[i] for i in part.results)]
        members: dict[int, list[Dim]] = {}
        for atom, dims in zip(atoms, (*rule.operands, *rule.results)):
            if isinstance(atom, Var):
                for dim, factors in enumerate(dims):
                    major = _major(factors, rule)
                    if major is not None and rule.factors[major].kind in (PARALLEL, REDUCTION, WINDOW):
                        members.setdefault(major, []).append((atom, dim))
        yield from members.values()


def _major(factors: DimFactors, rule: ShardingRule) -> int | None:
    return next((f for f in factors if rule.factors[f].size > 1), None)


class _Union:
    def __init__(self) -> None:
        self.above: dict[Dim, Dim] = {}

    def root(self, dim: Dim) -> Dim:
        while dim in self.above:
            above = self.above[dim]
            if above in self.above:
                self.above[dim] = self.above[above]
            dim = above
        return dim

    def join(self, a: Dim, b: Dim) -> None:
        a, b = self.root(a), self.root(b)
        if a != b:
            self.above[b] = a
