"""Types of results with symbolic sizes, found from the sizes that results have.

A program is made for each combination of sizes, so nothing computes with symbols. Each size of a result is taken for a
polynomial of at most degree 2 with integer coefficients, which the sizes at as many places determine; more places, and
every program that is made, must agree with it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations_with_replacement, islice
from typing import Any

import numpy as np

from meshwright.core.dimensions import DimExpr, SymbolicScope
from meshwright.errors import ArgumentError

Shapes = Sequence[tuple[int, ...]]
#: sizes are drawn from 1 to this
_LARGEST = 48
#: places that must agree, besides those that determine the polynomial
_MORE = 6


def symbolic_shapes(
    name: str, exprs: Sequence[DimExpr], scope: SymbolicScope, shapes: Callable[[Mapping[str, int]], Shapes]
) -> list[tuple[Any, ...]]:
    """The shapes of results as symbolic sizes, where ``shapes`` gives them for sizes of the variables of ``exprs``.

    Raises:
      ArgumentError: a size of ``name``'s results is no such polynomial.
    """
    names = sorted(set().union(*(e.variables for e in exprs)))
    terms = [t for degree in range(3) for t in combinations_with_replacement(names, degree)]
    places = list(islice(_places(names, exprs, scope), len(terms) + _MORE))
    found = [shapes(place) for place in places]
    if len({tuple(map(len, each)) for each in found}) > 1 or len(places) < len(terms) + _MORE:
        raise _unknown(name, names)
    matrix = np.array([[np.prod([place[n] for n in t]) for t in terms] for place in places])

    def fitted(values: list[int]) -> Any:
        solution = np.rint(np.linalg.lstsq(matrix, np.array(values, float), rcond=None)[0]).astype(int)
        if not np.array_equal(matrix @ solution, values):
            raise _unknown(name, names)
        total: Any = 0
        for term, factor in zip(terms, solution.tolist()):
            product: Any = factor
            for variable in term if factor else ():
                product = DimExpr.variable(variable, scope) * product
            total = product + total
        return total

    return [tuple(fitted(list(sizes)) for sizes in zip(*each)) for each in zip(*found)]


def _places(names: Sequence[str], exprs: Sequence[DimExpr], scope: SymbolicScope) -> Iterator[dict[str, int]]:
    """Different sizes for which constraints hold and no dimension of an argument is empty."""
    draw, seen = random.Random(0), set()
    for _ in range(4000):
        values = tuple(draw.randint(1, _LARGEST) for _ in names)
        place = dict(zip(names, values))
        if values not in seen and scope.broken_by(place) is None and all(e.evaluate(place) > 0 for e in exprs):
            seen.add(values)
            yield place


def _unknown(name: str, names: Sequence[str]) -> ArgumentError:
    return ArgumentError(
        f"{name!r}: sizes of its results are no polynomials of {', '.join(names)} of degree 2 or less; ask the program "
        f"for numbers, .at({', '.join(f'{n}=8' for n in names)}).out_avals"
    )
