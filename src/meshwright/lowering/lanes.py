"""All-to-alls of rows that fill the lanes of a TPU.

A TPU's memory is tiled: rows of 128 lanes, which the minor dimension of an array fills. XLA lays tiles of narrower rows
out anew before it sends them, and again what arrives, in kernels that fuse with nothing (a reduction of a dimension of
size 1 among them). Here what a device sends to another is a block of full rows to start with. Estimated cycles of the
kernels of ``y = x * x``, sent, ``y * y`` on a v5e, by libtpu 0.0.42, of 8 devices:

=====================================================  ======  =======
operand, type, dimensions that are split and joined    before  here
=====================================================  ======  =======
``(256, 32)``, float32, 0 and 1                          8505   4098
``(256, 32)``, complex64, 0 and 1                       11471   4318
``(64, 8, 32, 16)``, float32, 1 and 0                   64193  14560
``(64, 64, 64, 3)``, float32, 0 and 1                  180977  72824
``(16, 64, 64)``, float32, 1 and 0                      17419   8405
``(512, 128)``, float32, 1 and 0                        10125  (10658)
``(64, 96)``, float32, 0 and 1                           3798  (3932)
``(512, 64)``, bfloat16, 1 and 0                         4761  (6894)
``(256, 1024)``, float32, 0 and 1                       14424  (16556)
=====================================================  ======  =======

The last four stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn
from meshwright.ir.rewrite import replaced_in_all, written_out
from meshwright.ops.collective.exchange import AllToAll
from meshwright.ops.shape.rearrange import Transpose, reshape

#: lanes of the vector memory of a TPU
LANES = 128
#: rows of lanes that one tile of the memory has, for elements of four bytes
SUBLANES = 8
#: the bytes of elements of which a row of lanes holds one each; shorter ones are packed, and sent as they are
_PACKED_BELOW = 4


def fill_lanes(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program in which all-to-alls of narrow rows send rows of 128 elements; the same object if it has none."""
    return replaced_in_all(jaxpr, lambda _: _in_rows)


def _in_rows(eqn: JaxprEqn) -> Sequence[JaxprEqn]:
    op = eqn.op
    if not isinstance(op, AllToAll):
        return ()
    s, c, n = op.split_dimension, op.concat_dimension, op.group_size
    operand = eqn.invars[0].aval
    shape = operand.shape
    tile = (*shape[:s], shape[s] // n, *shape[s + 1 :])
    if not _is_narrow(tile, operand.dtype):
        return ()
    order = _wide_order(tile)

    def sent(x: Any) -> list[Any]:
        tiles = Transpose((s, *(d + (d >= s) for d in order))).bind(reshape(x, (*shape[:s], n, *tile[s:])))
        rows = AllToAll(op.axes, op.sizes, 0, 1).bind(reshape(tiles, (n, prod(tile) // LANES, LANES)))
        back = [order.index(d) + 1 for d in range(len(tile))]
        back.insert(c, 0)
        received = reshape(rows, (n, *(tile[d] for d in order)))
        return [reshape(Transpose(tuple(back)).bind(received), eqn.outvars[0].aval.shape)]

    return written_out(eqn, sent, dict(zip(op.axes, op.sizes)))


def _wide_order(tile: Sequence[int]) -> list[int]:
    """The dimensions of a tile in the order in which they are sent.

    The largest is last, so that little of what is laid out in rows of lanes is padding; the one before it fills
    sublanes, or is the second largest.
    """
    *rest, last = sorted(range(len(tile)), key=lambda d: (tile[d], d))
    order = sorted(rest)
    if order and tile[order[-1]] % SUBLANES:
        order = [*(d for d in order if d != rest[-1]), rest[-1]]
    return [*order, last]


def _is_narrow(tile: Sequence[int], dtype: np.dtype) -> bool:
    """Whether rows of what a device sends to another fill less than half of the lanes, and together whole ones."""
    if dtype.itemsize < _PACKED_BELOW or prod(tile) % LANES:
        return False
    matrix = [n for n in tile if n > 1]  # XLA turns one whose columns fill the lanes
    return -tile[-1] % LANES >= tile[-1] and (len(matrix) > 2 or all(n % LANES for n in matrix))
