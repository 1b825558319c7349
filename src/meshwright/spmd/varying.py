"""The mesh axes along which the values of a per-device program differ between devices.

A forward analysis: results of equal operands are equal, unless an op says otherwise (a Python function with effects, an
unknown kernel: ``of_operands``), and collectives add or remove their axes. It is conservative towards "differs". Inside
a ``shard_map`` this is part of the types instead (:mod:`meshwright.ir.varying`): results and derivatives depend on it
there, and a gather may be marked as varying for the sake of its cotangents. Axes are in units of the caller's choice
(atoms of a mesh, or the axes over which a virtual mesh batches). ``units`` translates the axes that a collective names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property

from meshwright.core.avals import NOWHERE, Axes
from meshwright.ir.jaxpr import Atom, Jaxpr, JaxprEqn, Var, all_eqns, sub_jaxprs
from meshwright.ir.rewrite import producers_of
from meshwright.ops.collective.base import Collective
from meshwright.ops.collective.inside import collectives_in, collectives_of
from meshwright.ops.control.regions import OPERAND, PARAMETER, RegionOp
from meshwright.spmd.masked import number_of

Units = Callable[[Sequence[str]], Sequence[str]]


def varying(jaxpr: Jaxpr, inputs: Sequence[Axes], units: Units = tuple) -> dict[Var, Axes]:
    """The axes along which each value of a jaxpr differs; ``inputs`` are those of its parameters."""
    axes_of = {**dict.fromkeys(jaxpr.constvars, NOWHERE), **dict(zip(jaxpr.invars, inputs))}

    @cache
    def known() -> Axes:
        return NOWHERE.union(*inputs, *(units(each.axes) for each in collectives_in(jaxpr)))

    for eqn in jaxpr.eqns:
        spread = result_axes(eqn, axes_of, units, known)
        for var in eqn.outvars:
            axes_of[var] = spread
    return axes_of


class Variance:
    """The analysis of one jaxpr, computed on demand."""

    def __init__(self, jaxpr: Jaxpr, inputs: Sequence[Axes], units: Units = tuple) -> None:
        self.jaxpr = jaxpr
        self.inputs = inputs
        self.units = units

    @cached_property
    def varying(self) -> dict[Var, Axes]:
        return varying(self.jaxpr, self.inputs, self.units)

    @cached_property
    def _makers(self) -> dict[Var, JaxprEqn]:
        return producers_of(self.jaxpr)

    def zeros(self, eqn: JaxprEqn) -> frozenset[int]:
        """The indices of an equation's operands that are known to be zero."""
        makers = [self._makers.get(a) if isinstance(a, Var) else None for a in eqn.invars]
        return frozenset(i for i, (a, made) in enumerate(zip(eqn.invars, makers)) if number_of(a, made) == 0)

    def same(self, atom: Atom, axes: Sequence[str]) -> bool:
        """Whether a value is known to be the same on all devices along ``axes``."""
        if not isinstance(atom, Var):
            return True
        return atom in self.varying and not self.varying[atom] & set(self.units(axes))


def result_axes(
    eqn: JaxprEqn, axes_of: Mapping[Var, Axes], units: Units = tuple, known: Callable[[], Axes] = lambda: NOWHERE
) -> Axes:
    """The axes along which an equation's results differ, given those of its operands (see :func:`varying`).

    ``known`` returns all axes of the program, along which what is no function of operands differs.
    """
    merged = NOWHERE.union(*(axes_of.get(a, NOWHERE) for a in eqn.invars if isinstance(a, Var)))
    op = eqn.op
    if not (op.of_operands and all(e.op.of_operands for inner in sub_jaxprs(op) for e in all_eqns(inner))):
        merged = merged.union(known())
    if isinstance(op, Collective):
        own = units(op.axes)
        return merged.difference(own) if op.gives_all_the_same else merged.union(own)
    if isinstance(op, RegionOp):
        return merged.union(*(units(each.axes) for each in collectives_of(op)))
    return merged


def region_inputs(eqn: JaxprEqn, axes_of: Mapping[Var, Axes], units: Units = tuple) -> list[list[Axes]]:
    """The axes along which the parameters of an equation's regions differ.

    A parameter that is tied to an operand alone differs as the operand does. Carries are assumed to differ along every
    axis along which any operand does.
    """
    spread = result_axes(eqn, axes_of, units)
    inputs = [[spread] * len(r.in_avals) for r in eqn.op.regions()]
    for first, *rest in eqn.op.ties():  # type: ignore[attr-defined]
        if first.side != OPERAND or any(end.side != PARAMETER for end in rest):
            continue
        atom = eqn.invars[first.index]
        for end in rest:
            inputs[end.body][end.index] = axes_of.get(atom, NOWHERE) if isinstance(atom, Var) else NOWHERE
    return inputs
