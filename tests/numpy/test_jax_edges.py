"""Corners in which NumPy's functions are easily wrong: empty arrays, weak types, odd options; jax.numpy as oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special
import numpy as np
import pytest
from numpy_oracle import assert_same, check

import meshwright as mw
import meshwright.numpy as mnp
import meshwright.scipy.special
from meshwright.core.pytree import leaves
from meshwright.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    ConcretizationTypeError,
    DTypeError,
    MeshwrightError,
    ShapeError,
)
from meshwright.ir.tracing import typeof

X = np.array([[3.0, -1.5, np.nan, 8.0], [0.5, 4.0, -2.0, 1.0], [7.0, 7.0, 2.5, -6.0]], np.float32)
FLAGS = np.array([True, False, True, True])
NUMBERS = np.array([3, 7, 1, 9, 4, 4], np.int8)


# --- reductions ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["nansum", "nanprod", "nanmean", "nanvar", "nanstd"])
def test_nan_reductions_of_chosen_elements(name: str) -> None:
    check(name, X, axis=1, where=FLAGS)
    check(name, X, axis=0, where=X > 0, keepdims=True)


@pytest.mark.parametrize("name", ["nanmax", "nanmin", "max", "min"])
def test_extremes_of_chosen_elements(name: str) -> None:
    check(name, X, axis=1, where=FLAGS, initial=2.0)
    check(name, NUMBERS, initial=5.75)
    check(name, NUMBERS > 3, initial=True)


@pytest.mark.parametrize("name", ["var", "std", "nanvar"])
def test_variance_with_a_known_mean_or_too_few_elements(name: str) -> None:
    check(name, X[1:], axis=1, mean=np.array([[1.0], [2.0]], np.float32))
    check(name, X[1:], axis=0, ddof=3)
    with pytest.raises(DTypeError, match="must be a float or complex dtype"):
        getattr(mnp, name)(NUMBERS, dtype="int32")
    with pytest.raises(ArgumentError, match="ddof and correction"):
        mnp.var(X, ddof=1, correction=1)
    with pytest.raises(DTypeError, match="complex array needs a complex dtype"):
        mnp.var(X.astype("complex64"), dtype="float32")


def test_sums_that_do_not_widen() -> None:
    check("sum", NUMBERS, promote_integers=False)
    check("prod", NUMBERS, axis=0, promote_integers=False)
    check("cumsum", NUMBERS, dtype="bool")


@pytest.mark.parametrize("name", ["max", "min", "any", "all", "prod"])
def test_reductions_are_arrays_of_a_dtype_of_their_own(name: str) -> None:
    for value in (3, 2.5, np.float32(2), np.int8(3)):
        got = getattr(mnp, name)(value)
        assert not typeof(got).weak_type and hasattr(got, "aval")
    with pytest.raises(AxisError, match="axis 1"):
        mnp.cumsum(mnp.asarray(3), axis=1)


# --- order statistics ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["quantile", "nanquantile"])
def test_inverted_distribution_function(name: str) -> None:
    q = np.array([0.0, 0.1, 0.35, 0.5, 0.8, 1.0], np.float32)
    check(name, X[1:], q, method="inverted_cdf")
    check(name, X[1:], q, axis=1, method="inverted_cdf", keepdims=True)
    weights = np.array([1.0, 4.0, 2.0, 3.0], np.float32)
    got = getattr(mnp, name)(X[1], q, method="inverted_cdf", weights=weights)
    np.testing.assert_array_equal(got, np.quantile(X[1], q, method="inverted_cdf", weights=weights))
    with pytest.raises(ArgumentError, match="weights need method='inverted_cdf'"):
        getattr(mnp, name)(X, 0.5, weights=weights)


def test_quantiles_of_nothing_and_beyond_the_ends() -> None:
    assert np.isnan(mnp.quantile(mnp.zeros((0,), "bfloat16"), 0.3).astype("float32"))
    assert mnp.median(mnp.zeros((0, 2, 3)), axis=1).shape == (0, 3)
    check("quantile", X[1], -0.5)
    check("percentile", X[1], 150.0)
    with pytest.raises(DTypeError, match="not ordered"):
        mnp.median(X.astype("complex64"))


@pytest.mark.parametrize("dtype", ["float16", "complex64", "int8"])
def test_covariances_of_nothing(dtype: str) -> None:
    for shape in ((0, 3), (0,), (0, 0), (3, 0)):
        check("cov", np.zeros(shape, dtype))
        check("corrcoef", np.zeros(shape, dtype))


def test_covariances_of_weighted_observations() -> None:
    y = X[1:]
    times, weights = np.array([1, 2, 0, 3]), np.array([1.0, 2.0, 0.5, 3.0], np.float32)
    for options in ({"fweights": times}, {"aweights": weights}, {"fweights": times, "aweights": weights, "ddof": 0},
                    {"fweights": times, "aweights": weights}, {"dtype": "float16"}, {"ddof": 7}):  # fmt: skip
        check("cov", y, **options)
    check("corrcoef", y, dtype="float16")
    with pytest.raises(ShapeError, match="vector of the 4 observations"):
        mnp.cov(y, aweights=weights[:3])
    with pytest.raises(DTypeError, match="fweights must be integers"):
        mnp.cov(y, fweights=weights)


# --- ranges -------------------------------------------------------------------------------------------------
def test_ranges_are_computed_in_the_dtype_asked_for() -> None:
    check("linspace", np.float16(0.1), np.float16(2.5), 7, dtype="float32")
    check("logspace", np.float16(3), np.float16(2.5), 5, dtype="float32", base=2)
    check("geomspace", -2.0, -16.0, 4)
    check("linspace", 1.0, 2.0, 1, retstep=True)
    check("arange", -2, 0.5, 0.5, dtype="int32")
    check("arange", np.float16(2.5), -2, -1, dtype="int8")
    with pytest.raises(DTypeError, match="complex"):
        mnp.arange(1 + 1j)


@pytest.mark.parametrize("name", ["zeros_like", "ones_like", "empty_like"])
def test_what_is_like_a_weak_value_is_weak(name: str) -> None:
    for value in (3, 2.5):
        check(name, value)
        check("full_like", value, 4)
    with pytest.raises(ArgumentError, match="does not fit in uint8"):
        mnp.full((2,), -2, "uint8")


# --- neighbours and places ----------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", ["maximum", "minimum", "mean", "median"])
def test_pad_with_statistics_of_the_nearest(mode: str) -> None:
    for length in (1, 2, ((1, 2), (3, 2)), 9):
        check("pad", X[1:], ((1, 2), (2, 0)), mode, stat_length=length)
    check("pad", np.array([[1, 4, 9], [-3, 2, 2]], np.int8), 2, mode)
    with pytest.raises(ArgumentError, match="stat_length must be positive"):
        mnp.pad(X, 1, mode, stat_length=0)


@pytest.mark.parametrize("mode", ["reflect", "symmetric"])
@pytest.mark.parametrize("widths", [1, ((0, 3), (2, 0)), ((7, 5), (9, 8))], ids=str)
def test_pad_with_reflections_in_a_point(mode: str, widths: Any) -> None:
    y = np.array([[1.0, 4.0, 9.0], [-3.0, 2.5, 7.0]], np.float32)
    got = mnp.pad(y, widths, mode, reflect_type="odd")
    np.testing.assert_allclose(got, np.pad(y, widths, mode, reflect_type="odd"))
    check("pad", y, widths, mode, reflect_type="even")


def test_pad_ramps_of_negative_integers() -> None:
    check("pad", np.array([-5, 3, -8], np.int8), 3, "linear_ramp")
    with pytest.raises(TypeError, match="pad_width must be an integer"):
        mnp.pad(X, 1.5)


@pytest.mark.parametrize("right", [False, True])
def test_digitize_in_descending_bins(right: bool) -> None:
    x = np.array([-3.0, -2.0, -1.0, 0.0, 1.5, 3.0, 4.0], np.float32)
    for method in (None, "scan", "sort"):
        check("digitize", x, np.array([3.0, 0.0, -2.0], np.float32), right=right, method=method)


def test_interpolation_goes_on() -> None:
    at, xp, fp = (np.array(v, np.float32) for v in ([-2, 0.5, 7], [0, 1, 3], [2, 4, 3]))
    check("interp", at, xp, fp, left="extrapolate", right="extrapolate")
    check("interp", at, xp, fp, left="extrapolate")
    with pytest.raises(ArgumentError, match="'extrapolate'"):
        mnp.interp(at, xp, fp, left="hold")


def test_unwrap_of_narrow_integers() -> None:
    for x in (np.array([0, 3, 6, 1, 7], np.uint8), np.array([5, -7, 2, 9], np.int8), np.array([True, False])):
        check("unwrap", x)
        check("unwrap", x, period=4)
        check("unwrap", x, period=3.0)


def test_infinite_parts_are_rounded_alone() -> None:
    for decimals in (-1, 0, 1):
        check("round", np.array([complex(np.inf, 12.6), complex(12.4, -np.inf), 25.35 + 1j], np.complex64), decimals)


def test_roll_by_traced_places() -> None:
    for axis in (None, 0, 1):
        want = [np.roll(X, s, axis) for s in (-5, 0, 2)]
        np.testing.assert_array_equal(mw.vmap(lambda s, a=axis: mnp.roll(X, s, a))(np.array([-5, 0, 2])), want)
    np.testing.assert_array_equal(mnp.roll(X, np.array([1, -2]), (0, 1)), np.roll(X, (1, -2), (0, 1)))


def test_cross_of_planes_and_axes() -> None:
    three, two = X[:, 1:].T, X[1:, :2]
    check("cross", X[1, :2], X[2, :3])
    check("cross", X[1, :3], X[2, :2])
    check("cross", two, X[2, :2])
    check("cross", three, X[:, :3][:, ::-1], axisa=0, axisb=1, axisc=0)
    with pytest.raises(ShapeError, match="2 or 3 components"):
        mnp.cross(X, X)
    with pytest.raises(ShapeError, match="3 components"):
        mnp.linalg.cross(two, two)


@pytest.mark.parametrize("p", [[1.0, 0.0, -4.0], [2.0, -3.0, 0.5, 7.0], [1.0, -6.0, 11.0, -6.0, 0.0]], ids=str)
def test_roots_while_tracing(p: Any) -> None:
    c = np.array(p, np.float32)
    got = mw.jit(lambda v: mnp.sort(mnp.roots(v, strip_zeros=False)))(c)
    assert_same(got, jnp.sort(jnp.roots(jnp.asarray(c), strip_zeros=False)))
    padded = np.concatenate([[0, 0], c, [0, 0]]).astype(np.float32)
    assert_same(mnp.sort(mnp.roots(padded)), jnp.sort(jnp.roots(jnp.asarray(padded))))
    with pytest.raises(ConcretizationTypeError, match="strip_zeros=False"):
        mw.jit(mnp.roots)(c)


def test_sets_of_nothing() -> None:
    none = np.zeros(0, np.int32)
    assert mnp.setdiff1d(none, none, size=2, fill_value=7).tolist() == [7, 7]
    assert mnp.intersect1d(none, NUMBERS, size=2).tolist() == [0, 0]
    assert mnp.isin(NUMBERS, none, method="sort").tolist() == [False] * 6
    assert mnp.isin(NUMBERS, np.array([4, 7]), method="binary_search").tolist() == [
        False,
        True,
        False,
        False,
        True,
        True,
    ]
    assert mnp.take_along_axis(np.zeros((0, 2)), np.zeros((0, 1), int), 1).shape == (0, 1)
    assert mnp.argwhere(np.float32(2.0)).shape == (1, 0)
    assert mnp.apply_along_axis(lambda v: v.sum(), 0, np.zeros(0)).item() == 0


# --- elementwise, dtypes ------------------------------------------------------------------------------------
def test_logarithms_of_complex_infinities() -> None:
    x = np.array([0, np.inf, complex(2, np.inf)], np.complex64)
    for name in ("log2", "log10"):
        got, want = np.asarray(getattr(mnp, name)(x)), np.asarray(getattr(jnp, name)(x))
        for part in ("real", "imag"):
            np.testing.assert_allclose(getattr(got, part), getattr(want, part), rtol=1e-6)


def test_tests_of_numbers_give_arrays() -> None:
    for name in ("isnan", "isinf", "isfinite", "isposinf", "imag"):
        assert all(hasattr(v, "aval") for v in leaves(getattr(mnp, name)(3)))
    assert not mnp.iscomplexobj(None) and mnp.isrealobj([1, 2])
    assert mnp.bitwise_count(np.array([True, False])).tolist() == [1, 0]
    with pytest.raises(DTypeError, match="have no sign"):
        mnp.isposinf(1j)


@pytest.mark.parametrize("casting", ["no", "equiv", "safe", "same_kind", "unsafe"])
def test_can_cast(casting: str) -> None:
    names = ("bool_", "int8", "int32", "int64", "uint8", "float16", "float32", "float64", "complex64", "bfloat16")
    for a in names:
        for b in names:
            want = jnp.can_cast(getattr(jnp, a), getattr(jnp, b), casting)
            assert mnp.can_cast(getattr(mnp, a), getattr(mnp, b), casting) == want, (a, b)
    with pytest.raises(TypeError, match="no dtype of its own"):
        mnp.can_cast(3, "int8")


def test_promotion_of_wide_dtypes() -> None:
    for a, b in (("int64", "int8"), ("bool", "uint64"), ("complex128", "int8"), ("uint64", "int64"), (float, int),
                 ("int64", "float32"), ("int8", "uint32")):  # fmt: skip
        assert mnp.promote_types(a, b) == jnp.promote_types(a, b), (a, b)


# --- where results lie --------------------------------------------------------------------------------------
def test_out_sharding() -> None:
    mesh = mw.make_mesh((2,), ("x",))
    split = mw.NamedSharding(mesh, mw.PartitionSpec("x"))
    key = mw.random.PRNGKey(0)
    made = (
        mnp.zeros((4, 3), out_sharding=split), mnp.full((4,), 2.0, out_sharding=split),
        mnp.reshape(X, (6, 2), out_sharding=split), mnp.zeros(4).at[1].set(3.0, out_sharding=split),
        mw.random.normal(key, (4, 2), out_sharding=split), mw.random.permutation(key, 4, out_sharding=split),
        mw.jit(lambda k: mw.random.uniform(k, (4,), out_sharding=split))(key),
        mw.nn.initializers.normal()(key, (4, 3), dtype="float16", out_sharding=split),
        mnp.asarray(X).reshape(6, 2, out_sharding=split),
    )  # fmt: skip
    assert all(x.sharding.shard_shape(x.shape)[0] == x.shape[0] // 2 for x in made)


# --- random and nn ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_draws_of_higher_resolution(dtype: str) -> None:
    key = np.array([5, 9], np.uint32)
    p = np.array([0.1, 0.5, 1e-3, 0.9], dtype)
    for name, args in (("gumbel", ((3, 4), dtype)), ("bernoulli", (p,)), ("categorical", (np.log(p),))):
        ours, theirs = (getattr(m.random, name)(key, *args, mode="high") for m in (mw, jax))
        assert_same(ours, theirs, name)
    options: Any = {"replace": False, "p": p, "mode": "high"}
    assert_same(mw.random.choice(key, 4, (3,), **options), jax.random.choice(key, 4, (3,), **options))
    with pytest.raises(ArgumentError, match="'low' or 'high'"):
        mw.random.gumbel(key, mode="middle")


def test_generators_by_name() -> None:
    key = mw.random.key(3, impl="threefry2x32")
    assert mw.random.key_impl(key) == jax.random.key_impl(jax.random.PRNGKey(3))
    with pytest.raises(ArgumentError, match="threefry2x32"):
        mw.random.key(3, impl="middle square")


@pytest.mark.parametrize("shape", [(3, 2, 4), (2, 3, 3, 3), (3, 1, 2, 2, 5)], ids=str)
def test_delta_orthogonal(shape: tuple[int, ...]) -> None:
    key = np.array([5, 9], np.uint32)
    ours, theirs = (m.nn.initializers.delta_orthogonal(2.0)(key, shape) for m in (mw, jax))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    for square in ((3, 3), (4, 2, 2)):
        ours, theirs = (m.nn.initializers.orthogonal(2.0)(key, square) for m in (mw, jax))
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    with pytest.raises(ShapeError, match="as many"):
        mw.nn.initializers.delta_orthogonal()(key, (3, 4, 2))


def test_signs_and_residuals_of_sums_of_exponentials() -> None:
    a, b = X[1:], np.array([[1, -1, 2, 1], [-2, 1, 1, 0]], np.float32)
    for got, want in zip(
        mw.nn.logsumexp(a, axis=1, b=b, return_sign=True), jax.nn.logsumexp(a, axis=1, b=b, return_sign=True)
    ):
        assert_same(got, want, weak=False)
    q = np.random.default_rng(0).normal(size=(2, 5, 4, 3)).astype(np.float32)
    k = q[:, :3]
    ours, theirs = (m.nn.dot_product_attention(q, k, k, return_residual=True) for m in (mw, jax))
    assert_same(ours, theirs, weak=False)
    with pytest.raises(MeshwrightError, match="implementation"):
        mw.nn.dot_product_attention(q, k, k, implementation="cudnn")


# --- types of results ---------------------------------------------------------------------------------------
def alike(call: Callable[[Any, Any], Any]) -> None:
    """One call in both libraries: values, shapes, dtypes and weak types."""
    with jax.enable_x64(bool(mw.config.enable_x64)):
        want = jax.tree.leaves(call(jax, jnp))
    got = mw.tree.leaves(call(mw, mnp))
    for g, w in zip(got, want, strict=True):
        assert (typeof(g).dtype, typeof(g).weak_type) == (w.dtype, jax.typeof(w).weak_type)
        np.testing.assert_allclose(np.asarray(g), np.asarray(w), 1e-5, 1e-6)


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "nancumsum", "nancumprod"])
def test_running_sums_are_never_weakly_typed(name: str) -> None:
    for x in (2, 2.5, True):
        alike(lambda _, m, x=x: getattr(m, name)(x, axis=None))
        alike(lambda _, m, x=x: getattr(m, name)(m.asarray(x)))


@pytest.mark.parametrize(
    "name", ["elu", "leaky_relu", "hard_tanh", "softplus", "soft_sign", "mish", "relu6", "logsumexp"]
)
def test_activations_of_numbers_ints_and_complex(name: str) -> None:
    for x in (2, True, 0.5, np.array([0, 3, -2], np.int32), np.array([True, False])):
        alike(lambda m, _, x=x: getattr(m.nn, name)(x))
    if name != "hard_tanh":
        alike(lambda m, n: getattr(m.nn, name)(n.asarray([1 + 2j, -1 - 0.5j, 9 - 1j])))


def test_hard_tanh_of_unsigned_integers_keeps_them() -> None:
    assert mw.nn.hard_tanh(np.array([0, 1, 7], np.uint8)).tolist() == [0, 1, 1]


@pytest.mark.parametrize("options", [
    {}, {"b": np.array([2.0, -1.0], "f")}, {"return_sign": True}, {"where": np.array([True, False])},
    {"b": np.array([0.0, 0.0], "f"), "return_sign": True}, {"axis": 0, "keepdims": True, "return_sign": True},
])  # fmt: skip
@pytest.mark.parametrize("x", [[1 + 2j, 3j], [np.inf, 1j], [-np.inf, -np.inf], [2.0, 1.0], [np.inf, 1.0]])
def test_sums_of_exponentials(x: list[complex], options: dict[str, Any]) -> None:
    alike(lambda m, n: m.nn.logsumexp(n.asarray(x), **options))
    alike(lambda m, n: m.scipy.special.logsumexp(n.asarray(x), **options))


@pytest.mark.parametrize("x64", [False, True])
def test_positions_in_sorted_vectors_have_32_bits(x64: bool) -> None:
    with mw.enable_x64(x64):
        for n in (0, 3, 50):
            alike(lambda _, m, n=n: m.searchsorted(m.arange(n) * 1.0, m.asarray([[1.0, 4.5]])))
            alike(lambda _, m, n=n: m.digitize(m.asarray([1.0, 4.5]), m.arange(n) * 1.0))
        assert mw.random.choice(mw.random.key(0), 5, (3,), p=mnp.ones(5) / 5).dtype == mnp.arange(3).dtype


@pytest.mark.parametrize("x", [[1.0, np.inf, 2, 3, 4], [1.0, 5, np.nan, -3, -np.inf]])
@pytest.mark.parametrize("spacing", [(), (2.0,), (np.array([0.0, 1, 3, 4, 7], "f"),)])
def test_slopes_beside_infinities(x: list[float], spacing: tuple[Any, ...]) -> None:
    alike(lambda _, m: m.gradient(m.asarray(x), *spacing))


@pytest.mark.parametrize("name", ["var", "std", "nanvar", "nanstd"])
def test_variances_of_too_few(name: str) -> None:
    for x in ([3.0], [np.nan], []):
        alike(lambda m, n, x=x: m.jvp(lambda v: getattr(n, name)(v, ddof=1), (n.asarray(x),), (n.ones(len(x)),))[0])
        if name.endswith("var"):
            tangent = mw.jvp(lambda v: getattr(mnp, name)(v, ddof=2), (mnp.asarray(x),), (mnp.ones(len(x)),))[1]
            # JAX's grad of var is NaN, its jvp is 0; what is made of nothing is a constant
            assert tangent == 0 if name == "nanvar" or not x else np.isnan(tangent)


def test_gradients_by_python_numbers_are_weakly_typed() -> None:
    alike(lambda m, n: m.value_and_grad(lambda x: (x * n.asarray([1.0, 2.0])).sum())(3.0))
    alike(lambda m, _: m.grad(lambda x: 1.0)(3.0))
    alike(lambda m, n: m.vjp(lambda x, y: x * y, 3.0, n.float32(2))[1](n.float32(1)))
    alike(lambda m, _: m.hessian(lambda x: x**3)(3.0))


@pytest.mark.parametrize("name", ["argmax", "argmin", "nanargmax", "nanargmin"])
def test_positions_are_along_one_axis(name: str) -> None:
    with pytest.raises(ArgumentTypeError, match=f"{name}: axis must be an integer"):
        getattr(mnp, name)(X, axis=(0, 1))


def test_rows_of_nothing_mapped_over_nothing() -> None:
    def order(n: Any) -> Any:
        return lambda x: n.take_along_axis(x, n.argsort(x, axis=-1), axis=-1)

    for axis, shape in ((0, (2, 0)), (1, (2, 0)), (0, (0, 3))):
        alike(lambda m, n, axis=axis, shape=shape: m.vmap(order(n), axis)(n.zeros(shape)))
        alike(lambda m, n, axis=axis, shape=shape: m.vmap(m.grad(lambda x: order(n)(x).sum()), axis)(n.zeros(shape)))
    alike(lambda m, n: m.vmap(lambda x, i: m.lax.dynamic_slice(x, (i,), (2,)))(n.zeros((0, 4)), n.zeros(0, int)))


def test_logarithms_of_complex_sums_are_principal() -> None:
    x = np.array([0.5 + 3.75j, 5 + 3.75j, -5 + 9j, 3 - 4j, 1 - 40j], "c8")
    for call in (
        lambda m, n: n.logaddexp(x, x[::-1]), lambda m, n: n.logaddexp2(x, 0 * x), lambda m, n: m.nn.softplus(x),
        lambda m, n: m.nn.log_sigmoid(x), lambda m, n: m.lax.cumlogsumexp(n.asarray(x)),
        lambda m, n: m.jvp(lambda v: m.lax.cumlogsumexp(v, reverse=True), (n.asarray(x),), (n.ones_like(x),))[1],
    ):  # fmt: skip
        alike(call)


@pytest.mark.parametrize("method", ["linear", "lower", "higher", "nearest", "midpoint", "inverted_cdf"])
def test_quantiles_beyond_the_ends_are_the_ends(method: str) -> None:
    x, q = np.array([[5, np.nan, 1, 3], [2, 2, 7, -1]], np.float32), np.array([-1, 0, 1, 1.25], np.float32)
    ends = np.array([[1, -1], [1, -1], [5, 7], [5, 7]], np.float32)
    np.testing.assert_array_equal(mnp.nanquantile(x, q, axis=1, method=method), ends)
    np.testing.assert_array_equal(mnp.quantile(x[1], q, method=method), ends[:, 1])


def test_middles_of_large_numbers() -> None:
    """The sum of the two numbers in the middle is infinite in their type, in JAX too."""
    big = np.float32(3e38)
    assert mnp.median(np.full(2, big)) == big and mnp.nanmedian(np.array([big, -big, big, big])) == big
    assert mnp.quantile(np.array([big, -big]), 0.25, method="midpoint") == 0
