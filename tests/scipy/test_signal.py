"""Signals and clusters against SciPy at float64; derivatives as jax has them."""

from __future__ import annotations

import jax
import jax.scipy.signal as jg
import numpy as np
import pytest
import scipy.cluster.vq as sv
import scipy.signal as sg

import meshwright as mw
import meshwright.scipy.cluster.vq as mv
import meshwright.scipy.signal as mg
from meshwright import errors

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(7, 6)), RNG.normal(size=(3, 4))
MODES = ("full", "same", "valid")


@pytest.fixture(autouse=True)
def wide():
    with mw.enable_x64(True), jax.enable_x64(True):
        yield


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["convolve", "correlate", "convolve2d", "correlate2d", "fftconvolve"])
def test_convolutions(name, mode):
    ours, theirs = getattr(mg, name), getattr(sg, name)
    for x, y in ((X, Y), (X + 1j * X[::-1], Y * (1 - 2j)), (X, Y[:, :1])):
        np.testing.assert_allclose(ours(x, y, mode), theirs(x, y, mode), atol=1e-12)
    if name in ("convolve", "correlate"):
        for method in ("direct", "fft"):
            np.testing.assert_allclose(ours(X[0], Y[1], mode, method), theirs(X[0], Y[1], mode), atol=1e-12)
    if mode != "same":
        np.testing.assert_allclose(ours(Y, X, mode), theirs(Y, X, mode), atol=1e-12)
    got = mw.grad(lambda x, y: (ours(x, y, mode) ** 2).sum(), (0, 1))(X, Y)
    want = jax.grad(lambda x, y: (getattr(jg, name)(x, y, mode) ** 2).sum(), (0, 1))(X, Y)
    for a, b in zip(got, want):
        np.testing.assert_allclose(a, b, atol=1e-10)


def test_convolution_along_an_axis():
    for mode in MODES:
        got = mg.fftconvolve(X, X[:, :3], mode, axes=1)
        np.testing.assert_allclose(got, sg.fftconvolve(X, X[:, :3], mode, axes=1), atol=1e-12)


@pytest.mark.parametrize("axis", [0, 1])
def test_trends(axis):
    for kind, points in (("linear", 0), ("constant", 0), ("linear", [2, 4])):
        np.testing.assert_allclose(mg.detrend(X, axis, kind, points), sg.detrend(X, axis, kind, points), atol=1e-12)


@pytest.mark.filterwarnings("ignore:Input data is complex")
@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "uint64", "float32", "float64", "complex64"])
def test_dtypes_of_spectra(dtype):
    """Frequencies and times are of the signals' precision, as in JAX."""
    x = np.ones(32, dtype)
    for f in ("stft", "welch", "istft"):
        args, settings = ((np.ones((5, 5), dtype),), {}) if f == "istft" else ((x,), {"nperseg": 8})
        want = jax.eval_shape(lambda *xs: getattr(jg, f)(*xs, **settings), *args)  # noqa: B023
        assert [v.dtype for v in getattr(mg, f)(*args, **settings)] == [v.dtype for v in want]


SETTINGS = [
    {"nperseg": 8}, {"nperseg": 7, "noverlap": 2, "nfft": 11}, {"nperseg": 8, "window": "blackman", "fs": 3.0},
    {"nperseg": 6, "return_onesided": False},
]  # fmt: skip
SOUND = RNG.normal(size=(2, 37, 3))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("boundary", ["zeros", "odd", None])
def test_short_time_transforms(settings, boundary):
    ours, theirs = (m.stft(SOUND, axis=1, boundary=boundary, **settings) for m in (mg, sg))
    for got, want in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-12)


@pytest.mark.parametrize("settings", SETTINGS[::2], ids=str)
def test_short_time_transforms_and_back(settings):
    z = sg.stft(SOUND[0, :, 0], **settings)[2]
    back = {k: v for k, v in settings.items() if k != "return_onesided"}
    for got, want in zip(mg.istft(z, **back), sg.istft(z, **back)):
        np.testing.assert_allclose(got, want, atol=1e-12)
    np.testing.assert_allclose(mg.istft(z, **back)[1][:37], SOUND[0, :, 0], atol=1e-12)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("scaling", ["density", "spectrum"])
def test_spectra(settings, scaling):
    other = SOUND[::-1]
    for got, want in (
        (mg.welch(SOUND, axis=1, scaling=scaling, **settings), sg.welch(SOUND, axis=1, scaling=scaling, **settings)),
        (mg.csd(SOUND, other, axis=1, detrend=False, scaling=scaling, **settings),
         sg.csd(SOUND, other, axis=1, detrend=False, scaling=scaling, **settings)),
    ):  # fmt: skip
        np.testing.assert_allclose(got[0], want[0])
        np.testing.assert_allclose(got[1], want[1], atol=1e-12)


def test_codes():
    got, want = mv.vq(X, X[:3] + 0.1), sv.vq(X, X[:3] + 0.1)
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_allclose(got[1], want[1])
    z, codes = X + 1j * X[::-1], (X[:3] - 0.5) * 1j
    got, apart = mv.vq(z, codes), np.linalg.norm(z[:, None] - codes, axis=-1)
    np.testing.assert_array_equal(got[0], apart.argmin(1))
    np.testing.assert_allclose(got[1], apart.min(1))


def test_misuse(refuses):
    with refuses(errors.ArgumentError, "convolve", "mode"):
        mg.convolve(X, Y, "most")
    with refuses(errors.ShapeError, "correlate2d", "matrices"):
        mg.correlate2d(X[0], Y)
    with refuses(errors.ShapeError, "valid", "hold"):
        mg.convolve(X, np.ones((8, 2)), "valid")
    with refuses(errors.ShapeError, "vq", "features"):
        mv.vq(X, Y)
