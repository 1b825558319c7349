"""conv_general_dilated: convolution with strides, padding, dilation and groups.

Both derivatives and both batching rules of a convolution are convolutions: for the operand's cotangent, the reversed
kernel slides over a dilated cotangent; for the kernel's cotangent, the cotangent slides over the operand. Parameters
and dimension numbers follow XLA's ConvWithGeneralPadding (https://openxla.org/xla/operation_semantics).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import reduce
from itertools import product
from typing import Any, ClassVar, NamedTuple

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.core.words import counted
from meshwright.errors import DTypeError, ShapeError
from meshwright.ir.contract import ArrayLike, Emitted, Localizer
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Cotangents, Linear, Zero
from meshwright.ir.reading import Reader, reads
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.table import convert
from meshwright.ops.products.algorithms import converted
from meshwright.ops.products.bilinear import Bilinear
from meshwright.ops.products.on_gpus import PIECE, sums_in_float64
from meshwright.ops.shape.broadcast_reduce import match_shape
from meshwright.ops.shape.rearrange import move_dim, reshape, rev
from meshwright.ops.shape.slice_pad import concatenate, slice_in_dim
from meshwright.ops.window.geometry import (
    Pads,
    SentHalos,
    WindowDim,
    dilate,
    fetch_dilated,
    fetch_for_result,
    make_windows,
)
from meshwright.sharding.rule import REDUCTION, WINDOW, ShardingRule, make_rule
from meshwright.sharding.window import Window

Dims = tuple[int, ...]

#: up to this size, a batch of kernels becomes separate convolutions. On XLA's CPU a convolution with feature groups
#: takes two to four times as long as separate ones (measured with 4 to 16 groups)
_MOST_SEPARATE = 16


class ConvDimensionNumbers(NamedTuple):
    """The batch and feature dimensions, then the spatial ones; for ``rhs``, output and input features, then spatial
    ones."""

    lhs_spec: Dims
    rhs_spec: Dims
    out_spec: Dims


# --- moving between groups and dimensions -------------------------------------------------------------------
def _merge(x: Any, source: int, target: int, groups: int = 1) -> Any:
    """Merge dimension ``source`` into ``target`` (numbered without it), which becomes (groups, source, rest)."""
    size = typeof(x).shape[source]
    x = move_dim(x, source, target)
    shape = typeof(x).shape
    before, rest, after = shape[:target], shape[target + 1], shape[target + 2 :]
    if groups > 1:
        x = move_dim(reshape(x, (*before, size, groups, rest // groups, *after)), target, target + 1)
    return reshape(x, (*before, size * rest, *after))


def _split(x: Any, dim: int, size: int, groups: int = 1) -> Any:
    """Undo :func:`_merge`: split dimension ``dim``, (groups, size, rest), into ``size`` and (groups, rest)."""
    shape = typeof(x).shape
    before, rest, after = shape[:dim], shape[dim] // size, shape[dim + 1 :]
    if groups > 1:
        x = move_dim(reshape(x, (*before, groups, size, rest // groups, *after)), dim + 1, dim)
    return reshape(x, (*before, size, rest, *after))


def _regroup(x: Any, groups: int, source: int, target: int) -> Any:
    """Move the major ``groups`` part of dimension ``source`` to the major part of dimension ``target``."""
    return x if groups == 1 else _merge(_split(x, source, groups), source, target)


@dataclass(frozen=True)
class ConvGeneralDilated(Bilinear):
    """``out[b, o, y] = sum over i, k of lhs[b, i, y * stride + k * rhs_dilation - low] * rhs[o, i, k]``, with ``lhs``
    dilated by ``lhs_dilation``.

    With feature groups, ``lhs`` features and ``rhs`` outputs are (group, rest), and a group's outputs depend only on
    its features. With batch groups, this holds for the ``lhs`` batch instead of features.
    """

    window_strides: Dims
    padding: Pads
    lhs_dilation: Dims
    rhs_dilation: Dims
    dimension_numbers: ConvDimensionNumbers
    feature_group_count: int = 1
    batch_group_count: int = 1
    precision: tuple[str, str] | None = None
    preferred_element_type: np.dtype | None = None
    name: ClassVar[str] = "conv_general_dilated"
    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ((0,), (1,))
    hidden_params: ClassVar[tuple[str, ...]] = ("precision",)

    @property
    def groups(self) -> int:
        """The number of groups of either kind."""
        return self.feature_group_count * self.batch_group_count

    def windows(self, rhs_shape: Sequence[int]) -> tuple[WindowDim, ...]:
        """The windows, one per spatial dimension."""
        sizes = [rhs_shape[d] for d in self.dimension_numbers.rhs_spec[2:]]
        return make_windows(sizes, self.window_strides, self.padding, self.lhs_dilation, self.rhs_dilation)

    def with_windows(self, windows: Sequence[WindowDim], **changes: Any) -> ConvGeneralDilated:
        """This op with other windows (their sizes are those of ``rhs``)."""
        return dataclasses.replace(
            self,
            window_strides=tuple(w.stride for w in windows),
            padding=tuple((w.low, w.high) for w in windows),
            lhs_dilation=tuple(w.base_dilation for w in windows),
            rhs_dilation=tuple(w.window_dilation for w in windows),
            **changes,
        )

    # --- shapes ---------------------------------------------------------------------------------------------
    def infer(self, lhs: ShapedArray, rhs: ShapedArray) -> ShapedArray:
        self._check_parameters(lhs, rhs)
        self._check_sizes(lhs, rhs)
        lspec, rspec, ospec = self.dimension_numbers
        shape = [0] * lhs.ndim
        shape[ospec[0]] = lhs.shape[lspec[0]] // self.batch_group_count
        shape[ospec[1]] = rhs.shape[rspec[0]]
        for i, (ld, od, window) in enumerate(zip(lspec[2:], ospec[2:], self.windows(rhs.shape))):
            window.check(self.name, i, lhs.shape[ld])
            shape[od] = window.output_size(lhs.shape[ld])
        return ShapedArray(tuple(shape), self.preferred_element_type or lhs.dtype, lhs.weak_type and rhs.weak_type)

    def _check_parameters(self, lhs: ShapedArray, rhs: ShapedArray) -> None:
        if lhs.dtype != rhs.dtype or dtypes.is_bool(lhs.dtype):
            raise DTypeError(
                f"conv_general_dilated: lhs and rhs must have one number dtype, got {lhs.dtype} and {rhs.dtype}; "
                "convert one with .astype"
            )
        if lhs.ndim != rhs.ndim or lhs.ndim < 2:
            raise ShapeError(
                f"conv_general_dilated: lhs {lhs} and rhs {rhs} must have the same number of dimensions: two, and the "
                "spatial ones; reshape one of them"
            )
        for what, spec in zip(("lhs_spec", "rhs_spec", "out_spec"), self.dimension_numbers):
            if sorted(spec) != list(range(lhs.ndim)):
                raise ShapeError(
                    f"conv_general_dilated: {what} {spec} of dimension_numbers must name each of {lhs.ndim} dimensions "
                    "once"
                )
        n = lhs.ndim - 2
        for what in ("window_strides", "padding", "lhs_dilation", "rhs_dilation"):
            value = getattr(self, what)
            if len(value) != n:
                raise ShapeError(
                    f"conv_general_dilated: {what} {value} needs {counted(n, 'entry', 'entries')}, one a spatial "
                    "dimension"
                )

    def _check_sizes(self, lhs: ShapedArray, rhs: ShapedArray) -> None:
        lspec, rspec, _ = self.dimension_numbers
        fg, bg = self.feature_group_count, self.batch_group_count
        if fg < 1 or bg < 1 or (fg > 1 and bg > 1):
            raise ShapeError(
                f"conv_general_dilated: feature_group_count={fg}, batch_group_count={bg} must be positive, and one of "
                "them 1"
            )
        batch, features = lhs.shape[lspec[0]], lhs.shape[lspec[1]]
        outputs, inputs = rhs.shape[rspec[0]], rhs.shape[rspec[1]]
        if features != inputs * fg:
            raise ShapeError(
                f"conv_general_dilated: lhs {lhs} has {features} features (dimension {lspec[1]}), expected "
                f"feature_group_count ({fg}) times the {inputs} input features of rhs {rhs} (dimension {rspec[1]}); "
                "change dimension_numbers or feature_group_count"
            )
        for what, count, size, where in (
            ("feature_group_count", fg, outputs, f"rhs output features (dimension {rspec[0]} of {rhs})"),
            ("batch_group_count", bg, outputs, f"rhs output features (dimension {rspec[0]} of {rhs})"),
            ("batch_group_count", bg, batch, f"lhs batch (dimension {lspec[0]} of {lhs})"),
        ):
            if size % count:
                raise ShapeError(f"conv_general_dilated: {what} {count} does not divide the {size} {where}")

    # --- derivatives ----------------------------------------------------------------------------------------
    def transpose(self, ct: Any, x: Any, y: Any) -> Cotangents:
        if isinstance(x, Linear):
            return [self._transpose_lhs(ct, x.aval, y), None]
        return [None, self._transpose_rhs(ct, x, y.aval)]

    def _transpose_lhs(self, ct: Any, lhs: ShapedArray, rhs: Any) -> Any:
        if 0 in lhs.shape or 0 in typeof(rhs).shape or 0 in typeof(ct).shape:
            return Zero(lhs)
        lspec, rspec, ospec = self.dimension_numbers
        sizes = [lhs.shape[d] for d in lspec[2:]]
        windows = [w.adjoint(n) for w, n in zip(self.windows(typeof(rhs).shape), sizes)]
        # Swap the kernel's inputs and outputs within each group.
        kernel = rev(_regroup(rhs, self.groups, rspec[0], rspec[1]), rspec[2:])
        numbers = ConvDimensionNumbers(ospec, (rspec[1], rspec[0], *rspec[2:]), lspec)
        op = self.with_windows(
            windows, dimension_numbers=numbers, feature_group_count=self.groups, batch_group_count=1,
            preferred_element_type=None,
        )  # fmt: skip
        out = op.bind(ct, convert(kernel, typeof(ct).dtype))
        # A batch group's part of the batch is now merged with the features.
        return convert(_regroup(out, self.batch_group_count, lspec[1], lspec[0]), lhs.dtype)

    def _transpose_rhs(self, ct: Any, lhs: Any, rhs: ShapedArray) -> Any:
        if 0 in rhs.shape or 0 in typeof(lhs).shape or 0 in typeof(ct).shape:
            return Zero(rhs)
        lspec, rspec, ospec = self.dimension_numbers
        sizes = [typeof(lhs).shape[d] for d in lspec[2:]]
        windows = [w.adjoint_weights(n) for w, n in zip(self.windows(rhs.shape), sizes)]
        # The batch, over which is summed, is now the feature dimension, and features are the batch: groups change
        # kinds.
        numbers = ConvDimensionNumbers(
            (lspec[1], lspec[0], *lspec[2:]), (ospec[1], ospec[0], *ospec[2:]), (rspec[1], rspec[0], *rspec[2:])
        )
        op = self.with_windows(
            windows, dimension_numbers=numbers, feature_group_count=self.batch_group_count,
            batch_group_count=self.feature_group_count, preferred_element_type=None,
        )  # fmt: skip
        return convert(op.bind(convert(lhs, typeof(ct).dtype), ct), rhs.dtype)

    # --- batching -------------------------------------------------------------------------------------------
    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        (x, y), (dx, dy) = args, dims
        lspec, rspec, ospec = self.dimension_numbers
        if axis.size == 0:
            logical = [typeof(v).update(shape=_without(typeof(v).shape, d)) for v, d in zip(args, dims)]
            out = self.infer(*logical)
            return match_shape(np.zeros((), out.dtype), out.update(shape=(0, *out.shape))), 0
        if dy is None:
            x = _merge(x, dx, lspec[0], self.batch_group_count)  # type: ignore[arg-type]
            return _split(self.bind(x, y), ospec[0], axis.size), ospec[0]
        if dx is None:
            y = _merge(y, dy, rspec[0], self.groups)
            return _split(self.bind(x, y), ospec[1], axis.size, self.groups), ospec[1]
        grouped = self.feature_group_count > 1 and (dx, dy) == (lspec[1], rspec[0])
        if axis.size <= _MOST_SEPARATE and not grouped:
            return self._batch_separately(axis.size, x, y, dx, dy)
        # Additional groups: of the batch if it already has some, else of the features.
        if self.batch_group_count > 1:
            op = dataclasses.replace(self, batch_group_count=self.batch_group_count * axis.size)
            x = _merge(x, dx, lspec[0])
        else:
            op = dataclasses.replace(self, feature_group_count=self.feature_group_count * axis.size)
            x = _merge(x, dx, lspec[1])
        return _split(op.bind(x, _merge(y, dy, rspec[0])), ospec[1], axis.size), ospec[1]

    def _batch_separately(self, size: int, x: Any, y: Any, dx: int, dy: int) -> tuple[Any, int]:
        """One convolution per index; the batch dimension keeps its neighbour."""
        lspec, rspec, ospec = self.dimension_numbers
        beside = {d: o for d, o in zip(lspec, ospec) if d != lspec[1]}
        out = beside.get(dx, ospec[1] if dy == rspec[0] else 0)

        def one(value: Any, dim: int, i: int) -> Any:
            return reshape(slice_in_dim(value, i, i + 1, axis=dim), _without(typeof(value).shape, dim))

        parts = [self.bind(one(x, dx, i), one(y, dy, i)) for i in range(size)]
        shape = typeof(parts[0]).shape
        return concatenate([reshape(p, (*shape[:out], 1, *shape[out:])) for p in parts], out), out

    # --- sharding -------------------------------------------------------------------------------------------
    def _contracts(self, window: WindowDim, n: int) -> bool:
        """Whether a spatial dimension is mostly summed over rather than slid over, as in the gradient of a kernel."""
        return window.size > window.output_size(n)

    def sharding_rule(self, lhs: ShapedArray, rhs: ShapedArray) -> ShardingRule:
        lspec, rspec, ospec = self.dimension_numbers
        fg, bg = self.feature_group_count, self.batch_group_count
        left: list[Any] = [None] * lhs.ndim
        right: list[Any] = [None] * lhs.ndim
        out: list[Any] = [None] * lhs.ndim
        sizes = {"b": lhs.shape[lspec[0]] // bg, "o": rhs.shape[rspec[0]] // (fg * bg), "i": rhs.shape[rspec[1]],
                 "g": fg * bg}  # fmt: skip
        kinds, passes = {"i": REDUCTION}, {}
        left[lspec[0]] = ("g", "b") if bg > 1 else "b"
        left[lspec[1]] = ("g", "i") if fg > 1 else "i"
        right[rspec[0]] = out[ospec[1]] = ("g", "o") if fg * bg > 1 else "o"
        right[rspec[1]] = "i"
        out[ospec[0]] = "b"
        for ld, rd, od, window in zip(lspec[2:], rspec[2:], ospec[2:], self.windows(rhs.shape)):
            name, n = f"s{od}", lhs.shape[ld]
            rows = window.output_size(n)
            if not n or not rows:
                continue
            left[ld] = name
            if self._contracts(window, n):
                right[rd] = name
                sizes[name], kinds[name] = window.size, REDUCTION
            else:
                out[od] = name
                sizes[name] = rows
                if not window.is_trivial:
                    kinds[name], passes[name] = WINDOW, SentHalos(window, n)
        taps = math.prod(rhs.shape[d] for d in rspec[2:])
        points = self.infer(lhs, rhs).size * rhs.shape[rspec[1]] * taps
        return make_rule([left, right], [out], sizes, kinds, passes=passes, points=points)

    def localize(self, ctx: Localizer, *operands: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        x, y = operands
        lspec, rspec, ospec = self.dimension_numbers
        lhs, rhs = ctx.in_avals
        x, y = ctx.mask(x, 0, lspec[1], _zero(x)), ctx.mask(y, 1, rspec[1], _zero(y))
        windows = []
        for ld, rd, od, window in zip(lspec[2:], rspec[2:], ospec[2:], self.windows(rhs.shape)):
            if ctx.is_split(0, ld) and self._contracts(window, lhs.shape[ld]):
                x, y, window = self._localize_contracted(ctx, x, y, (ld, rd), window)
            elif ctx.is_split(0, ld) and not window.is_trivial:
                x, window = fetch_for_result(ctx, x, 0, ld, window, ctx.out_local_shapes[0][od])
            windows.append(window)
        feature_groups = _tile_of_groups(ctx, lspec[1], self.feature_group_count)
        batch_groups = _tile_of_groups(ctx, lspec[0], self.batch_group_count)
        op = self.with_windows(windows, feature_group_count=feature_groups, batch_group_count=batch_groups)
        return op.bind(x, y)

    def _localize_contracted(
        self, ctx: Localizer, x: Any, y: Any, dims: tuple[int, int], window: WindowDim
    ) -> tuple[Any, Any, WindowDim]:
        """Each device has a tile of kernel rows, and computes their terms of all result rows."""
        ld, rd = dims
        rows = ctx.in_local_shapes[1][rd]
        length = (window.output_size(ctx.in_avals[0].shape[ld]) - 1) * window.stride
        length += dilate(rows, window.window_dilation)
        seen = Window(lambda tile: tile * rows * window.window_dilation - window.low, length)
        x, (low, high), dilation = fetch_dilated(ctx, x, 0, ld, seen, window.base_dilation)
        window = dataclasses.replace(window, size=rows, low=low, high=high, base_dilation=dilation)
        return x, ctx.mask(y, 1, rd, _zero(y)), window

    # --- StableHLO ------------------------------------------------------------------------------------------
    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        (lhs, rhs), (out,) = b.in_avals, b.out_avals
        x, y = operands
        if b.platform == "cuda" and sums_in_float64(lhs.dtype, rhs.dtype, out.dtype, self._terms(rhs)):
            return self._emit_exactly(b, x, y, out)
        if not dtypes.is_complex(lhs.dtype):
            return self._emit_real(b, x, y, out, lhs.dtype)
        # Not all platforms of XLA have complex convolutions: use four real ones.
        avals = [a.update(dtype=dtypes.real_of(a.dtype)) for a in (lhs, rhs, out)]
        (xr, xi), (yr, yi) = (
            [b.op(f"stablehlo.{part}", [v], [a])[0] for part in ("real", "imag")] for v, a in zip((x, y), avals)
        )
        pairs = ((xr, yr), (xi, yi), (xr, yi), (xi, yr))
        rr, ii, ri, ir = (self._emit_real(b, p, q, avals[2], avals[0].dtype) for p, q in pairs)
        re = b.op("stablehlo.subtract", [rr, ii], [avals[2]])[0]
        im = b.op("stablehlo.add", [ri, ir], [avals[2]])[0]
        return b.op("stablehlo.complex", [re, im], [out])[0]

    def _terms(self, rhs: ShapedArray) -> int:
        """The number of products in the sum for each result element."""
        return rhs.size // max(1, rhs.shape[self.dimension_numbers.rhs_spec[0]])

    def _emit_exactly(self, b: Builder, x: Emitted, y: Emitted, out: ShapedArray) -> Emitted:
        """Integer convolution by sums in float64, rounded (a fast algorithm may produce halves), from all pairs of
        pieces whose products affect the result's bits."""
        wide, whole = out.update(dtype=dtypes.float64), out.update(dtype=dtypes.int64)
        (xs, ys), width, added = (_pieces(b, v, a) for v, a in zip((x, y), b.in_avals)), dtypes.bit_width(out.dtype), []
        for (i, p), (j, q) in product(enumerate(xs), enumerate(ys)):
            if (bits := PIECE * (i + j)) < width:
                sums = b.op("stablehlo.round_nearest_even", [self._emit_real(b, p, q, wide, wide.dtype)], [wide])[0]
                shift = b.constant(bits, whole)
                added.append(b.op("stablehlo.shift_left", [converted(b, sums, wide, whole), shift], [whole])[0])
        return converted(b, reduce(lambda s, t: b.op("stablehlo.add", [s, t], [whole])[0], added), whole, out)

    def _emit_real(self, b: Builder, x: Emitted, y: Emitted, out: ShapedArray, dtype: np.dtype) -> Emitted:
        """The convolution for operands that have been converted to ``dtype``."""
        if self.batch_group_count > 1:
            return self._emit_batch_groups(b, x, y, out, dtype)
        precision = ", ".join(f"#stablehlo<precision {p.upper()}>" for p in self.precision or ("default", "default"))
        n = len(self.window_strides)
        return b.op(
            "stablehlo.convolution", [x, y], [out],
            window_strides=self.window_strides,
            padding=np.array(self.padding, np.int64).reshape(n, 2),
            lhs_dilation=self.lhs_dilation,
            rhs_dilation=self.rhs_dilation,
            dimension_numbers=_numbers_text(self.dimension_numbers),
            feature_group_count=self.feature_group_count,
            batch_group_count=1,
            precision_config=f"[{precision}]",
        )[0]  # fmt: skip

    def _emit_batch_groups(self, b: Builder, x: Emitted, y: Emitted, out: ShapedArray, dtype: np.dtype) -> Emitted:
        """Emit batch groups as feature groups: XLA's CPU takes up to 250 times as long for non-depthwise batch
        groups."""
        batch, feature = self.dimension_numbers.lhs_spec[:2]
        groups = self.batch_group_count
        split = list(b.in_avals[0].shape)
        split[batch : batch + 1] = [groups, split[batch] // groups]
        order = [d for d in range(len(split)) if d != batch]
        order.insert(feature, batch)
        merged = list(b.in_avals[0].shape)
        merged[batch], merged[feature] = merged[batch] // groups, merged[feature] * groups
        steps: list[tuple[str, list[int], dict[str, Any]]] = [
            ("stablehlo.reshape", split, {}),
            ("stablehlo.transpose", [split[d] for d in order], {"permutation": tuple(order)}),
            ("stablehlo.reshape", merged, {}),
        ]
        for name, shape, attributes in steps:
            x = b.op(name, [x], [ShapedArray(tuple(shape), dtype)], **attributes)[0]
        op = dataclasses.replace(self, feature_group_count=groups, batch_group_count=1)
        return op._emit_real(b, x, y, out, dtype)


def _pieces(b: Builder, x: Emitted, aval: ShapedArray) -> list[Emitted]:
    """Split integers into numbers of :data:`PIECE` bits in float64, lowest first; the highest has the sign."""
    count, pieces = max(1, dtypes.bit_width(aval.dtype) // PIECE), []
    shift = f"stablehlo.shift_right_{'arithmetic' if dtypes.is_signed(aval.dtype) else 'logical'}"
    for i in range(count):
        piece = b.op(shift, [x, b.constant(PIECE * i, aval)], [aval])[0] if i else x
        if i < count - 1:
            piece = b.op("stablehlo.and", [piece, b.constant((1 << PIECE) - 1, aval)], [aval])[0]
        pieces.append(converted(b, piece, aval, aval.update(dtype=dtypes.float64)))
    return pieces


def _tile_of_groups(ctx: Localizer, dim: int, groups: int) -> int:
    """The number of groups per tile of a dimension (group, rest) of the left operand, which is split by group first."""
    return -(-groups // min(ctx.num_tiles(0, dim), groups))


def _without(shape: Dims, dim: int | None) -> Dims:
    return shape if dim is None else shape[:dim] + shape[dim + 1 :]


def _zero(x: Any) -> np.ndarray:
    return np.zeros((), typeof(x).dtype)


def _numbers_text(numbers: ConvDimensionNumbers) -> str:
    """``#stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>``."""

    def side(spec: Dims, first: str, second: str) -> str:
        names = {d: str(i) for i, d in enumerate(spec[2:])} | {spec[0]: first, spec[1]: second}
        return "[" + ", ".join(names[d] for d in range(len(spec))) + "]"

    lhs, rhs, out = numbers
    return f"#stablehlo.conv<{side(lhs, 'b', 'f')}x{side(rhs, 'o', 'i')}->{side(out, 'b', 'f')}>"


# --- reading ------------------------------------------------------------------------------------------------
@reads("stablehlo.convolution")
def _read_convolution(r: Reader) -> Any:
    (lhs, rhs), (out,) = r.operands, r.out_avals
    n = out.ndim - 2
    ones = (1,) * n
    numbers = r.attr("dimension_numbers")
    lspec, rspec, ospec = (
        _spec(numbers[side], *ends) for side, *ends in (("lhs", "b", "f"), ("rhs", "o", "i"), ("out", "b", "f"))
    )
    flipped = [rspec[2 + i] for i, reverse in enumerate(r.attr("window_reversal", ())) if reverse]
    precision = r.attr("precision_config", None)
    same = typeof(lhs).dtype == typeof(rhs).dtype == out.dtype
    if typeof(lhs).dtype != typeof(rhs).dtype:
        lhs, rhs = convert(lhs, out.dtype), convert(rhs, out.dtype)
    return ConvGeneralDilated(
        r.attr("window_strides", ones),
        tuple((int(lo), int(hi)) for lo, hi in r.attr("padding", np.zeros((n, 2), np.int64))),
        r.attr("lhs_dilation", ones),
        r.attr("rhs_dilation", ones),
        ConvDimensionNumbers(lspec, rspec, ospec),
        r.attr("feature_group_count"),
        r.attr("batch_group_count"),
        None if not precision or set(precision) == {"DEFAULT"} else tuple(p.lower() for p in precision),
        None if same else out.dtype,
    ).bind(lhs, rev(rhs, flipped))


def _spec(names: Sequence[str], first: str, second: str) -> Dims:
    """The positions of two named dimensions, then those of the spatial ones."""
    return (names.index(first), names.index(second), *(names.index(str(i)) for i in range(len(names) - 2)))
