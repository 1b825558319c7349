"""Ops that only rearrange elements: reshape, transpose, squeeze, expand_dims, reverse; and copies."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.core.static import static_indices
from meshwright.core.words import counted
from meshwright.errors import ShapeError
from meshwright.ir.contract import ArrayLike, Emitted, Localizer, LocalSizes
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Cotangents, Dual, Op, Tangent
from meshwright.ir.reading import Reader, reads
from meshwright.ir.tracing import typeof
from meshwright.ops.shape.reshape_factors import reshape_groups, reshape_rule
from meshwright.sharding.row_map import ZEROS, MovedRows, RowMap, Span
from meshwright.sharding.rule import WINDOW, Factor, SentTimes, ShardingRule, make_rule, pointwise_rule
from meshwright.sharding.window import Window


def move_dim(x: Any, source: int, target: int) -> Any:
    """Move dimension ``source`` of ``x`` to position ``target``, keeping the order of the others."""
    if source == target:
        return x
    order = [d for d in range(typeof(x).ndim) if d != source]
    order.insert(target, source)
    return Transpose(tuple(order)).bind(x)


def not_last(x: Any, dim: int) -> tuple[Any, int]:
    """``x`` and its batch dimension, which is moved before the last dimension if it was last."""
    last = typeof(x).ndim - 1
    return (move_dim(x, last, last - 1), last - 1) if dim == last else (x, dim)


def above(dim: int, batch_dim: int) -> int:
    """The position of dimension ``dim`` after a batch dimension is inserted at ``batch_dim``."""
    return dim + (dim >= batch_dim)


class Linear1(Op):
    """Base class of ops that are linear in their one operand, whose tangent is transformed in the same way."""

    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ((0,),)

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        return self.bind(*primals), self.bind(*tangents)


class Moves(Linear1):
    """Base class of ops that only move elements, numbers or keys."""

    moves_only: ClassVar[bool] = True
    takes_keys: ClassVar[bool] = True


class Unchanged(Linear1):
    """Base class of ops that return the operand."""

    moves_only: ClassVar[bool] = True

    def infer(self, x: ShapedArray) -> ShapedArray:
        return x

    def sharding_rule(self, x: ShapedArray) -> ShardingRule:
        return pointwise_rule([x.ndim], x.shape)

    def emit(self, b: Builder, x: Emitted) -> Emitted | Sequence[Emitted]:
        return x


# --- reshape ------------------------------------------------------------------------------------------------
#: the most pieces of which a device's part of a dimension is assembled: each is sliced and written on its own
_MOST_PIECES = 16
#: the most pieces of all devices; the rounds in which they are sent take as long to plan as the square of their number
_MOST_PLANNED = 2048


@dataclass(frozen=True)
class Reshape(Moves):
    """The elements, in row-major order, in a new shape."""

    new_sizes: tuple[int, ...]
    name: ClassVar[str] = "reshape"
    is_view: ClassVar[bool] = True

    def infer(self, x: ShapedArray) -> ShapedArray:
        if math.prod(self.new_sizes) != x.size or any(d < 0 for d in self.new_sizes):
            raise ShapeError(
                f"reshape: cannot give {counted(x.size, 'element')} of shape {x.shape} the shape {self.new_sizes}, "
                f"which has {math.prod(self.new_sizes)}"
            )
        return x.update(shape=self.new_sizes)

    def transpose(self, ct: Any, x: Any) -> Cotangents:
        return [reshape(ct, x.aval.shape)]

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        (x,), (dim,) = args, dims
        shape = typeof(x).shape
        before = math.prod(shape[:dim])
        logical = shape[:dim] + shape[dim + 1 :]  # type: ignore[operator]
        for out in _positions(logical, self.new_sizes, dim, before):  # type: ignore[arg-type]
            return reshape(x, (*self.new_sizes[:out], axis.size, *self.new_sizes[out:])), out
        x = move_dim(x, dim, 0)  # type: ignore[arg-type]
        return reshape(x, (axis.size, *self.new_sizes)), 0

    def sharding_rule(self, x: ShapedArray) -> ShardingRule:
        return reshape_rule(x.shape, self.new_sizes)

    def localized(self, ctx: LocalSizes) -> Op:
        return Reshape(ctx.out_local_shapes[0])

    def alternatives(self, *avals: ShapedArray) -> Sequence[Op]:
        groups = reshape_groups(avals[0].shape, self.new_sizes) if avals[0].size else ()
        of_one = (
            ReshapeRows(self.new_sizes, g, split)
            for g, (l, r) in enumerate(groups)
            if min(len(l), len(r)) == 1 < len(l + r) - 1
            for split in range(len(l + r) - 1)
        )
        return [op for op in of_one if op.pieces(avals[0].shape) <= _MOST_PIECES]

    def moved(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(self.new_sizes)

    def emit(self, b: Builder, x: Emitted) -> Emitted | Sequence[Emitted]:
        return b.op("stablehlo.reshape", [x], b.out_avals)[0]


@dataclass(frozen=True)
class ReshapeRows(Reshape):
    """A reshape that among others makes one dimension into several, or several into one, in tiles that do not match:
    these are split by rows of one of the several, and every device fetches the elements of its own.

    ``group``: which of the :func:`reshape_groups` that is. ``split``: which of the several, as in heads that follow
    the three kinds of a fused projection."""

    group: int = 0
    split: int = 0
    name: ClassVar[str] = "reshape_rows"

    def sharding_rule(self, x: ShapedArray) -> ShardingRule:
        if not x.size:
            return super().sharding_rule(x)
        left, right = reshape_groups(x.shape, self.new_sizes)[self.group]
        sides = (x.shape, left), (self.new_sizes, right)
        rest = reshape_rule(*([1 if d in gone else n for d, n in enumerate(shape)] for shape, gone in sides))
        rows = Factor("rows", self._several(x.shape)[self.split], WINDOW, _FetchedRows(self, x.shape))
        ins, outs = (
            tuple((len(rest.factors),) if d == self._rows(dims) else fs for d, fs in enumerate(factors))
            for factors, dims in ((rest.operands[0], left), (rest.results[0], right))
        )
        factors = *rest.factors, rows
        return dataclasses.replace(rest, factors=factors, operands=(ins,), results=(outs,), points=x.size)

    def _several(self, shape: tuple[int, ...]) -> list[int]:
        left, right = reshape_groups(shape, self.new_sizes)[self.group]
        return [self.new_sizes[d] for d in right] if len(left) == 1 else [shape[d] for d in left]

    def pieces(self, shape: tuple[int, ...]) -> int:
        """The number of pieces that a device's part of the one dimension consists of."""
        return math.prod(self._several(shape)[: self.split])

    def _rows(self, dims: tuple[int, ...]) -> int:
        """The dimension that is split, of those of a side."""
        return dims[self.split] if len(dims) > 1 else dims[0]

    def row_map(self, shape: tuple[int, ...], tiles: int) -> RowMap:
        """Which elements of the operand's tiles are where in the result's, along the one dimension."""
        several, (left, _) = self._several(shape), reshape_groups(shape, self.new_sizes)[self.group]
        outer, rows, inner = self.pieces(shape), several[self.split], math.prod(several[self.split + 1 :])
        each = -(-rows // tiles)
        ends = [(min(t * each, rows), min((t + 1) * each, rows)) for t in range(tiles)]
        if len(left) == 1:
            spans: list[Span] = []
            for low, high in ends:
                for j in range(0, outer * rows, rows):
                    spans += Span(0, (j + low) * inner, (j + high) * inner), Span(ZEROS, 0, (each - high + low) * inner)
            return RowMap((outer * rows * inner,), (tuple(span for span in spans if span.rows),))
        starts = ((t * outer + j) * each * inner for j in range(outer) for t in range(tiles))
        spans = [Span(0, s, s + (high - low) * inner) for s, (low, high) in zip(starts, ends * outer)]
        return RowMap((tiles * outer * each * inner,), (tuple(span for span in spans if span.rows),))

    def localize(self, ctx: Localizer, x: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        shape, local = ctx.in_avals[0].shape, ctx.out_local_shapes[0]
        if 0 in shape:
            return reshape(x, local)
        left, _ = reshape_groups(shape, self.new_sizes)[self.group]
        d = self._rows(left)
        if ctx.is_split(0, d):
            held = typeof(x).shape
            together = math.prod(held[i] for i in left)
            one = reshape(x, [together if i == left[0] else 1 if i in left else n for i, n in enumerate(held)])
            (x,) = ctx.move_rows([one], left[0], ctx.axes(0, d), self.row_map(shape, ctx.num_tiles(0, d)))
        return reshape(x, local)


@dataclass(frozen=True)
class _FetchedRows:
    """The :data:`~meshwright.sharding.rule.Passes` of a :class:`ReshapeRows` of an operand of this shape."""

    op: ReshapeRows
    shape: tuple[int, ...]

    def __call__(self, tiles: int) -> float:
        if tiles * self.op.pieces(self.shape) > _MOST_PLANNED:
            return math.inf
        return MovedRows(self.op.row_map(self.shape, tiles))(tiles)


def _positions(src: Sequence[int], dst: Sequence[int], dim: int, before: int) -> list[int]:
    """The positions in ``dst`` to which a batch dimension before ``src[dim]`` can go without moving data."""
    fits = [q for q in range(len(dst) + 1) if math.prod(dst[:q]) == before]
    if not fits or math.prod(src) == 0:
        return []
    # Among positions that differ by dimensions of size 1, stay before the dimension that follows.
    following = src[dim] if dim < len(src) else None
    best = [q for q in fits if q < len(dst) and dst[q] == following]
    return best[:1] or fits[-1:]


def reshape(x: Any, shape: Sequence[int]) -> Any:
    """Reshape ``x``, in row-major order, to ``shape``."""
    shape = static_indices(shape, "reshape")
    return x if typeof(x).shape == shape else Reshape(shape).bind(x)


def squeeze(array: Any, dimensions: Sequence[int]) -> Any:
    """Remove ``dimensions``, each of which must have size 1; negative ones count from the end.

    Raises:
      ShapeError: a dimension is out of range, repeats, or has another size.

    Example:
      >>> lax.squeeze(jnp.array([[[3], [5]]]), (0, -1)).tolist()
      [3, 5]
    """
    shape, dimensions = typeof(array).shape, static_indices(dimensions, "squeeze")
    for d in dimensions:
        if not -len(shape) <= d < len(shape):
            raise ShapeError(f"squeeze: dimension {d} does not exist in shape {shape}")
    dims = sorted(d % len(shape) for d in dimensions)
    if len(set(dims)) != len(dims):
        raise ShapeError(f"squeeze: dimensions {tuple(dimensions)} of shape {shape} must be different ones")
    for d in dims:
        if shape[d] != 1:
            raise ShapeError(f"squeeze: dimension {d} of shape {shape} has size {shape[d]}, expected 1")
    return Squeeze(tuple(dims)).bind(array) if dims else array


def expand_dims(array: Any, dimensions: Sequence[int]) -> Any:
    """Insert dimensions of size 1 so that they are at ``dimensions`` of the result.

    Negative ones count from the end of the result.

    Raises:
      ShapeError: a dimension is out of range for the result, or repeats.

    Example:
      >>> lax.expand_dims(jnp.array([[1, 2, 3], [4, 5, 6]]), (0, -1)).shape
      (1, 2, 3, 1)
    """
    shape = list(typeof(array).shape)
    dimensions = static_indices(dimensions, "expand_dims")
    ndim = len(shape) + len(dimensions)
    places = sorted(d + ndim if d < 0 else d for d in dimensions)
    if len(set(places)) != len(places) or any(not 0 <= d < ndim for d in places):
        raise ShapeError(
            f"expand_dims: dimensions {tuple(dimensions)} must be different ones of a result of "
            f"{counted(ndim, 'dimension')}, for an array of shape {tuple(shape)}"
        )
    for d in places:
        shape.insert(d, 1)
    return reshape(array, shape)


@dataclass(frozen=True)
class Squeeze(Moves):
    """Removes dimensions of size 1."""

    dimensions: tuple[int, ...]
    name: ClassVar[str] = "squeeze"
    is_view: ClassVar[bool] = True

    def infer(self, x: ShapedArray) -> ShapedArray:
        if any(not 0 <= d < x.ndim or x.shape[d] != 1 for d in self.dimensions):
            raise ShapeError(f"squeeze: dimensions {self.dimensions} of shape {x.shape} must exist and have size 1")
        return x.update(shape=tuple(s for d, s in enumerate(x.shape) if d not in self.dimensions))

    def transpose(self, ct: Any, x: Any) -> Cotangents:
        return [reshape(ct, x.aval.shape)]

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        (x,), (dim,) = args, dims
        new = tuple(above(d, dim) for d in self.dimensions)  # type: ignore[arg-type]
        return Squeeze(new).bind(x), dim - sum(d < dim for d in new)  # type: ignore[operator]

    def sharding_rule(self, x: ShapedArray) -> ShardingRule:
        names = [None if d in self.dimensions else f"d{d}" for d in range(x.ndim)]
        return make_rule([names], [[n for n in names if n]], {f"d{d}": s for d, s in enumerate(x.shape)})

    def moved(self, x: np.ndarray) -> np.ndarray:
        return x.squeeze(self.dimensions)

    def emit(self, b: Builder, x: Emitted) -> Emitted | Sequence[Emitted]:
        return b.op("stablehlo.reshape", [x], b.out_avals)[0]


# --- transpose ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Transpose(Moves):
    """Dimension ``i`` of the result is dimension ``permutation[i]`` of the operand."""

    permutation: tuple[int, ...]
    name: ClassVar[str] = "transpose"
    is_view: ClassVar[bool] = True

    def infer(self, x: ShapedArray) -> ShapedArray:
        if sorted(self.permutation) != list(range(x.ndim)):
            raise ShapeError(f"transpose: {self.permutation} is not a permutation of the dimensions of {x.shape}")
        return x.update(shape=tuple(x.shape[d] for d in self.permutation))

    def transpose(self, ct: Any, x: Any) -> Cotangents:
        inverse = [0] * len(self.permutation)
        for i, d in enumerate(self.permutation):
            inverse[d] = i
        return [transpose(ct, inverse)]

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        (x,), (dim,) = args, dims
        # The batch dimension keeps its position before the dimension that follows it.
        out = self.permutation.index(dim) if dim < len(self.permutation) else len(self.permutation)  # type: ignore
        new = [above(d, dim) for d in self.permutation]  # type: ignore[arg-type]
        new.insert(out, dim)  # type: ignore[arg-type]
        return transpose(x, new), out

    def sharding_rule(self, x: ShapedArray) -> ShardingRule:
        names = [f"d{d}" for d in range(x.ndim)]
        return make_rule([names], [[names[d] for d in self.permutation]], dict(zip(names, x.shape)))

    def moved(self, x: np.ndarray) -> np.ndarray:
        return x.transpose(self.permutation)

    def emit(self, b: Builder, x: Emitted) -> Emitted | Sequence[Emitted]:
        return b.op("stablehlo.transpose", [x], b.out_avals, permutation=self.permutation)[0]


def transpose(operand: Any, permutation: Sequence[int]) -> Any:
    """Permute the dimensions of ``operand``: dimension ``i`` of the result is its dimension ``permutation[i]``.

    Raises:
      ShapeError: ``permutation`` does not name each dimension once.

    Example:
      >>> lax.transpose(jnp.array([[1, 2, 3], [4, 5, 6]]), (1, 0)).tolist()
      [[1, 4], [2, 5], [3, 6]]
    """
    permutation = static_indices(permutation, "transpose")
    as_it_is = permutation == tuple(range(typeof(operand).ndim))
    return operand if as_it_is else Transpose(permutation).bind(operand)


# --- reverse ------------------------------------------------------------------------------------------------
def _from_the_end(size: int, rows: int) -> Callable[[int], int]:
    """The start of tile t of a reversed array, which holds the reverse of rows [size - (t + 1) rows, size - t rows)."""
    return lambda tile: size - (tile + 1) * rows


@dataclass(frozen=True)
class Rev(Linear1):
    """Reverses the elements along ``dimensions``."""

    dimensions: tuple[int, ...]
    name: ClassVar[str] = "rev"
    takes_keys: ClassVar[bool] = True

    def infer(self, x: ShapedArray) -> ShapedArray:
        if any(not 0 <= d < x.ndim for d in self.dimensions) or len(set(self.dimensions)) != len(self.dimensions):
            raise ShapeError(f"rev: dimensions {self.dimensions} must be different ones of shape {x.shape}")
        return x

    def transpose(self, ct: Any, x: Any) -> Cotangents:
        return [self.bind(ct)]

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        (x,), (dim,) = args, dims
        return Rev(tuple(above(d, dim) for d in self.dimensions)).bind(x), dim  # type: ignore[arg-type]

    def sharding_rule(self, x: ShapedArray) -> ShardingRule:
        names = [f"d{d}" for d in range(x.ndim)]
        reversed_ = [f"d{d}" for d in self.dimensions]
        kinds, passes = dict.fromkeys(reversed_, WINDOW), dict.fromkeys(reversed_, SentTimes())
        return make_rule([names], [names], dict(zip(names, x.shape)), kinds, passes=passes)

    def localize(self, ctx: Localizer, x: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        for d in self.dimensions:
            size = ctx.in_avals[0].shape[d]
            if ctx.is_split(0, d):
                rows = ctx.in_local_shapes[0][d]
                x = ctx.fetch_window(x, 0, d, Window(_from_the_end(size, rows), rows))
        return self.bind(x) if self.dimensions else x

    def moved(self, x: np.ndarray) -> np.ndarray:
        return np.flip(x, self.dimensions)

    def emit(self, b: Builder, x: Emitted) -> Emitted | Sequence[Emitted]:
        return b.op("stablehlo.reverse", [x], b.out_avals, dimensions=self.dimensions)[0]


def rev(operand: Any, dimensions: Sequence[int]) -> Any:
    """Reverse the order of elements of ``operand`` along ``dimensions``.

    Raises:
      ShapeError: a dimension is out of range, or repeats.

    Example:
      >>> lax.rev(jnp.array([[1, 2, 3], [4, 5, 6]]), (1,)).tolist()
      [[3, 2, 1], [6, 5, 4]]
    """
    dimensions = static_indices(dimensions, "rev")
    return Rev(dimensions).bind(operand) if dimensions else operand


# --- reading ------------------------------------------------------------------------------------------------
@reads("stablehlo.reshape")
def _read_reshape(r: Reader) -> Any:
    return reshape(r.operands[0], r.out_avals[0].shape)


@reads("stablehlo.transpose")
def _read_transpose(r: Reader) -> Any:
    return transpose(r.operands[0], r.attr("permutation"))


@reads("stablehlo.reverse")
def _read_reverse(r: Reader) -> Any:
    return rev(r.operands[0], r.attr("dimensions"))
