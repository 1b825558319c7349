"""Ops that call Python functions on the host: ``pure_callback``, ``io_callback`` and ``debug_callback``.

The compiler does not know what they compute, so they have no derivative and are not split: on a mesh they get whole
operands and are called once. They are emitted as custom calls of the handler that ``jaxlib`` registers for Python
functions. Semantics follow ``jax.pure_callback`` and related functions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import Axes, ShapedArray
from meshwright.core.caches import Recent
from meshwright.core.records import dataclass
from meshwright.errors import CallbackError, DifferentiationError, ImportProgramError, RuleError
from meshwright.ir.contract import ArrayLike, Emitted
from meshwright.ir.jaxpr import ClosedJaxpr, all_eqns
from meshwright.ir.not_arrays import refuse_masked
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Cotangents, Dual, Op, Tangent, Zero
from meshwright.ir.reading import reads
from meshwright.ir.state import STATE, set_trace
from meshwright.ir.tracing import EVAL, typeof
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim
from meshwright.ops.shape.rearrange import expand_dims, move_dim, squeeze
from meshwright.ops.shape.slice_pad import slice_in_dim

#: takes and returns flat NumPy arrays
HostFunction = Callable[..., Sequence[Any]]
#: type of the tokens that order calls; the value is 0 and only the dependency matters
TOKEN = ShapedArray((), np.dtype(np.int32))

_TARGET = '"xla_ffi_python_cpu_callback"'
#: custom call targets in JAX's programs, of several releases and platforms
_TARGETS = (
    "xla_ffi_python_cpu_callback", "xla_ffi_python_gpu_callback", "xla_ffi_partitioned_python_cpu_callback",
    "xla_ffi_partitioned_python_gpu_callback", "xla_python_cpu_callback", "xla_python_gpu_callback",
)  # fmt: skip
_numbers = itertools.count()
#: errors raised by callbacks in compiled programs, whose runtime passes on only their text
_failures: Recent[int, CallbackError] = Recent(64)
_MARK = "callback failure #"


def failure_in(message: str) -> CallbackError | None:
    """The callback's error behind the ``message`` with which a compiled program failed, if any."""
    _, mark, rest = message.rpartition(_MARK)
    digits = "".join(itertools.takewhile(str.isdigit, rest))
    return _failures.get(int(digits)) if mark and digits else None


@dataclass(frozen=True)
class Callback(Op):
    """Base class. ``function`` takes NumPy arrays and returns arrays of the types ``results``; ``label`` is its name.

    With ``ordered``, callbacks run in program order; ``token`` tells that the order has been made a data dependency, by
    an extra operand and result (see :mod:`meshwright.lowering.ordering`).

    In a program for several devices, every device along the axes ``each`` (those that are manual around it) makes the
    call; along all others, one device calls for all (see :mod:`meshwright.lowering.host_calls`). With ``guarded``, the
    first operand, after a token, tells whether this device calls. Devices that do not return zeros.
    """

    function: HostFunction = field(repr=False)
    label: str
    results: tuple[ShapedArray, ...] = ()
    ordered: bool = False
    token: bool = False
    each: tuple[str, ...] | None = None
    guarded: bool = False
    multiple_results: ClassVar[bool] = True
    in_python: ClassVar[bool] = True
    hidden_params: ClassVar[tuple[str, ...]] = ("function", "results", "token", "each", "guarded")

    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        return (TOKEN, *self.results) if self.token else self.results

    def shared_along(self, sizes: Mapping[str, int]) -> tuple[str, ...]:
        """The mesh axes along which one device calls for all and sends them the results."""
        alone = self.each or ()
        return tuple(axis for axis, size in sizes.items() if size > 1 and axis not in alone) if self.results else ()

    def perform(self, *arrays: Any) -> list[Any]:
        """The results for concrete arrays."""
        return self.call(*arrays)

    def call(self, *arrays: Any) -> list[np.ndarray]:
        """Call the function, if this device should, on copies: it may keep them, while the program reuses its memory.

        Raises:
          CallbackError: the function raised, or returned results of other types than declared.
        """
        if self.guarded:
            if not arrays[0]:
                return [np.zeros(a.shape, a.dtype) for a in self.results]  # all bits 0
            arrays = arrays[1:]
        try:
            with set_trace(EVAL):
                outs = self.function(*(np.array(x) for x in arrays))
            return [self._checked(i, y, a) for i, (y, a) in enumerate(zip(outs, self.results, strict=True))]
        except CallbackError:
            raise
        except Exception as error:
            raise self.failed(error) from error

    def failed(self, error: BaseException) -> CallbackError:
        """The error to raise for an exception of the function."""
        if isinstance(error, CallbackError):
            return error
        failure = CallbackError(f"{self.name}: the Python function {self.label} raised {type(error).__name__}: {error}")
        failure.__cause__ = error
        return failure

    def _checked(self, number: int, value: Any, aval: ShapedArray) -> np.ndarray:
        if isinstance(value, np.ndarray):
            refuse_masked(value)
        array = np.asarray(value)
        if array.dtype != aval.dtype and dtypes.canonical(array.dtype) == aval.dtype:
            array = array.astype(aval.dtype)
        if (array.shape, array.dtype) != (aval.shape, aval.dtype):
            raise CallbackError(
                f"{self.name}: result {number} of the Python function {self.label} has shape {array.shape} and dtype "
                f"{array.dtype}, but result_shape_dtypes says {aval}; return what was declared, or declare what is "
                "returned"
            )
        return array

    def _from_program(self, *arrays: Any) -> tuple[np.ndarray, ...]:
        """The entry point for compiled programs; keeps failures, so that the caller gets the original exception."""
        try:
            if not self.token:
                return tuple(self.call(*arrays))
            return (np.zeros((), np.int32), *self.call(*arrays[1:]))
        except BaseException as error:  # including exits, which XLA would report with its own traceback
            number, failure = next(_numbers), self.failed(error)
            _failures.setdefault(number, failure)
            raise CallbackError(f"{failure} ({_MARK}{number})") from failure

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        if self.each is None:
            return self.mapped(axis, args, dims)
        if axis.name in self.each:
            return self._looped(axis, args, dims)
        firsts = [x if d is None else squeeze(slice_in_dim(x, 0, 1, axis=d), [d]) for x, d in zip(args, dims)]
        return self.bind(*firsts), [None] * len(self.results)

    def mapped(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        """The call under a user's ``vmap``."""
        return self._looped(axis, args, dims)

    def _looped(self, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        """One host call that loops over the batch in order."""
        loop = _Loop(self, axis.size, tuple(dims))
        op = replace(self, function=loop, results=_batched(self.results, axis.size), guarded=False)
        return op.bind(*args), [0] * len(self.results)

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        for aval in (*b.in_avals, *b.out_avals):
            if dtypes.bit_width(aval.dtype) < 8 and not dtypes.is_bool(aval.dtype):
                raise RuleError(f"{self.name}: callbacks cannot take or give {aval.dtype}; convert it to int8 first")
        layouts = [_row_major(avals) for avals in (b.in_avals, b.out_avals)]
        index = b.host_callback(self._from_program)
        return b.op(
            "stablehlo.custom_call", operands, b.out_avals, call_target_name=_TARGET, api_version="4 : i32",
            has_side_effect=self.has_effects, backend_config=f"{{index = {index} : ui64}}",
            operand_layouts=layouts[0], result_layouts=layouts[1],
        )  # fmt: skip


def _row_major(avals: Sequence[ShapedArray]) -> str:
    orders = (f"dense<{list(range(a.ndim))[::-1] if a.ndim else ''}> : tensor<{a.ndim}xindex>" for a in avals)
    return f"[{', '.join(orders)}]"


def _batched(avals: Sequence[ShapedArray], size: int) -> tuple[ShapedArray, ...]:
    return tuple(a.update(shape=(size, *a.shape)) for a in avals)


@dataclass(frozen=True)
class _Loop:
    """The function of a batched callback: calls the function for each entry, in order."""

    op: Callback
    size: int
    dims: tuple[int | None, ...]

    def __call__(self, *arrays: np.ndarray) -> list[np.ndarray]:
        rows = [
            self.op.call(*(x if d is None else np.take(x, i, d) for x, d in zip(arrays, self.dims)))
            for i in range(self.size)
        ]
        return [np.stack(column) for column in zip(*rows)]


@dataclass(frozen=True)
class _Underivable(Callback):
    """Base class for results whose dependence on operands is unknown. ``remedy``: what to do about derivatives."""

    remedy: ClassVar[str] = ""

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        raise DifferentiationError(
            f"{self.name}: the derivative of the Python function {self.label} is not known; {self.remedy}take it out "
            "of the derivative with stop_gradient on its arguments"
        )


@dataclass(frozen=True)
class PureCallback(_Underivable):
    """A pure function: it may be called any number of times, or not at all if its results are unused."""

    vmap_method: str | None = None
    name: ClassVar[str] = "pure_callback"
    remedy: ClassVar[str] = "give it one with custom_jvp or custom_vjp, or "

    def mapped(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        match self.vmap_method:
            case "sequential" | "sequential_unrolled":  # both loop in Python
                return self._looped(axis, args, dims)
            case "expand_dims" | "broadcast_all" | "legacy_vectorized":
                size = {"expand_dims": 1, "broadcast_all": axis.size}.get(self.vmap_method)
                args = [_leading(x, d, size) for x, d in zip(args, dims)]
                op = replace(self, results=_batched(self.results, axis.size))
                return op.bind(*args), [0] * len(self.results)
        raise RuleError(
            f"pure_callback: under vmap the Python function {self.label} needs vmap_method: 'sequential' calls it for "
            "each entry, 'expand_dims' (size 1 where an argument is not mapped) or 'broadcast_all' call it once with "
            "a leading dimension"
        )


def _leading(x: Any, dim: int | None, size: int | None) -> Any:
    """``x`` with its batch dimension in front; if it has none, one of ``size`` is added, unless ``size`` is None."""
    if dim is not None or size is None:
        return x if dim is None else move_dim(x, dim, 0)
    shape = typeof(x).shape
    return expand_dims(x, [0]) if size == 1 else broadcast_in_dim(x, (size, *shape), range(1, len(shape) + 1))


@dataclass(frozen=True)
class IoCallback(_Underivable):
    """A function with side effects: called exactly once per execution."""

    name: ClassVar[str] = "io_callback"
    has_effects: ClassVar[bool] = True
    of_operands: ClassVar[bool] = False

    def varies(self, *operands: Axes) -> Axes:
        return STATE.checked  # each device calls it, and results may differ

    def mapped(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        if self.ordered:
            raise RuleError(
                f"io_callback: an ordered call of {self.label} cannot be mapped by vmap, as mapped entries have no "
                "order; use ordered=False, or scan instead of vmap"
            )
        return self._looped(axis, args, dims)


@dataclass(frozen=True)
class DebugCallback(Callback):
    """A function without results, called for its effect on values of the forward computation."""

    name: ClassVar[str] = "debug_callback"
    has_effects: ClassVar[bool] = True

    def transpose(self, cts: Sequence[Any], *args: Any) -> Cotangents:
        return [Zero(typeof(x)) for x in args]


# --- in imported programs -------------------------------------------------------------------------------------
@reads(*(f"custom_call:{target}" for target in _TARGETS))
def _read(r: Any) -> Any:
    """Read a callback. Its function may come with the program; if it does not, the call raises."""
    number = (r.attr("mhlo.backend_config", None) or {}).get("index")
    function = r.host_function(number)
    tokens = r.tokens()
    operands, results = r.operands, r.out_avals
    given, made = tokens[: len(operands)], tokens[len(operands) :]
    kept = [a for a, is_token in zip(results, made) if not is_token]
    effects = r.attr("has_side_effect", False)
    if function is None and not kept:
        r.warn("a Python function that the program calls, as debug.print does, is not part of it: it is left out")
        return [np.int32(0) for _ in results]
    called = _Foreign(function, tuple(given), tuple(made))
    op: Callback = PureCallback(called, "of the program", tuple(kept), vmap_method="sequential")
    if effects:
        op = (IoCallback if kept else DebugCallback)(called, "of the program", tuple(kept), ordered=any(tokens))
    outs = iter(op.bind(*(x for x, is_token in zip(operands, given) if not is_token)))
    return [np.int32(0) if is_token else next(outs) for is_token in made]


@dataclass(frozen=True)
class _Foreign:
    """A function of another library, which also takes and returns tokens; None if it did not come with the program."""

    function: HostFunction | None
    given: tuple[bool, ...]
    made: tuple[bool, ...]

    def __call__(self, *arrays: np.ndarray) -> list[Any]:
        if self.function is None:
            raise ImportProgramError(
                "the program calls a Python function of the process that wrote it, which is not part of its text; load "
                "it with from_jax from the function itself, or write it without callbacks"
            )
        values = iter(arrays)
        outs = self.function(*(None if is_token else next(values) for is_token in self.given))
        return [y for y, is_token in zip(outs, self.made, strict=True) if not is_token]


def calls_python(jaxpr: ClosedJaxpr) -> bool:
    """Whether the program contains a callback."""
    return any(isinstance(e.op, Callback) for e in all_eqns(jaxpr.jaxpr))
