"""Elementwise functions that only programs from elsewhere use. They have no derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from meshwright.errors import RuleError
from meshwright.ir.reading import READERS, reads
from meshwright.ops.elementwise import Elementwise


@dataclass(frozen=True)
class _NotDifferentiated(Elementwise):
    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        raise RuleError(f"{self.name}: comes from a loaded program and has no derivative rule; give it a custom_jvp")


@dataclass(frozen=True)
class BesselI1e(_NotDifferentiated):
    """Modified Bessel function of order 1, times ``exp(-abs(x))``."""

    name: ClassVar[str] = "bessel_i1e"
    hlo: ClassVar[str] = "chlo.bessel_i1e"
    accepts: ClassVar[tuple[str, ...]] = ("f",)


@dataclass(frozen=True)
class MulHi(_NotDifferentiated):
    """The upper half of the bits of a product of integers."""

    name: ClassVar[str] = "mulhi"
    hlo: ClassVar[str] = "chlo.mulhi"
    accepts: ClassVar[tuple[str, ...]] = ("i", "i")


@reads("chlo.bessel_i1e")
def _read_bessel_i1e(r: Any) -> Any:
    return BesselI1e().bind(*r.operands)


@reads("chlo.mulhi")
def _read_mulhi(r: Any) -> Any:
    return MulHi().bind(*r.operands)


READERS["chlo.tan"] = READERS["stablehlo.tan"]
