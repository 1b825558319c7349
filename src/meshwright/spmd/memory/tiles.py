"""Tiled array sizes: TPUs store arrays in tiles of 8 × 128 elements, so small and narrow arrays are padded.

Validated with libtpu 0.0.42: exact to the byte for the arguments of seven programs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod

from meshwright.core.avals import ShapedArray

#: elements along the minor dimension of a tile, along the next one, and of a tile of a vector
LANES, SUBLANES, _VECTOR = 128, 8, 1024
_SCALAR = 512
#: narrower types pack several rows into a word
_WORD = 4


def tiled_bytes(aval: ShapedArray) -> int:
    """The bytes of an array in the layout with the least padding; any two dimensions may be tiled."""
    size = aval.dtype.itemsize
    if aval.ndim == 0:
        return _SCALAR
    if aval.ndim == 1:
        return size * _up(aval.shape[0], min(_VECTOR, max(LANES, _power(aval.shape[0]))))
    return min(tiled(aval, *pair) for pair in itertools.permutations(aval.shape, 2))


def tiled(aval: ShapedArray, minor: int, rows: int) -> int:
    """The bytes of an array tiled in the dimensions ``minor`` (lanes) and ``rows``."""
    size = aval.dtype.itemsize
    return _padded(aval.size, minor, rows, _tile_rows(rows, size)) * size


def in_tiles(shape: Sequence[int], minor: int, rows: int) -> int:
    """The elements of an array of words, whose dimensions numbered ``minor`` and ``rows`` are tiled, with padding."""
    return _padded(prod(shape), shape[minor], shape[rows], _tile_rows(shape[rows], _WORD))


def in_whole_tiles(aval: ShapedArray, minor: int, rows: int) -> int:
    """The elements of an array in tiles of 8 × 128 in the dimensions ``minor`` (lanes) and ``rows``, however few."""
    return _padded(aval.size, minor, rows, SUBLANES)


def _padded(size: int, minor: int, rows: int, height: int) -> int:
    return size // max(1, minor * rows) * _up(rows, height) * _up(minor, LANES)


def _tile_rows(rows: int, size: int) -> int:
    return min(SUBLANES, max(_power(rows), _WORD // size))


def _power(n: int) -> int:
    """The smallest power of two that is at least ``n``."""
    return 1 << max(0, n - 1).bit_length()


def _up(n: int, tile: int) -> int:
    return -(-n // tile) * tile
