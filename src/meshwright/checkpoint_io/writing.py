"""Writing a tree of arrays: each process its own pieces, all of it or nothing."""

from __future__ import annotations

import json
import math
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.checkpoint_io import files, zarr
from meshwright.checkpoint_io.group import Group
from meshwright.checkpoint_io.index import (
    FORMATS,
    NAME,
    REPLACED,
    WRITING,
    Entry,
    Index,
    Leaf,
    Piece,
    block_name,
    structure,
)
from meshwright.core import pytree
from meshwright.core.expected import as_path
from meshwright.core.files import user_file
from meshwright.core.key_types import is_key
from meshwright.core.records import dataclass
from meshwright.core.static import static_index
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, ArgumentTypeError, CheckpointError
from meshwright.runtime.array import Array
from meshwright.runtime.executable import as_array
from meshwright.runtime.parts import Parts
from meshwright.runtime.pjrt.world import WORLD

Progress = Callable[[int, int], None]


class Saving:
    """A checkpoint that is being written. ``wait()`` returns when it is there, or raises what went wrong."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._done: Future[None] = Future()

    def wait(self) -> None:
        """Wait until the checkpoint is whole.

        Raises:
          CheckpointError: it could not be written; nothing of it is left.
        """
        self._done.result()

    @property
    def is_done(self) -> bool:
        return self._done.done()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
            self._done.set_result(None)
        except BaseException as error:
            self._done.set_exception(error)

    def __repr__(self) -> str:
        state = "being written" if not self.is_done else "failed" if self._done.exception() else "written"
        return f"Saving({str(self.folder)!r}, {state})"


def save(
    directory: str | os.PathLike[str], tree: Any, *, asynchronous: bool = False, overwrite: bool = False,
    format: str = "safetensors", progress: Progress | None = None, step: int | None = None,
    metrics: dict[str, float] | None = None,
) -> Saving:  # fmt: skip
    """Write a tree of arrays as the checkpoint ``directory``; all processes call it, and each writes what it has.

    The folder appears when everything is on disk: whatever happens before, there is no checkpoint, or the old one.

    Args:
      asynchronous: copy what this process has and return; the rest happens in a thread. ``wait()`` of what is returned
        says how it went.
      overwrite: replace a checkpoint that is there, or an empty folder; nothing else.
      format: ``"safetensors"`` (one file a process), or ``"tensorstore"``: arrays in zarr in an OCDBT database, as
        Orbax keeps and reads them, which needs the package of that name.
      progress: told how many of how many bytes of this process are written.
      step, metrics: kept in the checkpoint.

    Raises:
      CheckpointError: there is something already, or it cannot be written.
      ArgumentError: another format. ArgumentTypeError: a step or metric that is no number.
      MissingExtraError: the package ``tensorstore`` is not installed.

    Example:
      >>> import tempfile
      >>> folder = tempfile.mkdtemp() + "/step_1"
      >>> mw.checkpoint_io.save(folder, {"w": mnp.arange(3.0), "step": 1}).is_done
      True
      >>> mw.checkpoint_io.restore(folder)["w"]
      Array([0., 1., 2.], dtype=float32)
    """
    if format not in FORMATS:
        raise ArgumentError(f"save: format must be one of {', '.join(FORMATS)}, got {format!r}")
    if format == "tensorstore":
        zarr.require()
    folder = as_path("checkpoint_io.save: directory", directory).absolute()
    with user_file("checkpoint_io.save: directory", folder, CheckpointError):
        _check_free(folder, overwrite)
    sources = [_source(path, x) for path, x in zip(_paths(tree), pytree.leaves(tree))]
    if asynchronous:
        sources = [_copied(s) for s in sources]
    step = None if step is None else static_index(step, "save", "the step")
    index = Index([], structure(tree), format, step, _numbers(metrics or {}))
    job, saving = _Job(folder, sources, index, Group(), progress), Saving(folder)
    if not asynchronous:
        job.run()
        saving._done.set_result(None)
        return saving
    threading.Thread(target=saving._run, args=(job.run,), name="meshwright-checkpoint").start()
    return saving


def _check_free(folder: Path, overwrite: bool) -> None:
    """Raise for a place that a checkpoint does not take.

    Raises:
      CheckpointError: something is there, or something else than a checkpoint. OSError: there can be nothing.
    """
    if (folder.exists() or folder.is_symlink()) and not overwrite:
        raise CheckpointError(f"save: {folder} is there already; choose another name, or pass overwrite=True")
    if folder.exists() and not (folder / NAME).is_file() and not (folder.is_dir() and not any(folder.iterdir())):
        raise CheckpointError(f"save: {folder} is no checkpoint, and is not replaced by one; choose another name")


def _paths(tree: Any) -> list[str]:
    """The path of each leaf, by which it is found again.

    Raises:
      ArgumentError: two have the same, as nodes with keys of their own may.
    """
    paths = pytree.paths(tree)
    twice = [path for path, count in Counter(paths).items() if count > 1]
    if twice:
        raise ArgumentError(f"save: two leaves of the tree are {twice[0]!r}; rename one, in the keys of their node")
    return paths


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Metrics as numbers of Python's, which JSON has: arrays of one element too.

    Raises:
      ArgumentTypeError: one is no number.
    """
    try:
        return {str(name): float(value) for name, value in metrics.items()}
    except (TypeError, ValueError, AttributeError) as error:
        raise ArgumentTypeError(f"save: expected metrics to be numbers by name, got {metrics!r} ({error})") from None


def _source(path: str, x: Any) -> Leaf:
    """What this process writes of a leaf: of each block that devices hold, the first copy."""
    x = as_array(x)
    key = None
    if is_key(x.dtype):
        key, x = x.dtype.name, x.words()
    entry = Entry(path, list(x.shape), x.dtype.name, key)
    pieces = []
    tile = x.sharding.shard_shape(x.shape) if isinstance(x.buffer, Parts) else x.shape
    if not isinstance(x.buffer, Parts):
        if WORLD.rank == min(d.process_index for d in x.sharding.devices) and (x.committed or WORLD.rank == 0):
            pieces.append(([0] * x.ndim, list(x.shape), lambda: np.asarray(x)))
        return Leaf(entry, x.dtype, tile, pieces)
    for shard in x.addressable_shards:
        if shard.replica_id == 0 and 0 not in shard.data.shape:
            start = [s.start or 0 for s in shard.index]
            stop = [a + n for a, n in zip(start, shard.data.shape)]
            pieces.append((start, stop, _value_of(shard.data)))
    return Leaf(entry, x.dtype, tile, pieces)


def _value_of(x: Array) -> Callable[[], np.ndarray]:
    return lambda: np.asarray(x)


def _copied(source: Leaf) -> Leaf:
    """With copies of the values, as the arrays may be donated before they are written."""

    def held(value: np.ndarray) -> Callable[[], np.ndarray]:
        return lambda: value

    pieces = [(start, stop, held(np.array(value()))) for start, stop, value in source.pieces]
    return Leaf(source.entry, source.dtype, source.tile, pieces)


@dataclass
class _Job:
    folder: Path
    sources: Sequence[Leaf]
    index: Index
    group: Group
    progress: Progress | None
    written: int = 0

    def run(self) -> None:
        """Write this process's pieces, and when all have, give the folder its name.

        Raises:
          CheckpointError: something could not be written, here or in another process.
        """
        group = self.group
        place = self.folder.parent / f"{self.folder.name}{WRITING}{group.token()}"
        try:
            place.mkdir(parents=True, exist_ok=True)
            mine = self._write(place)
            group.tell("written", json.dumps([asdict(e) for e in mine]))
        except OSError as error:
            shutil.rmtree(place, ignore_errors=True)
            group.tell("written", json.dumps({"failed": str(error)}))
            raise CheckpointError(f"save: {self.folder} could not be written: {error}") from None
        if not group.leads:
            failure = group.hear("finished", 0)
            if failure:
                raise CheckpointError(failure)
            return
        failure = "" if self._finished(place, mine) else f"save: {self.folder} could not be written by all processes"
        group.tell("finished", failure)

    def _finished(self, place: Path, mine: list[Entry]) -> bool:
        """Put together what the processes wrote.

        Raises:
          CheckpointError: of one of them, or from the disk.
        """
        try:
            for rank in range(1, self.group.count):
                theirs = json.loads(self.group.hear("written", rank))
                if isinstance(theirs, dict):
                    raise CheckpointError(f"save: rank {rank} could not write {self.folder}: {theirs['failed']}")
                for entry, other in zip(mine, theirs, strict=True):
                    entry.pieces += [Piece(**p) for p in other["pieces"]]
            self.index.entries = mine
            _check_whole(mine)
            if self.index.format == "tensorstore":
                zarr.join(place, mine)
            _commit(place, self.folder, self.index)
            return True
        except (OSError, CheckpointError) as error:
            shutil.rmtree(place, ignore_errors=True)
            text = str(error) if isinstance(error, CheckpointError) else f"save: {self.folder}: {error}"
            self.group.tell("finished", text)
            raise CheckpointError(text) from None

    def _write(self, place: Path) -> list[Entry]:
        if self.index.format == "tensorstore":
            return zarr.write(place, self.group.rank, self.sources, self._count)
        token = place.name.rpartition(WRITING)[2]  # a file of another checkpoint has another name
        name = f"data-{self.group.rank:05d}-{token}.safetensors"
        blocks, owners = [], []
        for source in self.sources:
            for start, stop, value in source.pieces:
                shape = tuple(b - a for a, b in zip(start, stop))
                blocks.append(files.Block(block_name(source.entry.path, start, stop), shape, source.dtype, value))
                owners.append((source.entry, start, stop))
        for (entry, start, stop), (offset, count, crc) in zip(owners, files.write(place / name, blocks, self._count)):
            entry.pieces.append(Piece(start, stop, name, offset, count, crc))
        return [s.entry for s in self.sources]

    def _count(self, count: int) -> None:
        self.written += count
        if self.progress is not None:
            sizes = (math.prod(b - a for a, b in zip(p[0], p[1])) * s.dtype.itemsize
                     for s in self.sources for p in s.pieces)  # fmt: skip
            self.progress(self.written, sum(sizes))


def _check_whole(entries: Sequence[Entry]) -> None:
    """Raise unless pieces make up their arrays: otherwise processes wrote other trees."""
    for entry in entries:
        have = sum(math.prod(b - a for a, b in zip(p.start, p.stop)) for p in entry.pieces)
        if have != math.prod(entry.shape):
            raise CheckpointError(
                f"save: of the array {entry.path or 'itself'} with {counted(math.prod(entry.shape), 'element')}, "
                f"{have} were written; all processes must save the same tree"
            )


def _commit(place: Path, folder: Path, index: Index) -> None:
    """Give a folder whose files are on disk its name, with its index."""
    files.write_text(place / NAME, index.text())
    _sync(place)
    if folder.exists():
        old = folder.with_name(folder.name + REPLACED)
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)  # restore looks there if nothing has taken its place
        place.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    else:
        place.rename(folder)
    _sync(folder.parent)


def _sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
