"""Images resized: by their nearest elements, between elements, and by filters as wide as what an output stands for
(antialiasing)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from meshwright import numpy as mnp
from meshwright.core import dtypes
from meshwright.errors import RuleError
from meshwright.interop.torch.promotion import cast
from meshwright.interop.torch.registry import register


def _rows(size: int, out: int, factor: float | None, exact: bool) -> np.ndarray:
    """Which row each output has, counted in 32 bits as torch does.

    Torch's kernels do not agree where a factor such as 1.05 gives as many rows as there are, or twice as many: some
    then count by the sizes, and so do all backwards. Here the factor decides.
    """
    scale = np.float32(1 / factor) if factor else np.float32(size) / np.float32(out)
    rows = np.floor((np.arange(out, dtype=np.float32) + np.float32(exact / 2)) * scale)
    return np.minimum(rows.astype(np.int32), size - 1)


def _nearest(exact: bool, x: Any, sizes: Sequence[int], *factors: float | None) -> Any:
    n = len(sizes)
    for d, out, factor in zip(range(x.ndim - n, x.ndim), sizes, factors or (None,) * n):
        size = x.shape[d]
        rows = _rows(size, out, factor, exact)
        if out % size == 0 and np.array_equal(rows, np.arange(out) * size // out):
            x = mnp.repeat(x, out // size, d) if out > size else x
        else:
            x = mnp.take(x, rows, d)
    return x


def _by_factors(input: Any, output_size: Any, scale_factors: Any) -> tuple[Sequence[int], Sequence[float]]:
    """The sizes that are asked for, and the factors, if any."""
    if scale_factors is None:
        return output_size, ()
    sizes = input.shape[input.ndim - len(scale_factors) :]
    return [int(s * f) for s, f in zip(sizes, scale_factors)], scale_factors


def _scaled(exact: bool, input: Any, output_size: Any, scale_factors: Any) -> Any:
    sizes, factors = _by_factors(input, output_size, scale_factors)
    return _nearest(exact, input, sizes, *factors)


for _n in (1, 2, 3):
    for _name, _exact in (("upsample_nearest", False), ("_upsample_nearest_exact", True)):
        register(f"aten.{_name}{_n}d.vec")(partial(_scaled, _exact))
        register(f"aten.{_name}{_n}d.default")(partial(_nearest, _exact))


# --- between elements ---------------------------------------------------------------------------------------
#: the slope of the cubic kernel at its first zero, torch's where nothing is antialiased
_SLOPE = -0.75


def _scale(size: int, out: int, align_corners: bool, factor: float | None) -> float:
    """How many rows one of the output stands for."""
    if align_corners:
        return (size - 1) / (out - 1) if out > 1 else 0.0
    return 1 / factor if factor else size / out


@cache
def _taps(
    kind: str, size: int, out: int, align_corners: bool, factor: float | None, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
    """``[taps, out]``: rows that an output is made of, and the share of each. Positions are counted in ``dtype``."""
    scale, place = dtype.type(_scale(size, out, align_corners, factor)), np.arange(out, dtype=dtype)
    half = dtype.type(0.5)
    at = scale * place if align_corners else scale * (place + half) - half
    at = at if kind == "bicubic" else np.maximum(at, 0)
    low = np.minimum(np.floor(at).astype(int), size - 1)
    off = np.clip(at - low, 0, 1)
    near = np.arange(-1, 3) if kind == "bicubic" else np.arange(2)
    shares = _FILTERS[kind][0](near[:, None] - off, _SLOPE)
    return np.clip(low + near[:, None], 0, size - 1), shares.astype(dtype)


def _once(rows: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """The shares, a row's in the first of the places where it is."""
    same = rows[:, None] == rows
    is_first = ~np.tril(same.transpose(2, 0, 1), -1).any(-1).T
    return np.where(is_first, (same * shares).sum(1), 0)


def _between(kind: str, x: Any, output_size: Sequence[int], align_corners: bool, *factors: float | None) -> Any:
    n = len(output_size)
    passes = [*zip(range(x.ndim - n, x.ndim), output_size, factors or (None,) * n)]
    if x.dtype == np.uint8 and n == 2:
        for d, out, factor in passes[::-1]:
            if out != x.shape[d]:
                rows, shares = _taps(kind, x.shape[d], out, align_corners, factor, np.dtype(np.float64))
                x = _in_fixed_point(x, _once(rows, shares), partial(_sum_of_rows, rows=rows, d=d))
        return x
    if not dtypes.is_inexact(x.dtype):
        raise RuleError(f"images of {x.dtype} are not interpolated, by torch neither; convert them to float32")
    wide = np.dtype(np.float64 if x.dtype == np.float64 else np.float32)
    made = cast(x, wide)
    for d, out, factor in passes:
        rows, shares = _taps(kind, x.shape[d], out, align_corners, factor, wide)
        made = _sum_of_rows(made, shares, rows, d)
    return cast(made, x.dtype)


def _sum_of_rows(x: Any, shares: np.ndarray, rows: np.ndarray, d: int) -> Any:
    """For each output, the sum of its rows, each times its share."""
    along = [-1 if e == d else 1 for e in range(x.ndim)]
    parts = [mnp.take(x, r, d) * share.reshape(along) for r, share in zip(rows, shares)]
    return sum(parts[1:], parts[0])


def _between_by_factors(kind: str, input: Any, output_size: Any, align_corners: bool, scale_factors: Any) -> Any:
    sizes, factors = _by_factors(input, output_size, scale_factors)
    return _between(kind, input, sizes, align_corners, *factors)


for _name in ("linear1d", "bilinear2d", "trilinear3d", "bicubic2d"):
    _kind = "bicubic" if _name == "bicubic2d" else "bilinear"
    register(f"aten.upsample_{_name}.vec")(partial(_between_by_factors, _kind))
    register(f"aten.upsample_{_name}.default")(partial(_between, _kind))


# --- antialiased --------------------------------------------------------------------------------------------
def _triangle(x: np.ndarray, slope: float = -0.5) -> np.ndarray:
    return np.maximum(1 - abs(x), 0)


def _cubic(x: np.ndarray, a: float = -0.5) -> np.ndarray:
    """R. G. Keys, 1981; as the Python Imaging Library has it."""
    x = abs(x)
    near, far = ((a + 2) * x - (a + 3)) * x * x + 1, (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def _lanczos(x: np.ndarray) -> np.ndarray:
    return np.where(abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)


#: a filter, and how far it reaches
_FILTERS: dict[str, tuple[Callable[..., np.ndarray], float]] = {
    "bilinear": (_triangle, 1), "bicubic": (_cubic, 2), "lanczos": (_lanczos, 3),
}  # fmt: skip


@cache
def _weights(kind: str, size: int, out: int, align_corners: bool, factor: float | None) -> np.ndarray:
    """``[size, out]``: the share of each row in each output."""
    scale = _scale(size, out, align_corners, factor)
    function, reach = _FILTERS[kind]
    width = max(scale, 1.0)
    centers = scale * (np.arange(out) + 0.5)
    low = np.maximum((centers - reach * width + 0.5).astype(int), 0)
    high = np.minimum((centers + reach * width + 0.5).astype(int), size)
    row = np.arange(size)[:, None]
    shares = np.where((row >= low) & (row < high), function((row - centers + 0.5) / width), 0)
    return shares / shares.sum(0)


def _antialiased(kind: str, x: Any, output_size: Sequence[int], align_corners: bool, *factors: float | None) -> Any:
    passes = [*zip((x.ndim - 2, x.ndim - 1), output_size, factors or (None, None))]
    if x.dtype == np.uint8:
        for d, out, factor in passes[::-1]:
            if out != x.shape[d]:
                shares = _weights(kind, x.shape[d], out, align_corners, factor)
                x = _in_fixed_point(x, shares, partial(_product, d=d))
        return x
    if not dtypes.is_inexact(x.dtype):
        raise RuleError(f"images of {x.dtype} have no antialiasing, in torch neither; convert them to float32")
    for d, out, factor in passes:
        share = mnp.asarray(_weights(kind, x.shape[d], out, align_corners, factor)).astype(x.dtype)
        x = _product(x, share, d)
    return x


def _product(x: Any, shares: Any, d: int) -> Any:
    """For each output, the sum of all rows, each times its share."""
    return mnp.moveaxis(mnp.tensordot(x, shares, ((d,), (0,))), -1, d)


def _in_fixed_point(x: Any, shares: np.ndarray, summed: Callable[[Any, np.ndarray], Any]) -> Any:
    """One pass over bytes, as the Python Imaging Library and torch have it: shares of 16 bits, of as many binary places
    as the largest leaves room for, and sums rounded to bytes."""
    places = next((p for p in range(22) if int(0.5 + shares.max() * (1 << p + 1)) >= 1 << 15), 22)
    scaled = np.trunc(shares * (1 << places) + np.copysign(0.5, shares)).astype(np.int32)
    sums = summed(x.astype(np.int32), scaled) + (1 << places >> 1)
    return mnp.clip(sums >> places, 0, 255).astype(np.uint8)


for _kind in _FILTERS:
    register(f"aten._upsample_{_kind}2d_aa.default")(partial(_antialiased, _kind))
