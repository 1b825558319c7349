"""Fourier transforms beside LAPACK's kernels, which take matrices in another order."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.sharding import NamedSharding
from meshwright.sharding import PartitionSpec as P

X = np.random.default_rng(3).standard_normal((4, 6, 5)).astype(np.float32)
PROGRAMS = {
    "before": lambda n, x: n.linalg.qr(n.fft.fftn(x, axes=(2,)))[1],
    "scaled": lambda n, x: n.linalg.svd(2 * n.fft.fft(x), full_matrices=False)[1],
    "real": lambda n, x: n.linalg.qr(n.fft.irfft(x))[1],
    "after": lambda n, x: n.fft.fft(n.linalg.qr(x)[0]),
    "between": lambda n, x: n.linalg.inv(n.fft.fft(n.linalg.inv(x[:, :5]))),
    "along columns": lambda n, x: n.linalg.qr(n.fft.fft(x, axis=1))[1],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_are_numpys(name):
    wanted = PROGRAMS[name](np, X.astype(np.float64))
    np.testing.assert_allclose(mw.jit(lambda x: PROGRAMS[name](mnp, x))(X), wanted, rtol=2e-3, atol=2e-3)


def test_on_a_mesh():
    mesh = mw.make_mesh((2,), ("b",))
    x = mw.device_put(X, NamedSharding(mesh, P("b")))
    found = mw.jit(lambda x: PROGRAMS["before"](mnp, x))(x)
    np.testing.assert_allclose(found, PROGRAMS["before"](np, X.astype(np.float64)), rtol=2e-3, atol=2e-3)
