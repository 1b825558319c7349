"""Weights in safetensors files: read by name straight into shardings, written in files of bounded size.

The library checks a file's header; tensors are then read from the mapped file, each part when a device needs it, so
that nothing is whole in memory that is not whole on a device. There are no pickles. Directories and index files are as
Hugging Face's libraries write them.
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

#: how many rows a table of what does not fit shows of each kind
_SHOWN = 20


# --- names --------------------------------------------------------------------------------------------------
def renamed(name: str, patterns: Iterable[tuple[str, str]]) -> str:
    """``name`` after each (regular expression, replacement), one after another."""
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
    """``weights`` (arrays, tensors of a ``state_dict``, anything with ``shape``) under the names of ``like``, renamed.

    Raises:
      WeightsError: a table of what is missing, left over, of another shape, or of a type that loses a part of it.
      ArgumentTypeError: ``like`` is no mapping of arrays or types.
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
      WeightsError: files that cannot be read, or do not hold what ``like`` or an index has, or integers beyond the
        type that they are loaded in: nothing is loaded then.
      ArgumentTypeError, ArgumentError: no path, types by name or pairs.
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


def _arrays(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """What is saved, as arrays, on devices where it is there.

    Raises:
      WeightsError: a dtype that the format does not have. ArgumentTypeError: no mapping, or what is no array.
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
    except Exception as error:  # torch's tensors have errors of their own
        raise ArgumentTypeError(
            f"save: tensors[{name!r}]: expected an array, got a {type(x).__name__} ({error})"
        ) from None


def _named(what: str, values: Any) -> None:
    """Raise for what is no mapping, or has names that a header cannot have.

    Raises:
      ArgumentTypeError, WeightsError: as said.
    """
    if not isinstance(values, Mapping):
        raise refused(f"save: {what}", "a dict by name", values)
    bad = [n for n in values if not isinstance(n, str) or n == METADATA]
    if bad:
        raise WeightsError(f"save: {what} has {bad[0]!r}, which cannot be a name in a file; rename it")


def _on_host(arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {n: np.ascontiguousarray(np.asarray(x)).reshape(x.shape) for n, x in arrays.items()}


def _shards(arrays: Mapping[str, Any], limit: float) -> list[list[str]]:
    """Names in groups of at most ``limit`` bytes each, in order; what is larger is alone."""
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
    """Write arrays by name to a safetensors file; with ``max_bytes`` to a directory of files of that size and an index,
    as Hugging Face's libraries read it.

    Raises:
      WeightsError: a dtype or name that the format does not have, or a file that cannot be written.
      ArgumentTypeError, ArgumentError: no path, no arrays by name, metadata that is no text, files of no bytes.
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
    """Write one file; raises as :func:`save`."""
    library = require("safetensors.numpy", "safetensors")
    try:
        library.save_file(_on_host(arrays), file, {"format": "np", **(metadata or {})})
    except Exception as error:  # the library has errors of its own, beside those of types and of the disk
        raise WeightsError(f"save: {file} cannot be written ({error})") from None
