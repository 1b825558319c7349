"""Spectra of signals, by Fourier transforms of windowed segments (Welch 1967, "The use of fast Fourier transform for
the estimation of power spectra")."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import signal

from meshwright.core import dtypes
from meshwright.core.words import counted
from meshwright.errors import ArgumentError
from meshwright.numpy import fft
from meshwright.numpy.creation import asarray, zeros
from meshwright.numpy.linalg.operands import inexact_operands
from meshwright.numpy.manipulation import moveaxis
from meshwright.numpy.padding import pad
from meshwright.numpy.promotion import promotes_freely
from meshwright.numpy.reductions import mean

#: modes of pad by names of boundaries; an odd extension is twice the end's value minus the even extension
_BORDERS = {"zeros": "constant", "constant": "edge", "even": "reflect", "odd": "reflect"}


def _window_of(name: str, window: Any, nperseg: int | None, size: int) -> np.ndarray:
    """The values of a window of ``nperseg`` elements, or of an array's own length; at most ``size``."""
    if isinstance(window, (str, tuple)):
        return signal.get_window(window, min(256 if nperseg is None else nperseg, size))
    values = np.asarray(window)
    if values.ndim != 1 or values.shape[0] > size or (nperseg is not None and nperseg != values.shape[0]):
        raise ArgumentError(
            f"{name}: window must be a vector of nperseg elements, no more than the {size} of the signal, got shape "
            f"{values.shape}"
        )
    return values


def _frames(x: Any, size: int, step: int) -> Any:
    """Segments of the last dimension, (..., count, size), at distances of ``step``."""
    count = (x.shape[-1] - size) // step + 1
    return x[..., np.arange(count)[:, None] * step + np.arange(size)]


def _overlapping(name: str, size: int, noverlap: int | None, nfft: int | None) -> tuple[int, int]:
    """The step between segments, and the size of the transforms."""
    overlap = size // 2 if noverlap is None else noverlap
    length = size if nfft is None else nfft
    if overlap >= size or length < size:
        raise ArgumentError(
            f"{name}: noverlap={overlap} must be less, nfft={length} not less than the {counted(size, 'element')} of a "
            "piece"
        )
    return size - overlap, length


def _extended(x: Any, boundary: str | None, size: int, step: int, padded: bool) -> Any:
    """The last dimension, extended by half a segment at both ends, and with zeros to a whole number of segments."""
    if boundary is not None:
        if boundary not in _BORDERS:
            raise ArgumentError(f"stft: boundary must be None or one of {', '.join(_BORDERS)}, got {boundary!r}")
        around = [(0, 0)] * (x.ndim - 1) + [(size // 2, size // 2)]
        even = pad(x, around, _BORDERS[boundary])
        x = 2 * pad(x, around, "edge") - even if boundary == "odd" else even
    if padded:
        x = pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -(x.shape[-1] - size) % step)])
    return x


def _transforms(pieces: Any, window: Any, length: int, onesided: bool, detrend: Any) -> Any:
    """Fourier transforms of windowed segments."""
    if detrend == "constant":
        pieces = pieces - mean(pieces, -1, keepdims=True)
    elif detrend:
        raise ArgumentError(
            f"detrend must be constant or False for spectra, got {detrend!r}; use signal.detrend before"
        )
    return (fft.rfft if onesided else fft.fft)(pieces * window, length)


def _frequencies(length: int, fs: float, onesided: bool, dtype: np.dtype) -> Any:
    return asarray((np.fft.rfftfreq if onesided else np.fft.fftfreq)(length, 1 / fs), dtype)


@promotes_freely()
def stft(
    x: Any, fs: Any = 1.0, window: Any = "hann", nperseg: int = 256, noverlap: int | None = None,
    nfft: int | None = None, detrend: Any = False, return_onesided: bool = True, boundary: str | None = "zeros",
    padded: bool = True, axis: int = -1,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """The short-time Fourier transform, of overlapping windowed segments: ``(frequencies, times, z)``.

    Args:
      x: an array whose ``axis`` is the time; z has frequencies there, and times as its last dimension.
      fs: the number of samples per unit of time.
      window: a name that ``scipy.signal.get_window`` knows, or an array.
      nperseg, noverlap, nfft: the sizes of segments (256), of their overlap (half a segment) and of transforms
        (``nperseg``).
      detrend: ``constant`` subtracts the mean of each segment.
      return_onesided: for real signals, return nonnegative frequencies only.
      boundary: the extension of the signal by half a segment: ``zeros``, ``even``, ``odd``, ``constant`` or None.
      padded: add zeros at the end, up to a whole number of segments.

    Raises:
      ArgumentError: the sizes do not fit each other, or a setting is unknown.

    >>> stft(np.ones(16), nperseg=8)[2].shape
    (5, 5)
    """
    (x,) = inexact_operands("stft", x)
    axis = axis % x.ndim
    x = moveaxis(x, axis, -1)
    values = _window_of("stft", window, nperseg, x.shape[-1])
    size = values.shape[0]
    step, length = _overlapping("stft", size, noverlap, nfft)
    onesided = return_onesided and not dtypes.is_complex(x.dtype)
    whole = _extended(x, boundary, size, step, padded)
    real = dtypes.real_of(x.dtype)
    z = _transforms(_frames(whole, size, step), (values / values.sum()).astype(real), length, onesided, detrend)
    first = 0 if boundary is not None else size / 2
    times = (first + np.arange(z.shape[-2]) * step) / fs
    z = moveaxis(z, -1, -2)  # (..., frequencies, times)
    return _frequencies(length, fs, onesided, real), asarray(times, real), moveaxis(z, -2, axis)


@promotes_freely()
def istft(
    Zxx: Any, fs: Any = 1.0, window: Any = "hann", nperseg: int | None = None, noverlap: int | None = None,
    nfft: int | None = None, input_onesided: bool = True, boundary: bool = True, time_axis: int = -1,
    freq_axis: int = -2,
) -> tuple[Any, Any]:  # fmt: skip
    """The inverse of :func:`stft`: ``(times, x)``.

    Args:
      Zxx: an array with frequencies at ``freq_axis`` and times at ``time_axis``.
      fs, window, nperseg, noverlap, nfft: as for :func:`stft`.
      input_onesided: there are nonnegative frequencies only.
      boundary: the signal was extended by half a segment at both ends.

    Raises:
      ArgumentError: the sizes do not fit each other.

    >>> z = stft(np.arange(16.0), nperseg=8)[2]
    >>> [round(v) for v in istft(z, nperseg=8)[1].tolist()][:5]
    [0, 1, 2, 3, 4]
    """
    z = moveaxis(asarray(Zxx), (freq_axis, time_axis), (-1, -2))  # (..., times, frequencies)
    length = 2 * (z.shape[-1] - 1) if input_onesided else z.shape[-1]
    length = length if nfft is None else nfft
    size = length if nperseg is None else nperseg
    values = _window_of("istft", window, size, size)
    step, length = _overlapping("istft", size, noverlap, length)
    pieces = (fft.irfft(z, length) if input_onesided else fft.ifft(z, length))[..., :size]
    real = dtypes.real_of(pieces.dtype)
    count = pieces.shape[-2]
    total = size + step * (count - 1)
    places = np.arange(count)[:, None] * step + np.arange(size)
    weights = np.zeros(total)
    np.add.at(weights, places, np.tile(values**2, (count, 1)))
    x = zeros((*pieces.shape[:-2], total), pieces.dtype)
    x = x.at[..., places].add(pieces * (values * values.sum()).astype(real))
    x = x / np.where(weights > 1e-10, weights, 1.0).astype(real)
    if boundary:
        x = x[..., size // 2 : total - size // 2]
    return asarray(np.arange(x.shape[-1]) / fs, real), x


@promotes_freely("x", "y")
def csd(
    x: Any, y: Any, fs: Any = 1.0, window: Any = "hann", nperseg: int | None = None, noverlap: int | None = None,
    nfft: int | None = None, detrend: Any = "constant", return_onesided: bool = True, scaling: str = "density",
    axis: int = -1, average: str = "mean",
) -> tuple[Any, Any]:  # fmt: skip
    """The cross spectral density of two signals, by Welch's method: ``(frequencies, density)``.

    Args:
      x, y: arrays of the same shape, whose ``axis`` is the time; None for ``y`` means ``x``.
      fs, window, nperseg, noverlap, nfft, detrend, return_onesided: as for :func:`stft`.
      scaling: ``density`` for power per frequency, or ``spectrum`` for power.
      average: ``mean`` over the segments.

    Raises:
      ArgumentError: the sizes do not fit each other, or a setting is unknown.

    >>> csd(np.arange(16.0), np.ones(16), nperseg=8)[1].shape
    (5,)
    """
    if scaling not in ("density", "spectrum") or average != "mean":
        raise ArgumentError(f"csd: scaling must be density or spectrum, average mean, got {scaling!r} and {average!r}")
    x, y = inexact_operands("csd", x, x if y is None else y)
    axis = axis % x.ndim
    x, y = moveaxis(x, axis, -1), moveaxis(y, axis, -1)
    values = _window_of("csd", window, nperseg, x.shape[-1])
    size = values.shape[0]
    step, length = _overlapping("csd", size, noverlap, nfft)
    onesided = return_onesided and not dtypes.is_complex(x.dtype)
    real = dtypes.real_of(x.dtype)
    first, second = (
        _transforms(_frames(v, size, step), values.astype(real), length, onesided, detrend) for v in (x, y)
    )
    scale = 1 / (fs * (values**2).sum()) if scaling == "density" else 1 / values.sum() ** 2
    double = np.ones(first.shape[-1])
    if onesided:
        # Negative frequencies are added to the positive ones; 0, and for even sizes the last, have no counterpart.
        double[1 : None if length % 2 else -1] = 2
    density = mean(first.conj() * second, -2) * (double * scale).astype(real)
    return _frequencies(length, fs, onesided, real), moveaxis(density, -1, axis)


@promotes_freely()
def welch(
    x: Any, fs: Any = 1.0, window: Any = "hann", nperseg: int | None = None, noverlap: int | None = None,
    nfft: int | None = None, detrend: Any = "constant", return_onesided: bool = True, scaling: str = "density",
    axis: int = -1, average: str = "mean",
) -> tuple[Any, Any]:  # fmt: skip
    """The power spectral density of a signal, by Welch's method; arguments as for :func:`csd`.

    >>> welch(np.arange(16.0), nperseg=8)[1].shape
    (5,)
    """
    frequencies, density = csd(
        x, None, fs, window, nperseg, noverlap, nfft, detrend, return_onesided, scaling, axis, average
    )  # fmt: skip
    return frequencies, density.real
