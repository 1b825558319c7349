"""Elementwise functions that only CHLO has, or represents in its own way."""

from __future__ import annotations

from typing import Any, ClassVar

from meshwright.core import dtypes
from meshwright.core.records import dataclass
from meshwright.ir.reading import READERS, reads
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.base import Elementwise
from meshwright.ops.elementwise.table import conj, square


@dataclass(frozen=True)
class MulHi(Elementwise):
    """The upper half of the bits of an integer product.

    Example:
      >>> int(lax.mulhi(np.int32(2**20), np.int32(2**20)))
      256
    """

    name: ClassVar[str] = "mulhi"
    hlo: ClassVar[str] = "chlo.mulhi"
    accepts: ClassVar[tuple[str, ...]] = ("iu", "iu")


mulhi = MulHi()


@reads("chlo.mulhi")
def _read_mulhi(r: Any) -> Any:
    return mulhi(*r.operands)


READERS["chlo.tan"] = READERS["stablehlo.tan"]


@reads("chlo.square")
def _read_square(r: Any) -> Any:
    return square.bind(*r.operands)


@reads("chlo.conj")
def _read_conj(r: Any) -> Any:
    (x,) = r.operands
    return conj.bind(x) if dtypes.is_complex(typeof(x).dtype) else x
