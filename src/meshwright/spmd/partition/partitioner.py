"""The partitioner: one pass over the equations that records the per-device program.

Each value is available in one or more layouts. For every equation, :func:`choose` picks the layouts, reshard plans
bring the operands to them, and the op's ``localize`` is recorded on local shapes. Split reduction factors leave partial
values; the collective that reduces them is emitted when a consumer needs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from meshwright.core import source
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Var
from meshwright.ir.names import NUMBERS, Names
from meshwright.ir.op import Op
from meshwright.ir.passes import DEAD_CODE, run_passes
from meshwright.ops.collective.base import Collective
from meshwright.ops.control.flow import ControlOp
from meshwright.ops.elementwise.table import add, sub
from meshwright.ops.sharding.constraint import ShardingConstraint
from meshwright.ops.sharding.propagation_marks import PropagationMark
from meshwright.sharding import AbstractMesh, Layout
from meshwright.sharding.rule import PARALLEL, REPLICATED, WINDOW, ShardingRule
from meshwright.spmd.masked import masked_groups
from meshwright.spmd.own_rows import ReadByOwn
from meshwright.spmd.partition.choose import choose
from meshwright.spmd.partition.control import partition_control
from meshwright.spmd.partition.layout_passes import layout_passes
from meshwright.spmd.partition.manual import partition_manual
from meshwright.spmd.partition.question import Choice, Operand, Question
from meshwright.spmd.partition.regions import KeepPartial, Wanted
from meshwright.spmd.partition.result import Diagnostics, Partition, Replicated, gathered_dims
from meshwright.spmd.partition.summands import summands
from meshwright.spmd.partition.values import MOST_REMADE, LocalProgram, PartitionedValue, Recipe, Use, runs_of
from meshwright.spmd.propagate import Propagation, placement_of
from meshwright.spmd.rules import eqn_rule, rule_of


def recipe(eqn: JaxprEqn, rule: ShardingRule, values: Sequence[PartitionedValue]) -> Recipe | None:
    """How every device computes any tile of an equation's result from constants and values that all devices have whole,
    for instance ``arange(n) * t``; None if that takes more, or is not cheap."""
    op = eqn.op
    simple = len(eqn.outvars) == 1 and not op.has_effects and not op.holds_jaxprs and not isinstance(op, Collective)
    if not simple or not all(v.is_remade or v.is_everywhere for v in values):
        return None
    of_numbers = all(v.is_of_numbers or not v.aval.ndim for v in values)
    # What shifts or adds up rows would be computed whole, and of arrays that is more than sending a few rows.
    kinds = (PARALLEL, WINDOW) if of_numbers else (PARALLEL,)
    if any(f.kind not in kinds for f in rule.factors):
        return None
    equations = 1 + sum(v.recipe.equations for v in values if v.recipe)
    made = Recipe(eqn, rule, equations, all(v.is_fixed for v in values), of_numbers)
    return made if made.fixed or (eqn.outvars[0].aval.ndim and made.equations <= MOST_REMADE) else None


def _form(eqn: JaxprEqn, n: int, propagation: Propagation) -> Any:
    """What equations of the same form share: operand ``n``, the op, and the layouts that the others should have."""
    others = (propagation.target(a) if isinstance(a, Var) else None for a in eqn.invars if a is not eqn.invars[n])
    return eqn.invars[n], n, eqn.op, *others, *map(propagation.target, eqn.outvars)


class Partitioner:
    """Partitions one jaxpr: the program, or a region of it, which adds to the ``diagnostics`` of what is around it."""

    def __init__(
        self,
        jaxpr: ClosedJaxpr,
        mesh: AbstractMesh,
        propagation: Propagation,
        in_layouts: Sequence[Layout | None],
        out_layouts: Sequence[Wanted],
        names: Names = NUMBERS,
        around: Partitioner | None = None,
        runs: Sequence[int] | None = None,
        given: Sequence[PartitionedValue] = (),
    ) -> None:
        self.source = jaxpr
        self.closed = jaxpr = run_passes(jaxpr, layout_passes(propagation, mesh))
        if jaxpr is not self.source:
            propagation.origins.rewritten(jaxpr.jaxpr.eqns)
        self.mesh = mesh
        self.propagation = propagation
        self.in_layouts = [propagation.layout(v) if lo is None else lo for v, lo in zip(jaxpr.jaxpr.invars, in_layouts)]
        self.out_layouts = out_layouts
        self.runs = [1] * len(jaxpr.jaxpr.invars) if runs is None else runs
        self.given = given
        self.around = around
        self.diagnostics: Diagnostics = Diagnostics() if around is None else around.diagnostics
        self.local = LocalProgram(mesh, names)
        #: results of constraints and marks, mapped to their operands with the layouts available at that point
        self.laid_out: dict[Var, PartitionedValue] = {}
        self.rules = [eqn_rule(e) for e in jaxpr.jaxpr.eqns]
        outs = jaxpr.jaxpr.outvars
        #: the number of equations and outputs that use each value
        self.uses: Counter[Any] = Counter(a for e in jaxpr.jaxpr.eqns for a in set(e.invars) if isinstance(a, Var))
        self.uses.update(a for a in outs if isinstance(a, Var))
        self.alike = self._alike()
        kept = [(a, lo.repeats) for a, lo in zip(outs, out_layouts) if isinstance(lo, KeepPartial)]
        # A sum that the region uses itself is reduced in each run of it.
        repeats = {a: count for a, count in kept if self.uses[a] == 1}
        self.own = ReadByOwn(jaxpr.jaxpr)
        self.summands = summands(jaxpr.jaxpr.eqns, self.rules, outs, repeats)
        for atom, wanted in zip(outs, out_layouts):
            if isinstance(wanted, Layout) and isinstance(atom, Var) and wanted.partial:
                self.summands.computed(atom, wanted.partial)

    def _alike(self) -> Counter[Any]:
        """For each form of equation, how many there are."""
        eqns = [e for e in self.closed.jaxpr.eqns if not e.op.holds_jaxprs]
        places = ((e, n) for e in eqns for n, a in enumerate(e.invars) if isinstance(a, Var) and self.uses[a] > 1)
        return Counter(_form(e, n, self.propagation) for e, n in places)

    def run(self) -> Partition:
        self.record()
        return self.finished()

    def record(self) -> None:
        """Record the equations, without the resharding of the outputs."""
        inner, names = self.closed.jaxpr, self.local.names
        called = [
            "a parameter of the loop or branch" if self.around else names.of("input", number)
            for number in range(len(inner.invars))
        ]
        with self.local.recording():
            self.local.add_inputs(self.closed, self.in_layouts, called, self.runs)
            if self.around is not None:
                for var, value in zip(inner.invars, self.given):
                    self.local.know(var, value, self.around.local)
            for eqn, rule in zip(inner.eqns, self.rules):
                with source.at(eqn.source):
                    self.equation(eqn, rule)

    def finished(self, wanted: Sequence[Wanted] | None = None) -> Partition:
        """The recorded program, with its outputs resharded to the layouts ``wanted``: by default, as first asked."""
        inner = self.closed.jaxpr
        outs, out_layouts = [], []
        with self.local.recording():
            for number, (atom, target) in enumerate(zip(inner.outvars, self.out_layouts if wanted is None else wanted)):
                local, final = self.output(number, atom, target)
                outs.append(local)
                out_layouts.append(final)
        local_jaxpr = DEAD_CODE.apply(self.local.trace.finish(outs, inner.debug_name))
        theirs = {*self.source.jaxpr.invars, *self.source.jaxpr.constvars}
        theirs.update(v for e in self.source.jaxpr.eqns for v in e.outvars)
        found = self.diagnostics
        for variable, var, layout in self.local.counterparts():
            if var in theirs:  # others were created by a layout pass
                found.stands_for.setdefault(variable, (var, layout))
        return Partition(
            local_jaxpr,
            self.mesh,
            self.in_layouts,
            out_layouts,
            self.source,
            self.propagation,
            found.replicated,
            stands_for=found.stands_for,
            questions=found.questions,
            placed=found.placed,
            stacks_sums=found.stacks_sums,
            strategy=self.propagation.strategy,
        )

    # --- equations ------------------------------------------------------------------------------------------
    def equation(self, eqn: JaxprEqn, rule: ShardingRule) -> None:
        op = eqn.op
        if isinstance(op, ShardingConstraint):
            self.lay_out(eqn, self.constraint(eqn, op))
        elif isinstance(op, PropagationMark):
            self.lay_out(eqn, None if op.exact_group is None else self.propagation.layout(eqn.outvars[0]))
        elif op.holds_jaxprs and op.regions():
            partitioned = partition_control if isinstance(op, ControlOp) else partition_manual
            results, layouts = partitioned(self, eqn)
            self.local.set_results(eqn, layouts, results)
        elif (known := recipe(eqn, rule, values := [self.local.value(a) for a in eqn.invars])) is not None:
            self.remember(known, values)
        else:
            self.compute(eqn, rule, values)

    def remember(self, recipe: Recipe, values: Sequence[PartitionedValue]) -> None:
        """Record how to recompute a value, and compute it in its target layout."""
        eqn, (var,) = recipe.eqn, recipe.eqn.outvars
        counts = eqn.op.counts_along([v.counts for v in values], [v.aval for v in values])
        remade = PartitionedValue(
            var.aval, [], eqn.op.name, var, eqn.source, recipe, counts=counts, runs=runs_of(values)
        )
        self.local.env[var] = remade
        self.local.remake(remade, self.propagation.target(var) or Layout.replicated(var.aval.ndim))

    def compute(self, eqn: JaxprEqn, rule: ShardingRule, values: Sequence[PartitionedValue]) -> None:
        """Record an equation on local shapes, in the cheapest layouts."""
        op, rule, choice = self.cheapest_form(eqn, rule, values)
        chosen = enumerate(zip(values, choice.in_layouts, choice.versions))
        operands = [self.local.bring(value, layout, Use(eqn, n), version) for n, (value, layout, version) in chosen]
        self.report(eqn, rule, values, choice)
        if rule.is_product and (target := self.propagation.target(eqn.outvars[0])) is not None:
            self.diagnostics.placed.append((eqn, rule, choice.out_layouts[0], target))
        context = self.local.context(eqn, rule, values, choice.in_layouts, choice.out_layouts)
        results = self.local.localized(eqn, op, context, operands)
        for var, layout in zip(eqn.outvars, choice.out_layouts):
            self.summands.computed(var, layout.partial)
        self.own.computed(eqn, choice.in_layouts)
        self.local.set_results(eqn, choice.out_layouts, results)

    def cheapest_form(
        self, eqn: JaxprEqn, rule: ShardingRule, values: Sequence[PartitionedValue]
    ) -> tuple[Op, ShardingRule, Choice]:
        """The op, or its cheapest alternative if operands have to be resharded, or can be made in any layout; with the
        rule and choice for it."""
        best = eqn.op, rule, self.choose(eqn, eqn.op, rule, values)
        wanted = zip(values, best[2].in_layouts)
        if all(layout in value.layouts and not value.is_remade for value, layout in wanted):
            return best
        avals = tuple(v.aval for v in values)
        for op in eqn.op.alternatives(*avals):
            rule = rule_of(op, avals)
            choice = self.choose(eqn, op, rule, values)
            if choice.cost < best[2].cost:
                best = op, rule, choice
        return best

    def choose(self, eqn: JaxprEqn, op: Op, rule: ShardingRule, values: Sequence[PartitionedValue]) -> Choice:
        avals = tuple(v.aval for v in values)
        numbers = [v.number for v in values]
        passing = self.own.passes(eqn)
        question = Question(
            rule,
            tuple(self.operand(eqn, n, value, number) for n, (value, number) in enumerate(zip(values, numbers))),
            results=tuple(v.aval for v in eqn.outvars),
            targets=tuple(t and t.without(passing) for t in map(self.propagation.target, eqn.outvars)),
            summands=tuple(map(self.summands.of, eqn.outvars)),
            reduced_with=tuple((*self.summands.reduced_with(v), *passing) for v in eqn.outvars),
            linear_in=op.linear_groups(*avals),
            masked_in=masked_groups(op, avals, numbers),
            adds=op is add or op is sub,
            moves_only=op.moves_only,
            mesh=self.mesh,
            own=self.own.factor(eqn, rule),
        ).under(self.propagation.strategy)
        choice = choose(question)
        if question.may_change(choice):
            self.diagnostics.questions.append(question)
        return choice

    def operand(self, eqn: JaxprEqn, n: int, value: PartitionedValue, number: Any) -> Operand:
        """What a choice depends on of operand ``n``, all of whose elements are ``number`` (None: not known)."""
        atom = eqn.invars[n]
        if not isinstance(atom, Var):
            return Operand(value.aval, value.layouts, zero=number == 0)
        uses, target = max(1, self.uses[atom]), self.propagation.target(atom)
        alike = self.alike[_form(eqn, n, self.propagation)] if uses > 1 else 1
        own = self.own.axes.get(atom, ())
        zero, alike, remade = number == 0, max(1, alike), value.is_remade
        of_arrays = remade and not value.is_of_numbers
        return Operand(value.aval, value.layouts, uses, target, remade, zero, value.runs, alike, own, of_arrays)

    def report(self, eqn: JaxprEqn, rule: ShardingRule, values: Sequence[PartitionedValue], choice: Choice) -> None:
        """Record operands that the op's rule forces to be gathered."""
        for n, (value, before, after) in enumerate(zip(values, choice.versions, choice.in_layouts)):
            if value.is_remade or value.layouts[before] is after:
                continue
            for dim, axes in gathered_dims(value.layouts[before], after):
                factors = rule.operands[n][dim]
                if not factors or any(rule.factors[f].kind == REPLICATED for f in factors):
                    self.diagnostics.replicated.append(
                        Replicated(eqn.op.name, eqn.source, n, dim, self.mesh.coalesce(axes))
                    )

    def region(
        self,
        jaxpr: ClosedJaxpr,
        in_layouts: Sequence[Layout],
        out_layouts: Sequence[Wanted],
        mesh: AbstractMesh | None = None,
        runs: Sequence[int] | None = None,
        given: Sequence[PartitionedValue] = (),
    ) -> Partitioner:
        """A partitioner that has recorded a region, with the layouts that propagation found in it.

        For the arguments, see :meth:`meshwright.spmd.partition.regions.Scope.region`.
        """
        mesh = self.mesh if mesh is None else mesh
        inside = Partitioner(
            jaxpr, mesh, self.propagation, in_layouts, out_layouts, around=self, runs=runs, given=given
        )
        inside.record()
        return inside

    def constraint(self, eqn: JaxprEqn, op: ShardingConstraint) -> Layout:
        """The layout of a constraint's result.

        Open dimensions get the further axes that propagation found or, if the constraint names none, the present ones.
        """
        var, present = eqn.outvars[0], self.local.value(eqn.invars[0]).layouts[0]
        placement = placement_of(op, var.aval.ndim, self.mesh)
        grown = self.propagation.layout(var)
        taken = set(placement.barred).union(*placement.dims)
        dims = list(placement.dims)
        for d, (axes, fixed) in enumerate(zip(placement.dims, placement.fixed)):
            if not fixed:
                more = grown.dims[d][len(axes) :] if axes else present.dims[d]
                dims[d] = axes + tuple(a for a in more if a not in taken)
                taken.update(dims[d])
        unreduced = self.mesh.expand(op.leeway.unreduced)
        kept = [a for a in present.partial if a in unreduced and a not in taken]
        return Layout(tuple(dims)).with_partial(kept, present.reduction)

    def lay_out(self, eqn: JaxprEqn, target: Layout | None) -> None:
        """Set the result of an identity equation: its operand in layout ``target``, or with None in any layout."""
        value, var = self.local.value(eqn.invars[0]), eqn.outvars[0]
        versions, earlier = value.versions, value.earlier
        self.laid_out[var] = replace(value, versions=[*versions])
        if target is not None:
            local = self.local.bring(value, target, Use(eqn, 0))
            earlier = (*earlier, *(v for v in value.versions if not v[0].partial))
            versions = [(target, local), *(value.versions if value.is_remade else ())]
        self.local.env[var] = replace(value, aval=var.aval, versions=versions, atom=var, earlier=earlier)

    def put_out(self, atom: Atom) -> PartitionedValue:
        """The value of an output.

        For a constraint's result without other uses, this is the operand of the constraint, so that it is resharded to
        the output's layout directly.
        """
        return self.laid_out[atom] if atom in self.laid_out and self.uses[atom] == 1 else self.local.value(atom)

    def results(self) -> list[PartitionedValue]:
        return [self.put_out(atom) for atom in self.closed.jaxpr.outvars]

    def in_step(self, atom: Atom, value: PartitionedValue, asked: KeepPartial) -> bool:
        """Whether the strategy completes a sum before a loop stacks it. That there is one is noted: the other strategy
        is worth an attempt."""
        wanted = {axis for axes in self.propagation.layout(atom).dims for axis in axes}
        if not asked.stacked or wanted.isdisjoint(value.layouts[0].partial):
            return False
        self.diagnostics.stacks_sums = True
        return self.propagation.strategy.in_steps

    def output(self, number: int, atom: Atom, layout: Wanted) -> tuple[Any, Layout]:
        free = layout is None or isinstance(layout, KeepPartial)
        value = self.local.value(atom) if free else self.put_out(atom)
        if isinstance(layout, KeepPartial):
            if all(map(layout.keeps, value.layouts)) and not self.in_step(atom, value, layout):
                return value.versions[0][1], value.layouts[0]
            layout = None
        if layout is None:
            hint = self.propagation.layout(atom)
            layout = hint if any(hint.dims) else value.layouts[0].drop_partial()
        with source.at(value.source):
            return self.local.bring(value, layout, Use("result" if self.around else "output", number)), layout
