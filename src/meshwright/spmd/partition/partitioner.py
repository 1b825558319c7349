"""The partitioner: one pass over the equations that records the per-device program.

Each value is available in one or more layouts. For every equation, :func:`choose` picks the layouts, reshard plans
bring the operands to them, and the op's ``localize`` is recorded on local shapes. Split reduction factors leave partial
values; the collective that reduces them is emitted when a consumer needs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from meshwright.core import source
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn, Literal, Var
from meshwright.ir.names import NUMBERS, Names
from meshwright.ir.op import Op
from meshwright.ir.passes import DEAD_CODE, run_passes
from meshwright.ir.state import extend_axis_env, set_trace
from meshwright.ir.tracing import JaxprTrace, JaxprTracer
from meshwright.ops.collective.base import Collective
from meshwright.ops.elementwise.table import add, sub
from meshwright.ops.sharding.constraint import ShardingConstraint
from meshwright.ops.sharding.propagation_marks import PropagationMark
from meshwright.sharding import AbstractMesh, Layout
from meshwright.sharding.rule import PARALLEL, REPLICATED, WINDOW, ShardingRule
from meshwright.spmd.factors import operand_layouts
from meshwright.spmd.flatten import eqn_rule, rule_of
from meshwright.spmd.localize.context import LocalContext
from meshwright.spmd.masked import masked_groups, number_of
from meshwright.spmd.partition.choose import Choice, Operand, Question, choose
from meshwright.spmd.partition.control import partition_regions
from meshwright.spmd.partition.keep_partial import KeepPartial
from meshwright.spmd.partition.layout_passes import layout_passes
from meshwright.spmd.partition.record import Partition, Replicated
from meshwright.spmd.partition.sharing import summands
from meshwright.spmd.propagate import Propagation, placement_of
from meshwright.spmd.reason import Reason
from meshwright.spmd.reshard.emit import emit_step
from meshwright.spmd.reshard.plan import plan_reshard, reshard_cost


@dataclass
class Value:
    """A value of the program, with its per-device value in each layout it is available in.

    ``recipe`` is the equation that computes the value, with its rule, if the value depends on constants only. Such
    values are recomputed in each layout that is needed, and never sent. ``counts`` is the dimension along which the
    value is known to be 0, 1, 2, … (None if there is none).
    """

    aval: ShapedArray
    versions: list[tuple[Layout, Any]]
    made_by: str
    atom: Var | Literal
    source: source.SourceLocation = source.UNKNOWN
    recipe: tuple[JaxprEqn, ShardingRule] | None = None
    constant: bool = False
    counts: int | None = None

    @property
    def is_remade(self) -> bool:
        """Whether every device can compute any tile of the value without communication."""
        return self.constant or self.recipe is not None

    @property
    def layouts(self) -> tuple[Layout, ...]:
        return tuple(layout for layout, _ in self.versions)


def is_remade(eqn: JaxprEqn, rule: ShardingRule, values: Sequence[Value]) -> bool:
    """Whether every device can cheaply compute any tile of an equation's result from constants."""
    simple = len(eqn.outvars) == 1 and not eqn.op.has_effects and not eqn.op.holds_jaxprs
    return simple and all(v.is_remade for v in values) and all(f.kind in (PARALLEL, WINDOW) for f in rule.factors)


class Partitioner:
    """Partitions one jaxpr: the program, or a region of it."""

    def __init__(
        self,
        jaxpr: ClosedJaxpr,
        mesh: AbstractMesh,
        propagation: Propagation,
        in_layouts: Sequence[Layout | None],
        out_layouts: Sequence[Layout | KeepPartial | None],
        region: bool = False,
        names: Names = NUMBERS,
    ) -> None:
        self.source = jaxpr
        self.closed = jaxpr = run_passes(jaxpr, layout_passes(propagation, mesh))
        self.mesh = mesh
        self.propagation = propagation
        self.in_layouts = [propagation.layout(v) if lo is None else lo for v, lo in zip(jaxpr.jaxpr.invars, in_layouts)]
        self.out_layouts = out_layouts
        self.region = region
        self.names = names
        self.env: dict[Var, Value] = {}
        self.trace = JaxprTrace()
        self.replicated: list[Replicated] = []
        self.products: list[Question] = []
        #: results of constraints and marks, mapped to their operands with the layouts available at that point
        self.laid_out: dict[Var, Value] = {}
        self.stands_for: dict[Var, tuple[Var, Layout]] = {}
        self.rules = [eqn_rule(e) for e in jaxpr.jaxpr.eqns]
        outs = jaxpr.jaxpr.outvars
        repeats = {a: lo.repeats for a, lo in zip(outs, out_layouts) if isinstance(lo, KeepPartial)}
        self.summands = summands(jaxpr.jaxpr.eqns, self.rules, outs, repeats)
        #: the number of equations and outputs that use each value
        self.uses: Counter[Any] = Counter(a for e in jaxpr.jaxpr.eqns for a in set(e.invars) if isinstance(a, Var))
        self.uses.update(a for a in jaxpr.jaxpr.outvars if isinstance(a, Var))

    def run(self) -> Partition:
        self.walk()
        return self.finished(self.out_layouts)

    def walk(self) -> None:
        """Record the equations, without the resharding of the outputs."""
        inner = self.closed.jaxpr
        with extend_axis_env(self._axis_env()), set_trace(self.trace):
            for number, (var, layout) in enumerate(zip(inner.invars, self.in_layouts)):
                local = self.trace.new_arg(var.aval.update(shape=layout.local_shape(var.aval.shape, self.mesh)))
                name = "a parameter of the loop or branch" if self.region else self.names.of("input", number)
                self.env[var] = Value(var.aval, [(layout, local)], name, var)
            for var, const in zip(inner.constvars, self.closed.consts):
                whole = Layout.replicated(var.aval.ndim)
                self.env[var] = Value(var.aval, [(whole, const)], "a constant", var, constant=True)
            for eqn, rule in zip(inner.eqns, self.rules):
                with source.at(eqn.source):
                    self.equation(eqn, rule)

    def finished(self, wanted: Sequence[Layout | KeepPartial | None]) -> Partition:
        """The recorded program, with its outputs resharded to the layouts ``wanted``."""
        inner = self.closed.jaxpr
        outs, out_layouts = [], []
        with extend_axis_env(self._axis_env()), set_trace(self.trace):
            for number, (atom, target) in enumerate(zip(inner.outvars, wanted)):
                local, final = self.output(number, atom, target)
                outs.append(local)
                out_layouts.append(final)
        local_jaxpr = DEAD_CODE.apply(self.trace.finish(outs, inner.debug_name))
        for variable, counterpart in self._what_stands_for():
            self.stands_for.setdefault(variable, counterpart)
        return Partition(
            local_jaxpr,
            self.mesh,
            self.in_layouts,
            out_layouts,
            self.source,
            self.propagation,
            self.replicated,
            stands_for=self.stands_for,
            products=self.products,
        )

    def _what_stands_for(self) -> Iterator[tuple[Var, tuple[Var, Layout]]]:
        theirs = {*self.source.jaxpr.invars, *self.source.jaxpr.constvars}
        theirs.update(v for e in self.source.jaxpr.eqns for v in e.outvars)
        for var, value in self.env.items():
            if var not in theirs:  # created by a layout pass, not a value of the source
                continue
            for layout, local in value.versions:
                if isinstance(local, JaxprTracer) and local.owner is self.trace:
                    yield local.variable, (var, layout)

    def _axis_env(self) -> dict[str, int]:
        mesh = self.mesh
        return {**mesh.shape, **{a: mesh.axis_size(a) for a in mesh.atoms}}

    # --- values ---------------------------------------------------------------------------------------------
    def value(self, atom: Var | Literal) -> Value:
        if isinstance(atom, Literal):
            return Value(atom.aval, [(Layout.replicated(0), atom.val)], "a constant", atom, constant=True)
        return self.env[atom]

    def bring(
        self, value: Value, layout: Layout, user: JaxprEqn | str, number: int | None = None, version: int | None = None
    ) -> Any:
        """The per-device value in ``layout``. If it is not available, it is resharded and added to the versions.

        Resharding starts from ``version``, or by default from the version that costs least. ``user`` is the equation
        that takes the value as operand ``number``, or the kind of output that it is (``"output"`` of the program or
        ``"result"`` of a region) with index ``number``.
        """
        for known, local in value.versions:
            if known == layout:
                return local
        if value.is_remade:
            version = self.remake(value, layout.drop_partial())
        elif version is None:
            version = self.cheapest(value, layout)
        before, local = value.versions[version]
        aval = value.aval
        plan = plan_reshard(aval.shape, aval.dtype.itemsize, before, layout, self.mesh)
        self.trace.note = self.reason(value, before, layout, user, number)
        for (step, after), padded in zip(plan.steps, plan.shapes):
            local = emit_step(local, step, padded, after, self.mesh)
            fits = after.local_shape(padded, self.mesh) == after.local_shape(aval.shape, self.mesh)
            if fits and not after.partial:
                value.versions.append((after, local))
        self.trace.note = None
        if plan.steps and layout.partial:
            value.versions.append((layout, local))
        return local

    def reason(self, value: Value, before: Layout, after: Layout, user: JaxprEqn | str, number: int | None) -> Reason:
        """Why a value is resharded, for ``user`` as in :meth:`bring`."""
        op, eqn = (user, None) if isinstance(user, str) else (user.op.name, user)
        output = self.names.of("output", number) if op == "output" and number is not None else ""
        return Reason(
            op,
            number,
            before,
            after,
            value.made_by,
            value.source,
            self.mesh,
            output=output,
            value=value.atom,
            user=eqn,
        )

    def operands(
        self, eqn: JaxprEqn, values: Sequence[Value], layouts: Sequence[Layout], versions: Sequence[int]
    ) -> list[Any]:
        """The operands of an equation in ``layouts``, each resharded from one of its versions."""
        choices = enumerate(zip(values, layouts, versions))
        return [self.bring(value, layout, eqn, n, version) for n, (value, layout, version) in choices]

    def set_results(self, eqn: JaxprEqn, layouts: Sequence[Layout], results: Sequence[Any]) -> None:
        for var, layout, result in zip(eqn.outvars, layouts, results):
            self.env[var] = Value(var.aval, [(layout, result)], eqn.op.name, var, eqn.source)

    def remake(self, value: Value, layout: Layout) -> int:
        """The index of a version of a recomputable value that reaches ``layout`` without communication.

        The value is recomputed in that layout if possible, and otherwise replicated.
        """
        whole = Layout.replicated(value.aval.ndim)
        for target in (layout, whole):
            if target in value.layouts:
                break
            if value.recipe is not None and self.made_in(value, target, *value.recipe):
                break
        return value.layouts.index(target)

    def made_in(self, value: Value, layout: Layout, eqn: JaxprEqn, rule: ShardingRule) -> bool:
        """Add a version in ``layout`` by running the value's equation on operands split accordingly.

        Returns False if tiles of the result cannot be computed from tiles of the operands alone.
        """
        ins = operand_layouts(layout, rule, self.mesh)
        if ins is None:
            return False
        values = [self.value(a) for a in eqn.invars]
        locals_ = [self.bring(v, lo, eqn, n) for n, (v, lo) in enumerate(zip(values, ins))]
        with source.at(eqn.source):
            value.versions.append((layout, self.localized(eqn, eqn.op, rule, values, ins, (layout,), locals_)[0]))
        return True

    # --- equations ------------------------------------------------------------------------------------------
    def equation(self, eqn: JaxprEqn, rule: ShardingRule) -> None:
        op = eqn.op
        if isinstance(op, ShardingConstraint):
            self.lay_out(eqn, self.constraint(eqn, op))
        elif isinstance(op, PropagationMark):
            self.lay_out(eqn, None if op.exact_group is None else self.propagation.layout(eqn.outvars[0]))
        elif op.holds_jaxprs and op.regions():
            results, layouts = partition_regions(self, eqn)
            self.set_results(eqn, layouts, results)
        elif is_remade(eqn, rule, values := [self.value(a) for a in eqn.invars]):
            self.remember(eqn, rule, values)
        else:
            self.compute(eqn, rule, values)

    def remember(self, eqn: JaxprEqn, rule: ShardingRule, values: Sequence[Value]) -> None:
        """Record how to recompute a value that depends on constants only, and compute it in its target layout."""
        (var,) = eqn.outvars
        counts = eqn.op.counts_along([v.counts for v in values], [v.aval for v in values])
        remade = self.env[var] = Value(var.aval, [], eqn.op.name, var, eqn.source, (eqn, rule), counts=counts)
        self.remake(remade, self.propagation.target(var) or Layout.replicated(var.aval.ndim))

    def compute(self, eqn: JaxprEqn, rule: ShardingRule, values: Sequence[Value]) -> None:
        """Record an equation on local shapes, in the cheapest layouts."""
        op, rule, choice = self.cheapest_form(eqn, rule, values)
        locals_ = self.operands(eqn, values, choice.in_layouts, choice.versions)
        self.report(eqn, rule, values, choice)
        results = self.localized(eqn, op, rule, values, choice.in_layouts, choice.out_layouts, locals_)
        for var, layout in zip(eqn.outvars, choice.out_layouts):
            if not layout.partial:
                self.summands.whole(var)
        self.set_results(eqn, choice.out_layouts, results)

    def cheapest_form(
        self, eqn: JaxprEqn, rule: ShardingRule, values: Sequence[Value]
    ) -> tuple[Op, ShardingRule, Choice]:
        """The op, or if operands have to be resharded, its cheapest alternative; with the rule and choice for it."""
        best = eqn.op, rule, self.choose(eqn, eqn.op, rule, values)
        if all(layout in value.layouts for value, layout in zip(values, best[2].in_layouts)):
            return best
        avals = tuple(v.aval for v in values)
        for op in eqn.op.alternatives(*avals):
            rule = rule_of(op, avals)
            choice = self.choose(eqn, op, rule, values)
            if choice.cost < best[2].cost:
                best = op, rule, choice
        return best

    def localized(
        self,
        eqn: JaxprEqn,
        op: Op,
        rule: ShardingRule,
        values: Sequence[Value],
        ins: Sequence[Layout],
        outs: Sequence[Layout],
        locals_: Sequence[Any],
    ) -> Sequence[Any]:
        """The results of ``op`` for an equation on one device."""
        avals = tuple(v.aval for v in values), tuple(v.aval for v in eqn.outvars)
        if any(any(lo.dims) for lo in (*ins, *outs)):
            # A collective that the user wrote needs no reason.
            self.trace.note = None if isinstance(op, Collective) else Reason(eqn.op.name, rule=rule, user=eqn)
            ctx = LocalContext(self.mesh, rule, *avals, tuple(ins), tuple(outs), tuple(v.counts for v in values))
            results: Any = op.localize(ctx, *locals_)
            self.trace.note = None
        else:
            results = eqn.op.bind(*locals_)
        return results if eqn.op.multiple_results else [results]

    def choose(self, eqn: JaxprEqn, op: Op, rule: ShardingRule, values: Sequence[Value]) -> Choice:
        avals = tuple(v.aval for v in values)
        numbers = [number_of(v.atom, v.recipe[0] if v.recipe else None) for v in values]
        question = Question(
            rule,
            tuple(
                Operand(v.aval, v.layouts, max(1, self.uses[a]), self.propagation.target(a), v.is_remade, n == 0)
                if isinstance(a, Var)
                else Operand(v.aval, v.layouts, zero=n == 0)
                for a, v, n in zip(eqn.invars, values, numbers)
            ),
            results=tuple(v.aval for v in eqn.outvars),
            targets=tuple(map(self.propagation.target, eqn.outvars)),
            summands=tuple(map(self.summands.of, eqn.outvars)),
            linear_in=op.linear_groups(*avals),
            masked_in=masked_groups(op, avals, numbers),
            adds=op is add or op is sub,
            moves_only=op.moves_only,
            mesh=self.mesh,
            exchanges=rule.is_product and self.propagation.strategy.exchanges,
        )
        if rule.is_product:
            self.products.append(question)
        return choose(question)

    def report(self, eqn: JaxprEqn, rule: ShardingRule, values: Sequence[Value], choice: Choice) -> None:
        """Record operands that the op's rule forces to be gathered."""
        for n, (value, before, after) in enumerate(zip(values, choice.versions, choice.in_layouts)):
            if value.is_remade or value.layouts[before] is after:
                continue
            used = {a for axes in after.dims for a in axes}
            for dim, (had, has) in enumerate(zip(value.layouts[before].dims, after.dims)):
                factors = rule.operands[n][dim]
                forced = not factors or any(rule.factors[f].kind == REPLICATED for f in factors)
                if had and not has and forced and not used.issuperset(had):
                    axes = self.mesh.coalesce(had)
                    self.replicated.append(Replicated(eqn.op.name, eqn.source, n, dim, axes))

    def nested(
        self,
        jaxpr: ClosedJaxpr,
        in_layouts: Sequence[Layout],
        out_layouts: Sequence[Layout | KeepPartial | None],
        mesh: AbstractMesh | None = None,
    ) -> Partition:
        """A region of the program, partitioned with the layouts that propagation found in it.

        ``mesh`` is the mesh to partition over; by default, the mesh of the program.
        """
        mesh = self.mesh if mesh is None else mesh
        return self.noted(Partitioner(jaxpr, mesh, self.propagation, in_layouts, out_layouts, region=True).run())

    def walked(self, jaxpr: ClosedJaxpr, in_layouts: Sequence[Layout], added: Sequence[KeepPartial]) -> Partitioner:
        """A partitioner that has recorded the equations of a region, but has not fixed the layouts of its results yet.

        ``added`` tells for each result how many sums share the collective that reduces it.
        """
        region = Partitioner(jaxpr, self.mesh, self.propagation, in_layouts, added, region=True)
        region.walk()
        return region

    def noted(self, part: Partition) -> Partition:
        """``part``, the partition of a region, after adding its records to those of this partitioner."""
        self.replicated += part.replicated
        self.products += part.products
        self.stands_for.update(part.stands_for)
        return part

    def constraint(self, eqn: JaxprEqn, op: ShardingConstraint) -> Layout:
        """The layout of a constraint's result.

        Open dimensions get the further axes that propagation found or, if the constraint names none, the present ones.
        """
        var, present = eqn.outvars[0], self.value(eqn.invars[0]).layouts[0]
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
        value, var = self.value(eqn.invars[0]), eqn.outvars[0]
        versions = value.versions
        self.laid_out[var] = replace(value, versions=[*versions])
        if target is not None:
            local = self.bring(value, target, eqn)
            versions = [(target, local), *(value.versions if value.is_remade else ())]
        self.env[var] = Value(
            var.aval, versions, value.made_by, var, value.source, value.recipe, value.constant, value.counts
        )

    def cheapest(self, value: Value, target: Layout) -> int:
        """The index of the version that is cheapest to reshard to ``target``."""
        aval = value.aval
        costs = [reshard_cost(aval.shape, aval.dtype.itemsize, lo, target, self.mesh) for lo in value.layouts]
        return costs.index(min(costs))

    def put_out(self, atom: Var | Literal) -> Value:
        """The value of an output.

        For a constraint's result without other uses, this is the operand of the constraint, so that it is resharded to
        the output's layout directly.
        """
        return self.laid_out[atom] if atom in self.laid_out and self.uses[atom] == 1 else self.value(atom)

    def output(self, number: int, atom: Var | Literal, layout: Layout | KeepPartial | None) -> tuple[Any, Layout]:
        value = self.value(atom) if layout is None or isinstance(layout, KeepPartial) else self.put_out(atom)
        if isinstance(layout, KeepPartial):
            if all(map(layout.keeps, value.layouts)):
                return value.versions[0][1], value.layouts[0]
            layout = None
        if layout is None:
            hint = self.propagation.layout(atom)
            layout = hint if any(hint.dims) else value.layouts[0].drop_partial()
        with source.at(value.source):
            role = "result" if self.region else "output"
            return self.bring(value, layout, role, number), layout
