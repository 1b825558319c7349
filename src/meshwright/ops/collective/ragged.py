"""Exchanges of slices whose sizes are known only at run time (``ragged_all_to_all``).

No program with static shapes sends only the requested rows: operands are gathered, and each device selects its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.errors import DTypeError, ShapeError
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.clamp import clamp
from meshwright.ops.elementwise.table import add, and_, convert, div, le, lt, mul, scalar_like, select, sub
from meshwright.ops.indexing.gather_scatter import gather_along
from meshwright.ops.reduce.reductions import reduce_max
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, iota
from meshwright.ops.shape.rearrange import reshape

_TABLES = "input_offsets", "send_sizes", "output_offsets", "recv_sizes"


def exchanged_rows(
    operand: Any, output: Any, tables: Sequence[Any], gather: Callable[[Any], Any], exchange: Callable[[Any], Any]
) -> Any:
    """Write received rows into ``output``.

    ``gather`` returns the arrays of all devices of a group along a new dimension 0; ``exchange`` sends each device a
    tile and concatenates received ones. ``tables`` are the offsets and sizes of the function.

    Raises:
      ShapeError: shapes do not fit each other or the number of devices.
      DTypeError: ``operand`` and ``output`` have different dtypes, or tables are not integers.
    """
    name = "ragged_all_to_all"
    x, y = typeof(operand), typeof(output)
    if x.dtype != y.dtype:
        raise DTypeError(f"{name}: operand {x} and output {y} must have one dtype; convert one with .astype")
    if not x.ndim or x.ndim != y.ndim or x.shape[1:] != y.shape[1:]:
        raise ShapeError(f"{name}: operand {x} and output {y} must have rows of one shape")
    operands = gather(operand)
    positions, n = typeof(operands).shape[:2]
    given = zip(_TABLES, tables, strict=True)
    starts, sent, targets, sizes = (_table(name, what, table, positions) for what, table in given)
    slices, rows = typeof(sizes).shape[0], y.shape[0]
    if not all(typeof(t).shape == (slices,) for t in (starts, sent, targets)):
        types = ", ".join(str(typeof(t)) for t in tables)
        raise ShapeError(f"{name}: offsets and sizes must be as many, got {types}")
    if 0 in (n, rows, slices):
        return output
    starts, targets = exchange(starts), exchange(targets)
    row, number = (iota(np.int32, (rows, slices), d) for d in (0, 1))
    starts, targets, sizes = (broadcast_in_dim(t, (rows, slices), (1,)) for t in (starts, targets, sizes))
    inside = and_(le(targets, row), lt(row, add(targets, sizes)))
    sender = div(number, scalar_like(slices // positions, number))
    place = add(mul(sender, scalar_like(n, sender)), add(starts, sub(row, targets)))
    places = reduce_max(select(inside, place, scalar_like(-1, place)), (1,))
    arrived = lt(scalar_like(-1, places), places)
    known = clamp(scalar_like(0, places), places, scalar_like(positions * n - 1, places))
    taken = gather_along(reshape(operands, (positions * n, *x.shape[1:])), broadcast_in_dim(known, y.shape, (0,)), 0)
    return select(broadcast_in_dim(arrived, y.shape, (0,)), taken, output)


def _table(name: str, what: str, given: Any, positions: int) -> Any:
    """Offsets or sizes as int32.

    Raises:
      ShapeError, DTypeError: invalid offsets or sizes.
    """
    aval = typeof(given)
    if not dtypes.is_integer(aval.dtype):
        raise DTypeError(f"{name}: {what} must be integers, got {aval}")
    if aval.ndim != 1 or aval.shape[0] % positions:
        raise ShapeError(f"{name}: {what} must have shape [k], k a multiple of the {positions} positions, got {aval}")
    return convert(given, np.dtype(np.int32))
