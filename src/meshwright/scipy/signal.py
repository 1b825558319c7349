"""Convolutions, correlations, trends and spectra, with the names of ``jax.scipy.signal``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, ShapeError
from meshwright.lax import complex as complex_of
from meshwright.lax import conv_general_dilated
from meshwright.numpy import fft
from meshwright.numpy.creation import asarray
from meshwright.numpy.functions import conj
from meshwright.numpy.joining import concatenate
from meshwright.numpy.linalg.operands import inexact_operands
from meshwright.numpy.manipulation import flip, moveaxis
from meshwright.numpy.reductions import mean
from meshwright.scipy.spectra import csd, istft, stft, welch

__all__ = [
    "convolve", "convolve2d", "correlate", "correlate2d", "csd", "detrend", "fftconvolve", "istft", "stft", "welch",
]  # fmt: skip

_MODES = ("full", "same", "valid")


def _sizes(name: str, x: Any, y: Any, mode: str, axes: Sequence[int]) -> tuple[Any, Any]:
    """The operands; in mode ``valid`` the larger one is first.

    Raises:
      ArgumentError, ShapeError: the mode is unknown, ranks differ, or in mode ``valid`` neither operand fits into the
        other.
    """
    if mode not in _MODES:
        raise ArgumentError(f"{name}: mode must be full, same or valid, got {mode!r}")
    if x.ndim != y.ndim or not x.ndim:
        raise ShapeError(f"{name}: expected two arrays of one rank, got shapes {x.shape} and {y.shape}")
    if mode == "valid":
        larger = [x.shape[a] >= y.shape[a] for a in axes]
        if not all(larger):
            if any(x.shape[a] > y.shape[a] for a in axes):
                raise ShapeError(f"{name}: in mode valid one of shapes {x.shape} and {y.shape} must hold the other")
            return y, x
    return x, y


def _middle(whole: Any, sizes: Sequence[int], axes: Sequence[int]) -> Any:
    """The central part of ``whole``, with ``sizes`` along ``axes``."""
    window = [slice(None)] * whole.ndim
    for axis, size in zip(axes, sizes):
        start = (whole.shape[axis] - size) // 2
        window[axis] = slice(start, start + size)
    return whole[tuple(window)]


def _direct(name: str, x: Any, y: Any, mode: str, precision: Any) -> Any:
    x, y = inexact_operands(name, x, y)
    first = x.shape
    x, y = _sizes(name, x, y, mode, range(x.ndim))
    if dtypes.is_complex(x.dtype):
        parts = [_direct(name, p, q, mode, precision) for p in (x.real, x.imag) for q in (y.real, y.imag)]
        return complex_of(parts[0] - parts[3], parts[1] + parts[2])
    around = [(0, 0)] * x.ndim if mode == "valid" else [(n - 1, n - 1) for n in y.shape]
    window = (1,) * x.ndim
    whole = conv_general_dilated(x[None, None], flip(y)[None, None], window, around, precision=precision)[0, 0]
    return _middle(whole, first, range(x.ndim)) if mode == "same" else whole


def _method(name: str, method: str) -> None:
    if method not in ("auto", "direct", "fft"):
        raise ArgumentError(f"{name}: method must be auto, direct or fft, got {method!r}")


def convolve(in1: Any, in2: Any, mode: str = "full", method: str = "auto", precision: Any = None) -> Any:
    """The convolution of two arrays of the same rank.

    Args:
      in1, in2: arrays of the same rank.
      mode: ``full``, ``same`` (the shape of ``in1``) or ``valid`` (where one array is completely inside the other).
      method: ``direct`` (also ``auto``), or ``fft`` for Fourier transforms.
      precision: the precision of the direct method.

    Raises:
      ShapeError, ArgumentError: ranks differ, or the mode or method is unknown.

    >>> convolve(np.array([1.0, 2.0, 3.0]), np.array([0.0, 1.0])).tolist()
    [0.0, 1.0, 2.0, 3.0]
    """
    _method("convolve", method)
    return fftconvolve(in1, in2, mode) if method == "fft" else _direct("convolve", in1, in2, mode, precision)


def correlate(in1: Any, in2: Any, mode: str = "full", method: str = "auto", precision: Any = None) -> Any:
    """The cross-correlation of two arrays of the same rank; arguments as for :func:`convolve`.

    >>> correlate(np.array([1.0, 2.0, 3.0]), np.array([0.0, 1.0])).tolist()
    [1.0, 2.0, 3.0, 0.0]
    """
    _method("correlate", method)
    x, y = asarray(in1), asarray(in2)
    return convolve(x, conj(flip(y)), mode, method, precision)


def convolve2d(
    in1: Any, in2: Any, mode: str = "full", boundary: str = "fill", fillvalue: float = 0, precision: Any = None
) -> Any:
    """The convolution of two matrices, padded with zeros; arguments as for :func:`convolve`.

    Raises:
      ArgumentError: ``boundary`` or ``fillvalue`` requests other padding.
      ShapeError: the operands are not matrices.

    >>> convolve2d(np.ones((2, 2)), np.array([[1.0, 2.0]])).tolist()
    [[1.0, 3.0, 2.0], [1.0, 3.0, 2.0]]
    """
    _check_2d("convolve2d", in1, in2, boundary, fillvalue)
    return _direct("convolve2d", in1, in2, mode, precision)


def correlate2d(
    in1: Any, in2: Any, mode: str = "full", boundary: str = "fill", fillvalue: float = 0, precision: Any = None
) -> Any:
    """The cross-correlation of two matrices, padded with zeros; arguments as for :func:`convolve2d`.

    >>> correlate2d(np.ones((2, 2)), np.array([[1.0, 2.0]])).tolist()
    [[2.0, 3.0, 1.0], [2.0, 3.0, 1.0]]
    """
    _check_2d("correlate2d", in1, in2, boundary, fillvalue)
    # With this additional reversal, the centre of an even number of rows is the same as SciPy's.
    turned = _direct("correlate2d", flip(asarray(in1)), conj(asarray(in2)), mode, precision)
    return flip(turned)


def _check_2d(name: str, x: Any, y: Any, boundary: str, fill: float) -> None:
    if boundary != "fill" or fill != 0:
        raise ArgumentError(f"{name}: only boundary='fill' with fillvalue=0 is supported; pad the operand yourself")
    if np.ndim(x) != 2 or np.ndim(y) != 2:
        raise ShapeError(f"{name}: expected two matrices, got shapes {np.shape(x)} and {np.shape(y)}")


def fftconvolve(in1: Any, in2: Any, mode: str = "full", axes: int | Sequence[int] | None = None) -> Any:
    """The convolution along ``axes`` (by default all) by Fourier transforms; other axes are broadcast.

    Raises:
      ShapeError, ArgumentError: as for :func:`convolve`.

    >>> [round(abs(v), 3) for v in fftconvolve(np.array([1.0, 2.0, 3.0]), np.array([0.0, 1.0])).tolist()]
    [0.0, 1.0, 2.0, 3.0]
    """
    x, y = inexact_operands("fftconvolve", in1, in2)
    chosen = [a % x.ndim for a in ([axes] if isinstance(axes, int) else range(x.ndim) if axes is None else axes)]
    x, y = _sizes("fftconvolve", x, y, mode, chosen)
    first = [asarray(in1).shape[a] for a in chosen]
    full = [x.shape[a] + y.shape[a] - 1 for a in chosen]
    if dtypes.is_complex(x.dtype):
        whole = fft.ifftn(fft.fftn(x, full, chosen) * fft.fftn(y, full, chosen), full, chosen)
    else:
        whole = fft.irfftn(fft.rfftn(x, full, chosen) * fft.rfftn(y, full, chosen), full, chosen)
    if mode == "full":
        return whole
    valid = [x.shape[a] - y.shape[a] + 1 for a in chosen]
    return _middle(whole, first if mode == "same" else valid, chosen)


def detrend(
    data: Any, axis: int = -1, type: str = "linear", bp: int | Sequence[int] = 0, overwrite_data: None = None
) -> Any:
    """Subtract the mean, or a piecewise linear fit, from ``data``.

    Args:
      data: an array of any shape.
      axis: the axis along which to fit.
      type: ``linear`` or ``constant``.
      bp: the breakpoints, at which further lines start.

    Raises:
      ArgumentError: another ``type``, or breakpoints are outside of ``data``.

    >>> abs(detrend(np.array([1.0, 2.0, 3.0]))).round(3).tolist()
    [0.0, 0.0, 0.0]
    """
    if type not in ("linear", "constant"):
        raise ArgumentError(f"detrend: type must be linear or constant, got {type!r}")
    (x,) = inexact_operands("detrend", data)
    if type == "constant":
        return x - mean(x, axis, keepdims=True)
    x = moveaxis(x, axis, 0)
    n = x.shape[0]
    ends = sorted({0, n, *np.atleast_1d(np.asarray(bp)).tolist()})
    if ends[0] < 0 or ends[-1] > n:
        raise ArgumentError(f"detrend: breakpoints {bp} must lie within the {counted(n, 'element')} of the axis")
    flat, parts = x.reshape(n, math.prod(x.shape[1:])), []
    for start, stop in pairwise(ends):
        size = stop - start
        line = np.stack([np.arange(1, size + 1) / size, np.ones(size)], 1).astype(x.dtype)
        basis, _ = np.linalg.qr(line)
        part = flat[start:stop]
        parts.append(part - basis @ (basis.T @ part))
    return moveaxis(concatenate(parts).reshape(x.shape), 0, axis)
