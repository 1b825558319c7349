"""Images resized: by their nearest elements, and by filters as wide as what an output stands for (antialiasing)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from meshwright import numpy as mnp
from meshwright.errors import RuleError
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


def _scaled(exact: bool, input: Any, output_size: Any, scale_factors: Any) -> Any:
    if scale_factors is None:
        return _nearest(exact, input, output_size)
    sizes = input.shape[input.ndim - len(scale_factors) :]
    return _nearest(exact, input, [int(s * f) for s, f in zip(sizes, scale_factors)], *scale_factors)


for _n in (1, 2, 3):
    for _name, _exact in (("upsample_nearest", False), ("_upsample_nearest_exact", True)):
        register(f"aten.{_name}{_n}d.vec")(partial(_scaled, _exact))
        register(f"aten.{_name}{_n}d.default")(partial(_nearest, _exact))


# --- antialiased --------------------------------------------------------------------------------------------
def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - abs(x), 0)


def _cubic(x: np.ndarray, a: float = -0.5) -> np.ndarray:
    """R. G. Keys, 1981; as the Python Imaging Library has it."""
    x = abs(x)
    near, far = ((a + 2) * x - (a + 3)) * x * x + 1, (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def _lanczos(x: np.ndarray) -> np.ndarray:
    return np.where(abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)


#: a filter, and how far it reaches
_FILTERS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "bilinear": (_triangle, 1), "bicubic": (_cubic, 2), "lanczos": (_lanczos, 3),
}  # fmt: skip


@cache
def _weights(kind: str, size: int, out: int, align_corners: bool, factor: float | None) -> np.ndarray:
    """``[size, out]``: the share of each row in each output."""
    if align_corners:
        scale = (size - 1) / (out - 1) if out > 1 else 0.0
    else:
        scale = 1 / factor if factor else size / out
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
                x = _in_fixed_point(x, _weights(kind, x.shape[d], out, align_corners, factor), d)
        return x
    if x.dtype.kind in "iu":
        raise RuleError(
            f"aten._upsample_{kind}2d_aa: images of {x.dtype} have no antialiasing; convert them to float32"
        )
    for d, out, factor in passes:
        share = mnp.asarray(_weights(kind, x.shape[d], out, align_corners, factor)).astype(x.dtype)
        x = mnp.moveaxis(mnp.tensordot(x, share, ((d,), (0,))), -1, d)
    return x


def _in_fixed_point(x: Any, shares: np.ndarray, d: int) -> Any:
    """One pass over bytes, as the Python Imaging Library and torch have it: shares of 16 bits, of as many binary places
    as the largest leaves room for, and sums rounded to bytes."""
    places = next((p for p in range(22) if int(0.5 + shares.max() * (1 << p + 1)) >= 1 << 15), 22)
    scaled = np.trunc(shares * (1 << places) + np.copysign(0.5, shares)).astype(np.int32)
    sums = mnp.tensordot(x.astype(np.int32), mnp.asarray(scaled), ((d,), (0,))) + (1 << places >> 1)
    return mnp.moveaxis(mnp.clip(sums >> places, 0, 255).astype(np.uint8), -1, d)


for _kind in _FILTERS:
    register(f"aten._upsample_{_kind}2d_aa.default")(partial(_antialiased, _kind))
