"""What a checkpoint says of itself: an index in JSON, which lists every array and where its pieces are.

A checkpoint is a folder. It is written under another name beside its own, and takes its name when all of it is on disk:
a folder with the right name is whole.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.core import pytree
from meshwright.core.dtypes import as_dtype
from meshwright.core.records import dataclass
from meshwright.errors import CheckpointError, MeshwrightError

NAME = "checkpoint.json"
FORMATS = "safetensors", "tensorstore"
VERSION = 1
#: beside the name of a checkpoint that is being written, or was replaced
WRITING, REPLACED = ".writing-", ".replaced"


@dataclass
class Piece:
    """A block of an array: rows ``start`` to ``stop`` of each dimension, ``count`` bytes at ``offset`` of a file."""

    start: list[int]
    stop: list[int]
    file: str
    offset: int
    count: int
    crc32: int


@dataclass
class Entry:
    """An array: the path of its leaf, its type (``key``: the generator whose random keys the words are), its pieces."""

    path: str
    shape: list[int]
    dtype: str
    key: str | None = None
    pieces: list[Piece] = field(default_factory=list)


@dataclass
class Leaf:
    """An array to write: the shape of its tiles, and the pieces that this process has: start, stop, what gives the
    value."""

    entry: Entry
    dtype: np.dtype
    tile: Sequence[int]
    pieces: Sequence[tuple[list[int], list[int], Callable[[], np.ndarray]]]


@dataclass
class Index:
    """All arrays, in the order of the tree's leaves; ``tree`` is its structure, if it is of dicts, lists and tuples."""

    entries: list[Entry]
    tree: Any = None
    format: str = "safetensors"
    step: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    version: int = VERSION

    def text(self) -> str:
        """As JSON, with a checksum of all else."""
        raw = asdict(self)
        return json.dumps({**raw, "crc32": _checksum(raw)})

    @staticmethod
    def parse(text: str) -> Index:
        """The opposite of :meth:`text`.

        Raises:
          CheckpointError: what was read is not what was written. ValueError, TypeError, LookupError: nor is it like it.
        """
        raw = json.loads(text)
        if "crc32" in raw and raw.pop("crc32") != _checksum(raw):
            raise CheckpointError("its checksum is of another text")
        entries = [Entry(**{**e, "pieces": [Piece(**p) for p in e["pieces"]]}) for e in raw.pop("entries")]
        for entry in entries:
            _check_entry(entry)
        index = Index(entries=entries, **raw)
        if index.format not in FORMATS:
            raise CheckpointError(f"it is of format {index.format!r}")
        if index.tree:
            rebuilt(index.tree, entries)
        return index


def _checksum(raw: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(raw, sort_keys=True).encode())


def _check_entry(entry: Entry) -> None:
    """Raise for an array that its pieces do not make, each row once, or that no file can hold."""
    try:
        itemsize = as_dtype(entry.dtype).itemsize
    except MeshwrightError as error:
        raise CheckpointError(f"{entry.path!r}: {error}") from None
    sizes = 0
    for piece in entry.pieces:
        ends = list(zip(piece.start, piece.stop, entry.shape, strict=True))
        if not all(0 <= a <= b <= n for a, b, n in ends) or min(piece.offset, piece.count) < 0:
            raise CheckpointError(f"a piece of {entry.path!r} lies outside of it")
        if Path(piece.file).name != piece.file:
            raise CheckpointError(f"{entry.path!r} is in {piece.file!r}, which is no part of the checkpoint")
        size = math.prod(b - a for a, b, _ in ends)
        if piece.count != size * itemsize:
            raise CheckpointError(f"a piece of {entry.path!r} has {piece.count} bytes for {size} elements")
        sizes += size
    if sizes != math.prod(entry.shape) or min(entry.shape, default=0) < 0:
        raise CheckpointError(f"the pieces of {entry.path!r} have {sizes} elements, not those of {entry.shape}")


def read_index(folder: Path) -> Index:
    """The index of a checkpoint.

    Raises:
      CheckpointError: there is none, or not one that this version can read.
    """
    try:
        text = (folder / NAME).read_text(errors="replace")
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint at {folder}{_neighbours(folder)}") from None
    except OSError as error:
        raise CheckpointError(f"the checkpoint {folder} cannot be read: {error}") from None
    try:
        version = json.loads(text).get("version")
        if version == VERSION:
            return Index.parse(text)
    except (CheckpointError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{folder / NAME} is damaged ({error}); use an earlier checkpoint") from None
    raise CheckpointError(
        f"{folder} is a checkpoint of format {version}, this version reads {VERSION}; read it with the version of "
        "meshwright that wrote it"
    )


def _neighbours(folder: Path) -> str:
    """What else is there, for an error."""
    if not folder.parent.is_dir():
        return f": the folder {folder.parent} does not exist"
    names = sorted(p.name for p in folder.parent.iterdir() if (p / NAME).is_file())
    return f"; beside it there are {', '.join(names[:8])}" if names else ""


# --- trees --------------------------------------------------------------------------------------------------
def structure(tree: Any) -> Any:
    """A tree of dicts, lists, tuples and leaves as JSON; None for others, which are known by their paths alone."""
    numbers = iter(range(len(pytree.leaves(tree))))

    def encoded(x: Any) -> Any:
        if x is None:
            return {"none": True}
        if type(x) is dict and all(type(k) is str for k in x):
            return {"dict": {k: encoded(x[k]) for k in sorted(x)}}
        if type(x) in (list, tuple):
            return {type(x).__name__: [encoded(v) for v in x]}
        if pytree.treedef_is_leaf(pytree.structure(x)):
            return {"leaf": next(numbers)}
        raise TypeError

    try:
        return encoded(tree)
    except TypeError:
        return None


def rebuilt(code: Any, leaves: Sequence[Any]) -> Any:
    """The opposite of :func:`structure`."""
    match code:
        case {"none": _}:
            return None
        case {"dict": items}:
            return {k: rebuilt(v, leaves) for k, v in items.items()}
        case {"list": items}:
            return [rebuilt(v, leaves) for v in items]
        case {"tuple": items}:
            return tuple(rebuilt(v, leaves) for v in items)
    return leaves[code["leaf"]]
