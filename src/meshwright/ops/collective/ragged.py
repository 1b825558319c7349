"""The exchange of slices whose sizes are known only at run time: ``ragged_all_to_all``, and its adjoint.

Accelerators send the slices alone. On CPUs, and between virtual devices, operands are gathered, and each device selects
its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import DTypeError, ShapeError
from meshwright.ir.contract import ArrayLike, Emitted, Value
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Cotangents, Dual, Linear, Tangent, Zero
from meshwright.ir.tracing import typeof
from meshwright.ops.collective.all_reduce import Pmax
from meshwright.ops.collective.base import Collective, axis_index_of
from meshwright.ops.collective.exchange import AllToAll
from meshwright.ops.collective.tiles import AllGather
from meshwright.ops.composite import Composite
from meshwright.ops.control.while_loop import counted
from meshwright.ops.elementwise.clamp import clamp
from meshwright.ops.elementwise.table import (
    add,
    and_,
    convert,
    div,
    eq,
    le,
    lt,
    materialize,
    mul,
    or_,
    rem,
    select,
    sub,
    zeros_like,
)
from meshwright.ops.indexing.gather_scatter import gather_along
from meshwright.ops.reduce.reductions import reduce_max, reduce_or
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, iota, match_shape, put_batch_dim
from meshwright.ops.shape.rearrange import reshape, transpose
from meshwright.ops.shape.slice_pad import slice_in_dim
from meshwright.ops.sort.sorting import Sort
from meshwright.sharding.rule import ShardingRule, make_rule

_INDEX = np.dtype(np.int32)
_TABLES = "input_offsets", "send_sizes", "output_offsets", "recv_sizes"

#: a function that does what a collective does among the devices that exchange rows
Bind = Callable[[Collective, Any], Any]


def _bound(collective: Collective, x: Any) -> Any:
    return collective.bind(x) if collective.axes else x


@dataclass(frozen=True)
class ExchangesRows(Collective, Composite):
    """Base class: the last four operands are the tables of :func:`.lax.ragged_all_to_all`, int32 ``[k]``, those before
    are arrays of rows."""

    kind: ClassVar[str] = "ragged_all_to_all"

    def moved_dims(self) -> tuple[int, ...]:
        return (0,)

    def sharding_rule(self, *avals: ShapedArray) -> ShardingRule:
        out = self.infer(*avals)
        row = [None, *(f"d{d}" for d in range(1, out.ndim))]
        sizes = {f"d{d}": out.shape[d] for d in range(1, out.ndim)}
        return make_rule([row if n < len(avals) - len(_TABLES) else [None] for n in range(len(avals))], [row], sizes)

    def check_tables(self, *tables: ShapedArray) -> None:
        for what, table in zip(_TABLES, tables, strict=True):
            if not dtypes.is_integer(table.dtype):
                raise DTypeError(f"{self.name}: {what} must be integers, got {table}")
            if table.ndim != 1 or table.shape[0] % self.group_size:
                raise ShapeError(
                    f"{self.name}: {what} must have shape [k], k a multiple of the {self.group_size} positions, got "
                    f"{table}"
                )
        if len({t.shape for t in tables}) > 1:
            raise ShapeError(f"{self.name}: offsets and sizes must be as many, got {', '.join(map(str, tables))}")

    def exchanged(self, table: Any, bind: Bind = _bound) -> Any:
        """The entries that the devices have for this one, by device."""
        (number,) = typeof(table).shape
        return reshape(bind(AllToAll(self.axes, self.sizes, 1, 0), reshape(table, (1, number))), (number,))

    def returning(self, starts: Any, sent: Any, targets: Any, received: Any) -> list[Any]:
        """The tables of the exchange in the other direction."""
        return [self.exchanged(targets), received, self.exchanged(starts), sent]

    def slices_of_all(self, tables: Sequence[Any], size: int, rows: tuple[int, int]) -> list[Any]:
        """Tables ``[size, k]`` of a batch as one; ``rows`` are those that an entry of the batch sends of and gets."""
        count, (_, number) = self.group_size, typeof(tables[0]).shape
        shape = (size, count, number // count)
        entry = iota(_INDEX, shape, 0)

        def joined(table: Any, rows: int) -> Any:
            placed = add(reshape(table, shape), mul(entry, match_shape(np.int32(rows), typeof(entry))))
            return reshape(transpose(placed, (1, 0, 2)), (size * number,))

        return [joined(t, n) for t, n in zip(tables, (rows[0], 0, rows[1], 0))]


@dataclass(frozen=True)
class RaggedAllToAll(ExchangesRows):
    """Each device writes rows of its ``operand [n, ...]`` into the ``output [m, ...]`` of others along ``axes``. Slices
    of the operand may overlap, those of the output may not."""

    name: ClassVar[str] = "ragged_all_to_all"
    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ((0, 1),)
    takes_keys: ClassVar[bool] = True
    written_out_on_cpus: ClassVar[bool] = True

    def infer(self, operand: ShapedArray, output: ShapedArray, *tables: ShapedArray) -> ShapedArray:
        if operand.dtype != output.dtype:
            raise DTypeError(
                f"{self.name}: operand {operand} and output {output} must have one dtype; convert one with .astype"
            )
        if not operand.ndim or operand.ndim != output.ndim or operand.shape[1:] != output.shape[1:]:
            raise ShapeError(f"{self.name}: operand {operand} and output {output} must have rows of one shape")
        self.check_tables(*tables)
        return output

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        tables, (sent, kept, *_) = primals[2:], tangents
        if isinstance(sent, Zero):
            return self.bind(*primals), self._not_written(materialize(kept), tables)
        return self.bind(*primals), self.bind(sent, materialize(kept), *tables)

    def transpose(self, ct: Any, operand: Any, output: Any, *tables: Any) -> Cotangents:
        kept = self._not_written(ct, tables) if isinstance(output, Linear) else None
        if not isinstance(operand, Linear):
            return [None, kept, *(None for _ in tables)]
        back = RaggedSum(self.axes, self.sizes, operand.aval.shape[0]).bind(ct, *self.returning(*tables))
        return [back, kept, *(None for _ in tables)]

    def _not_written(self, x: Any, tables: Sequence[Any]) -> Any:
        """``x [m, ...]`` with zeros in the rows that arrive."""
        inside, _ = _places(self.exchanged(tables[2]), tables[3], typeof(x).shape[0])
        return select(broadcast_in_dim(reduce_or(inside, (1,)), typeof(x).shape, (0,)), zeros_like(x), x)

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        size = axis.size
        if all(d is None for d in dims[2:]):  # a row of the batch is one of all entries
            operand, output = (put_batch_dim(x, d, 1, size) for x, d in zip(args[:2], dims[:2]))
            return self.bind(operand, output, *args[2:]), 1
        operand, output, *tables = (put_batch_dim(x, d, 0, size) for x, d in zip(args, dims))
        n, m = (typeof(x).shape[1] for x in (operand, output))
        merged = [_merged(x) for x in (operand, output)]
        return reshape(self.bind(*merged, *self.slices_of_all(tables, size, (n, m))), typeof(output).shape), 0

    def expand(self, *operands: Value) -> list[Value]:
        return [self.by_gather(_bound, *operands)]

    def by_gather(self, bind: Bind, operand: Any, output: Any, *tables: Any) -> Any:
        """The result by a gather of all operands. ``bind`` does what a collective does among the same devices."""
        positions, (n, *row) = self.group_size, typeof(operand).shape
        rows, number = typeof(output).shape[0], typeof(tables[0]).shape[0]
        if 0 in (n, rows, number):
            return output
        inside, distance = _places(self.exchanged(tables[2], bind), tables[3], rows)
        sender = iota(_INDEX, (positions, number // positions), 0)
        before = reshape(mul(sender, match_shape(np.int32(n), typeof(sender))), (number,))
        first = add(self.exchanged(tables[0], bind), before)
        place = add(broadcast_in_dim(first, (rows, number), (1,)), distance)
        chosen = reduce_max(select(inside, place, match_shape(np.int32(-1), typeof(place))), (1,))
        arrived = lt(match_shape(np.int32(-1), typeof(chosen)), chosen)
        known = clamp(np.int32(0), chosen, np.int32(positions * n - 1))
        everyone = bind(AllGather(self.axes, self.sizes, 0), operand)
        taken = gather_along(everyone, broadcast_in_dim(known, (rows, *row), (0,)), 0)
        return select(broadcast_in_dim(arrived, (rows, *row), (0,)), taken, output)

    def emit(self, b: Builder, *operands: Emitted) -> Emitted | Sequence[Emitted]:
        groups = b.replica_groups(self.axes)
        return b.op("stablehlo.ragged_all_to_all", operands, b.out_avals, replica_groups=groups)[0]


@dataclass(frozen=True)
class RaggedSum(ExchangesRows):
    """The adjoint of :class:`RaggedAllToAll`: each device adds slices of its operand to ``rows`` rows of zeros of
    others. Slices of the operand may not overlap, those of the result may.

    If they do not overlap anywhere, there is one exchange, else one for each slice that a device gets.
    """

    rows: int
    name: ClassVar[str] = "ragged_sum"
    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ((0,),)
    written_out_on_cpus: ClassVar[bool] = True

    def infer(self, operand: ShapedArray, *tables: ShapedArray) -> ShapedArray:
        self.check_tables(*tables)
        return operand.update(shape=(self.rows, *operand.shape[1:]))

    def jvp(self, primals: Sequence[ArrayLike], tangents: Sequence[Tangent]) -> Dual:
        return self.bind(*primals), self.bind(tangents[0], *primals[1:])

    def transpose(self, ct: Any, operand: Any, *tables: Any) -> Cotangents:
        back = RaggedAllToAll(self.axes, self.sizes)
        zeros = materialize(Zero(operand.aval))
        return [back.bind(ct, zeros, *self.returning(*tables)), *(None for _ in tables)]

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        size = axis.size
        if all(d is None for d in dims[1:]):
            return self.bind(put_batch_dim(args[0], dims[0], 1, size), *args[1:]), 1
        operand, *tables = (put_batch_dim(x, d, 0, size) for x, d in zip(args, dims))
        _, n, *row = typeof(operand).shape
        op = RaggedSum(self.axes, self.sizes, size * self.rows)
        total = op.bind(_merged(operand), *self.slices_of_all(tables, size, (n, self.rows)))
        return reshape(total, (size, self.rows, *row)), 0

    def expand(self, operand: Value, *tables: Value) -> list[Value]:
        number = typeof(tables[0]).shape[0]
        overlap = _overlap(self.exchanged(tables[2]), tables[3])
        turns = _bound(Pmax(self.axes, self.sizes), select(overlap, np.int32(max(number, 1)), np.int32(1)))
        zeros = materialize(Zero(self.infer(*map(typeof, (operand, *tables)))))
        return [counted(self._turn, turns, [turns, operand, *tables], zeros)]

    def _turn(self, turn: Any, turns: Any, x: Any, starts: Any, sent: Any, targets: Any, gets: Any, total: Any) -> Any:
        """The total with what arrives in one of the turns: all, or a slice for each device, from devices in turn."""
        number, once = typeof(sent).shape[0], eq(turns, np.int32(1))
        count, each = np.int32(self.group_size), np.int32(number // self.group_size)
        me, distance, slice_ = axis_index_of(self.axes, self.sizes), div(turn, each), rem(turn, each)

        def only(sizes: Any, device: Any) -> Any:
            mine = broadcast_in_dim(add(mul(rem(device, count), each), slice_), (number,), ())
            mine = or_(broadcast_in_dim(once, (number,), ()), eq(iota(_INDEX, (number,), 0), mine))
            return select(mine, sizes, zeros_like(sizes))

        to, come = sub(add(me, count), distance), add(me, distance)
        zeros = materialize(Zero(typeof(total)))
        exchange = RaggedAllToAll(self.axes, self.sizes)
        return add(total, exchange.bind(x, zeros, starts, only(sent, to), targets, only(gets, come)))


def with_tables(op: RaggedAllToAll, operand: Any, output: Any, tables: Sequence[Any]) -> list[Any]:
    """The operands of ``op``, with tables of any integers.

    Raises:
      ShapeError: shapes do not fit each other or the number of devices.
      DTypeError: ``operand`` and ``output`` have different dtypes, or tables are not integers.
    """
    op.infer(*map(typeof, (operand, output, *tables)))
    return [operand, output, *(convert(t, _INDEX) for t in tables)]


def _merged(x: Any) -> Any:
    """``x`` with its first two dimensions as one."""
    size, n, *row = typeof(x).shape
    return reshape(x, (size * n, *row))


def _places(starts: Any, sizes: Any, rows: int) -> tuple[Any, Any]:
    """Whether each of ``rows`` rows is in each of the slices, and its distance from their first rows ``[rows, k]``."""
    shape = (rows, typeof(sizes).shape[0])
    starts, sizes = (broadcast_in_dim(t, shape, (1,)) for t in (starts, sizes))
    distance = sub(iota(_INDEX, shape, 0), starts)
    return and_(le(zeros_like(distance), distance), lt(distance, sizes)), distance


def _overlap(starts: Any, sizes: Any) -> Any:
    """Whether two of the slices have a row in common."""
    (number,) = typeof(sizes).shape
    empty = le(sizes, zeros_like(sizes))
    last = match_shape(np.int32(np.iinfo(np.int32).max), typeof(starts))
    first, end = Sort(0, 1).bind(select(empty, last, starts), select(empty, last, add(starts, sizes)))
    later, before = slice_in_dim(first, min(1, number), number), slice_in_dim(end, 0, max(number - 1, 0))
    return reduce_or(lt(later, before), (0,))
