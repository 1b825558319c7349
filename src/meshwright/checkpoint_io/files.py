"""Files in the format of ``safetensors``: a header in JSON, then the bytes of arrays, each at a multiple of 8.

Written and read here, a piece at a time, since the library copies each array on its way; it reads these files.
"""

from __future__ import annotations

import io
import json
import os
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from meshwright.core.dtypes import as_dtype
from meshwright.core.records import dataclass
from meshwright.errors import CheckpointError

#: dtypes that the format has names for; others are written as bytes
_NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
_BLOCK = 1 << 24
#: where XLA wants arrays to start
_ALIGNMENT = 64


@dataclass
class Block:
    """An array to write, under a name; ``value()`` gives it, so that one at a time is in memory."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    value: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


def write(path: Path, blocks: Sequence[Block], progress: Callable[[int], None]) -> list[tuple[int, int, int]]:
    """Write blocks to a new file; returns offset, bytes and CRC-32 of each. ``progress`` gets bytes as they go.

    Raises:
      OSError: the disk is full, or the like.
    """
    header, at = {}, 0
    places = []
    for block in blocks:
        dtype, shape = _NAMES.get(block.dtype.name), list(block.shape)
        if dtype is None:
            dtype, shape = "U8", [block.nbytes]
        header[block.name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + block.nbytes]}
        places.append(at)
        at += block.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64 + 56)  # so that the first array stands at a multiple of 64
    with path.open("xb", buffering=0) as file, ThreadPoolExecutor(1) as other:
        _write_all(file, memoryview(len(text).to_bytes(8, "little") + text))
        sums = []
        for block in blocks:
            raw = np.ascontiguousarray(block.value()).reshape(-1).view(np.uint8).data
            sums.append(other.submit(zlib.crc32, raw))  # beside the writing: both let Python's lock go
            for start in range(0, len(raw), _BLOCK):
                _write_all(file, raw[start : start + _BLOCK])
                progress(min(_BLOCK, len(raw) - start))
        os.fsync(file.fileno())
        crcs = [s.result() for s in sums]
    return [(8 + len(text) + place, block.nbytes, crc) for place, block, crc in zip(places, blocks, crcs)]


def write_text(path: Path, text: str) -> None:
    """Write a new file, which is on disk when this returns."""
    with path.open("x") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _write_all(file: io.FileIO, raw: memoryview) -> None:
    while raw:
        raw = raw[file.write(raw) :]


def mapped(path: Path, offset: int, count: int, shape: Sequence[int], dtype: str) -> np.ndarray:
    """An array in a file, whose pages are read when they are touched.

    Raises:
      CheckpointError: the file is missing, or too short.
    """
    kind = as_dtype(dtype)
    if count == 0:
        return np.zeros(tuple(shape), kind)
    try:
        if path.stat().st_size < offset + count:
            raise CheckpointError(f"{path} is too short: it was cut off; use an earlier checkpoint")
        raw = np.memmap(path, np.uint8, "r", offset, (count,))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error}); use an earlier checkpoint") from None
    return raw.view(kind).reshape(tuple(shape))


def loaded(path: Path, offset: int, count: int, shape: Sequence[int], dtype: str) -> np.ndarray:
    """An array in a file, read into memory that a device can take over.

    Raises:
      CheckpointError: the file is missing, or too short.
    """
    array = aligned(shape, as_dtype(dtype))
    raw = array.reshape(-1).view(np.uint8)
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            have, view = 0, raw.data
            while have < count:
                got = file.readinto(view[have : have + _BLOCK])
                if not got:
                    raise CheckpointError(f"{path} is too short: it was cut off; use an earlier checkpoint")
                have += got
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} cannot be read ({error}); use an earlier checkpoint") from None
    return array


def aligned(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """An array of any content, in memory that a device can take over."""
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    room = np.empty(count + _ALIGNMENT, np.uint8)
    return room[-room.ctypes.data % _ALIGNMENT :][:count].view(dtype).reshape(tuple(shape))


def check(path: Path, offset: int, count: int, crc32: int) -> bool:
    """Whether the bytes in a file are those that were written."""
    crc, left = 0, count
    with path.open("rb") as file:
        file.seek(offset)
        while left:
            part = file.read(min(left, _BLOCK))
            if not part:
                return False
            crc, left = zlib.crc32(part, crc), left - len(part)
    return crc == crc32
