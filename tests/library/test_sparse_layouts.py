"""Batch and dense dimensions of sparse arrays: functions on every layout, against dense arrays and JAX's layouts."""

import warnings

import jax
import numpy as np
import pytest
from jax.experimental import sparse as jax_sparse

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import errors
from meshwright.experimental import sparse

DENSE = np.random.default_rng(0).integers(-3, 4, (2, 3, 4)) * (np.random.default_rng(1).random((2, 3, 4)) < 0.5) * 1.0
DENSE = DENSE.astype(np.float32)
LAYOUTS = [(batch, dense) for batch in range(4) for dense in range(4 - batch)]
CUBE = np.arange(1.0, 25, dtype=np.float32).reshape(2, 3, 4)

#: name -> (of sparse arrays, of dense ones)
FUNCTIONS = {
    "neg": (lambda m: -m, lambda x: -x),
    "abs": (abs, abs),
    "power": (lambda m: m**3, lambda x: x**3),
    "astype": (lambda m: m.astype(int), lambda x: x.astype(int)),
    "scaled": (lambda m: m * 2.5, lambda x: x * 2.5),
    "times": (lambda m: m * CUBE[:, :1], lambda x: x * CUBE[:, :1]),
    "over": (lambda m: m / CUBE, lambda x: x / CUBE),
    "doubled": (lambda m: m + m, lambda x: x + x),
    "added": (lambda m: m + sparse.BCOO.fromdense(CUBE, n_batch=1), lambda x: x + CUBE),
    "sum": (lambda m: m.sum(), lambda x: x.sum()),
    **{f"sum {a}": (lambda m, a=a: m.sum(a), lambda x, a=a: x.sum(a)) for a in (0, 1, 2, (0, 2), (0, 1), (1, 2))},
    "sorted": (lambda m: m.sort_indices(), lambda x: x),
    "once": (lambda m: (m + m).sum_duplicates(), lambda x: 2 * x),
    "once, with zeros": (lambda m: (m - m).sum_duplicates(remove_zeros=False), lambda x: 0 * x),
    "reshaped": (lambda m: m.reshape(2, -1), lambda x: x.reshape(2, -1)),
    "reshaped across": (lambda m: m.reshape(4, 6), lambda x: x.reshape(4, 6)),
    "entry": (lambda m: m[1], lambda x: x[1]),
    "last": (lambda m: m[..., -1], lambda x: x[..., -1]),
    "cut": (lambda m: m[:1, ::-2, None, 1:3], lambda x: x[:1, ::-2, None, 1:3]),
    "reversed": (lambda m: sparse.bcoo_rev(m, (0, 1, 2)), lambda x: x[::-1, ::-1, ::-1]),
    "new": (lambda m: m[None, :, None, :, None], lambda x: x[None, :, None, :, None]),
    "at": (
        lambda m: sparse.bcoo_dynamic_slice(m, (1, mnp.int32(2), 0), (1, 2, 3)),
        lambda x: mw.lax.dynamic_slice(x, (1, 2, 0), (1, 2, 3)),
    ),
    "broadcast": (
        lambda m: sparse.bcoo_broadcast_in_dim(m, shape=(5, 2, 3, 4), broadcast_dimensions=(1, 2, 3)),
        lambda x: np.broadcast_to(x, (5, 2, 3, 4)),
    ),
    **{
        f"joined {d}": (
            lambda m, d=d: sparse.bcoo_concatenate([m, -m], dimension=d),
            lambda x, d=d: np.concatenate([x, -x], d),
        )
        for d in range(3)
    },
    "squared": (lambda m: sparse.bcoo_multiply_sparse(m, m), lambda x: x * x),
    "extracted": (lambda m: sparse.bcoo_extract(m, CUBE), None),
    "by vector": (lambda m: m @ CUBE[0, 0], lambda x: x @ CUBE[0, 0]),
    "by matrix": (lambda m: m @ CUBE[0].T, lambda x: x @ CUBE[0].T),
    "by matrices": (lambda m: m @ CUBE.swapaxes(1, 2), lambda x: x @ CUBE.swapaxes(1, 2)),
    "of vector": (lambda m: CUBE[0, :, 0] @ m, lambda x: CUBE[0, :, 0] @ x),
    "of matrices": (lambda m: CUBE.swapaxes(1, 2) @ m, lambda x: CUBE.swapaxes(1, 2) @ x),
    "by itself": (
        lambda m: sparse.bcoo_dot_general(m, m, dimension_numbers=(((2,), (2,)), ((0,), (0,)))),
        lambda x: np.einsum("bij,bkj->bik", x, x),
    ),
    "sparsified": (sparse.sparsify(lambda m: mnp.tanh(m).sum(1) * 2), lambda x: np.tanh(x).sum(1) * 2),
}  # fmt: skip


def is_leaf(x):
    return hasattr(x, "todense")


def as_dense(x):
    return np.asarray(x.todense() if isinstance(x, sparse.BCOO) else x)


@pytest.mark.parametrize(
    ("batch", "dense"),
    [pytest.param(*b, marks=[pytest.mark.slow] if b != (1, 1) else []) for b in LAYOUTS],
)
def test_functions_of_every_layout(batch, dense):
    mat = sparse.BCOO.fromdense(DENSE, n_batch=batch, n_dense=dense)
    theirs = jax_sparse.BCOO.fromdense(DENSE, n_batch=batch, n_dense=dense)
    assert repr(mat) == repr(theirs)
    np.testing.assert_array_equal(mat.data, theirs.data)
    np.testing.assert_array_equal(mat.indices, theirs.indices)
    for name, (of_sparse, of_dense) in FUNCTIONS.items():
        # what a layout stores beside the nonzero elements is stored at their positions as well
        stored = mat.with_data(mnp.ones_like(mat.data)).todense() != 0
        want = np.where(stored, CUBE, 0) if name == "extracted" else of_dense(DENSE)
        np.testing.assert_allclose(as_dense(of_sparse(mat)), want, rtol=1e-5, err_msg=name)


@pytest.mark.slow
def test_layouts_become_each_other():
    for batch, dense in LAYOUTS:
        mat = sparse.BCOO.fromdense(DENSE, n_batch=batch, n_dense=dense, nse=None)
        for to_batch, to_dense in LAYOUTS:
            found = mat.update_layout(n_batch=to_batch, n_dense=to_dense, on_inefficient=None)
            assert (found.n_batch, found.n_dense) == (to_batch, to_dense)
            np.testing.assert_array_equal(found.todense(), DENSE)
    with pytest.raises(sparse.SparseEfficiencyError, match="on_inefficient=None"):
        sparse.BCOO.fromdense(DENSE).update_layout(n_dense=1)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        sparse.BCOO.fromdense(DENSE).update_layout(n_dense=1, on_inefficient="warn")
    assert [w.category for w in seen] == [sparse.SparseEfficiencyWarning]
    with pytest.raises(errors.ArgumentError, match="at most 3"):
        sparse.BCOO.fromdense(DENSE, n_batch=2, n_dense=2)


def test_positions_that_a_batch_shares():
    """Where a size is 1 in the positions or the elements, all entries have the same."""
    data, indices = mnp.arange(1.0, 7).reshape(2, 3), mnp.array([[[0], [4], [9]]])
    for arrays in ((data, indices), (data[:1], indices + mnp.array([0, 1])[:, None, None])):
        mat = sparse.BCOO(arrays, shape=(2, 5))
        theirs = jax_sparse.BCOO(tuple(map(np.asarray, arrays)), shape=(2, 5))
        np.testing.assert_array_equal(mat.todense(), theirs.todense())
        assert [*map(float, mat.sum(1).todense())] == [*map(float, theirs.sum(1).todense())]
        np.testing.assert_array_equal((mat @ mnp.arange(5.0)), theirs @ np.arange(5.0, dtype=np.float32))
        np.testing.assert_array_equal(mat[1].todense(), theirs.todense()[1])
        np.testing.assert_array_equal(mat.update_layout(n_batch=0).todense(), theirs.todense())


def test_vmap_maps_batch_dimensions():
    mat = sparse.BCOO.fromdense(DENSE, n_batch=1)
    v = CUBE[0, 0]
    np.testing.assert_allclose(mw.jit(mw.vmap(lambda m: (m @ v) * m.shape[0]))(mat), 3 * DENSE @ v)
    turned = mw.vmap(lambda m, s: m.T * s)(mat, mnp.array([1.0, 2.0]))
    assert repr(turned) == "BCOO(float32[2, 4, 3], nse=9, n_batch=1)".replace("nse=9", f"nse={mat.nse}")
    np.testing.assert_allclose(turned.todense(), DENSE.swapaxes(1, 2) * np.array([1, 2])[:, None, None])
    made = mw.vmap(lambda x: sparse.BCOO.fromdense(x, nse=4))(DENSE[0])
    assert made.n_batch == 1 and made.shape == (3, 4)
    np.testing.assert_array_equal(made.todense(), DENSE[0])
    with pytest.raises(errors.ArgumentError, match="no batch dimension"):
        mw.vmap(lambda m: m)(sparse.BCOO.fromdense(DENSE))
    with pytest.raises(errors.ShapeError, match="one size"):
        mw.vmap(lambda m, x: m)(mat, mnp.zeros(3))


def test_random_arrays_of_every_layout():
    for batch, dense in ((0, 0), (1, 0), (0, 1), (1, 1)):
        options = {"nse": 1 + (batch + dense < 2), "n_batch": batch, "n_dense": dense, "dtype": np.float32}
        mat = sparse.random_bcoo(mw.random.key(0), (2, 3, 4), **options)
        theirs = jax_sparse.random_bcoo(jax.random.key(0), (2, 3, 4), **options)
        assert repr(mat) == repr(theirs)
        np.testing.assert_array_equal(mat.data, theirs.data)
        np.testing.assert_array_equal(mat.indices, theirs.indices)
    assert repr(sparse.empty((2, 3, 4), n_batch=1, n_dense=1)) == repr(
        jax_sparse.empty((2, 3, 4), n_batch=1, n_dense=1)
    )
    np.testing.assert_array_equal(sparse.eye(3, 4, 1, n_batch=1).todense(), np.eye(3, 4, 1))


@pytest.mark.parametrize("name", ["jacfwd", "jacrev"])
def test_jacobians_by_sparse_arguments(name):
    v = CUBE[0, 0]
    functions = {
        "product": (lambda m, v: m @ v, {}),
        "square": (lambda m, v: (m @ v) ** 2, {"argnums": (0, 1)}),
        "dense": (lambda m, v: m @ v, {"argnums": 1}),
        "number": (lambda m, v: (m @ v).sum(), {}),
        "kept": (lambda m, v: (m @ v, v), {"has_aux": True}),
    }
    for f, options in functions.values():
        ours = getattr(sparse, name)(f, **options)(sparse.BCOO.fromdense(DENSE[0]), mnp.asarray(v))
        theirs = getattr(jax_sparse, name)(f, **options)(jax_sparse.BCOO.fromdense(DENSE[0]), jax.numpy.asarray(v))
        for a, b in zip(mw.tree.leaves(ours, is_leaf), jax.tree.leaves(theirs, is_leaf=is_leaf), strict=True):
            assert is_leaf(a) == is_leaf(b) and (not is_leaf(a) or repr(a) == repr(b))
            np.testing.assert_allclose(as_dense(a), np.asarray(b.todense() if is_leaf(b) else b), rtol=1e-6)
