"""Random inputs, each drawn from the domain that the program has for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import ml_dtypes
import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.interval import ANYWHERE, BITS, Interval

#: the largest integers that are drawn without a wish: in arrays, and as scalars (counters, exponents)
_LARGEST, _LARGEST_ALONE = 99, 9
#: integer scalars with fewer possible values than this take them in turn
_FEW = 8
#: how far inside of an open end floats are drawn, as a share of the interval
_MARGIN = 0.05


@dataclass(frozen=True)
class Manner:
    """How to draw: floats of magnitude ``scale``, of both signs if the domain allows it, unless ``positive``."""

    scale: float = 1.0
    positive: bool = False


#: how many normal numbers are drawn once, for all large arrays, each of which starts at its own offset; a prime, so
#: that their period is not that of a dimension
_POOL = 1_000_003

#: tried in order while too many results are not finite
MANNERS = (Manner(), Manner(0.1), Manner(0.5, positive=True), Manner(0.01))


def draw_inputs(
    avals: Sequence[ShapedArray], domains: Sequence[Interval], seed: int = 0, manner: Manner = MANNERS[0]
) -> list[np.ndarray]:
    """Distinct values of moderate size for each type, inside their domains, determined by ``seed``."""
    rng = np.random.default_rng(seed)
    values = [_drawn(rng, aval, domain, manner) for aval, domain in zip(avals, domains)]
    _take_turns(values, domains, seed)
    return values


def _take_turns(values: list[np.ndarray], domains: Sequence[Interval], seed: int) -> None:
    """Let integer scalars with few possible values, which often choose a branch, take all values over as many seeds."""
    first, stride = np.random.default_rng(0), 1
    for i, (value, domain) in enumerate(zip(values, domains)):
        if value.shape or value.dtype.kind not in "biu":
            continue
        least, most = _ends(domain, value.dtype)
        if not 0 < most - least < _FEW or (count := math.floor(most) - math.ceil(least) + 1) < 2:
            continue
        low = math.ceil(least)
        values[i] = np.asarray(low + (int(first.integers(count)) + seed // stride) % count, value.dtype)
        stride = stride * count if stride * count < _FEW else 1


def _ends(domain: Interval, dtype: np.dtype) -> tuple[float, float]:
    """The smallest and largest number of a domain that a dtype of integers or bools can represent."""
    limits = (BITS.low, BITS.high) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return max(domain.low, limits[0]), min(domain.high, limits[1])


def _drawn(rng: np.random.Generator, aval: ShapedArray, domain: Interval, manner: Manner) -> np.ndarray:
    if domain.columns and aval.shape and aval.shape[-1] == len(domain.columns):
        part = aval.update(shape=aval.shape[:-1])
        return np.stack([_drawn(rng, part, column, manner) for column in domain.columns], -1)
    if dtypes.is_bool(aval.dtype):
        return _mask(rng, aval.shape)
    if domain.definite and aval.ndim > 1:
        return _definite(rng, aval, manner)
    if dtypes.is_integer(aval.dtype) or domain.whole:
        return _integers(rng, aval, domain).astype(aval.dtype)
    if dtypes.is_complex(aval.dtype):
        parts = (_floats(rng, aval.shape, ANYWHERE, manner) for _ in range(2))
        return (next(parts) + 1j * next(parts)).astype(aval.dtype)
    return _floats(rng, aval.shape, domain, manner).astype(aval.dtype, copy=False)


def _mask(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """A mask with both values, three in four true; the first of each row is, so that no row is fully masked."""
    value = rng.random(shape) < 0.75
    if shape and shape[-1] > 1:
        value[..., 0] = True
        value[..., -1] &= rng.random(shape[:-1]) < 0.5
    return np.asarray(value)


def _integers(rng: np.random.Generator, aval: ShapedArray, domain: Interval) -> np.ndarray:
    exact = dtypes.is_integer(aval.dtype)
    if exact and dtypes.is_unsigned(aval.dtype) and domain == ANYWHERE and aval.dtype.itemsize >= 4:
        return rng.integers(0, 2 ** (8 * aval.dtype.itemsize), aval.shape, np.uint64)  # random bits, for random keys
    info = ml_dtypes.iinfo(aval.dtype) if exact else ml_dtypes.iinfo(np.int32)
    span = _LARGEST if aval.shape else _LARGEST_ALONE
    # If there is only a lower end, draw above it: a number that must not be negative is often a count, and a divisor.
    low = domain.low if domain.high < math.inf else domain.low + 1 if domain.low > -math.inf else 1 - bool(aval.shape)
    high = domain.high if domain.high < math.inf else max(low, 0) + span
    low = max(low if low > -math.inf else high - span, int(info.min))
    least = math.ceil(low)
    most = max(least, math.floor(min(high, int(info.max))))  # even if there is no integer between them
    value = rng.integers(least, most, aval.shape, endpoint=True, dtype=np.int64)
    return _with_ends(rng, value, least, most)


def _with_ends(rng: np.random.Generator, value: np.ndarray, low: int, high: int) -> np.ndarray:
    """Put the smallest and the largest possible number into the array, as off-by-one errors show there."""
    if value.size > 1:
        places = rng.choice(value.size, 2, replace=False) if value.size < _POOL else np.array([0, value.size - 1])
        value.reshape(-1)[places] = low, high
    return value


@cache
def _pool() -> np.ndarray:
    return np.random.default_rng(_POOL).standard_normal(_POOL, np.float32)


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Normal numbers. In large arrays they repeat, as drawing them would take longer than computing with them."""
    size = math.prod(shape)
    if size < _POOL:
        return rng.standard_normal(shape, np.float32)
    return np.resize(np.roll(_pool(), int(rng.integers(_POOL))), shape)


def _floats(rng: np.random.Generator, shape: tuple[int, ...], domain: Interval, manner: Manner) -> np.ndarray:
    low, high = domain.low, domain.high
    if low > -math.inf and high < math.inf:
        margin = _MARGIN * (high - low)
        return np.asarray(rng.uniform(low + margin, high - margin, shape), np.float32)
    value = _normal(rng, shape) * np.float32(manner.scale)
    if domain.says_nothing and not manner.positive:
        return np.asarray(value)
    away = np.abs(value) + np.float32(_MARGIN)
    return np.asarray(high - away if high < math.inf else away + (low if low > -math.inf else 0), np.float32)


def _definite(rng: np.random.Generator, aval: ShapedArray, manner: Manner) -> np.ndarray:
    """Symmetric matrices with positive eigenvalues."""
    n = aval.shape[-1]
    x = rng.standard_normal((*aval.shape[:-1], n))
    if dtypes.is_complex(aval.dtype):
        x = x + 1j * rng.standard_normal(x.shape)
    return (manner.scale * (x @ np.conj(np.swapaxes(x, -1, -2)) / n + np.eye(n))).astype(aval.dtype)
