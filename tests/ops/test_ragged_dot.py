"""Products with groups of rows: their arithmetic, what is sent, what NaN does, and the kernel of TPUs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
from meshwright import PartitionSpec as P
from meshwright import lax
from meshwright.errors import DTypeError, ShapeError
from meshwright.ops.products.ragged import RaggedDot
from meshwright.spmd.work import operations_of

M, K, N, G = 200, 12, 20, 4
RNG = np.random.default_rng(0)
X = RNG.normal(size=(M, K)).astype(np.float32)
W = RNG.normal(size=(G, K, N)).astype(np.float32)
V = RNG.normal(size=(G, N, K)).astype(np.float32)
SIZES = np.array([90, 0, 85, 20], np.int32)  # two tiles, none, two tiles, one that does not fit


def loss(L, x, w, v, sizes=SIZES):
    h = L.ragged_dot(x, w, sizes)
    return (L.ragged_dot(h * (h > 0), v, sizes) ** 2).sum()


def test_as_jax_with_gradients():
    found = mw.jit(mw.value_and_grad(lambda *a: loss(lax, *a), (0, 1, 2)))(X, W, V)
    wanted = jax.value_and_grad(lambda *a: loss(jax.lax, *a), (0, 1, 2))(X, W, V)
    for a, b in zip(mw.tree.leaves(found), jax.tree.leaves(wanted)):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


def test_second_derivatives():
    def slope(x, w):
        return mw.grad(lambda w: (lax.ragged_dot(x, w, SIZES) ** 2).sum())(w)

    (above, below) = (np.asarray(slope(X * (1 + e), W * (1 + e))) for e in (1e-2, -1e-2))
    np.testing.assert_allclose(mw.jvp(slope, (X, W), (X, W))[1], (above - below) / 2e-2, rtol=1e-2, atol=1e-2)


def test_it_takes_the_arithmetic_of_one_product():
    jaxpr = mw.make_jaxpr(mw.grad(lambda x, w: lax.ragged_dot(x, w, SIZES).sum(), (0, 1)))(X, W)
    assert 3 * 2 * M * K * N <= operations_of(jaxpr.jaxpr) < 1.2 * 3 * 2 * M * K * N


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_of_no_group_and_of_other_groups_do_not_matter(bad):
    """Masked products have 0 * inf = NaN in all groups."""
    x, y = X.copy(), RNG.normal(size=(M, N)).astype(np.float32)
    x[195:], y[195:], x[3] = bad, bad, bad
    numbers = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())
    sums = np.asarray(lax.ragged_dot_general(x, y, SIZES, numbers))
    assert not np.isfinite(sums[0]).any() and np.isfinite(sums[1:]).all()
    rows = np.asarray(lax.ragged_dot(x, W, SIZES))
    assert not rows[195:].any() and np.isfinite(rows[4:]).all() and not np.isfinite(rows[3]).any()


def test_narrow_types_are_summed_in_float32():
    x, y = np.ones((600, 2), jnp.bfloat16), np.ones((600, 3), jnp.bfloat16)
    numbers = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())
    sums = lax.ragged_dot_general(x, y, np.array([590, 10]), numbers)
    assert sums.dtype == jnp.bfloat16 and np.unique(np.asarray(sums[0], np.float32)).tolist() == [592]


def test_algorithms_and_other_dtypes():
    found = lax.ragged_dot(X, W, SIZES, precision="F32_F32_F32")
    np.testing.assert_allclose(found, jax.lax.ragged_dot(X, W, SIZES), rtol=1e-5, atol=1e-5)
    mixed = lax.ragged_dot(X.astype(jnp.bfloat16), W, SIZES)
    assert mixed.dtype == np.float32


# --- on a mesh ----------------------------------------------------------------------------------------------
MESH = mw.AbstractMesh((2, 4), ("d", "e"))


@pytest.mark.parametrize(
    ("specs", "kinds"),
    [
        ((P(("d", "e")), P()), []),
        ((P("d"), P(None, None, "e")), []),
        ((P("d", "e"), P(None, "e")), ["all_reduce"]),
        ((P("d"), P("e")), ["all_to_all", "all_gather"]),
    ],
)
def test_rows_columns_terms_and_groups_are_split(specs, kinds):
    shardings = tuple(mw.NamedSharding(MESH, spec) for spec in specs)
    part = mw.jit(lambda x, w: lax.ragged_dot(x, w, SIZES), in_shardings=shardings).lower(X, W).partition()
    part.verify(X, W)
    assert [c.kind for c in part.collectives] == kinds
    assert part.work.redundancy < 1.1


def test_gradients_of_a_split_batch_are_one_sum():
    gradient = mw.grad(lambda w, x: (lax.ragged_dot(x, w, SIZES) ** 2).sum())
    x, w = RNG.normal(size=(4000, K)).astype(np.float32), W[:, :, :3]
    split, whole = mw.NamedSharding(MESH, P("d")), mw.NamedSharding(MESH, P())
    part = mw.jit(gradient, in_shardings=(whole, split), out_shardings=whole).lower(w, x).partition()
    assert [c.kind for c in part.collectives] == ["all_reduce"]
    part.verify(w, x)


# --- kernels ------------------------------------------------------------------------------------------------
def test_what_libtpu_has_a_kernel_for():
    (eqn,) = mw.make_jaxpr(lambda x, w: lax.ragged_dot(x, w, SIZES))(X, W).eqns
    types = [a.aval for a in eqn.invars]
    assert eqn.op.has_kernel("tpu", *types) and not eqn.op.has_kernel("cpu", *types)
    half = [a.update(dtype=np.dtype(np.float16)) for a in types[:2]]
    assert not eqn.op.has_kernel("tpu", *half, types[2])
    assert not eqn.op.has_kernel("tpu", *types, types[2].update(shape=()))


# --- errors -------------------------------------------------------------------------------------------------
def test_what_does_not_fit_is_refused():
    numbers = (((1,), (1,)), ((), ()))
    op = RaggedDot(numbers, 0, 0)
    for wrong in (
        RaggedDot(op.dimension_numbers, 1, 0),
        RaggedDot(op.dimension_numbers, 0, None),
        RaggedDot(op.dimension_numbers, 0, 1),
    ):
        with pytest.raises(ShapeError, match="ragged_dot_general"):
            wrong.bind(X, W, SIZES)
    with pytest.raises(ShapeError, match="an entry for each"):
        op.bind(X, W, SIZES[:3])
    with pytest.raises(ShapeError, match=r"\[g\]"):
        op.bind(X, W, SIZES[None])
    with pytest.raises(DTypeError, match="integers"):
        op.bind(X, W, SIZES * 1.0)
