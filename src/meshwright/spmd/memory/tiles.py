"""Tiled array sizes: TPUs store arrays in tiles of 8 × 128 elements, so small and narrow arrays are padded.

Validated with libtpu 0.0.42: exact to the byte for the arguments of seven programs.
"""

from __future__ import annotations

import itertools

from meshwright.core.avals import ShapedArray

#: elements along the minor dimension of a tile, along the next one, and of a tile of a vector
_LANES, _SUBLANES, _VECTOR = 128, 8, 1024
_SCALAR = 512
#: narrower types pack several rows into a word
_WORD = 4


def tiled_bytes(aval: ShapedArray) -> int:
    """The bytes of an array in the layout with the least padding; any two dimensions may be tiled."""
    size = aval.dtype.itemsize
    if aval.ndim == 0:
        return _SCALAR
    if aval.ndim == 1:
        return size * _up(aval.shape[0], min(_VECTOR, max(_LANES, _power(aval.shape[0]))))
    return min(tiled(aval, *pair) for pair in itertools.permutations(aval.shape, 2))


def alike(aval: ShapedArray, whole: ShapedArray) -> int:
    """The bytes of an array, tiled in the dimensions in which ``whole``, of the same rank, has the least padding."""
    if aval.ndim < 2:
        return tiled_bytes(aval)
    pairs = itertools.permutations(reversed(range(aval.ndim)), 2)
    minor, rows = min(pairs, key=lambda pair: tiled(whole, *(whole.shape[d] for d in pair)))
    return tiled(aval, aval.shape[minor], aval.shape[rows])


def stacked_bytes(aval: ShapedArray, step: int) -> int:
    """The bytes of an array that is used one element at a time along the dimension ``step``."""
    part = tuple(n for d, n in enumerate(aval.shape) if d != step)
    if not part:
        return tiled_bytes(aval)
    if len(part) == 1:
        return tiled(aval, *part, aval.shape[step])
    return aval.shape[step] * tiled_bytes(aval.update(shape=part))


def convolution_bytes(aval: ShapedArray) -> int:
    """The bytes of the input or the result of a convolution, ``[batch, positions…, features]``.

    Features and batch are along the two dimensions of tiles. If the batch does not fill the rows of tiles, features and
    positions may be.
    """
    batch, *positions, features = aval.shape
    rows = (batch, *positions) if batch < _SUBLANES else (batch,)
    return min(tiled(aval, batch, features), *(tiled(aval, features, n) for n in rows))


def tiled(aval: ShapedArray, minor: int, rows: int) -> int:
    """The bytes of an array tiled in the dimensions ``minor`` (lanes) and ``rows``."""
    size = aval.dtype.itemsize
    return aval.size // max(1, minor * rows) * _up(rows, _tile_rows(rows, size)) * _up(minor, _LANES) * size


def _tile_rows(rows: int, size: int) -> int:
    return min(_SUBLANES, max(_power(rows), _WORD // size))


def _power(n: int) -> int:
    """The smallest power of two that is at least ``n``."""
    return 1 << max(0, n - 1).bit_length()


def _up(n: int, tile: int) -> int:
    return -(-n // tile) * tile
