"""Checks that the terms of sums which are still to be made are used by linear operations alone, until they are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.core.avals import NOWHERE, Axes
from meshwright.errors import ShardingTypeError
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn, Var
from meshwright.ops.collective.all_reduce import PVary
from meshwright.ops.collective.base import Collective


class LinearInTerms:
    """The check of a region of ``shard_map``; ``name`` is that of its function."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: values that vary by their types alone, and over which axes: what is the same everywhere was cast to them
        self.same: dict[Any, Axes] = {}

    def through(self, jaxpr: ClosedJaxpr, sums: Sequence[Axes]) -> list[Axes]:
        """The axes over which each result is a sum that is still to be made."""
        known: dict[Var, Axes] = dict(zip(jaxpr.jaxpr.invars, sums))

        def of(atom: Any) -> Axes:
            return known.get(atom, NOWHERE) if isinstance(atom, Var) else NOWHERE

        for eqn in jaxpr.eqns:
            after = self._after(eqn, [of(a) for a in eqn.invars])
            known.update(dict.fromkeys(eqn.outvars, after) if after else {})
        return [of(a) for a in jaxpr.jaxpr.outvars]

    def _after(self, eqn: JaxprEqn, sums: Sequence[Axes]) -> Axes:
        over = NOWHERE.union(*sums)
        if not over:
            if isinstance(eqn.op, PVary):
                self.same[eqn.outvars[0]] = frozenset(eqn.op.axes)
            return over
        if self._is_linear(eqn, sums, over):
            collective = eqn.op if isinstance(eqn.op, Collective) else None
            along = over.intersection(collective.axes) if collective else NOWHERE
            if not collective or not along or collective.of_sum() is not None:
                return over - along
        raise ShardingTypeError(
            f"shard_map of {self.name}: {eqn.op.name} at {eqn.source} uses a sum that is still to be made over "
            f"{', '.join(sorted(over))}, as in_specs says (unreduced); terms pass only through what is linear in them, "
            "beside terms over the same axes (sums) or values that are the same on all devices along them (products): "
            "make the sum first, with psum"
        )

    def _is_linear(self, eqn: JaxprEqn, sums: Sequence[Axes], over: Axes) -> bool:
        with_sums = {i for i, s in enumerate(sums) if s}
        for group in eqn.op.linear_groups(*(a.aval for a in eqn.invars)):
            if with_sums <= set(group) and all(sums[i] == over for i in group):
                others = (a for i, a in enumerate(eqn.invars) if i not in group)
                return not any(over & a.aval.vma - self._same_along(a) for a in others)
        return False

    def _same_along(self, atom: Any) -> Axes:
        return self.same.get(atom, NOWHERE) if isinstance(atom, Var) else NOWHERE
