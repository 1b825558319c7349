"""Sparse arrays beside the dense ones that they stand for, and JAX's."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from jax.experimental import sparse as jax_sparse

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, P
from meshwright.errors import ArgumentError, ArgumentTypeError, AxisError, DTypeError, ShapeError
from meshwright.experimental import sparse
from meshwright.experimental.sparse import BCOO

RNG = np.random.default_rng(0)
M = (RNG.normal(size=(8, 6)) * (RNG.random((8, 6)) < 0.3)).astype(np.float32)
V, B, C = (RNG.normal(size=s).astype(np.float32) for s in (6, (6, 3), (5, 8)))
T, D = RNG.normal(size=(3, 4, 5)).astype(np.float32), RNG.normal(size=(7, 4)).astype(np.float32)
EXACT, PADDED = BCOO.fromdense(M), BCOO.fromdense(M, nse=40)

#: of a sparse matrix, and the same of the dense one
FUNCTIONS = {
    "todense": (lambda m: m.todense(), lambda m: m),
    "vector": (lambda m: m @ V, lambda m: m @ V),
    "matrix": (lambda m: m @ B, lambda m: m @ B),
    "from the left": (lambda m: mnp.asarray(C) @ m, lambda m: C @ m),
    "NumPy from the left": (lambda m: C[0] @ m, lambda m: C[0] @ m),
    "T": (lambda m: m.T.todense(), lambda m: m.T),
    "scaled": (lambda m: (2.0 * m / 3.0).todense(), lambda m: 2.0 * m / 3.0),
    "elementwise": (lambda m: (m * V / (V + 4)).todense(), lambda m: m * V / (V + 4)),
    "added": (lambda m: (m + m * 2 - (-m)).todense(), lambda m: 4 * m),
    "sum": (lambda m: m.sum().todense(), lambda m: m.sum()),
    "columns": (lambda m: m.sum(0).todense(), lambda m: m.sum(0)),
    "rows": (lambda m: m.sum(-1).todense(), lambda m: m.sum(-1)),
    "sorted": (lambda m: m.T.sort_indices().todense(), lambda m: m.T),
    "duplicates": (lambda m: (m + m).sum_duplicates(nse=48).todense(), lambda m: 2 * m),
    "astype": (lambda m: m.astype(np.float16).todense(), lambda m: m.astype(np.float16)),
    "dot_general": (
        lambda m: sparse.bcoo_dot_general(m, mnp.ones((2, 6, 8)), dimension_numbers=(((0, 1), (2, 1)), ((), ()))),
        lambda m: np.full(2, m.sum()),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("m", [EXACT, PADDED], ids=["exact", "padded"])
def test_as_dense(name, m):
    ours, theirs = FUNCTIONS[name]
    np.testing.assert_allclose(ours(m), theirs(M), rtol=1e-5, atol=1e-6)


def test_what_is_stored_is_what_jax_stores():
    for count in (None, 5, 40):
        mine, theirs = BCOO.fromdense(M, nse=count), jax_sparse.BCOO.fromdense(jnp.asarray(M), nse=count)
        assert np.array_equal(mine.data, theirs.data) and np.array_equal(mine.indices, theirs.indices)


def test_under_transformations():
    jitted = mw.jit(lambda m, v: BCOO.fromdense(m, nse=40) @ v)
    np.testing.assert_allclose(jitted(M, V), M @ V, rtol=1e-5, atol=1e-6)
    stack = np.stack([M, 2 * M, M[::-1]])
    batch = mw.vmap(lambda m: BCOO.fromdense(m, nse=40))(stack)
    np.testing.assert_allclose(mw.vmap(lambda m: m @ V)(batch), stack @ V, rtol=1e-5, atol=1e-6)

    def loss(data, dense):
        return ((BCOO((data, EXACT.indices), shape=(8, 6)) @ dense) ** 2).sum()

    by_data, by_dense = mw.grad(loss, (0, 1))(EXACT.data, B)
    full = 2 * (M @ B) @ B.T
    np.testing.assert_allclose(by_data, full[tuple(np.asarray(EXACT.indices).T)], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(by_dense, 2 * M.T @ (M @ B), rtol=1e-4, atol=1e-5)


def test_on_a_mesh_each_device_adds_its_elements():
    rows = NamedSharding(mw.make_mesh((4,), ("d",)), P("d"))
    f = mw.jit(lambda d, i, b: BCOO((d, i), shape=(8, 6)) @ b, in_shardings=(rows, rows, None))
    part = f.lower(PADDED.data, PADDED.indices, B).partition()
    assert [c.kind for c in part.collectives] == ["all_reduce"]
    part.verify(PADDED.data, PADDED.indices, B)


def test_more_dimensions():
    t, numbers = BCOO.fromdense(T), (((1,), (1,)), ((), ()))
    left = sparse.bcoo_dot_general(D, t, dimension_numbers=numbers)
    right = sparse.bcoo_dot_general(t, D, dimension_numbers=numbers)
    np.testing.assert_allclose(left, np.einsum("ab,cbd->acd", D, T), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(right, np.einsum("ab,cbd->cda", D, T), rtol=1e-4, atol=1e-5)
    assert BCOO.fromdense(3.0).todense() == 3


def test_made_of_others():
    np.testing.assert_array_equal(BCOO.from_scipy_sparse(scipy.sparse.csr_matrix(M)).todense(), M)
    for shape in ((3, 5, 1), (5, 3, -3), (2, 3, 7)):
        np.testing.assert_array_equal(sparse.eye(*shape).todense(), np.eye(*shape))
    assert not sparse.empty((2, 3)).todense().any()
    twice = BCOO((np.array([1.0, 2.0, 4.0]), np.array([[0, 1], [0, 1], [9, 9]])), shape=(2, 2))
    assert twice.todense().tolist() == [[0, 3], [0, 0]] and twice.sum().todense() == 3
    assert twice.sum_duplicates().nse == twice.sum_duplicates(remove_zeros=False).nse == 1


@pytest.mark.parametrize(
    ("error", "call", "words"),
    [
        (ArgumentTypeError, lambda: EXACT @ EXACT, "todense"),
        (ArgumentTypeError, lambda: EXACT + 1, "expected a BCOO"),
        (ArgumentTypeError, lambda: EXACT * EXACT, "both operands"),
        (ShapeError, lambda: EXACT @ C, "must be equal"),
        (ShapeError, lambda: EXACT @ np.ones((2, 6, 3)), "vmap"),
        (ShapeError, lambda: BCOO((M, M), shape=(8, 6)), "within vmap"),
        (DTypeError, lambda: BCOO((V, np.ones((6, 2))), shape=(8, 6)), "integers"),
        (ArgumentError, lambda: mw.jit(BCOO.fromdense)(M), "pass nse"),
        (ArgumentError, lambda: EXACT.transpose((0,)), "in some order"),
        (AxisError, lambda: EXACT.sum(2), "out of range"),
        (AttributeError, lambda: sparse.sparsify, "methods of BCOO"),
    ],
)
def test_what_is_refused(error, call, words):
    with pytest.raises(error, match=words):
        call()
