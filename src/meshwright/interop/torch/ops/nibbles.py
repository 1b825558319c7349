"""Weights of four bits, two in a byte, in the order in which torch packs them on this processor.

The order depends on the instructions that torch found (rows go in blocks of as many as a register holds), and nothing
but torch's own packing says what it is. So packing is asked: rows are packed that hold digits of their own numbers.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import numpy as np
import torch

from meshwright import numpy as mnp
from meshwright.core import dtypes
from meshwright.errors import RuleError
from meshwright.interop.torch.ops.products import linear
from meshwright.interop.torch.promotion import cast
from meshwright.interop.torch.registry import register

#: consecutive blocks of rows: how many blocks, and where in one block's nibbles of a column each of its rows is
Blocks = tuple[tuple[int, tuple[int, ...]], ...]
#: columns of what is packed to learn the order
_COLUMNS = 4


def _pack(weight: np.ndarray) -> np.ndarray:
    """As torch packs on this processor: ``[rows, columns]`` into half as many bytes, here as a row of nibbles."""
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(torch.from_numpy(weight), 2).numpy().reshape(-1)
    return np.stack([packed & 15, packed >> 4], -1).reshape(-1)


@cache
def _blocks(rows: int, columns: int) -> Blocks:
    """The order of a weight of this shape.

    Raises:
      RuleError: it is none of rows in blocks, column by column.
    """
    found = _found(rows)
    blocks = tuple((len(list(same)), order) for order, same in itertools.groupby(found))
    sample = np.random.default_rng(0).integers(0, 16, (rows, columns), np.int32)
    if sum(map(len, found)) != rows or not np.array_equal(_unpacked(_pack(sample), rows, columns, blocks), sample):
        raise RuleError(
            "torch packs weights of four bits on this processor in an order that is not known here: keep nibbles, two "
            "in a byte of uint8, and take them apart in the module (w & 15, w >> 4)"
        )
    return blocks


def _found(rows: int) -> list[tuple[int, ...]]:
    """The order in each block of rows, as far as there are blocks."""
    shape = rows, _COLUMNS
    column = _pack(np.ascontiguousarray(np.broadcast_to(np.arange(_COLUMNS, dtype=np.int32), shape)))
    row = np.zeros(rows * _COLUMNS, np.int64)
    for digit in range(0, rows.bit_length(), 4):
        numbers = (np.arange(rows, dtype=np.int32)[:, None] >> digit) & 15
        row += _pack(np.ascontiguousarray(np.broadcast_to(numbers, shape))).astype(np.int64) << digit
    orders: list[tuple[int, ...]] = []
    start = 0
    while start < row.size:
        size = int(np.argmax(np.append(column[start:] != 0, True)))  # a block begins with its first column
        if size == 0:
            break
        orders.append(tuple(np.argsort(row[start : start + size]).tolist()))
        start += size * _COLUMNS
    return orders


def _unpacked(nibbles: Any, rows: int, columns: int, blocks: Blocks) -> Any:
    """``[rows, columns]`` of the nibbles as they lie."""
    parts, start = [], 0
    for count, order in blocks:
        size = len(order)
        part = nibbles[start : start + count * size * columns].reshape(count, columns, size)
        parts.append(part[:, :, np.array(order)].swapaxes(1, 2).reshape(count * size, columns))
        start += count * size * columns
    return parts[0] if len(parts) == 1 else (np if isinstance(nibbles, np.ndarray) else mnp).concatenate(parts)


@register("aten._weight_int4pack_mm_for_cpu")
def product(self: Any, mat2: Any, qGroupSize: int, qScaleAndZeros: Any) -> Any:
    """``self @ w.T`` with ``w = (nibble - 8) * scale + zero``, a scale and a zero for each group of columns."""
    rows, columns = mat2.shape[0], 2 * mat2.shape[1]
    flat = mat2.reshape(-1)
    nibbles = mnp.stack([flat & 15, flat >> 4], -1).reshape(-1)
    whole = _unpacked(nibbles, rows, columns, _blocks(rows, columns))
    numbers = (cast(whole, dtypes.float32) - 8).reshape(rows, -1, qGroupSize)
    scale, zero = (mnp.swapaxes(cast(qScaleAndZeros[..., i], dtypes.float32), 0, 1)[..., None] for i in (0, 1))
    weight = (numbers * scale + zero).reshape(rows, columns)
    return cast(linear(cast(self, dtypes.float32), weight), self.dtype)
