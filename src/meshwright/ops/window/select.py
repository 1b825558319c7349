"""select_and_gather_add and select_and_scatter_add, each the other's transpose: the derivatives of max and min windows.

Each window selects one element of ``operand`` (the largest or smallest; the first of equal ones, or as strict
comparisons do, the last). Gathering reads a tangent at its position, scattering adds a cotangent there. The selection
is piecewise constant, so derivatives of every order consist of these two ops.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import DTypeError, ShapeError
from meshwright.ir.contract import ArrayLike, Emitted, Localizer
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.op import Builder, Cotangents, Dual, Tangent, Zero
from meshwright.ir.reading import Reader, reads, scalar_of
from meshwright.ir.tracing import trace_to_jaxpr, typeof
from meshwright.ops.elementwise.table import add, eq, ge, le, or_, scalar_like, select
from meshwright.ops.shape.broadcast_reduce import match_shape
from meshwright.ops.shape.slice_pad import slice_
from meshwright.ops.window.body import read_select_and_scatter_body
from meshwright.ops.window.geometry import WindowDim, fetch_dilated, fetch_for_result, make_windows
from meshwright.ops.window.op import WindowOp, emit_pad, pads_array, window_params
from meshwright.ops.window.slices import window_offsets, window_slices, window_unslice
from meshwright.sharding.window import Window

#: windows of up to this many elements are scattered offset by offset: XLA's CPU code for ``select_and_scatter`` takes
#: eight times as long for 2x2 windows, and GPUs have no kernel for it
_MOST_OFFSETS = 32
#: the dimensions without windows that a TPU's kernel for ``select_and_scatter`` needs: those of its tiles
_TILE_DIMS = 2

_COMPARE = {"ge": ge, "le": le}


def worst(selects: str, dtype: np.dtype) -> np.ndarray:
    """The value that is selected only if there is no other."""
    return dtypes.min_value(dtype) if selects == "ge" else dtypes.max_value(dtype)


def _stays(selects: str, best: Any, value: Any) -> Any:
    """Whether ``best`` remains selected over ``value``. Even NaN does if ``value`` is that of padding."""
    filler = match_shape(worst(selects, typeof(value).dtype), typeof(value))
    return or_(_COMPARE[selects](best, value), eq(value, filler))


@dataclass(frozen=True)
class _Select(WindowOp):
    """Base class of the pair: linear in operand 0, constant in operand 1, by which it selects with ``ge`` or ``le``.

    With ``last``, the last of equal elements is selected.
    """

    selects: str
    last: bool = False
    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ((0,),)
    constant_in: ClassVar[frozenset[int]] = frozenset({1})

    def check_operand(self, x: ShapedArray) -> None:
        """Raise if the extremum has no derivative."""
        if dtypes.is_complex(x.dtype):
            raise DTypeError(f"{self.name}: extremes of {x.dtype} windows have no derivative; take real parts")

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        return self.bind(*primals), self.bind(tangents[0], primals[1])

    def partner(self, other: type[_Select]) -> Any:
        """The other op of the pair, with the same parameters."""
        return other(**self.params)


@dataclass(frozen=True)
class SelectAndGatherAdd(_Select):
    """For each window, the element of ``tangents`` at the position selected in ``operand``."""

    name: ClassVar[str] = "select_and_gather_add"

    def infer(self, tangents: ShapedArray, operand: ShapedArray) -> ShapedArray:
        self.check_operand(operand)
        if tangents.shape != operand.shape:
            raise ShapeError(f"{self.name}: tangents {tangents} and operand {operand} must have one shape")
        return tangents.update(shape=self.result_shape(operand))

    def transpose(self, ct: Any, *args: Any) -> Cotangents:
        if 0 in args[0].aval.shape or 0 in typeof(ct).shape:
            return [Zero(args[0].aval), None]
        return [self.partner(SelectAndScatterAdd).bind(ct, args[1]), None]

    def localize(self, ctx: Localizer, *operands: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        tangents, operand = operands
        fill = worst(self.selects, ctx.in_avals[1].dtype)
        windows = list(self.windows)
        for d, window in enumerate(windows):
            if ctx.is_split(0, d) and not window.is_trivial:
                rows = ctx.out_local_shapes[0][d]
                tangents, _ = fetch_for_result(ctx, tangents, 0, d, window, rows)
                operand, windows[d] = fetch_for_result(ctx, operand, 1, d, window, rows, fill)
        return self.with_windows(windows).bind(tangents, operand)

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        (tangents, operand), (out,) = b.in_avals, b.out_avals
        if self.last:  # windows may be reduced in any order, which only the offsets' numbers tell apart
            return b.call(self.name, _gather_jaxpr(self, tangents, operand), operands)[0]
        pair = [out.update(dtype=operand.dtype), out]
        first: tuple[ArrayLike, ArrayLike] = (worst(self.selects, operand.dtype), 0)
        inits = [b.constant(value, ShapedArray((), a.dtype)) for value, a in zip(first, pair)]
        region = b.jaxpr_region(_keep_selected(self.selects, operand.dtype, tangents.dtype))
        return self.emit_reduce_window(b, operands[::-1], inits, pair, region)[1]


@dataclass(frozen=True)
class SelectAndScatterAdd(_Select):
    """Zeros of ``operand``'s shape, to which each window's element of ``source`` is added at the selected position."""

    name: ClassVar[str] = "select_and_scatter_add"

    def infer(self, source: ShapedArray, operand: ShapedArray) -> ShapedArray:
        self.check_operand(operand)
        expected = self.result_shape(operand)
        if source.shape != expected:
            raise ShapeError(
                f"{self.name}: source has shape {source.shape}, but the windows over operand {operand} are {expected}"
            )
        return source.update(shape=operand.shape)

    def transpose(self, ct: Any, *args: Any) -> Cotangents:
        return [self.partner(SelectAndGatherAdd).bind(ct, args[1]), None]

    def localize(self, ctx: Localizer, *operands: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        local = _LocalScatter(ctx, self, *operands)
        for d, window in enumerate(self.windows):
            if ctx.is_split(1, d) and not window.is_trivial:
                local.fetch(d, window)
        return local.result()

    # --- StableHLO ------------------------------------------------------------------------------------------
    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        source, operand = b.in_avals
        if self.last or self.is_dilated or 0 in source.shape or not self._has_kernel(b.platform):
            return self._emit_offsets(b, *operands)
        # Pad explicitly, since ``select_and_scatter`` may select its own padding.
        ones = (1,) * operand.ndim
        padded = operand.update(shape=tuple(w.padded_size(n) for w, n in zip(self.windows, operand.shape)))
        scalar, zero = ShapedArray((), source.dtype), b.constant(0, ShapedArray((), source.dtype))
        least = b.constant(worst(self.selects, operand.dtype), ShapedArray((), operand.dtype))
        x = emit_pad(b, operands[1], least, padded, self.padding, ones)
        out = b.op(
            "stablehlo.select_and_scatter", [x, operands[0], zero], [padded.update(dtype=source.dtype)],
            regions=[b.jaxpr_region(_comparison(self.selects, operand.dtype)), b.reducer("stablehlo.add", [scalar])],
            window_dimensions=self.window_dimensions, window_strides=self.window_strides,
            padding=pads_array(((0, 0),) * operand.ndim),
        )[0]  # fmt: skip
        return emit_pad(b, out, zero, b.out_avals[0], [(-lo, -hi) for lo, hi in self.padding], ones)

    def _has_kernel(self, platform: str) -> bool:
        """Whether the platform's ``select_and_scatter`` takes these windows, and is no slower than offset by offset.

        For a TPU it takes a fifth to a third of the cycles in most cases, as XLA's compiler estimates them.
        """
        if platform == "tpu":
            return sum(w.is_trivial for w in self.windows) >= _TILE_DIMS
        return math.prod(self.window_dimensions) > _MOST_OFFSETS

    def _emit_offsets(self, b: Builder, source: Emitted, operand: Emitted) -> Emitted:
        """Emit one term per offset: the selected offset gets its window's cotangent.

        Where windows overlap, XLA's CPU compiler would recompute the selection for each offset and each user of the
        result. So the selection and the result are compiled separately, which is four to six times as fast for 3x3
        windows.
        """
        apart = b.platform == "cpu" and any(w.extent > w.stride for w in self.windows)
        chosen = b.call("chosen", _chosen_jaxpr(self, b.in_avals[1]), [operand], apart=apart)
        jaxpr = _scatter_jaxpr(self, *b.in_avals)
        return b.call(self.name, jaxpr, [source, *chosen], apart=apart)[0]


class _LocalScatter:
    """``select_and_scatter_add`` on tiles: each device computes its rows of the result from all windows that overlap
    them."""

    def __init__(self, ctx: Localizer, op: SelectAndScatterAdd, source: Any, operand: Any) -> None:
        self.ctx, self.op, self.source, self.operand = ctx, op, source, operand
        self.windows = list(op.windows)
        #: for each split dimension: the first row of each tile in the local result, and the step between its rows
        self.cuts: list[tuple[int, list[int], int]] = []

    def fetch(self, d: int, window: WindowDim) -> None:
        """Fetch the windows of dimension ``d`` that overlap this tile, and all rows in them."""
        ctx = self.ctx
        tiles, rows = range(ctx.num_tiles(1, d)), ctx.in_local_shapes[1][d]
        # Tile t holds rows [t*rows, (t+1)*rows), dilated by the base dilation. Windows are numbered by stride.
        first = [-(-(t * rows * window.base_dilation + window.low + 1 - window.extent) // window.stride) for t in tiles]
        last = [(((t + 1) * rows - 1) * window.base_dilation + window.low) // window.stride for t in tiles]
        count = max(1, *(b - a + 1 for a, b in zip(first, last)))
        starts = [a * window.stride - window.low for a in first]
        seen = Window(starts.__getitem__, (count - 1) * window.stride + window.extent)
        fill = worst(self.op.selects, ctx.in_avals[1].dtype)
        self.source = ctx.fetch_window(self.source, 0, d, Window(first.__getitem__, count))
        self.operand, pads, dilation = fetch_dilated(ctx, self.operand, 1, d, seen, window.base_dilation, fill)
        self.windows[d] = WindowDim(window.size, window.stride, *pads, dilation, window.window_dilation)
        step = window.base_dilation // dilation
        # Row 0 of the local result is row ceil(start / dilation) of the global one, counted in steps.
        self.cuts.append((d, [t * rows * step - -(-a // dilation) for t, a in zip(tiles, starts)], step))

    def result(self) -> Any:
        """Run the local op, and return this tile's rows of its result."""
        out = self.op.with_windows(self.windows).bind(self.source, self.operand)
        for d, starts, step in self.cuts:
            rows = self.ctx.out_local_shapes[0][d]
            out = self.ctx.cut(out, 1, d, starts, (rows - 1) * step + 1)
            strides = [step if i == d else 1 for i in range(typeof(out).ndim)]
            out = slice_(out, [0] * len(strides), typeof(out).shape, strides)
        return out


# --- regions and private functions --------------------------------------------------------------------------
@lru_cache(maxsize=256)
def _comparison(selects: str, dtype: np.dtype) -> ClosedJaxpr:
    scalar = ShapedArray((), dtype)
    return trace_to_jaxpr(lambda a, b: [_stays(selects, a, b)], [scalar, scalar])


@lru_cache(maxsize=256)
def _keep_selected(selects: str, key: np.dtype, value: np.dtype) -> ClosedJaxpr:
    """The selected one of two (key, value) pairs."""

    def keep(a: Any, x: Any, b: Any, y: Any) -> list[Any]:
        first = _stays(selects, a, b)
        return [select(first, a, b), select(first, x, y)]

    pair = [ShapedArray((), key), ShapedArray((), value)]
    return trace_to_jaxpr(keep, [*pair, *pair])


@lru_cache(maxsize=256)
def _chosen_jaxpr(op: SelectAndScatterAdd, operand: ShapedArray) -> ClosedJaxpr:
    """The number of the offset selected by each window."""

    def choose(x: Any) -> list[Any]:
        return [_chosen(op, window_slices(x, op.windows, worst(op.selects, operand.dtype)))]

    return trace_to_jaxpr(choose, [operand], "chosen")


@lru_cache(maxsize=256)
def _gather_jaxpr(op: SelectAndGatherAdd, tangents: ShapedArray, operand: ShapedArray) -> ClosedJaxpr:
    """``select_and_gather_add``, offset by offset."""

    def gather(tangents: Any, operand: Any) -> list[Any]:
        chosen = _chosen(op, window_slices(operand, op.windows, worst(op.selects, typeof(operand).dtype)))
        first, *others = window_slices(tangents, op.windows, scalar_like(0, tangents))
        for i, part in enumerate(others, 1):
            first = select(eq(chosen, match_shape(np.int32(i), typeof(chosen))), part, first)
        return [first]

    return trace_to_jaxpr(gather, [tangents, operand], op.name)


@lru_cache(maxsize=256)
def _scatter_jaxpr(op: SelectAndScatterAdd, source: ShapedArray, operand: ShapedArray) -> ClosedJaxpr:
    """``select_and_scatter_add``, given the offset selected by each window."""

    def scatter(source: Any, chosen: Any) -> list[Any]:
        nothing = match_shape(scalar_like(0, source), typeof(source))
        numbers = [match_shape(np.int32(i), typeof(chosen)) for i in range(len(window_offsets(op.windows)))]
        parts = [select(eq(chosen, i), source, nothing) for i in numbers]
        return [window_unslice(parts, op.windows, operand.shape)]

    return trace_to_jaxpr(scatter, [source, source.update(dtype=np.dtype(np.int32))], op.name)


def _chosen(op: _Select, values: Sequence[Any]) -> Any:
    """The number of the array that is selected, elementwise; as in gathering, NaN does not win over other values."""
    (number, best), *others = list(enumerate(values))[:: -1 if op.last else 1]
    place = match_shape(np.int32(number), ShapedArray(typeof(best).shape, np.dtype(np.int32)))
    for i, value in others:
        stays = _stays(op.selects, best, value)
        best, place = select(stays, best, value), select(stays, place, match_shape(np.int32(i), typeof(place)))
    return place


def select_op(kind: type[_Select], op: WindowOp, selects: str) -> Any:
    """The op of the pair with the windows of ``op``."""
    return kind(selects=selects, **window_params(op.windows))


# --- reading ------------------------------------------------------------------------------------------------
@reads("stablehlo.select_and_scatter")
def _read_select_and_scatter(r: Reader) -> Any:
    operand, source, init = r.operands
    sizes = r.attr("window_dimensions", (1,) * typeof(operand).ndim)
    ones = (1,) * len(sizes)
    padding = tuple((int(lo), int(hi)) for lo, hi in r.attr("padding", np.zeros((len(sizes), 2), np.int64)))
    windows = make_windows(sizes, r.attr("window_strides", ones), padding, ones, ones)
    chooses = r.region(0).jaxpr.jaxpr
    eqns = chooses.eqns
    compares = eqns[0].op.name if len(eqns) == 1 else ""
    selects = {"ge": "ge", "gt": "ge", "le": "le", "lt": "le"}.get(compares, "")
    in_order = selects and list(eqns[0].invars) == chooses.invars
    if not in_order or r.reducer(1) != "add" or dtypes.is_bool(typeof(source).dtype):
        return read_select_and_scatter_body(r, window_params(windows))
    last = compares != selects  # a strict comparison does not keep the first of equal elements
    out = SelectAndScatterAdd(**window_params(windows), selects=selects, last=last).bind(source, operand)
    start = scalar_of(init)
    return out if start is not None and bool(start == 0) else add(out, init)
