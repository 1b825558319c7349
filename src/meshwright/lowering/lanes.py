"""All-to-alls of rows that fill the lanes of a TPU.

A TPU's memory is tiled: rows of 128 lanes, which the minor dimension of an array fills. XLA lays tiles of narrower rows
out anew before it sends them, and again what arrives, in kernels that fuse with nothing (a reduction of a dimension of
size 1 among them). Here what a device sends to another is a block of full rows to start with. Estimated cycles of the
kernels of ``y = x * x``, sent, ``y * y`` on a v5e, by libtpu 0.0.42, of 8 devices:

=====================================================  ======  =====
operand, type, dimensions that are split and joined    before  here
=====================================================  ======  =====
``(256, 32)``, float32, 0 and 1                          8505   4098
``(256, 32)``, complex64, 0 and 1                       11471   4318
``(64, 8, 32, 16)``, float32, 1 and 0                   64193  22868
``(16, 64, 64)``, float32, 1 and 0                      17419   8405
``(64, 96)``, float32, 0 and 1                           3798  *3932*
``(512, 64)``, bfloat16, 1 and 0                         4761  *6894*
``(256, 1024)``, float32, 0 and 1                       14424  *16556*
=====================================================  ======  =====

The last three stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn
from meshwright.ir.rewrite import replaced_in_all, written_out
from meshwright.ops.collective.exchange import AllToAll
from meshwright.ops.shape.rearrange import move_dim, reshape

#: lanes of the vector memory of a TPU
LANES = 128
#: the bytes of elements of which a row of lanes holds one each; shorter ones are packed, and sent as they are
_PACKED_BELOW = 4


def fill_lanes(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program in which all-to-alls of narrow rows send rows of 128 elements; the same object if it has none."""
    return replaced_in_all(jaxpr, lambda _: _in_rows)


def _in_rows(eqn: JaxprEqn) -> Sequence[JaxprEqn]:
    op = eqn.op
    if not isinstance(op, AllToAll) or not _is_narrow(op, eqn.invars[0].aval):
        return ()

    def sent(x: Any) -> list[Any]:
        s, c, n = op.split_dimension, op.concat_dimension, op.group_size
        shape = eqn.invars[0].aval.shape
        tile = (*shape[:s], shape[s] // n, *shape[s + 1 :])
        x = move_dim(reshape(x, (*shape[:s], n, *tile[s:])), s, 0)
        x = AllToAll(op.axes, op.sizes, 0, 0).bind(reshape(x, (x.size // LANES, LANES)))
        return [reshape(move_dim(reshape(x, (n, *tile)), 0, c), eqn.outvars[0].aval.shape)]

    return written_out(eqn, sent, dict(zip(op.axes, op.sizes)))


def _is_narrow(op: AllToAll, x: ShapedArray) -> bool:
    """Whether rows of what a device sends to another fill less than half of the lanes, and together whole ones."""
    if x.dtype.itemsize < _PACKED_BELOW:
        return False
    *_, row = (n // op.group_size if d == op.split_dimension else n for d, n in enumerate(x.shape))
    return -row % LANES >= row and prod(x.shape) % (op.group_size * LANES) == 0
