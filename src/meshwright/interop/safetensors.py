"""Loading weights from safetensors files onto any sharding, and saving them in files of bounded size.

After the library has checked a file's header, tensors are read from the memory-mapped file, each part when its device
needs it, so that a sharded tensor is never whole in host memory. No pickles are read. Directories and index files have
the form that Hugging Face's libraries read and write.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.api.assembling import make_array_from_callback
from meshwright.api.shardings import resolve
from meshwright.core.dtypes import canonical, kind_of
from meshwright.core.expected import as_number, as_path, refused
from meshwright.core.files import user_file
from meshwright.errors import ArgumentError, ArgumentTypeError, WeightsError
from meshwright.interop.extras import require
from meshwright.interop.weight_files import DTYPES, INDEX, METADATA, Entry, entries, index_of
from meshwright.runtime.array import Array, default_sharding

#: the number of rows of each kind that a table of mismatches shows
_SHOWN = 20


# --- names --------------------------------------------------------------------------------------------------
def renamed(name: str, patterns: Iterable[tuple[str, str]]) -> str:
    """``name`` after the replacement of each (regular expression, replacement), in order.

    Raises:
      ArgumentTypeError: ``patterns`` are not pairs of strings.
      WeightsError: an expression or replacement is invalid.
    """
    for pair in patterns:
        if not isinstance(pair, tuple | list) or [type(p) for p in pair] != [str, str]:
            raise refused("rename", "pairs of a regular expression and its replacement", patterns)
        try:
            name = re.sub(*pair, name)
        except re.error as error:
            raise WeightsError(
                f"rename: {pair[0]!r} to {pair[1]!r} is no replacement of an expression ({error})"
            ) from None
    return name


def fit(weights: Mapping[str, Any], like: Mapping[str, Any], rename: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
    """Rename ``weights`` and return them in the order of ``like``, whose names and shapes they must have.

    Args:
      weights: arrays, tensors of a ``state_dict``, or anything else with a ``shape``, by name.
      like: arrays or types by name.
      rename: pairs of a regular expression and its replacement, applied to the names in ``weights``.

    Raises:
      WeightsError: weights are missing, left over, of another shape, or of numbers (floats, complex) of which the dtype
        in ``like`` would lose a part; the message is a table of all of these. Or two weights get the same name.
      ArgumentTypeError: ``like`` is not a mapping of arrays or types.
    """
    if not isinstance(like, Mapping) or not all(hasattr(x, "shape") and hasattr(x, "dtype") for x in like.values()):
        raise refused("like", "arrays or types by name", like)
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
    """The names of weights that would lose imaginary or fractional parts in the dtypes of ``like``."""
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
    """Load arrays by name from a safetensors file, a Hugging Face index file, or a directory with either.

    Args:
      path: the file, index or directory.
      like: the expected arrays or types by name, for example ``model.params``. Arrays are converted to their dtypes.
      shardings: one sharding for all, or shardings by name (arrays without one go to the default device). Each device
        reads its own part from the file.
      rename: pairs of a regular expression and its replacement, applied to the names in the file.

    Raises:
      WeightsError: a file cannot be read, the names and shapes are not those of ``like`` or of the index, or an integer
        does not fit the dtype that it is loaded as. Nothing is loaded then.
      ArgumentTypeError, ArgumentError: ``path``, ``like``, ``shardings`` or ``rename`` is not of the form above.
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
    """The sharding of each of ``names``, None for those without one.

    Raises:
      WeightsError: there is a sharding for another name.
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


def _arrays(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors to save as arrays; arrays on devices stay there.

    Raises:
      WeightsError: a name or dtype is not supported by the format.
      ArgumentTypeError: ``tensors`` is not a mapping, or a value is not an array.
    """
    _named("tensors", tensors)
    arrays = {name: _as_array(name, x) for name, x in tensors.items()}
    for name, x in arrays.items():
        if x.dtype.name not in DTYPES.values():
            raise WeightsError(f"save: {name} is of {x.dtype}, which safetensors files do not have; convert it")
    return arrays


def _as_array(name: str, x: Any) -> Any:
    if isinstance(x, Array | np.ndarray):
        return x
    try:
        return np.asarray(x)
    except Exception as error:  # torch's tensors raise errors of various types
        raise ArgumentTypeError(
            f"save: tensors[{name!r}]: expected an array, got a {type(x).__name__} ({error})"
        ) from None


def _named(what: str, values: Any) -> None:
    """Check the names of ``values``, which is the argument ``what`` of :func:`save`.

    Raises:
      ArgumentTypeError: ``values`` is not a mapping.
      WeightsError: a key cannot be a name in a header.
    """
    if not isinstance(values, Mapping):
        raise refused(f"save: {what}", "a dict by name", values)
    bad = [n for n in values if not isinstance(n, str) or n == METADATA]
    if bad:
        raise WeightsError(f"save: {what} has {bad[0]!r}, which cannot be a name in a file; rename it")


def _on_host(arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {n: np.ascontiguousarray(np.asarray(x)).reshape(x.shape) for n, x in arrays.items()}


def _shards(arrays: Mapping[str, Any], limit: float) -> list[list[str]]:
    """The names in order, in groups of at most ``limit`` bytes each; a larger array is a group of its own."""
    groups: list[list[str]] = [[]]
    filled = 0
    for name, x in arrays.items():
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
    """Save arrays by name to a safetensors file, or with ``max_bytes`` to a directory of several files and an index.

    Args:
      path: the file, or with ``max_bytes`` the directory, which is created. Its form is that of Hugging Face's
        libraries.
      tensors: arrays by name.
      metadata: texts by name, stored in the header of each file.
      max_bytes: the largest size of a file's tensors; a tensor that is larger gets a file of its own.

    Raises:
      WeightsError: the format does not support a dtype or name, or a file cannot be written.
      ArgumentTypeError, ArgumentError: an argument is not of the form above, or ``max_bytes`` is less than 1.
      MissingExtraError: safetensors is not installed.
    """
    path, arrays = as_path("save: path", path), _arrays(tensors)
    _named("metadata", metadata or {})
    for name, text in (metadata or {}).items():
        if not isinstance(text, str):
            raise refused(f"save: metadata[{name!r}]", "text", text)
    if math.isinf(limit := as_number("save: max_bytes", max_bytes)):
        _save_file(path, arrays, metadata)
        return
    if limit < 1:
        raise ArgumentError(f"save: max_bytes: expected the bytes of a file, got {max_bytes}")
    with user_file("save: path", path, WeightsError):
        path.mkdir(parents=True, exist_ok=True)
    groups = _shards(arrays, limit)
    files = [f"model-{i + 1:05}-of-{len(groups):05}.safetensors" for i in range(len(groups))]
    for file, names in zip(files, groups):
        _save_file(path / file, {n: arrays[n] for n in names}, metadata)
    placed = {n: file for file, names in zip(files, groups) for n in names}
    with user_file("save: path", path / INDEX, WeightsError):
        (path / INDEX).write_text(index_of(placed, sum(x.nbytes for x in arrays.values())), encoding="utf-8")


def _save_file(file: Path, arrays: Mapping[str, Any], metadata: Mapping[str, str] | None) -> None:
    """Write one file; raises the errors of :func:`save`."""
    library = require("safetensors.numpy", "safetensors")
    try:
        library.save_file(_on_host(arrays), file, {"format": "np", **(metadata or {})})
    except Exception as error:  # SafetensorError of the library, TypeError, OSError
        raise WeightsError(f"save: {file} cannot be written ({error})") from None
