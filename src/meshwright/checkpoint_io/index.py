"""What a checkpoint says of itself: an index in JSON, which lists every array and where its pieces are.

A checkpoint is a folder. It is written under another name beside its own, and takes its name when all of it is on disk:
a folder with the right name is whole.
"""

from __future__ import annotations

import json
import reprlib
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, field
from typing import Any

import numpy as np

from meshwright.core import pytree
from meshwright.core.records import dataclass
from meshwright.errors import CheckpointDamagedError

NAME = "checkpoint.json"
FORMATS = "safetensors", "tensorstore"
VERSION = 1
#: how one goes to a leaf: keys as text, with a number for the kind of container
Keys = tuple[tuple[str, int], ...]
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
    """An array to write: the shape of its tiles, the pieces that this process has (start, stop, what gives the value),
    and its keys in the tree, for who names it by them."""

    entry: Entry
    dtype: np.dtype
    tile: Sequence[int]
    pieces: Sequence[tuple[list[int], list[int], Callable[[], np.ndarray]]]
    keys: Keys = ()


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
        return json.dumps({**raw, "crc32": checksum(raw)})


def checksum(raw: dict[str, Any]) -> int:
    """Of an index without its own checksum."""
    return zlib.crc32(json.dumps(raw, sort_keys=True).encode())


def block_name(path: str, start: Sequence[int], stop: Sequence[int]) -> str:
    """The name in a file of a piece of the leaf ``path``."""
    return f"{path}[{','.join(f'{a}:{b}' for a, b in zip(start, stop))}]"


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
    """The opposite of :func:`structure`.

    Raises:
      CheckpointDamagedError: what says no tree. IndexError: a leaf that is not there.
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
