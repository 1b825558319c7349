"""Functions of scalars as bodies of ops: reduce, reduce_window, scatter, sort and map with arbitrary regions.

Common bodies are recognized and become other ops (``reduce_sum``, ``argmax``, ``sort``). Any other body is kept as a
jaxpr of scalars, about which only StableHLO's guarantees are assumed: the body of a reduction is associative. If
partitioning needs an identity (for padding, and to include the initial value once), :func:`lifted` adjoins one: every
semigroup with an identity added is a monoid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import ShapeError
from meshwright.ir.contract import ArrayLike, Emitted
from meshwright.ir.explicit import decided
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Op
from meshwright.ir.passes import dead_code, inline_calls
from meshwright.ir.probing import used
from meshwright.ir.reading import Reader, reads
from meshwright.ir.tracing import eval_jaxpr, typeof
from meshwright.ops.composite import traced
from meshwright.ops.elementwise.base import Elementwise
from meshwright.ops.elementwise.table import convert, or_, select
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, match_shape
from meshwright.ops.shape.rearrange import above, expand_dims, move_dim, squeeze
from meshwright.ops.shape.slice_pad import concatenate, slice_in_dim
from meshwright.ops.sharding.constraint import with_type
from meshwright.sharding import TypeSharding
from meshwright.sharding.rule import ShardingRule, pointwise_rule


# --- arrays that go together --------------------------------------------------------------------------------
def along(x: Any, dim: int | None, place: int, size: int) -> Any:
    """``x`` with its batch dimension at ``place``, broadcast along a new one if it has none."""
    if dim is not None:
        return move_dim(x, dim, place)
    shape = typeof(x).shape
    kept = [above(d, place) for d in range(len(shape))]
    return broadcast_in_dim(x, (*shape[:place], size, *shape[place:]), kept)


def one_by_one(op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]) -> tuple[list[Any], list[int]]:
    """Apply the op to each batch entry separately: for operands that cannot be batched, such as initial values.

    If explicit axes split the batch dimension, all devices compute all results, which are then split in the same way.
    """
    split = next((s for x, d in zip(args, dims) if (s := batch_sharding(x, d)) is not None), None)
    rows = []
    for i in range(axis.size):
        with nullcontext() if split is None else decided():  # whole entries
            entry = [x if d is None else squeeze(slice_in_dim(x, i, i + 1, axis=d), [d]) for x, d in zip(args, dims)]
        outs = op.bind(*entry)
        rows.append([expand_dims(y, [0]) for y in (outs if op.multiple_results else [outs])])
    joined = [concatenate(column, 0) for column in zip(*rows)]
    return joined if split is None else [split_first(y, split) for y in joined], [0] * len(rows[0])


def batch_sharding(x: Any, dim: int | None) -> TypeSharding | None:
    """How explicit axes split a batch dimension, as the sharding of a vector; None if they do not."""
    explicit = typeof(x).explicit
    axes = () if explicit is None or dim is None else explicit.spec.axes(dim)
    return explicit.replaced((axes,), (), ()) if axes else None


def split_first(y: Any, split: TypeSharding) -> Any:
    """``y`` with its first dimension split as a vector is."""
    aval = typeof(y)
    rest = [()] * (aval.ndim - 1) if aval.explicit is None else list(aval.explicit.spec)[1:]
    return with_type(y, aval.update(explicit=split.replaced((*split.spec, *rest))))


def one_shape(name: str, avals: Sequence[ShapedArray]) -> tuple[int, ...]:
    """The common shape of all operands.

    Raises:
      ShapeError: their shapes differ, or there are none.
    """
    shapes = {a.shape for a in avals}
    if len(shapes) != 1:
        raise ShapeError(f"{name}: operands must have one shape, got {', '.join(map(str, avals)) or 'no operands'}")
    return shapes.pop()


def batched_with_initial(
    op: Op, at: Callable[[int], Op], axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]
) -> tuple[Any, list[int]]:
    """``batch`` of an op of arrays with initial values; ``at(place)`` is the op with a dimension added there."""
    n = len(args) // 2
    if any(d is not None for d in dims[n:]):
        return one_by_one(op, axis, args, dims)
    place = next(d for d in dims[:n] if d is not None)
    arrays = [along(x, d, place, axis.size) for x, d in zip(args, dims[:n])]
    return at(place).bind(*arrays, *args[n:]), [place] * n


def checked_arrays(name: str, body: ClosedJaxpr, avals: Sequence[ShapedArray]) -> Sequence[ShapedArray]:
    """The first half of the operands, arrays of one shape that fit ``body``; the others are initial values.

    Raises:
      ShapeError: operands do not fit.
    """
    arrays = avals[: len(avals) // 2]
    one_shape(name, arrays)
    check_body(name, body, arrays)
    return arrays


def check_body(name: str, body: ClosedJaxpr, operands: Sequence[ShapedArray], sides: int = 2) -> None:
    """Raise unless ``body`` takes ``sides`` scalars of each operand's dtype.

    Raises:
      ShapeError: it takes other types.
    """
    expected = [a.dtype for _ in range(sides) for a in operands]
    if [a.dtype for a in body.in_avals] != expected or any(a.shape for a in body.in_avals):
        raise ShapeError(
            f"{name}: the body takes ({', '.join(map(str, body.in_avals))}), expected scalars of dtypes "
            f"({', '.join(map(str, expected))})"
        )


#: a body of scalars for each element of arrays of one shape
OnElements = Callable[..., list[Any]]


class BodyOp(Op):
    """Base of ops that are one function of scalars, ``computation``, in some order."""

    computation: ClosedJaxpr
    multiple_results: ClassVar[bool] = True
    holds_jaxprs: ClassVar[bool] = True

    def on_arrays(self, apply: OnElements, *operands: Any) -> list[Any]:
        """The results, with the computation done by ``apply(computation, *arrays)``."""
        raise NotImplementedError


def combined_rows(apply: OnElements, body: ClosedJaxpr, arrays: Sequence[Any], inits: Sequence[Any]) -> list[Any]:
    """Initial values and the rows of arrays, combined in order: neighbouring pairs, until one row is left."""
    n, *shape = typeof(arrays[0]).shape
    rows = list(arrays)
    while n > 1:
        pairs = [slice_in_dim(x, start, n - n % 2, 2, axis=0) for start in (0, 1) for x in rows]
        rest = [slice_in_dim(x, n - n % 2, n, axis=0) for x in rows]
        rows = [concatenate(both, 0) for both in zip(apply(body, *pairs), rest)]
        n = n // 2 + n % 2
    first = [match_shape(x, typeof(x).update(shape=tuple(shape))) for x in inits]
    return apply(body, *first, *(squeeze(x, [0]) for x in rows)) if n else first


# --- map ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Map(BodyOp):
    """A function of scalars, for each element of operands of one shape."""

    computation: ClosedJaxpr
    name: ClassVar[str] = "map"

    def on_arrays(self, apply: OnElements, *operands: Any) -> list[Any]:
        return apply(self.computation, *operands)

    def infer(self, *avals: ShapedArray) -> tuple[ShapedArray, ...]:
        shape = one_shape(self.name, avals)
        check_body(self.name, self.computation, avals, 1)
        return tuple(ShapedArray(shape, a.dtype) for a in self.computation.out_avals)

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        place = next(d for d in dims if d is not None)
        outs = self.bind(*(along(x, d, place, axis.size) for x, d in zip(args, dims)))
        return outs, [place] * len(outs)

    def sharding_rule(self, *avals: ShapedArray) -> ShardingRule:
        return pointwise_rule([a.ndim for a in avals], avals[0].shape, len(self.computation.out_avals))

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        # One op per result, since StableHLO's map has one.
        dims = tuple(range(b.in_avals[0].ndim))
        outs = []
        for number, out in enumerate(b.out_avals):
            inner = self.computation.jaxpr
            one = ClosedJaxpr(inner.replace(outvars=[inner.outvars[number]]), self.computation.consts)
            outs += b.op("stablehlo.map", operands, [out], regions=[b.jaxpr_region(one)], dimensions=dims)
        return outs


def is_elementwise(body: ClosedJaxpr) -> bool:
    """Whether a body of scalars can be applied to arrays directly."""
    inner = body.jaxpr
    return not inner.constvars and all(isinstance(e.op, Elementwise) for e in inner.eqns)


def apply_body(body: ClosedJaxpr, *args: Any) -> list[Any]:
    """Apply a body of scalars to the elements of arrays of one shape, directly if all its ops are elementwise."""
    shape = typeof(args[0]).shape
    if not is_elementwise(body):
        outs: list[Any] = Map(body).bind(*args)
        return outs
    outs = eval_jaxpr(body, body.consts, *args)
    return [match_shape(y, typeof(y).update(shape=shape)) for y in outs]


# --- bodies of reductions -----------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Lifted:
    """``body`` on tuples of values that may be missing as a whole; an additional bool on either side tells if they
    exist."""

    body: ClosedJaxpr

    def __call__(self, *args: Any) -> list[Any]:
        n = len(args) // 2 - 1
        a, has_a, b, has_b = args[:n], args[n], args[n + 1 : 2 * n + 1], args[2 * n + 1]
        both = eval_jaxpr(self.body, self.body.consts, *a, *b)
        outs = [select(has_a, select(has_b, y, x), z) for x, y, z in zip(a, both, b)]
        return [*outs, or_(has_a, has_b)]


def lifted(body: ClosedJaxpr) -> ClosedJaxpr:
    """The body of a reduction with an identity, "no value", adjoined."""
    half = body.in_avals[: len(body.in_avals) // 2]
    flag = ShapedArray((), dtypes.bool_)
    return traced(_Lifted(body), "lifted", (*half, flag, *half, flag))


# --- reading ------------------------------------------------------------------------------------------------
def read_body(r: Reader, number: int = 0) -> ClosedJaxpr:
    """A region that depends only on its arguments."""
    region = r.region(number)
    if region.captured:
        r.fail("has a region that uses values from outside; make them operands, or constants inside of it")
    return dead_code(inline_calls(region.jaxpr))


def in_parts(
    r: Reader, read_part: Callable[[ClosedJaxpr, tuple[int, ...], list[Any], list[Any]], Sequence[Any]]
) -> list[Any]:
    """The results of a reduction, whose operands are arrays and then as many initial values.

    A reduction of several arrays may be several reductions that only stand together: the region computes some results
    without the others. ``read_part`` is called for each of them, with its part of the region, the numbers of its
    arrays, the arrays and the initial values, and returns its results.
    """
    body, operands = read_body(r), r.operands
    count = len(operands) // 2
    outs: list[Any] = [None] * count
    for part, numbers in independent(body):
        chosen = ([operands[start + i] for i in numbers] for start in (0, count))
        for i, out in zip(numbers, read_part(part, numbers, *(as_body_takes(part, xs) for xs in chosen))):
            outs[i] = out
    return outs


def independent(body: ClosedJaxpr) -> list[tuple[ClosedJaxpr, tuple[int, ...]]]:
    """The parts of the body of a reduction that do not depend on each other, and the numbers of the results of each."""
    inner, count = body.jaxpr, len(body.out_avals)
    group = list(range(count))
    for i, out in enumerate(inner.outvars):
        alone = used(dead_code(body.replace(jaxpr=inner.replace(outvars=[out]))))
        joined = {group[i], *(group[n % count] for n in alone)}
        group = [min(joined) if g in joined else g for g in group]
    parts = [tuple(i for i in range(count) if group[i] == g) for g in dict.fromkeys(group)]
    if len(parts) == 1:
        return [(body, parts[0])]
    return [(_restricted(body, numbers), numbers) for numbers in parts]


def _restricted(body: ClosedJaxpr, numbers: Sequence[int]) -> ClosedJaxpr:
    """The body of a reduction of some of its arrays, on which the others have no influence."""
    inner, count = body.jaxpr, len(body.out_avals)
    invars = [inner.invars[start + i] for start in (0, count) for i in numbers]
    return dead_code(body.replace(jaxpr=inner.replace(invars=invars, outvars=[inner.outvars[i] for i in numbers])))


def as_body_takes(body: ClosedJaxpr, operands: Sequence[Any]) -> list[Any]:
    """Operands converted to the dtypes of the body, which may be wider."""
    return [convert(x, a.dtype) for x, a in zip(operands, body.in_avals)]


@reads("stablehlo.map")
def _read_map(r: Reader) -> Any:
    """Apply the function to whole arrays; outside scalars used by its region become operands."""
    region, shape = r.region(), r.out_avals[0].shape
    captured = [match_shape(x, typeof(x).update(shape=shape)) for x in region.captured if not typeof(x).shape]
    if len(captured) != len(region.captured):
        r.fail("has a region that uses arrays from outside; make them operands")
    return apply_body(inline_calls(region.jaxpr), *captured, *r.operands)
