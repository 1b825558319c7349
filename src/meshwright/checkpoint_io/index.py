"""What a checkpoint says of itself: an index in JSON, which lists every array and where its pieces are.

A checkpoint is a folder. It is written under another name beside its own, and takes its name when all of it is on disk:
a folder with the right name is whole.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from meshwright.core import pytree
from meshwright.errors import CheckpointError

NAME = "checkpoint.json"
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
class Index:
    """All arrays, in the order of the tree's leaves; ``tree`` is its structure, if it is of dicts, lists and tuples."""

    entries: list[Entry]
    tree: Any = None
    format: str = "safetensors"
    step: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    version: int = VERSION

    def text(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def parse(text: str) -> Index:
        """The opposite of :meth:`text`."""
        raw = json.loads(text)
        entries = [Entry(**{**e, "pieces": [Piece(**p) for p in e["pieces"]]}) for e in raw.pop("entries")]
        return Index(entries=entries, **raw)


def read_index(folder: Path) -> Index:
    """The index of a checkpoint.

    Raises:
      CheckpointError: there is none, or not one that this version can read.
    """
    try:
        text = (folder / NAME).read_text()
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint at {folder}{_neighbours(folder)}") from None
    except OSError as error:
        raise CheckpointError(f"the checkpoint {folder} cannot be read: {error}") from None
    try:
        version = json.loads(text).get("version")
        if version == VERSION:
            return Index.parse(text)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{folder / NAME} is damaged ({error}); use an earlier checkpoint") from None
    raise CheckpointError(
        f"{folder} is a checkpoint of format {version}, this version reads {VERSION}; read it with the version of "
        "meshwright that wrote it"
    )


def _neighbours(folder: Path) -> str:
    """What else is there, for an error."""
    if not folder.parent.is_dir():
        return f": the folder {folder.parent} does not exist"
    found = sorted(p.name for p in folder.parent.iterdir() if (p / NAME).is_file())
    return f"; beside it there are {', '.join(found[:8])}" if found else ""


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
