"""Cosine transforms against SciPy, and JAX for dtypes."""

import jax.numpy as jnp
import jax.scipy.fft
import numpy as np
import pytest
import scipy.fft

import meshwright as mw
import meshwright.numpy as mnp
import meshwright.scipy.fft as mfft
from meshwright.errors import ArgumentError, AxisError, DTypeError, ShapeError

X = np.random.default_rng(0).standard_normal((3, 7, 4)).astype(np.float32)
NORMS = [None, "ortho"]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("n", [*range(1, 10), None])
@pytest.mark.parametrize("name", ["dct", "idct"])
def test_along_an_axis(name, n, norm):
    for axis in (0, 1, -1):
        got = getattr(mfft, name)(X, n=n, axis=axis, norm=norm)
        want = getattr(scipy.fft, name)(X, n=n, axis=axis, norm=norm)
        np.testing.assert_allclose(got, want, atol=2e-5)
        traced = mw.jit(lambda x, axis=axis: getattr(mfft, name)(x, n=n, axis=axis, norm=norm))(X)
        np.testing.assert_allclose(traced, want, atol=2e-5)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("s, axes", [(None, None), ((2, 3), None), (None, (0, -1)), ((5, 2), (2, 0)), ((9,), (1,))])
@pytest.mark.parametrize("name", ["dctn", "idctn"])
def test_along_several(name, s, axes, norm):
    want = getattr(scipy.fft, name)(X, s=s, axes=axes, norm=norm)
    np.testing.assert_allclose(getattr(mfft, name)(X, s=s, axes=axes, norm=norm), want, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "bool"])
def test_dtypes_are_those_of_jax(dtype):
    for name in ("dct", "idct", "dctn", "idctn"):
        x = mnp.asarray(X).astype(dtype)
        got = getattr(mfft, name)(x)
        assert got.dtype == getattr(jax.scipy.fft, name)(jnp.asarray(np.asarray(x))).dtype and not got.weak_type
        np.testing.assert_allclose(got, getattr(scipy.fft, name)(np.asarray(x, np.float32)), rtol=1e-4, atol=1e-4)


def test_derivatives_are_of_a_linear_function():
    matrix = scipy.fft.dct(np.eye(7, dtype=np.float32), axis=0)
    np.testing.assert_allclose(mw.jacrev(mfft.dct)(X[0, :, 0]), matrix, atol=1e-5)
    np.testing.assert_allclose(mw.jacfwd(mfft.idct)(X[0, :, 0]), np.linalg.inv(matrix), atol=1e-5)
    np.testing.assert_allclose(mw.vmap(mfft.dct)(X), mfft.dct(X), atol=1e-5)


def test_what_is_not_there_is_refused(refuses):
    with refuses(ArgumentError, "type=3"):
        mfft.dct(X, type=3)
    with refuses(ArgumentError, "'forward'", "ortho"):
        mfft.idct(X, norm="forward")
    with refuses(DTypeError, "real"):
        mfft.dct(X + 1j)
    with refuses(ShapeError, "size 0"):
        mfft.dct(X, n=0)
    with refuses(AxisError, "5"):
        mfft.dct(X, axis=5)
    with refuses(ArgumentError, "2 sizes", "1 axis"):
        mfft.dctn(X, s=(2, 3), axes=(1,))
