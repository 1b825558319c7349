"""Finds the annotation that would remove a collective or share repeated arithmetic, by partitioning again.

A candidate is one sharding for one value near the collective: the value itself in the layout it is needed in or has;
the other operands and the results of the equation that needs it, split to match; or an annotation that caused the
layouts, without the axes in question. For repeated arithmetic, candidates put the idle axes on each dimension of an
operand that can be split. Outcomes are ranked by step time, as in the search over orders of propagation. Outcomes with
more redundant arithmetic are not suggested: giving up data parallelism saves its all-reduces, but is not what was
asked.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Var
from meshwright.ir.rewrite import producers_of
from meshwright.ops.sharding.constraint import ShardingConstraint
from meshwright.sharding import AbstractMesh, Layout, NamedSharding
from meshwright.sharding.evenness import MOST_UNEVEN, unevenness
from meshwright.sharding.rule import PARALLEL, REDUCTION, WINDOW
from meshwright.spmd.driver import partition
from meshwright.spmd.explain.causes import origin_of
from meshwright.spmd.factors import factor_axes_of, layouts_of
from meshwright.spmd.memory.predict import predict
from meshwright.spmd.partition.attempt import price
from meshwright.spmd.partition.result import Partition
from meshwright.spmd.reason import Reason
from meshwright.spmd.report import Collective, collectives, human_bytes
from meshwright.spmd.rules import eqn_rule
from meshwright.spmd.steptime.report import human_seconds
from meshwright.spmd.work import operations_of

#: the most arithmetic that a suggestion may cause, relative to the current one
MOST_WORK = 1.1

#: called with the number of collectives done, the number of all of them, and the number of annotations tried
Progress = Callable[[int, int, int], None]


@dataclass(frozen=True)
class Suggestion:
    """An annotation in words, with its effect on a run.

    ``bytes_saved`` is out of ``bytes_before``. ``peak_added`` is in bytes, ``work_added`` a fraction of a device's
    arithmetic.
    """

    text: str
    bytes_saved: int
    bytes_before: int
    peak_added: int
    work_added: float
    seconds_saved: float = 0.0

    def __str__(self) -> str:
        saved, text = self.bytes_saved, f"{self.text}: saves"
        if saved > 0:
            text += f" {human_bytes(saved)} ({100 * saved / self.bytes_before:.0f} %) and"
        text += f" {human_seconds(self.seconds_saved)} of a run"
        if saved < 0:
            text += f"; a device sends {human_bytes(-saved)} more"
        if self.peak_added:
            text += f"; a device holds {human_bytes(abs(self.peak_added))} {'more' if self.peak_added > 0 else 'less'}"
        if self.work_added >= 0.005:
            text += f" and does {100 * self.work_added:.0f} % more arithmetic"
        if self.work_added <= -0.005:
            text += f" and does {-100 * self.work_added:.0f} % less arithmetic"
        return text


@dataclass(frozen=True)
class Candidate:
    """A layout for an ``input`` or ``output``, given by number, or for a ``value`` in between."""

    kind: str
    number: int
    value: Var | None
    layout: Layout


@dataclass(frozen=True)
class _Outcome:
    """The result of partitioning with a candidate: bytes, operations and seconds of a run, and the program.

    ``sorts`` counts the collectives of each sort (see :func:`_sorts`).
    """

    bytes_sent: int
    work: int
    seconds: float
    sorts: Counter[object]
    part: Partition

    @staticmethod
    def of(part: Partition) -> _Outcome:
        traffic = collectives(part.jaxpr.jaxpr)
        sorts = Counter(sort for c in traffic for sort in _sorts(c))
        return _Outcome(sum(c.bytes_sent for c in traffic), operations_of(part.jaxpr.jaxpr), price(part), sorts, part)


def _sorts(c: Collective) -> tuple[object, object]:
    """Two keys of a collective: one that is kept when its operand changes, and one when its source line does."""
    return (c.kind, str(c.source)), (c.kind, c.axes, c.operand)


class Advisor:
    """Tries candidates for one partitioned program, each once, with at most ``tries`` of them in ``seconds``."""

    def __init__(self, part: Partition, names: Sequence[str], seconds: float, tries: int) -> None:
        self.part = part
        self.names = names
        self.mesh = part.mesh
        self.until = time.monotonic() + seconds
        self.tries = tries
        self.tried: dict[Candidate, _Outcome] = {}
        inner = part.source.jaxpr
        self.inputs = {v: i for i, v in enumerate(inner.invars)}
        self.producers = producers_of(inner)
        self.before = _Outcome.of(part)

    @property
    def is_spent(self) -> bool:
        return len(self.tried) >= self.tries or time.monotonic() > self.until

    def advise(self, collective: Collective) -> Suggestion | None:
        """The annotation that removes a collective and saves the most time, among those tried."""

        def removes(outcome: _Outcome) -> bool:  # and does not just move it
            gone = all(outcome.sorts[sort] < self.before.sorts[sort] for sort in _sorts(collective))
            return gone and outcome.bytes_sent < self.before.bytes_sent

        return self._best(self._candidates(collective), removes)

    def share(self, eqn: JaxprEqn, axes: Sequence[str]) -> Suggestion | None:
        """The annotation by which ``axes``, idle at an equation, share its arithmetic, and that saves the most time."""
        candidates = self._sharing(eqn, axes)
        return self._best(
            candidates, lambda outcome: outcome.work < self.before.work and outcome.seconds < self.before.seconds
        )

    def _best(self, candidates: Iterable[Candidate], helps: Callable[[_Outcome], bool]) -> Suggestion | None:
        """The suggestion for the fastest helpful outcome; ties are decided by the bytes sent, then held."""
        best: tuple[tuple[float, int, int], Candidate, _Outcome] | None = None
        for candidate in candidates:
            if candidate not in self.tried:
                if self.is_spent:
                    break
                self.tried[candidate] = self._try(candidate)
            outcome = self.tried[candidate]
            if outcome.work > MOST_WORK * self.before.work or not helps(outcome):
                continue
            rank = float(f"{outcome.seconds:.2g}"), outcome.bytes_sent, self._held(candidate)
            if best is None or rank < best[0]:
                best = rank, candidate, outcome
        return None if best is None else self._suggestion(*best[1:])

    def _suggestion(self, candidate: Candidate, outcome: _Outcome) -> Suggestion:
        before = self.before
        peaks = [predict(p.jaxpr, p.mesh).peak_bytes for p in (outcome.part, self.part)]
        work = outcome.work / max(1, before.work) - 1
        return Suggestion(
            self._text(candidate), before.bytes_sent - outcome.bytes_sent, before.bytes_sent, peaks[0] - peaks[1], work,
            before.seconds - outcome.seconds,
        )  # fmt: skip

    def _held(self, candidate: Candidate) -> int:
        """The number of elements on a device of the value that a candidate is about."""
        source, number = self.part.source, candidate.number
        avals = {"input": source.in_avals, "output": source.out_avals}.get(candidate.kind, [])
        aval = candidate.value.aval if candidate.value is not None else avals[number]
        return math.prod(candidate.layout.local_shape(aval.shape, self.mesh))

    # --- evaluation ----------------------------------------------------------------------------------------
    def _try(self, candidate: Candidate) -> _Outcome:
        ins, outs = (list(layouts) for layouts in self.part.asked)
        source = self.part.source
        match candidate.kind:
            case "input":
                ins[candidate.number] = candidate.layout
            case "output":
                outs[candidate.number] = candidate.layout
            case _:
                source = _constrained(source, candidate, self.mesh)
        return _Outcome.of(partition(source, self.mesh, ins, outs, strategy=self.part.strategy))

    # --- candidates ----------------------------------------------------------------------------------------
    def _candidates(self, collective: Collective) -> Iterator[Candidate]:
        for reason in collective.reasons:
            yield from self._of_origins(reason, collective)
            before, after = reason.before, reason.after
            if before is None or after is None or reason.value is None:
                continue
            if reason.op == "output" and reason.number is not None:
                yield Candidate("output", reason.number, None, before.drop_partial())
            for layout in dict.fromkeys((after.drop_partial(), before.drop_partial())):
                yield from self._on(reason.value, layout)
                if reason.user is not None:
                    yield from self._of_user(reason.user, reason.value, layout)

    def _sharing(self, eqn: JaxprEqn, axes: Sequence[str]) -> Iterator[Candidate]:
        """The operands of an equation, or what it makes of none, with ``axes`` on each dimension that they divide well,
        largest dimensions first."""
        rule = eqn_rule(eqn)
        for f in sorted(range(len(rule.factors)), key=lambda f: -rule.factors[f].size):
            factor, places = rule.factors[f], [(eqn.invars[n], d) for n, d in rule.operand_dims(f)]
            # What an op makes of nothing, as random numbers, is split itself.
            kinds = (PARALLEL, REDUCTION) if places else (PARALLEL, WINDOW)
            if factor.kind in kinds and unevenness(factor.size, self.mesh.sizes(axes)) <= MOST_UNEVEN:
                for atom, dim in places or [(eqn.outvars[n], d) for n, d in rule.result_dims(f)]:
                    if isinstance(atom, Var):
                        yield from self._on(atom, _split_too(self.part.propagation.layout(atom), dim, axes))

    def _of_origins(self, reason: Reason, collective: Collective) -> Iterator[Candidate]:
        """The annotations that the collective's axes come from, without these axes."""
        axes = [a for name in collective.axes for a in self.mesh.atoms_of(name)]
        for axis in axes:
            origin = origin_of(reason, axis, self.part.propagation.origins)
            if origin is None or origin.kind not in ("input", "output"):
                continue
            layouts = self.part.in_layouts if origin.kind == "input" else self.part.out_layouts
            without = tuple(tuple(a for a in dims if a not in axes) for dims in layouts[origin.number].dims)
            yield Candidate(origin.kind, origin.number, None, Layout(without))

    def _of_user(self, user: JaxprEqn, value: Atom, layout: Layout) -> Iterator[Candidate]:
        """The other operands and the results of an equation, split along the same factors as ``layout``."""
        if user.op.holds_jaxprs:
            return
        rule = eqn_rule(user)
        number = next((i for i, a in enumerate(user.invars) if a is value), None)
        if number is None:
            return
        axes = factor_axes_of(layout.dims, rule.operands[number], rule, self.mesh)
        others = [(a, fs) for a, fs in zip(user.invars, rule.operands) if a is not value]
        others += zip(user.outvars, rule.results)
        layouts = layouts_of([fs for _, fs in others], axes, rule, self.mesh)
        for (atom, _), matching in zip(others, layouts):
            if matching is not None:
                yield from self._on(atom, matching)

    def _on(self, atom: Atom, layout: Layout) -> Iterator[Candidate]:
        """A candidate with this layout for a value outside of loops and branches; none if an input has it already."""
        if not isinstance(atom, Var):
            return
        if atom in self.inputs:
            number = self.inputs[atom]
            if layout != self.part.in_layouts[number]:
                yield Candidate("input", number, None, layout)
        elif atom in self.producers:
            yield Candidate("value", 0, atom, layout)

    # --- text ----------------------------------------------------------------------------------------------
    def _text(self, candidate: Candidate) -> str:
        spec = candidate.layout.to_spec(self.mesh)
        text = "P(" + ", ".join(map(repr, spec)) + ")"
        if candidate.value is not None:
            maker = self.producers[candidate.value]
            return f"with_sharding_constraint to {text} on the result of {maker.op.name} at {maker.source}"
        named = candidate.kind == "input" and candidate.number < len(self.names)
        name = f" ({self.names[candidate.number]})" if named else ""
        return f"{text} as the sharding of {candidate.kind} {candidate.number}{name}"


def _split_too(layout: Layout, dim: int, axes: Sequence[str]) -> Layout:
    """A layout with ``axes`` moved to, or added to, dimension ``dim``."""
    kept = [tuple(a for a in there if a not in axes) for there in layout.dims]
    kept[dim] += tuple(axes)
    return Layout(tuple(kept))


def _constrained(jaxpr: ClosedJaxpr, candidate: Candidate, mesh: AbstractMesh) -> ClosedJaxpr:
    """The program with a sharding constraint on a value, seen by all of its readers."""
    value = candidate.value
    if value is None:
        return jaxpr
    held = Var(value.aval)
    op = ShardingConstraint(NamedSharding.from_layout(mesh, candidate.layout))
    eqns: list[JaxprEqn] = []
    for eqn in jaxpr.eqns:
        uses = any(a is value for a in eqn.invars)
        eqns.append(eqn.replace(invars=[held if a is value else a for a in eqn.invars]) if uses else eqn)
        if any(v is value for v in eqn.outvars):
            eqns.append(JaxprEqn(op, [value], [held], eqn.source))
    outs = [held if a is value else a for a in jaxpr.jaxpr.outvars]
    return jaxpr.replace(jaxpr=jaxpr.jaxpr.replace(eqns=eqns, outvars=outs))
