"""A checkpoint opened for reading: its index, and its files, which must not change while they are read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from meshwright.checkpoint_io import zarr
from meshwright.checkpoint_io.data import Data
from meshwright.checkpoint_io.index import NAME, Entry, Piece
from meshwright.checkpoint_io.parsing import damaged, read_index, whole_state
from meshwright.core.dtypes import as_dtype
from meshwright.core.files import file_state
from meshwright.errors import CheckpointDamagedError, CheckpointError


class Opened:
    """An opened checkpoint. As a context manager, it checks at the end that the files have not changed.

    Raises:
      CheckpointError: there is no checkpoint, or it was changed while it was read.
      CheckpointDamagedError: its index or a file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._states: dict[Path, tuple[int, ...]] = {}
        self._data: dict[str, Data] = {}
        with suppress(OSError):  # reading the index gives a better error
            self._states[folder / NAME] = file_state(folder / NAME)
        self.index = read_index(folder)
        self._counts = Counter(piece.file for entry in self.index.entries for piece in entry.pieces)
        if self.index.format == "tensorstore":
            for path in _files_in(folder):
                self._states[path] = whole_state(path)
            zarr.check_index(folder, self.index.entries)

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, CheckpointDamagedError):  # a change may be the cause of damage
            self._check_unchanged()

    def _check_unchanged(self) -> None:
        """Check that no file was written to and the checkpoint was not replaced.

        Raises:
          CheckpointError: it was.
        """
        for path, state in self._states.items():
            try:
                now = file_state(path)
            except OSError:
                now = ()
            if now != state:
                raise CheckpointError(f"{path} was changed or replaced while it was read; restore it again")

    # --- pieces ---------------------------------------------------------------------------------------------
    def _file(self, piece: Piece) -> Data:
        """The file of a piece.

        Raises:
          CheckpointDamagedError: it is missing, not a regular file, or another file.
        """
        data = self._data.get(piece.file)
        if data is None:
            path = self.folder / piece.file
            self._states[path] = state = whole_state(path)
            data = self._data[piece.file] = Data.at(path, state[2], self._counts[piece.file])
        return data

    def is_right(self, entry: Entry) -> bool:
        """Whether all pieces of an array have their checksums."""
        try:
            if self.index.format == "tensorstore":
                return all(zarr.check(self.folder, entry, piece) for piece in entry.pieces)
            return all(self._file(piece).is_right(entry, piece) for piece in entry.pieces)
        except (CheckpointDamagedError, OSError):
            return False

    def region(self, entry: Entry, where: Sequence[slice] = ()) -> np.ndarray:
        """A part of an array; all of it without slices. A part of a single piece may be a view of the file.

        Raises:
          CheckpointDamagedError: it cannot be read.
        """
        full = (
            [slice(*s.indices(n)) for s, n in zip(where, entry.shape)] if where else [slice(0, n) for n in entry.shape]
        )
        if any(s.start >= s.stop for s in full):  # for example the part of a device that only has padding
            return np.zeros([max(s.stop - s.start, 0) for s in full], as_dtype(entry.dtype))
        try:
            if self.index.format == "tensorstore":
                return zarr.read(self.folder, entry, full)
            return self._joined(entry, full)
        except CheckpointError:
            raise
        except (OSError, ValueError) as error:  # ValueError: of np.memmap, if the file has just been truncated
            raise damaged(self.folder, f"{entry.path!r} cannot be read: {error}") from None

    def _joined(self, entry: Entry, full: Sequence[slice]) -> np.ndarray:
        """A part of an array, assembled from pieces."""
        out = None
        for piece in entry.pieces:
            spans = [(max(s.start, a), min(s.stop, b)) for s, a, b in zip(full, piece.start, piece.stop)]
            if any(a >= b for a, b in spans):
                continue
            if [[s.start, s.stop] for s in full] == [list(ends) for ends in zip(piece.start, piece.stop)]:
                return self._file(piece).loaded(entry, piece)
            value = self._file(piece).mapped(entry, piece)
            value = value[tuple(slice(a - p, b - p) for (a, b), p in zip(spans, piece.start))]
            if all((a, b) == (s.start, s.stop) for (a, b), s in zip(spans, full)):
                return value
            out = np.empty([s.stop - s.start for s in full], value.dtype) if out is None else out
            out[tuple(slice(a - s.start, b - s.start) for (a, b), s in zip(spans, full))] = value
        assert out is not None
        return out


def _files_in(folder: Path) -> list[Path]:
    """All files in a folder and its subfolders."""
    return [Path(top) / name for top, _, names in os.walk(folder) for name in names]
