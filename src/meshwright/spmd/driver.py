"""The partitioning driver: prepare the program, propagate shardings, localize equations, improve communication."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwright.core.collector import collector_paused
from meshwright.core.config import config
from meshwright.ir.jaxpr import ClosedJaxpr, Var
from meshwright.ir.names import NUMBERS, Names
from meshwright.ir.passes import DEAD_CODE, INLINE, Pass, dump, run_passes
from meshwright.ops.control.check import NO_DEBUG_CHECKS
from meshwright.ops.control.stacked_rows import blocks_of_rows, leading_rows
from meshwright.ops.element_order import in_one_order
from meshwright.ops.indexing.counted_rows import counted_rows
from meshwright.ops.indexing.inside import INSIDE
from meshwright.ops.indexing.known_places import known_places
from meshwright.ops.shape.cut_pads import cut_pads
from meshwright.ops.shape.cyclic import cyclic_windows
from meshwright.ops.shape.interiors import interiors
from meshwright.ops.shape.joined_pads import joined_pads
from meshwright.ops.shape.joined_stacks import joined_stacks
from meshwright.ops.shape.shifts import joined_shifts, windows_of_extended
from meshwright.ops.shape.spaced_rows import spaced_rows
from meshwright.ops.shape.undone import undone
from meshwright.ops.shape.uniform import uniform
from meshwright.ops.sharding.untyped import UNTYPED
from meshwright.ops.window.own_padding import own_padding
from meshwright.sharding import AbstractMesh, Layout
from meshwright.spmd.partition.attempt import Attempt
from meshwright.spmd.partition.lookahead import Search
from meshwright.spmd.partition.planner import Planner
from meshwright.spmd.partition.result import Partition
from meshwright.spmd.partition.taken_apart import taken_apart_everywhere
from meshwright.spmd.passes.dead import drop_dead
from meshwright.spmd.passes.passed_on import passed_on
from meshwright.spmd.scalars import known_scalars
from meshwright.spmd.strategy import Strategy

LEADING_ROWS = Pass(
    "leading rows", leading_rows, "Rows that a loop indexes with its counter become scanned inputs and outputs."
)
KNOWN_PLACES = Pass("known places", known_places, "Dynamic slices and updates at constant indices become static.")
COUNTED_ROWS = Pass(
    "counted rows", counted_rows, "A dimension indexed with 0, 1, 2, ... becomes a batching dimension of the indices."
)
UNIFORM = Pass("uniform", uniform, "Arrays that only move a number that is the same everywhere are filled with it.")
OWN_PADDING = Pass(
    "own padding", own_padding, "Padding before windows becomes theirs, and slices of their results are fewer windows."
)
SPACED_ROWS = Pass("spaced rows", spaced_rows, "A strided slice of a zero-padded array becomes one op.")
CYCLIC_WINDOWS = Pass(
    "cyclic windows", cyclic_windows, "Concatenated slices that wrap around an array's end become one window."
)
KNOWN_SCALARS = Pass(
    "known scalars",
    known_scalars,
    "Integers that constants alone make become constants, and choices by them the branch that is taken.",
)
CUT_PADS = Pass("cut pads", cut_pads, "Padded arrays of whose sum only a part is needed are cut before they are added.")
JOINED_PADS = Pass("joined pads", joined_pads, "Sums of zero-padded arrays that do not overlap become concatenations.")
JOINED_STACKS = Pass(
    "joined stacks", joined_stacks, "Stacks of concatenations with all rows of an array become concatenations with it."
)
IN_ONE_ORDER = Pass("in one order", in_one_order, "Reversals and rotations move past elementwise ops and combine.")
UNDONE = Pass("undone", undone, "Reshapes and transposes that are undone after elementwise ops are removed.")
PASSED_ON = Pass("passed on", passed_on, "Values that loops and branches return unchanged bypass them.")
DROP_DEAD = Pass(
    "drop dead code", drop_dead, "Unused values are removed, including results and carries of control flow."
)
#: passes that prepare the whole program for sharding propagation
PREPARE = (
    INLINE, NO_DEBUG_CHECKS, UNTYPED, KNOWN_SCALARS, INSIDE, LEADING_ROWS, KNOWN_PLACES, COUNTED_ROWS, UNIFORM,
    OWN_PADDING, SPACED_ROWS, CUT_PADS, JOINED_PADS, JOINED_STACKS, CYCLIC_WINDOWS, PASSED_ON, DROP_DEAD, UNDONE,
    IN_ONE_ORDER,
)  # fmt: skip
#: passes that are tried; their result is kept if it is cheaper
ALTERNATIVE = (
    Pass(
        "windows of extended arrays",
        windows_of_extended,
        "Slices of an array that its own rows extend become shifts of the array, with these rows as borders.",
    ),
    Pass("interiors", interiors, "Stencils on an array's interior are computed in the array's own tiles."),
    Pass("joined shifts", joined_shifts, "Shifts of one array along several dimensions become one halo exchange."),
    DEAD_CODE,
)
#: alternatives for programs with loops
ALTERNATIVE_LOOPS = (
    Pass(
        "blocks of rows", blocks_of_rows, "Blocks of rows that loops read or write become scanned inputs and outputs."
    ),
    DROP_DEAD,
)


@collector_paused()
def partition(
    jaxpr: ClosedJaxpr,
    mesh: AbstractMesh,
    in_layouts: Sequence[Layout | None],
    out_layouts: Sequence[Layout | None],
    combine_bytes: int = 0,
    strategy: Strategy | None = None,
    names: Names = NUMBERS,
) -> Partition:
    """Partition a program for ``mesh``. Layouts that are ``None`` are chosen here.

    ``combine_bytes`` is the bucket size for combining small collectives; 0 leaves each on its own. Without a
    ``strategy``, the best one is searched for. ``names`` are the user's names of inputs and outputs, for messages.
    """
    dump(jaxpr, "input")
    planner = Planner(run_passes(jaxpr, PREPARE), mesh, in_layouts, out_layouts, combine_bytes, names)
    with config.override("dump_ir", None):
        part = _looked_ahead(planner) if strategy is None else _planned(planner, strategy)
    if config.dump_ir is not None:
        part = _planned(planner, part.strategy)  # once more, to dump only the chosen strategy
    return replace(part, asked=(tuple(in_layouts), tuple(out_layouts)))


def _variant(planner: Planner, strategy: Strategy) -> Planner:
    """The planner for the form of the program that a strategy asks for."""
    jaxpr = planner.jaxpr
    jaxpr = run_passes(jaxpr, ALTERNATIVE_LOOPS) if strategy.blocks else jaxpr
    jaxpr = run_passes(jaxpr, ALTERNATIVE) if strategy.whole else jaxpr
    planner = planner if jaxpr is planner.jaxpr else replace(planner, jaxpr=jaxpr, spread={})
    return planner if strategy.apart is None else _in_parts(planner, strategy.apart)


def _in_parts(planner: Planner, strategy: Strategy) -> Planner:
    """The planner for the program with dimensions in parts where ``strategy`` takes them apart."""
    found = planner.propagate(strategy)
    jaxpr = taken_apart_everywhere(planner.jaxpr, found, planner.mesh)
    if jaxpr is planner.jaxpr:
        return planner
    outs = zip(planner.jaxpr.jaxpr.outvars, planner.out_layouts)
    kept = [found.target(v) if asked is None and isinstance(v, Var) else asked for v, asked in outs]
    return replace(planner, jaxpr=jaxpr, out_layouts=kept, spread={})


def _planned(planner: Planner, strategy: Strategy) -> Partition:
    planner = _variant(planner, strategy)
    return planner.partition(planner.propagate(strategy))


def _looked_ahead(planner: Planner) -> Partition:
    """The best plan for the program, including its alternative forms if it has any."""
    search = Search(planner)
    found = search.run()
    for form in (Strategy(whole=True), Strategy(blocks=True)):
        variant = _variant(planner, form)
        if variant is not planner and found.sent[1]:
            other = Search(variant)
            # What costs the same to begin with only takes as long to search.
            if not other.as_written.costs_as(search.as_written):
                found = _better_form(other.run(), form, found)
    if found.is_searchable:
        form = Strategy(whole=found.strategy.whole, blocks=found.strategy.blocks)
        usual = _variant(planner, form)
        variant = _in_parts(usual, found.strategy)
        if variant is not usual:
            found = _better_form(Search(variant).run(), replace(form, apart=found.strategy), found)
    return found.part


def _better_form(other: Attempt, form: Strategy, found: Attempt) -> Attempt:
    """The plan for another form of the program, if it is better than what was found for the usual one."""
    # Peak estimates do not see what loops write in place.
    if other.is_better(found) and (not form.blocks or other.price * other.peak < found.price * found.peak):
        strategy = replace(other.strategy, whole=form.whole, blocks=form.blocks, apart=form.apart)
        return Attempt(replace(other.part, strategy=strategy))
    return found
