"""Elementwise functions that only CHLO has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from meshwright.ir.reading import READERS, reads
from meshwright.ops.elementwise import Elementwise


@dataclass(frozen=True)
class MulHi(Elementwise):
    """The upper half of the bits of a product of integers.

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
