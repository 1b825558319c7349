"""broadcast_in_dim and reduce_sum, each the other's transpose; iota, whose elements are generated where needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.core.static import static_index, static_indices, static_shape
from meshwright.errors import DTypeError, ShapeError
from meshwright.ir.contract import ArrayLike, Emitted, Localizer, LocalSizes, Region, Value
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Cotangents, Op
from meshwright.ir.reading import Reader, reads
from meshwright.ir.tracing import infer_cached, typeof
from meshwright.ops.shape.rearrange import Linear1, Moves, above, move_dim, reshape, transpose
from meshwright.sharding.rule import REDUCTION, WINDOW, ShardingRule, make_rule


@dataclass(frozen=True)
class BroadcastInDim(Moves):
    """Operand dimension ``i`` becomes dimension ``broadcast_dimensions[i]``; others, and those of size 1, are
    repeated."""

    shape: tuple[int, ...]
    broadcast_dimensions: tuple[int, ...]
    name: ClassVar[str] = "broadcast_in_dim"

    def infer(self, x: ShapedArray) -> ShapedArray:
        dims = self.broadcast_dimensions
        fits = (
            len(dims) == x.ndim
            and list(dims) == sorted(set(dims))
            and all(0 <= d < len(self.shape) for d in dims)
            and all(s in (1, self.shape[d]) for s, d in zip(x.shape, dims))
            and min(self.shape, default=0) >= 0
        )
        if not fits:
            raise ShapeError(
                f"broadcast_in_dim: shape {x.shape} cannot become {self.shape} with broadcast_dimensions={dims}: "
                "each operand dimension needs its own, in increasing order, of equal size (or have size 1), and no "
                "size may be negative"
            )
        return x.update(shape=self.shape)

    def transpose(self, ct: Any, x: Any) -> Cotangents:
        shape = x.aval.shape
        kept = {d: s for s, d in zip(shape, self.broadcast_dimensions)}
        summed = [d for d, s in enumerate(self.shape) if d not in kept or (kept[d] == 1 and s != 1)]
        return [reshape(reduce_sum(ct, summed), shape)]

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        (x,), (dim,) = args, dims
        assert dim is not None
        target = self.broadcast_dimensions
        out = target[dim] if dim < len(target) else (target[-1] + 1 if target else 0)
        shape = (*self.shape[:out], axis.size, *self.shape[out:])
        new = [above(d, out) for d in target]
        new.insert(dim, out)
        return BroadcastInDim(shape, tuple(new)).bind(x), out

    def counts_along(self, known: Sequence[int | None], avals: Sequence[ShapedArray]) -> int | None:
        ((dim,), (x,)) = known, avals
        if dim is None or x.shape[dim] != self.shape[self.broadcast_dimensions[dim]]:
            return None
        return self.broadcast_dimensions[dim]

    def sharding_rule(self, x: ShapedArray) -> ShardingRule:
        names = [f"d{d}" for d in range(len(self.shape))]
        operand = [names[d] if s == self.shape[d] else None for s, d in zip(x.shape, self.broadcast_dimensions)]
        return make_rule([operand], [names], dict(zip(names, self.shape)))

    def localized(self, ctx: LocalSizes) -> Op:
        return BroadcastInDim(ctx.out_local_shapes[0], self.broadcast_dimensions)

    def moved(self, x: np.ndarray) -> np.ndarray:
        sizes = [1] * len(self.shape)
        for d, n in zip(self.broadcast_dimensions, x.shape):
            sizes[d] = n
        return np.broadcast_to(x.reshape(sizes), self.shape)

    def emit(self, b: Builder, x: Emitted) -> Emitted | Sequence[Emitted]:
        return b.broadcast(x, b.out_avals[0], self.broadcast_dimensions)


def broadcast_in_dim(x: Any, shape: Sequence[int], broadcast_dimensions: Sequence[int]) -> Any:
    """Broadcast ``x`` to ``shape``: its dimension ``i`` becomes dimension ``broadcast_dimensions[i]``."""
    shape = static_indices(shape, "broadcast_in_dim")
    dims = static_indices(broadcast_dimensions, "broadcast_in_dim")
    if typeof(x).shape == shape and dims == tuple(range(len(shape))):
        return x
    return BroadcastInDim(shape, dims).bind(x)


def broadcast_in_any_order(x: Any, shape: Sequence[int], broadcast_dimensions: Sequence[int]) -> Any:
    """:func:`broadcast_in_dim` with dimensions in any order: ``x`` is transposed first."""
    dims, shape = static_indices(broadcast_dimensions, "broadcast_in_dim"), static_indices(shape, "broadcast_in_dim")
    order = sorted(range(len(dims)), key=dims.__getitem__)
    fits = len(dims) == typeof(x).ndim and set(dims) <= set(range(len(shape)))
    if order == list(range(len(dims))) or not fits:  # errors should show the arguments as given
        return broadcast_in_dim(x, shape, dims)
    return broadcast_in_dim(transpose(x, order), shape, sorted(dims))


def put_batch_dim(x: Any, dim: int | None, target: int, size: int) -> Any:
    """``x`` with its batch dimension at ``target``, broadcast along a new one if it has none."""
    if dim is not None:
        return move_dim(x, dim, target)
    shape = typeof(x).shape
    full = (*shape[:target], size, *shape[target:])
    return broadcast_in_dim(x, full, [above(d, target) for d in range(len(shape))])


def broadcast_to_rank_end(x: Any, shape: Sequence[int]) -> Any:
    """NumPy broadcasting, which aligns trailing dimensions."""
    ndim = typeof(x).ndim
    return broadcast_in_dim(x, shape, range(len(shape) - ndim, len(shape)))


def stretched(args: Sequence[Any]) -> Sequence[Any]:
    """Broadcast arrays of equal rank to a common shape, repeating dimensions of size 1; others are unchanged."""
    shapes = {getattr(x, "shape", ()) for x in args} - {()}
    if len(shapes) < 2 or len({len(s) for s in shapes}) > 1:
        return args
    common = tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*shapes))
    if any(n not in (1, size) for shape in shapes for n, size in zip(shape, common)):
        return args
    return [broadcast_in_dim(x, common, range(len(common))) if getattr(x, "shape", ()) else x for x in args]


@dataclass(frozen=True)
class ReduceSum(Linear1):
    """Sum over ``axes``."""

    axes: tuple[int, ...]
    name: ClassVar[str] = "reduce_sum"

    def infer(self, x: ShapedArray) -> ShapedArray:
        if dtypes.is_bool(x.dtype):
            raise DTypeError(f"{self.name}: operand {x} has dtype bool, expected numbers; convert it with .astype(int)")
        return infer_reduce(self.name, x, self.axes)

    def transpose(self, ct: Any, x: Any) -> Cotangents:
        kept = [d for d in range(x.aval.ndim) if d not in self.axes]
        return [broadcast_in_dim(ct, x.aval.shape, kept)]

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        new, out = batch_reduce_axes(self.axes, dims[0])  # type: ignore[arg-type]
        return ReduceSum(new).bind(*args), out

    def before_merging(self, x: Value, groups: Sequence[tuple[int, ...]]) -> list[Value] | None:
        return [ReduceSum(axes_before_merging(self.axes, groups)).bind(x)]

    def sharding_rule(self, x: ShapedArray) -> ShardingRule:
        return reduce_rule(x, self.axes, "sum")

    def emit(self, b: Builder, x: Emitted) -> Emitted | Sequence[Emitted]:
        (aval,), (out,) = b.in_avals, b.out_avals
        # XLA for CPUs adds one number after another: in half width, what is added to a large sum is lost.
        if b.platform == "cpu" and dtypes.is_float(aval.dtype) and dtypes.bit_width(aval.dtype) == 16:
            x = b.op("stablehlo.convert", [x], [aval.update(dtype=dtypes.float32)])[0]
            y = self._added(b, x, out.update(dtype=dtypes.float32))
            return b.op("stablehlo.convert", [y], [out])[0]
        return self._added(b, x, out)

    def _added(self, b: Builder, x: Emitted, out: ShapedArray) -> Emitted:
        region = b.reducer("stablehlo.add", [ShapedArray((), out.dtype)])
        return emit_reduce(b, x, self.axes, region, np.zeros((), out.dtype), out)


def infer_reduce(name: str, x: ShapedArray, axes: Sequence[int]) -> ShapedArray:
    """The aval of a reduction over ``axes``."""
    if any(not 0 <= d < x.ndim for d in axes) or len(set(axes)) != len(axes):
        raise ShapeError(f"{name}: axes {tuple(axes)} must be different dimensions of shape {x.shape}")
    return x.update(shape=tuple(s for d, s in enumerate(x.shape) if d not in axes))


def batch_reduce_axes(axes: Sequence[int], dim: int) -> tuple[tuple[int, ...], int]:
    """Reduced axes after inserting a batch dimension, and the position of that in the result."""
    new = tuple(above(d, dim) for d in axes)
    return new, dim - sum(d < dim for d in new)


def axes_before_merging(axes: Sequence[int], groups: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """All dimensions that are merged into the reduced ones."""
    return tuple(sorted(d for a in axes for d in groups[a]))


def reduce_rule(x: ShapedArray, axes: Sequence[int], kind: str) -> ShardingRule:
    """The rule of a reduction, in which split reduced dimensions leave a partial result."""
    names = [f"d{d}" for d in range(x.ndim)]
    kinds = {names[d]: REDUCTION for d in axes}
    return make_rule([names], [[n for n in names if n not in kinds]], dict(zip(names, x.shape)), kinds, kind)


def emit_reduce(
    b: Builder, x: Emitted, axes: Sequence[int], region: Region, init: ArrayLike, out: ShapedArray | None = None
) -> Emitted:
    """``stablehlo.reduce`` with the region of a binary op and its identity; ``out`` is of another dtype than the op's
    result if ``x`` is of another than its operand."""
    out = b.out_avals[0] if out is None else out
    return b.op(
        "stablehlo.reduce",
        [x, b.constant(init, ShapedArray((), out.dtype))],
        [out],
        regions=[region],
        dimensions=tuple(axes),
    )[0]


def reduce_sum(x: Any, axes: Sequence[int]) -> Any:
    """Sum ``x`` over the dimensions ``axes``, which are removed; negative ones count from the end."""
    ndim = typeof(x).ndim
    axes = static_indices(axes, "reduce_sum")
    op = ReduceSum(tuple(d + ndim if -ndim <= d < 0 else d for d in axes))
    if not axes:
        infer_cached(op, (typeof(x),))  # the checks of all operands
        return x
    return op.bind(x)


def unbroadcast(ct: Any, aval: ShapedArray) -> Any:
    """Sum a cotangent over the shape that a scalar operand was broadcast to."""
    ndim = typeof(ct).ndim
    return ct if ndim == aval.ndim else reduce_sum(ct, range(ndim))


def match_shape(x: Any, aval: ShapedArray) -> Any:
    """Broadcast a scalar to ``aval``'s shape; other values are unchanged."""
    return x if typeof(x).shape == aval.shape else broadcast_in_dim(x, aval.shape, ())


@dataclass(frozen=True)
class Iota(Op):
    """Counts 0, 1, 2, ... along ``dimension``."""

    dtype: np.dtype
    shape: tuple[int, ...]
    dimension: int
    name: ClassVar[str] = "iota"

    def infer(self) -> ShapedArray:
        if not 0 <= self.dimension < len(self.shape) or min(self.shape) < 0:
            raise ShapeError(
                f"iota: dimension {self.dimension} must be one of shape {self.shape}, whose sizes may not be negative"
            )
        if dtypes.is_bool(dtypes.of_numbers(self.dtype)):
            raise DTypeError("iota: expected a number dtype, got bool")
        return ShapedArray(self.shape, self.dtype)

    def counts_along(self, known: Sequence[int | None], avals: Sequence[ShapedArray]) -> int | None:
        enough = dtypes.is_integer(self.dtype) and self.shape[self.dimension] <= int(dtypes.max_value(self.dtype))
        return self.dimension if enough else None

    def sharding_rule(self) -> ShardingRule:
        names = [f"d{d}" for d in range(len(self.shape))]
        return make_rule([], [names], dict(zip(names, self.shape)), {names[self.dimension]: WINDOW})

    def localize(self, ctx: Localizer) -> ArrayLike | Sequence[ArrayLike]:
        local = Iota(self.dtype, ctx.out_local_shapes[0], self.dimension).bind()
        return ctx.add_tile_offset(local, self.dimension)

    def moved(self) -> np.ndarray:
        sizes = [n if d == self.dimension else 1 for d, n in enumerate(self.shape)]
        return np.broadcast_to(np.arange(sizes[self.dimension]).astype(self.dtype).reshape(sizes), self.shape)

    def emit(self, b: Builder) -> Emitted | Sequence[Emitted]:
        (out,) = b.out_avals
        # XLA takes a count for its own absolute value, also one of complex numbers, and ends the process.
        real = out.update(dtype=dtypes.real_of(out.dtype)) if dtypes.is_complex(out.dtype) else out
        counts = b.op("stablehlo.iota", [], [real], iota_dimension=self.dimension)[0]
        return counts if real is out else b.op("stablehlo.convert", [counts], [out])[0]


def iota(dtype: Any, shape: Sequence[int], dimension: int) -> Any:
    """An array of ``shape`` that counts along ``dimension``."""
    sizes, along = static_shape(shape, "iota"), static_index(dimension, "iota")
    return Iota(dtypes.canonical(dtypes.as_dtype(dtype)), sizes, along).bind()


# --- reading ------------------------------------------------------------------------------------------------
@reads("stablehlo.broadcast_in_dim")
def _read_broadcast_in_dim(r: Reader) -> Any:
    return broadcast_in_any_order(r.operands[0], r.out_avals[0].shape, r.attr("broadcast_dimensions"))


@reads("stablehlo.broadcast")
def _read_broadcast(r: Reader) -> Any:
    return broadcast_to_rank_end(r.operands[0], r.out_avals[0].shape)


@reads("stablehlo.iota")
def _read_iota(r: Reader) -> Any:
    (out,) = r.out_avals
    return Iota(out.dtype, out.shape, r.attr("iota_dimension")).bind()
