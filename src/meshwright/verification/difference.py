"""Differences between arrays, computed in blocks that fit in the processor's cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.records import dataclass
from meshwright.errors import VerificationError

_BLOCK = 1 << 16
#: an element may be off by ``rtol`` times itself, plus ``rtol`` times this share of the largest element
_OF_LARGEST = 1e-3


@dataclass
class Difference:
    """The difference between two arrays. Equal NaNs and equal infinities count as no difference, and as not finite.

    So do two complex numbers that are not finite if one has a NaN: the order of products decides which parts are NaN.

    ``excess`` is how far the worst element exceeds ``rtol`` and ``atol``. ``copy`` is the index of the worst copy, if
    devices have several copies of the array.
    """

    absolute: float = 0.0
    largest: float = 0.0
    excess: float = 0.0
    finite: int = 0
    size: int = 0
    copy: int = 0

    @property
    def relative(self) -> float:
        return self.absolute / self.largest if self.largest else self.absolute


def compare(got: Any, want: Any, rtol: float = 0.0, atol: float = 0.0) -> Difference:
    """The difference between two arrays of one dtype. ``got`` may be a stack of copies, of which the worst counts.

    Raises:
      VerificationError: the shapes do not match.
    """
    a, b = np.asarray(got), np.asarray(want)
    if a.shape[a.ndim - b.ndim :] != b.shape:
        raise VerificationError(f"an array of shape {a.shape} was computed where one of shape {b.shape} is expected")
    copies, whole = _flat(a), _flat(b)
    if not whole.size:
        return Difference()
    found = [_compared(copy, whole, rtol, atol) for copy in copies.reshape(-1, whole.size)]
    worst = max(range(len(found)), key=lambda i: found[i].excess)
    return replace(found[worst], copy=worst, finite=min(d.finite for d in found))


def _compared(a: np.ndarray, b: np.ndarray, rtol: float, atol: float) -> Difference:
    difference = Difference(size=b.size)
    if dtypes.is_inexact(b.dtype):
        with np.errstate(invalid="ignore", over="ignore"):
            difference.largest = max((_largest(block) for _, block in _blocks(a, b)), default=0.0)
            for block in _blocks(a, b):
                _take(difference, *block, rtol, atol)
        return difference
    wrong = a != b
    difference.finite = b.size
    if wrong.any():
        difference.absolute = float(np.max(np.abs(a[wrong].astype(np.float64) - b[wrong].astype(np.float64))))
        difference.largest = float(np.max(np.abs(b.astype(np.float64))))
        difference.excess = max(difference.absolute, 1.0)  # float64 may not distinguish large integers
    return difference


def _flat(x: Any) -> np.ndarray:
    array = np.asarray(x).reshape(-1)
    return array if array.dtype.kind in "bfiuc" else array.astype(np.float64)


def _blocks(a: np.ndarray, b: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for start in range(0, b.size, _BLOCK):
        yield a[start : start + _BLOCK], b[start : start + _BLOCK]


def _largest(b: np.ndarray) -> float:
    """The largest finite magnitude."""
    sizes = np.abs(b)
    top = float(np.max(sizes))
    return top if np.isfinite(top) else float(np.max(np.where(np.isfinite(sizes), sizes, 0)))


def _take(total: Difference, a: np.ndarray, b: np.ndarray, rtol: float, atol: float) -> None:
    """Add a block of elements to the total."""
    delta, sizes = np.abs(a - b), np.abs(b)
    finite = np.isfinite(delta) & np.isfinite(sizes)
    count = int(np.count_nonzero(finite))
    if count < b.size:
        nan = np.isnan(a), np.isnan(b)
        if a.dtype.kind == "c":
            undefined = ~np.isfinite(a) & ~np.isfinite(b) & (nan[0] | nan[1])
        else:
            undefined = nan[0] & nan[1]
        delta = np.where(finite, delta, np.where((a == b) | undefined, 0, np.inf))
        sizes = np.where(finite, sizes, 0)
    total.finite += count
    total.absolute = max(total.absolute, float(delta.max()))
    allowed = atol + rtol * _OF_LARGEST * total.largest
    total.excess = max(total.excess, float((delta - rtol * sizes).max()) - allowed)
