"""Checkpoints in Orbax's format: zarr arrays in an OCDBT database, through the package ``tensorstore``.

Each process writes its own database, ``ocdbt.process_N``. At the end, the first process merges their indices into one.
A leaf is an array whose name is its keys, joined by dots (``params.dense.kernel``), in chunks that do not extend across
tiles. ``_METADATA`` describes the tree for Orbax.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.checkpoint_io.files import aligned, write_text
from meshwright.checkpoint_io.index import WRITING, Entry, Keys, Leaf, Piece
from meshwright.checkpoint_io.parsing import damaged, is_name
from meshwright.core import pytree
from meshwright.core.pytree_keys import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey
from meshwright.errors import CheckpointDamagedError, CheckpointError, MissingExtraError

MANIFEST = "manifest.ocdbt"
_PROCESS = "ocdbt.process_"
#: Orbax's file for the tree, and our key in it for the checksum of the entries in the index
_TREE, _INDEX = "_METADATA", "meshwright.entries"
#: the size in bytes of a chunk, if a tile can be cut so, and of concurrent writes
_CHUNK, _UNDER_WAY = 1 << 24, 1 << 28
#: the approximate size in bytes of a file, after which another is started, as several are written in parallel
_FILE = 1 << 27
#: Orbax's name for an array, as opposed to containers
ARRAY = "np.ndarray"


def require() -> Any:
    """The module ``tensorstore``.

    Raises:
      MissingExtraError: it is not installed.
    """
    if find_spec("tensorstore") is None:
        raise MissingExtraError(
            "checkpoints in zarr need the package tensorstore: pip install 'meshwright[checkpoints]', or use "
            "format='safetensors'"
        )
    return import_module("tensorstore")


# --- names --------------------------------------------------------------------------------------------------
def nodes(tree: Any) -> list[tuple[Keys, str]]:
    """The keys of each leaf and each container without leaves, with Orbax's name for its kind."""
    pairs, _ = pytree.flatten_with_path(tree, lambda x: not pytree.leaves(x))
    return [(tuple(map(_key, path)), _kind(value)) for path, value in pairs]


def _key(key: Any) -> tuple[str, int]:
    """A key as text, with Orbax's number for its kind: 1 in a sequence, 2 in a dict."""
    match key:
        case DictKey(text):
            return str(text), 2
        case SequenceKey(number) | FlattenedIndexKey(number):
            return str(number), 1
        case GetAttrKey(name):
            return name, 2
    return str(key), 2


def _kind(x: Any) -> str:
    """Orbax's name for an array, or for an empty container."""
    if pytree.leaves(x):
        return ARRAY
    kinds: dict[type, str] = {dict: "Dict", list: "List", tuple: "Tuple"}
    return kinds.get(type(x), "None")


def names(leaves: Sequence[Leaf]) -> list[str]:
    """Orbax's name for each array: its keys, joined by dots, with a number if another array has the same place."""
    names: dict[str, str] = {}
    for number, leaf in enumerate(leaves):
        name = ".".join(key for key, _ in leaf.keys).encode(errors="backslashreplace").decode()
        numbered = (f"{name}.{n}" for n in count(number))
        name = name if _inside(name) not in names else next(n for n in numbered if _inside(n) not in names)
        names[_inside(name)] = name
    return [*names.values()]


def _inside(name: str) -> str:
    """The path of an array in a database."""
    return name if not name or name.endswith("/") else f"{name}/"


def _tree_metadata(known: Sequence[tuple[Keys, str]], entries: Sequence[Entry]) -> str:
    """The contents of Orbax's ``_METADATA``."""
    tree = {
        str(tuple(key for key, _ in keys)): {
            "key_metadata": [{"key": key, "key_type": kind} for key, kind in keys],
            "value_metadata": {"value_type": what, "skip_deserialize": what != ARRAY},
        }
        for keys, what in known
    }
    options = {"use_ocdbt": True, "use_zarr3": False, "store_array_data_equal_to_fill_value": True}
    return json.dumps({"tree_metadata": tree, **options, "custom_metadata": {_INDEX: _checksum(entries)}})


def _checksum(entries: Sequence[Entry]) -> int:
    return zlib.crc32(json.dumps([e.plain() for e in entries]).encode())


# --- databases ----------------------------------------------------------------------------------------------
def _database(folder: Path, name: str = "") -> dict[str, Any]:
    return {
        "driver": "ocdbt",
        "base": {"driver": "file", "path": f"{folder}/", "file_io_mode": {"mode": "memmap"}},  # reads copy once
        "target_data_file_size": _FILE,
        **({"path": _inside(name)} if name else {}),
    }


def _spec(folder: Path, name: str) -> dict[str, Any]:
    """The tensorstore spec of an array. In checkpoints of older versions, an array is a folder.

    Raises:
      CheckpointDamagedError: the array is outside of the checkpoint.
    """
    if (folder / MANIFEST).exists():
        return {"driver": "zarr", "kvstore": _database(folder, name), "fill_missing_data_reads": False}
    if not is_name(name):
        raise damaged(folder, f"an array is in {name!r}, which is no part of the checkpoint")
    return {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder / name}/"}}


def _chunk(tile: Sequence[int], itemsize: int) -> list[int]:
    """The shape of chunks: tiles, cut along their first dimensions into equal parts that are small enough."""
    chunk = [max(n, 1) for n in tile]
    for d, n in enumerate(chunk):
        pieces = -(-int(np.prod(chunk, dtype=np.int64)) * itemsize // _CHUNK)
        chunk[d] = n // next((p for p in range(min(pieces, n), n + 1) if n % p == 0), 1)
    return chunk


def folder_of(rank: int) -> str:
    """The name of a process's database."""
    return f"{_PROCESS}{rank}"


def write(place: Path, rank: int, leaves: Sequence[Leaf], progress: Callable[[int], None]) -> list[Entry]:
    """Write this process's pieces; returns the entries with these pieces.

    Raises:
      CheckpointError: tensorstore failed.
    """
    folder = place / folder_of(rank)
    under_way: list[tuple[Any, int]] = []
    try:
        for leaf, name in zip(leaves, names(leaves)):
            for written, nbytes in _begun(folder, name, leaf):
                under_way.append((written, nbytes))
                if sum(n for _, n in under_way) > _UNDER_WAY:
                    _finish(under_way, progress)
        _finish(under_way, progress)
    except (ValueError, RuntimeError, NotImplementedError) as error:
        raise CheckpointError(
            f"save: {place.name.partition(WRITING)[0]} cannot be written by tensorstore: {error}"
        ) from None
    finally:
        for written, _ in under_way:  # after a failure, wait until nothing is written any more
            written.exception()
    return [leaf.entry for leaf in leaves]


def _begun(folder: Path, name: str, leaf: Leaf) -> Iterator[tuple[Any, int]]:
    """Start writing the pieces of an array; yields a future and the size in bytes of each.

    Raises:
      CheckpointError: zarr does not support the dtype.
    """
    if not leaf.pieces:
        return
    entry, dtype = leaf.entry, leaf.dtype
    metadata = {"shape": entry.shape, "chunks": _chunk(leaf.tile, dtype.itemsize), "compressor": None}
    spec = {
        "driver": "zarr", "kvstore": _database(folder, name), "dtype": dtype.name, "metadata": metadata,
        "store_data_equal_to_fill_value": True,  # so that a missing chunk is known to be lost, and not zero
    }  # fmt: skip
    try:
        store = require().open(spec, open=True, create=True).result()
    except ValueError as error:  # zarr does not support the dtype
        raise CheckpointError(
            f"save: the leaf {entry.path!r} cannot be written by tensorstore: {error}; format='safetensors' takes "
            "every dtype"
        ) from None
    for start, stop, value in leaf.pieces:
        data = np.asarray(value(), order="C")
        where = tuple(slice(a, b) for a, b in zip(start, stop))
        written = store[where].write(data, can_reference_source_data_indefinitely=True)
        crc = zlib.crc32(data.reshape(-1).view(np.uint8).data)  # computed while the data is written
        entry.pieces.append(Piece(start, stop, name, 0, data.nbytes, crc))
        yield written, data.nbytes


def _finish(under_way: list[tuple[Any, int]], progress: Callable[[int], None]) -> None:
    while under_way:
        written, nbytes = under_way.pop(0)
        written.result()
        progress(nbytes)


def join(place: Path, known: Sequence[tuple[Keys, str]], entries: Sequence[Entry]) -> None:
    """Merge the databases of all processes into one, which refers to their data.

    ``known`` is the result of :func:`nodes`.

    Raises:
      CheckpointError: tensorstore failed.
    """
    ts = require()
    context, change = ts.Context(), ts.Transaction(atomic=True)
    try:
        whole = ts.KvStore.open(_database(place), context=context).result().with_transaction(change)
        for folder in sorted(place.glob(f"{_PROCESS}*")):
            part = ts.KvStore.open(_database(folder), context=context).result()
            part.experimental_copy_range_to(whole).result()
        change.commit_async().result()
    except (ValueError, RuntimeError, NotImplementedError) as error:
        raise CheckpointError(f"save: the processes' databases cannot be joined by tensorstore: {error}") from None
    write_text(place / _TREE, _tree_metadata(known, entries))


# --- reading ------------------------------------------------------------------------------------------------
def read(folder: Path, entry: Entry, index: Sequence[slice]) -> np.ndarray:
    """Read a part of an array, into memory that a device can use without a copy.

    Raises:
      CheckpointDamagedError: it cannot be read, or has another type than the entry.
    """
    ts = require()
    try:
        store = ts.open(_spec(folder, entry.pieces[0].file), open=True, read=True).result()
        found = f"{store.dtype.name}{list(store.shape)}"
        if found == f"{entry.dtype}{entry.shape}":
            part = store[tuple(index)].translate_to[0]
            array = aligned(part.shape, np.dtype(store.dtype.numpy_dtype))
            ts.array(array).write(part).result()
            return array
    except Exception as error:  # tensorstore raises various types
        raise damaged(folder, f"the array {entry.path!r} cannot be read: {error}") from None
    raise damaged(folder, f"the array {entry.path!r} is {found}, not {entry.dtype}{entry.shape}")


def check_index(folder: Path, entries: Sequence[Entry]) -> None:
    """Check that the index belongs to this checkpoint. Checkpoints of older versions do not record it.

    Raises:
      CheckpointDamagedError: it belongs to another one, or the metadata cannot be read.
    """
    if not (folder / MANIFEST).exists():
        return
    try:
        own = json.loads((folder / _TREE).read_text())["custom_metadata"] or {}
        known = own.get(_INDEX)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(folder / _TREE, error) from None
    if known is not None and known != _checksum(entries):
        raise damaged(folder, "its index is of another checkpoint")


def check(folder: Path, entry: Entry, piece: Piece) -> bool:
    """Whether a piece can be read and has the checksum in the index."""
    try:
        value = read(folder, entry, [slice(a, b) for a, b in zip(piece.start, piece.stop)])
    except CheckpointDamagedError:
        return False
    return zlib.crc32(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data) == piece.crc32
