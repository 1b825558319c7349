"""The list of communication passes, and a record of what each changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from meshwright.core.records import dataclass
from meshwright.core.words import counted
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.passes import Pass, run_passes
from meshwright.ops.collective.inside import collectives_in
from meshwright.ops.shape.empty import without_empty
from meshwright.sharding import AbstractMesh, Layout
from meshwright.spmd.passes.combine import combine_collectives
from meshwright.spmd.passes.cse import common_collectives
from meshwright.spmd.passes.cuts import cut_gathers
from meshwright.spmd.passes.dead import drop_dead
from meshwright.spmd.passes.early import start_early
from meshwright.spmd.passes.gathers import sink_gathers
from meshwright.spmd.passes.hoist import hoist_invariants
from meshwright.spmd.passes.narrow_sums import reduce_narrow
from meshwright.spmd.passes.one_reader import send_to_one_reader
from meshwright.spmd.passes.own_rows import keep_own_rows
from meshwright.spmd.passes.own_tiles import slice_own_tiles
from meshwright.spmd.passes.pairs import merge_pairs
from meshwright.spmd.passes.partial_sums import reassociate
from meshwright.spmd.passes.rewrite import Rewrite, with_regions
from meshwright.spmd.passes.scattered_sums import scatter_sums
from meshwright.spmd.passes.sum_tiles import sum_tiles
from meshwright.spmd.passes.unpadded import reduce_unpadded
from meshwright.spmd.passes.untransposed import gather_untransposed
from meshwright.spmd.report import human_bytes, totals


@dataclass(frozen=True)
class Change:
    """The effect of a pass: the number of collectives and the bytes that a device sends, before and after."""

    name: str
    collectives: tuple[int, int]
    bytes_sent: tuple[int, int]

    def __str__(self) -> str:
        (count, left), (sent, still) = self.collectives, self.bytes_sent
        return f"{self.name}: {count} -> {counted(left, 'collective')}, {human_bytes(sent)} -> {human_bytes(still)}"


@dataclass(frozen=True)
class Pipeline:
    """Passes in order. Prints as a numbered list with a sentence for each."""

    passes: tuple[Pass, ...]

    def __str__(self) -> str:
        return "\n".join(f"{n:2}. {step.name:<36} {step.about}".rstrip() for n, step in enumerate(self.passes, 1))

    def run(self, jaxpr: ClosedJaxpr, seen: set[Any] | None = None) -> tuple[ClosedJaxpr, list[Change]]:
        """Run all passes. Returns the jaxpr, and the changes made by those that changed what is sent.

        The jaxpr is verified after each pass that changed it, without the equations in ``seen``.

        Raises:
          VerifierError: a pass produced a malformed jaxpr.
        """
        changes: list[Change] = []

        was = (0, 0)

        def changed(step: Pass, before: ClosedJaxpr, after: ClosedJaxpr) -> None:
            nonlocal was
            now = totals(after.jaxpr)
            if was != now:
                changes.append(Change(step.name, (was[0], now[0]), (was[1], now[1])))
            was = now

        if any(collectives_in(jaxpr.jaxpr)):
            was = totals(jaxpr.jaxpr)
            jaxpr = run_passes(jaxpr, self.passes, True, changed, seen)
        return jaxpr, changes


#: makes a pass that applies a rewrite to the program and all of its regions, from its name, the rewrite and a sentence
_Everywhere = Callable[[str, Rewrite, str], Pass]


def _everywhere(mesh: AbstractMesh, in_layouts: Sequence[Layout]) -> _Everywhere:
    inputs = [frozenset(layout.axes_used) for layout in in_layouts]
    return lambda name, rewrite, about: Pass(
        name, lambda jaxpr: with_regions(jaxpr, inputs, mesh.expand, rewrite), about
    )


def communication_passes(mesh: AbstractMesh, in_layouts: Sequence[Layout], combine_bytes: int = 0) -> Pipeline:
    """The passes for a per-device program on ``mesh`` whose inputs have these layouts.

    ``combine_bytes`` is the bucket size for combining small collectives; 0 leaves each on its own.
    """
    everywhere = _everywhere(mesh, in_layouts)
    moved = (
        Pass("empty values", without_empty, "Equations with empty results become constants."),
        Pass("drop dead collectives", drop_dead, "Collectives whose results are unused are removed, in loops too."),
        everywhere("merge common collectives", common_collectives, "Collectives that repeat earlier ones are removed."),
        everywhere(
            "hoist loop-invariant collectives", hoist_invariants,
            "Collectives of loop-invariant values move out of their loops.",
        ),
        everywhere(
            "keep own rows", keep_own_rows,
            "Sums of groups of rows are dropped where each device reads the rows of its own groups.",
        ),
        everywhere(
            "reassociate sums of partial values", reassociate, "All-reduces move to where they send the fewest bytes."
        ),
        everywhere(
            "send to who reads", send_to_one_reader,
            "Masked sums with one sender and one reader become point-to-point, or are removed.",
        ),
        everywhere(
            "gather after what shrinks", lambda j, variance: sink_gathers(j, variance, mesh),
            "All-gathers move past ops that shrink their result.",
        ),
    )  # fmt: skip
    return Pipeline((*moved, *_placed_and_merged(everywhere, mesh, combine_bytes)))


def tiling_passes(mesh: AbstractMesh, in_layouts: Sequence[Layout], combine_bytes: int = 0) -> Pipeline:
    """The pass that scatters sums, and the passes that then place the gathers. The bytes sent hardly change."""
    everywhere = _everywhere(mesh, in_layouts)
    scattered = everywhere(
        "scatter sums", scatter_sums, "All-reduces of large sums become reduce-scatters and all-gathers."
    )
    return Pipeline((scattered, *_placed_and_merged(everywhere, mesh, combine_bytes)))


def _placed_and_merged(everywhere: _Everywhere, mesh: AbstractMesh, combine_bytes: int) -> Iterator[Pass]:
    """The passes that place all-gathers at minimum cuts, and merge what is neighbouring or equal then."""
    yield from (
        everywhere(
            "gather before transposing", gather_untransposed,
            "What is gathered in several orders of its dimensions is gathered once.",
        ),
        everywhere(
            "gather where least is sent", lambda j, variance: cut_gathers(j, variance, mesh),
            "All-gathers of values with several users are placed at a minimum cut of the bytes sent.",
        ),
        everywhere(
            "merge neighbouring collectives", lambda j, variance: merge_pairs(j, variance, mesh),
            "Two consecutive collectives become one cheaper one, or none.",
        ),
        everywhere(
            "reduce narrow values", reduce_narrow,
            "Sums over devices are completed before conversions to wider types.",
        ),
        everywhere(
            "reduce without padding", reduce_unpadded,
            "Padding that is cut off after an all-reduce is left out before it.",
        ),
        everywhere(
            "sum tiles", lambda j, variance: sum_tiles(j, variance, mesh),
            "Partial sums that another use reduces are used in their reduced form.",
        ),
        everywhere(
            "merge common collectives again", common_collectives, "Collectives that have become equal are merged."
        ),
        Pass("drop what became dead", drop_dead, "Values that the other passes left unused are removed."),
    )  # fmt: skip
    if combine_bytes:
        yield everywhere(
            "combine small collectives", lambda j, _: combine_collectives(j, combine_bytes),
            "Small collectives over the same axes are combined in buckets.",
        )  # fmt: skip


def target_passes(platform: str, mesh: AbstractMesh, in_layouts: Sequence[Layout]) -> Pipeline:
    """The passes for the compiler of one platform. On GPUs, matrix products scale their results themselves."""
    if platform not in ("cpu", "tpu"):
        return Pipeline(())
    early = _everywhere(mesh, in_layouts)(
        "start sums early", start_early,
        "All-reduces move before the scaling of their operands, which then fuses with the sums' users.",
    )  # fmt: skip
    return Pipeline((early,))


def with_reduce_scatters(jaxpr: ClosedJaxpr, mesh: AbstractMesh) -> ClosedJaxpr:
    """A per-device program from elsewhere, in which sums of which devices read their own tiles are reduce-scatters."""
    inputs = [frozenset(mesh.expand(mesh.axis_names))] * len(jaxpr.in_avals)
    sliced = slice_own_tiles(jaxpr, inputs, mesh)
    return with_regions(sliced, inputs, mesh.expand, lambda j, variance: merge_pairs(j, variance, mesh))
