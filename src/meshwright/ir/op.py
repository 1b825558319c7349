"""The op contract: everything the system knows about an op, in one frozen dataclass.

An op's fields are its parameters; its methods are its rules. Rules are written with other ops (``bind``) and run
under whatever trace is current, so derivative and batching rules compose by themselves. The idea of gathering the
rules of a primitive in one class follows ``jax/_src/hijax.py``; the linear placeholders of ``transpose`` and the
``Zero`` tangents follow Autodidax.
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
from meshwright.errors import DTypeError, RuleError
from meshwright.ir.contract import ArrayLike, Emitted, Kernels, Localizer, LocalSizes, Region, Value
from meshwright.ir.explicit import common_memory, is_explicit, result_types
from meshwright.ir.interval import ANYWHERE, Interval
from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr
from meshwright.ir.state import STATE
from meshwright.ir.varying import cast_all
from meshwright.sharding import NamedSharding
from meshwright.sharding.rule import ShardingRule, replicated_rule

#: op classes by name, for registries, importers and tests that go over all ops
REGISTRY: dict[str, type[Op]] = {}


class Zero(OnlyTyped):
    """A tangent or cotangent that is known to be zero; no array is made for it."""

    __slots__ = ()


#: a tangent or cotangent
Tangent = ArrayLike | Zero
#: the result of an op; with ``multiple_results``, a list of them
Results = ArrayLike | Sequence[ArrayLike]
#: results and their tangents
Dual = tuple[Results, Tangent | Sequence[Tangent]]
#: results, and where each has its batch dimension (None: it has none)
BatchedResults = tuple[Results, int | Sequence[int | None] | None]
#: of each operand; None of those that are not linear
Cotangents = Sequence[Tangent | None]


class Linear(OnlyTyped):
    """Stands, in ``transpose``, for an operand in which the op is linear and whose cotangent is wanted."""

    __slots__ = ()

    def __array__(self, *_: Any, **__: Any) -> Any:
        """Refused: it has no value.

        Raises:
          RuleError: always.
        """
        raise RuleError(
            f"a value of type {self.aval} that is to be transposed is asked for: the function multiplies what depends "
            "on its arguments by what depends on them, and so is not linear in all of them; fix some of them"
        )


class Constant:
    """Says, in place of a derivative rule, that the result is piecewise constant: its derivative is zero, or there is
    none, at every point."""

    def __repr__(self) -> str:
        return "CONSTANT"


CONSTANT = Constant()


@dataclass(frozen=True)
class Unknown:
    """Says, in place of a derivative rule, that the derivative by ``operand`` is not known, and ``why``."""

    operand: str
    why: str = "no formula for it is implemented"


@dataclass(frozen=True)
class BatchAxis:
    """The axis that ``vmap`` adds: its size, its name, if collectives may name it, the mesh axes that split it, and
    those that have split it already, over which what is mapped varies."""

    size: int
    name: str | None = None
    spmd: tuple[str, ...] = ()
    vma: Axes = NOWHERE
    #: the axis is that of the words of such keys
    key: KeyType | None = None


@dataclass(frozen=True)
class Mapped:
    """How a function of flat values is mapped: along which axis, where in operands and results (None: nowhere)."""

    axis: BatchAxis
    dims: Sequence[int | None]
    out_dims: Sequence[int | None]


class Builder(Protocol):
    """What ``emit`` writes StableHLO with; operands and results are opaque values of the backend.

    Attribute values are given as Python values: ``bool``, ``int`` (i64), a tuple of ints (a dense i64 array), a
    NumPy array (dense elements), or ``str``: MLIR attribute text such as ``"#stablehlo<comparison_direction EQ>"``.
    """

    in_avals: Sequence[ShapedArray]
    out_avals: Sequence[ShapedArray]
    #: what the program is written for: ``cpu``, ``cuda``, ``tpu``
    platform: str

    def op(
        self,
        name: str,
        operands: Sequence[Emitted],
        out_avals: Sequence[ShapedArray],
        *,
        regions: Sequence[Region] = (),
        **attributes: Any,
    ) -> list[Emitted]:
        """Append an operation; returns its results."""
        ...

    def constant(self, value: ArrayLike, aval: ShapedArray) -> Emitted:
        """A constant: an array of ``aval``'s shape, or a scalar that fills it."""
        ...

    def broadcast(self, value: Emitted, aval: ShapedArray, dims: Sequence[int]) -> Emitted:
        """``broadcast_in_dim``: operand dimension ``i`` becomes dimension ``dims[i]`` of ``aval``."""
        ...

    def reducer(self, name: str, avals: Sequence[ShapedArray]) -> Region:
        """A region of two scalars a result that applies the binary op ``name`` (for ``reduce`` and others)."""
        ...

    def jaxpr_region(self, jaxpr: Jaxpr | ClosedJaxpr, captured: Sequence[Emitted] | None = None) -> Region:
        """A region that computes ``jaxpr`` on its block arguments, or on ``captured`` values from outside."""
        ...

    def host_callback(self, function: Callable[..., Any]) -> int:
        """Make a Python function one that the program calls; returns its number."""
        ...

    def call(
        self, name: str, jaxpr: ClosedJaxpr, operands: Sequence[Emitted], mark: str | None = None, apart: bool = False
    ) -> list[Emitted]:
        """A call of a private function for ``jaxpr`` (made once for each jaxpr); ``mark`` is a frontend attribute of
        the call, with the name as its value.

        What is ``apart`` XLA does not write out where it is called, so its results are made once: they are not computed
        again in each loop that uses them, as XLA's CPU compiler would have it (its fusion looks through optimization
        barriers).
        """
        ...

    def replica_groups(self, axes: Sequence[str]) -> Any:
        """The attribute that names the groups of devices along named axes."""
        ...

    def source_target_pairs(self, axes: Sequence[str], perm: Sequence[tuple[int, int]]) -> Any:
        """The attribute that names who sends to whom, of pairs of positions along named axes."""
        ...

    def axis_index(self, axes: Sequence[str]) -> Emitted:
        """The position of the device that runs, along named axes: an int32 scalar."""
        ...


@dataclass(frozen=True)
class Op:
    """Base of all ops. Subclasses are frozen dataclasses; equal parameters make equal ops."""

    #: the name in jaxprs; a subclass that sets it is registered
    name: ClassVar[str] = ""
    #: ``bind`` returns a list of results
    multiple_results: ClassVar[bool] = False
    #: groups of operands in which the op is jointly linear: partial sums may pass through such a group
    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ()
    #: an op that is linear, but makes 0 of -0
    turns_signs: ClassVar[bool] = False
    #: operands in which all results are piecewise constant, so that derivatives by them are zero; a derivative is never
    #: zero because a rule was left out (:mod:`meshwright.ir.derivatives`)
    constant_in: ClassVar[frozenset[int]] = frozenset()
    #: operands by which the derivative is not known: asking for it raises
    unknown_in: ClassVar[Mapping[int, Unknown]] = MappingProxyType({})
    #: the op only moves elements of operand 0: partial results of *every* reduction kind pass through it
    moves_only: ClassVar[bool] = False
    #: the op computes elements; one that only picks or places them does no arithmetic
    computes: ClassVar[bool] = True
    #: along the window factors of its rule each element of a result is of all elements: types may not split them
    takes_whole_rows: ClassVar[bool] = False
    #: the op has an effect besides its results and must not be dropped
    has_effects: ClassVar[bool] = False
    #: operands and results may be random keys: the op only moves or carries them
    takes_keys: ClassVar[bool] = False
    #: on concrete arrays the op is done by its ``perform``, in Python, not by a compiled program
    in_python: ClassVar[bool] = False
    #: all that the op does is to round: there is nothing to do where numbers are wide
    rounds: ClassVar[bool] = False
    #: of two equal operands it makes something that is not negative
    even: ClassVar[bool] = False
    #: the op has jaxprs among its parameters
    holds_jaxprs: ClassVar[bool] = False
    #: the op does nothing but call its body, whose rules are its rules
    plain_call: ClassVar[bool] = False
    #: the call stays one equation until it is partitioned, as :mod:`meshwright.spmd.custom` does
    kept_whole: ClassVar[bool] = False
    #: results are the operands in another shape or order: compilers read what they are of instead
    is_view: ClassVar[bool] = False
    #: the operand that is put into a part of operand 0, the rest of which stays where it is
    update_operand: ClassVar[int | None] = None
    #: the result by NumPy, of ops that only move elements and so are exact there: small arrays that are ready are
    #: then not worth a compilation; a method in subclasses
    moved: ClassVar[Callable[..., np.ndarray] | None] = None
    #: the results are a function of the operands (and parameters): on devices with equal ones they are equal
    of_operands: ClassVar[bool] = True
    #: parameters that printing leaves out
    hidden_params: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__ and isinstance(cls.__dict__["name"], str):
            REGISTRY[cls.name] = cls

    # --- use ------------------------------------------------------------------------------------------------
    def bind(self, *args: ArrayLike) -> Any:
        """Apply the op under the current trace: arrays are computed with, tracers recorded."""
        if STATE.checked:
            op, args = self.aligned(args)  # type: ignore[assignment]
            return STATE.trace.process(op, args)
        return STATE.trace.process(self, args)

    @property
    def scope_name(self) -> str:
        """What the op is called in the names of what is inside of it."""
        return self.name

    @property
    def unknown_call(self) -> str:
        """What a custom call of a program from elsewhere calls, of which nothing is known; of other ops nothing."""
        return ""

    @property
    def params(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def __str__(self) -> str:
        shown = {k: v for k, v in self.params.items() if k not in self.hidden_params}
        return self.name + (f"[{' '.join(f'{k}={v}' for k, v in shown.items())}]" if shown else "")

    # --- rules ----------------------------------------------------------------------------------------------
    def infer(self, *avals: ShapedArray) -> Any:
        """Aval of the result (a tuple of them with ``multiple_results``); raises named errors."""
        raise RuleError(f"op {self.name} has no shape rule")

    def varies(self, *operands: Axes) -> Axes:
        """The axes over which the results vary, for operands that vary over these: of equal operands they are equal.

        Raises:
          RuleError: the results are no function of the operands alone.
        """
        if not self.of_operands:
            raise RuleError(
                f"{self.name}: in a shard_map it is not known over which axes its results vary, as equal operands need "
                "not give equal results; keep it outside, or pass check_vma=False"
            )
        return NOWHERE.union(*operands)

    def check_keys(self, avals: Sequence[ShapedArray]) -> None:
        """Refuse random keys as operands of an op that would see what is inside of them.

        Raises:
          DTypeError: there are some.
        """
        if not self.takes_keys and any(is_key(a.dtype) for a in avals):
            got = ", ".join(map(str, avals))
            raise DTypeError(f"{self.name} does not take random keys, got {got}; random.key_data gives the words")

    def typed(self, *avals: ShapedArray) -> Any:
        """What :meth:`infer` gives, with the axes over which the results vary, and how explicit axes split them."""
        inferred = self.infer(*(a.update(vma=NOWHERE, explicit=None, memory=None) for a in avals))
        outs = list(inferred) if self.multiple_results else [inferred]
        axes = self.varies(*(a.vma for a in avals)) if STATE.checked else NOWHERE
        split = result_types(self, avals, outs) if is_explicit(avals) else [None] * len(outs)
        memory = common_memory(avals)
        typed = tuple(a.update(vma=axes, explicit=s, memory=memory) for a, s in zip(outs, split))
        return typed if self.multiple_results else typed[0]

    def aligned(self, args: Sequence[ArrayLike]) -> tuple[Op, Sequence[ArrayLike]]:
        """What to apply in a ``shard_map`` that is checked: operands that vary over the same axes, casts put in."""
        return self, cast_all(args)

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        """``(outputs, output tangents)``; tangents may be :class:`Zero`, in and out.

        Asked for only where a result is inexact and some operand that is neither in :attr:`constant_in` nor in
        :attr:`unknown_in` has a tangent; at least one result must then have one.

        Must be linear in the tangents by construction: tangents only go through ops that have ``transpose``.
        """
        raise RuleError(f"op {self.name} cannot be differentiated (it has no jvp rule)")

    def constant_operands(self, *avals: ShapedArray) -> frozenset[int]:
        """:attr:`constant_in`, which for some ops depends on the dtype."""
        return self.constant_in

    def transpose(self, cts: Any, *args: ArrayLike | Linear) -> Cotangents:
        """Cotangents of the operands that are :class:`Linear` (:class:`Zero`, where it is zero), ``None`` for others.

        ``cts`` is the cotangent of the result, or a list of them (some may be ``Zero``) with
        ``multiple_results``.
        """
        raise RuleError(f"op {self.name} is not linear (it has no transpose rule)")

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        """``(outputs, output batch dims)`` for operands with a batch dimension at ``dims[i]`` (``None``: without).

        The batch dimension should stay beside the dimension it stood beside, so that batching a program that works
        on tiles of a global array never moves data.
        """
        raise RuleError(f"op {self.name} has no batching rule")

    def sharding_rule(self, *avals: ShapedArray) -> ShardingRule:
        """How operand and result dimensions correspond. The default lets nothing be split."""
        outs = self.infer(*avals)
        outs = outs if self.multiple_results else (outs,)
        return replicated_rule([a.shape for a in avals], [o.shape for o in outs])

    def kernels(self, *avals: ShapedArray) -> Kernels:
        """What a GPU does for the op, where it is not fused with others."""
        return Kernels()

    def index_operands(self, num_operands: int) -> range:
        """The operands that say where in operand 0 windows start, which :meth:`out_of_bounds` looks at."""
        return range(0)

    def out_of_bounds(self, *operands: Any) -> Any:
        """Whether a window of operand 0 lies partly outside of it, of an op with :meth:`index_operands`."""
        raise RuleError(f"op {self.name} takes no indices")

    def stated_shardings(self) -> Sequence[NamedSharding]:
        """How results lie, where the op's parameters say so: one for each result, or none."""
        return ()

    def scope(self) -> AbstractContextManager[Any]:
        """The context in which the op's jaxprs have a meaning: the axes that it brings into scope."""
        return nullcontext()

    def counts_along(self, known: Sequence[int | None], avals: Sequence[ShapedArray]) -> int | None:
        """The dimension along which the result is 0, 1, 2, …, if ``known`` says of operands along which they are."""
        return None

    def image(self, known: Sequence[Interval], avals: Sequence[ShapedArray]) -> Interval:
        """Where the result lies, for operands that lie in ``known``."""
        return known[0] if self.moves_only else ANYWHERE

    def domain(
        self, wishes: Sequence[Interval], known: Sequence[Interval], avals: Sequence[ShapedArray]
    ) -> Sequence[Interval]:
        """Where operands should lie so that the op is defined there and its results lie in ``wishes``.

        What it says is for inputs that are drawn at random; it need not be exact.
        """
        rest = [ANYWHERE] * (len(avals) - 1)
        return [wishes[0].without_columns(), *rest] if self.moves_only else [ANYWHERE] * len(avals)

    def body(self) -> ClosedJaxpr | None:
        """The jaxpr that this op does nothing but call, if it may be written out in its place."""
        return None

    def regions(self) -> tuple[ClosedJaxpr, ...]:
        """The jaxprs of a control-flow op, which stay where they are: see :mod:`meshwright.ops.control.regions`."""
        return ()

    def with_regions(self, regions: Sequence[ClosedJaxpr]) -> Op:
        """This op with other jaxprs in its regions."""
        raise RuleError(f"op {self.name} has no regions")

    def alternatives(self, *avals: ShapedArray) -> Sequence[Op]:
        """Ops that compute the same with other sharding rules: tried where this one's rule makes operands move."""
        return ()

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        """Write the op as StableHLO; returns the result value, or a list with ``multiple_results``."""
        raise RuleError(f"op {self.name} cannot be lowered to StableHLO")

    def localize(self, ctx: Localizer, *operands: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        """The op on local shapes (``ctx``: :class:`meshwright.spmd.localize.context.LocalContext`).

        The default masks the padding of reduced dimensions and binds :meth:`localized`.
        """
        return ctx.default(self, *operands)

    def typing_rule(self, *avals: ShapedArray) -> ShardingRule:
        """The rule by which explicit axes go from the types of operands to those of results."""
        return self.sharding_rule(*avals)

    def linear_groups(self, *avals: ShapedArray) -> tuple[tuple[int, ...], ...]:
        """:attr:`linear_in`, which for some ops depends on the number of operands or their dtype."""
        return self.linear_in

    def perform(self, *operands: Any) -> Any:
        """The results, in Python, of an op that is :attr:`in_python`."""
        raise RuleError(f"op {self.name} is not done in Python")

    def localized(self, ctx: LocalSizes) -> Op:
        """This op with parameters that name sizes changed to local ones. Default: unchanged."""
        return self

    def before_merging(self, x: Value, groups: Sequence[tuple[int, ...]]) -> list[Value] | None:
        """The results for an operand whose dimension ``d`` is the dimensions ``groups[d]`` of ``x``, merged; up to a
        reshape. Default: None, it has to be merged first."""
        return None


def by_name(name: str) -> Op:
    """The op without parameters that is registered under a name: what pickles of them say."""
    return REGISTRY[name]()
