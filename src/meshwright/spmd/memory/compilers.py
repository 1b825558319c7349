"""What compilers do differently that decides which arrays exist."""

from __future__ import annotations

from dataclasses import replace

from meshwright.core.records import dataclass
from meshwright.hardware.chips import CHIPS


@dataclass(frozen=True)
class Compiler:
    """How XLA compiles for a platform.

    ``narrow``: products and sums in 16 bits are computed as given, not in 32 bits between two conversions.
    ``by_bytes``: a value is computed in all of its users where that saves time, by what is read and written, reductions
    and expensive functions included. ``into_products``: matrix products compute their operands, and what follows them.
    ``swaps``: a convolution whose kernel has more positions than its input is computed with their roles exchanged.
    ``in_place``: a sum over devices takes the place of its operand.
    ``depth_first``: a value is computed just before the first that needs it, not as soon as it can be.
    ``in_parts``: an all-to-all takes and gives a part for each device. ``calls``: what is to be compiled apart is.
    ``windows``: many elements are reduced in windows first. ``without_products``: outer and inner products are computed
    elementwise. ``copies_transposed``: several results that are computed in another order than theirs are copied.
    ``tables``: the addresses of several results are one more.
    ``tiles``: arrays are in tiles, which pad them, and kernels choose which dimensions those are of.
    ``on_chip``: bytes of the memory that values are kept in while they are used; ``two_cores`` have one each.
    ``intensity``: operations of products that take as long as a byte of main memory.
    """

    narrow: bool = False
    by_bytes: bool = False
    into_products: bool = False
    depth_first: bool = False
    swaps: bool = False
    in_place: bool = False
    in_parts: bool = False
    calls: bool = False
    windows: bool = False
    without_products: bool = False
    copies_transposed: bool = False
    tables: bool = False
    tiles: bool = False
    on_chip: int = 0
    two_cores: bool = False
    intensity: float = 1.0


CPU = Compiler(
    swaps=True, in_parts=True, calls=True, windows=True, without_products=True, copies_transposed=True, tables=True
)
CUDA = Compiler(narrow=True, by_bytes=True, depth_first=True, in_place=True)
TPU = Compiler(narrow=True, by_bytes=True, into_products=True, depth_first=True, swaps=True, in_place=True)
#: MiB of vector memory that a device of a TPU has, and that kernels keep for themselves (``scoped_vmem_limit_kib``)
_VECTOR_MEMORY = {"v4": (32, 16), "v5e": (128, 16), "v5p": (64, 16), "v6e": (128, 32), "tpu7x": (64, 32)}
#: whose two cores programs see as one device
_TWO_CORES = ("v4", "v5p")


def compiler_for(platform: str, chip: str) -> Compiler:
    """That of a platform, for a chip."""
    if platform == "tpu":
        whole, kept = _VECTOR_MEMORY.get(chip, (32, 16))
        known = CHIPS.get(chip, CHIPS["v5e"])
        intensity = known.products["bfloat16"] / known.memory_bandwidth
        on_chip = (whole - kept) * 2**20
        return replace(TPU, tiles=True, on_chip=on_chip, two_cores=chip in _TWO_CORES, intensity=intensity)
    return CUDA if platform == "cuda" else CPU
