"""Transforms for TPUs: where XLA would compute a matrix in the kernel of each product, products with a constant one."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
from meshwright import lax
from meshwright.ops.linalg.fft import _matrix

MESH = mw.AbstractMesh((1,), ("x",))


def module(shape, kind, lengths, platform, dtype=np.complex64):
    x = mw.ShapeDtypeStruct(shape, dtype)
    return str(mw.jit(lambda x: lax.fft(x, kind, lengths)).lower(x).partition(MESH).module(platform))


@pytest.mark.parametrize("kind, inverse", [("FFT", False), ("IFFT", True)])
@pytest.mark.parametrize("n", [129, 200, 256])
def test_the_matrix_is_the_transform(kind, inverse, n):
    x = np.random.default_rng(n).normal(size=(2, 3, n, 2)).view(np.complex128)[..., 0]
    expected = (np.fft.ifft if inverse else np.fft.fft)(x)
    assert abs(x @ _matrix(kind, n) - expected).max() <= 2e-7 * abs(expected).max()


@pytest.mark.parametrize("kind", ["FFT", "IFFT"])
@pytest.mark.parametrize("shape", [(3, 129), (2, 8, 256)])
def test_products_on_tpus_alone(kind, shape):
    found = {p: module(shape, kind, shape[-1:], p) for p in ("cpu", "cuda", "tpu")}
    assert [p for p, text in found.items() if "stablehlo.dot_general" in text] == ["tpu"]
    assert [p for p, text in found.items() if "stablehlo.fft" in text] == ["cpu", "cuda"]
    assert found["tpu"].count("HIGHEST") == 2


@pytest.mark.parametrize(
    "case",
    [
        ((3, 128), "FFT", (128,)),
        ((3, 257), "FFT", (257,)),
        ((2048, 256), "FFT", (256,)),
        ((3, 256, 256), "FFT", (256, 256)),
        ((3, 256), "RFFT", (256,), np.float32),
    ],
    ids=str,
)
def test_what_stays_a_transform(case):
    shape, kind, lengths, *dtype = case
    assert "stablehlo.fft" in module(shape, kind, lengths, "tpu", *dtype)
