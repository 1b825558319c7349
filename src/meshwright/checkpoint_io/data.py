"""Reading the pieces of a file that :func:`~meshwright.checkpoint_io.files.write` wrote."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.checkpoint_io.files import BLOCK, METADATA, aligned, described
from meshwright.checkpoint_io.index import Entry, Piece, block_name
from meshwright.checkpoint_io.parsing import damaged
from meshwright.core.dtypes import as_dtype
from meshwright.core.records import dataclass
from meshwright.core.words import counted


@dataclass
class Data:
    """A file of pieces: its path, size in bytes, header, and the offset at which its arrays start."""

    path: Path
    size: int
    header: dict[str, Any]
    base: int

    @staticmethod
    def at(path: Path, size: int, pieces: int) -> Data:
        """The file at ``path`` of ``size`` bytes, for which the index lists this number of pieces.

        Raises:
          CheckpointDamagedError: the header is invalid, or is that of another file or for another number of pieces.
          OSError: the file cannot be read.
        """
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            text = file.read(length) if length <= size else b""
        try:
            header = json.loads(text)
            own = header.pop(METADATA, {}).get("file", path.name)
        except (ValueError, RecursionError, AttributeError, TypeError) as error:
            raise damaged(path, f"its header cannot be read: {error}") from None
        if own != path.name:
            raise damaged(path, f"it is the file {own!r}, of this checkpoint or another")
        if len(header) != pieces:
            raise damaged(path, f"it has {counted(len(header), 'piece')} of arrays, of which the index names {pieces}")
        return Data(path, size, header, 8 + length)

    def _check(self, entry: Entry, piece: Piece) -> list[int]:
        """The shape of a piece, after a check that the file has it in the place that the index states.

        Raises:
          CheckpointDamagedError: it does not.
        """
        shape = [b - a for a, b in zip(piece.start, piece.stop)]
        name = block_name(entry.path, piece.start, piece.stop)
        if self.header.get(name) != described(shape, as_dtype(entry.dtype), piece.offset - self.base):
            raise damaged(self.path, f"it has no {entry.dtype}{shape} of {name!r} at byte {piece.offset}")
        if piece.offset + piece.count > self.size:
            raise damaged(self.path, f"it is too short: {counted(self.size, 'byte')}, but {name!r} ends at byte "
                          f"{piece.offset + piece.count}")  # fmt: skip
        return shape

    def mapped(self, entry: Entry, piece: Piece) -> np.ndarray:
        """A piece as a memory-mapped array.

        Raises:
          CheckpointDamagedError: the file does not have it.
          OSError: the file cannot be read.
        """
        shape = self._check(entry, piece)
        raw = np.memmap(self.path, np.uint8, "r", piece.offset, (piece.count,))
        return raw.view(as_dtype(entry.dtype)).reshape(shape)

    def loaded(self, entry: Entry, piece: Piece) -> np.ndarray:
        """A piece, read into memory that a device can use without a copy.

        Raises:
          CheckpointDamagedError: the file does not have it.
          OSError: the file cannot be read.
        """
        array = aligned(self._check(entry, piece), as_dtype(entry.dtype))
        view = array.reshape(-1).view(np.uint8).data
        with self.path.open("rb", buffering=0) as file:
            file.seek(piece.offset)
            have = 0
            while have < piece.count:
                got = file.readinto(view[have : have + BLOCK])
                if not got:
                    raise damaged(self.path, "it is too short: it was cut off")
                have += got
        return array

    def is_right(self, entry: Entry, piece: Piece) -> bool:
        """Whether a piece has the checksum in the index.

        Raises:
          CheckpointDamagedError: the file does not have it.
          OSError: the file cannot be read.
        """
        self._check(entry, piece)
        crc, left = 0, piece.count
        with self.path.open("rb") as file:
            file.seek(piece.offset)
            while left and (part := file.read(min(left, BLOCK))):
                crc, left = zlib.crc32(part, crc), left - len(part)
        return not left and crc == piece.crc32
