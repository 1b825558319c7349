"""What compilers do differently that decides which arrays exist."""

from __future__ import annotations

from dataclasses import replace

from meshwright.core.records import dataclass


@dataclass(frozen=True)
class Compiler:
    """How XLA compiles for a platform.

    ``narrow``: products and sums in 16 bits are computed as given, not in 32 bits between two conversions.
    ``by_bytes``: a value is computed in all of its users where that saves time, by what is read and written, reductions
    and expensive functions included. ``into_products``: matrix products compute their operands, and what follows them.
    ``swaps``: a convolution whose kernel has more positions than its input is computed with their roles exchanged.
    ``in_place``: a sum over devices takes the place of its operand.
    ``depth_first``: a value is computed just before the first that needs it, not as soon as it can be.
    ``on_chip``: bytes of the memory that arguments and results pass through.
    """

    narrow: bool = False
    by_bytes: bool = False
    into_products: bool = False
    depth_first: bool = False
    swaps: bool = False
    in_place: bool = False
    on_chip: int = 0


CPU = Compiler(swaps=True)
CUDA = Compiler(narrow=True, by_bytes=True, depth_first=True, in_place=True)
TPU = Compiler(narrow=True, by_bytes=True, into_products=True, depth_first=True, swaps=True, in_place=True)
#: MiB of vector memory that a device of a TPU has
_VECTOR_MEMORY = {"v4": 32, "v5e": 128, "v5p": 64, "v6e": 128, "tpu7x": 64}


def compiler_for(platform: str, chip: str) -> Compiler:
    """That of a platform, for a chip."""
    if platform == "tpu":
        return replace(TPU, on_chip=_VECTOR_MEMORY.get(chip, 16) * 2**20)
    return CUDA if platform == "cuda" else CPU
