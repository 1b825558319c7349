"""Weights in safetensors files: read by name straight into shardings, written in files of bounded size.

The library checks a file's header; tensors are then read from the mapped file, each part when a device needs it, so
that nothing is whole in memory that is not whole on a device. There are no pickles. Directories and index files are as
Hugging Face's libraries write them.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.api.assembling import make_array_from_callback
from meshwright.api.shardings import resolve
from meshwright.core.dtypes import as_dtype, canonical, kind_of
from meshwright.core.files import user_file
from meshwright.core.records import dataclass
from meshwright.errors import WeightsError
from meshwright.interop.extras import require
from meshwright.runtime.array import default_sharding

INDEX = "model.safetensors.index.json"
_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "I32": "int32", "U32": "uint32",
    "I64": "int64", "U64": "uint64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "C64": "complex64",
}  # fmt: skip
#: how many rows a table of what does not fit shows of each kind
_SHOWN = 20


# --- files --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Entry:
    """Where a tensor is: its file, type, and the byte at which it begins."""

    file: Path
    dtype: np.dtype
    shape: tuple[int, ...]
    start: int

    def part(self, index: Any = ()) -> np.ndarray:
        """The tensor, or a slice of it, read from the file."""
        if math.prod(self.shape) == 0:
            return np.zeros(self.shape, self.dtype)[index]
        mapped = np.memmap(self.file, np.uint8, "r", self.start, (math.prod(self.shape) * self.dtype.itemsize,))
        return np.array(mapped.view(self.dtype).reshape(self.shape)[index])


def _header(file: Path) -> dict[str, Entry]:
    """The tensors of a file, after the library has checked that each lies within it.

    Raises:
      WeightsError: not a safetensors file, or one that is cut off or says what is not so.
    """
    library = require("safetensors")
    try:
        with library.safe_open(file, "np"):
            pass
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(length))
    except FileNotFoundError:
        raise WeightsError(f"there is no file {str(file)!r}") from None
    except Exception as error:
        raise WeightsError(f"{file}: cannot be read as safetensors ({error})") from None
    size = file.stat().st_size
    return {name: _entry(file, name, raw, 8 + length, size) for name, raw in header.items() if name != "__metadata__"}


def _entry(file: Path, name: str, raw: Mapping[str, Any], base: int, size: int) -> Entry:
    if raw["dtype"] not in _DTYPES:
        raise WeightsError(f"{file}: {name} has dtype {raw['dtype']}, which arrays do not have")
    dtype, shape = as_dtype(_DTYPES[raw["dtype"]]), tuple(raw["shape"])
    start, end = raw["data_offsets"]
    if end - start != math.prod(shape) * dtype.itemsize or base + end > size:
        raise WeightsError(f"{file}: {name} of type {dtype}{list(shape)} is said to be in bytes {start} to {end}")
    return Entry(file, dtype, shape, base + start)


def _files(path: Path) -> list[Path]:
    """The files that a path stands for: one, those of an index, or those of a directory."""
    if path.is_dir():
        index = path / INDEX
        files = _files(index) if index.exists() else sorted(path.glob("*.safetensors"))
        if not files:
            raise WeightsError(f"{path}: has no safetensors files")
        return files
    if path.suffix != ".json":
        return [path]
    try:
        named = set(json.loads(path.read_text())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{path}: is no index of weights ({type(error).__name__}: {error})") from None
    for name in named:
        if not isinstance(name, str) or Path(name).name != name:
            raise WeightsError(f"{path}: names the file {name!r}, which is not beside it")
    return [path.parent / name for name in sorted(named)]


def entries(path: str | os.PathLike[str]) -> dict[str, Entry]:
    """Where each tensor of a file, index or directory is.

    Raises:
      WeightsError: files that cannot be read, or that have a tensor twice.
    """
    entries: dict[str, Entry] = {}
    for file in _files(Path(path)):
        for name, entry in _header(file).items():
            if name in entries:
                raise WeightsError(f"{name} is in {entries[name].file} and in {file}")
            entries[name] = entry
    return entries


# --- names --------------------------------------------------------------------------------------------------
def renamed(name: str, patterns: Iterable[tuple[str, str]]) -> str:
    """``name`` after each (regular expression, replacement), one after another."""
    for pattern, replacement in patterns:
        try:
            name = re.sub(pattern, replacement, name)
        except re.error as error:
            raise WeightsError(
                f"rename: {pattern!r} to {replacement!r} is no replacement of an expression ({error})"
            ) from None
    return name


def fit(weights: Mapping[str, Any], like: Mapping[str, Any], rename: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
    """``weights`` (arrays, tensors of a ``state_dict``, anything with ``shape``) under the names of ``like``, renamed.

    Raises:
      WeightsError: a table of what is missing, left over, of another shape, or of a type that loses a part of it.
    """
    given: dict[str, Any] = {}
    for name, value in weights.items():
        target = renamed(name, rename)
        if target in given:
            raise WeightsError(f"{name!r} and another weight are both renamed to {target!r}")
        given[target] = value
    different = {n for n in given.keys() & like.keys() if tuple(given[n].shape) != tuple(like[n].shape)}
    rows = [
        *_rows("missing", sorted(like.keys() - given.keys()), lambda n: f"{tuple(like[n].shape)}"),
        *_rows("left over", sorted(given.keys() - like.keys()), lambda n: f"{tuple(given[n].shape)}"),
        *_rows("dtype", _narrowed(given, like), lambda n: f"is {given[n].dtype}, expected {like[n].dtype}"),
        *_rows("shape", sorted(different), lambda n: f"is {tuple(given[n].shape)}, expected {tuple(like[n].shape)}"),
    ]
    if rows:
        raise WeightsError("the weights do not fit:\n" + "\n".join(rows) + "\nSee rename= for names that differ")
    return {name: given[name] for name in like}


def _narrowed(given: Mapping[str, Any], like: Mapping[str, Any]) -> list[str]:
    """The names of weights that would lose imaginary parts or fractions."""
    types = {n: (getattr(given[n], "dtype", None), getattr(like[n], "dtype", None)) for n in given.keys() & like.keys()}
    known = {n: (a, b) for n, (a, b) in types.items() if isinstance(a, np.dtype) and isinstance(b, np.dtype)}
    return sorted(n for n, (a, b) in known.items() if kind_of(a) > kind_of(b))


def _rows(kind: str, names: list[str], shown: Any) -> list[str]:
    more = [f"  {kind:9}  and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return [*(f"  {kind:9}  {n}  {shown(n)}" for n in names[:_SHOWN]), *more]


# --- load and save ------------------------------------------------------------------------------------------
def load(
    path: str | os.PathLike[str],
    *,
    like: Mapping[str, Any] | None = None,
    shardings: Any = None,
    rename: Sequence[tuple[str, str]] = (),
) -> dict[str, Any]:
    """Arrays by name from a safetensors file, a Hugging Face index file, or a directory with either.

    Args:
      path: the file, index or directory.
      like: what is expected, as ``model.params``: arrays or types by name; each gets its dtype.
      shardings: one for all, or by name (names without one go to the default device). Each device's part is read from
        the file.
      rename: pairs of a regular expression and its replacement, for names in the file.

    Raises:
      WeightsError: files that cannot be read, or do not hold what ``like`` has, or integers beyond the type that they
        are loaded in: nothing is loaded then.
      MissingExtraError: safetensors is not installed.

    Example:
      >>> mw.interop.safetensors.save("/tmp/w.safetensors", {"a": mnp.ones(2)})
      >>> mw.interop.safetensors.load("/tmp/w.safetensors")
      {'a': Array([1., 1.], dtype=float32)}
    """
    stored = entries(path)
    named = {renamed(n, rename): e for n, e in stored.items()} if like is None else fit(stored, like, rename)
    if len(named) != len(stored):
        raise WeightsError(f"{path}: rename gives several weights one name")
    placed = _by_name(shardings, named)
    return {name: _array(name, entry, like, placed[name]) for name, entry in named.items()}


def _by_name(shardings: Any, names: Iterable[str]) -> dict[str, Any]:
    """The sharding of each weight, None for those without one.

    Raises:
      WeightsError: a sharding of a weight that is not there.
    """
    if isinstance(shardings, Mapping):
        left = sorted(set(shardings) - set(names), key=str)
        if left:
            raise WeightsError(f"load: shardings has {left[0]!r}, and no weight has that name; there are "
                               f"{', '.join(sorted(names)[:_SHOWN])}")  # fmt: skip
        return {name: resolve(shardings.get(name), f"load: shardings[{name!r}]") for name in names}
    return dict.fromkeys(names, resolve(shardings, "load: shardings"))


def _array(name: str, entry: Entry, like: Mapping[str, Any] | None, sharding: Any) -> Any:
    dtype = canonical(entry.dtype if like is None else np.dtype(like[name].dtype))

    def part(index: Any) -> np.ndarray:
        stored = entry.part(index)
        values = stored.astype(dtype, copy=False)
        if dtype.kind in "iu" and not np.array_equal(values, stored):
            raise WeightsError(
                f"load: {name} has {entry.dtype} numbers that {dtype} does not hold; "
                "load them with meshwright.config.update('enable_x64', True)"
            )
        return values

    return make_array_from_callback(entry.shape, sharding or default_sharding(), part)


def _values(tensors: Mapping[str, Any], names: Iterable[str]) -> dict[str, np.ndarray]:
    values = {n: np.ascontiguousarray(np.asarray(tensors[n])).reshape(np.shape(tensors[n])) for n in names}
    for name, value in values.items():
        if value.dtype.name not in _DTYPES.values():
            raise WeightsError(f"{name}: safetensors files have no dtype for {value.dtype}")
    return values


def _shards(tensors: Mapping[str, Any], limit: float) -> list[list[str]]:
    """Names in groups of at most ``limit`` bytes each, in order; what is larger is alone."""
    groups: list[list[str]] = [[]]
    filled = 0
    for name, x in tensors.items():
        if groups[-1] and filled + x.nbytes > limit:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += x.nbytes
    return groups


def save(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Any],
    *,
    metadata: Mapping[str, str] | None = None,
    max_bytes: float = math.inf,
) -> None:
    """Write arrays by name to a safetensors file; with ``max_bytes`` to a directory of files of that size and an index,
    as Hugging Face's libraries read it.

    Raises:
      WeightsError: a dtype or name that the format does not have, or a file that cannot be written.
      MissingExtraError: safetensors is not installed.
    """
    path = Path(path)
    if math.isinf(max_bytes):
        _save_file(path, _values(tensors, tensors), metadata)
        return
    with user_file("save: path", path, WeightsError):
        path.mkdir(parents=True, exist_ok=True)
    groups = _shards(tensors, max_bytes)
    files = [f"model-{i + 1:05}-of-{len(groups):05}.safetensors" for i in range(len(groups))]
    for file, names in zip(files, groups):
        _save_file(path / file, _values(tensors, names), metadata)
    index = {
        "metadata": {"total_size": sum(x.nbytes for x in tensors.values())},
        "weight_map": {n: file for file, names in zip(files, groups) for n in names},
    }
    with user_file("save: path", path / INDEX, WeightsError):
        (path / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _save_file(file: Path, values: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None) -> None:
    """Write one file; raises as :func:`save`."""
    library = require("safetensors.numpy", "safetensors")
    try:
        library.save_file(values, file, {"format": "np", **(metadata or {})})
    except Exception as error:  # the library has errors of its own, beside those of types and of the disk
        raise WeightsError(f"save: {file} cannot be written ({error})") from None
