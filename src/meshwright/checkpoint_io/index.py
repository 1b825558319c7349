"""The index of a checkpoint, in JSON: a list of all arrays with the places of their pieces.

A checkpoint is a folder. It is written under a temporary name next to its own, and renamed once everything is on disk.
So a folder with the final name is complete.
"""

from __future__ import annotations

import json
import reprlib
import zlib
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from meshwright.core import pytree
from meshwright.core.records import dataclass
from meshwright.errors import CheckpointDamagedError

NAME = "checkpoint.json"
FORMATS = "safetensors", "tensorstore"
VERSION = 1
#: the path to a leaf: keys as text, each with a number for the kind of container
Keys = tuple[tuple[str, int], ...]
#: suffixes of the folders of checkpoints that are being written, or were replaced
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
    """An array: the path of its leaf, its type and its pieces. For random keys, ``key`` is their generator's name."""

    path: str
    shape: list[int]
    dtype: str
    key: str | None = None
    pieces: list[Piece] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """As dicts and lists, for JSON."""
        return {**vars(self), "pieces": [vars(p) for p in self.pieces]}


@dataclass
class Leaf:
    """An array to write: the shape of its tiles, and this process's pieces as (start, stop, function for the value).

    ``keys`` are its path in the tree, by which zarr names it.
    """

    entry: Entry
    dtype: np.dtype
    tile: Sequence[int]
    pieces: Sequence[tuple[list[int], list[int], Callable[[], np.ndarray]]]
    keys: Keys = ()


@dataclass
class Index:
    """All arrays, in the order of the tree's leaves. ``tree`` is the structure of trees of dicts, lists and tuples."""

    entries: list[Entry]
    tree: Any = None
    format: str = "safetensors"
    step: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    version: int = VERSION

    def text(self) -> str:
        """The index as JSON, with a checksum of the rest."""
        raw = {**vars(self), "entries": [e.plain() for e in self.entries]}
        return json.dumps({**raw, "crc32": checksum(raw)})


def checksum(raw: dict[str, Any]) -> int:
    """The checksum of an index, which must not contain its checksum."""
    return zlib.crc32(json.dumps(raw, sort_keys=True).encode())


def block_name(path: str, start: Sequence[int], stop: Sequence[int]) -> str:
    """The name in a file for a piece of the leaf ``path``."""
    return f"{path}[{','.join(f'{a}:{b}' for a, b in zip(start, stop))}]"


# --- trees --------------------------------------------------------------------------------------------------
def structure(tree: Any) -> Any:
    """The structure of a tree of dicts, lists and tuples, as JSON; None for other trees, which have only paths."""
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
    """The inverse of :func:`structure`, with these leaves.

    Raises:
      CheckpointDamagedError: ``code`` is not that of a tree.
      IndexError: there are too few leaves.
    """
    match [*code.items()] if type(code) is dict else code:
        case [("none", True)]:
            return None
        case [("dict", dict(items))]:
            return {k: rebuilt(v, leaves) for k, v in items.items()}
        case [("list", list(items))]:
            return [rebuilt(v, leaves) for v in items]
        case [("tuple", list(items))]:
            return tuple(rebuilt(v, leaves) for v in items)
        case [("leaf", int(number))] if type(number) is int and number >= 0:
            return leaves[number]
    raise CheckpointDamagedError(f"{reprlib.repr(code)} says no tree")
