"""``meshwright.numpy.fft`` against NumPy, gradients against JAX, and transforms of rows that a mesh splits unevenly."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.errors import ArgumentTypeError, DTypeError

ONE = ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"]
SEVERAL = ["fftn", "ifftn", "rfftn", "irfftn"]
NORMS = ["backward", "ortho", "forward"]
_RNG = np.random.default_rng(3)
REAL = _RNG.normal(size=(3, 4, 5, 6))
COMPLEX = REAL + 1j * _RNG.normal(size=REAL.shape)


@pytest.fixture(autouse=True)
def double():
    with mw.config.override("enable_x64", True), jax.enable_x64(True):
        yield


def operand(name: str) -> np.ndarray:
    return REAL if name in ("rfft", "ihfft", "rfftn") else COMPLEX


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ONE)
def test_one_dimension(name, norm):
    x = operand(name)
    for n, axis in ((None, -1), (7, 1), (4, -1), (6, 0)):
        got = np.asarray(getattr(mnp.fft, name)(x, n, axis, norm))
        want = getattr(np.fft, name)(x, n, axis, norm)
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", SEVERAL)
def test_several_dimensions(name):
    x = operand(name)
    for norm, s, axes in (
        ("backward", None, None), ("ortho", (5, 3), (2, 0)), ("forward", (3, 4, 5, 7), (0, 1, 2, 3)),
        ("backward", None, (1, 3, 2)),
    ):  # fmt: skip
        got = np.asarray(getattr(mnp.fft, name)(x, s, axes, norm))
        np.testing.assert_allclose(got, getattr(np.fft, name)(x, s, axes, norm), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize("n", [5, 6])
def test_gradients(name, n):
    x = operand(name)[0, 0]
    weights = np.linspace(0.3, 2.0, 9)

    def loss(m):
        return lambda v: (m.abs(getattr(m.fft, name)(v, n)).reshape(-1)[:9] ** 3 * weights).sum()

    np.testing.assert_allclose(np.asarray(mw.grad(loss(mnp))(x)), jax.grad(loss(jnp))(x), rtol=1e-7, atol=1e-7)


def test_frequencies_and_shifts():
    for n in (1, 4, 7):
        np.testing.assert_allclose(np.asarray(mnp.fft.fftfreq(n, 0.5)), np.fft.fftfreq(n, 0.5))
        np.testing.assert_allclose(np.asarray(mnp.fft.rfftfreq(n, 0.5)), np.fft.rfftfreq(n, 0.5))
    for axes in (None, 1, (0, 2)):
        np.testing.assert_array_equal(np.asarray(mnp.fft.fftshift(REAL, axes)), np.fft.fftshift(REAL, axes))
        np.testing.assert_array_equal(np.asarray(mnp.fft.ifftshift(REAL, axes)), np.fft.ifftshift(REAL, axes))


def test_frequencies_are_floats(refuses):
    with refuses(DTypeError, "fftfreq", "int32"):
        mnp.fft.fftfreq(4, dtype=np.int32)


def test_rows_split_unevenly():
    mesh = mw.make_mesh((4,), ("rows",))
    x = COMPLEX.reshape(12, 30)[:10]
    sharding = mw.NamedSharding(mesh, mw.PartitionSpec("rows"))
    part = mw.jit(lambda v: mnp.fft.fft(v * 2), in_shardings=sharding).lower(x).partition()
    assert part.bytes_sent == 0
    part.verify(x)


@pytest.mark.parametrize("name", ["fft", "hfft", "fftshift", "ifftshift"])
def test_sequences_are_no_arrays(name: str) -> None:
    with pytest.raises(ArgumentTypeError, match=f"fft.{name}"):
        getattr(mnp.fft, name)([1, 2.5, 3])
