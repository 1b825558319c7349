"""slice and pad, each the other's transpose; concatenate, whose transpose is slices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.core.static import static_index, static_indices
from meshwright.errors import ArgumentError, DTypeError, ShapeError
from meshwright.ir.contract import ArrayLike, Emitted, Localizer
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Cotangents, Dual, Linear, Op, Tangent, Zero
from meshwright.ir.reading import Reader, reads
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.monoid import nothing, picked_kind
from meshwright.ops.elementwise.table import add, convert, eq, scalar_like, select, sub, zeros_like
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, reduce_sum
from meshwright.ops.shape.rearrange import Moves, above, move_dim
from meshwright.sharding.rule import REDUCTION, WINDOW, Passes, ShardingRule, make_rule
from meshwright.sharding.window import SentWindows, Shown


def _insert(values: Sequence[Any], dim: int, value: Any) -> tuple[Any, ...]:
    return (*values[:dim], value, *values[dim:])


def _shown(size: int, start: int, limit: int, stride: int) -> Shown:
    """The part of a dimension in a slice."""
    return Shown(size, -(-(limit - start) // stride), -start, stride)


@dataclass(frozen=True)
class Slice(Moves):
    """Elements ``start, start + stride, ... < limit`` of each dimension."""

    start_indices: tuple[int, ...]
    limit_indices: tuple[int, ...]
    strides: tuple[int, ...]
    name: ClassVar[str] = "slice"

    def used_keys(self, x: ShapedArray) -> np.ndarray:
        taken = np.zeros(x.shape, bool)
        taken[tuple(map(slice, self.start_indices, self.limit_indices, self.strides))] = True
        return taken

    def infer(self, x: ShapedArray) -> ShapedArray:
        triples = list(zip(self.start_indices, self.limit_indices, self.strides))
        lengths = {len(self.start_indices), len(self.limit_indices), len(self.strides)}
        ok = lengths == {x.ndim} and all(0 <= a <= b <= n and s > 0 for (a, b, s), n in zip(triples, x.shape))
        if not ok:
            raise ShapeError(
                f"slice: start {self.start_indices}, limit {self.limit_indices}, strides {self.strides} do not fit "
                f"shape {x.shape}: each dimension needs 0 <= start <= limit <= size and a positive stride"
            )
        return x.update(shape=tuple(-(-(b - a) // s) for a, b, s in triples))

    def transpose(self, ct: Any, x: Any) -> Cotangents:
        out = typeof(ct).shape
        config = []
        for size, n, start, stride in zip(x.aval.shape, out, self.start_indices, self.strides):
            covered = (n - 1) * stride + 1 if n else 0
            config.append((start if n else 0, size - covered - (start if n else 0), stride - 1))
        return [pad(ct, scalar_like(0, ct), config)]

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        (x,), (dim,) = args, dims
        new = Slice(
            _insert(self.start_indices, dim, 0),  # type: ignore[arg-type]
            _insert(self.limit_indices, dim, axis.size),  # type: ignore[arg-type]
            _insert(self.strides, dim, 1),  # type: ignore[arg-type]
        )
        return new.bind(x), dim

    def sharding_rule(self, x: ShapedArray) -> ShardingRule:
        names, outs, kinds = [f"d{d}" for d in range(x.ndim)], [], {}
        passes: dict[str, Passes] = {}
        out = self.infer(x)
        kept = out.size / max(1, x.size)
        triples = zip(self.start_indices, self.limit_indices, self.strides)
        for name, size, rows, (a, b, s) in zip(names, x.shape, out.shape, triples):
            one = size > 1 and rows == 1
            # A single row is not worth splitting: the device that has it sends it to all, as a masked sum.
            outs.append(None if one else name)
            if (a, b, s) != (0, size, 1):
                kinds[name] = REDUCTION if one else WINDOW
                passes |= {} if one else {name: SentWindows((_shown(size, a, b, s),), share=kept * size / max(1, rows))}
        return make_rule([names], [outs], dict(zip(names, x.shape)), kinds, picked_kind(x.dtype), passes)

    def localize(self, ctx: Localizer, x: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        start, limit, strides = list(self.start_indices), list(self.limit_indices), list(self.strides)
        chosen, windows = [], []
        for d, (size, rows) in enumerate(zip(ctx.in_avals[0].shape, ctx.in_local_shapes[0])):
            if not ctx.is_split(0, d):
                continue
            a, s = start[d], strides[d]
            if (a, limit[d], s) == (0, size, 1):
                limit[d] = ctx.out_local_shapes[0][d]
            elif not ctx.is_split_result(0, d):
                tile, row = divmod(a, rows)
                chosen.append((d, tile))
                start[d], limit[d] = row, row + 1
            else:
                windows.append((d, _shown(size, a, limit[d], s)))
                start[d], limit[d], strides[d] = 0, rows, 1
        # Crop first, so that unused rows are not sent.
        x = slice_(x, start, limit, strides)
        for d, shown in windows:
            x = ctx.fetch_shown(x, 0, d, shown)
        for d, tile in chosen:
            x = ctx.only_on(x, ctx.axes(0, d), tile)
        return x

    def moved(self, x: np.ndarray) -> np.ndarray:
        return x[tuple(map(slice, self.start_indices, self.limit_indices, self.strides))]

    def emit(self, b: Builder, x: Emitted) -> Emitted | Sequence[Emitted]:
        return b.op(
            "stablehlo.slice", [x], b.out_avals,
            start_indices=self.start_indices, limit_indices=self.limit_indices, strides=self.strides,
        )[0]  # fmt: skip


def slice_(
    operand: Any, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int] | None = None
) -> Any:
    """Elements ``start, start + stride, ... < limit`` of each dimension of ``operand``.

    The three sequences have one entry per dimension; strides default to 1. Positions are not clamped: the window must
    be inside the operand.

    Raises:
      ShapeError: sequences have other lengths, the window is not inside the operand, or strides are not positive.

    Example:
      >>> lax.slice(jnp.arange(12).reshape(3, 4), (1, 0), (3, 4), (1, 2)).tolist()
      [[4, 6], [8, 10]]
    """
    shape = typeof(operand).shape
    strides = static_indices(strides, "slice") if strides is not None else (1,) * len(shape)
    start, limit = static_indices(start_indices, "slice"), static_indices(limit_indices, "slice")
    if start == (0,) * len(shape) and limit == shape and strides == (1,) * len(shape):
        return operand
    return Slice(start, limit, strides).bind(operand)


def slice_in_dim(operand: Any, start_index: int | None, limit_index: int | None, stride: int = 1, axis: int = 0) -> Any:
    """``operand[start_index:limit_index:stride]`` along ``axis``; None means the end, negative indices count from it.

    Raises:
      ShapeError: the axis or indices are out of range, or the stride is not positive.

    Example:
      >>> lax.slice_in_dim(jnp.arange(12).reshape(3, 4), -2, None, axis=1).tolist()
      [[2, 3], [6, 7], [10, 11]]
    """
    shape, axis = typeof(operand).shape, static_index(axis, "slice_in_dim", "an axis")
    if not -len(shape) <= axis < len(shape):
        raise ShapeError(f"slice_in_dim: axis {axis} does not exist in shape {shape}")
    size = shape[axis]
    start, limit = 0 if start_index is None else start_index, size if limit_index is None else limit_index
    lows, highs, strides = [0] * len(shape), list(shape), [1] * len(shape)
    lows[axis], highs[axis] = start + size * (start < 0), limit + size * (limit < 0)
    strides[axis] = stride
    return slice_(operand, lows, highs, strides)


@dataclass(frozen=True)
class Pad(Op):
    """``padding_config`` is ``(low, high, interior)`` for each dimension; low and high may be negative."""

    padding_config: tuple[tuple[int, int, int], ...]
    name: ClassVar[str] = "pad"
    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ((0, 1),)

    def infer(self, x: ShapedArray, value: ShapedArray) -> ShapedArray:
        if value.shape != () or value.dtype != x.dtype:
            raise DTypeError(f"pad: padding value must be a scalar of dtype {x.dtype}, got {value}")
        sizes = [lo + hi + n + max(n - 1, 0) * inner for n, (lo, hi, inner) in zip(x.shape, self.padding_config)]
        if (
            len(self.padding_config) != x.ndim
            or min(sizes, default=0) < 0
            or any(inner < 0 for *_, inner in self.padding_config)
        ):
            raise ShapeError(f"pad: padding_config {self.padding_config} does not fit shape {x.shape}")
        return x.update(shape=tuple(sizes))

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        zeros = [scalar_like(0, primals[1]) if isinstance(t, Zero) else t for t in tangents[1:]]
        tx = zeros_like(primals[0]) if isinstance(tangents[0], Zero) else tangents[0]
        return self.bind(*primals), self.bind(tx, *zeros)

    def transpose(self, ct: Any, x: Any, value: Any) -> Cotangents:
        aval = x.aval if isinstance(x, Linear) else typeof(x)
        # The operand's rows are at every step-th row of the result. Where padding cropped, zeros are restored; rows
        # that it added are cropped first.
        cuts = [min(lo, hi) < 0 for lo, hi, _ in self.padding_config]
        undone = [(-lo, -hi, 0) if cut else (0, 0, 0) for (lo, hi, _), cut in zip(self.padding_config, cuts)]
        first = [0 if cut else lo for (lo, *_), cut in zip(self.padding_config, cuts)]
        steps = [inner + 1 for *_, inner in self.padding_config]
        limit = [lo + (n - 1) * step + 1 if n else lo for lo, n, step in zip(first, aval.shape, steps)]
        inside = slice_(pad(ct, scalar_like(0, ct), undone), first, limit, steps)
        ct_value = None
        if isinstance(value, Linear):
            every = range(aval.ndim)
            ct_value = sub(reduce_sum(ct, every), reduce_sum(inside, every))
        return [inside if isinstance(x, Linear) else None, ct_value]

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        (x, value), (dx, dv) = args, dims
        if dv is None:
            return Pad(_insert(self.padding_config, dx, (0, 0, 0))).bind(x, value), dx  # type: ignore[arg-type]
        # Different padding values: pad with a mask and select.
        if dx is None:
            x, dx = broadcast_in_dim(x, (axis.size, *typeof(x).shape), range(1, typeof(x).ndim + 1)), 0
        config = _insert(self.padding_config, dx, (0, 0, 0))
        padded = Pad(config).bind(x, scalar_like(0, x))
        one = broadcast_in_dim(scalar_like(1, x), typeof(x).shape, ())
        mask = eq(Pad(config).bind(one, scalar_like(0, x)), scalar_like(1, x))
        return select(mask, padded, broadcast_in_dim(value, typeof(padded).shape, (dx,))), dx

    def sharding_rule(self, x: ShapedArray, value: ShapedArray) -> ShardingRule:
        names = [f"d{d}" for d in range(x.ndim)]
        padded = {n: sum(map(abs, config)) > 0 for n, config in zip(names, self.padding_config)}
        # A single row is not worth splitting: it is replicated, and the device whose tile it belongs to writes it.
        ins = [None if padded[n] and size == 1 else n for n, size in zip(names, x.shape)]
        out = self.infer(x, x.update(shape=()))
        kinds = {n: WINDOW for n in names if padded[n]}
        kept = [min(1, n / max(1, size)) for n, size in zip(out.shape, x.shape)]
        passes: dict[str, Passes] = {
            n: SentWindows((self._shown(d, x, out),), share=math.prod((*kept[:d], *kept[d + 1 :])))
            for d, n in enumerate(names)
            if padded[n]
        }
        return make_rule([ins, []], [names], dict(zip(names, map(max, x.shape, out.shape))), kinds, passes=passes)

    def _shown(self, dim: int, x: ShapedArray, out: ShapedArray) -> Shown:
        """The part of a dimension in the result: row r shows row (r - low) / step if that is an integer."""
        low, _, inner = self.padding_config[dim]
        return Shown(x.shape[dim], out.shape[dim], low, step=inner + 1)

    def localize(self, ctx: Localizer, x: ArrayLike, value: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        config, cut = list(self.padding_config), [(0, 0, 0)] * len(self.padding_config)
        for d, (lo, hi, inner) in enumerate(config):
            kept = ctx.in_avals[0].shape[d] + min(lo, 0) + min(hi, 0)
            if not inner and kept >= 0 and not ctx.is_split_result(0, d):
                cut[d], config[d] = (min(lo, 0), min(hi, 0), 0), (max(lo, 0), max(hi, 0), 0)
        x = pad(x, value, cut)  # crop first, so that unused rows are not sent
        for d, (lo, _, inner) in enumerate(self.padding_config):
            if not ctx.is_split_result(0, d) or config[d] == (0, 0, 0):
                continue
            n = ctx.out_local_shapes[0][d]
            if not ctx.is_split(0, d):
                x = ctx.place_row(x, d, lo, value)
                config[d] = (0, 0, 0)
                continue
            step = inner + 1
            window = self._shown(d, ctx.in_avals[0], ctx.out_avals[0]).window(ctx.num_tiles(0, d))
            x = ctx.fetch_window(x, 0, d, window, value)
            if step == 1:
                config[d] = (0, 0, 0)
                continue
            # Dilate the rows, with the maximum offset of any tile before the first, then crop at this tile's offset.
            phase = [(-(t * n - lo)) % step for t in range(ctx.num_tiles(0, d))]
            spread = [(0, 0, 0)] * typeof(x).ndim
            spread[d] = (max(phase), 0, inner)
            x = Pad(tuple(spread)).bind(x, value)
            x = ctx.cut(x, 0, d, [max(phase) - p for p in phase], n, fill=value)
            config[d] = (0, 0, 0)
        return pad(x, value, config)

    def moved(self, x: np.ndarray, value: np.ndarray) -> np.ndarray:
        spans = [max(n - 1, 0) * (inner + 1) + (n > 0) for n, (_, _, inner) in zip(x.shape, self.padding_config)]
        wide = [max(lo, 0) + n + max(hi, 0) for n, (lo, hi, _) in zip(spans, self.padding_config)]
        out = np.full(wide, value, x.dtype)
        inside = [slice(max(lo, 0), max(lo, 0) + n, inner + 1) for n, (lo, _, inner) in zip(spans, self.padding_config)]
        out[tuple(inside)] = x
        return out[tuple(slice(max(-lo, 0), w - max(-hi, 0)) for w, (lo, hi, _) in zip(wide, self.padding_config))]

    def emit(self, b: Builder, x: Emitted, value: Emitted) -> Emitted | Sequence[Emitted]:
        low, high, interior = (tuple(c) for c in zip(*self.padding_config)) if self.padding_config else ((), (), ())
        # Interior padding has no effect on fewer than two rows, but XLA would merge a cropping pad with a window's.
        interior = tuple(inner if n > 1 else 0 for inner, n in zip(interior, b.in_avals[0].shape))
        return b.op(
            "stablehlo.pad", [x, value], b.out_avals,
            edge_padding_low=low, edge_padding_high=high, interior_padding=interior,
        )[0]  # fmt: skip


def pad(operand: Any, padding_value: Any, padding_config: Sequence[tuple[int, int, int]]) -> Any:
    """Pad ``operand`` with the scalar ``padding_value`` around and between its elements.

    ``padding_config`` has ``(low, high, interior)`` for each dimension: the number of elements added before, after, and
    between neighbours. Negative ``low`` and ``high`` crop.

    Raises:
      ArgumentTypeError: entries are not integers.
      ShapeError: another number of entries, a negative ``interior``, more is cropped than there is, or
        ``padding_value`` is not a scalar.
      DTypeError: ``padding_value`` has another dtype.

    Example:
      >>> lax.pad(jnp.array([[1, 2, 3]]), 0, [(1, 0, 0), (-1, 2, 1)]).tolist()
      [[0, 0, 0, 0, 0, 0], [0, 2, 0, 3, 0, 0]]
    """
    config = tuple([static_indices(c, "pad", "a padding") for c in padding_config])
    if typeof(operand).weak_type and not typeof(padding_value).weak_type:
        operand = convert(operand, typeof(operand).dtype)
    if config == ((0, 0, 0),) * typeof(operand).ndim:
        return operand
    return Pad(config).bind(operand, padding_value)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Concatenate(Op):
    """Concatenates operands along ``dimension``."""

    dimension: int
    name: ClassVar[str] = "concatenate"
    takes_keys: ClassVar[bool] = True

    def linear_groups(self, *avals: ShapedArray) -> tuple[tuple[int, ...], ...]:
        return (tuple(range(len(avals))),)

    def infer(self, *avals: ShapedArray) -> ShapedArray:
        first = avals[0]
        d = self.dimension
        if not 0 <= d < first.ndim:
            raise ShapeError(f"concatenate: dimension {d} does not exist in shape {first.shape}")
        for aval in avals:
            if aval.ndim != first.ndim or any(
                a != b for i, (a, b) in enumerate(zip(aval.shape, first.shape)) if i != d
            ):
                shapes = ", ".join(str(a.shape) for a in avals)
                raise ShapeError(f"concatenate: shapes {shapes} must be equal except in dimension {d}")
            if aval.dtype != first.dtype:
                raise DTypeError(f"concatenate: dtypes differ: {', '.join(str(a.dtype) for a in avals)}")
        shape = (*first.shape[:d], sum(a.shape[d] for a in avals), *first.shape[d + 1 :])
        return first.update(shape=shape, weak_type=all(a.weak_type for a in avals))

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        full = [zeros_like(x) if isinstance(t, Zero) else t for x, t in zip(primals, tangents)]
        return self.bind(*primals), self.bind(*full)

    def transpose(self, ct: Any, *args: Any) -> Cotangents:
        results, start = [], 0
        for x in args:
            size = typeof(x).shape[self.dimension]
            mine = slice_in_dim(ct, start, start + size, axis=self.dimension) if isinstance(x, Linear) else None
            results.append(mine)
            start += size
        return results

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        place = next(d for d in dims if d is not None)
        full = []
        for x, d in zip(args, dims):
            if d is None:
                shape = _insert(typeof(x).shape, place, axis.size)
                full.append(broadcast_in_dim(x, shape, [above(i, place) for i in range(typeof(x).ndim)]))
            else:
                full.append(move_dim(x, d, place))
        return Concatenate(above(self.dimension, place)).bind(*full), place

    def sharding_rule(self, *avals: ShapedArray) -> ShardingRule:
        names = [f"d{d}" for d in range(avals[0].ndim)]
        sizes = dict(zip(names, avals[0].shape))
        joined = names[self.dimension]
        sizes[joined] = sum(a.shape[self.dimension] for a in avals)
        one = [None if n == joined else n for n in names]  # as in pad, a single row is not worth splitting
        ins = [one if a.shape[self.dimension] == 1 else names for a in avals]
        shown = tuple(s for s in self._shown(avals) if s.size > 1)
        return make_rule(ins, [names], sizes, {joined: WINDOW}, passes={joined: SentWindows(shown)})

    def _shown(self, avals: Sequence[ShapedArray]) -> list[Shown]:
        """The part of each operand in the result."""
        sizes = [a.shape[self.dimension] for a in avals]
        return [Shown(n, sum(sizes), sum(sizes[:i])) for i, n in enumerate(sizes)]

    def localize(self, ctx: Localizer, *operands: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        d = self.dimension
        if not ctx.is_split_result(0, d):
            return self.bind(*operands)
        fill = nothing(ctx.in_avals[0].dtype)
        total, tiles = None, ctx.mesh.sizes(ctx.result_axes(0, d))
        for i, (x, shown) in enumerate(zip(operands, self._shown(ctx.in_avals))):
            # Each operand's rows are a window of the result; the window is zero elsewhere.
            if shown.size == 1:
                part = ctx.place_row(x, d, shown.before, fill)
            else:
                part = ctx.fetch_window(x, i, d, shown.window(tiles)._replace(stop=None), fill)
            total = part if total is None else add(total, part)  # for bools, ``add`` is ``or``
        assert total is not None, "there is an operand"
        return total

    def moved(self, *xs: np.ndarray) -> np.ndarray:
        return np.concatenate(xs, self.dimension)

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        return b.op("stablehlo.concatenate", operands, b.out_avals, dimension=self.dimension)[0]


def concatenate(operands: Sequence[Any], dimension: int) -> Any:
    """Concatenate ``operands`` along ``dimension``; their other dimensions must be equal.

    Raises:
      ArgumentError: there are no operands.
      ShapeError: the dimension is out of range, or shapes differ in others.
      DTypeError: dtypes differ.

    Example:
      >>> lax.concatenate([jnp.array([[1], [2]]), jnp.array([[3, 4], [5, 6]])], 1).tolist()
      [[1, 3, 4], [2, 5, 6]]
    """
    operands = list(operands)
    if not operands:
        raise ArgumentError("concatenate: expected one array or more")
    op = Concatenate(static_index(dimension, "concatenate", "a dimension"))
    if len(operands) == 1:
        op.infer(typeof(operands[0]))
        return operands[0]
    return op.bind(*operands)


# --- reading ------------------------------------------------------------------------------------------------
@reads("stablehlo.slice")
def _read_slice(r: Reader) -> Any:
    return slice_(r.operands[0], r.attr("start_indices"), r.attr("limit_indices"), r.attr("strides"))


@reads("stablehlo.pad")
def _read_pad(r: Reader) -> Any:
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    x, value = r.operands
    return pad(x, value, list(zip(*(r.attr(n) for n in names))))


@reads("stablehlo.concatenate")
def _read_concatenate(r: Reader) -> Any:
    return concatenate(r.operands, r.attr("dimension"))
