"""Differences between XLA's compilers that affect which buffers exist."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from meshwright.core.records import dataclass
from meshwright.hardware.chips import CHIPS
from meshwright.sharding import AbstractMesh

#: elements of a matrix's row for each of its largest ones that TPUs select, without sorting the row; measured
_SELECTED = 75


@dataclass(frozen=True)
class Compiler:
    """The behavior of XLA's compiler for a ``platform``, for which ops are emitted; ``chip`` is the one compiled for.

    ``narrow``: 16-bit products and sums are computed as given, not in 32 bits with conversions.
    ``by_bytes``: priority fusion: a producer (even a reduction or an expensive function) is fused into all of its users
    if a cost model of bytes read and written predicts a gain.
    ``keeps_rows``: normalizations of rows are one kernel (:mod:`meshwright.spmd.memory.normalizations`).
    ``into_products``: operands and epilogues are fused into matrix products.
    ``swaps``: a convolution with more kernel than input positions is computed with their roles exchanged.
    ``in_place``: an all-reduce aliases its operand.
    ``depth_first``: a value is computed just before its first use, not as early as possible.
    ``in_parts``: an all-to-all has one operand and result per device. ``calls``: calls marked as such stay calls.
    ``windows``: large reductions are first done in windows. ``copies_transposed``: results computed in another layout
    are copied if there are several.
    ``sums_vectors``: products with vectors are computed elementwise, and summed up.
    ``columns``: a vector in a product is a matrix of one column.
    ``joins_factors``: of two known factors, their product is one. ``moves_late``: reshapes and transposes come after
    elementwise operations.
    ``rows_of_places``: gathers and scatters read indices with one row for each slice.
    ``tables``: several results have a table of addresses.
    ``hoists``: operations on values that a loop does not change are moved before it.
    ``trims_loops``: loops carry a value that they do not change once, also if it is given several times, and make
    constants in their bodies. Each computation has its own arrays of constants.
    ``merges``: bytes up to which products that read the same matrix become one; 0: they do not.
    ``accumulates``: products are added to matrices in their place.
    ``combines``: the collectives that are combined, each up to as many bytes as ``together``.
    ``joins_sums``: all-reduces that are combined are one, of a concatenation.
    ``moves_narrow``: what is converted to a wider type is so after a collective that only moves it. Source: XLA's
    ``CollectiveQuantizer``.
    ``library_from``: elements of two matrices from which their product is a library call; smaller ones are loops.
    ``bitcasts``: arrays lie in the orders in which transposes move nothing.
    ``either_order``: matrices of products lie in either order, also if several dimensions are merged to one of theirs.
    ``workspace``: bytes that a library needs for each matrix product while it runs.
    ``tupled``: products are library calls whose result is a part of a tuple, which nothing is written over.
    ``library_convolutions``: convolutions are those of cuDNN, with copies into its orders.
    ``selects``: the largest elements of rows are found by sorting if they are more than that many; 0: never.
    ``row``: elements of the rows in which cumulative operations are computed.
    ``counts_live``: the peak that the compiler reports is that of live values, without the gaps between them.
    ``tiles``: arrays are tiled and padded, and kernels choose the tiled dimensions.
    ``on_chip``: bytes of vector memory, where values are kept while in use; with ``two_cores``, each core has its own.
    ``intensity``: the arithmetic operations of products that take as long as moving a byte of main memory.
    """

    platform: str = "cpu"
    chip: str = ""
    narrow: bool = False
    by_bytes: bool = False
    keeps_rows: bool = False
    into_products: bool = False
    depth_first: bool = False
    swaps: bool = False
    in_place: bool = False
    in_parts: bool = False
    calls: bool = False
    windows: bool = False
    copies_transposed: bool = False
    sums_vectors: bool = False
    columns: bool = False
    joins_factors: bool = False
    moves_late: bool = False
    rows_of_places: bool = False
    tables: bool = False
    hoists: bool = True
    trims_loops: bool = False
    merges: int = 0
    accumulates: bool = False
    combines: tuple[str, ...] = ("all_reduce",)
    together: float = math.inf
    joins_sums: bool = False
    moves_narrow: bool = False
    library_from: int = 0
    bitcasts: bool = False
    either_order: bool = False
    workspace: int = 0
    tupled: bool = False
    library_convolutions: bool = False
    selects: int = 0
    row: int = 16
    counts_live: bool = False
    tiles: bool = False
    on_chip: int = 0
    two_cores: bool = False
    intensity: float = 1.0

    def sorts(self, shape: Sequence[int], k: int) -> bool:
        """Whether the ``k`` largest elements of rows are found by sorting the rows."""
        if self.tiles:
            return len(shape) != 2 or k * _SELECTED > shape[-1]
        return 0 < self.selects < k


CPU = Compiler(
    swaps=True,
    in_parts=True,
    calls=True,
    windows=True,
    copies_transposed=True,
    columns=True,
    joins_factors=True,
    moves_late=True,
    rows_of_places=True,
    tables=True,
)
CUDA = Compiler(
    platform="cuda",
    narrow=True,
    by_bytes=True,
    keeps_rows=True,
    depth_first=True,
    in_place=True,
    sums_vectors=True,
    hoists=False,
    trims_loops=True,
    merges=32 * 2**20,
    accumulates=True,
    combines=("all_gather", "all_reduce", "collective_permute", "reduce_scatter"),
    together=30 * 2**20 + 7,
    joins_sums=True,
    moves_narrow=True,
    library_from=100,
    bitcasts=True,
    either_order=True,
    workspace=4 * 2**20,
    tupled=True,
    library_convolutions=True,
    selects=16,
    counts_live=True,
)
TPU = Compiler(
    platform="tpu",
    sums_vectors=True,
    narrow=True,
    by_bytes=True,
    into_products=True,
    depth_first=True,
    swaps=True,
    in_place=True,
    row=128,
)
#: MiB of vector memory that a device of a TPU has, and that kernels keep for themselves (``scoped_vmem_limit_kib``)
_VECTOR_MEMORY = {"v4": (32, 16), "v5e": (128, 16), "v5p": (64, 16), "v6e": (128, 32), "tpu7x": (64, 32)}
#: whose two cores programs see as one device
_TWO_CORES = ("v4", "v5p")


def platform_of(mesh: AbstractMesh) -> str:
    """The platform of the machine of a mesh; ``"cpu"`` if it has none, as of the virtual mesh."""
    return "cpu" if mesh.machine is None else mesh.machine.chip.platform


def compiler_of(mesh: AbstractMesh) -> Compiler:
    """The compiler model for the machine of a mesh; that for CPUs if it has none."""
    return CPU if mesh.machine is None else compiler_for(platform_of(mesh), mesh.machine.chip.name)


def compiler_for(platform: str, chip: str) -> Compiler:
    """The compiler model for a platform and chip."""
    if platform == "tpu":
        whole, kept = _VECTOR_MEMORY.get(chip, (32, 16))
        known = CHIPS.get(chip, CHIPS["v5e"])
        intensity = known.products["bfloat16"] / known.memory_bandwidth
        on_chip = (whole - kept) * 2**20
        return replace(TPU, chip=chip, tiles=True, on_chip=on_chip, two_cores=chip in _TWO_CORES, intensity=intensity)
    return replace(CUDA, chip=chip) if platform == "cuda" else CPU
