"""Values between the elements of images and volumes, at positions that are given (``grid_sample``)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright import lax
from meshwright import numpy as mnp
from meshwright.interop.torch.registry import register

#: torch's numbers of modes, and of what is outside
_LINEAR, _NEAREST = 0, 1
_ZEROS, _REFLECTION = 0, 2
#: the slope of the cubic kernel at its first zero, torch's
_CUBIC = -0.75


def _inside(x: Any, size: int, is_plane: bool) -> Any:
    """Positions clipped to a dimension; those at its ends have no derivative. NaN counts as the first in images and as
    the last in volumes."""
    last = size - 1
    fixed = mnp.where(mnp.isnan(x), 0 if is_plane else last, mnp.clip(lax.stop_gradient(x), 0, last))
    return mnp.where((x > 0) & (x < last), x, fixed)


def _reflected(x: Any, low: float, high: float) -> Any:
    """Positions reflected at ``low`` and ``high`` as often as it takes to be between them."""
    if low == high:
        return mnp.zeros_like(x)
    away = mnp.where(x < low, low - x, x - low)
    rest = mnp.fmod(away, high - low)
    is_even = mnp.fmod(mnp.floor(away / (high - low)), 2) == 0
    return mnp.where(is_even, rest + low, high - rest)


def _position(x: Any, size: int, align: bool) -> Any:
    """Positions among ``size`` elements of what is from -1 to 1 from one end to the other: from the centre of the first
    element to that of the last if these are aligned, else between their outer sides."""
    return (x + 1) / 2 * (size - 1) if align else ((x + 1) * size - 1) / 2


def _padded(at: Any, size: int, padding: int, align: bool, is_plane: bool) -> Any:
    """Positions that are outside, where they are looked up."""
    if padding == _ZEROS:
        return mnp.where((at > -1) & (at < size), at, -2)  # NaN and infinities are outside, too
    if padding == _REFLECTION:
        at = _reflected(at, 0, size - 1) if align else _reflected(at, -0.5, size - 0.5)
    return _inside(at, size, is_plane)


def _taken(input: Any, places: Sequence[Any]) -> Any:
    """The elements at whole positions ``[batch, points]``, one array for each dimension; 0 for those that are outside.

    The result is of shape ``[batch, channels, points]``.
    """
    sizes = input.shape[2:]
    index: Any = 0
    within: Any = True
    for place, size in zip(places, sizes):
        within = within & (place >= 0) & (place < size)
        index = index * size + mnp.where(within, place, 0).astype(mnp.int32)
    flat = input.reshape(*input.shape[:2], -1)
    values = mnp.take_along_axis(flat, mnp.where(within, index, 0)[:, None], -1, mode="promise_in_bounds")
    return mnp.where(within[:, None], values, 0)


def _linear(at: Any) -> list[tuple[Any, Any]]:
    """The two neighbours of positions, and how near they are."""
    low = lax.stop_gradient(mnp.floor(at))
    return [(low, low + 1 - at), (low + 1, at - low)]


def _near(t: Any) -> Any:
    return ((_CUBIC + 2) * t - (_CUBIC + 3)) * t * t + 1


def _far(t: Any) -> Any:
    return ((_CUBIC * t - 5 * _CUBIC) * t + 8 * _CUBIC) * t - 4 * _CUBIC


def _cubic(at: Any, within: Callable[[Any], Any]) -> list[tuple[Any, Any]]:
    """Four neighbours, which are ``within`` each, and their weights in a cubic convolution (Keys, 1981)."""
    low = lax.stop_gradient(mnp.floor(at))
    t = at - low
    weights = _far(t + 1), _near(t), _near(1 - t), _far(2 - t)
    return [(within(low + i), w) for i, w in enumerate(weights, -1)]


def _between(input: Any, neighbours: Sequence[Sequence[tuple[Any, Any]]]) -> Any:
    """The sum of the neighbours, each with the product of its weights in all dimensions."""
    total: Any = 0
    for corner in itertools.product(*neighbours):
        weight = math.prod(w for _, w in corner)
        total = total + weight[:, None] * _taken(input, [place for place, _ in corner])
    return total


@register("aten.grid_sampler_2d", "aten.grid_sampler_3d")
def grid_sampler(input: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Any:
    """``input``, ``[batch, channels, *sizes]``, at the positions ``grid``, ``[batch, ..., dimensions]``, whose last
    dimension has the places in the dimensions of ``sizes``, the last one first. What becomes of positions that are NaN
    or infinite differs between torch's kernels."""
    sizes = input.shape[2:]
    points = grid.reshape(grid.shape[0], -1, len(sizes))
    places = [_position(points[..., -1 - d], n, align_corners) for d, n in enumerate(sizes)]
    within = [lambda at, n=n: _padded(at, n, padding_mode, align_corners, len(sizes) == 2) for n in sizes]
    if interpolation_mode == _NEAREST:
        out = _taken(input, [mnp.round(w(at)) for at, w in zip(places, within)])
    elif interpolation_mode == _LINEAR:
        out = _between(input, [_linear(w(at)) for at, w in zip(places, within)])
        if len(sizes) == 2 and padding_mode == _ZEROS:
            out = mnp.where(mnp.isfinite(points).all(-1)[:, None], out, math.nan)
    else:
        out = _between(input, [_cubic(at, w) for at, w in zip(places, within)])
    return out.reshape(*input.shape[:2], *grid.shape[1:-1])


@register("aten.affine_grid_generator")
def affine_grid(theta: Any, size: Sequence[int], align_corners: bool) -> Any:
    """The positions that matrices ``[batch, dimensions, dimensions + 1]`` move those of an image's elements to."""
    dims = size[2:]
    ends = [np.linspace(-1, 1, n) * (1 if align_corners else (n - 1) / n) if n > 1 else np.zeros(1) for n in dims]
    places = np.stack([*np.meshgrid(*ends, indexing="ij")[::-1], np.ones(dims)], -1).astype(theta.dtype)
    moved = mnp.tensordot(mnp.asarray(places), theta, ((-1,), (-1,)))
    return mnp.moveaxis(moved, -2, 0)
