"""NumPy's everyday functions beyond the standard, against jax.numpy (eager and traced) or NumPy itself."""

from __future__ import annotations

import io
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from numpy_oracle import assert_same, check, check_functions, sample

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.errors import ArgumentError, ConcretizationTypeError, DTypeError, ShapeError

V, W, M = sample((9,)), sample((4,), seed=2), sample((4, 5), seed=3)
INTS = np.array([3, 1, 3, 7, 1, 0, 3, 9, 2], np.int32)
POINTS = np.sort(sample((40,), seed=4))


# --- searching ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("n", [0, 1, 2, 5, 33, 64, 100])
def test_searchsorted(side: str, n: int) -> None:
    a = np.sort(np.concatenate([sample((max(n - 2, 0),)), np.full(min(n, 2), 0.5, "f")]))
    v = np.concatenate([a[::3], sample((5,), seed=8), np.array([np.nan, np.inf, -np.inf, 0.5], "f")])
    for method in ("auto", "scan", "compare_all"):
        assert_same(mnp.searchsorted(a, v, side, method=method), np.searchsorted(a, v, side).astype(np.int32))
    assert_same(mw.jit(lambda a, v: mnp.searchsorted(a, v, side))(a, v), np.searchsorted(a, v, side).astype(np.int32))


def test_searchsorted_of_a_split_vector() -> None:
    mesh = mw.make_mesh((4,), ("x",))
    a = mw.device_put(POINTS, mw.NamedSharding(mesh, mw.PartitionSpec("x")))
    v = sample((6, 2), seed=5)
    want = np.searchsorted(POINTS, v)
    for method in ("scan", "compare_all"):
        found = mw.jit(lambda a, v, m=method: mnp.searchsorted(a, v, method=m))(a, v)
        assert np.array_equal(found, want)
    part = mw.jit(lambda a, v: mnp.searchsorted(a, v, method="compare_all")).lower(a, v).partition()
    assert {c.kind for c in part.collectives} <= {"all_reduce"}


def test_digitize_ascending_and_descending() -> None:
    bins = np.array([-1.0, 0.0, 0.5, 1.5], "f")
    for right in (False, True):
        check("digitize", V, bins, right)
        check("digitize", V, bins[::-1].copy(), right)


def test_nonzero_with_size() -> None:
    x = np.array([[0, 3, 0], [4, 0, 5]], np.int32)
    for size in (1, 3, 5):
        for fill in (None, 7, (1, 2)):
            check("nonzero", x, size=size, fill_value=fill)
        check("argwhere", x, size=size)
        check("flatnonzero", x, size=size, fill_value=6)
    with pytest.raises(ConcretizationTypeError, match="size="):
        mw.jit(mnp.nonzero)(x)
    with pytest.raises(ArgumentError, match="0-d"):
        mnp.nonzero(3)


def test_bincount() -> None:
    check("bincount", INTS, length=12)
    check("bincount", INTS, sample((9,)), length=5)
    assert_same(mnp.bincount(INTS, minlength=12), np.bincount(INTS, minlength=12).astype(np.int32))
    with pytest.raises(ConcretizationTypeError, match="length="):
        mw.jit(mnp.bincount)(INTS)
    few = np.array([0, 1, 0, 0]), np.array([True, False, True, False])
    assert mnp.bincount(*few).tolist() == mw.jit(lambda *xs: mnp.bincount(*xs, length=2))(*few).tolist() == [2, 0]
    assert np.bincount(*few).tolist() == [2, 0] and mnp.bincount(*few).dtype == np.int32


# --- sets ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("x", [INTS, np.array([2.5, np.nan, 1.0, np.nan, 2.5], "f"), np.array([True, False, True])])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_unique_of_a_size(x: Any, size: int) -> None:
    check("unique", x, return_index=True, return_inverse=True, return_counts=True, size=size)
    check("unique", x, size=size, fill_value=1)


def test_unique_rows_and_columns() -> None:
    x = np.array([[2, 1, 2], [0, 5, 0], [2, 1, 2]], np.int32)
    for axis in (0, 1):
        want = np.unique(x, True, True, True, axis=axis)
        for got in (
            mnp.unique(x, True, True, True, axis=axis),
            mw.jit(lambda x, a=axis: mnp.unique(x, True, True, True, axis=a, size=2))(x),
        ):
            for g, w in zip(got, want):
                assert np.array_equal(np.asarray(g).ravel(), w.ravel())


def test_unique_of_the_standard() -> None:
    x = np.array([[3.0, np.nan], [np.nan, 3.0]], "f")
    found = mnp.unique_all(x)
    assert found.values.shape == (3,) and found.inverse_indices.shape == (2, 2)
    assert found.counts.tolist() == [2, 1, 1] and found.indices.tolist() == [0, 1, 2]
    assert mnp.unique_values(INTS).tolist() == sorted(set(INTS.tolist()))
    assert np.array_equal(mnp.unique_inverse(INTS).values[mnp.unique_inverse(INTS).inverse_indices], INTS)
    with pytest.raises(ConcretizationTypeError, match="size="):
        mw.jit(mnp.unique)(INTS)


def test_gradient_of_unique() -> None:
    weights = np.array([1.0, 10.0, 100.0], "f")
    found = mw.grad(lambda x: (mnp.unique(x) * weights).sum())(np.array([5.0, 2.0, 5.0, 3.0], "f"))
    assert found.tolist() == [100.0, 1.0, 0.0, 10.0]


@pytest.mark.parametrize("name", ["union1d", "intersect1d", "setdiff1d", "setxor1d"])
def test_of_two_sets(name: str) -> None:
    other = np.array([3, 5, 7, 5, 11], np.int32)
    want = getattr(np, name)(INTS, other)
    assert_same(getattr(mnp, name)(INTS, other), want)
    assert_same(mw.jit(lambda a, b: getattr(mnp, name)(a, b, size=len(want)))(INTS, other), want)


@pytest.mark.parametrize("count", [3, 40])
def test_isin(count: int) -> None:
    tests = np.arange(count, dtype=np.int32) * 3
    check("isin", INTS.reshape(3, 3), tests)
    check("isin", INTS, tests, invert=True)
    check("isin", np.array([1.0, np.nan], "f"), np.full(count, np.nan, "f"))
    common, first, second = mnp.intersect1d(INTS, tests, return_indices=True)
    assert np.array_equal(INTS[first], common) and np.array_equal(tests[second], common)


# --- histograms ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("density", [False, True])
@pytest.mark.parametrize("bins", [7, np.array([-2.0, -0.5, 0.25, 2.0], "f")])
def test_histogram(density: bool, bins: Any) -> None:
    check("histogram", M, bins, density=density)
    check("histogram", M, bins, weights=sample((4, 5), seed=9), density=density)
    check("histogram", M, 4, range=(-1.0, 1.0))


def test_histograms_of_points() -> None:
    x, y = sample((30,)), sample((30,), seed=1)
    for bins, density in (([3, 5], False), (np.array([-1.0, 0.0, 2.0], "f"), True)):
        for ours, want in zip(
            mnp.histogram2d(x, y, bins, density=density), np.histogram2d(x, y, bins, density=density)
        ):
            np.testing.assert_allclose(ours, want, 1e-5, 1e-6)
    points = np.stack([x, y, x * y], -1)
    ours, edges = mnp.histogramdd(points, [2, 3, 4], weights=np.arange(30.0, dtype="f"))
    want, want_edges = np.histogramdd(points, [2, 3, 4], weights=np.arange(30.0))
    np.testing.assert_allclose(ours, want, 1e-5)
    for e, w in zip(edges, want_edges):
        np.testing.assert_allclose(e, w, 1e-5)


def test_weights_and_points_of_histograms_have_one_dtype() -> None:
    with mw.enable_x64(True):
        points = np.arange(6).reshape(3, 2)
        for dtype in ("int32", "float32", "float64", "complex64"):
            counts, edges = mnp.histogramdd(points, 2, weights=np.ones(3, dtype))
            want = np.dtype(float) if dtype == "int32" else np.dtype(dtype)
            assert {counts.dtype, *(e.dtype for e in edges)} == {want}
            assert mnp.histogram2d(*points.T, 2, weights=np.ones(3, dtype))[0].dtype == want


# --- filters ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize(("n", "m"), [(7, 4), (4, 7), (6, 3), (5, 5), (1, 1)])
def test_convolve_and_correlate(mode: str, n: int, m: int) -> None:
    for dtype in ("float32", "int32"):
        a, v = sample((n,), dtype), sample((m,), dtype, seed=1)
        assert_same(mnp.convolve(a, v, mode), jnp.convolve(a, v, mode))
        assert_same(mnp.correlate(a, v, mode), jnp.correlate(a, v, mode))


def test_interp() -> None:
    x, fp = np.linspace(-3, 3, 14, dtype="f").reshape(2, 7), sample((40,), seed=6)
    check("interp", x, POINTS, fp)
    check("interp", x, POINTS, fp, left=-5.0, right=7.0)
    check("interp", x, np.array([0.5, 0.1, 1.3], "f"), np.array([1.0, 2.0, 4.0], "f"), period=1.5)
    check("interp", x, np.array([1.0], "f"), np.array([3.0], "f"))
    slopes = mw.grad(lambda x: mnp.interp(x, POINTS, fp).sum())(np.array([0.1, 9.0], "f"))
    i = np.searchsorted(POINTS, 0.1)
    np.testing.assert_allclose(slopes, [(fp[i] - fp[i - 1]) / (POINTS[i] - POINTS[i - 1]), 0.0], 1e-4)


def test_differences_and_integrals() -> None:
    check("gradient", M)
    check("gradient", M, 2.0, 0.5)
    check("gradient", M, axis=1)
    positions = np.array([0.0, 1.0, 4.0, 5.0, 9.0], "f")
    for g, w in zip(mnp.gradient(M, 2.0, positions), np.gradient(M, 2.0, positions)):
        np.testing.assert_allclose(g, w, 1e-4, 1e-6)
    rows = np.arange(M.shape[0], dtype="f") ** 2
    for f, ours in (("gradient", mnp.gradient), ("trapezoid", mnp.trapezoid)):  # one position for each row, not column
        np.testing.assert_allclose(ours(M, rows, axis=0), getattr(np, f)(M, rows, axis=0), 1e-4, 1e-5)
    for g, w in zip(mnp.gradient(M, rows, positions), np.gradient(M, rows, positions)):
        np.testing.assert_allclose(g, w, 1e-4, 1e-5)
    halves, slanted = np.array([-1.0, 0.75, 2.25], np.float16), np.array([0, 1 + 1j, 3 + 3j], np.complex64)
    assert (
        mnp.gradient(halves, rows[:3]).dtype == np.float32 and mnp.trapezoid(halves, np.arange(3)).dtype == np.float16
    )
    np.testing.assert_allclose(mnp.gradient(slanted.real, slanted), [0.5 - 0.5j] * 3)
    check("trapezoid", M, axis=0)
    check("trapezoid", M, positions)
    check("ediff1d", INTS, to_begin=np.array([5], np.int32), to_end=np.array([1, 2], np.int32))
    check("unwrap", V * 9)
    check("unwrap", np.array([0, 350, 10, 200, 20], np.int32), period=360)
    check("nancumsum", np.where(V > 1, np.float32(np.nan), V))
    check("nancumprod", np.where(M > 1, np.float32(np.nan), M), axis=1)


@pytest.mark.parametrize("name", ["bartlett", "blackman", "hamming", "hanning"])
@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_windows(name: str, n: int) -> None:
    np.testing.assert_allclose(getattr(mnp, name)(n), getattr(np, name)(n), 1e-5, 1e-6)


def test_kaiser_and_bessel() -> None:
    for beta in (0.0, 3.5, 14.0):
        np.testing.assert_allclose(mnp.kaiser(8, beta), np.kaiser(8, beta), 1e-5, 1e-6)
    x = np.array([-30.0, -7.9, 0.0, 0.3, 3.9, 8.1, 60.0], "f")
    np.testing.assert_allclose(mnp.i0(x), np.i0(x.astype(float)), 2e-6)
    np.testing.assert_allclose(mw.grad(lambda x: mnp.i0(x))(np.float32(2.0)), 1.5906368, 1e-5)  # I1(2)


# --- polynomials --------------------------------------------------------------------------------------------
def test_polynomials() -> None:
    p, q = np.array([2.0, -1.0, 0.5, 3.0], "f"), np.array([1.0, 4.0], "f")
    check("polyval", p, M)
    for name in ("polyadd", "polysub", "polymul"):
        check(name, p, q)
        check(name, q, p)
    check("polyder", p)
    check("polyder", p, 2)
    check("polyint", p)
    check("polyint", p, 2, k=np.array([1.0, 5.0], "f"))
    check("poly", np.array([2.0, -3.0, 0.5], "f"))
    quotient, rest = mnp.polydiv(p, q)
    assert_same(mnp.polyadd(mnp.polymul(quotient, q), rest), p, weak=False)
    want = np.roots([1.0, -1.0, -6.0])
    np.testing.assert_allclose(np.sort(mnp.roots(np.array([1.0, -1.0, -6.0], "f")).real), np.sort(want), 1e-4)
    x = np.linspace(-1, 1, 12, dtype="f")
    np.testing.assert_allclose(mnp.polyfit(x, np.polyval(p, x), 3), p, 1e-3, 1e-4)


# --- positions ----------------------------------------------------------------------------------------------
def test_positions() -> None:
    for name in ("tril_indices", "triu_indices"):
        check(name, 4, 1)
        check(name, 3, -1, 5)
        check(f"{name}_from", M, 1)
    check("diag_indices", 3, 3)
    check("diag_indices_from", np.ones((3, 3)))
    assert_same(mnp.mask_indices(3, mnp.triu, 1), jnp.mask_indices(3, jnp.triu, 1))
    flat = np.array([[0, 5], [11, -1]], np.int32)
    check("unravel_index", flat, (3, 4))
    rows, columns = np.array([0, 2], np.int32), np.array([3, 1], np.int32)
    assert_same(mnp.ravel_multi_index((rows, columns), (3, 4)), np.array([3, 9], np.int32))
    assert_same(mnp.ravel_multi_index((rows, columns), (3, 4), order="F"), np.array([9, 5], np.int32))
    check_functions(
        lambda r, c: mnp.ravel_multi_index((r, c), (2, 3), mode="wrap"),
        lambda r, c: jnp.ravel_multi_index((r, c), (2, 3), mode="wrap"), rows, columns,
    )  # fmt: skip
    with pytest.raises(ArgumentError, match="outside"):
        mnp.ravel_multi_index((rows, columns), (2, 4))


def test_grids() -> None:
    for ours, theirs in ((mnp.mgrid, jnp.mgrid), (mnp.ogrid, jnp.ogrid)):
        assert_same(ours[0:3, 1:5:2], theirs[0:3, 1:5:2])
        assert_same(ours[0:1:5j], theirs[0:1:5j], weak=False)
    for ours, theirs in ((mnp.r_, jnp.r_), (mnp.c_, jnp.c_)):
        assert_same(ours[INTS, 5 * INTS], theirs[INTS, 5 * INTS])
        assert_same(ours[0:3, 2:5], theirs[0:3, 2:5])
    assert_same(mnp.r_[0:3, 7.0, W], jnp.r_[0:3, 7.0, W])
    assert_same(mnp.r_["0,2", [1, 2], [3, 4]], jnp.r_["0,2", [1, 2], [3, 4]])
    assert_same(mnp.r_["1,2,0", [1, 2], [3, 4]], jnp.r_["1,2,0", [1, 2], [3, 4]])
    found = mnp.ix_(np.array([0, 2]), np.array([True, False, True]))
    assert_same(found, tuple(i.astype(np.int32) for i in np.ix_(np.array([0, 2]), np.array([True, False, True]))))


# --- rewriting ----------------------------------------------------------------------------------------------
def test_delete_and_insert() -> None:
    for where in (2, -1, [0, 3], slice(0, 4, 2), np.array([True, False, False, True])):
        assert_same(mnp.delete(M, where, 0), np.delete(M, where, 0))
    assert_same(mnp.delete(M, [1, 7]), np.delete(M, [1, 7]))
    cases = [
        (1, 9.0, None), (1, W, 1), (2, np.arange(5.0, dtype="f"), 0), ([0, 2, 2], 5.0, 1), ([1, 4], M[:2], 0),
        (slice(0, 2), 8.0, 0), (-1, 3.0, 1),
    ]  # fmt: skip
    for where, values, axis in cases:
        assert_same(mnp.insert(M, where, values, axis), np.insert(M, where, values, axis))
    assert_same(mnp.insert(INTS, [9, 0], [50, 60]), np.insert(INTS, [9, 0], [50, 60]))
    with pytest.raises(ArgumentError, match="not all inside"):
        mnp.delete(INTS, [12])


def test_resize_block_and_trim() -> None:
    check("resize", INTS, (4, 5))
    check("resize", INTS, (2, 2))
    blocks = [[M, M[:, :2]], [sample((1, 5)), sample((1, 2))]]
    assert_same(mnp.block(blocks), np.block(blocks))
    assert_same(mnp.block([W, V]), np.block([W, V]))
    assert_same(
        mnp.trim_zeros(np.array([0, 0, 1, 0, 2, 0])), np.trim_zeros(np.array([0, 0, 1, 0, 2, 0])).astype(np.int32)
    )
    with pytest.raises(ArgumentError, match="nested equally"):
        mnp.block([[W], W])


@pytest.mark.parametrize("name", ["place", "put", "put_along_axis", "fill_diagonal"])
def test_replacing(name: str) -> None:
    args: dict[str, tuple[Any, ...]] = {
        "place": (M, M > 0.3, np.array([1.0, 2.0, 3.0], "f")), "put": (M, np.array([0, 7, 19, 3]), W[:2]),
        "put_along_axis": (M, np.array([[1], [4], [0], [2]]), sample((4, 1), seed=7), 1), "fill_diagonal": (M, W),
    }  # fmt: skip
    want = M.copy()
    getattr(np, name)(want, *args[name][1:])
    assert_same(getattr(mnp, name)(*args[name], inplace=False), want)
    with pytest.raises(ArgumentError, match="inplace=False"):
        getattr(mnp, name)(*args[name])


def test_choosing() -> None:
    x = sample((3, 4))
    assert_same(mnp.compress(np.array([True, False, True]), x, 0), x[[0, 2]])
    beyond = np.array([True, False, True, False, False])  # as in NumPy, as long as it is not true there
    assert_same(mnp.compress(beyond, x, 0), x[[0, 2]])
    assert_same(mnp.compress(beyond, x, 0, size=2), x[[0, 2]])
    check("compress", np.array([True, False, True]), x, 0, size=3, fill_value=5)
    check("extract", x > 0, x, size=7)
    which = np.array([[0, 2, 1], [1, 0, 2]], np.int32)
    cases = [np.arange(3.0, dtype="f"), np.float32(10), sample((2, 3), seed=1)]
    assert_same(mnp.choose(which, cases), np.choose(which, cases))
    for mode in ("wrap", "clip"):
        assert_same(mnp.choose(which * 2 - 1, cases, mode=mode), np.choose(which * 2 - 1, cases, mode=mode))
    with pytest.raises(ArgumentError, match="for 3 choices"):
        mnp.choose(which + 1, cases)
    functions = [lambda v: -v, 2.5, lambda v: v * v]
    conditions = [V < -1, (V >= -1) & (V < 0)]
    assert_same(mnp.piecewise(V, conditions, functions), np.piecewise(V, conditions, functions))


# --- applying -----------------------------------------------------------------------------------------------
def test_applying() -> None:
    x = sample((2, 3, 4))
    for axis in (0, 1, -1):
        assert_same(mnp.apply_along_axis(lambda v: v.sum(), axis, x), np.apply_along_axis(lambda v: v.sum(), axis, x))
        assert_same(
            mnp.apply_along_axis(lambda v: v[:2, None] * 3, axis, x),
            np.apply_along_axis(lambda v: v[:2, None] * np.float32(3), axis, x),
        )
    assert_same(mnp.apply_over_axes(mnp.sum, x, (0, 2)), np.apply_over_axes(np.sum, x, (0, 2)))


def test_vectorize() -> None:
    f = mnp.vectorize(lambda a, b: mnp.where(a > b, a - b, a + b))
    x, y = sample((3, 1)), sample((4,), seed=1)
    assert_same(f(x, y), np.where(x > y, x - y, x + y))
    assert_same(mw.jit(f)(x, 0.5), np.where(x > 0.5, x - np.float32(0.5), x + np.float32(0.5)))
    matvec = mnp.vectorize(lambda m, v: m @ v, signature="(m,n),(n)->(m)")
    ms, vs = sample((2, 1, 3, 4)), sample((5, 4), seed=2)
    assert_same(matvec(ms, vs), np.einsum("abmn,bn->abm", np.broadcast_to(ms, (2, 5, 3, 4)), vs))
    assert_same(mnp.vectorize(lambda n, a: a**n, excluded={0})(2, x), x**2)
    with pytest.raises(ShapeError, match="core dimension n has sizes 4 and 3"):
        matvec(ms, vs[:, :3])
    with pytest.raises(ArgumentError, match="signature"):
        mnp.vectorize(abs, signature="(n->()")


# --- integers -----------------------------------------------------------------------------------------------
def test_gcd_and_lcm() -> None:
    x, y = np.array([[12, -8, 0], [7, 0, 100]], np.int32), np.array([18, 12, 5], np.int32)
    for name in ("gcd", "lcm"):
        check(name, x, y)
        check(name, np.abs(x).astype(np.uint8), y.astype(np.uint8))
    with pytest.raises(DTypeError, match="integers"):
        mnp.gcd(1.5, 2)


@pytest.mark.parametrize("order", ["big", "little"])
def test_bits(order: str) -> None:
    bits = sample((3, 11), "bool")
    packed = np.packbits(bits, 1, order)
    assert_same(mnp.packbits(bits, 1, order), packed)
    assert_same(mnp.packbits(bits, bitorder=order), np.packbits(bits, bitorder=order))
    for count in (None, 11, 20, -3):
        assert_same(mnp.unpackbits(packed, 1, count, order), np.unpackbits(packed, 1, count, order))
    assert_same(mnp.unpackbits(packed, 0, None, order), np.unpackbits(packed, 0, None, order))


def test_floats_taken_apart() -> None:
    x = np.array([6.0, -0.1, 0.0, -0.0, np.inf, np.nan, 1.0, 3.4e38, -0.75], "f")
    got, want = mnp.frexp(x), np.frexp(x)
    assert_same(got[0], want[0])
    finite = np.isfinite(x)
    assert np.array_equal(np.asarray(got[1])[finite], want[1][finite])
    y = np.array([1.0, -3.5, 1e10, 0.1], "f")
    assert np.array_equal(mnp.spacing(y), np.spacing(y))
    assert np.array_equal(mnp.ldexp(*mnp.frexp(y)), y)


def test_products_and_paths() -> None:
    check("vecmat", sample((2, 3), "complex64"), sample((3, 4), "complex64"))
    path, report = mnp.einsum_path("ij,jk,kl->il", np.ones((2, 30)), np.ones((30, 4)), np.ones((4, 5)))
    assert path == [(0, 1), (0, 1)] and "Optimized" in str(report)
    check("sort_complex", sample((6,), "complex64"))


def test_files() -> None:
    for x in (M, INTS):
        buffer = io.BytesIO()
        mnp.save(buffer, mnp.asarray(x))
        assert_same(mnp.load(io.BytesIO(buffer.getvalue())), x)
    assert mnp.array_repr(mnp.asarray([1.23456]), precision=2) == "Array([1.23], dtype=float32)"


def test_namespace_info() -> None:
    info = mnp.__array_namespace_info__()
    assert info.default_device() in info.devices()
    assert info.capabilities()["max dimensions"] is None
    assert set(info.dtypes(kind=("bool", "unsigned integer"))) == {"bool", "uint8", "uint16", "uint32"}
    assert info.default_dtypes()["indexing"] == mnp.arange(3).dtype
    assert mnp.finfo("bfloat16").max == float(jnp.finfo("bfloat16").max) and mnp.finfo("complex64").bits == 32
    assert mnp.iinfo("uint16").max == 65535
    with pytest.raises(DTypeError, match="finfo"):
        mnp.finfo("int32")
    with pytest.raises(ValueError, match="iinfo"):  # as NumPy's
        mnp.iinfo("float32")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e5m2", "complex64"])
def test_limits_are_scalars_of_their_dtype(dtype: str) -> None:
    """So they promote as JAX's, and do not become infinite in narrower arrays."""
    found, expected = mnp.finfo(dtype), jnp.finfo(dtype)
    assert repr(found) == repr(expected) and str(mnp.iinfo("int4")) == str(jnp.iinfo("int4"))
    for name in ("eps", "max", "min", "tiny", "resolution", "smallest_subnormal"):
        assert type(getattr(found, name)) is type(getattr(expected, name))
    if dtype != "float8_e5m2":
        wider = mnp.where(mnp.array([True]), found.min, mnp.ones(1, "bfloat16"))
        assert wider.dtype == jnp.where(jnp.array([True]), expected.min, jnp.ones(1, "bfloat16")).dtype


@pytest.mark.parametrize("method", ["scan", "compare_all"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted_of_complex_numbers_with_nan(side: str, method: str) -> None:
    parts = [np.nan, -1.0, 0.0, 2.0, np.inf]
    values = np.array([complex(a, b) for a in parts for b in parts], "c8")
    row = mnp.sort(mnp.asarray(values[::2]))
    np.testing.assert_array_equal(
        mnp.searchsorted(row, values, side, method=method), jnp.searchsorted(np.asarray(row), values, side)
    )
