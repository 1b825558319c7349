"""Spectra stay split along the dimension in which a transform leaves them, also where annotations of others differ."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P

MESH = mw.AbstractMesh((8,), ("x",))
ROWS = NamedSharding(MESH, P("x"))
N = 64
#: the bytes that an all-to-all of an array sends
MOVED = N * N * 8 // 8 * 7 // 8


def filtered(x, k):
    return mnp.fft.ifft2(mnp.fft.fft2(x) * k)


def steps(x, k, v):
    """Split steps of a Schrödinger equation."""
    return lax.fori_loop(0, 5, lambda i, x: filtered(x * v, k) * v, x)


def residuals(x, k, v):
    """From a spectrum to its array, and corrections in which spectra are compared."""
    y = mnp.fft.ifft2(x)
    for _ in range(3):
        y = y - mnp.fft.ifft2(v * mnp.fft.fft2(y) - k)
    return y


@pytest.mark.parametrize(
    ("fun", "moves"),
    [
        (lambda x, k, v: filtered(x, k), 1 + 2),
        (steps, 1 + 5 * 2),  # before the loop, and two in each step
        (residuals, 2 + 3 * 2),  # both spectra, the first of which is on its way, and two for each correction
    ],
    ids=["a filter", "split steps", "residuals"],
)
def test_spectra_that_are_split_by_rows_are_moved_once(fun, moves):
    rng = np.random.default_rng(0)
    args = [(rng.normal(size=(N, N)) + 1j * rng.normal(size=(N, N))).astype(np.complex64) / 4 for _ in range(3)]
    part = mw.jit(fun, in_shardings=ROWS, out_shardings=ROWS).lower(*args).partition()
    assert {c.kind for c in part.collectives} == {"all_to_all"}
    assert part.bytes_sent == moves * MOVED
    part.verify(*args)
