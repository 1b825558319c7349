"""Writes files in the format of ``safetensors``: a JSON header, followed by the bytes of the arrays.

The library can read these files. They are written here, one array after the other, because the library copies each
array. The header contains the file's name, so that it cannot be confused with another file. Files are read by
:mod:`~meshwright.checkpoint_io.data`.
"""

from __future__ import annotations

import io
import json
import math
import os
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.core.records import dataclass

#: the format's names of dtypes; others are written as bytes
_NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
#: the key in a header for information on the file
METADATA = "__metadata__"
#: the number of bytes that are written or read at a time
BLOCK = 1 << 24
#: the number of bytes up to which a checksum is not left to another thread
_SMALL = 1 << 16
#: the alignment of arrays in memory that XLA requires
_ALIGNMENT = 64


@dataclass
class Block:
    """An array to write under a name. ``value()`` returns it, so that only one array at a time is in memory."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    value: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def described(shape: Sequence[int], dtype: np.dtype, at: int) -> dict[str, Any]:
    """The header's entry for an array whose bytes start at offset ``at``."""
    nbytes = math.prod(shape) * dtype.itemsize
    name = _NAMES.get(dtype.name)
    name, shape = ("U8", [nbytes]) if name is None else (name, shape)
    return {"dtype": name, "shape": list(shape), "data_offsets": [at, at + nbytes]}


def write(path: Path, blocks: Sequence[Block], progress: Callable[[int], None]) -> list[tuple[int, int, int]]:
    """Write blocks to a new file; returns the offset, size in bytes and CRC-32 of each.

    ``progress`` is called with the number of bytes written since the last call.

    Raises:
      OSError: the file cannot be written.
    """
    header: dict[str, Any] = {METADATA: {"file": path.name}}
    places, at = [], 0
    for block in blocks:
        header[block.name] = described(block.shape, block.dtype, at)
        places.append(at)
        at += block.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64 + 56)  # so that the first array starts at a multiple of 64
    with path.open("xb", buffering=0) as file, ThreadPoolExecutor(1) as other:
        _write_all(file, memoryview(len(text).to_bytes(8, "little") + text))
        sums: list[Any] = []
        for block in blocks:
            raw = np.ascontiguousarray(block.value()).reshape(-1).view(np.uint8).data
            # in parallel with writing, as both release the GIL, unless that would take longer than the sum
            sums.append(other.submit(zlib.crc32, raw) if len(raw) > _SMALL else zlib.crc32(raw))
            for start in range(0, len(raw), BLOCK):
                _write_all(file, raw[start : start + BLOCK])
                progress(min(BLOCK, len(raw) - start))
        os.fsync(file.fileno())
        crcs = [s if isinstance(s, int) else s.result() for s in sums]
    return [(8 + len(text) + place, block.nbytes, crc) for place, block, crc in zip(places, blocks, crcs)]


def write_text(path: Path, text: str) -> None:
    """Write a new file and flush it to disk."""
    with path.open("x") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _write_all(file: io.FileIO, raw: memoryview) -> None:
    while raw:
        raw = raw[file.write(raw) :]


def aligned(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """An uninitialized array, in memory aligned so that a device can use it without a copy."""
    count = math.prod(shape) * dtype.itemsize
    room = np.empty(count + _ALIGNMENT, np.uint8)
    return room[-room.ctypes.data % _ALIGNMENT :][:count].view(dtype).reshape(tuple(shape))
