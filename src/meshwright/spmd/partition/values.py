"""The values of a program on a device: in which layouts each is available, and how others are reached.

As with XLA's ``PartitionedHlo``, a value is resharded when something needs it in a layout that it does not have, and
what comes of that is kept for the next use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from meshwright.core import source
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Literal, Var
from meshwright.ir.names import NUMBERS, Names
from meshwright.ir.op import Op
from meshwright.ir.state import extend_axis_env, set_trace
from meshwright.ir.tracing import JaxprTrace, JaxprTracer
from meshwright.ops.collective.base import Collective
from meshwright.sharding import AbstractMesh, Layout
from meshwright.sharding.rule import ShardingRule
from meshwright.spmd.factors import operand_layouts
from meshwright.spmd.localize.context import LocalContext
from meshwright.spmd.masked import number_of
from meshwright.spmd.reason import Reason
from meshwright.spmd.reshard.emit import emit_step
from meshwright.spmd.reshard.plan import plan_reshard, reshard_cost

#: A value that takes more equations is not computed again where the program would do them when it runs: devices would
#: repeat the arithmetic of others to spare one collective.
MOST_REMADE = 12


class Recipe(NamedTuple):
    """The equation that computes a value that every device can compute any tile of, with its rule.

    ``equations`` is how many compute it, this one among them. ``fixed``: it is made of constants alone, and
    ``of_numbers``: of constants and numbers, not of other arrays that are known when the program runs.
    """

    eqn: JaxprEqn
    rule: ShardingRule
    equations: int
    fixed: bool
    of_numbers: bool


class Use(NamedTuple):
    """What takes a value: operand ``number`` of an equation, or output ``number`` of the program or of a region."""

    taker: JaxprEqn | str  #: the equation, or ``"output"`` of the program, ``"result"`` of a region
    number: int


@dataclass
class PartitionedValue:
    """A value of the program, with its per-device value in each layout it is available in.

    A value with a ``recipe`` is recomputed in each layout that is needed, and never sent. ``counts`` is the dimension
    along which the value is known to be 0, 1, 2, … (None if there is none). ``earlier`` are versions from before a
    constraint on the value: what follows is not laid out like them, but takes them if it needs just these layouts.
    ``runs`` is how many runs of the program or region it stays the same for: inside a loop, one that the loop does not
    change is the same in each iteration.
    """

    aval: ShapedArray
    versions: list[tuple[Layout, Any]]
    made_by: str
    atom: Atom
    source: source.SourceLocation = source.UNKNOWN
    recipe: Recipe | None = None
    constant: bool = False
    counts: int | None = None
    earlier: tuple[tuple[Layout, Any], ...] = ()
    runs: int = 1

    @property
    def is_remade(self) -> bool:
        """Whether every device can compute any tile of the value without communication."""
        return self.constant or self.recipe is not None

    @property
    def is_fixed(self) -> bool:
        """Whether the value is made of constants alone."""
        return self.constant or (self.recipe is not None and self.recipe.fixed)

    @property
    def is_of_numbers(self) -> bool:
        """Whether the value is made of constants and numbers, not of other arrays."""
        return self.constant or (self.recipe is not None and self.recipe.of_numbers)

    @property
    def is_everywhere(self) -> bool:
        """Whether every device has the whole value."""
        return any(not layout.partial and not any(layout.dims) for layout in self.layouts)

    @property
    def layouts(self) -> tuple[Layout, ...]:
        return tuple(layout for layout, _ in self.versions)

    @property
    def written(self) -> list[tuple[Layout, Any]]:
        """The versions that are constants of the per-device program, which its loops and branches may hold as well."""
        return [(layout, local) for layout, local in self.versions if not isinstance(local, JaxprTracer)]

    @property
    def number(self) -> Any:
        """The real number that all elements equal; None if that is not known."""
        return number_of(self.atom, self.recipe.eqn if self.recipe else None)

    def cost(self, version: Layout, target: Layout, mesh: AbstractMesh) -> int:
        """The cost of resharding a version of the value to ``target``."""
        return reshard_cost(self.aval.shape, self.aval.dtype.itemsize, version, target, mesh)

    def cheapest(self, target: Layout, mesh: AbstractMesh) -> int:
        """The index of the version that is cheapest to reshard to ``target``."""
        costs = [self.cost(layout, target, mesh) for layout in self.layouts]
        return costs.index(min(costs))


def runs_of(operands: Iterable[PartitionedValue]) -> int:
    """How many runs a value that is computed from these stays the same for."""
    return min((v.runs for v in operands if not v.is_fixed), default=1)


class LocalProgram:
    """The per-device program while it is recorded, with the values of the program that it is made from."""

    def __init__(self, mesh: AbstractMesh, names: Names = NUMBERS) -> None:
        self.mesh = mesh
        self.names = names
        self.trace = JaxprTrace()
        self.env: dict[Var, PartitionedValue] = {}

    @cached_property
    def _axis_env(self) -> dict[str, int]:
        mesh = self.mesh
        return {**mesh.shape, **{a: mesh.axis_size(a) for a in mesh.atoms}}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """While it lasts, ops are recorded in this program."""
        with extend_axis_env(self._axis_env), set_trace(self.trace):
            yield

    def value(self, atom: Atom) -> PartitionedValue:
        if isinstance(atom, Literal):
            whole = Layout.replicated(0)
            return PartitionedValue(atom.aval, [(whole, atom.val)], "a constant", atom, constant=True)
        return self.env[atom]

    def add_inputs(
        self, jaxpr: ClosedJaxpr, layouts: Sequence[Layout], names: Sequence[str], runs: Sequence[int]
    ) -> None:
        """Record the parameters for a program's inputs, and enter its constants."""
        for var, layout, name, each in zip(jaxpr.jaxpr.invars, layouts, names, runs):
            local = self.trace.new_arg(var.aval.update(shape=layout.local_shape(var.aval.shape, self.mesh)))
            self.env[var] = PartitionedValue(var.aval, [(layout, local)], name, var, runs=each)
        for var, const in zip(jaxpr.jaxpr.constvars, jaxpr.consts):
            whole = Layout.replicated(var.aval.ndim)
            self.env[var] = PartitionedValue(var.aval, [(whole, const)], "a constant", var, constant=True)

    def know(self, parameter: Var, value: PartitionedValue, around: LocalProgram) -> None:
        """Enter that a region's parameter is always this value of the program around it: if that is made of constants,
        any tile of it can be computed in the region as well."""
        known = self.env[parameter]
        if value.constant:
            self.env[parameter] = replace(known, versions=[*known.versions, *value.written], constant=True)
        elif value.recipe is not None and value.recipe.fixed and value.recipe.equations <= MOST_REMADE:
            self.env[parameter] = replace(known, recipe=value.recipe, counts=value.counts)
            self._know_operands(value.recipe, around)

    def _know_operands(self, recipe: Recipe, around: LocalProgram) -> None:
        for atom in recipe.eqn.invars:
            if isinstance(atom, Var) and atom not in self.env:
                value = around.value(atom)
                self.env[atom] = replace(value, versions=value.written, earlier=())
                if value.recipe is not None:
                    self._know_operands(value.recipe, around)

    def set_results(self, eqn: JaxprEqn, layouts: Sequence[Layout], results: Sequence[Any]) -> None:
        runs = runs_of(self.env[a] for a in eqn.invars if isinstance(a, Var))
        for var, layout, result in zip(eqn.outvars, layouts, results):
            self.env[var] = PartitionedValue(var.aval, [(layout, result)], eqn.op.name, var, eqn.source, runs=runs)

    def counterparts(self) -> Iterator[tuple[Var, Var, Layout]]:
        """The variables of the recorded program that hold a value's tile, with that value and its layout."""
        for var, value in self.env.items():
            for layout, local in value.versions:
                if isinstance(local, JaxprTracer) and local.owner is self.trace:
                    yield local.variable, var, layout

    # --- resharding -----------------------------------------------------------------------------------------
    def bring(self, value: PartitionedValue, layout: Layout, use: Use, version: int | None = None) -> Any:
        """The per-device value in ``layout``. If it is not available, it is resharded and added to the versions.

        Resharding starts from ``version``, or by default from the version that costs least.
        """
        for known, local in (*value.versions, *value.earlier):
            if known == layout:
                return local
        if value.is_remade:
            version = self.remake(value, layout.drop_partial())
        elif version is None:
            version = value.cheapest(layout, self.mesh)
        before, local = value.versions[version]
        aval = value.aval
        plan = plan_reshard(aval.shape, aval.dtype.itemsize, before, layout, self.mesh)
        self.trace.note = self._reason(value, before, layout, use)
        for (step, after), padded, reached in zip(plan.steps, plan.shapes, plan.reached):
            local = emit_step(local, step, padded, after, self.mesh)
            if reached and not after.partial:
                value.versions.append((after, local))
        self.trace.note = None
        if plan.steps and layout.partial:
            value.versions.append((layout, local))
        return local

    def _reason(self, value: PartitionedValue, before: Layout, after: Layout, use: Use) -> Reason:
        taker, number = use
        op, eqn = (taker, None) if isinstance(taker, str) else (taker.op.name, taker)
        return Reason(
            op,
            number,
            before,
            after,
            value.made_by,
            value.source,
            self.mesh,
            output=self.names.of("output", number) if op == "output" else "",
            value=value.atom,
            user=eqn,
        )

    def remake(self, value: PartitionedValue, layout: Layout) -> int:
        """The index of a version of a recomputable value that reaches ``layout`` without communication.

        The value is recomputed in that layout if possible, and otherwise replicated.
        """
        whole = Layout.replicated(value.aval.ndim)
        for target in (layout, whole):
            if target in value.layouts or (value.recipe is not None and self._made_in(value, target, value.recipe)):
                break
        return value.layouts.index(target)

    def _made_in(self, value: PartitionedValue, layout: Layout, recipe: Recipe) -> bool:
        """Add a version in ``layout`` by running the value's equation on operands split accordingly.

        Returns False if tiles of the result cannot be computed from tiles of the operands alone.
        """
        eqn, rule = recipe.eqn, recipe.rule
        ins = operand_layouts(layout, rule, self.mesh)
        if ins is None:
            return False
        values = [self.value(a) for a in eqn.invars]
        locals_ = [self.bring(v, lo, Use(eqn, n)) for n, (v, lo) in enumerate(zip(values, ins))]
        with source.at(eqn.source):
            (result,) = self.localized(eqn, eqn.op, self.context(eqn, rule, values, ins, (layout,)), locals_)
        value.versions.append((layout, result))
        return True

    # --- ops on local shapes --------------------------------------------------------------------------------
    def context(
        self,
        eqn: JaxprEqn,
        rule: ShardingRule,
        values: Sequence[PartitionedValue],
        ins: tuple[Layout, ...],
        outs: tuple[Layout, ...],
    ) -> LocalContext:
        """What ``localize`` is given for an equation on these values, in these layouts."""
        avals = tuple(v.aval for v in values), tuple(v.aval for v in eqn.outvars)
        return LocalContext(self.mesh, rule, *avals, ins, outs, tuple(v.counts for v in values))

    def localized(self, eqn: JaxprEqn, op: Op, context: LocalContext, operands: Sequence[Any]) -> Sequence[Any]:
        """The results on a device of an equation, computed by ``op``: its own, or an alternative."""
        if any(any(layout.dims) for layout in (*context.in_layouts, *context.out_layouts)):
            # A collective that the user wrote needs no reason.
            note = None if isinstance(op, Collective) else Reason(eqn.op.name, rule=context.rule, user=eqn)
            self.trace.note = note
            results: Any = op.localize(context, *operands)
            self.trace.note = None
        else:
            results = eqn.op.bind(*operands)
        return results if eqn.op.multiple_results else [results]
