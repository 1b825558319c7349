"""Gathers and scatters that index one dimension with 0, 1, 2, ...: ``x[arange(n), i]`` reads one element of each row.

Written like this, every device has to look for each index among the rows that it has. As a batching dimension, which
the indices share with the array, the rows are split like any other dimension: nothing is sent or looked for. A gather
all of whose indices count, as in ``x[arange(n)]``, reads what is there in order, and needs none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.ir.constants import known_values
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Literal, Var, all_eqns
from meshwright.ir.rewrite import Replacement, in_regions, producers_of, replaced, written_out
from meshwright.ir.tracing import typeof
from meshwright.ops.control.flow import ControlOp
from meshwright.ops.control.regions import RegionOp
from meshwright.ops.elementwise.clamp import Clamp
from meshwright.ops.elementwise.conversion import ConvertElementType
from meshwright.ops.elementwise.table import SelectN, lt, max_
from meshwright.ops.indexing.gather_add import Gather, ScatterBase, ScatterDimensionNumbers
from meshwright.ops.indexing.indexed import GatherDimensionNumbers
from meshwright.ops.indexing.known_integers import KnownIntegers
from meshwright.ops.shape.broadcast_reduce import BroadcastInDim, Iota
from meshwright.ops.shape.rearrange import Reshape, Squeeze, Transpose, squeeze, transpose
from meshwright.ops.shape.slice_pad import Concatenate, slice_

#: for values whose elements are their positions along a dimension, that dimension
Counts = dict[Var, int]
Producers = Mapping[Var, JaxprEqn]


def counted_rows(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """Replace indices that count along a dimension by batching dimensions."""
    if not any(isinstance(e.op, (Gather, ScatterBase)) for e in all_eqns(jaxpr.jaxpr)):
        return jaxpr
    return _rewritten(jaxpr, {}, {})


def _rewritten(jaxpr: ClosedJaxpr, given: Counts, known: Mapping[Var, np.ndarray]) -> ClosedJaxpr:
    """``jaxpr``, some of whose arguments count, and have known values."""
    producers = producers_of(jaxpr.jaxpr)
    values = KnownIntegers(jaxpr, known)
    counts = _counts(jaxpr, given, producers)

    def rule(eqn: JaxprEqn) -> Replacement:
        if isinstance(eqn.op, ControlOp):
            return _in_bodies(eqn, eqn.op, counts, values)
        if isinstance(eqn.op, RegionOp):
            return in_regions(eqn, lambda region: _rewritten(region, {}, {}))
        return _batched(eqn, counts, producers, values) if isinstance(eqn.op, (Gather, ScatterBase)) else eqn

    return replaced(jaxpr, rule)


def _in_bodies(eqn: JaxprEqn, op: ControlOp, counts: Counts, values: KnownIntegers) -> JaxprEqn:
    """The equation with its bodies rewritten. A constant of a body counts, or is known, if its operand does or is."""
    bodies = []
    for body, places in zip(op.bodies(), op.numbers().consts):
        pairs = list(zip(body.jaxpr.jaxpr.invars, (eqn.invars[n] for n in places)))
        given = {v: counts[a] for v, a in pairs if isinstance(a, Var) and a in counts}
        known = {v: value for v, a in pairs if (value := values.known(a)) is not None}
        bodies.append(replace(body, jaxpr=_rewritten(body.jaxpr, given, known)))
    same = all(new.jaxpr is old.jaxpr for new, old in zip(bodies, op.bodies()))
    return eqn if same else eqn.replace(op=op.with_bodies(bodies))


# --- what counts --------------------------------------------------------------------------------------------
def _counts(jaxpr: ClosedJaxpr, given: Counts, producers: Producers) -> Counts:
    """The values of a program that count along a dimension of more than one element."""
    counts, never = dict(given), set[Var]()
    for var, constant in zip(jaxpr.jaxpr.constvars, jaxpr.consts):
        shape = var.aval.shape
        # Others are not looked at: they may be large, and on other devices.
        if _holds_positions(var.aval) and var.aval.size == max(shape, default=0) > 1:
            values = known_values(constant)
            if values is not None and np.array_equal(values.ravel(), np.arange(values.size)):
                counts[var] = shape.index(values.size)
    for eqn in jaxpr.jaxpr.eqns:
        if len(eqn.outvars) == 1:
            (out,) = eqn.outvars
            if eqn.op is lt and eqn.invars[0] in counts and _is_zero(eqn.invars[1], producers):
                never.add(out)
            dim = _counted_along(eqn, counts, never, producers)
            if dim is not None and out.aval.shape[dim] > 1 and _holds_positions(out.aval):
                counts[out] = dim
    return counts


def _holds_positions(aval: ShapedArray) -> bool:
    """Whether integers of a type can count along each dimension."""
    return aval.dtype.kind in "iu" and max(aval.shape, default=0) - 1 <= np.iinfo(aval.dtype).max


def _is_zero(atom: Atom, producers: Producers) -> bool:
    while isinstance(atom, Var) and atom in producers and isinstance(producers[atom].op, BroadcastInDim):
        (atom,) = producers[atom].invars
    return isinstance(atom, Literal) and not np.any(np.asarray(atom.val))


def _counted_along(eqn: JaxprEqn, counts: Counts, never: set[Var], producers: Producers) -> int | None:
    """The dimension along which the result of an equation counts; ``never``: predicates that are false."""
    op = eqn.op
    if isinstance(op, Iota):
        return op.dimension
    if isinstance(op, SelectN) and eqn.invars[0] in never:
        return counts.get(eqn.invars[1])  # type: ignore[arg-type]
    if op is max_ and _is_zero(eqn.invars[1], producers):
        return counts.get(eqn.invars[0])  # type: ignore[arg-type]
    dim = counts.get(eqn.invars[0]) if eqn.invars else None  # type: ignore[arg-type]
    if dim is None:
        return None
    shape = eqn.invars[0].aval.shape
    match op:
        case ConvertElementType():
            return dim
        case BroadcastInDim():
            return op.broadcast_dimensions[dim]
        case Transpose():
            return op.permutation.index(dim)
        case Reshape() | Squeeze():
            before, new = math.prod(shape[:dim]), eqn.outvars[0].aval.shape
            at = (d for d, size in enumerate(new) if size == shape[dim] and math.prod(new[:d]) == before)
            return next(at, None)
    return None


# --- batching dimensions ------------------------------------------------------------------------------------
class _Column(NamedTuple):
    """A component of index vectors: the integers ``atom``, clamped to ``bounds`` if there are any."""

    atom: Atom
    bounds: tuple[int, int] | None = None

    def keeps(self, count: int) -> bool:
        """Whether the positions below ``count`` are within the bounds, and stay as they are."""
        return self.bounds is None or (self.bounds[0] <= 0 and count - 1 <= self.bounds[1])


class _Pair(NamedTuple):
    """Column ``column`` of the index vectors counts along dimension ``along`` of the indices; it is the position along
    dimension ``dim`` of the array."""

    column: int
    along: int
    dim: int


def _batched(eqn: JaxprEqn, counts: Counts, producers: Producers, values: KnownIntegers) -> Replacement:
    op = eqn.op
    assert isinstance(op, (Gather, ScatterBase))
    count = 1 if isinstance(op, Gather) else len(eqn.invars) // 2
    x, indices = eqn.invars[0].aval, eqn.invars[count]
    numbers = op.dimension_numbers if isinstance(op, Gather) else op.dimension_numbers.gather()
    columns = _columns(indices, producers, values)
    pairs = _pairs(columns, counts, numbers, x.shape)
    left = [c for i, c in enumerate(columns) if all(i != pair.column for pair in pairs)]
    if not pairs:
        return eqn
    if not left:
        if isinstance(op, ScatterBase):
            return eqn
        return written_out(eqn, _in_order(op, _with_pairs(numbers, pairs), eqn.outvars[0].aval.shape))
    eqns: list[JaxprEqn] = []
    parts = [_clamped(eqn, column, eqns) for column in left]
    vectors = parts[0]
    if len(left) > 1:
        vectors = Var(indices.aval.update(shape=(*indices.aval.shape[:-1], len(left))))
        eqns.append(eqn.replace(op=Concatenate(indices.aval.ndim - 1), invars=parts, outvars=[vectors]))
    numbers = _with_pairs(numbers, pairs)
    dims = numbers if isinstance(op, Gather) else ScatterDimensionNumbers.of_gather(numbers)
    invars = [vectors if i == count else a for i, a in enumerate(eqn.invars)]
    new = replace(op, dimension_numbers=dims, indices_are_sorted=False)  # type: ignore[arg-type]
    return [*eqns, eqn.replace(op=new, invars=invars)]


def _in_order(op: Gather, numbers: GatherDimensionNumbers, result: tuple[int, ...]) -> Callable[..., Sequence[Any]]:
    """A gather of this shape all of whose indices count: each dimension is read whole, or from 0 on."""
    batch = dict(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims))
    places = numbers.index_places(len(result))

    def read(x: Any, *_: Any) -> Sequence[Any]:
        shape, windows = typeof(x).shape, iter(numbers.offset_dims)
        x = slice_(x, [0] * len(shape), [n if d in batch else op.slice_sizes[d] for d, n in enumerate(shape)])
        kept = [d for d in range(len(shape)) if d not in numbers.collapsed_slice_dims]
        x = squeeze(x, numbers.collapsed_slice_dims)
        dims = [places[batch[d]] if d in batch else next(windows) for d in kept]
        x = transpose(x, sorted(range(len(dims)), key=dims.__getitem__))
        return [BroadcastInDim(result, tuple(sorted(dims))).bind(x)]  # an equation, also where nothing changes

    return read


def _columns(indices: Atom, producers: Producers, values: KnownIntegers) -> list[_Column]:
    """The components of index vectors, if they are put together of them; otherwise nothing."""
    bounds: Sequence[tuple[int, int] | None] = [None] * indices.aval.shape[-1]
    eqn = producers.get(indices) if isinstance(indices, Var) else None
    if eqn is not None and isinstance(eqn.op, Clamp):
        # What a mode of indexing clamps is a vector: all of its components at once.
        lows, highs = (_of_columns(eqn.invars[n], indices.aval.shape, producers, values) for n in (0, 2))
        if lows is not None and highs is not None:
            bounds, indices = list(zip(lows, highs)), eqn.invars[1]
            eqn = producers.get(indices) if isinstance(indices, Var) else None
    if indices.aval.shape[-1] == 1:
        return [_Column(indices, bounds[0])]
    if eqn is None or not isinstance(eqn.op, Concatenate) or eqn.op.dimension != indices.aval.ndim - 1:
        return []
    return list(map(_Column, eqn.invars, bounds)) if all(a.aval.shape[-1] == 1 for a in eqn.invars) else []


def _of_columns(bound: Atom, shape: Sequence[int], producers: Producers, values: KnownIntegers) -> Sequence[int] | None:
    """A bound of index vectors of this shape for each component, if it is known and the same for all vectors."""
    known, last = values.known(bound), None if bound.aval.ndim == 0 else bound.aval.ndim - 1
    eqn = producers.get(bound) if isinstance(bound, Var) else None
    if known is None and eqn is not None and isinstance(eqn.op, BroadcastInDim):
        known = values.known(eqn.invars[0])
        last = eqn.op.broadcast_dimensions.index(last) if last in eqn.op.broadcast_dimensions else None
    if known is None or known.size != (1 if last is None else known.shape[last]):
        return None
    found: list[int] = np.broadcast_to(known.ravel(), shape[-1:]).tolist()
    return found


def _clamped(eqn: JaxprEqn, column: _Column, eqns: list[JaxprEqn]) -> Atom:
    """A component of the index vectors of ``eqn`` with its bounds applied, by an equation that is added."""
    if column.bounds is None:
        return column.atom
    aval = column.atom.aval
    low, high = (Literal(np.asarray(n, aval.dtype), aval.update(shape=())) for n in column.bounds)
    eqns.append(eqn.replace(op=Clamp(), invars=[low, column.atom, high], outvars=[Var(aval)]))
    return eqns[-1].outvars[0]


def _pairs(
    columns: Sequence[_Column], counts: Counts, numbers: GatherDimensionNumbers, shape: Sequence[int]
) -> list[_Pair]:
    """The pairs of dimensions that can be batching dimensions: of equal size, and each in one pair only."""
    taken = {*numbers.start_indices_batching_dims}
    pairs = []
    for i, column in enumerate(columns):
        along = counts.get(column.atom) if isinstance(column.atom, Var) else None
        dim = numbers.start_index_map[i]
        if along is None or along in taken or dim not in numbers.collapsed_slice_dims:
            continue
        if column.atom.aval.shape[along] == shape[dim] and column.keeps(shape[dim]):
            taken.add(along)
            pairs.append(_Pair(i, along, dim))
    return pairs


def _with_pairs(numbers: GatherDimensionNumbers, pairs: Sequence[_Pair]) -> GatherDimensionNumbers:
    gone, dims = {pair.column for pair in pairs}, {pair.dim for pair in pairs}
    numbers = GatherDimensionNumbers(
        numbers.offset_dims,
        tuple(d for d in numbers.collapsed_slice_dims if d not in dims),
        tuple(d for i, d in enumerate(numbers.start_index_map) if i not in gone),
        numbers.operand_batching_dims,
        numbers.start_indices_batching_dims,
    )
    for pair in pairs:
        numbers = numbers.with_batching_dims(pair.dim, pair.along)
    return numbers
