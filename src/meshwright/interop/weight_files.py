"""Reading the headers and index files of safetensors: the file, type and offset of each tensor.

Their contents are checked before they are used. Files may be symbolic links, as in Hugging Face's cache, but an index
may only name files in its own directory.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from meshwright.core.dtypes import as_dtype, is_representable
from meshwright.core.expected import as_path
from meshwright.core.files import file_state, user_file
from meshwright.core.records import dataclass
from meshwright.errors import WeightsError
from meshwright.interop.extras import require

_T = TypeVar("_T")
INDEX = "model.safetensors.index.json"
#: the one key of a header that is not the name of a tensor
METADATA = "__metadata__"
DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "I32": "int32", "U32": "uint32",
    "I64": "int64", "U64": "uint64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "C64": "complex64",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip
_AGAIN = "write or download it again"


@dataclass(frozen=True)
class File:
    """A file and its state (as in :func:`file_state`) when its header was read."""

    path: Path
    state: tuple[int, ...]

    @staticmethod
    def at(path: Path) -> File:
        """The file at ``path``.

        Raises:
          WeightsError: there is none, or ``path`` is not a regular file.
        """
        with user_file("load: path", path, WeightsError):
            state = file_state(path)
        if not state:
            raise WeightsError(f"load: path {str(path)!r}: expected a file; name one, an index, or a folder with them")
        return File(path, state)

    def unchanged(self) -> Path:
        """The path, after a check that the file has not changed.

        Raises:
          WeightsError: the file is gone or has changed.
        """
        if File.at(self.path).state != self.state:
            raise WeightsError(f"load: {self.path} was written to while it was read; load it again")
        return self.path


@dataclass(frozen=True)
class Entry:
    """The place of a tensor: its file, dtype and shape, and the byte offset at which its data starts."""

    file: File
    dtype: np.dtype
    shape: tuple[int, ...]
    start: int

    def part(self, index: Any = ()) -> np.ndarray:
        """Read the tensor, or the slice ``index`` of it, from the file.

        Raises:
          WeightsError: the file has changed since its header was read.
        """
        if math.prod(self.shape) == 0:
            return np.zeros(self.shape, self.dtype)[index]
        path = self.file.unchanged()
        with user_file("load: path", path, WeightsError):
            mapped = np.memmap(path, np.uint8, "r", self.start, (math.prod(self.shape) * self.dtype.itemsize,))
        return np.array(mapped.view(self.dtype).reshape(self.shape)[index])


def entries(path: str | os.PathLike[str]) -> dict[str, Entry]:
    """The entries of all tensors of a file, index or directory, by name.

    Raises:
      ArgumentTypeError, ArgumentError: ``path`` is not a path.
      WeightsError: a file cannot be read, lacks a tensor that the index lists for it, or has a tensor that another file
        has too.
    """
    entries: dict[str, Entry] = {}
    for file, expected in _files(as_path("load: path", path)).items():
        header = _header(file)
        lacking = sorted(expected - header.keys())
        if lacking:
            raise WeightsError(f"{file}: has no tensor {lacking[0]!r}, which the index beside it has there; {_AGAIN}")
        for name, entry in header.items():
            if name in entries:
                raise WeightsError(f"{name} is in {entries[name].file.path} and in {file}")
            entries[name] = entry
    return entries


# --- headers ------------------------------------------------------------------------------------------------
def _header(path: Path) -> dict[str, Entry]:
    """The entries of the tensors of one file. The safetensors library checks the header first.

    Raises:
      WeightsError: the file is not a safetensors file, is truncated, or has an inconsistent header.
    """
    file, library = File.at(path), require("safetensors")

    def read() -> dict[str, Entry]:
        with library.safe_open(path, "np"):
            pass
        with path.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(length))
        return {name: _entry(file, name, raw, 8 + length) for name, raw in header.items() if name != METADATA}

    return _believed(path, "safetensors", read)


def _entry(file: File, name: str, raw: Mapping[str, Any], base: int) -> Entry:
    if raw["dtype"] not in DTYPES:
        raise WeightsError(f"{file.path}: {name} has dtype {raw['dtype']}, which arrays do not have")
    dtype, shape = as_dtype(DTYPES[raw["dtype"]]), tuple(raw["shape"])
    if not is_representable(shape, dtype):
        raise WeightsError(f"{file.path}: {name} is of shape {shape}, which no array has")
    start, end = raw["data_offsets"]
    if end - start != math.prod(shape) * dtype.itemsize or base + end > file.path.stat().st_size:
        raise WeightsError(f"{file.path}: {name} of type {dtype}{list(shape)} is said to be in bytes {start} to {end}")
    return Entry(file, dtype, shape, base + start)


def _believed(path: Path, kind: str, read: Callable[[], _T]) -> _T:
    """The result of ``read``, with any exception reported as a file that is not of the ``kind``."""
    try:
        return read()
    except WeightsError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise WeightsError(f"{path}: cannot be read as {kind} ({why}); {_AGAIN}") from None


# --- index files --------------------------------------------------------------------------------------------
def _files(path: Path) -> dict[Path, set[str]]:
    """The files that ``path`` denotes: the file itself, those of an index, or those of a directory.

    Each comes with the names of the tensors that the index lists for it; without an index these are empty.
    """
    if path.is_dir():
        index = path / INDEX
        files = _files(index) if index.exists() else {f: set[str]() for f in sorted(path.glob("*.safetensors"))}
        if not files:
            raise WeightsError(f"{path}: has no safetensors files")
        return files
    if path.suffix != ".json":
        return {path: set()}
    return _believed(File.at(path).path, "an index of weights", lambda: _named(path))


def _named(index: Path) -> dict[Path, set[str]]:
    """The files that an index names, with the names of the tensors of each.

    Raises:
      WeightsError: a file is not in the directory of the index.
      Exception: the index is not of the expected form.
    """
    files: dict[Path, set[str]] = {}
    for tensor, name in json.loads(index.read_text("utf-8"))["weight_map"].items():
        if not isinstance(name, str) or name in ("", "..") or Path(name).name != name:
            raise WeightsError(f"{index}: names the file {name!r}, which is not beside it")
        files.setdefault(as_path("weight_map", index.parent / name), set()).add(tensor)
    return dict(sorted(files.items()))


def index_of(placed: Mapping[str, str], total: int) -> str:
    """The text of an index: the file of each tensor (``placed``), and their ``total`` size in bytes."""
    return json.dumps({"metadata": {"total_size": total}, "weight_map": dict(placed)}, indent=2) + "\n"
