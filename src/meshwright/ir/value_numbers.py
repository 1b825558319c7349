"""Value numbering (Alpern, Wegman and Zadeck 1988): which values of a program are equal, as computations tell."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from meshwright.ir.jaxpr import Atom, Jaxpr, Literal, Var
from meshwright.ir.op import Op


class _Computed(NamedTuple):
    """The number of result ``result`` of the computation with this number."""

    computation: int
    result: int


class ValueNumbers:
    """A number for each value of a jaxpr, the same for those that equal computations make of equal values."""

    def __init__(self, jaxpr: Jaxpr) -> None:
        self._numbers: dict[Var, Hashable] = {v: v for v in (*jaxpr.constvars, *jaxpr.invars)}
        #: the computations, with the numbers of their operands, in order of their own numbers
        self._computations: dict[tuple[Op, tuple[Hashable, ...]], int] = {}
        for eqn in jaxpr.eqns:
            op = eqn.op
            if op.holds_jaxprs or op.has_effects or not op.of_operands:
                self._numbers.update((v, v) for v in eqn.outvars)
                continue
            key = op, tuple(map(self.of, eqn.invars))
            number = self._computations.setdefault(key, len(self._computations))
            self._numbers.update((v, _Computed(number, i)) for i, v in enumerate(eqn.outvars))

    def of(self, atom: Atom) -> Hashable:
        """The number of a value."""
        if isinstance(atom, Literal):
            return "literal", atom.aval, np.asarray(atom.val).tobytes()
        return self._numbers[atom]

    def same(
        self, numbers: Sequence[Hashable], others: ValueNumbers, names: dict[Hashable, Hashable]
    ) -> tuple[Hashable, ...] | None:
        """The numbers here of values that have these ``numbers`` in another jaxpr, where ``names`` are known to be the
        same; None if they are not computed here. What is found is added to ``names``."""
        theirs = list(others._computations)

        def here(number: Hashable) -> Hashable:
            if number not in names:
                if isinstance(number, _Computed):
                    op, operands = theirs[number.computation]
                    found = self._computations.get((op, tuple(map(here, operands))))
                    names[number] = None if found is None else _Computed(found, number.result)
                else:
                    names[number] = None if isinstance(number, Var) else number
            return names[number]

        found = tuple(map(here, numbers))
        return None if None in found else found
