"""Library functions where an edge decides: padding of sets, ends of ranges, integers, what is not chosen, nothing."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.nn as mnn
import meshwright.numpy as mnp

INF, NAN = np.inf, np.nan
BYTES = np.array([3, 0, 200, 3], np.uint8)
FORMS = {
    "sets filled up": lambda np_, nn: [
        *np_.intersect1d(np.array([1, 2, 5]), np.array([2, 5, 7]), size=4, return_indices=True),
        *np_.intersect1d(np.array([1]), np.array([2]), size=2, return_indices=True),
        np_.intersect1d(np.array([1, 2]), np.array([2, 1]), size=3, fill_value=9),
        np_.setxor1d(np.array([1, 2, 5]), np.array([2, 5, 7]), size=4),
        np_.setxor1d(np.array([2.0]), np.array([2.0]), size=2),
    ],
    "ends of ranges": lambda np_, nn: [
        np_.linspace(INF, 1.0, 3), np_.linspace(-1.0, INF, 3), np_.linspace(-1.0, INF, 1),
        np_.linspace(np.array([INF, 2.0]), 1.0, 3), np_.linspace(0.0, 1.0, 7),
    ],
    "integers as differences": lambda np_, nn: [np_.trapezoid(BYTES, BYTES), np_.gradient(BYTES, 2.0)],
    "types of parameters": lambda np_, nn: [
        nn.leaky_relu(BYTES, 2), nn.leaky_relu(BYTES), nn.squareplus(BYTES.astype(np.int32), 1.5),
        nn.logsumexp(BYTES, b=2.0),
    ],
    "positions of numbers": lambda np_, nn: [np_.lexsort((3, 2))],
    "padding beside infinity": lambda np_, nn: [np_.pad(np.array([INF, 1.0]), 1, mode="linear_ramp", end_values=2)],
    "attention of one head": lambda np_, nn: list(
        nn.dot_product_attention(*[np.arange(12, dtype=np.float32).reshape(3, 4)] * 3, return_residual=True)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_as_jax_has_them(name):
    for x64 in (False, True):
        with jax.enable_x64(x64), mw.enable_x64(x64):
            for ours, theirs in zip(FORMS[name](mnp, mnn), FORMS[name](jnp, jax.nn), strict=True):
                assert (mw.typeof(ours).dtype, mw.typeof(ours).weak_type) == (theirs.dtype, theirs.aval.weak_type)
                np.testing.assert_allclose(np.asarray(ours, theirs.dtype), theirs, rtol=1e-5)


def test_what_piecewise_does_not_choose_has_no_derivative():
    def roots(np_, x):
        return np_.sum(np_.piecewise(x, [x < 0, x >= 1], [0.0, np_.sqrt, lambda v: v * v]))

    x = np.array([-1.0, 0.5, 4.0], np.float32)
    found = mw.grad(lambda x: roots(mnp, x))(x)
    assert found.tolist() == [0.0, 1.0, 0.25] == jax.grad(lambda x: roots(jnp, x))(x).tolist()


@pytest.mark.parametrize("f", [mnp.max, mnp.min, mnp.nanmax])
def test_the_extremum_of_nothing_has_no_derivative(f):
    x = np.zeros((2, 0), np.float32)
    value, tangent = mw.jvp(lambda x: f(x, axis=-1, initial=-1), (x,), (x,))
    assert value.tolist() == [-1.0, -1.0] and tangent.tolist() == [0.0, 0.0]


def test_the_derivative_of_atanh_near_1():
    x = np.float32(1) - np.float32(3) * np.finfo(np.float32).epsneg
    exact = 1 / (1 - np.float64(x) ** 2)
    np.testing.assert_allclose(mw.grad(mnp.arctanh)(x), exact, rtol=1e-6)


def test_attention_of_integers_is_refused():
    x = np.ones((1, 2, 1, 4), np.int32)
    with pytest.raises(mw.errors.DTypeError, match="expected floats, got int32"):
        mnn.dot_product_attention(x, x, x)


@pytest.mark.parametrize("around", [lambda lib, f: f, lambda lib, f: lib.jit(f), lambda lib, f: lib.checkpoint(f)])
def test_what_is_carried_but_not_asked_for_has_no_derivative(around):
    def total(lib, np_, x):
        def step(carry, a):
            return (carry[0] + a, carry[1] * np_.sum(a)), carry[0]

        return np_.sum(lib.lax.scan(around(lib, step), (np_.zeros_like(x[0]), np_.ones((), x.dtype)), x)[1])

    x = np.array([1.5, -2.0, NAN, 0.5], np.float32)
    found = mw.grad(lambda x: total(mw, mnp, x))(x)
    assert found.tolist() == [3.0, 2.0, 1.0, 0.0] == jax.grad(lambda x: total(jax, jnp, x))(x).tolist()


@pytest.mark.parametrize("k", [0, 1.0])
@pytest.mark.parametrize("dtype", [bool, np.int8, np.float16])
def test_integrals_of_polynomials_promote_with_their_constants(dtype, k):
    p = np.array([1, 0, 1], dtype)
    with mw.enable_x64(), jax.enable_x64(True):
        got, want = mnp.polyint(p, k=k), jnp.polyint(p, k=k)
    assert got.dtype == want.dtype and got.tolist() == want.tolist()


def test_bits_have_a_type_of_their_own():
    for number, dtype in ((3.0, "int32"), (3.0, "float32"), (2, "int32"), (2, "float32")):
        for bits in (lambda lib, x, d: lib.lax.bitcast_convert_type(x, d), lambda lib, x, d: x.view(d)):
            got, want = bits(mw, mnp.full(3, number), dtype), bits(jax, jnp.full(3, number), dtype)
            assert (got.dtype, got.weak_type) == (want.dtype, want.weak_type), (number, dtype)


def test_derivatives_of_polynomials_are_strongly_typed():
    for n, number in itertools.product((0, 1, 3), (2, 2.5, 2j)):
        got, want = mnp.polyder(mnp.full(n, number)), jnp.polyder(jnp.full(n, number))
        assert (got.shape, got.dtype, got.weak_type) == (want.shape, want.dtype, want.weak_type)


@pytest.mark.parametrize("u", [[1.0, -3.0, 2.0], [INF], []])
def test_quotients_of_polynomials(u):
    u, v = np.array(u, np.float32), np.array([1, 2], np.int8)
    weak = [lambda np_: np_.polydiv(u, np_.full(2, 2.5)), lambda np_: np_.polydiv(np_.full(3, 2.5), v)]
    for f in (lambda np_: np_.polydiv(u, v), *weak):
        for got, want in zip(f(mnp), f(jnp), strict=True):
            assert (got.dtype, got.weak_type, got.tolist()) == (want.dtype, want.weak_type, want.tolist())


@pytest.mark.parametrize("name", ["nanargmax", "nanargmin"])
def test_nothing_but_nan_has_the_position_minus_1(name):
    x = np.array([[NAN, 1.0, NAN], [NAN, -2.0, 3.0]], np.float32)
    for rows, axis, keepdims in itertools.product((x, x[:1], x[:1, :1]), (0, 1, -1, None), (False, True)):
        ours, theirs = (getattr(np_, name)(rows, axis=axis, keepdims=keepdims) for np_ in (mnp, jnp))
        assert (ours.dtype, ours.tolist()) == (theirs.dtype, theirs.tolist())


def test_types_of_powers_of_integers_by_others():
    with mw.enable_x64(), jax.enable_x64(True):
        for x, y in itertools.permutations((np.array([1, 2], np.uint64), np.array([2, 1], np.int8))):
            got, want = mnp.power(x, y), jnp.power(x, y)
            assert (got.dtype, got.weak_type, got.tolist()) == (want.dtype, want.weak_type, want.tolist())
    with mw.numpy_dtype_promotion("strict"):
        assert mnp.power(np.array([3, 2], np.int8), True).dtype == np.int8


def test_transforms_of_numbers_are_arrays():
    for name, dtype in itertools.product(("fftn", "ifftn", "rfftn", "irfftn"), ("float16", "float64", "int32")):
        got, want = (getattr(np_.fft, name)(np.array(3.5, dtype)) for np_ in (mnp, jnp))
        assert isinstance(got, mw.Array) and (got.dtype, got.item()) == (want.dtype, want.item()), name


def test_what_is_made_of_nothing_is_a_constant():
    empty = np.zeros((0,), np.float32)
    for f in (mnp.mean, mnp.std, mnp.median, mnp.linalg.norm, lambda x: mnp.linalg.norm(x, 3, axis=-1)):
        assert mw.jvp(f, (empty,), (empty,))[1].tolist() == 0.0


@pytest.mark.parametrize("name", ["convolve", "correlate", "intersect1d", "union1d", "polyadd"])
def test_what_promotes_to_weak_types_gives_weak_types(name):
    for kind, number in ((bool, 1), (np.int8, 2.5), (np.float16, 2.5), (np.int16, 2j)):
        strong = np.array([1, 0, 1], kind)
        got = getattr(mnp, name)(strong, mnp.full((2,), number))
        want = getattr(jnp, name)(strong, jnp.full((2,), number))
        assert (got.dtype, got.weak_type) == (want.dtype, want.weak_type), (kind, number)


def test_unique_elements_are_as_weak_as_what_they_are_of():
    for number in (1, 2.5, 2j, True):
        got, want = mnp.unique(mnp.full((2,), number)), jnp.unique(jnp.full((2,), number))
        assert (got.dtype, got.weak_type) == (want.dtype, want.weak_type)


def test_a_carry_of_nan_stays_out_of_second_derivatives_of_checkpointed_steps():
    def total(lib, x):
        step = lib.checkpoint(lambda c, a: (c * a, a * a * a))
        return lib.lax.scan(step, np.float32(NAN), x)[1].sum()

    x = np.array([1.0, 2.0], np.float32)
    assert mw.grad(lambda x: mw.grad(lambda x: total(mw, x))(x).sum())(x).tolist() == [6.0, 12.0]


@pytest.mark.parametrize("row", [[1, NAN, 3, 2, 5], [NAN, NAN, 1, NAN], [-INF, -INF, 1], [INF, INF, 1], [2, 2, 2]])
def test_windows_select_alike_forwards_and_backwards(row):
    x, t = np.array(row, np.float32), np.arange(1, 1 + len(row), dtype=np.float32)
    for kind, start in (("max", -INF), ("min", INF)):

        def derivatives(lib, kind=kind, start=start):
            f = lambda x: lib.lax.reduce_window(x, start, getattr(lib.lax, kind), (2,), (1,), "VALID")  # noqa: E731
            return lib.jvp(f, (x,), (t,))[1], lib.vjp(f, x)[1](t[1:] + 0)[0]

        for ours, theirs in zip(derivatives(mw), derivatives(jax)):
            np.testing.assert_array_equal(ours, theirs)


def test_solutions_are_typed_as_weakly_as_what_they_are_made_of():
    def results(lib, np_, x):
        yield lib.lax.custom_root(lambda z: z * 2 - x, x * 1, lambda f, z: x / 2, lambda g, b: b / 2)
        yield lib.lax.custom_linear_solve(lambda z: 2 * z, x * 1, lambda mv, b: b / mv(1.0), symmetric=True)

    for x in (3.0, np.float32(3)):
        for ours, theirs in zip(results(mw, mnp, x), results(jax, jnp, x)):
            assert (float(ours), ours.weak_type) == (float(theirs), jax.typeof(theirs).weak_type)


@pytest.mark.parametrize("name", ["sum", "prod", "and", "or", "xor"])
def test_reductions_refuse_the_same_types_of_no_axes(name):
    wrong = np.ones(2, bool if name in ("sum", "prod") else np.float32)
    for axes in ((), (0,)):
        with pytest.raises(mw.errors.DTypeError, match="expected"):
            getattr(mw.lax, f"reduce_{name}")(wrong, axes)


def test_the_scaled_bessel_function_ends_at_1():
    with mw.enable_x64():
        most, *rest = mw.lax.bessel_i0e(np.array([0.0, 1e-20, 1e-12])).tolist()
        assert most == 1.0 and max(rest) <= 1.0


@pytest.mark.parametrize("mode", ["constant", "maximum", "mean", "median", "edge", "linear_ramp", "reflect"])
def test_what_is_padded_is_as_weak_as_it_was(mode):
    for number in (2, 2.5):
        got, want = (np_.pad(np_.full((2, 3), number), 2, mode=mode) for np_ in (mnp, jnp))
        assert (got.dtype, got.weak_type, got.tolist()) == (want.dtype, want.weak_type, want.tolist())


def test_what_is_chosen_into_a_given_size_is_strongly_typed():
    flags = np.array([True, False, True])
    for number, size in itertools.product((2, 2.5), (None, 1, 2)):
        got, want = (np_.compress(flags, np_.full(3, number), size=size) for np_ in (mnp, jnp))
        assert (got.dtype, got.weak_type, got.tolist()) == (want.dtype, want.weak_type, want.tolist())


def test_what_is_inserted_at_one_position_has_the_dimensions_behind_it():
    x = np.arange(24.0).reshape(2, 3, 4)
    for axis, position, shape in itertools.product((0, 1, -1), (0, -1), ((), (4,), (1, 4), (3, 4), (2, 3), (2, 1, 4))):
        v = -1 - np.arange(float(np.prod(shape, dtype=int))).reshape(shape)
        try:
            want = np.insert(x, position, v, axis)
        except ValueError:
            with pytest.raises(mw.errors.ShapeError):
                mnp.insert(x, position, v, axis)
        else:
            np.testing.assert_array_equal(mnp.insert(x, position, v, axis), want)


def test_what_is_inserted_into_is_as_weak_as_it_was():
    for number in (2, 2.5):
        got, want = (np_.insert(np_.full(2, number), 0, 0.5) for np_ in (mnp, jnp))
        assert (got.dtype, got.weak_type, got.tolist()) == (want.dtype, want.weak_type, want.tolist())


def test_polynomials_without_coefficients_have_values_of_their_type():
    for dtype, x in itertools.product(("uint32", "float16"), (0, 2.5, np.array([1, 2], np.int8))):
        got, want = (np_.polyval(np.zeros(0, dtype), x) for np_ in (mnp, jnp))
        assert (got.dtype, got.weak_type, got.tolist()) == (want.dtype, want.weak_type, want.tolist())


def test_bools_are_clamped():
    for low, x, high in itertools.product((True, False), repeat=3):
        want = min(max(x, low), high)
        assert mw.lax.clamp(low, np.array([x]), high).tolist() == [want]
