"""Discrete Fourier transforms: the array API's ``fft`` extension and NumPy's ``n``-dimensional real transforms.

``norm`` says where the factor 1/n is applied: "backward" (the default) in inverse transforms, "forward" in the others;
"ortho" applies its square root in both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, DTypeError
from meshwright.ir.tracing import typeof
from meshwright.numpy.axes import normal_axes, static_int
from meshwright.numpy.compiled import compiled
from meshwright.numpy.creation import asarray, on_device
from meshwright.numpy.functions import conj
from meshwright.numpy.manipulation import moveaxis, roll
from meshwright.numpy.promotion import operands, promotes_freely
from meshwright.ops.elementwise.table import convert, mul, scalar_like
from meshwright.ops.linalg.fft import FFT, IFFT, IRFFT, RFFT, Fft
from meshwright.ops.shape.slice_pad import pad, slice_in_dim

_NORMS = ("backward", "ortho", "forward")


# --- all of them --------------------------------------------------------------------------------------------
def _factor(norm: str | None, size: int, inverse: bool) -> float:
    """The factor for the result of the op, whose inverse transforms divide by ``size``."""
    power = {"backward": -1.0 if inverse else 0.0, "ortho": -0.5, "forward": 0.0 if inverse else -1.0}
    return size ** (power[norm or "backward"] + inverse)


def _checked_norm(name: str, norm: str | None) -> str:
    if norm is not None and norm not in _NORMS:
        raise ArgumentError(f"fft.{name}: norm must be 'backward', 'ortho' or 'forward', got {norm!r}")
    return norm or "backward"


def _operand(name: str, a: Any, kind: str) -> Any:
    """The argument in a dtype that the transform supports: half precision becomes single."""
    (x,) = operands(f"fft.{name}", (a,), to_inexact=True)
    dtype = typeof(x).dtype
    if kind == RFFT and dtypes.is_complex(dtype):
        raise DTypeError(f"fft.{name}: expected real numbers, got {typeof(x)}; take .real, or use fft for complex ones")
    if not dtypes.is_complex(dtype):
        real = dtype if dtype in (dtypes.float32, dtypes.float64) else dtypes.float32
        x = convert(x, real if kind == RFFT else np.result_type(real, np.complex64))
    return x


def _sized(x: Any, axis: int, size: int) -> Any:
    """``x`` truncated or zero-padded to ``size`` along an axis."""
    have = typeof(x).shape[axis]
    if have >= size:
        return slice_in_dim(x, 0, size, axis=axis)
    config = [(0, 0, 0)] * typeof(x).ndim
    config[axis] = (0, size - have, 0)
    return pad(x, np.zeros((), typeof(x).dtype), config)


def _transform(name: str, kind: str, a: Any, s: Any, axes: Any, norm: str | None) -> Any:
    """The transform over ``axes`` (the real axis, if any, is last) with sizes ``s``."""
    norm = _checked_norm(name, norm)
    x = _operand(name, a, kind)
    ndim = typeof(x).ndim
    if s is not None:
        s = tuple(static_int(n, f"fft.{name}", "a size") for n in s)
    if axes is None:
        axes = range(ndim) if s is None else range(ndim - len(s), ndim)
    axes = normal_axes(tuple(axes), ndim, f"fft.{name}")
    sizes = [typeof(x).shape[d] for d in axes]
    if kind == IRFFT and axes:
        sizes[-1] = 2 * (sizes[-1] - 1)
    if s is not None:
        if len(s) != len(axes):
            raise ArgumentError(
                f"fft.{name}: s={s} has {counted(len(s), 'size')} for the {counted(len(axes), 'axis', 'axes')} "
                f"{tuple(axes)}"
            )
        sizes = [have if n == -1 else n for n, have in zip(s, sizes)]
    if any(n < 1 for n in sizes):
        raise ArgumentError(
            f"fft.{name}: the transformed sizes are {tuple(sizes)} for shape {typeof(x).shape}; expected positive ones"
        )
    if not axes:
        x = operands(f"fft.{name}", (a,), to_inexact=True)[0] if kind == RFFT else x
        return convert(asarray(x), typeof(x).dtype)  # not weakly typed, like the results of transforms
    return _compiled(x, kind, tuple(axes), tuple(sizes), norm)


@compiled(static_argnums=(1, 2, 3, 4))
def _compiled(x: Any, kind: str, axes: tuple[int, ...], sizes: tuple[int, ...], norm: str) -> Any:
    for d, n in zip(axes, sizes):
        x = _sized(x, d, n // 2 + 1 if kind == IRFFT and d == axes[-1] else n)
    ends = tuple(range(typeof(x).ndim - len(axes), typeof(x).ndim))
    x = moveaxis(x, axes, ends)
    x = moveaxis(_over_last(x, kind, sizes), ends, axes)
    factor = _factor(norm, math.prod(sizes), kind in (IFFT, IRFFT))
    return x if factor == 1 else mul(x, scalar_like(factor, x))


def _over_last(x: Any, kind: str, sizes: tuple[int, ...]) -> Any:
    """Transform the last dimensions, at most three at a time; an inverse real transform is real only in its last
    step."""
    if len(sizes) <= 3:
        return Fft(kind, sizes).bind(x)
    first, last = sizes[:-3], sizes[-3:]
    others = tuple(range(typeof(x).ndim - len(sizes), typeof(x).ndim - 3))
    ends = tuple(range(typeof(x).ndim - len(first), typeof(x).ndim))
    if kind == RFFT:
        x = Fft(kind, last).bind(x)
    plain = IFFT if kind in (IFFT, IRFFT) else FFT
    x = moveaxis(_over_last(moveaxis(x, others, ends), plain, first), ends, others)
    return x if kind == RFFT else Fft(kind, last).bind(x)


# --- one dimension ------------------------------------------------------------------------------------------
def _one(n: Any) -> tuple[Any, ...] | None:
    """The size of a transform of one dimension; that of the operand is only meant by -1 where there are several.

    Raises:
      ArgumentError: it is not positive.
    """
    return None if n is None else (_samples("fft", n),)


def fft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The discrete Fourier transform along one axis: ``out[k] = sum(a[j] * exp(-2 pi i j k / n))``.

    Args:
      a: array of any shape; real numbers are converted to complex.
      n: the size to which ``a`` is truncated or zero-padded along ``axis``.
      norm: "backward", "ortho" or "forward"; see the module.

    Raises:
      ArgumentError: a size below 1 or an unknown norm. AxisError: no such axis.

    >>> fft(np.array([1.0, 0.0, 0.0])).tolist()
    [(1+0j), (1+0j), (1+0j)]
    """
    return _transform("fft", FFT, a, _one(n), (axis,), norm)


def ifft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The inverse of :func:`fft`.

    >>> ifft(np.array([1.0, 1.0])).tolist()
    [(1+0j), 0j]
    """
    return _transform("ifft", IFFT, a, _one(n), (axis,), norm)


def rfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The first ``n // 2 + 1`` terms of the :func:`fft` of real numbers; the others are their conjugates.

    Raises:
      DTypeError: complex input. Others as :func:`fft`.

    >>> rfft(np.array([1.0, 1.0, 1.0, 1.0])).tolist()
    [(4+0j), 0j, 0j]
    """
    return _transform("rfft", RFFT, a, _one(n), (axis,), norm)


def irfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The inverse of :func:`rfft`; ``n`` is the size of the result, by default ``2 * (m - 1)`` for ``m`` terms.

    >>> irfft(np.array([4.0, 0.0, 0.0])).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    return _transform("irfft", IRFFT, a, _one(n), (axis,), norm)


_OPPOSITE = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


def hfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The real :func:`fft` of the Hermitian signal of size ``n`` given by the ``n // 2 + 1`` elements of ``a``.

    >>> hfft(np.array([1.0, 0.0, 0.0])).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    (x,) = operands("fft.hfft", (a,))
    return _transform("hfft", IRFFT, conj(x), _one(n), (axis,), _OPPOSITE[_checked_norm("hfft", norm)])


def ihfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The inverse of :func:`hfft`.

    >>> ihfft(np.array([1.0, 1.0, 1.0, 1.0])).real.tolist()
    [1.0, 0.0, 0.0]
    """
    return conj(_transform("ihfft", RFFT, asarray(a), _one(n), (axis,), _OPPOSITE[_checked_norm("ihfft", norm)]))


# --- several dimensions -------------------------------------------------------------------------------------
Sizes = Sequence[int] | None


def fftn(a: Any, s: Sizes = None, axes: Sizes = None, norm: str | None = None) -> Any:
    """:func:`fft` along several axes: all of them, the last ``len(s)``, or ``axes``.

    Args:
      s: the sizes along them; -1 keeps the size of ``a``.

    Raises:
      ArgumentError: the numbers of sizes and axes differ, a repeated axis, a size below 1, or an unknown norm.
        AxisError: no such axis.

    >>> fftn(np.ones((2, 2)))[0, 0].item()
    (4+0j)
    """
    return _transform("fftn", FFT, a, s, axes, norm)


def ifftn(a: Any, s: Sizes = None, axes: Sizes = None, norm: str | None = None) -> Any:
    """The inverse of :func:`fftn`.

    >>> ifftn(np.ones((2, 2)))[0, 0].item()
    (1+0j)
    """
    return _transform("ifftn", IFFT, a, s, axes, norm)


def rfftn(a: Any, s: Sizes = None, axes: Sizes = None, norm: str | None = None) -> Any:
    """:func:`fftn` of real numbers, without redundant terms: :func:`rfft` along the last axis, :func:`fft` along the
    others.

    >>> rfftn(np.ones((2, 4))).shape
    (2, 3)
    """
    return _transform("rfftn", RFFT, a, s, axes, norm)


def irfftn(a: Any, s: Sizes = None, axes: Sizes = None, norm: str | None = None) -> Any:
    """The inverse of :func:`rfftn`; ``s`` are the sizes of the result.

    >>> irfftn(np.ones((2, 3))).shape
    (2, 4)
    """
    return _transform("irfftn", IRFFT, a, s, axes, norm)


def fft2(a: Any, s: Sizes = None, axes: Sequence[int] = (-2, -1), norm: str | None = None) -> Any:
    """:func:`fftn` over the last two axes.

    >>> fft2(np.ones((2, 2)))[0, 0].item()
    (4+0j)
    """
    return _transform("fft2", FFT, a, s, _two("fft2", axes), norm)


def ifft2(a: Any, s: Sizes = None, axes: Sequence[int] = (-2, -1), norm: str | None = None) -> Any:
    """:func:`ifftn` over the last two axes.

    >>> ifft2(np.ones((2, 2)))[0, 0].item()
    (1+0j)
    """
    return _transform("ifft2", IFFT, a, s, _two("ifft2", axes), norm)


def rfft2(a: Any, s: Sizes = None, axes: Sequence[int] = (-2, -1), norm: str | None = None) -> Any:
    """:func:`rfftn` over the last two axes.

    >>> rfft2(np.ones((2, 4))).shape
    (2, 3)
    """
    return _transform("rfft2", RFFT, a, s, _two("rfft2", axes), norm)


def irfft2(a: Any, s: Sizes = None, axes: Sequence[int] = (-2, -1), norm: str | None = None) -> Any:
    """:func:`irfftn` over the last two axes.

    >>> irfft2(np.ones((2, 3))).shape
    (2, 4)
    """
    return _transform("irfft2", IRFFT, a, s, _two("irfft2", axes), norm)


def _two(name: str, axes: Sequence[int]) -> Sequence[int]:
    if len(axes) != 2:
        raise ArgumentError(f"fft.{name}: expected two axes, got {tuple(axes)}; use the function for n dimensions")
    return axes


# --- frequencies --------------------------------------------------------------------------------------------
def fftfreq(n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Any:
    """The frequencies of the terms of :func:`fft` for ``n`` samples at distance ``d``.

    Raises:
      ArgumentError: ``n`` is below 1. DTypeError: ``dtype`` is not floating.

    >>> fftfreq(4).tolist()
    [0.0, 0.25, -0.5, -0.25]
    """
    n = _samples("fftfreq", n)
    order = (np.arange(n) + n // 2) % n - n // 2
    return on_device(_frequencies(order, n, d, dtype), device, "fft.fftfreq")


def rfftfreq(n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Any:
    """The frequencies of the terms of :func:`rfft` for ``n`` samples at distance ``d``.

    Raises:
      ArgumentError: ``n`` is below 1. DTypeError: ``dtype`` is not floating.

    >>> rfftfreq(4).tolist()
    [0.0, 0.25, 0.5]
    """
    n = _samples("rfftfreq", n)
    return on_device(_frequencies(np.arange(n // 2 + 1), n, d, dtype), device, "fft.rfftfreq")


def _samples(name: str, n: Any) -> int:
    n = static_int(n, f"fft.{name}", "n")
    if n < 1:
        raise ArgumentError(f"fft.{name}: n must be positive, got {n}")
    return n


@promotes_freely()
def _frequencies(order: np.ndarray, n: int, d: Any, dtype: Any) -> Any:
    target = dtypes.default_float() if dtype is None else dtypes.requested(dtype, "fftfreq")
    if not dtypes.is_float(target):
        raise DTypeError(f"fft.fftfreq: frequencies are floats, got dtype {target}; pass a floating dtype, or none")
    return asarray(order.astype(target)) / (d * n)


def fftshift(x: Any, axes: Any = None) -> Any:
    """Move the zero frequency from the front to the middle along ``axes`` (default: all).

    >>> fftshift(np.array([0, 1, 2, -2, -1])).tolist()
    [-2, -1, 0, 1, 2]
    """
    return _shifted("fftshift", x, axes, 1)


def ifftshift(x: Any, axes: Any = None) -> Any:
    """The inverse of :func:`fftshift`.

    >>> ifftshift(np.array([-2, -1, 0, 1, 2])).tolist()
    [0, 1, 2, -2, -1]
    """
    return _shifted("ifftshift", x, axes, -1)


def _shifted(name: str, x: Any, axes: Any, direction: int) -> Any:
    (array,) = operands(f"fft.{name}", (x,))
    chosen = normal_axes(axes, array.ndim, f"fft.{name}")
    sizes = [array.shape[d] for d in chosen]
    return roll(array, [n // 2 if direction > 0 else -(n // 2) for n in sizes], chosen)


__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn", "ifftshift", "ihfft", "irfft",
    "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip
