"""Products with groups of rows whose sizes are data, as in mixtures of experts (``ragged_dot_general``)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.core.dot_algorithms import Algorithm
from meshwright.core.dtypes import bfloat16, is_integer
from meshwright.core.records import dataclass
from meshwright.errors import DTypeError, ShapeError
from meshwright.ir.contract import ArrayLike, Emitted, Localizer, Value
from meshwright.ir.interval import ANYWHERE, Interval
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Cotangents, Linear
from meshwright.ir.reading import Reader, Unreadable, reads
from meshwright.ir.tracing import typeof
from meshwright.ops.composite import Composite, emit_traced
from meshwright.ops.elementwise.clamp import clamp
from meshwright.ops.elementwise.table import convert, mul, scalar_like, sub
from meshwright.ops.indexing.dynamic_slice import DynamicSlice
from meshwright.ops.products.bilinear import Bilinear
from meshwright.ops.products.dot import DotDimensionNumbers, DotGeneral, free_dims, read_precision
from meshwright.ops.products.ragged_loops import Grouping, bounds_of, product_in_tiles
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, put_batch_dim
from meshwright.ops.shape.rearrange import above, squeeze, transpose
from meshwright.ops.shape.slice_pad import concatenate, pad, slice_in_dim
from meshwright.sharding.rule import REDUCTION, REPLICATED, ShardingRule, make_rule

#: rows of libtpu's kernel are a multiple of this (it takes others by multiplying all rows with all groups)
_SUBLANES = 8


@dataclass(frozen=True)
class RaggedDot(Bilinear, Composite):
    """``dot_general`` where the rows along the dimension ``ragged`` of ``lhs`` belong to groups.

    With ``group``, a dimension of ``rhs`` that is no other one of the product, each row is multiplied with the entry
    of its group; rows of no group give zeros. Without it, ``ragged`` is contracted: each group is summed by itself, and
    the result has groups as a new dimension 0.

    The operands are ``lhs``, ``rhs``, the sizes ``[*along, groups]``, and optionally the first row of the first group
    ``[*along]`` (0 if not given). Rows that differ in the indices of the dimensions ``along`` of ``lhs`` are grouped
    differently. ``among`` is the number of groups that have rows, if these are only some of them: such a product takes
    that part of the arithmetic. ``over`` are the mesh axes whose devices have the others.
    """

    dimension_numbers: DotDimensionNumbers
    ragged: int
    group: int | None
    along: tuple[int, ...] = ()
    precision: str | Algorithm | None = None
    preferred_element_type: np.dtype | None = None
    among: int | None = None
    over: tuple[str, ...] = ()
    name: ClassVar[str] = "ragged_dot_general"
    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ((0,), (1,))
    hidden_params: ClassVar[tuple[str, ...]] = ("precision", "among", "over")
    written_out_on_cpus: ClassVar[bool] = True

    # --- dimensions -----------------------------------------------------------------------------------------
    @property
    def _sums_groups(self) -> bool:
        return self.group is None

    def _in_result(self, lhs_ndim: int, rhs_ndim: int) -> tuple[list[int], list[int]]:
        """The dimensions of lhs and of rhs that the result has, in order, after the groups."""
        (lc, rc), (lb, rb) = self.dimension_numbers
        groups = () if self.group is None else (self.group,)
        return [*lb, *free_dims(lhs_ndim, lc, lb)], free_dims(rhs_ndim, rc, rb, groups)

    def row_in_result(self, lhs_ndim: int) -> int | None:
        """The dimension of the result that consists of the groups' rows; None if they are summed."""
        return None if self._sums_groups else self._in_result(lhs_ndim, 0)[0].index(self.ragged)

    def rows_of(self, operand: int) -> int | None:
        """The dimension of lhs (0) or rhs (1) that consists of the groups' rows; None if there is none."""
        (lc, rc), _ = self.dimension_numbers
        if operand == 0:
            return self.ragged
        return rc[lc.index(self.ragged)] if operand == 1 and self._sums_groups else None

    def infer(self, lhs: ShapedArray, rhs: ShapedArray, sizes: ShapedArray, *first: ShapedArray) -> ShapedArray:
        (lc, rc), (lb, rb) = self.dimension_numbers
        plain = rhs if self.group is None else _without(rhs, self.group, (*rc, *rb))
        of_one = DotGeneral(self._of_one_group(), self.precision, self.preferred_element_type).infer(lhs, plain)
        if not 0 <= self.ragged < lhs.ndim or self.ragged in lb or (self.ragged in lc) != self._sums_groups:
            what = "contracting" if self._sums_groups else "free"
            raise ShapeError(f"{self.name}: the ragged dimension {self.ragged} must be a {what} one of lhs {lhs}")
        prefix = tuple(lhs.shape[d] for d in self.along)
        if sizes.shape[:-1] != prefix or sizes.ndim != len(prefix) + 1 or any(f.shape != prefix for f in first):
            raise ShapeError(
                f"{self.name}: group_sizes must have shape [{', '.join([*map(str, prefix), 'g'])}] for lhs {lhs}, got "
                f"shape {sizes.shape}"
            )
        if self.group is not None and sizes.shape[-1] != rhs.shape[self.group]:
            raise ShapeError(
                f"{self.name}: dimension {self.group} of rhs {rhs} must have an entry for each of group_sizes {sizes}"
            )
        if not all(is_integer(a.dtype) for a in (sizes, *first)):
            raise DTypeError(f"{self.name}: group_sizes must be integers, got {sizes}")
        return of_one.update(shape=(sizes.shape[-1], *of_one.shape)) if self._sums_groups else of_one

    def _of_one_group(self) -> DotDimensionNumbers:
        """The dimension numbers of the product with the entry of one group."""
        (lc, rc), (lb, rb) = self.dimension_numbers
        if self.group is None:
            return self.dimension_numbers
        rc, rb = (tuple(d - (d > self.group) for d in dims) for dims in (rc, rb))
        return (lc, rc), (lb, rb)

    def _with(self, numbers: DotDimensionNumbers, ragged: int, group: int | None, along: Sequence[int]) -> RaggedDot:
        return dataclasses.replace(self, dimension_numbers=numbers, ragged=ragged, group=group, along=tuple(along))

    # --- derivatives ----------------------------------------------------------------------------------------
    def transpose(self, ct: Any, x: Any, y: Any, *groups: Any) -> Cotangents:
        rest = [None] * len(groups)
        if isinstance(x, Linear):
            return [self._transpose_lhs(ct, x.aval, y, groups), None, *rest]
        return [None, self._transpose_rhs(ct, x, y.aval, groups), *rest]

    def _transpose_lhs(self, ct: Any, x: ShapedArray, y: Any, groups: Sequence[Any]) -> Any:
        (lc, rc), (lb, rb) = self.dimension_numbers
        mine, other = self._in_result(x.ndim, typeof(y).ndim)
        lead = int(self._sums_groups)
        of_lhs = {d: lead + i for i, d in enumerate(mine)}
        of_rhs = tuple(range(lead + len(mine), lead + len(mine) + len(other)))
        batch = tuple(of_lhs[d] for d in lb)
        if not self._sums_groups:
            numbers = ((of_rhs, tuple(other)), (batch, rb))
            op = self._with(numbers, of_lhs[self.ragged], self.group, [of_lhs[d] for d in self.along])
            out = op.bind(ct, y, *groups)
            order = [*lb, *free_dims(x.ndim, lc, lb), *(lc[rc.index(d)] for d in sorted(rc))]
        else:  # the rows are those of y
            partner = dict(zip((*lc, *lb), (*rc, *rb)))
            numbers = ((tuple(other), of_rhs), (rb, batch))
            op = self._with(numbers, partner[self.ragged], 0, [partner[d] for d in self.along])
            out = op.bind(y, ct, *groups)
            order = [*lb, *(lc[rc.index(d)] for d in sorted(rc)), *free_dims(x.ndim, lc, lb)]
        return convert(transpose(out, [order.index(d) for d in range(x.ndim)]), x.dtype)

    def _transpose_rhs(self, ct: Any, x: Any, y: ShapedArray, groups: Sequence[Any]) -> Any:
        (lc, rc), (lb, rb) = self.dimension_numbers
        mine, other = self._in_result(typeof(x).ndim, y.ndim)
        lead = int(self._sums_groups)
        of_lhs = {d: lead + i for i, d in enumerate(mine)}
        free = tuple(free_dims(typeof(x).ndim, lc, lb))
        numbers = ((free, tuple(of_lhs[d] for d in free)), (lb, tuple(of_lhs[d] for d in lb)))
        out = self._with(numbers, self.ragged, 0 if self._sums_groups else None, self.along).bind(x, ct, *groups)
        order = [*rb, *(rc[lc.index(d)] for d in sorted(lc)), *other]
        if self.group is not None:
            order = [self.group, *order]
        return convert(transpose(out, [order.index(d) for d in range(y.ndim)]), y.dtype)

    # --- batching -------------------------------------------------------------------------------------------
    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        x, y, *groups = args
        dx, dy, *given = dims
        along = self.along
        if any(d is not None for d in given):
            groups = [put_batch_dim(v, d, 0, axis.size) for v, d in zip(groups, given)]
            if dx is None:
                x, dx = put_batch_dim(x, None, 0, axis.size), 0
            if self._sums_groups and dy is None:
                y, dy = put_batch_dim(y, None, 0, axis.size), 0
            along = (dx, *(above(d, dx) for d in along))
        elif dx is not None:
            along = tuple(above(d, dx) for d in along)
        (lc, rc), (lb, rb) = self.dimension_numbers
        ragged, group = self.ragged, self.group
        if dx is not None:
            lc, lb, ragged = tuple(above(d, dx) for d in lc), tuple(above(d, dx) for d in lb), above(ragged, dx)
        if dy is not None:
            rc, rb = tuple(above(d, dy) for d in rc), tuple(above(d, dy) for d in rb)
            group = None if group is None else above(group, dy)
        lead = int(self._sums_groups)
        if dx is not None and dy is not None:
            # Next to the batch dimension that it preceded, else first.
            place = next((i for i, d in enumerate(lb) if d == dx + 1), 0)
            lb, rb = (*lb[:place], dx, *lb[place:]), (*rb[:place], dy, *rb[place:])
            return self._with(((lc, rc), (lb, rb)), ragged, group, along).bind(x, y, *groups), lead + place
        new = self._with(((lc, rc), (lb, rb)), ragged, group, along)
        z = new.bind(x, y, *groups)
        mine, other = new._in_result(typeof(x).ndim, typeof(y).ndim)
        if dx is not None:
            return z, lead + mine.index(dx)
        return z, lead + len(mine) + other.index(dy)  # type: ignore[arg-type]

    # --- partitioning ---------------------------------------------------------------------------------------
    def sharding_rule(
        self, lhs: ShapedArray, rhs: ShapedArray, sizes: ShapedArray, *first: ShapedArray
    ) -> ShardingRule:
        (lc, rc), (lb, rb) = self.dimension_numbers
        left = [f"i{d}" for d in range(lhs.ndim)]
        right = [f"j{d}" for d in range(rhs.ndim)]
        extent = {**dict(zip(left, lhs.shape)), **dict(zip(right, rhs.shape))}
        groups = "g" if self.group is None else right[self.group]
        extent |= {"g": sizes.shape[-1], "sizes": sizes.shape[-1]}
        for a, b in (*zip(lb, rb), *zip(lc, rc)):
            right[b] = left[a]
        kinds = {left[d]: REDUCTION for d in lc} | {"sizes": REPLICATED}
        kinds |= {} if self._sums_groups else {groups: REDUCTION}
        mine, other = self._in_result(lhs.ndim, rhs.ndim)
        out = [*([groups] if self._sums_groups else []), *(left[d] for d in mine), *(right[d] for d in other)]
        prefix = [left[d] for d in self.along]
        ins = [left, right, [*prefix, "sizes"], *([prefix] if first else [])]
        loops = {*left, *right, groups}
        points = math.prod(extent[name] for name in loops) // max(1, self.among or sizes.shape[-1])
        return make_rule(ins, [out], extent, kinds, points=points)

    def localize(self, ctx: Localizer, *operands: ArrayLike) -> ArrayLike | Sequence[ArrayLike]:
        x, y, sizes, *first = operands
        (lc, rc), _ = self.dimension_numbers
        for a, b in zip(lc, rc):
            if a != self.ragged:  # rows beyond the last group add nothing
                x, y = ctx.mask(x, 0, a, scalar_like(0, x)), ctx.mask(y, 1, b, scalar_like(0, y))
        of_groups = ctx.result_axes(0, 0) if self.group is None else ctx.axes(1, self.group)
        rows = ctx.axes(0, self.ragged)
        total = ctx.in_avals[2].shape[-1]
        if not total or not (rows or of_groups):
            return self.bind(x, y, sizes, *first)
        starts, ends = bounds_of(sizes, first, ctx.in_avals[0].shape[self.ragged])
        if rows:
            length = ctx.in_local_shapes[0][self.ragged]
            before = mul(ctx.tile_index(rows), np.int32(length))
            starts, ends = (clamp(np.int32(0), sub(v, before), np.int32(length)) for v in (starts, ends))
        op = self
        if of_groups:
            op = dataclasses.replace(self, among=self.among or total, over=tuple(ctx.mesh.coalesce(of_groups)))
            tiles = ctx.mesh.sizes(of_groups)
            held = -(-total // tiles)
            # What pads the last tile are empty groups after the last one.
            starts, ends = (_tile(v, ends, ctx.tile_index(of_groups), held, tiles) for v in (starts, ends))
        last = typeof(starts).ndim - 1
        begin = squeeze(slice_in_dim(starts, 0, 1, axis=last), [last])
        return op.bind(x, y, sub(ends, starts), begin)

    def domain(
        self, wishes: Sequence[Interval], known: Sequence[Interval], avals: Sequence[ShapedArray]
    ) -> Sequence[Interval]:
        rows, groups = avals[0].shape[self.ragged], avals[2].shape[-1]
        return [ANYWHERE, ANYWHERE, Interval(0, rows // max(1, groups)), *[Interval(0, rows)] * (len(avals) - 3)]

    # --- lowering -------------------------------------------------------------------------------------------
    def expand(self, x: Value, y: Value, sizes: Value, *first: Value) -> list[Value]:
        out = self.infer(*map(typeof, (x, y, sizes, *first)))
        (lc, rc), (lb, rb) = self.dimension_numbers
        mine, _ = self._in_result(x.ndim, y.ndim)
        pairs = dict(zip((*lb, *lc), (*rb, *rc)))
        grouping = Grouping(self._of_one_group(), pairs, self.ragged, self.group, self.along, tuple(mine))
        bounds = bounds_of(sizes, first, x.shape[self.ragged])
        return [product_in_tiles(grouping, x, y, bounds, self.precision, out)]

    def has_kernel(self, platform: str, lhs: ShapedArray, rhs: ShapedArray, *groups: ShapedArray) -> bool:
        """Whether the platform's compiler has a kernel for the product, apart from the number of its rows.

        Tried with libtpu 0.0.42: it refuses batches and several free or contracted dimensions, multiplies everything
        with every group for other orders of dimensions and for sums of groups, and fails on float16.
        """
        (lc, rc), (lb, _) = self.dimension_numbers
        plain = self.ragged == 0 and self.group == 0 and lc == (1,) and rc in ((1,), (2,)) and not lb
        types = {lhs.dtype, rhs.dtype}
        fits = plain and not self.along and len(groups) == 1 and (lhs.ndim, rhs.ndim) == (2, 3) and len(types) == 1
        return platform == "tpu" and fits and not self.precision and types <= {np.dtype(np.float32), bfloat16}

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        if not self.has_kernel(b.platform, *b.in_avals):
            return super().emit(b, *operands)
        if b.in_avals[0].shape[0] % _SUBLANES:
            return emit_traced(b, self._in_full_tiles, self.name, *operands)[0]
        (_, (contracted,)), _ = self.dimension_numbers
        numbers = (
            f"#chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [{contracted}], "
            "lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>"
        )
        default = "#chlo<precision DEFAULT>"
        return b.op(
            "chlo.ragged_dot", operands, b.out_avals, ragged_dot_dimension_numbers=numbers,
            precision_config=f"[{default}, {default}]",
        )[0]  # fmt: skip

    def _in_full_tiles(self, x: Value, y: Value, sizes: Value) -> list[Value]:
        """The product with rows up to a multiple of what the kernel takes."""
        n = x.shape[0]
        padded = pad(x, scalar_like(0, x), [(0, -n % _SUBLANES, 0), (0, 0, 0)])
        return [slice_in_dim(self.bind(padded, y, sizes), 0, n)]


def _without(x: ShapedArray, dim: int, used: Sequence[int]) -> ShapedArray:
    """The type of one entry along a dimension.

    Raises:
      ShapeError: there is no such dimension, or it is used otherwise.
    """
    if not 0 <= dim < x.ndim or dim in used:
        raise ShapeError(f"ragged_dot_general: the group dimension {dim} must be one of rhs {x} that nothing else uses")
    return x.update(shape=(*x.shape[:dim], *x.shape[dim + 1 :]))


def _tile(bounds: Any, ends: Any, tile: Any, held: int, tiles: int) -> Any:
    """The bounds of the groups of one device; those beyond the last group are its end."""
    *prefix, n = typeof(bounds).shape
    along = len(prefix)
    if more := held * tiles - n:
        last = slice_in_dim(ends, n - 1, n, axis=along)
        bounds = concatenate([bounds, broadcast_in_dim(last, (*prefix, more), range(along + 1))], along)
    start = mul(tile, np.int32(held))
    return DynamicSlice((*prefix, held)).bind(bounds, *[np.int32(0)] * along, start)


def grouped_product(
    lhs: Any, rhs: Any, sizes: Any, numbers: DotDimensionNumbers, ragged: int, groups: Sequence[int],
    precision: str | Algorithm | None, preferred: np.dtype | None,
) -> Any:  # fmt: skip
    """The product in the convention of CHLO and JAX: ``sizes`` are ``[g]``, or have leading dimensions for those of
    batches and for those of the same kind as ``ragged`` that precede it; ``groups`` is the group dimension, if any."""
    (lc, _), (lb, _) = numbers
    if ragged in lb:  # each entry of the batch is in one group, so groups do not matter
        return DotGeneral(numbers, precision, preferred).bind(lhs, rhs)
    outer = lc if ragged in lc else tuple(free_dims(typeof(lhs).ndim, lc, lb))
    along = (*lb, *outer[: outer.index(ragged)]) if ragged in outer and typeof(sizes).ndim > 1 else ()
    (group,) = groups or (None,)
    counts = convert(sizes, np.dtype(np.int32))  # there are no more rows
    return RaggedDot(numbers, ragged, group, along, precision, preferred).bind(lhs, rhs, counts)


# --- reading ------------------------------------------------------------------------------------------------
@reads("chlo.ragged_dot")
def _read_ragged_dot(r: Reader) -> Any:
    n = r.attr("ragged_dot_dimension_numbers")
    if not isinstance(n, dict):  # the form of a composite in portable artifacts
        raise Unreadable
    lhs, rhs, sizes = r.operands
    contracting = n.get("lhs_contracting_dimensions", ()), n.get("rhs_contracting_dimensions", ())
    batch = n.get("lhs_batching_dimensions", ()), n.get("rhs_batching_dimensions", ())
    (ragged,) = n.get("lhs_ragged_dimensions", (-1,))
    out = r.out_avals[0].dtype
    preferred = None if typeof(lhs).dtype == typeof(rhs).dtype == out else out
    groups = n.get("rhs_group_dimensions", ())
    return grouped_product(lhs, rhs, sizes, (contracting, batch), ragged, groups, read_precision(r), preferred)
