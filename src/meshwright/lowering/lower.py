"""The last step before compilation: lowers the program of one real device to StableHLO for a target."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any

from meshwright.core.avals import ShapedArray
from meshwright.core.config import config
from meshwright.core.records import dataclass
from meshwright.core.words import counted
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.passes import Pass, run_passes
from meshwright.lowering.algorithms import without_algorithms
from meshwright.lowering.composites import WRITTEN_OUT
from meshwright.lowering.convolutions import CUT_CONVOLUTIONS
from meshwright.lowering.divisors import keep_divisors
from meshwright.lowering.fft_orders import keep_orders
from meshwright.lowering.in_place import in_place
from meshwright.lowering.kernels import kernels_of
from meshwright.lowering.lanes import fill_lanes
from meshwright.lowering.loop_tests import keep_counts
from meshwright.lowering.loops_in_bodies import without_loops_in_bodies
from meshwright.lowering.masks import broadcast_positions
from meshwright.lowering.narrow import without_narrow_types
from meshwright.lowering.not_numbers import INLINE_BYTES, keep_not_numbers
from meshwright.lowering.one_by_one import one_by_one
from meshwright.lowering.ordering import order_callbacks
from meshwright.lowering.overlapping import keep_what_is_read
from meshwright.lowering.powers import keep_powers
from meshwright.lowering.regions import WHOLE_REGIONS
from meshwright.lowering.starts import keep_starts
from meshwright.lowering.tables import compute_entries
from meshwright.lowering.target import Target
from meshwright.ops.indexing.inside import INSIDE
from meshwright.ops.shape.empty import without_empty
from meshwright.ops.sharding.constraint import without_constraints
from meshwright.sharding import AbstractMesh
from meshwright.stablehlo.emit import LoweringOptions, lower_with_callbacks
from meshwright.stablehlo.hlo import module_text
from meshwright.transforms.keys import on_words

WORDS = Pass("words of keys", on_words, "Random keys become arrays of their words.")
UNCONSTRAINED = Pass(
    "no constraints", without_constraints, "Sharding constraints, which only the partitioner uses, become identities."
)
ORDERED = Pass("ordered callbacks", order_callbacks, "A token is threaded through ordered callbacks.")
NOT_EMPTY = Pass("empty results", without_empty, "Equations with empty results become constants.")
DIVISORS = Pass(
    "divisors", keep_divisors, "Integer divisors of 0 become 1, since XLA may divide while constant folding."
)
LOOP_TESTS = Pass(
    "tests of loops",
    keep_counts,
    "Tests of loops that do not count in ones are two comparisons, as XLA counts one wrongly.",
)
POWERS = Pass(
    "powers", keep_powers, "Powers are guarded by selects, so that XLA does not simplify them with log and exp."
)
STARTS = Pass(
    "starts of slices", keep_starts, "Starts of slices of slices are clamped, since XLA adds them as they are."
)
LOOPS_IN_BODIES = Pass(
    "loops in bodies",
    without_loops_in_bodies,
    "On CPUs, functions that reductions and maps apply are batched if they are no formulas of scalars.",
)
ALGORITHMS = Pass("algorithms", without_algorithms, "On CPUs, products with a dot algorithm are computed in its types.")
NARROW = Pass(
    "narrow types", without_narrow_types, "On CPUs, arithmetic in types below 8 bits and float8 is done in wider types."
)
OVERLAPPING = Pass(
    "overlapping updates", keep_what_is_read, "On CPUs, in-place updates that read their own buffer become selects."
)
FFT_ORDERS = Pass(
    "orders of transforms", keep_orders, "On CPUs, Fourier transforms beside LAPACK's kernels keep arrays row by row."
)
ONE_BY_ONE = Pass("one by one", one_by_one, "On CPUs, batches of matrices are decomposed one after the other.")
NOT_NUMBERS = Pass("known NaN", keep_not_numbers, "Exponentials of constants that may be NaN are guarded by selects.")
MASKS = Pass("masks", broadcast_positions, "On GPUs, masks of positions are computed at the rank of what they mask.")
LANES = Pass("lanes", fill_lanes, "On TPUs, all-to-alls of narrow rows send rows that fill the lanes.")
TABLES = Pass("tables", compute_entries, "On TPUs, entries of small tables that devices look up are computed.")
#: the passes that write a program in the form that the compiler of a platform takes, or generates faster code for
FAST_FORMS = {"cpu": (WRITTEN_OUT,), "cuda": (MASKS,), "tpu": (LANES, TABLES)}
#: the passes for one platform only
ONLY_FOR = dict.fromkeys((LOOPS_IN_BODIES, ALGORITHMS, NARROW, OVERLAPPING, ONE_BY_ONE, FFT_ORDERS), "cpu") | {
    step: platform for platform, steps in FAST_FORMS.items() for step in steps
}
#: the passes before StableHLO is emitted
LOWERING = (
    WORDS,
    UNCONSTRAINED,
    WHOLE_REGIONS,
    INSIDE,
    ORDERED,
    WRITTEN_OUT,
    LOOPS_IN_BODIES,
    NOT_EMPTY,
    DIVISORS,
    STARTS,
    LOOP_TESTS,
    POWERS,
    MASKS,
    LANES,
    TABLES,
    CUT_CONVOLUTIONS,
    ALGORITHMS,
    NARROW,
    OVERLAPPING,
    FFT_ORDERS,
    NOT_NUMBERS,
    ONE_BY_ONE,
)


def first_passes(donated: Collection[int], platform: str) -> tuple[Pass, ...]:
    """The passes before :data:`LOWERING`, for a program whose arguments with these numbers are donated."""
    return in_place(donated), kernels_of(platform)


#: a single device without a mesh
ONE_DEVICE = Target(AbstractMesh((), ()))


@dataclass(frozen=True)
class DeviceProgram:
    """The program that each real device of ``target`` executes. ``constants`` are passed to it before its arguments.

    ``donated`` maps argument numbers to the result that reuses their buffer (None: any). ``arg_names`` are the user's
    names of the arguments.
    """

    name: str
    jaxpr: ClosedJaxpr
    constants: Sequence[Any] = ()
    target: Target = ONE_DEVICE
    donated: Mapping[int, int | None] = field(default_factory=dict)
    arg_names: Sequence[str] = ()

    @property
    def in_avals(self) -> Sequence[ShapedArray]:
        """The types of the arguments."""
        return self.jaxpr.in_avals[len(self.constants) :]

    @cached_property
    def emitted(self) -> tuple[Any, list[Callable[..., Any]]]:
        """The StableHLO module, and the Python functions that it calls, by number."""
        shift = len(self.constants)
        names = [*(f"constant {i}" for i in range(shift)), *self.arg_names] if self.arg_names else ()
        options = LoweringOptions(
            name=f"jit_{self.name}",
            scope=f"jit({self.name})",
            arg_names=names,
            donated={i + shift: o for i, o in self.donated.items()},
            groups=self.target.grid if self.target.real else None,
            num_replicas=self.target.num_devices,
        )
        return lower_with_callbacks(self.jaxpr, options)

    def as_text(self, debug_info: bool = False) -> str:
        """The StableHLO module as text."""
        return module_text(self.emitted[0], debug_info)

    def __repr__(self) -> str:
        return f"DeviceProgram({self.name!r}, {counted(len(self.jaxpr.eqns), 'op')}, {self.target!r})"


def lower(
    jaxpr: ClosedJaxpr,
    name: str,
    target: Target = ONE_DEVICE,
    donated: Mapping[int, int | None] | None = None,
    arg_names: Sequence[str] = (),
) -> DeviceProgram:
    """The program of one real device after the lowering passes for ``target``."""
    platform = target.platform if target.devices else config.platform
    passes = [*first_passes(donated or {}, platform), *(p for p in LOWERING if ONLY_FOR.get(p, platform) == platform)]
    hoisted, constants = hoist_constants(run_passes(jaxpr, passes))
    return DeviceProgram(name, hoisted, constants, target, donated or {}, arg_names)


def hoist_constants(jaxpr: ClosedJaxpr) -> tuple[ClosedJaxpr, list[Any]]:
    """Turn large constants into leading arguments, so that programs do not embed copies of weights."""
    inner = jaxpr.jaxpr
    large = [
        getattr(c, "nbytes", 8) > INLINE_BYTES or not getattr(c, "is_fully_addressable", True) for c in jaxpr.consts
    ]
    if not any(large):
        return jaxpr, []
    moved = [v for v, big in zip(inner.constvars, large) if big]
    kept = [v for v, big in zip(inner.constvars, large) if not big]
    new = inner.replace(constvars=kept, invars=[*moved, *inner.invars])
    return (
        ClosedJaxpr(new, [c for c, big in zip(jaxpr.consts, large) if not big]),
        [c for c, big in zip(jaxpr.consts, large) if big],
    )
