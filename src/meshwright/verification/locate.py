"""Finds the first op after which a per-device program differs from the program that it was made from.

Both are evaluated op by op, side by side. The partitioner knows which value on a device stands for which value of the
program, and each such pair is compared as soon as both exist. Loops and branches whose results differ are entered,
iteration by iteration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from meshwright.core import source
from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from meshwright.ir.op import BatchAxis
from meshwright.ir.state import extend_axis_env, set_trace
from meshwright.ir.tracing import EVAL
from meshwright.lowering.units import Units, enter, every_of, leave, with_units
from meshwright.ops.collective.all_reduce import ALL_REDUCE, AllReduce
from meshwright.ops.collective.base import Collective
from meshwright.ops.collective.tiles import ReduceScatter
from meshwright.ops.control.bodies import Operands
from meshwright.ops.control.flow import ControlOp
from meshwright.ops.control.regions import RegionOp
from meshwright.ops.reduce.cumulative import Cumulative
from meshwright.ops.shape.rearrange import squeeze
from meshwright.ops.shape.slice_pad import slice_in_dim
from meshwright.sharding import Layout
from meshwright.spmd.partition.result import Partition
from meshwright.transforms.batching import BatchTrace
from meshwright.verification.difference import Difference, compare

#: the most iterations of a loop that are entered
_MOST_ROUNDS = 100
Values = dict[Var, Any]
#: called with the number of equations done, and of all equations
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class FirstDifference:
    """The first difference between two programs: the value, the equation that computes it on a device, and its size."""

    whole: JaxprEqn | None
    local: JaxprEqn
    layout: Layout
    difference: Difference
    part: Partition
    #: the loop or branch around it and the iteration, in words
    inside: str = ""

    def __str__(self) -> str:
        op = self.local.op
        over = f" over {', '.join(self.part.mesh.coalesce(op.axes))}" if isinstance(op, Collective) else ""
        value = f"the result of {self.whole.op.name} at {self.whole.source}" if self.whole else "an input"
        reason = f" ({self.local.note})" if self.local.note is not None else ""
        others = ", on devices that should have what the first one has" if self.difference.copy else ""
        return (
            f"they first differ after {op.name}{over} at {self.local.source}{self.inside}, which makes {value}, "
            f"{self.local.outvars[0].aval} on a device, laid out as {self.layout.format(self.part.mesh)}{reason}: by "
            f"{self.difference.absolute:.3g} ({self.difference.relative:.3g} relative){others}{self._late}"
        )

    @property
    def _late(self) -> str:
        """A note where infinities met terms of an unfinished sum, or parts in another order, which may be no error."""
        of_terms = self.layout.partial or isinstance(self.local.op, AllReduce | ReduceScatter)
        if np.isfinite(self.difference.absolute):
            return ""
        op = self.whole.op if self.whole is not None else None
        if not of_terms and op is not None and op.takes_whole_rows and (op.holds_jaxprs or isinstance(op, Cumulative)):
            return (
                "; devices combine the parts of what is infinite or NaN in another order, in which other parts of the "
                "result may be NaN: without such values the programs may agree"
            )
        if not of_terms:
            return ""
        return (
            "; the sum over devices is completed late, after ops that are linear in it, so that what is infinite or "
            "NaN meets each device's term of it, not the whole sum: without such values the programs may agree"
        )


def first_difference(
    part: Partition, args: Sequence[Any], rtol: float, atol: float, progress: Progress | None = None
) -> FirstDifference | None:
    """The first difference when ``part`` and its source program run on ``args``; None if all values agree."""
    return _Pair(part, rtol, atol, progress).run(args)


def first_not_finite(jaxpr: ClosedJaxpr, args: Sequence[Any]) -> JaxprEqn | None:
    """The first equation that introduces NaN, or else infinities; None if everything is finite."""
    side, infinite = _Side(), None
    kept = _Kept(side, jaxpr.jaxpr, [])
    side.enter(jaxpr, args)
    for eqn in jaxpr.eqns:
        with set_trace(EVAL):
            side.do(eqn)
        values = [np.asarray(side.values[v]) for v in eqn.outvars if v.aval.dtype.kind in "fc"]
        if any(np.isnan(v).any() for v in values):
            return eqn
        infinite = infinite or (eqn if any(np.isinf(v).any() for v in values) else None)
        kept.done(eqn)
    return infinite


def misplaced(part: Partition, number: int) -> str:
    """How output ``number`` is wrong although every value inside is right: it is another value, or split otherwise."""
    got, want = part.jaxpr.jaxpr.outvars[number], part.source.jaxpr.outvars[number]
    if isinstance(got, Var) and isinstance(want, Var) and got in part.stands_for:
        meant, layout = part.stands_for[got]
        if meant is not want:
            return f"but devices return {_made(part.source, meant)}, and the program {_made(part.source, want)}"
        if layout != (said := part.out_layouts[number]):
            laid, read = (each.format(part.mesh) for each in (layout, said))
            return f"but devices return it laid out as {laid}, and it is read as {read}"
    return "so that the layouts of the outputs must be wrong"


def _made(jaxpr: ClosedJaxpr, var: Var) -> str:
    if var in jaxpr.jaxpr.invars:
        return f"input {jaxpr.jaxpr.invars.index(var)}"
    maker = next((e for e in jaxpr.eqns if var in e.outvars), None)
    return f"the result of {maker.op.name} at {maker.source}" if maker else "a constant"


@dataclass
class _Side:
    """One of the two programs during evaluation, with the values that are still needed."""

    values: Values = field(default_factory=dict)

    def read(self, atom: Atom) -> Any:
        return atom.val if isinstance(atom, Literal) else self.values[atom]

    def enter(self, jaxpr: ClosedJaxpr, args: Sequence[Any]) -> None:
        """Start a jaxpr, dropping its values from an earlier iteration."""
        for eqn in jaxpr.eqns:
            for var in eqn.outvars:
                self.values.pop(var, None)
        self.values.update(zip((*jaxpr.jaxpr.constvars, *jaxpr.jaxpr.invars), (*jaxpr.consts, *args)))

    def do(self, eqn: JaxprEqn) -> None:
        with source.at(eqn.source):
            outs = eqn.op.bind(*map(self.read, eqn.invars))
        self.values.update(zip(eqn.outvars, outs if eqn.op.multiple_results else [outs]))


class _Pair:
    def __init__(self, part: Partition, rtol: float, atol: float, progress: Progress | None) -> None:
        self.part, self.rtol, self.atol = part, rtol, atol
        self.progress = progress or (lambda done, total: None)
        self.units = Units.of(part, atoms=True)
        self.traces: list[BatchTrace] = []
        self.whole, self.local = _Side(), _Side()
        self.stands_for = part.stands_for

    def run(self, args: Sequence[Any]) -> FirstDifference | None:
        top: Any = EVAL
        for name in self.units.names:
            top = BatchTrace(top, BatchAxis(self.units.sizes[name], name))
            self.traces.append(top)
        local = with_units(self.part.jaxpr, self.units)
        with extend_axis_env(self.units.sizes):
            with set_trace(top):
                entered = [enter(x, lo, self.units) for x, lo in zip(args, self.part.in_layouts)]
            return self.bodies(self.part.source, args, local, entered, "")

    # --- programs and bodies --------------------------------------------------------------------------------
    def bodies(
        self, whole: ClosedJaxpr, args: Sequence[Any], local: ClosedJaxpr, local_args: Sequence[Any], inside: str
    ) -> FirstDifference | None:
        """Evaluate two jaxprs side by side, dropping values after their last use."""
        self.whole.enter(whole, args)
        self.local.enter(local, local_args)
        producers = {v: e for e in whole.eqns for v in e.outvars}
        pending = iter(whole.eqns)
        compared = [self.stands_for[v][0] for e in local.eqns for v in e.outvars if v in self.stands_for]
        kept = _Kept(self.whole, whole.jaxpr, compared), _Kept(self.local, local.jaxpr, [])
        for number, eqn in enumerate(local.eqns):
            if not inside:
                self.progress(number, len(local.eqns))
            with set_trace(self.top):
                self.local.do(eqn)
            for var in eqn.outvars:
                difference = self.check(eqn, var, producers, pending, kept[0], inside)
                if difference is not None:
                    return difference
            kept[1].done(eqn)
        for eqn in pending:
            self.do_whole(eqn, kept[0])
        return None

    @property
    def top(self) -> Any:
        return self.traces[-1] if self.traces else EVAL

    def do_whole(self, eqn: JaxprEqn, kept: _Kept) -> None:
        with set_trace(EVAL):
            self.whole.do(eqn)
        kept.done(eqn)

    def check(
        self, eqn: JaxprEqn, var: Var, producers: dict[Var, JaxprEqn], pending: Any, kept: _Kept, inside: str
    ) -> FirstDifference | None:
        """Compare a result of ``eqn`` with the value that it stands for, after evaluating the program up to there."""
        meant, layout = self.stands_for.get(var, (None, None))
        if meant is None or layout is None or (meant not in producers and meant not in self.whole.values):
            return None
        while meant not in self.whole.values:
            self.do_whole(next(pending), kept)
        difference = compare(self.joined(var, layout, meant), self.whole.values[meant], self.rtol, self.atol)
        producer = producers.get(meant)
        kept.used(meant)
        if difference.excess <= 0:
            return None
        here = FirstDifference(producer, eqn, layout, difference, self.part, inside)
        return self.inner(producer, eqn, inside) or here

    def joined(self, var: Var, layout: Layout, meant: Var) -> np.ndarray:
        """The value over the whole mesh."""
        with set_trace(self.top):
            x = self.local.values[var]
            if layout.partial:
                names = self.units.of_atoms(layout.partial)
                x = ALL_REDUCE[layout.reduction](names, tuple(self.units.sizes[n] for n in names)).bind(x)
            x = leave(x, layout, meant.aval.shape, self.units)
        return np.asarray(self.of_every(x))

    def of_every(self, x: Any) -> Any:
        """A value that should be equal on all devices, as an array; all copies, if each device computed its own."""
        for trace in reversed(self.traces):
            with set_trace(trace.parent):
                x = every_of(*trace.unwrap(x))
        return x

    # --- loops and branches ---------------------------------------------------------------------------------
    def inner(self, whole: JaxprEqn | None, local: JaxprEqn, inside: str) -> FirstDifference | None:
        """The first difference inside a loop or branch, or None."""
        if whole is None or not isinstance(whole.op, ControlOp) or not isinstance(local.op, ControlOp):
            return None
        sides = _Entered(self.whole, EVAL, whole.op, whole), _Entered(self.local, self.top, local.op, local)
        where = f" in {{}} of the {whole.op.name} at {whole.source}{inside}"
        bodies = whole.op.bodies()
        if whole.op.chooses:
            number = min(max(int(sides[0].parts.choice[0]), 0), len(bodies) - 1)
            return self.run_of(sides, number, 0, where.format(bodies[number].label))
        trips = whole.op.trips(whole.invars)
        for run in range(_MOST_ROUNDS if trips is None else min(trips, _MOST_ROUNDS)):
            for number, body in enumerate(bodies):
                which = f"the condition before round {run}" if body.tests else f"round {run}"
                difference = self.run_of(sides, number, run, where.format(which))
                if difference is not None or (body.tests and not bool(self.whole.read(body.jaxpr.jaxpr.outvars[0]))):
                    return difference
        return None

    def run_of(self, sides: Sequence[_Entered], body: int, run: int, inside: str) -> FirstDifference | None:
        """Run a body once on both sides, and update the carries."""
        whole, local = (side.op.bodies()[body] for side in sides)
        difference = self.bodies(whole.jaxpr, sides[0].args(body, run), local.jaxpr, sides[1].args(body, run), inside)
        if difference is None and not whole.tests:
            for side, each in zip(sides, (whole, local)):
                carry = each.jaxpr.jaxpr.outvars[: each.num_carry]
                side.parts = replace(side.parts, carry=[side.side.read(a) for a in carry])
        return difference


class _Entered:
    """A loop or branch that is entered on one side, with the operands of its next run."""

    def __init__(self, side: _Side, trace: Any, op: ControlOp, eqn: JaxprEqn) -> None:
        self.side, self.trace, self.op = side, trace, op
        self.parts: Operands[Any] = op.parts([side.read(a) for a in eqn.invars])

    def args(self, body: int, run: int) -> list[Any]:
        with set_trace(self.trace):
            rows = [_row(x, self.op.row(run)) for x in self.parts.xs]
        return replace(self.parts, xs=rows).of(body)


class _Kept:
    """Drops the values of one side after their last use. Results and operands of regions are kept."""

    def __init__(self, side: _Side, jaxpr: Jaxpr, compared: Sequence[Var]) -> None:
        self.side = side
        self.uses: Counter[Any] = Counter(compared)
        self.uses.update(a for e in jaxpr.eqns for a in e.invars if isinstance(a, Var))
        kept = [*jaxpr.outvars, *(a for e in jaxpr.eqns if isinstance(e.op, RegionOp) for a in e.invars)]
        self.uses.update(a for a in kept if isinstance(a, Var))

    def done(self, eqn: JaxprEqn) -> None:
        for atom in eqn.invars:
            if isinstance(atom, Var):
                self.used(atom)

    def used(self, var: Var) -> None:
        self.uses[var] -= 1
        if self.uses[var] <= 0:
            self.side.values.pop(var, None)


def _row(x: Any, at: int) -> Any:
    """Row ``at`` along dimension 0."""
    return squeeze(slice_in_dim(x, at, at + 1, axis=0), [0])
