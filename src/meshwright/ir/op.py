"""The op contract: everything the system knows about an op, in one frozen dataclass.

An op's fields are its parameters and its methods are its rules. Rules bind other ops and run under the current trace,
so derivative and batching rules compose. Collecting the rules of a primitive in one class follows
``jax/_src/hijax.py``; the linear placeholders of ``transpose`` and the ``Zero`` tangents follow Autodidax.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import numpy as np

from meshwright.core.avals import NOWHERE, Axes, OnlyTyped, ShapedArray
from meshwright.core.key_types import KeyType, is_key
from meshwright.core.records import dataclass
from meshwright.core.slots import Slot
from meshwright.errors import DTypeError, RuleError
from meshwright.ir.contract import ArrayLike, Emitted, Kernels, Localizer, LocalSizes, Region, StatedCost, Value
from meshwright.ir.explicit import common_memory, is_explicit, result_types
from meshwright.ir.interval import ANYWHERE, Interval
from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr
from meshwright.ir.state import STATE
from meshwright.ir.varying import cast_all
from meshwright.sharding import NamedSharding
from meshwright.sharding.rule import ShardingRule, replicated_rule

#: op classes by name, for importers and for tests over all ops
REGISTRY: dict[str, type[Op]] = {}


class Zero(OnlyTyped):
    """A symbolic zero: a tangent or cotangent that is known to be zero, without an array."""

    __slots__ = ()

    def instantiate(self) -> Any:
        """The array of zeros; of dtype ``float0`` for keys."""
        return ZEROS.value(self)


#: makes an array of a symbolic zero
ZEROS: Slot[Callable[[Zero], Any]] = Slot("the zeros of a tangent", "meshwright.ops.elementwise.table")


#: a tangent or cotangent
Tangent = ArrayLike | Zero
#: the result of an op; with ``multiple_results``, a list of them
Results = ArrayLike | Sequence[ArrayLike]
#: results and their tangents
Dual = tuple[Results, Tangent | Sequence[Tangent]]
#: results, and the position of the batch dimension of each (None: not batched)
BatchedResults = tuple[Results, int | Sequence[int | None] | None]
#: one per operand; None for those that are not linear
Cotangents = Sequence[Tangent | None]


class Linear(OnlyTyped):
    """Placeholder in ``transpose`` for an operand in which the op is linear and whose cotangent is requested."""

    __slots__ = ()

    def __array__(self, *_: Any, **__: Any) -> Any:
        """Always raises: a placeholder has no value.

        Raises:
          RuleError: always.
        """
        raise RuleError(
            f"a value of type {self.aval} that is to be transposed is asked for: the function multiplies what depends "
            "on its arguments by what depends on them, and so is not linear in all of them; fix some of them"
        )


class Constant:
    """Marker used instead of a derivative rule: the result is piecewise constant, so its derivative is zero wherever it
    exists."""

    def __repr__(self) -> str:
        return "CONSTANT"


CONSTANT = Constant()


@dataclass(frozen=True)
class Unknown:
    """Marker used instead of a derivative rule: the derivative with respect to ``operand`` is unknown; ``why``."""

    operand: str
    why: str = "no formula for it is implemented"


@dataclass(frozen=True)
class BatchAxis:
    """The axis that ``vmap`` adds.

    ``name`` is the name for collectives, if any. ``spmd`` are the mesh axes along which the axis is to be sharded;
    ``vma`` those along which it is already split, so that mapped values vary over them.
    """

    size: int
    name: str | None = None
    spmd: tuple[str, ...] = ()
    vma: Axes = NOWHERE
    #: set if this is the axis over the words of random keys of this type
    key: KeyType | None = None


@dataclass(frozen=True)
class Mapped:
    """The batching of a flat function: the axis, and its position in each operand and result (None: not batched)."""

    axis: BatchAxis
    dims: Sequence[int | None]
    out_dims: Sequence[int | None]


class Builder(Protocol):
    """The interface with which ``emit`` builds StableHLO. Operands and results are opaque values of the backend.

    Attributes are Python values: ``bool``, ``int`` (i64), a tuple of ints or of bools (a dense array of i64 or i1), a
    NumPy array (dense elements), or ``str`` for MLIR attribute text such as
    ``"#stablehlo<comparison_direction EQ>"``.
    """

    in_avals: Sequence[ShapedArray]
    out_avals: Sequence[ShapedArray]
    #: the target platform: ``cpu``, ``cuda``, ``tpu``
    platform: str
    #: writes shardings and manual regions (:class:`meshwright.stablehlo.annotations.Notation`)
    annotations: Any

    def op(
        self,
        name: str,
        operands: Sequence[Emitted],
        out_avals: Sequence[ShapedArray],
        *,
        regions: Sequence[Region] = (),
        **attributes: Any,
    ) -> list[Emitted]:
        """Append an operation and return its results."""
        ...

    def constant(self, value: ArrayLike, aval: ShapedArray) -> Emitted:
        """A constant: an array of ``aval``'s shape, or a scalar that fills it."""
        ...

    def broadcast(self, value: Emitted, aval: ShapedArray, dims: Sequence[int]) -> Emitted:
        """``broadcast_in_dim``: operand dimension ``i`` becomes dimension ``dims[i]`` of ``aval``."""
        ...

    def reducer(self, name: str, avals: Sequence[ShapedArray]) -> Region:
        """A region that applies the binary op ``name`` to two scalars per result (for ``reduce`` and others)."""
        ...

    def jaxpr_region(self, jaxpr: Jaxpr | ClosedJaxpr, captured: Sequence[Emitted] | None = None) -> Region:
        """A region that evaluates ``jaxpr`` on its block arguments, or on ``captured`` values from outside."""
        ...

    def region(self, make: Callable[..., Sequence[Emitted]], captured: Sequence[Emitted]) -> Region:
        """A region whose results are ``make(builder, *captured)``, of values from outside."""
        ...

    def host_callback(self, function: Callable[..., Any]) -> int:
        """Register a Python function that the program calls; returns its number."""
        ...

    def call(
        self, name: str, jaxpr: ClosedJaxpr, operands: Sequence[Emitted], mark: str | None = None, apart: bool = False
    ) -> list[Emitted]:
        """A call of a private function for ``jaxpr`` (emitted once per jaxpr).

        ``mark`` is the key of a frontend attribute of the call; its value is ``name``. With ``apart``, XLA does not
        inline the call, so its results are computed once. Otherwise XLA's CPU compiler may fuse (and so recompute) them
        into each loop that uses them; its fusion looks through optimization barriers.
        """
        ...

    def replica_groups(self, axes: Sequence[str]) -> Any:
        """The ``replica_groups`` attribute for collectives along named axes."""
        ...

    def source_target_pairs(self, axes: Sequence[str], perm: Sequence[tuple[int, int]]) -> Any:
        """The ``source_target_pairs`` attribute for (source, target) positions along named axes."""
        ...

    def axis_index(self, axes: Sequence[str]) -> Emitted:
        """The position of the executing device along named axes, as an int32 scalar."""
        ...


@dataclass(frozen=True)
class Op:
    """Base of all ops. Subclasses are frozen dataclasses; equal parameters make equal ops."""

    #: the name in jaxprs; a subclass that sets it is registered
    name: ClassVar[str] = ""
    #: ``bind`` returns a list of results
    multiple_results: ClassVar[bool] = False
    #: groups of operands in which the op is jointly linear: partial sums may pass through such a group of operands
    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ()
    #: the op is linear except that it maps -0 to 0
    turns_signs: ClassVar[bool] = False
    #: operands in which all results are piecewise constant, so that derivatives with respect to them are zero; a
    #: missing rule never means a zero derivative (:mod:`meshwright.ir.derivatives`)
    constant_in: ClassVar[frozenset[int]] = frozenset()
    #: operands with respect to which the derivative is unknown; requesting it raises
    unknown_in: ClassVar[Mapping[int, Unknown]] = MappingProxyType({})
    #: the op only moves elements of operand 0, in which it is linear: partial results of *every* reduction kind pass
    #: through it
    moves_only: ClassVar[bool] = False
    #: the op does arithmetic, rather than only select or place elements
    computes: ClassVar[bool] = True
    #: along the window factors of its rule, each result element depends on all operand elements: explicit shardings may
    #: not split them
    takes_whole_rows: ClassVar[bool] = False
    #: the op has side effects and must not be removed
    has_effects: ClassVar[bool] = False
    #: operands and results may be random keys, which the op only moves or carries
    takes_keys: ClassVar[bool] = False
    #: on concrete arrays, the op is evaluated by its ``perform`` in Python, not by a compiled program
    in_python: ClassVar[bool] = False
    #: each result element is computed by itself, from its position and a few words, such as random bits from a key
    draws: ClassVar[bool] = False
    #: the op only rounds to lower precision
    rounds: ClassVar[bool] = False
    #: the op only converts its operand to another type
    converts: ClassVar[bool] = False
    #: the result is non-negative if both operands are equal
    even: ClassVar[bool] = False
    #: the op has jaxprs among its parameters
    holds_jaxprs: ClassVar[bool] = False
    #: the op only calls its body; it has no rules of its own
    plain_call: ClassVar[bool] = False
    #: the call is not inlined before partitioning; :mod:`meshwright.spmd.custom` partitions it
    kept_whole: ClassVar[bool] = False
    #: whether ``body()`` is traced only when somebody needs it, and may raise
    body_is_late: ClassVar[bool] = False
    #: the program says what each device computes: a manual region, or a function that its user partitions
    is_manual: ClassVar[bool] = False
    #: results are operands in another shape or order; compilers read the operands instead of storing the results
    is_view: ClassVar[bool] = False
    #: the operand that overwrites a part of operand 0 (which can be updated in place)
    update_operand: ClassVar[int | None] = None
    #: evaluates the op with NumPy; for ops that only move elements, which are exact there. Used for small arrays that
    #: are ready, to avoid a compilation. A method in subclasses
    moved: ClassVar[Callable[..., np.ndarray] | None] = None
    #: which keys of its operand the op uses, as a mask, where these are random keys. A method in subclasses
    used_keys: ClassVar[Callable[..., np.ndarray] | None] = None
    #: the op is over named axes, whose devices run it together: it has no value outside of their program
    over_devices: ClassVar[bool] = False
    #: the results are a deterministic function of operands and parameters: equal on devices with equal operands
    of_operands: ClassVar[bool] = True
    #: parameters that printing leaves out
    hidden_params: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__ and isinstance(cls.__dict__["name"], str):
            REGISTRY[cls.name] = cls

    # --- use ------------------------------------------------------------------------------------------------
    def bind(self, *args: ArrayLike) -> Any:
        """Apply the op to arrays, tracers or numbers under the current trace."""
        if STATE.checked:
            op, args = self.aligned(args)  # type: ignore[assignment]
            return STATE.trace.process(op, args)
        return STATE.trace.process(self, args)

    @property
    def scope_name(self) -> str:
        """The op's name in the name stacks of the equations inside it."""
        return self.name

    @property
    def inlined(self) -> ClosedJaxpr | None:
        """A body whose equations are recorded in place of the op."""
        return None

    @property
    def own_axes(self) -> Sequence[str]:
        """The mesh axes over which nothing in its regions is split: they are written for one position along these."""
        return ()

    @property
    def unknown_call(self) -> str:
        """The target of an imported custom call about which nothing is known; "" for other ops."""
        return ""

    @property
    def stated_cost(self) -> StatedCost | None:
        """The cost of a kernel, as its author states it."""
        return None

    @property
    def computed(self) -> ClosedJaxpr | None:
        """The program of what a kernel computes, whose operations count as the kernel's."""
        return None

    def on_platform(self, platform: str) -> Op:
        """The op that a program for a platform (``cpu``, ``cuda``, ``tpu``) has in this one's place."""
        return self

    @property
    def params(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def __str__(self) -> str:
        shown = {k: v for k, v in self.params.items() if k not in self.hidden_params}
        return self.name + (f"[{' '.join(f'{k}={v}' for k, v in shown.items())}]" if shown else "")

    # --- rules ----------------------------------------------------------------------------------------------
    def infer(self, *avals: ShapedArray) -> Any:
        """The type of the result (a tuple of types with ``multiple_results``); raises for invalid operand types."""
        raise RuleError(f"op {self.name} has no shape rule")

    def varies(self, *operands: Axes) -> Axes:
        """The manual axes over which the results vary, given those of the operands: their union.

        Raises:
          RuleError: the results are not a function of the operands alone.
        """
        if not self.of_operands:
            raise RuleError(
                f"{self.name}: in a shard_map it is not known over which axes its results vary, as equal operands need "
                "not give equal results; keep it outside, or pass check_vma=False"
            )
        return NOWHERE.union(*operands)

    def check_keys(self, avals: Sequence[ShapedArray]) -> None:
        """Refuse random keys as operands, unless the op takes them.

        Raises:
          DTypeError: an operand is a random key.
        """
        if not self.takes_keys and any(is_key(a.dtype) for a in avals):
            got = ", ".join(map(str, avals))
            raise DTypeError(f"{self.name} does not take random keys, got {got}; random.key_data gives the words")

    def typed(self, *avals: ShapedArray) -> Any:
        """The types of :meth:`infer` with varying axes, explicit shardings and memory kinds."""
        inferred = self.infer(*(a.update(vma=NOWHERE, explicit=None, memory=None) for a in avals))
        outs = list(inferred) if self.multiple_results else [inferred]
        axes = self.varies(*(a.vma for a in avals)) if STATE.checked else NOWHERE
        split = result_types(self, avals, outs) if is_explicit(avals) else [None] * len(outs)
        memory = common_memory(avals)
        typed = tuple(a.update(vma=axes, explicit=s, memory=memory) for a, s in zip(outs, split))
        return typed if self.multiple_results else typed[0]

    def aligned(self, args: Sequence[ArrayLike]) -> tuple[Op, Sequence[ArrayLike]]:
        """The op and operands to apply in a ``shard_map`` with ``check_vma``: operands are cast to the same axes."""
        return self, cast_all(args)

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        """``(outputs, output tangents)``; input and output tangents may be :class:`Zero`.

        Called only if a result is inexact and an operand that is in neither :attr:`constant_in` nor :attr:`unknown_in`
        has a tangent; at least one result must then have a tangent.

        Must be linear in the tangents by construction: tangents may only pass through ops that have ``transpose``.
        """
        raise RuleError(f"op {self.name} cannot be differentiated (it has no jvp rule)")

    def constant_operands(self, *avals: ShapedArray) -> frozenset[int]:
        """:attr:`constant_in`; ops for which it depends on the operand types override this."""
        return self.constant_in

    def transpose(self, cts: Any, *args: ArrayLike | Linear) -> Cotangents:
        """A cotangent (or :class:`Zero`) for each operand that is :class:`Linear`, and ``None`` for the others.

        ``cts`` is the cotangent of the result; with ``multiple_results``, a list of them, some of which may be
        ``Zero``.
        """
        raise RuleError(f"op {self.name} is not linear (it has no transpose rule)")

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        """``(outputs, output batch dims)`` for operands with a batch dimension at ``dims[i]`` (``None``: not batched).

        The batch dimension should stay adjacent to the same dimension, so that batching a program over tiles of a
        global array never moves data.
        """
        raise RuleError(f"op {self.name} has no batching rule")

    def sharding_rule(self, *avals: ShapedArray) -> ShardingRule:
        """The correspondence of operand and result dimensions. By default, all must be replicated."""
        outs = self.infer(*avals)
        outs = outs if self.multiple_results else (outs,)
        return replicated_rule([a.shape for a in avals], [o.shape for o in outs])

    def kernels(self, *avals: ShapedArray) -> Kernels:
        """The cost of the op's GPU kernels if it is not fused with others."""
        return Kernels()

    def index_operands(self, num_operands: int) -> range:
        """The operands that are start indices of windows in operand 0; :meth:`out_of_bounds` checks them."""
        return range(0)

    def out_of_bounds(self, *operands: Any) -> Any:
        """Whether a window lies partly outside operand 0 (a traced bool), for ops with :meth:`index_operands`."""
        raise RuleError(f"op {self.name} takes no indices")

    def stated_shardings(self) -> Sequence[NamedSharding]:
        """The result shardings that the op's parameters specify: one per result, or an empty sequence."""
        return ()

    def scope(self) -> AbstractContextManager[Any]:
        """A context that brings the named axes of the op's jaxprs into scope."""
        return nullcontext()

    def counts_along(self, known: Sequence[int | None], avals: Sequence[ShapedArray]) -> int | None:
        """The dimension along which the result is 0, 1, 2, … (an iota), or None; ``known`` says so for the operands."""
        return None

    def image(self, known: Sequence[Interval], avals: Sequence[ShapedArray]) -> Interval:
        """An interval that contains the result, for operands in the intervals ``known``."""
        return known[0] if self.moves_only else ANYWHERE

    def domain(
        self, wishes: Sequence[Interval], known: Sequence[Interval], avals: Sequence[ShapedArray]
    ) -> Sequence[Interval]:
        """The intervals for the operands such that the op is defined and its results lie in ``wishes``.

        Used to draw random inputs; need not be exact.
        """
        rest = [ANYWHERE] * (len(avals) - 1)
        return [wishes[0].without_columns(), *rest] if self.moves_only else [ANYWHERE] * len(avals)

    def body(self) -> ClosedJaxpr | None:
        """The jaxpr that this op calls, if the op may be replaced by it (inlined)."""
        return None

    def regions(self) -> tuple[ClosedJaxpr, ...]:
        """The jaxprs of a control-flow op, which are not inlined: see :mod:`meshwright.ops.control.regions`."""
        return ()

    def with_regions(self, regions: Sequence[ClosedJaxpr]) -> Op:
        """This op with its regions replaced."""
        raise RuleError(f"op {self.name} has no regions")

    def alternatives(self, *avals: ShapedArray) -> Sequence[Op]:
        """Equivalent ops with other sharding rules, tried where this op's rule requires resharding of operands."""
        return ()

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        """Emit the op as StableHLO; returns the result value, or a list with ``multiple_results``."""
        raise RuleError(f"op {self.name} cannot be lowered to StableHLO")

    def localize(self, ctx: Localizer, *operands: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        """Apply the op to local shards (``ctx``: :class:`meshwright.spmd.localize.context.LocalContext`).

        The default masks the padding of reduced dimensions and binds :meth:`localized`.
        """
        return ctx.default(self, *operands)

    def typing_rule(self, *avals: ShapedArray) -> ShardingRule:
        """The sharding rule that propagates explicit axes from operand types to result types."""
        return self.sharding_rule(*avals)

    def linear_groups(self, *avals: ShapedArray) -> tuple[tuple[int, ...], ...]:
        """:attr:`linear_in`; ops for which it depends on the number or types of operands override this."""
        return self.linear_in

    def perform(self, *operands: Any) -> Any:
        """Evaluate an op that is :attr:`in_python`."""
        raise RuleError(f"op {self.name} is not done in Python")

    def localized(self, ctx: LocalSizes) -> Op:
        """This op with size parameters changed to local sizes. Default: unchanged."""
        return self

    @property
    def is_same_on_tiles(self) -> bool:
        """Whether what the op does on tiles is the op itself with local sizes, as :meth:`localize` does by default."""
        return type(self).localize is Op.localize

    @property
    def is_itself_on_tiles(self) -> bool:
        """Whether what the op does on tiles is the op as it is: it has no size parameters."""
        return self.is_same_on_tiles and type(self).localized is Op.localized

    def before_merging(self, x: Value, groups: Sequence[tuple[int, ...]]) -> list[Value] | None:
        """The results for an operand that is ``x`` with dimensions ``groups[d]`` merged into dimension ``d``.

        Computed from the unmerged ``x``, up to a reshape. Default: None, the dimensions must be merged first.
        """
        return None


def by_name(name: str) -> Op:
    """The op without parameters registered under ``name``; used for unpickling."""
    return REGISTRY[name]()
