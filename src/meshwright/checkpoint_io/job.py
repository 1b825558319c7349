"""Writing one checkpoint: each process writes its pieces, and the first one renames the folder once all are done."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from meshwright.checkpoint_io import files, zarr
from meshwright.checkpoint_io.group import Group
from meshwright.checkpoint_io.index import NAME, REPLACED, WRITING, Entry, Index, Keys, Leaf, Piece, block_name
from meshwright.core.records import dataclass
from meshwright.core.words import counted
from meshwright.errors import CheckpointError

Progress = Callable[[int, int], None]
#: the folders that this process is writing
IN_WORK: set[Path] = set()


@dataclass
class Job:
    """This process's part in writing a checkpoint. With ``overwrite``, the checkpoint may replace another."""

    folder: Path
    sources: Sequence[Leaf]
    index: Index
    group: Group
    progress: Progress | None
    overwrite: bool = False
    #: the nodes of the tree, for zarr
    nodes: Sequence[tuple[Keys, str]] = ()
    written: int = 0
    #: the folder to remove if the checkpoint fails
    place: Path | None = None

    def run(self) -> None:
        """Write this process's pieces. The first process renames the folder once all processes are done.

        Raises:
          CheckpointError: something could not be written, in this or another process.
        """
        try:
            with self.group.told(f"save: {self.folder} could not be written"):
                self._run(f"{self.folder.name}{WRITING}{self.group.token(self.folder.name, self.index.format)}")
        except BaseException:
            if self.place is not None:  # the other processes know of the failure
                shutil.rmtree(self.place, ignore_errors=True)
            raise

    def _run(self, name: str) -> None:
        place = self.place = self.folder.parent / name
        IN_WORK.add(place)
        try:
            self._fill(place)
        finally:
            IN_WORK.discard(place)

    def _fill(self, place: Path) -> None:
        place.mkdir(parents=True, exist_ok=True)
        entries, name = self._write(place)
        if self.group.leads:
            self._finish(place, entries)
            self.group.tell("finished", "")
            return
        written = {"entries": [e.plain() for e in entries], "files": _sizes(place, name)}
        self.group.tell("written", json.dumps(written))
        self.place = None  # unless the first process reports a failure, the folder becomes the checkpoint
        if failure := self.group.hear("finished", 0):
            self.place = place
            raise CheckpointError(failure)

    def _finish(self, place: Path, mine: list[Entry]) -> None:
        """Combine the entries of all processes, check them, and rename the folder.

        Raises:
          CheckpointError: a process failed, or wrote other arrays or to another folder.
          OSError: the index cannot be written.
        """
        for rank in range(1, self.group.count):
            theirs = json.loads(self.group.hear("written", rank))
            if "failed" in theirs:
                raise CheckpointError(theirs["failed"])
            _check_there(place, rank, theirs["files"])
            _check_same(mine, theirs["entries"], rank)
            for entry, other in zip(mine, theirs["entries"]):
                entry.pieces += [Piece(**p) for p in other["pieces"]]
        self.index.entries = mine
        _check_whole(mine)
        if self.index.format == "tensorstore":
            zarr.join(place, self.nodes, mine)
        _commit(place, self.folder, self.index, self.overwrite)

    def _write(self, place: Path) -> tuple[list[Entry], str]:
        """Write this process's pieces; returns the entries, and the name of the file or folder with their pieces."""
        if self.index.format == "tensorstore":
            return zarr.write(place, self.group.rank, self.sources, self._count), zarr.folder_of(self.group.rank)
        token = place.name.rpartition(WRITING)[2]  # makes file names unique to the checkpoint
        name = f"data-{self.group.rank:05d}-{token}.safetensors"
        blocks, owners = [], []
        for source in self.sources:
            for start, stop, value in source.pieces:
                shape = tuple(b - a for a, b in zip(start, stop))
                blocks.append(files.Block(block_name(source.entry.path, start, stop), shape, source.dtype, value))
                owners.append((source.entry, start, stop))
        for (entry, start, stop), (offset, count, crc) in zip(owners, files.write(place / name, blocks, self._count)):
            entry.pieces.append(Piece(start, stop, name, offset, count, crc))
        return [s.entry for s in self.sources], name

    def _count(self, count: int) -> None:
        self.written += count
        if self.progress is not None:
            sizes = (math.prod(b - a for a, b in zip(p[0], p[1])) * s.dtype.itemsize
                     for s in self.sources for p in s.pieces)  # fmt: skip
            self.progress(self.written, sum(sizes))


def _sizes(place: Path, name: str) -> dict[str, int]:
    """The size of the file ``name``, or of each file in the folder of that name."""
    found = [place / name, *(place / name).rglob("*")]
    return {str(path.relative_to(place)): path.stat().st_size for path in found if path.is_file()}


def _check_there(place: Path, rank: int, sizes: Mapping[str, int]) -> None:
    """Check that the files written by another process are in the same folder.

    Raises:
      CheckpointError: it wrote to another folder, or to one of the same name on another machine.
    """
    for name, size in sizes.items():
        path = place / name
        if not path.is_file() or path.stat().st_size != size:
            raise CheckpointError(
                f"save: what rank {rank} wrote is not in {place.parent}: {name} is not there, or is shorter. All "
                "processes must save to the same folder, on a file system that they share"
            )


def _check_same(mine: Sequence[Entry], theirs: Sequence[Mapping[str, Any]], rank: int) -> None:
    """Check that another process saves the same arrays.

    Raises:
      CheckpointError: it does not; names the first difference.
    """
    for entry, other in zip_longest(mine, theirs):
        here = None if entry is None else [entry.path, entry.key or entry.dtype, entry.shape]
        there = None if other is None else [other["path"], other["key"] or other["dtype"], other["shape"]]
        if here != there:
            ours, others = ("nothing more" if x is None else "{} of type {}{}".format(*x) for x in (here, there))
            raise CheckpointError(
                f"save: rank 0 saves {ours} where rank {rank} saves {others}; all processes must save the same tree"
            )


def _check_whole(entries: Sequence[Entry]) -> None:
    """Check that the pieces make up whole arrays.

    Raises:
      CheckpointError: they do not, because the processes save different trees.
    """
    for entry in entries:
        have = sum(math.prod(b - a for a, b in zip(p.start, p.stop)) for p in entry.pieces)
        if have != math.prod(entry.shape):
            raise CheckpointError(
                f"save: of the array {entry.path or 'itself'} with {counted(math.prod(entry.shape), 'element')}, "
                f"{have} were written; all processes must save the same tree"
            )


def _commit(place: Path, folder: Path, index: Index, overwrite: bool) -> None:
    """Write the index into a folder whose files are on disk, and rename it to its final name."""
    files.write_text(place / NAME, index.text())
    _sync(place)
    if folder.exists() and overwrite:
        old = folder.with_name(folder.name + REPLACED)
        _remove(old)
        folder.rename(old)  # restore finds it there until it is replaced
        place.rename(folder)
        _remove(old)
    else:
        place.rename(folder)  # the system refuses this if something has been created there meanwhile
    _sync(folder.parent)


def _remove(folder: Path) -> None:
    """Remove a folder, or a symbolic link to one."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
