"""Saving a pytree of arrays: each process writes its own pieces, and the result is complete or absent."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.checkpoint_io import zarr
from meshwright.checkpoint_io.group import Group
from meshwright.checkpoint_io.index import FORMATS, NAME, Entry, Index, Leaf, structure
from meshwright.checkpoint_io.job import Job, Progress
from meshwright.core import pytree
from meshwright.core.dtypes import as_dtype
from meshwright.core.expected import as_path
from meshwright.core.files import exists, user_file
from meshwright.core.key_types import is_key
from meshwright.core.source import warn
from meshwright.core.static import static_index
from meshwright.core.weak import when_gone
from meshwright.errors import ArgumentError, ArgumentTypeError, CheckpointError, CheckpointWarning, DTypeError
from meshwright.ir.not_arrays import refuse_masked
from meshwright.runtime.array import Array
from meshwright.runtime.parts import Parts
from meshwright.runtime.pjrt.world import WORLD, ranks_of
from meshwright.runtime.values import as_array

#: types of leaves that are saved without becoming arrays
HOST_VALUES = (bool, int, float, complex, np.ndarray, np.generic)


class Saving:
    """A checkpoint that is being written; see :meth:`wait`. A failure that nobody waits for becomes a warning."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._done: Future[None] = Future()
        self._is_told = threading.Event()
        untold = partial(_warn_untold, folder, self._is_told)
        when_gone(self, self._done.add_done_callback, untold)  # calls it once done, or now if that is before

    def wait(self) -> None:
        """Wait until the checkpoint is complete.

        Raises:
          CheckpointError: it could not be written; no part of it remains.
        """
        self._is_told.set()
        self._done.result()

    @property
    def is_done(self) -> bool:
        return self._done.done()

    @property
    def has_told_failure(self) -> bool:
        """Whether :meth:`wait` has raised."""
        return self._is_told.is_set() and self.is_done and self._done.exception() is not None

    def __repr__(self) -> str:
        state = "being written" if not self.is_done else "failed" if self._done.exception() else "written"
        return f"Saving({str(self.folder)!r}, {state})"


def _finish(done: Future[None], work: Callable[[], None]) -> None:
    """Run ``work``; no method, so that the traceback of an error does not keep the :class:`Saving`."""
    try:
        work()
        done.set_result(None)
    except BaseException as error:
        done.set_exception(error)


def _warn_untold(folder: Path, is_told: threading.Event, done: Future[None]) -> None:
    """Warn of a failure, when the object with :meth:`Saving.wait` is gone without a call, also at the end."""
    if not is_told.is_set() and (error := done.exception()) is not None:
        warn(f"the checkpoint {folder} was not written, and wait() not called: {error}", CheckpointWarning)


def save(
    directory: str | os.PathLike[str], tree: Any, *, asynchronous: bool = False, overwrite: bool = False,
    format: str = "safetensors", progress: Progress | None = None, step: int | None = None,
    metrics: dict[str, float] | None = None,
) -> Saving:  # fmt: skip
    """Save a pytree of arrays as the checkpoint ``directory``. All processes call this, and each writes its own part.

    The folder appears once everything is on disk. If saving fails, there is no checkpoint, or the previous one.

    Args:
      directory: the folder of the checkpoint.
      tree: a pytree of arrays, numbers and random keys.
      asynchronous: copy this process's values, write them in a thread, and return at once. Call ``wait()`` of the
        result to see whether it succeeded.
      overwrite: replace an existing checkpoint or empty folder (nothing else is replaced).
      format: ``"safetensors"`` (one file per process), or ``"tensorstore"``: zarr arrays in an OCDBT database, which
        Orbax can read. It needs the package ``tensorstore``.
      progress: a function that is called with the bytes written so far, and the total, of this process.
      step, metrics: a number and a dict of numbers, stored in the checkpoint.

    Raises:
      CheckpointError: the folder exists, or the checkpoint cannot be written.
      ArgumentError: an unknown format, an integer of more than 64 bits, or two leaves with the same path.
      ArgumentTypeError: ``step`` is not an integer, or a metric not a number.
      DTypeError: a leaf is not an array.
      MissingExtraError: the package ``tensorstore`` is not installed.

    Example:
      >>> import tempfile
      >>> folder = tempfile.mkdtemp() + "/step_1"
      >>> mw.checkpoint_io.save(folder, {"w": mnp.arange(3.0), "step": 1}).is_done
      True
      >>> mw.checkpoint_io.restore(folder)["w"]
      Array([0., 1., 2.], dtype=float32)
    """
    return save_in(
        Group(), directory, tree, asynchronous=asynchronous, overwrite=overwrite, format=format, progress=progress,
        step=step, metrics=metrics,
    )  # fmt: skip


def save_in(
    group: Group, directory: str | os.PathLike[str], tree: Any, *, asynchronous: bool, overwrite: bool, format: str,
    progress: Progress | None, step: int | None, metrics: dict[str, float] | None,
) -> Saving:  # fmt: skip
    """:func:`save` in a group of processes, which are told of all failures.

    Raises:
      MeshwrightError: as for :func:`save`.
    """
    with group.told(f"save: {directory} could not be written"):
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
        nodes = zarr.nodes(tree) if format == "tensorstore" else []
        if nodes:
            keys = [keys for keys, kind in nodes if kind == zarr.ARRAY]
            sources = [replace(s, keys=k) for s, k in zip(sources, keys, strict=True)]
    job, saving = Job(folder, sources, index, group, progress, overwrite, nodes), Saving(folder)
    if not asynchronous:
        job.run()
        saving._done.set_result(None)
        return saving
    threading.Thread(target=_finish, args=(saving._done, job.run), name="meshwright-checkpoint").start()
    return saving


def _check_free(folder: Path, overwrite: bool) -> None:
    """Check that a checkpoint can be created in this place.

    Raises:
      CheckpointError: the folder exists; with ``overwrite``, it is neither a checkpoint nor empty.
      OSError: the place cannot be accessed.
    """
    if (exists(folder) or folder.is_symlink()) and not overwrite:
        raise CheckpointError(f"save: {folder} is there already; choose another name, or pass overwrite=True")
    if exists(folder) and not (folder / NAME).is_file() and not (folder.is_dir() and not any(folder.iterdir())):
        raise CheckpointError(f"save: {folder} is no checkpoint, and is not replaced by one; choose another name")


def _paths(tree: Any) -> list[str]:
    """The path of each leaf, by which it is identified.

    Raises:
      ArgumentError: two leaves have the same path, as is possible for nodes with custom keys.
    """
    paths = pytree.paths(tree)
    twice = [path for path, count in Counter(paths).items() if count > 1]
    if twice:
        raise ArgumentError(f"save: two leaves of the tree are {twice[0]!r}; rename one, in the keys of their node")
    return paths


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Metrics as Python numbers, for JSON. Arrays of one element are numbers too.

    Raises:
      ArgumentTypeError: a metric is not a number.
    """
    try:
        return {str(name): float(value) for name, value in metrics.items()}
    except (TypeError, ValueError, AttributeError) as error:
        raise ArgumentTypeError(f"save: expected metrics to be numbers by name, got {metrics!r} ({error})") from None


def _source(path: str, x: Any) -> Leaf:
    """This process's pieces of a leaf: of each block, it writes the first copy if one of its devices has that.

    Raises:
      DTypeError: the leaf is not an array and cannot become one.
      ArgumentError: it is an integer of more than 64 bits.
    """
    if isinstance(x, HOST_VALUES):
        return _host_source(path, x)
    try:
        x = as_array(x)
    except DTypeError as error:
        raise DTypeError(
            f"save: the leaf {path!r} of type {type(x).__name__}: {error}; leave it out, or, if it holds arrays, make "
            "it a container with register_dataclass or register_pytree_node"
        ) from None
    key = None
    if is_key(x.dtype):
        key, x = x.dtype.name, x.words()
    entry = Entry(path, list(x.shape), x.dtype.name, key)
    pieces = []
    tile = x.sharding.shard_shape(x.shape) if isinstance(x.buffer, Parts) else x.shape
    if not isinstance(x.buffer, Parts):
        if WORLD.rank == ranks_of(x.sharding.devices)[0] and (x.committed or WORLD.rank == 0):
            pieces.append(([0] * x.ndim, list(x.shape), lambda: np.asarray(x)))
        return Leaf(entry, x.dtype, tile, pieces)
    for shard in x.addressable_shards:
        if shard.replica_id == 0 and 0 not in shard.data.shape:
            start = [s.start or 0 for s in shard.index]
            stop = [a + n for a, n in zip(start, shard.data.shape)]
            pieces.append((start, stop, _value_of(shard.data)))
    return Leaf(entry, x.dtype, tile, pieces)


def _host_source(path: str, x: Any) -> Leaf:
    """The piece for a value of NumPy or Python. It keeps its dtype, and is written by the first process.

    The dtype may be one that arrays only have with ``enable_x64``.

    Raises:
      DTypeError, ArgumentError: as for :func:`_source`.
    """
    refuse_masked(x)
    value = np.asarray(x)
    if isinstance(x, int) and value.dtype.hasobject:
        raise ArgumentError(
            f"save: the leaf {path!r} is {x}, which does not fit in 64 bits; save it as an array of words"
        )
    value = value.astype(value.dtype.newbyteorder("="), copy=False)
    try:
        entry = Entry(path, list(value.shape), as_dtype(value.dtype).name)
    except DTypeError as error:
        raise DTypeError(f"save: the leaf {path!r}: {error}") from None
    pieces = [([0] * value.ndim, list(value.shape), lambda: value)] if WORLD.rank == 0 else []
    return Leaf(entry, value.dtype, value.shape, pieces)


def _value_of(x: Array) -> Callable[[], np.ndarray]:
    return lambda: np.asarray(x)


def _copied(source: Leaf) -> Leaf:
    """The leaf with copies of its values, as the arrays may be donated before they are written."""

    def held(value: np.ndarray) -> Callable[[], np.ndarray]:
        return lambda: value

    pieces = [(start, stop, held(np.array(value()))) for start, stop, value in source.pieces]
    return Leaf(source.entry, source.dtype, source.tile, pieces)
