"""Histograms in one and more dimensions: a binary search finds each element's bin, and one scatter counts them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.words import counted
from meshwright.errors import ArgumentError
from meshwright.ir.tracing import typeof
from meshwright.numpy.arithmetic import divide, subtract
from meshwright.numpy.axes import static_int
from meshwright.numpy.creation import asarray
from meshwright.numpy.indexing import take
from meshwright.numpy.joining import stack
from meshwright.numpy.logic import where
from meshwright.numpy.manipulation import ravel, reshape
from meshwright.numpy.promotion import converted, inexact, operands, promotes_freely, result_type, scalar_like
from meshwright.numpy.ranges import linspace
from meshwright.numpy.reductions import max, min, sum
from meshwright.numpy.searching import bincount, searchsorted
from meshwright.ops.elementwise import table as ops


def histogram_bin_edges(a: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Any:
    """The edges of ``bins`` equal bins from the smallest to the largest element, or over ``range``.

    Args:
      bins: a number of bins, or the edges themselves, which are returned.

    Raises:
      ArgumentError: ``bins`` names one of NumPy's estimators, which would need values on the host.

    >>> histogram_bin_edges(np.array([0.0, 4.0]), 2).tolist()
    [0.0, 2.0, 4.0]
    """
    if isinstance(bins, str):
        raise ArgumentError(f"histogram_bin_edges: bins must be a number or edges, got {bins!r}")
    (x,) = operands("histogram_bin_edges", (ravel(a),), to_inexact=True)
    if np.ndim(bins) == 1 or getattr(bins, "ndim", 0) == 1:
        return converted(asarray(bins), typeof(x).dtype)
    count = static_int(bins, "histogram_bin_edges", "bins")
    if range is not None:
        low, high = operands("histogram_bin_edges", tuple(range), to_inexact=True)
    elif typeof(x).size:
        low, high = min(x), max(x)
    else:
        low, high = scalar_like(0, x), scalar_like(1, x)
    low, high = converted(asarray(low), typeof(x).dtype), converted(asarray(high), typeof(x).dtype)
    flat, half = ops.eq(low, high), scalar_like(0.5, low)
    return linspace(where(flat, ops.sub(low, half), low), where(flat, ops.add(high, half), high), count + 1)


def _bins_of(x: Any, edges: Any) -> Any:
    """The bin of each element: 0 before the first edge, the number of bins plus one after the last."""
    count = typeof(edges).size - 1
    place = searchsorted(edges, x, "right")
    last = ops.eq(x, take(edges, np.array(count)))  # the last bin includes its upper edge
    return where(last, np.asarray(count, typeof(place).dtype), place)


def histogram(a: Any, bins: Any = 10, range: Any = None, weights: Any = None, density: bool = False) -> Any:
    """``(counts, edges)``: the number or total weight of the elements in each bin; the last bin includes its upper
    edge.

    Args:
      a: array of any shape; weights: array of the same size.
      density: divide by the total and by each bin's width.

    Raises:
      ArgumentError: the sizes differ.

    >>> histogram(np.array([0.0, 1.0, 4.0]), 2)[0].tolist()
    [2.0, 1.0]
    """
    if weights is not None:
        weights = ravel(weights)
    counts, (edges,) = histogramdd(reshape(asarray(a), (-1, 1)), [bins], [range], weights, density)
    return converted(counts, typeof(edges).dtype) if weights is None and not density else counts, edges


def histogram2d(
    x: Any, y: Any, bins: Any = 10, range: Any = None, weights: Any = None, density: bool = False
) -> tuple[Any, Any, Any]:
    """``(counts, edges of x, edges of y)`` for points given by two vectors.

    Args:
      bins: a number, edges, or one of these for each of x and y.

    >>> histogram2d(np.array([0.0, 1.0, 1.0]), np.array([0.0, 1.0, 1.0]), 2)[0].tolist()
    [[1, 0], [0, 2]]
    """
    pair = isinstance(bins, (tuple, list)) and len(bins) == 2
    both = list(bins) if pair else [bins, bins]
    counts, edges = histogramdd(stack([ravel(x), ravel(y)], -1), both, range, weights, density)
    return counts, edges[0], edges[1]


def histogramdd(
    sample: Any, bins: Any = 10, range: Any = None, weights: Any = None, density: bool = False
) -> tuple[Any, list[Any]]:
    """``(counts, edges of each dimension)`` for points in D dimensions.

    Args:
      sample: shape (N, D), or a sequence of D vectors.
      bins: a number, or a number or edges for each dimension.
      range: ``(low, high)`` for each dimension; None uses the range of the points.

    Raises:
      ArgumentError: bins, ranges or weights do not fit the points.

    >>> histogramdd(np.array([[0.0], [1.0], [4.0]]), 2)[0].tolist()
    [2, 1]
    """
    if isinstance(sample, (tuple, list)):
        sample = stack([asarray(s) for s in sample], -1)
    sample = asarray(sample)
    if weights is not None and dtypes.is_inexact(typeof(weights := asarray(weights)).dtype):
        sample = converted(sample, result_type(sample, dtypes.real_of(typeof(weights).dtype)))
    (points,) = operands("histogramdd", (sample,), to_inexact=True)
    if typeof(points).ndim != 2:
        raise ArgumentError(f"histogramdd: expected points of shape (N, D), got shape {typeof(points).shape}")
    count, dims = typeof(points).shape
    each = list(bins) if isinstance(bins, (tuple, list)) else [bins] * dims
    ranges = [None] * dims if range is None else list(range)
    if len(each) != dims or len(ranges) != dims:
        raise ArgumentError(
            f"histogramdd: {counted(len(each), 'bin')} and {counted(len(ranges), 'range')} for "
            f"{counted(dims, 'dimension')}"
        )
    if weights is not None and typeof(weights).shape != (count,):
        raise ArgumentError(f"histogramdd: {counted(count, 'point')}, but weights of shape {typeof(weights).shape}")
    columns = [points[:, d] for d in np.arange(dims)]
    edges = [histogram_bin_edges(c, b, r) for c, b, r in zip(columns, each, ranges)]
    mass = np.ones((), dtypes.default_int()) if weights is None else weights
    if weights is not None:
        dtype = inexact(result_type(points, mass))
        points, mass = converted(points, dtype), converted(mass, dtype)
        columns = [points[:, d] for d in np.arange(dims)]
        edges = [converted(e, dtype) for e in edges]
    return _binned(columns, edges, mass, density)


@promotes_freely()
def _binned(columns: Sequence[Any], edges: list[Any], mass: Any, density: bool) -> tuple[Any, list[Any]]:
    sizes = [typeof(e).size + 1 for e in edges]  # with one place before and one after the bins
    flat: Any = None
    for column, edge, size in zip(columns, edges, sizes):
        place = _bins_of(column, edge)
        flat = place if flat is None else ops.add(ops.mul(flat, scalar_like(size, flat)), place)
    counts = reshape(bincount(flat, mass, length=math.prod(sizes)), sizes)
    counts = counts[(slice(1, -1),) * len(sizes)]
    if density:
        counts = divide(converted(counts, inexact(typeof(edges[0]).dtype)), sum(counts))
        for d, edge in enumerate(edges):
            width = subtract(edge[1:], edge[:-1])
            counts = divide(counts, reshape(width, [-1 if e == d else 1 for e in np.arange(len(edges))]))
    return counts, edges
