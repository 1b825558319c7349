"""Elementwise functions against jax.numpy: every dtype kind, broadcasting, promotion, weak scalars."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_oracle import assert_same, check, sample

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError

UNARY = """abs negative positive sign square exp exp2 expm1 sin cos tan arctan sinh cosh tanh arcsinh floor ceil trunc
rint cbrt fabs degrees radians sinc isnan isinf isfinite logical_not signbit reciprocal conj real imag angle
nan_to_num round isreal iscomplex isposinf isneginf deg2rad rad2deg""".split()
POSITIVE = "log log2 log10 log1p sqrt".split()
INSIDE_ONE = "arcsin arccos arctanh".split()
BINARY = """add subtract multiply divide maximum minimum arctan2 hypot logaddexp logaddexp2 copysign fmax fmin
equal not_equal less less_equal greater greater_equal logical_and logical_or logical_xor floor_divide remainder fmod
power float_power heaviside nextafter""".split()
REAL_ONLY = (
    """floor ceil trunc rint cbrt fabs degrees radians signbit deg2rad rad2deg isposinf isneginf round""".split()
)


def _supported(name: str, dtype: str) -> bool:
    if dtype == "complex64" and name in [*REAL_ONLY, "rint", "sinc", "nan_to_num"]:
        return False
    return not (dtype == "bool" and name in ("negative", "sign", "signbit", "round"))


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "bool", "complex64"])
def test_unary(name: str, dtype: str) -> None:
    if _supported(name, dtype):
        check(name, sample((3, 2), dtype))


@pytest.mark.parametrize("name", [*POSITIVE, *INSIDE_ONE])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_unary_on_their_domain(name: str, dtype: str) -> None:
    x = sample((3, 2), "float32", low=0.1, high=0.9)
    check(name, x if dtype == "float32" else np.array([[1, 0], [1, 1]]))


@pytest.mark.parametrize("name", ["exp", "log1p", "tanh", "sqrt", "sin", "abs", "floor"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(name: str, dtype: str) -> None:
    check(name, sample((5,), np.dtype(dtype if dtype == "float16" else ml_dtypes.bfloat16), low=0.1))


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_binary_broadcasts(name: str, dtype: str) -> None:
    if name == "nextafter" and dtype == "int32":
        return
    x, y = sample((3, 1), dtype), sample((4,), dtype, seed=1)
    if name in ("power", "float_power"):
        x = np.abs(x) + 1
        y = np.abs(y) % 3 if dtype == "int32" else y
    check(name, x, y)


@pytest.mark.parametrize("name", ["add", "multiply", "divide", "less", "maximum", "remainder", "floor_divide", "power"])
@pytest.mark.parametrize("scalar", [2, 3.0, True])
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "float16"])
def test_python_scalars_are_weak(name: str, scalar: object, dtype: str) -> None:
    x = np.abs(sample((4,), dtype)) + np.ones((), dtype)
    if name == "power" and (scalar is True or isinstance(scalar, float)):
        return
    check(name, x, scalar)
    if name != "power":
        check(name, scalar, x)


BITS = "bitwise_and bitwise_or bitwise_xor".split()


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
def test_bits(dtype: str) -> None:
    x, y = sample((4, 3), dtype), sample((3,), dtype, seed=3)
    for name in BITS:
        check(name, x, y)
    check("bitwise_not", x)
    if dtype != "bool":
        check("left_shift", x, y % np.array(5, dtype))
        check("right_shift", x, np.abs(y) % np.array(5, dtype))
        check("bitwise_count", x)


def test_division_and_remainder_by_zero_and_signs() -> None:
    x, y = (a.ravel() for a in np.meshgrid(np.array([-7, -1, 0, 5, 8]), np.array([-3, 3, 2, -2])))
    for dtype in ("int32", "float32"):
        for name in ("floor_divide", "remainder", "fmod"):
            check(name, x.astype(dtype), y.astype(dtype))
    check("remainder", np.array([3, -4]), np.array([0, 0]))
    check("floor_divide", np.array([3.0, -4.0, 0.0], "f"), np.zeros(3, "f"))


@pytest.mark.parametrize("name", ["divmod", "modf"])
def test_two_results(name: str) -> None:
    x = np.array([-7.5, 2.25, 3.0, -0.5], "f")
    if name == "divmod":
        check(name, x, np.array([2.0, -1.0, 0.5, 3.0], "f"))
    else:
        check(name, x)


def test_special_values() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], "f")
    for name in ("isnan", "isinf", "isfinite", "signbit", "sign", "nan_to_num", "abs", "isposinf", "isneginf", "rint"):
        check(name, x)
    for name in ("maximum", "minimum", "fmax", "fmin", "copysign", "logaddexp", "hypot"):
        check(name, x, np.array([1.0, np.nan, -np.inf, -0.0, 0.0, np.inf], "f"))


DTYPES = ["bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "bfloat16", "float32", "complex64"]


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations_with_replacement(DTYPES, 2)))
def test_promotion_of_dtypes(first: str, second: str) -> None:
    assert mnp.promote_types(first, second) == jnp.promote_types(first, second)
    ours = mnp.multiply(mnp.ones(2, first), mnp.ones(2, second))
    assert_same(ours, jnp.multiply(jnp.ones(2, first), jnp.ones(2, second)))


VALUES = st.one_of(
    st.booleans(), st.integers(0, 3), st.floats(-2, 2, width=16),
    st.builds(lambda d: np.ones(1, d), st.sampled_from(["int32", "uint8", "float32", "float16", "bool"])),
    st.builds(lambda d: np.ones((), d)[()], st.sampled_from(["int16", "float32", "uint32"])),
)  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(st.lists(VALUES, min_size=2, max_size=4))
def test_result_type_of_values(values: list[object]) -> None:
    assert mnp.result_type(*values) == jnp.result_type(*values)
    total, want = mnp.asarray(values[0]), jnp.asarray(values[0])
    for v in values[1:]:
        total, want = mnp.add(total, v), jnp.add(want, v)
    assert_same(total, want)


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_broadcasting_is_numpys(data: st.DataObject) -> None:
    shapes = [tuple(data.draw(st.lists(st.sampled_from([1, 2, 3]), max_size=3))) for _ in range(3)]
    try:
        want = np.broadcast_shapes(*shapes)
    except ValueError:
        with pytest.raises(ShapeError, match="do not broadcast"):
            mnp.broadcast_shapes(*shapes)
        return
    assert mnp.broadcast_shapes(*shapes) == want
    flags, x, y = sample(shapes[0], "bool"), sample(shapes[1]), sample(shapes[2], seed=5)
    check("where", flags, x, y)


def test_where_takes_scalars_on_either_side() -> None:
    flags, x = sample((3, 4), "bool"), sample((4,))
    check("where", flags, x, 0.0)
    check("where", flags, 1, x)
    check("where", flags, 1, 2.5)
    check("where", np.array([0, 2, 3]), np.float32(1), np.arange(3))
    check("where", True, x, 0)


def test_clip_and_choices() -> None:
    x = sample((3, 4))
    check("clip", x, -1.0, 1.0)
    check("clip", x, None, np.array([0.5, 0.1, 1.0, -1.0], "f"))
    check("clip", np.arange(5), 1, 3)
    check("isclose", x, x + np.float32(1e-7))
    assert_same(
        mnp.select([x > 1, x < 0], [x, -x], 5.0), jnp.select([x > 1, x < 0], [x, -x], 5.0)
    )  # fmt: skip


@pytest.mark.parametrize("decimals", [0, 1, 3])
def test_round_to_decimals(decimals: int) -> None:
    check("round", sample((6,)) * 10, decimals)
    check("round", np.arange(-20, 20, 7), decimals)


def test_round_where_the_scale_leaves_the_dtype() -> None:
    for dtype, x in (("float16", [3e4, -2049, np.inf, 1.25]), ("bfloat16", [3e38, -257, -np.inf]), ("f", [3e38, 0.15])):
        x = np.array(x, mnp.dtype(dtype))
        for decimals in (1, 3, 40, 400):
            got = mnp.round(x, decimals)
            assert got.dtype == x.dtype
            np.testing.assert_allclose(np.asarray(got, "f"), np.round(x.astype("d"), np.minimum(decimals, 9)), 8e-3)
        got = mnp.round(x, -40).tolist()
        assert got == [v if np.isinf(v) else 0.0 for v in x.tolist()]
    assert mnp.round(np.array([5.25, -1234.5678], "f"), 38).tolist() == np.array([5.25, -1234.5678], "f").tolist()
    for x, decimals in ((3e38, 1), (5.25, 38), (5.25, 400)):
        assert mw.grad(lambda x: mnp.round(x, decimals))(x) == 0  # noqa: B023


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_round_of_integers_is_exact(dtype: str) -> None:
    top = np.iinfo(dtype).max
    x = np.unique(np.array([0, 4, 5, 15, 25, 26, 105, top // 3, top // 2 - 7, top // 2 + 6], dtype))
    x = x if dtype[0] == "u" else np.concatenate([x, -x])
    for decimals in (-1, -2, -3):
        if 10**-decimals <= top:
            assert mnp.round(x, decimals).tolist() == [round(v, decimals) for v in x.tolist()]
    assert mnp.round(x, -12).tolist() == [0] * len(x)


# --- errors -------------------------------------------------------------------------------------------------
def test_errors_name_function_argument_and_types() -> None:
    with pytest.raises(ShapeError, match=r"add: shapes \(3,\) and \(4,\)"):
        mnp.add(np.ones(3), np.ones(4))
    with pytest.raises(ArgumentTypeError, match="multiply: argument 1 must be an array or number, got a list"):
        mnp.multiply(np.ones(2), [1, 2])
    with pytest.raises(ArgumentTypeError, match="exp: argument 0"):
        mnp.exp("x")
    with pytest.raises(DTypeError, match=r"integers .* cannot be raised to the negative power -1"):
        mnp.arange(3) ** -1
    with pytest.raises(ArgumentError, match="Python integer 300 does not fit in uint8"):
        mnp.arange(3, dtype="uint8") + 300
    with pytest.raises(ArgumentError, match="give both x and y"):
        mnp.where(np.ones(2, bool), 1)


def test_large_python_integers_fit_unsigned_arrays() -> None:
    x = mnp.arange(3, dtype="uint32")
    assert (x & 0xFFFFFFFF).tolist() == [0, 1, 2]
    assert (x + 4294967290).tolist() == [4294967290, 4294967291, 4294967292]


def test_negative_zero_and_equal_scalars_of_other_types_are_not_mixed_up() -> None:
    zero = mnp.array([0.0])
    assert not mnp.signbit(zero * 0.0)[0]
    assert mnp.signbit(zero * -0.0)[0]
    assert (zero + True).dtype == (zero + 1).dtype == np.float32
    assert (mnp.array([1]) + True).dtype == np.int32
    assert (mnp.array([True]) + 1).dtype == np.int32
