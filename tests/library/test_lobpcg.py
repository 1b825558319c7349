"""Largest eigenvalues from products alone, against ``numpy.linalg.eigh`` of the whole matrix."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, errors
from meshwright import PartitionSpec as P
from meshwright.experimental.sparse import BCOO
from meshwright.experimental.sparse.linalg import lobpcg_standard

_RNG = np.random.default_rng(3)
_SIZE, _COUNT = 40, 3


def _matrix(dtype="f4"):
    """Hermitian, with eigenvalues from -19 to 20."""
    unitary = np.linalg.qr(_start(dtype, _SIZE))[0]
    return ((unitary * np.arange(-19.0, 21.0)) @ unitary.conj().T).astype(dtype)


def _start(dtype="f4", count=_COUNT):
    parts = _RNG.normal(size=(2, _SIZE, count))
    return (parts[0] + 1j * parts[1]).astype(dtype) if dtype == "c8" else parts[0].astype(dtype)


@pytest.mark.parametrize("dtype", ["f4", "c8"])
@pytest.mark.parametrize("form", [mnp.asarray, BCOO.fromdense, lambda a: lambda x: a @ x])
def test_pairs_are_those_of_the_matrix(dtype, form):
    matrix = _matrix(dtype)
    theta, vectors, steps = lobpcg_standard(form(matrix), _start(dtype))
    np.testing.assert_allclose(theta, [20, 19, 18], rtol=1e-4)
    np.testing.assert_allclose(matrix @ np.asarray(vectors), vectors * theta, atol=2e-2)
    np.testing.assert_allclose(np.asarray(vectors).conj().T @ vectors, np.eye(_COUNT), atol=1e-5)
    assert vectors.dtype == matrix.dtype and 0 < int(steps) < 100


def test_steps_end_where_the_tolerance_is_met_and_at_the_most():
    matrix, start = _matrix(), _start()
    assert int(lobpcg_standard(matrix, start, m=2)[2]) == 2
    assert int(lobpcg_standard(matrix, np.linalg.qr(start)[0], m=0)[2]) == 0
    assert int(lobpcg_standard(matrix, start, tol=1e-3)[2]) < int(lobpcg_standard(matrix, start, tol=1e-6)[2])


def test_an_invariant_subspace_is_left_as_it_is():
    """Residuals and changes are zero then, and the basis of the span is short of vectors."""
    theta, vectors, steps = lobpcg_standard(np.diag(np.arange(40.0, dtype="f4")), np.eye(40, 3, -37, dtype="f4"))
    np.testing.assert_allclose(theta, [39, 38, 37])
    assert int(steps) == 0 and np.isfinite(np.asarray(vectors)).all()


def test_split_by_rows():
    """The products are, and the few vectors that are made orthonormal: tall matrices need not be gathered."""
    rows = NamedSharding(mw.make_mesh((8,), ("x",)), P("x"))
    matrix, start = _matrix(), _start()
    split = mw.jit(lobpcg_standard, in_shardings=(rows, rows))
    np.testing.assert_allclose(split(matrix, start)[0], [20, 19, 18], rtol=1e-4)


def test_values_of_jax():
    linalg = pytest.importorskip("jax.experimental.sparse.linalg", reason="JAX is not installed")
    matrix, start = _matrix(), _start()
    for theirs, ours in zip(linalg.lobpcg_standard(matrix, start)[:2], lobpcg_standard(matrix, start)[:2]):
        np.testing.assert_allclose(np.abs(theirs), np.abs(ours), atol=2e-2)


@pytest.mark.parametrize("start", [np.ones(9, "f4"), np.ones((8, 3), "f4"), np.ones((9, 0), "f4")])
def test_starts_of_other_shapes_are_refused(start):
    with pytest.raises(errors.ShapeError, match="lobpcg_standard: X must have shape"):
        lobpcg_standard(np.eye(len(start), dtype="f4"), start)


def test_other_products_and_types_are_refused():
    with pytest.raises(errors.ShapeError, match="the product of A"):
        lobpcg_standard(lambda x: x[:2], np.ones((9, 1), "f4"))
    with pytest.raises(errors.DTypeError, match="floating point"):
        lobpcg_standard(np.eye(9), np.ones((9, 1), int))
