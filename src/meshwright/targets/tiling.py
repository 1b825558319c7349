"""What hardware adds to a prediction of memory.

TPUs keep arrays in tiles of 8 × 128 elements, so that small and narrow ones are padded: measured on libtpu 0.0.42, the
arguments of seven programs to the byte. On GPUs matrix products have a workspace, one for all of a program, since they
run one after the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import ClosedJaxpr, all_eqns
from meshwright.spmd.memory.predict import Memory

#: elements along the minor dimension of a tile, along the next one, and of a tile of a vector
_LANES, _SUBLANES, _VECTOR = 128, 8, 1024
_SCALAR = 512
#: what XLA gives cuBLAS for a product, by the text of compiled programs
_WORKSPACE = 4 * 2**20
#: rows of narrower types share a word
_WORD = 4


def tiled_bytes(aval: ShapedArray) -> int:
    """Bytes of an array in the layout that pads it least: any two dimensions may be those of the tiles."""
    size = aval.dtype.itemsize
    if aval.ndim == 0:
        return _SCALAR
    if aval.ndim == 1:
        return size * _up(aval.shape[0], min(_VECTOR, max(_LANES, _power(aval.shape[0]))))
    return min(
        aval.size // max(1, minor * rows) * _up(rows, _tile_rows(rows, size)) * _up(minor, _LANES) * size
        for minor, rows in itertools.permutations(aval.shape, 2)
    )


def tiled_memory(memory: Memory, ins: Iterable[ShapedArray], outs: Iterable[ShapedArray]) -> Memory:
    """A prediction with arguments and results in tiles; what lies in donated arguments grows with them."""
    arguments, results = sum(map(tiled_bytes, ins)), sum(map(tiled_bytes, outs))
    share = memory.alias_bytes / memory.output_bytes if memory.output_bytes else 0.0
    return replace(memory, argument_bytes=arguments, output_bytes=results, alias_bytes=int(share * results))


def with_workspace(memory: Memory, has_products: bool) -> Memory:
    """A prediction with the workspace of the matrix products of a GPU."""
    return replace(memory, temp_bytes=memory.temp_bytes + _WORKSPACE) if has_products else memory


def hardware_memory(memory: Memory, jaxpr: ClosedJaxpr, platform: str) -> Memory:
    """A prediction with what ``platform`` adds to it."""
    if platform == "tpu":
        return tiled_memory(memory, jaxpr.in_avals, jaxpr.out_avals)
    return with_workspace(memory, platform == "cuda" and any(e.op.name == "dot_general" for e in all_eqns(jaxpr.jaxpr)))


def _tile_rows(rows: int, size: int) -> int:
    return min(_SUBLANES, max(_power(rows), _WORD // size))


def _power(n: int) -> int:
    """The next power of two."""
    return 1 << max(0, n - 1).bit_length()


def _up(n: int, tile: int) -> int:
    return -(-n // tile) * tile
