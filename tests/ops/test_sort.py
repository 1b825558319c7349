"""sort, argsort and top_k against jax and NumPy."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from op_checks import check_batch, check_grad, check_value, values

import meshwright as mw
from meshwright.core.avals import ShapedArray
from meshwright.core.config import config
from meshwright.errors import ArgumentError, DTypeError, ShapeError
from meshwright.ops.sort import sorting as S
from meshwright.ops.sort import top_k as T
from meshwright.ops.sort.columns import border
from meshwright.ops.sort.tiles import by_columns

DTYPES = [np.int8, np.uint16, np.int32, np.bool_, np.float32, np.float16, ml_dtypes.bfloat16, np.complex64]


@pytest.mark.parametrize("dimension", [0, 1, -1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sort(dtype, dimension):
    x = np.random.default_rng(0).integers(-9 if np.dtype(dtype).kind not in "ub" else 0, 9, (3, 7, 4))
    x = (x + 1j * x[::-1]).astype(dtype) if dtype is np.complex64 else x.astype(dtype)
    check_value(lambda x: S.sort(x, dimension), lambda x: lax.sort(x, dimension), x)
    check_value(lambda x: S.argsort(x, dimension), lambda x: jnp.argsort(x, dimension), x)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_nan_and_infinities(dtype):
    specials = [np.nan, 1, -np.inf, np.inf, -1, 0, -np.nan, 2]
    x = np.array(specials).astype(dtype)
    np.testing.assert_array_equal(np.asarray(S.sort(x)).astype(np.float32), np.sort(x.astype(np.float32)))
    np.testing.assert_array_equal(S.argsort(x), np.argsort(x.astype(np.float32), kind="stable"))


def test_zeros_of_both_signs_are_equal_keys():
    x, y = np.array([0.0, -0.0, 0.0, -1.0], np.float32), np.arange(4)
    check_value(lambda x, y: S.sort((x, y)), lambda x, y: lax.sort((x, y)), x, y.astype(np.int32))
    np.testing.assert_array_equal(np.signbit(S.sort(x)), [True, False, True, False])
    np.testing.assert_array_equal(np.signbit(S.sort(x[::-1].copy())), [True, False, True, False])


def test_a_split_sort_keeps_the_order_of_zeros():
    x = np.random.default_rng(0).choice(np.array([0.0, -0.0, 1.0, -1.0, np.nan], np.float32), 40)
    split = mw.device_put(x, mw.NamedSharding(mw.make_mesh((4,), ("x",)), mw.P("x")))
    for found in (mw.jit(S.sort)(split), S.sort(x)):
        np.testing.assert_array_equal(found, x[np.argsort(x, kind="stable")])
        np.testing.assert_array_equal(np.signbit(found)[found == 0], np.signbit(x)[x == 0])


def test_double_precision():
    with config.override("enable_x64", True):
        x = np.random.default_rng(0).normal(size=50)
        np.testing.assert_array_equal(S.sort(x), np.sort(x))


@pytest.mark.parametrize("num_keys", [1, 2, 3])
def test_several_keys(num_keys):
    rng = np.random.default_rng(1)
    a, b, c = (rng.integers(0, 3, (4, 30)).astype(t) for t in (np.float32, np.int8, np.float32))
    a[0, 3] = np.nan
    d = np.arange(120, dtype=np.int32).reshape(4, 30)
    check_value(
        lambda *xs: S.sort(xs, 1, num_keys=num_keys),
        lambda *xs: lax.sort(xs, dimension=1, num_keys=num_keys),
        a,
        b,
        c,
        d,
    )


def test_derivatives():
    x, y = values(3, 5) / 4, values(3, 5, seed=1) / 4
    for dimension in (0, 1):
        check_grad(lambda x, d=dimension: S.sort(x, d), lambda x, d=dimension: lax.sort(x, d), x)
        check_grad(
            lambda x, y, d=dimension: S.sort((x, y), d), lambda x, y, d=dimension: tuple(lax.sort((x, y), d)), x, y
        )
    check_grad(lambda x: T.top_k(x, 2)[0], lambda x: lax.top_k(x, 2)[0], x)


def test_batching():
    x = values(4, 3)
    check_batch(lambda x: S.sort(x, 0), x)
    check_batch(lambda x, y: S.sort((x, y), 1), x, values(4, 3, seed=1))
    check_batch(lambda x: S.argsort(x, 1), x)
    check_batch(lambda x: T.top_k(x, 2), x)


@pytest.mark.parametrize("k", [0, 1, 3, 7])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8, np.float16])
def test_top_k(k, dtype):
    x = np.random.default_rng(0).integers(0, 5, (3, 7)).astype(dtype)
    check_value(lambda x: T.top_k(x, k), lambda x: tuple(lax.top_k(x, k)), x)


def test_top_k_of_nan():
    x = np.array([1.0, np.nan, np.inf, -np.inf, 5.0], np.float32)
    check_value(lambda x: T.top_k(x, 4), lambda x: tuple(lax.top_k(x, 4)), x)


@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=3), st.data())
def test_any_shape(shape, data):
    dimension = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = np.random.default_rng(2).integers(0, 3, shape).astype(np.float32)
    check_value(lambda x: S.sort(x, dimension), lambda x: lax.sort(x, dimension), x)
    check_value(lambda x: S.argsort(x, dimension), lambda x: jnp.argsort(x, dimension), x)


def test_bad_input():
    x = values(3, 4)
    with pytest.raises(ShapeError, match="sort: dimension 2 does not exist"):
        S.sort(x, 2)
    with pytest.raises(ShapeError, match="sort: dimension -1 does not exist"):
        S.sort(np.float32(1))
    with pytest.raises(ShapeError, match="one shape"):
        S.sort((x, values(4, 3)))
    with pytest.raises(ShapeError, match="no operands"):
        S.sort(())
    with pytest.raises(ArgumentError, match="num_keys=3"):
        S.sort((x, x), num_keys=3)
    with pytest.raises(ShapeError, match="argsort: dimension 5"):
        S.argsort(x, 5)
    with pytest.raises(ShapeError, match="top_k: k=5"):
        T.top_k(x, 5)
    with pytest.raises(DTypeError, match="top_k: expected real"):
        T.top_k(x.astype(np.complex64), 1)


def test_rules():
    aval = ShapedArray((4, 6), np.dtype(np.float32))
    assert str(S.Sort(1).sharding_rule(aval, aval)) == "[d0 d1], [d0 d1] -> [d0 d1], [d0 d1]; d1: window"
    assert str(T.TopK(2).sharding_rule(aval)) == "[d0 d1] -> [d0 1], [d0 1]; d1: window"


@pytest.mark.parametrize("devices", [3, 8])
def test_in_a_round_a_device_sorts_one_tile(devices):
    """Two tiles each was half as much again as what every device would do that had all of them."""
    x = np.random.default_rng(0).integers(0, 9, (5 * devices,)).astype(np.int32)
    where = mw.NamedSharding(mw.AbstractMesh((devices,), ("x",)), mw.P("x"))
    given = mw.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)
    part = mw.jit(lambda x: S.sort((x, -x), num_keys=1), out_shardings=where).lower(given).partition()
    part.verify()
    sorts = [e for e in part.jaxpr.eqns if e.op.name == "sort"]
    rounds = {3: 3, 8: 6}[devices]
    assert len(sorts) == rounds + 1 and all(v.aval.shape == (5,) for e in sorts for v in e.outvars)
    assert {c.kind for c in part.collectives} == {"collective_permute"}
    assert sum(c.bytes_sent for c in part.collectives) <= rounds * 3 * 5 * 4


def test_pairs_are_gathered_where_a_network_sends_more():
    where = mw.NamedSharding(mw.AbstractMesh((8,), ("x",)), mw.P("x"))
    given = [mw.ShapeDtypeStruct((256,), t, sharding=where) for t in (np.float32, np.int32)]
    part = mw.jit(lambda *xs: S.sort(xs), out_shardings=(where, where)).lower(*given).partition()
    assert part.bytes_sent == 2 * 7 * 32 * 4  # XLA's; with positions, six rounds of a network send 2304 B


@pytest.mark.parametrize(("size", "keys"), [(16, 1), (13, 1), (13, 2)])
def test_an_operand_that_counts_rows_stands_for_positions(size, keys):
    """As `argsort` has it; of uneven tiles, too, whose padding comes last."""
    x = np.random.default_rng(0).choice(np.array([np.nan, 1, -1, 2, 0, 3], np.float32), (3, size))
    where = mw.NamedSharding(mw.AbstractMesh((4,), ("x",)), mw.P(None, "x"))
    given = mw.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)

    def order(x):
        rows = mw.numpy.broadcast_to(mw.numpy.arange(size, dtype=np.int32), x.shape)
        return S.sort((x, rows, -x), dimension=1, num_keys=keys)

    part = mw.jit(order, out_shardings=where).lower(given).partition()
    part.verify(x, finite=0.5)
    assert {len(e.invars) for e in part.jaxpr.eqns if e.op.name == "sort"} == {3}


def test_the_work_of_a_sort_grows_faster_than_its_rows():
    assert S.Sort(0).sharding_rule(ShapedArray((1000, 3), np.dtype(np.float32))).work == 3000 * 10


def test_rows_are_not_sorted_by_every_device():
    """Even where all of them are needed whole: sorting takes many sweeps over memory, an all-to-all sends a part."""
    mesh = mw.AbstractMesh((4,), ("x",))
    where = mw.NamedSharding(mesh, mw.P(None, "x")), mw.NamedSharding(mesh, mw.P())
    given = mw.ShapeDtypeStruct((384, 224), np.int32, sharding=where[0])
    part = mw.jit(lambda x: S.sort(x), out_shardings=where[1]).lower(given).partition()
    part.verify()
    assert [c.kind for c in part.collectives] == ["all_to_all", "all_gather"]
    assert part.work.redundancy == 1


# --- columnsort ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rows", [12, 29])
def test_columns_of_all_zeros_and_ones(rows):
    """What sorts these sorts everything. Sorted columns of them differ by their numbers of zeros alone."""
    zeros = np.array(list(itertools.product(range(rows + 1), repeat=3)))
    x = (np.arange(rows) >= zeros[..., None]).astype(np.int8).reshape(len(zeros), -1)
    mesh = mw.make_mesh((3,), ("x",))
    split = mw.NamedSharding(mesh, mw.P(None, "x"))
    # A loop over rows, since otherwise these would be split instead.
    f = mw.jit(lambda x: mw.lax.map(lambda row: S.sort(row, is_stable=False), x), in_shardings=split)
    sent = {c.kind for c in f.lower(x).partition().collectives}
    assert by_columns(rows, 3) and "all_to_all" in sent
    np.testing.assert_array_equal(f(x), np.sort(x, 1))


@pytest.mark.filterwarnings("ignore::meshwright.errors.PaddingWarning")
@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize(("tiles", "size"), [(3, 36), (4, 101), (5, 205), (8, 896), (8, 1117)])
def test_columns_in_order(tiles, size, stable):
    """Also of tiles that are uneven, or that cannot be dealt evenly; with NaN and zeros of both signs."""
    assert by_columns(-(-size // tiles), tiles)
    rng = np.random.default_rng(tiles)
    x = rng.choice(np.array([0.0, -0.0, 1.0, -1.0, np.inf, np.nan], np.float32), size)
    y = np.arange(size, dtype=np.int32)[::-1].copy()
    mesh = mw.make_mesh((tiles,), ("x",))
    split = mw.NamedSharding(mesh, mw.P("x"))
    order = np.argsort(x, kind="stable")

    def run(f, *args):
        jitted = mw.jit(f, in_shardings=split, out_shardings=split)
        sent = {c.kind for c in jitted.lower(*args).partition().collectives}
        assert "all_to_all" in sent or (stable and tiles < 5)  # few tiles are gathered if positions would travel along
        return jitted(*args)

    alone = run(lambda x: S.sort(x, is_stable=stable), x)
    np.testing.assert_array_equal(alone, x[order])
    if stable:
        np.testing.assert_array_equal(np.signbit(alone)[alone == 0], np.signbit(x[order])[x[order] == 0])
    keys, rest = run(lambda x, y: S.sort((x, y), is_stable=stable), x, y)
    np.testing.assert_array_equal(keys, x[order])
    np.testing.assert_array_equal(rest if stable else np.sort(rest), y[order] if stable else np.sort(y))
    np.testing.assert_array_equal(x[::-1][rest], keys)


def test_columns_send_each_element_twice():
    size, tiles = 1 << 14, 8
    part = (
        mw.jit(S.sort, in_shardings=mw.NamedSharding(mw.AbstractMesh((tiles,), ("x",)), mw.P("x")))
        .lower(mw.ShapeDtypeStruct((size,), np.int32))
        .partition()
    )
    assert part.bytes_sent == 4 * (2 * size // tiles * (tiles - 1) // tiles + 2 * border(tiles))
    assert part.work.redundancy < 3


@pytest.mark.parametrize(("shape", "k", "machine", "rounds"), [
    ((4, 80_003), 30, "v5e:8x1", 1), ((4, 80_003), 30, "h100:8", 3), ((1, 50), 3, None, 3),
])  # fmt: skip
def test_candidates_are_gathered_in_rounds(shape, k, machine, rounds):
    """Each round drops what another tile's candidates exceed, and has the latency of a named machine."""
    mesh = mw.AbstractMesh((8,), ("x",), machine=machine)
    split = mw.NamedSharding(mesh, mw.PartitionSpec(None, "x"))
    whole = mw.NamedSharding(mesh, mw.PartitionSpec())
    fun = mw.jit(lambda x: T.top_k(x, k), in_shardings=split, out_shardings=whole)
    part = fun.lower(mw.ShapeDtypeStruct(shape, np.float32)).partition()
    assert [c.kind for c in part.collectives] == ["all_gather"] * 2 * rounds
    part.verify(np.random.default_rng(0).integers(0, 999, shape).astype(np.float32))
