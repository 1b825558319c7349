"""Arrays in zarr 3, through the package ``tensorstore``: a folder for each, a chunk for each piece."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.checkpoint_io.index import Entry, Piece
from meshwright.errors import CheckpointError, MissingExtraError


def require() -> Any:
    """The package.

    Raises:
      MissingExtraError: it is not installed.
    """
    if find_spec("tensorstore") is None:
        raise MissingExtraError(
            "checkpoints in zarr need the package tensorstore: pip install 'meshwright[checkpoints]', or use "
            "format='safetensors'"
        )
    return import_module("tensorstore")


def _spec(folder: Path) -> dict[str, Any]:
    return {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder}/"}}


def write(
    place: Path, number: int, entry: Entry, dtype: np.dtype,
    pieces: Sequence[tuple[list[int], list[int], Callable[[], np.ndarray]]], progress: Callable[[int], None],
) -> Entry:  # fmt: skip
    """Write this process's pieces of an array; returns its entry with them.

    Raises:
      CheckpointError: tensorstore refused.
    """
    name = f"array-{number:05d}"
    if not pieces:
        return entry
    first = [b - a for a, b in zip(pieces[0][0], pieces[0][1])]
    metadata = {
        "shape": entry.shape, "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [max(n, 1) for n in first]}},
    }  # fmt: skip
    try:
        store = require().open({**_spec(place / name), "metadata": metadata}, open=True, create=True).result()
        for start, stop, value in pieces:
            data = np.asarray(value(), order="C")
            store[tuple(slice(a, b) for a, b in zip(start, stop))].write(data).result()
            crc = zlib.crc32(data.reshape(-1).view(np.uint8).data)
            entry.pieces.append(Piece(start, stop, name, 0, data.nbytes, crc))
            progress(data.nbytes)
    except (ValueError, RuntimeError, NotImplementedError) as error:
        raise CheckpointError(f"save: the array {entry.path} of dtype {dtype.name}: {error}") from None
    return entry


def read(folder: Path, entry: Entry, index: Sequence[slice]) -> np.ndarray:
    """A part of an array.

    Raises:
      CheckpointError: it cannot be read.
    """
    try:
        store = require().open(_spec(folder / entry.pieces[0].file), open=True, read=True).result()
        return np.asarray(store[tuple(index)].read().result())
    except (ValueError, RuntimeError) as error:
        raise CheckpointError(f"{folder}: the array {entry.path} cannot be read ({error})") from None


def check(folder: Path, entry: Entry, piece: Piece) -> bool:
    """Whether a piece is what was written."""
    value = read(folder, entry, [slice(a, b) for a, b in zip(piece.start, piece.stop)])
    return zlib.crc32(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data) == piece.crc32
