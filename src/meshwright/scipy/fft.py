"""``jax.scipy.fft``: cosine transforms, by a complex one of the same size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, DTypeError, ShapeError
from meshwright.ir.tracing import typeof
from meshwright.numpy.axes import normal_axes, normal_axis, static_int
from meshwright.numpy.creation import asarray
from meshwright.numpy.fft import fft, ifft
from meshwright.numpy.functions import real
from meshwright.numpy.joining import concatenate
from meshwright.numpy.manipulation import flip, moveaxis
from meshwright.numpy.padding import pad
from meshwright.numpy.promotion import operands, promotes_freely
from meshwright.ops.elementwise.table import convert

__all__ = ["dct", "dctn", "idct", "idctn"]


@promotes_freely()
def dct(x: Any, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The cosine transform of type 2 along ``axis``: the sums ``2 * x[m] * cos(pi * k * (2 * m + 1) / (2 * n))``.

    Args:
      n: the size: ``x`` is cut or padded with zeros at the end.
      norm: None, or "ortho", which makes the transform orthogonal.

    Raises:
      ArgumentError: another type or norm. DTypeError: complex values. ShapeError: ``n`` is less than 1.

    Source: Makhoul 1980.

    >>> dct(np.ones(2)).round(3).tolist()
    [4.0, 0.0]
    """
    values = _sized("dct", _operand("dct", x, type, norm), axis, n)
    return moveaxis(_forward(moveaxis(values, axis, -1), norm), -1, axis)


@promotes_freely()
def idct(x: Any, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The inverse of :func:`dct`, with its arguments.

    Raises:
      ArgumentError: another type or norm. DTypeError: complex values. ShapeError: ``n`` is less than 1.

    >>> idct(dct(np.array([1.0, 5.0]))).round(3).tolist()
    [1.0, 5.0]
    """
    values = _sized("idct", _operand("idct", x, type, norm), axis, n)
    return moveaxis(_inverse(moveaxis(values, axis, -1), norm), -1, axis)


@promotes_freely()
def dctn(
    x: Any, type: int = 2, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str | None = None
) -> Any:
    """:func:`dct` along ``axes`` (all, or the last ``len(s)``), which then have the sizes ``s``.

    Raises:
      ArgumentError: another type or norm, or ``s`` and ``axes`` of different lengths. DTypeError: complex values.

    >>> dctn(np.ones((2, 2))).round(3).tolist()
    [[16.0, 0.0], [0.0, 0.0]]
    """
    for axis, n in _axes("dctn", x, s, axes):
        x = dct(x, type, n, axis, norm)
    return _operand("dctn", x, type, norm)


@promotes_freely()
def idctn(
    x: Any, type: int = 2, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str | None = None
) -> Any:
    """The inverse of :func:`dctn`, with its arguments.

    Raises:
      ArgumentError: another type or norm, or ``s`` and ``axes`` of different lengths. DTypeError: complex values.

    >>> idctn(dctn(np.array([[1.0, 5.0]]))).round(3).tolist()
    [[1.0, 5.0]]
    """
    for axis, n in _axes("idctn", x, s, axes):
        x = idct(x, type, n, axis, norm)
    return _operand("idctn", x, type, norm)


def _operand(name: str, x: Any, type: int, norm: str | None) -> Any:
    if type != 2:
        raise ArgumentError(f"{name}: only transforms of type 2 are there, got type={type!r}")
    if norm not in (None, "ortho"):
        raise ArgumentError(f"{name}: norm must be None or 'ortho', got {norm!r}")
    (values,) = operands(name, (asarray(x),), to_inexact=True)
    if dtypes.is_complex(typeof(values).dtype):
        raise DTypeError(f"{name}: expected real values, got {typeof(values)}; transform .real and .imag")
    return convert(values, dtypes.real_of(dtypes.complex_of(typeof(values).dtype)))


def _sized(name: str, x: Any, axis: int, n: int | None) -> Any:
    axis = normal_axis(axis, typeof(x).ndim, name)
    own = typeof(x).shape[axis]
    n = own if n is None else static_int(n, name, "n")
    if n < 1:
        raise ShapeError(f"{name}: a transform of size {n}; expected 1 or more")
    if n > own:
        return pad(x, [(0, n - own if d == axis else 0) for d in range(typeof(x).ndim)])
    return x[tuple(slice(n) if d == axis else slice(None) for d in range(typeof(x).ndim))] if n < own else x


def _axes(name: str, x: Any, s: Sequence[int] | None, axes: Sequence[int] | None) -> list[tuple[int, int | None]]:
    ndim = typeof(asarray(x)).ndim
    if axes is None:
        axes = range(ndim) if s is None else range(ndim - len(s), ndim)
    chosen = normal_axes(tuple(axes), ndim, name)
    if s is not None and len(s) != len(chosen):
        raise ArgumentError(f"{name}: {counted(len(s), 'size')} in s for {counted(len(chosen), 'axis', 'axes')}")
    return list(zip(chosen, [None] * len(chosen) if s is None else s))


def _turns(n: int, dtype: np.dtype) -> np.ndarray:
    """``exp(-i pi k / (2 n))``, in the complex dtype of ``dtype``."""
    return np.exp(-0.5j * math.pi * np.arange(n) / n).astype(dtypes.complex_of(dtype))


def _scales(n: int, dtype: np.dtype, norm: str | None) -> np.ndarray:
    """What each coefficient is multiplied by."""
    scales = np.full(n, 2 if norm is None else math.sqrt(2 / n))
    if norm == "ortho":
        scales[0] = math.sqrt(1 / n)
    return scales.astype(dtype)


def _forward(x: Any, norm: str | None) -> Any:
    """Of the last dimension: elements at even positions, then the others backwards, have the transform's real part."""
    dtype, n = typeof(x).dtype, typeof(x).shape[-1]
    values = concatenate([x[..., ::2], flip(x[..., 1::2], -1)], -1)
    return real(fft(values) * _turns(n, dtype)) * _scales(n, dtype, norm)


def _inverse(y: Any, norm: str | None) -> Any:
    dtype, n = typeof(y).dtype, typeof(y).shape[-1]
    values = y / _scales(n, dtype, norm)
    # The coefficients mirrored are the imaginary part, with 0 for the first.
    mirrored = concatenate([values[..., :1] * 0, flip(values[..., 1:], -1)], -1)
    out = real(ifft((values - 1j * mirrored) * np.conj(_turns(n, dtype))))
    half = (n + 1) // 2
    evens, odds = out[..., :half], flip(out[..., half:], -1)
    joined = concatenate([evens[..., None], pad(odds, [(0, 0)] * (odds.ndim - 1) + [(0, n % 2)])[..., None]], -1)
    return joined.reshape(*joined.shape[:-2], -1)[..., :n]
