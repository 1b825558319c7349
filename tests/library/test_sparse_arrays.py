"""Sparse arrays beside the dense ones that they stand for, and JAX's."""

from __future__ import annotations

import jax
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
    "sum": (lambda m: m.sum(), lambda m: m.sum()),
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
    assert twice.todense().tolist() == [[0, 3], [0, 0]] and twice.sum() == 3
    assert twice.sum_duplicates().nse == twice.sum_duplicates(remove_zeros=False).nse == 1


@pytest.mark.parametrize(
    ("error", "call", "words"),
    [
        (ArgumentTypeError, lambda: EXACT + 1, "expected a BCOO"),
        (ArgumentTypeError, lambda: sparse.bcoo_multiply_dense(EXACT, EXACT), "both operands"),
        (ShapeError, lambda: EXACT @ C, "must be equal"),
        (ShapeError, lambda: EXACT[None] @ np.ones((2, 6, 3)), "before the last two"),
        (ShapeError, lambda: BCOO((M, M), shape=(8, 6)), "which fit shape"),
        (DTypeError, lambda: BCOO((V, np.ones((6, 2))), shape=(8, 6)), "integers"),
        (ArgumentError, lambda: mw.jit(BCOO.fromdense)(M), "pass nse"),
        (ArgumentError, lambda: EXACT.transpose((0,)), "in some order"),
        (AxisError, lambda: EXACT.sum(2), "out of range"),
    ],
)
def test_what_is_refused(error, call, words):
    with pytest.raises(error, match=words):
        call()


def is_sparse(x):
    return hasattr(x, "todense")


def in_sparsify(n):
    """Functions of a sparse and a dense array, with the library ``n`` of arrays."""
    return {
        "products": lambda m, v: (m @ v, v @ m.T, m.T @ m, m * v, m / (v + 9), m * m),
        "sums": lambda m, v: (m + 2 * m - m.T.T, m.sum(0), m.sum(), m @ v + 1),
        "functions": lambda m, v: (n.sin(m), n.sqrt(n.abs(m + m)), -m, m**3, n.expm1(m), m.astype(n.float16)),
        "moved": lambda m, v: (m.reshape(6, 8), m[1:5, ::2], m[None], n.concatenate([m, m], 1), m[::-1], m[2], m[:, 1]),
        "a tree": lambda m, v: {"a": [m @ v], "b": 3},
    }


@pytest.mark.parametrize("name", in_sparsify(mnp))
@pytest.mark.parametrize("count", [None, 40], ids=["exact", "padded"])
@pytest.mark.parametrize("around", [lambda f: f, mw.jit], ids=["eager", "jit"])
def test_sparsify(name, count, around):
    got = around(sparse.sparsify(in_sparsify(mnp)[name]))(BCOO.fromdense(M, nse=count), mnp.asarray(V))
    theirs = jax_sparse.BCOO.fromdense(jnp.asarray(M), nse=count)
    want = jax_sparse.sparsify(in_sparsify(jnp)[name])(theirs, jnp.asarray(V))
    mine, others = (mw.tree.leaves(x, is_leaf=is_sparse) for x in (got, want))
    for a, b in zip(mine, others, strict=True):
        assert is_sparse(a) == is_sparse(b) and a.dtype == b.dtype
        np.testing.assert_allclose(sparse.todense(a), jax_sparse.todense(b), rtol=1e-3, atol=1e-5)


def test_what_sparsify_refuses():
    with pytest.raises(NotImplementedError, match="sparsify: cos of a sparse operand is not defined, at test_sparse"):
        sparse.sparsify(mnp.cos)(EXACT)


def test_gradients_by_sparse_arguments_are_sparse():
    def loss(m, v):
        return (m @ v).sum() ** 2 + (m @ v)[0]

    value, (by_m, by_v) = sparse.value_and_grad(loss, (0, 1))(EXACT, mnp.asarray(V))
    want, (dense, plain) = mw.value_and_grad(loss, (0, 1))(M, V)
    np.testing.assert_allclose(value, want, rtol=1e-5)
    assert by_m.indices is EXACT.indices
    np.testing.assert_allclose(by_m.todense(), np.where(M, dense, 0), rtol=1e-5)
    np.testing.assert_allclose(by_v, plain, rtol=1e-5)
    assert sparse.grad(lambda m: (m @ V).sum())(sparse.BCSR.fromdense(M)).indptr.shape == (9,)


@pytest.mark.parametrize("kind", ["BCSR", "CSR", "CSC", "COO"])
@pytest.mark.parametrize("count", [None, 40], ids=["exact", "padded"])
def test_other_formats(kind, count):
    mine = getattr(sparse, kind).fromdense(M, nse=count)
    theirs = getattr(jax_sparse, kind).fromdense(jnp.asarray(M), nse=count)
    if count is None:
        for a, b in zip(mw.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
            assert a.dtype == b.dtype and np.array_equal(a, b)
    assert repr(mine) == repr(theirs) and np.array_equal(mine.todense(), M) and np.array_equal(mine.T.todense(), M.T)
    products = mine @ V, mw.jit(lambda m, v: m @ v)(mine, B), C @ mine, (mine * V).sum(1).todense()
    for got, want in zip(products, (M @ V, M @ B, C @ M, (M * V).sum(1))):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    by_v = mw.grad(lambda v: (mine @ v).sum())(mnp.asarray(V))
    np.testing.assert_allclose(by_v, M.sum(0), rtol=1e-5, atol=1e-6)
    with pytest.raises(ShapeError, match=f"{kind}: expected data"):
        getattr(sparse, kind)((np.ones(3), np.ones(2, int), np.ones(9, int)), shape=(8, 6))


@pytest.mark.parametrize("m", [EXACT, PADDED], ids=["exact", "padded"])
def test_functions_that_move_elements(m):
    twice, taller = BCOO.fromdense(M[None]), np.arange(48.0, dtype=np.float32).reshape(8, 6)
    found = {
        "concatenate": (sparse.bcoo_concatenate([m, m * 2], dimension=0), np.concatenate([M, 2 * M])),
        "slice": (
            sparse.bcoo_slice(m, start_indices=(1, 0), limit_indices=(8, 5), strides=(3, 2)), M[1:8:3, 0:5:2],
        ),
        "dynamic_slice": (sparse.bcoo_dynamic_slice(m, (7, -3), (3, 2)), M[5:8, 3:5]),
        "reshape": (m.reshape(4, -1), M.reshape(4, -1)), "squeeze": (sparse.bcoo_squeeze(twice, dimensions=(0,)), M),
        "broadcast": (
            sparse.bcoo_broadcast_in_dim(m, shape=(2, 8, 6), broadcast_dimensions=(1, 2)), np.stack([M, M]),
        ),
        "rev": (sparse.bcoo_rev(m, (0, 1)), M[::-1, ::-1]),
        "sparse": (sparse.bcoo_multiply_sparse(m + m, m), 2 * M * M),
        "extract": (sparse.bcoo_extract(m + m, taller), np.where(M, taller, 0)), "product": (m @ m.T, M @ M.T),
        "summed": (sparse.bcoo_sum_duplicates(m + m, nse=48), 2 * M),
    }  # fmt: skip
    for name, (got, want) in found.items():
        np.testing.assert_allclose(got.todense(), want, rtol=1e-5, atol=1e-6, err_msg=name)
    at = np.array([[0, 0], [2, 3], [8, 6]])
    sampled = sparse.bcoo_dot_general_sampled(M, B, at[:, :2] % [9, 7], dimension_numbers=(((1,), (0,)), ((), ())))
    np.testing.assert_allclose(sampled[:1], (M @ B)[0, :1], rtol=1e-5)


def test_random_arrays_are_jaxs():
    for options in ({"nse": 0.3}, {"nse": 5, "sorted_indices": True}, {"nse": 7, "unique_indices": False}):
        mine = sparse.random_bcoo(mw.random.key(3), (4, 5), dtype=np.float32, **options)
        theirs = jax_sparse.random_bcoo(jax.random.key(3), (4, 5), dtype=np.float32, **options)
        assert np.array_equal(mine.data, theirs.data) and np.array_equal(mine.indices, theirs.indices)


AT_ONE_PLACE = np.array([[0, 0], [0, 0], [9, 9]])


def test_elements_at_one_place_are_added_before_what_rounds():
    small = BCOO((np.array([0.5, 0.6, 7.0], np.float32), AT_ONE_PLACE), shape=(1, 2))
    whole = BCOO((np.array([3, 4, 7]), AT_ONE_PLACE), shape=(1, 2))
    bytes_ = BCOO((np.array([100, 100, 7], np.int8), AT_ONE_PLACE), shape=(1, 2))
    assert small.astype(int).todense().tolist() == [[1, 0]]
    assert sparse.sparsify(lambda m: m.astype(mnp.float32))(bytes_).todense().tolist() == [[-56, 0]]
    halves = sparse.sparsify(lambda m: mw.lax.div(m, 2))(whole).todense()
    assert halves.dtype == whole.dtype and halves.tolist() == [[3, 0]]


@pytest.mark.parametrize("kind", [mnp.int32, mnp.float32])
def test_products_have_the_type_that_is_asked_for(kind):
    m = (M * 100).astype(np.int8)
    numbers = (((1,), (0,)), ((), ()))
    want = m.astype(np.int32) @ np.full(6, 9)
    product = sparse.sparsify(lambda m, v: mw.lax.dot_general(m, v, numbers, preferred_element_type=kind))
    got = product(BCOO.fromdense(m), mnp.full(6, 9, mnp.int8))
    assert got.dtype == kind and got.tolist() == want.tolist()


@pytest.mark.parametrize("start", [(-10, 2), (-1, -9), (-9, 0), (9, 1)])
def test_slices_from_outside_are_moved_as_dense_ones(start):
    got = sparse.sparsify(lambda m: mw.lax.dynamic_slice(m, start, (3, 2)))(EXACT).todense()
    assert np.array_equal(got, mw.lax.dynamic_slice(M, start, (3, 2)))


OPERATORS = {
    "a row": lambda b, n: b[1],
    "a column": lambda b, n: b[:, 1],
    "an element": lambda b, n: b[-1, 0],
    "turned and cut": lambda b, n: b[None, ::-1, 2:0:-1],
    "rows": lambda b, n: list(b)[1],
    "size": lambda b, n: abs(b),
    "a power": lambda b, n: b**2 + (+b),
    "a dense term": lambda b, n: b + n.ones(b.shape),
    "a term of a dense one": lambda b, n: n.ones(b.shape) + b,
    "the whole sum": lambda b, n: b.sum(),
    "sums of rows": lambda b, n: b.sum(1),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name):
    m = np.array([[0, 1, 0, 4], [-2, 0, 3, 0]], np.float32)
    got = OPERATORS[name](sparse.BCOO.fromdense(m), mnp)
    want = OPERATORS[name](jax_sparse.BCOO.fromdense(m), jax.numpy)
    assert isinstance(got, sparse.BCOO) == isinstance(want, jax_sparse.BCOO) and got.shape == want.shape
    np.testing.assert_array_equal(*(np.asarray(x.todense() if hasattr(x, "todense") else x) for x in (got, want)))


def test_comparisons_and_indices_that_are_refused(refuses):
    b = sparse.BCOO.fromdense(np.eye(2, dtype=np.float32))
    for call in (lambda: b == b, lambda: b != b, lambda: b > 1):
        with refuses(TypeError, "comparison of sparse arrays", "todense"):
            call()
    for call, error, words in (
        (lambda: b**0, TypeError, "positive integer"),
        (lambda: b[2], IndexError, "out of range"),
        (lambda: b[0, 0, 0], IndexError, "2 dimensions got 3"),
        (lambda: b[np.ones(2)], TypeError, "integers, slices"),
        (lambda: hash(b), None, ""),
    ):
        if error is None:
            with pytest.raises(TypeError, match="unhashable"):
                call()
        else:
            with refuses(error, words):
                call()


def test_what_is_past_the_end_stays_there():
    one, ones = BCOO.fromdense(np.array([5.0]), nse=3), mnp.arange(1.0, 5.0)
    wide = sparse.bcoo_broadcast_in_dim(one, shape=(4,), broadcast_dimensions=(0,))
    assert sparse.bcoo_extract(wide, ones).todense().tolist() == [1, 2, 3, 4]
    assert sparse.bcoo_extract(one.reshape(()), ones[2]).todense() == 3
    assert BCOO.fromdense(3.0, nse=3).todense() == 3


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_positions_of_empty_arrays(shape):
    m = BCOO.fromdense(np.zeros(shape), nse=2)
    assert not (m @ mnp.ones((shape[1], 2))).any() and (m.T @ m).shape == (shape[1], shape[1])
    assert (m * mnp.ones(shape)).sum_duplicates(nse=1).todense().shape == shape


@pytest.mark.parametrize("at", [np.s_[9::-2, 1], np.s_[2:5:-3, 4:1], np.s_[:, 7:9:-2], np.s_[3:3:-2]])
@pytest.mark.parametrize("rows", [8, 0])
def test_slices_may_be_empty_and_backwards(rows, at):
    assert np.array_equal(BCOO.fromdense(M[:rows])[at].todense(), M[:rows][at])
