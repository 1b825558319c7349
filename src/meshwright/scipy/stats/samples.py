"""Statistics of samples."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from meshwright.core import dtypes
from meshwright.errors import ArgumentError
from meshwright.numpy.creation import asarray, full, ones, zeros
from meshwright.numpy.functions import astype
from meshwright.numpy.indexing import take_along_axis
from meshwright.numpy.joining import concatenate
from meshwright.numpy.logic import isnan, where
from meshwright.numpy.manipulation import expand_dims, moveaxis, ravel
from meshwright.numpy.nan_reductions import nanstd
from meshwright.numpy.promotion import operands
from meshwright.numpy.reductions import any as any_of
from meshwright.numpy.reductions import argmax, std
from meshwright.numpy.reductions import max as max_of
from meshwright.numpy.reductions import sum as sum_of
from meshwright.numpy.searching import searchsorted
from meshwright.numpy.sorting import argsort, cumsum, sort
from meshwright.transforms.vmap import vmap


class ModeResult(NamedTuple):
    """The most frequent values, and their counts."""

    mode: Any
    count: Any


def _check_nan_policy(name: str, nan_policy: str, known: tuple[str, ...]) -> None:
    if nan_policy not in known:
        raise ArgumentError(f"{name}: nan_policy must be one of {', '.join(known)}, got {nan_policy!r}")


def _most_frequent(values: Any) -> tuple[Any, Any]:
    """For sorted rows, the first of the most frequent values, and its count; for empty rows NaN, and 0."""
    if values.shape[-1] == 0:
        dtype = values.dtype if dtypes.is_inexact(values.dtype) else dtypes.default_float()
        return full(values.shape[:-1], np.nan, dtype), zeros(values.shape[:-1], dtype)
    left, right = values[..., :, None], values[..., None, :]
    counts = sum_of((left == right) | ((left != left) & (right != right)), -1)
    best = expand_dims(argmax(counts, -1), -1)
    return take_along_axis(values, best, -1)[..., 0], max_of(counts, -1)


def mode(a: Any, axis: int | None = 0, nan_policy: str = "propagate", keepdims: bool = False) -> ModeResult:
    """The most frequent value along ``axis``, and its count. Of several, it is the smallest; without elements, NaN.

    Args:
      a: an array of any shape.
      axis: the axis, or None for all elements.
      nan_policy: ``propagate``, where NaN is treated like other values, as the largest.
      keepdims: keep the axis with size 1.

    Raises:
      ArgumentError: another ``nan_policy``.

    >>> [v.item() for v in mode(np.array([2, 3, 3, 1]))]
    [3, 2]
    """
    _check_nan_policy("mode", nan_policy, ("propagate",))
    x = asarray(a)
    shape = x.shape
    rows = ravel(x)[None] if axis is None else moveaxis(x, axis, -1)
    chosen, counts = _most_frequent(sort(rows, axis=-1))
    if axis is None:
        chosen, counts = chosen[0], counts[0]
        if keepdims:
            chosen, counts = (v.reshape((1,) * len(shape)) for v in (chosen, counts))
    elif keepdims:
        chosen, counts = expand_dims(chosen, axis), expand_dims(counts, axis)
    return ModeResult(chosen, counts)


def _ranks(x: Any, method: str) -> Any:
    n = x.shape[0]
    order = argsort(x, stable=True)
    inverse = argsort(order)
    if method == "ordinal":
        return inverse + 1
    values = x[order]
    new = concatenate([ones(min(n, 1), bool), values[1:] != values[:-1]])
    dense = cumsum(new)[inverse]
    if method == "dense":
        return dense
    least, most = searchsorted(values, x, side="left") + 1, searchsorted(values, x, side="right")
    return {"min": least, "max": most}.get(method, (least + most) / 2)


def rankdata(a: Any, method: str = "average", *, axis: int | None = None, nan_policy: str = "propagate") -> Any:
    """The ranks of elements in sorted order, counted from 1, as floats.

    Args:
      a: an array of any shape.
      method: the rank of equal elements: the ``average``, ``min`` or ``max`` of their ranks; ``dense``, without gaps
        between ranks; or ``ordinal``, different ranks in order.
      axis: the axis along which to rank; by default, all elements are flattened.
      nan_policy: ``propagate``, where ranks are NaN if any of the ranked elements is.

    Raises:
      ArgumentError: an unknown ``method`` or ``nan_policy``.

    >>> rankdata(np.array([0, 2, 3, 2])).tolist()
    [1.0, 2.5, 4.0, 2.5]
    """
    if method not in ("average", "min", "max", "dense", "ordinal"):
        raise ArgumentError(f"rankdata: method must be average, min, max, dense or ordinal, got {method!r}")
    _check_nan_policy("rankdata", nan_policy, ("propagate",))
    x = asarray(a)
    if axis is None:
        x, axis = ravel(x), 0
    rows = moveaxis(x, axis, -1)
    flat = rows.reshape(math.prod(rows.shape[:-1]), rows.shape[-1])
    ranks = astype(vmap(lambda row: _ranks(row, method))(flat).reshape(rows.shape), float)
    if dtypes.is_inexact(x.dtype):
        ranks = where(any_of(isnan(rows), -1, keepdims=True), np.nan, ranks)
    return moveaxis(ranks, -1, axis)


def sem(
    a: Any, axis: int | None = 0, ddof: int = 1, nan_policy: str = "propagate", *, keepdims: bool = False
) -> Any:  # fmt: skip
    """The standard error of the mean.

    Args:
      a: an array of any shape.
      axis: the axis, or None for all elements.
      ddof: the number to subtract from the number of elements.
      nan_policy: ``propagate``, or ``omit`` to ignore NaN elements.
      keepdims: keep the axis with size 1.

    Raises:
      ArgumentError: another ``nan_policy``.

    >>> round(sem(np.array([1.0, 2.0, 4.0])).item(), 4)
    0.8819
    """
    _check_nan_policy("sem", nan_policy, ("propagate", "omit"))
    (x,) = operands("sem", (asarray(a),), to_inexact=True)
    if nan_policy == "omit":
        count = sum_of(~isnan(x), axis, keepdims=keepdims)
        return nanstd(x, axis, ddof=ddof, keepdims=keepdims) / count**0.5
    size = x.size if axis is None else x.shape[axis]
    return std(x, axis, ddof=ddof, keepdims=keepdims) / size**0.5
