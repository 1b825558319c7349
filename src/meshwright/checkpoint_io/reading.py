"""Reading checkpoints onto any sharding, with any dtype, in any number of processes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_dtypes import finfo

from meshwright.api.assembling import make_array_from_callback
from meshwright.api.jit import shape_of
from meshwright.checkpoint_io.index import REPLACED, Entry, rebuilt
from meshwright.checkpoint_io.opened import Opened
from meshwright.checkpoint_io.parsing import damaged
from meshwright.core import pytree
from meshwright.core.dtypes import (
    as_dtype,
    canonical,
    holds_floats,
    is_complex,
    is_inexact,
    kind_of,
    max_value,
    min_value,
    real_of,
)
from meshwright.core.expected import as_path
from meshwright.core.files import exists, user_file
from meshwright.core.key_types import KEY_TYPES, is_key
from meshwright.core.words import counted
from meshwright.errors import ArgumentTypeError, CheckpointError
from meshwright.runtime.array import Array, from_numpy
from meshwright.sharding import AbstractMesh, Sharding

_NUMBERS = (bool, int, float, complex)
#: types in ``like`` whose leaves are restored as values of NumPy or Python
_HOST = (*_NUMBERS, np.ndarray, np.generic)


def restore(directory: str | os.PathLike[str], like: Any = None, *, verify: bool = False) -> Any:
    """Read the pytree of arrays that was saved as ``directory``.

    Args:
      directory: the folder of the checkpoint.
      like: a pytree of arrays, ``ShapeDtypeStruct`` or numbers. Leaves get its shardings and dtypes, whatever they were
        saved with, and each process reads only what its devices hold. Complex numbers are not converted to real ones,
        nor floats to integers. Integers must fit, and other numbers be in the range of the dtype. Leaves that are
        NumPy's or Python's values in ``like`` are restored as such. Without ``like``, arrays are on the default device,
        in the saved dicts, lists and tuples; other trees become a dict by path.
      verify: first read the whole checkpoint and compare checksums.

    Raises:
      CheckpointError: there is no checkpoint, it changes while it is read, or its tree differs from ``like``; the
        message is a table of the differences.
      CheckpointDamagedError: it is damaged.

    Example:
      >>> import tempfile
      >>> folder = tempfile.mkdtemp() + "/step_1"
      >>> done = mw.checkpoint_io.save(folder, {"w": mnp.arange(8.0)})
      >>> split = mw.NamedSharding(mw.make_mesh((4,), ("x",)), P("x"))
      >>> mw.checkpoint_io.restore(folder, like={"w": mw.ShapeDtypeStruct((8,), "bfloat16", sharding=split)})["w"].dtype
      dtype(bfloat16)
    """
    folder = as_path("checkpoint_io.restore: directory", directory).absolute()
    with user_file("checkpoint_io.restore: directory", folder, CheckpointError):
        folder = settled(folder)
    with Opened(folder) as opened:
        if verify:
            _check(opened)
        if like is None:
            return _as_saved(opened)
        paths, targets, treedef = pytree.paths(like), pytree.leaves(like), pytree.structure(like)
        entries = _matched(opened, paths, targets)
        return pytree.unflatten(treedef, [_placed(opened, e, w) for e, w in zip(entries, targets)])


def settled(folder: Path) -> Path:
    """The folder, or the checkpoint that it was to replace, if the process ended between the two renames."""
    old = folder.parent / f"{folder.name}{REPLACED}"
    return old if not exists(folder) and exists(old) else folder


def _as_saved(opened: Opened) -> Any:
    """The tree, if it consists of dicts, lists and tuples; otherwise a dict of its arrays by path."""
    leaves = {e.path: _typed(opened.region(e), e) for e in opened.index.entries}
    return leaves if opened.index.tree is None else rebuilt(opened.index.tree, [*leaves.values()])


def _check(opened: Opened) -> None:
    """Read the whole checkpoint and compare checksums.

    Raises:
      CheckpointDamagedError: some differ; names the damaged arrays.
    """
    bad = [e.path or "value" for e in opened.index.entries if not opened.is_right(e)]
    if bad:
        listed = ", ".join(map(repr, bad[:5])) + (f" and {len(bad) - 5} more" if len(bad) > 5 else "")
        raise damaged(opened.folder, f"{listed}: not what was written")


# --- comparison with ``like`` -------------------------------------------------------------------------------
def _type(x: Any) -> tuple[tuple[int, ...], Any]:
    if isinstance(x, _HOST):
        dtype = x.dtype.newbyteorder("=") if isinstance(x, (np.ndarray, np.generic)) else np.result_type(type(x))
        return np.shape(x), as_dtype(dtype)
    aval = shape_of(x)
    return aval.shape, aval.dtype


def _matched(opened: Opened, paths: Sequence[str], targets: Sequence[Any]) -> list[Entry]:
    """The entry of each leaf of ``like``.

    Raises:
      CheckpointError: leaves are missing, left over or repeated, have other shapes or a dtype that loses part of the
        numbers, or are random keys on one side only. The message is a table.
    """
    saved, wanted = {e.path: e for e in opened.index.entries}, set(paths)
    rows = [(path, "-", "twice") for path, count in Counter(paths).items() if count > 1]
    for path, x in zip(paths, targets):
        try:
            shape, dtype = _type(x)
        except ArgumentTypeError as error:
            raise CheckpointError(f"restore: like{path}: {error}") from None
        entry = saved.get(path)
        text = f"{dtype.name}{list(shape)}"
        if entry is None:
            rows.append((path, "-", text))
        elif list(shape) != _shape(entry) or not _converts(entry, dtype):
            rows.append((path, f"{entry.key or entry.dtype}{_shape(entry)}", text))
    rows += [(e.path, f"{e.key or e.dtype}{_shape(e)}", "-") for p, e in saved.items() if p not in wanted]
    if rows:
        raise CheckpointError(f"{opened.folder} is of another tree than like:\n{_table(rows)}")
    return [saved[p] for p in paths]


def _converts(entry: Entry, dtype: Any) -> bool:
    """Whether saved values may become ``dtype``: keys of the same generator, or numbers of the same or a wider kind."""
    if entry.key or is_key(dtype):
        return is_key(dtype) and dtype.name == entry.key
    return kind_of(as_dtype(entry.dtype)) <= kind_of(dtype)


def _shape(entry: Entry) -> list[int]:
    """The shape for users: without the dimension of the words of random keys."""
    return entry.shape[:-1] if entry.key else entry.shape


def _table(rows: Sequence[tuple[str, str, str]]) -> str:
    rows = [("leaf", "saved", "like"), *rows[:40]]
    widths = [max(len(r[i]) for r in rows) for i in range(3)]
    return "\n".join("  " + "  ".join(c.ljust(w) for c, w in zip(r, widths)).rstrip() for r in rows)


# --- values -------------------------------------------------------------------------------------------------
def _held(value: np.ndarray, dtype: np.dtype, entry: Entry) -> np.ndarray:
    """``value`` as ``dtype``, which holds its numbers, apart from rounding.

    Raises:
      CheckpointError: an integer does not fit, or a finite number is beyond the largest of ``dtype``.
    """
    if value.dtype == dtype or not value.size:
        return value.astype(dtype, copy=False)
    if kind_of(value.dtype) == kind_of(dtype) == 0:
        wide = value if value.dtype.kind in "iu" else value.astype(np.int64)
        for end in (int(wide.min()), int(wide.max())):
            if not int(min_value(dtype)) <= end <= int(max_value(dtype)):
                raise CheckpointError(
                    f"restore: {entry.path or 'the array'} holds {end}, which does not fit in {dtype}; restore it onto "
                    "a NumPy array or a Python number in like, or with enable_x64"
                )
    elif is_inexact(dtype) and not holds_floats(dtype, value.dtype):
        _check_range(value, dtype, entry)
    return value.astype(dtype)


#: how many numbers are compared with a range at once
_AT_ONCE = 1 << 20


def _check_range(value: np.ndarray, dtype: np.dtype, entry: Entry) -> None:
    """Refuse numbers that a floating dtype would turn into others: too large, or of a kind that it lacks.

    Raises:
      CheckpointError: there are any; says how many, and which range the numbers have.
    """
    part = real_of(dtype)
    info = finfo(part)
    # from here on, numbers are not rounded to the largest
    beyond = float(info.max) + float(info.eps) * 2.0 ** (info.maxexp - 1) / 2
    has_others, has_zero = not np.isfinite(np.asarray(np.nan).astype(part)), float(info.min) < 0
    count, least, most = 0, np.inf, -np.inf
    flat = value.reshape(-1)
    for start in range(0, flat.size, _AT_ONCE):
        piece = flat[start : start + _AT_ONCE]
        numbers = piece.astype(np.complex128).view(np.float64) if is_complex(value.dtype) else piece.astype(np.float64)
        finite = numbers[np.isfinite(numbers)]
        bad = (abs(finite) >= beyond) | ((finite <= 0) & (not has_zero))
        count += int(np.count_nonzero(bad)) + (0 if has_others else numbers.size - finite.size)
        least, most = min(least, finite.min(initial=np.inf)), max(most, finite.max(initial=-np.inf))
    if count:
        raise CheckpointError(
            f"restore: {entry.path or 'the array'} of {entry.dtype} holds {counted(count, 'number')} that {dtype} "
            f"cannot hold: they range from {least:g} to {most:g}, its own from {float(info.min):g} to "
            f"{float(info.max):g}; restore it in a wider dtype, and clip or scale it"
        )


def _typed(value: np.ndarray, entry: Entry) -> Array:
    dtype = canonical(as_dtype(entry.dtype))
    array = from_numpy(_held(value, dtype, entry), copy=False)
    return array.keys(KEY_TYPES[_key_name(entry)]) if entry.key else array


def _key_name(entry: Entry) -> str:
    return next(n for n, k in KEY_TYPES.items() if k.name == entry.key)


def _placed(opened: Opened, entry: Entry, like: Any) -> Any:
    """The value of an entry with the sharding and dtype of ``like``, or of its Python or NumPy type."""
    if isinstance(like, _NUMBERS):
        return type(like)(opened.region(entry).item())
    sharding = getattr(like, "sharding", None)
    if isinstance(like, (np.ndarray, np.generic)):
        value = np.array(_held(opened.region(entry), _type(like)[1], entry)).astype(like.dtype, copy=False)
        return value if isinstance(like, np.ndarray) else value[()]
    dtype = as_dtype(entry.dtype) if entry.key else shape_of(like).dtype

    def part(where: Sequence[slice]) -> np.ndarray:
        return _held(opened.region(entry, where), dtype, entry)

    placed = sharding if getattr(like, "committed", True) and isinstance(sharding, Sharding) else None
    if placed is None or isinstance(getattr(placed, "mesh", None), AbstractMesh):
        array = from_numpy(part(()), copy=False)
    else:
        array = make_array_from_callback(tuple(entry.shape), placed, part, dtype)
    return array.keys(KEY_TYPES[_key_name(entry)]) if entry.key else array
