"""Reads and checks the index of a checkpoint.

Every field must have a value that saving could have written. Each element must be in exactly one piece, each leaf of
the tree must be one array, and shapes and dtypes must be valid in NumPy. Whether the files agree is checked when they
are read.
"""

from __future__ import annotations

import json
import math
import os
import reprlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from meshwright.checkpoint_io.index import FORMATS, NAME, VERSION, Entry, Index, Piece, checksum, rebuilt
from meshwright.core import pytree
from meshwright.core.dtypes import as_dtype, is_representable
from meshwright.core.expected import as_path
from meshwright.core.files import file_state, user_file
from meshwright.core.key_types import KEY_TYPES
from meshwright.core.words import counted
from meshwright.errors import CheckpointDamagedError, CheckpointError, MeshwrightError

_T = TypeVar("_T")


def damaged(path: Path, why: object) -> CheckpointDamagedError:
    """The error for a damaged file; ``why`` is the reason."""
    return CheckpointDamagedError(f"{path} is damaged ({why}); use an earlier checkpoint")


def whole_state(path: Path) -> tuple[int, ...]:
    """A value that changes when a file of a checkpoint is written to (see :func:`file_state`).

    Raises:
      CheckpointDamagedError: the file is missing, or is not a regular file.
    """
    try:
        state = file_state(path)
    except OSError as error:
        raise damaged(path, error.strerror) from None
    if not state:
        raise damaged(path, "expected a file, found a folder, a pipe or a device")
    return state


def read_index(folder: Path) -> Index:
    """Read the index of a checkpoint.

    Raises:
      CheckpointError: there is no checkpoint, or this version cannot read its format.
      CheckpointDamagedError: the index is damaged.
    """
    file = folder / NAME
    if not os.path.lexists(file):
        with user_file("restore: directory", folder, CheckpointError):
            raise CheckpointError(f"there is no checkpoint at {folder}{_neighbours(folder)}")
    whole_state(file)
    try:
        raw = json.loads(file.read_text(errors="replace"))
        if type(raw) is not dict or type(raw.get("version")) is not int:
            raise CheckpointDamagedError("it has no version")
        if "crc32" in raw and raw.pop("crc32") != checksum(raw):
            raise CheckpointDamagedError("its checksum is of another text")
        if raw["version"] == VERSION:
            return _index(raw)
    except (OSError, ValueError, RecursionError, MeshwrightError) as error:
        raise damaged(file, error) from None
    raise CheckpointError(
        f"{folder} is a checkpoint of format {raw['version']}, this version reads {VERSION}; read it with the version "
        "of meshwright that wrote it"
    )


def _neighbours(folder: Path) -> str:
    """For an error: the other checkpoints in the same folder."""
    if not folder.parent.is_dir():
        return f": the folder {folder.parent} does not exist"
    names = sorted(p.name for p in folder.parent.iterdir() if (p / NAME).is_file())
    return f"; beside it there are {', '.join(names[:8])}" if names else ""


# --- fields -------------------------------------------------------------------------------------------------
def _are(kind: type, values: Any) -> bool:
    return type(values) is list and all(type(x) is kind for x in values)


#: by the annotation of a field: a description, and a predicate for values; bools are not numbers
_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "int": ("an integer", lambda x: type(x) is int),
    "int | None": ("an integer or null", lambda x: x is None or type(x) is int),
    "str": ("text", lambda x: type(x) is str),
    "str | None": ("text or null", lambda x: x is None or type(x) is str),
    "list[int]": ("a list of integers", lambda x: _are(int, x)),
    "list[Piece]": ("a list of pieces", lambda x: _are(Piece, x)),
    "list[Entry]": ("a list of arrays", lambda x: _are(Entry, x)),
    "dict[str, float]": (
        "numbers by name", lambda x: type(x) is dict and all(type(v) in (int, float) for v in x.values()),
    ),
    "Any": ("anything", lambda x: True),
}  # fmt: skip


@cache
def _known(cls: Any) -> dict[str, tuple[str, Callable[[Any], bool], bool]]:
    """For each field of a record: a description, a predicate for values, and whether it is required."""
    return {f.name: (*_KINDS[str(f.type)], f.default is MISSING and f.default_factory is MISSING) for f in fields(cls)}


def _made(cls: type[_T], raw: Any) -> _T:
    """Make a record of class ``cls`` from the fields ``raw``.

    Raises:
      CheckpointDamagedError: a field is missing, unknown, or of another type.
    """
    kind, known = cls.__name__.lower(), _known(cls)  # type: ignore[arg-type]
    for name, (words, is_right, needed) in known.items():
        if name in raw:
            if not is_right(raw[name]):
                raise CheckpointDamagedError(f"{kind}.{name}: expected {words}, got {reprlib.repr(raw[name])}")
        elif needed:
            raise CheckpointDamagedError(f"{kind}.{name} is missing")
    if unknown := raw.keys() - known.keys():
        raise CheckpointDamagedError(f"{kind}.{min(unknown)} is not known")
    return cls(**raw)


def _listed(raw: Any, name: str, make: Callable[[Any], Any]) -> dict[str, Any]:
    """``raw`` with ``make`` applied to each element of its field ``name``.

    Raises:
      CheckpointDamagedError: ``raw`` is not a dict, or the field is not a list of dicts.
    """
    if type(raw) is not dict or type(raw.get(name)) is not list or not all(type(x) is dict for x in raw[name]):
        raise CheckpointDamagedError(f"expected fields with a list {name!r} of fields, got {reprlib.repr(raw)}")
    return {**raw, name: [make(x) for x in raw[name]]}


def _index(raw: dict[str, Any]) -> Index:
    """Make and check the index.

    Raises:
      CheckpointDamagedError: it is inconsistent.
      DTypeError, ArgumentError: a dtype or a file name is invalid.
    """
    index = _made(Index, _listed(raw, "entries", _entry))
    if index.format not in FORMATS:
        raise CheckpointDamagedError(f"it is of format {index.format!r}, expected one of {', '.join(FORMATS)}")
    for what, names in {
        "arrays": [e.path for e in index.entries],
        "arrays in zarr": [p.file for e in index.entries for p in e.pieces[:1] if index.format == "tensorstore"],
    }.items():
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise CheckpointDamagedError(f"two {what} are {twice[0]!r}")
    for entry in index.entries:
        files = {p.file for p in entry.pieces}
        if index.format != "tensorstore" and not all(map(is_name, files)):
            raise CheckpointDamagedError(f"{entry.path!r} is in {files}, which is no part of the checkpoint")
        if index.format == "tensorstore" and len(files) > 1:
            raise CheckpointDamagedError(f"{entry.path!r} is in several arrays of zarr")
    if index.tree is not None:
        _check_tree(index)
    return index


def _check_tree(index: Index) -> None:
    """Check that the leaves of the tree are the arrays, in order.

    Raises:
      CheckpointDamagedError: they are not.
    """
    numbers = range(len(index.entries))
    try:
        tree = rebuilt(index.tree, numbers)
    except IndexError:
        raise CheckpointDamagedError("its tree has a leaf without an array") from None
    if pytree.leaves(tree) != [*numbers] or pytree.paths(tree) != [e.path for e in index.entries]:
        raise CheckpointDamagedError("the leaves of its tree are not its arrays")


# --- arrays -------------------------------------------------------------------------------------------------
def _entry(raw: Any) -> Entry:
    """Make the entry of an array, and check that its pieces make up the whole array.

    Raises:
      CheckpointDamagedError: they do not, or the type is inconsistent.
      DTypeError: the dtype is unknown.
    """
    entry = _made(Entry, _listed(raw, "pieces", lambda p: _made(Piece, p)))
    dtype = as_dtype(entry.dtype)
    if dtype.name != entry.dtype or not is_representable(entry.shape, dtype):
        raise CheckpointDamagedError(
            f"{entry.path!r} is of type {entry.dtype!r} and shape {entry.shape}, which no array has"
        )
    words = {k.name: k.words for k in KEY_TYPES.values()}
    if entry.key is not None and (entry.dtype, *entry.shape[-1:]) != ("uint32", words.get(entry.key)):
        raise CheckpointDamagedError(
            f"{entry.path!r} of type {dtype}{entry.shape} is said to have random keys {entry.key!r}"
        )
    sizes = [_size(entry, dtype.itemsize, piece) for piece in entry.pieces]
    if sum(sizes) != math.prod(entry.shape):
        raise CheckpointDamagedError(
            f"the pieces of {entry.path!r} have {counted(sum(sizes), 'element')}, not those of {entry.shape}"
        )
    if 0 in entry.shape and any([0] * len(p.stop) + entry.shape != p.start + p.stop for p in entry.pieces):
        raise CheckpointDamagedError(f"a piece of {entry.path!r}, which is empty, is not all of it")
    _check_grid(entry, [piece for piece, size in zip(entry.pieces, sizes) if size])
    return entry


@lru_cache(1024)
def is_name(file: str) -> bool:
    """Whether this is the name of a file in the same folder.

    Raises:
      ArgumentError: it cannot be a path.
    """
    return file not in ("", ".", "..") and as_path("a piece's file", file).name == file


def _size(entry: Entry, itemsize: int, piece: Piece) -> int:
    """The number of elements of a piece.

    Raises:
      CheckpointDamagedError: the piece is not a part of the array, or its size in bytes is wrong.
    """
    if not len(piece.start) == len(piece.stop) == len(entry.shape):
        raise CheckpointDamagedError(f"a piece of {entry.path!r} has not {counted(len(entry.shape), 'dimension')}")
    if not all(0 <= a <= b <= n for a, b, n in zip(piece.start, piece.stop, entry.shape)) or piece.offset < 0:
        raise CheckpointDamagedError(f"a piece of {entry.path!r} lies outside of it")
    size = math.prod(b - a for a, b in zip(piece.start, piece.stop))
    if piece.count != size * itemsize:
        raise CheckpointDamagedError(
            f"a piece of {entry.path!r} has {counted(piece.count, 'byte')} for {counted(size, 'element')}"
        )
    return size


def _check_grid(entry: Entry, pieces: Sequence[Piece]) -> None:
    """Check that pieces do not overlap. Otherwise they would not cover the array, given their total size.

    Pieces are tiles: along each dimension, the rows of two pieces are either the same or disjoint. So pieces with
    different starts are disjoint.

    Raises:
      CheckpointDamagedError: pieces overlap.
    """
    for d in range(len(entry.shape)):
        rows = sorted({(p.start[d], p.stop[d]) for p in pieces})
        if any(before[1] > after[0] for before, after in pairwise(rows)):
            raise CheckpointDamagedError(f"pieces of {entry.path!r} lie over each other")
    if len({tuple(p.start) for p in pieces}) != len(pieces):
        raise CheckpointDamagedError(f"a piece of {entry.path!r} is there twice")
