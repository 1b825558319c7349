"""What types results have: of derivatives by Python numbers, of updates, of bools, beside integers that do not fit."""

from __future__ import annotations

import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import meshwright as mw
import meshwright.nn as nn
import meshwright.numpy as mnp
from meshwright.errors import IntegerRangeError

#: of a Python number, by ops that are weakly typed and others that are not
FUNCTIONS: list[Callable] = [
    lambda x: x * x, lambda x: x - x, lambda x: x * mnp.arange(3.0), lambda x: mnp.take(x - x, mnp.array([0, 0])),
    lambda x: nn.logsumexp(x), lambda x: nn.softmax(mnp.stack([x, 2 * x])), lambda x: 1.0, lambda x: x > 1.0,
    lambda x: nn.one_hot(x, 3), lambda x: mnp.float32(2) * x,
]  # fmt: skip


def test_integers_without_a_common_dtype_are_weakly_typed_floats() -> None:
    with mw.enable_x64(True):
        x = mnp.asarray(np.array([3], np.uint64)) + mnp.asarray(np.array([-2], np.int64))
        assert x.dtype == np.float64 and x.weak_type and (x * np.float32(2)).dtype == np.float32


@pytest.mark.parametrize("argument", [2.0, np.float32(2), mnp.asarray(2.0)], ids=["number", "numpy", "array"])
def test_derivatives_have_the_types_of_what_they_belong_to(argument):
    """Weakly typed where that is, and always arrays, whatever the ops on the way and the tangents and cotangents."""
    total = [lambda x, f=f: mnp.sum(f(x) * 1.5) for f in FUNCTIONS]
    for f, g in zip(FUNCTIONS, total):
        out, tangent = mw.jvp(f, (argument,), (np.ones((), np.float32),))
        wanted = mw.typeof(out)
        if wanted.dtype != bool:
            assert mw.typeof(tangent) == wanted and isinstance(tangent, mw.Array)
            assert mw.typeof(mw.linearize(f, argument)[1](np.ones((), np.float32))) == wanted
            (ct,) = mw.vjp(f, argument)[1](mnp.ones(wanted.shape, wanted.dtype))
            assert mw.typeof(ct) == mw.typeof(argument) and isinstance(ct, mw.Array)
        for derivative in (mw.grad(g), mw.jacfwd(mw.grad(g)), mw.jacrev(mw.jacfwd(g))):
            assert isinstance(derivative(argument), mw.Array)
        assert mw.typeof(mw.grad(g)(argument)) == mw.typeof(argument)
        assert mw.typeof(mw.jit(mw.grad(g))(argument)) == mw.typeof(argument)


def test_updates_keep_weak_types_and_sums_do_not():
    for lib, np_ in ((mw, mnp), (jax, jnp)):
        x = np_.broadcast_to(1.0, (3,))
        assert lib.typeof(x).weak_type
        for name in ("set", "add", "subtract", "multiply", "min", "max"):
            assert lib.typeof(getattr(x.at[0], name)(np_.ones((), "bfloat16"))).weak_type, name
        for f in (lib.nn.softmax, lib.nn.log_softmax, lib.nn.logsumexp, lib.nn.standardize):
            assert not lib.typeof(f(x)).weak_type


def test_bools_are_computed_with_as_int32():
    x = np.array([True, False, True])
    with mw.enable_x64(True), jax.enable_x64(True):
        for f in (operator.lshift, operator.rshift, operator.pow, operator.mod, operator.floordiv):
            got, want = f(mnp.asarray(x), mnp.asarray(~x | x)), f(jnp.asarray(x), jnp.asarray(~x | x))
            assert got.dtype == want.dtype == "int32" and got.tolist() == want.tolist()
        for got, want in ((mnp.square(x), jnp.square(x)), (mnp.asarray(x) ** 2, jnp.asarray(x) ** 2)):
            assert (got.dtype, got.weak_type) == (want.dtype, want.weak_type) == ("int32", False)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32"])
def test_integers_that_do_not_fit_are_compared_and_bound_as_in_numpy(dtype):
    x = np.array([0, 1, np.iinfo(dtype).max, np.iinfo(dtype).min], dtype)
    ours = mnp.asarray(x)
    for n in (np.iinfo(dtype).max + 1, np.iinfo(dtype).min - 1, 2**70):
        for f in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne):
            assert f(ours, n).tolist() == f(x, n).tolist() == mw.jit(lambda x, f=f, n=n: f(x, n))(ours).tolist()
            assert f(n, ours).tolist() == f(n, x).tolist()
        with pytest.raises(IntegerRangeError, match=f"does not fit in {dtype}"):
            ours + n
        for refused in (mw.jit(lambda x, n=n: nn.leaky_relu(x, n)), lambda x, n=n: mw.vmap(lambda y: y * n)(x)):
            with pytest.raises(IntegerRangeError, match=f"does not fit in {dtype}"):
                refused(ours)
    low, high = np.iinfo(dtype).min - 5, np.iinfo(dtype).max + 5
    assert mnp.clip(ours, low, high).tolist() == x.tolist() and mnp.clip(ours, low, 1).tolist() == [0, 1, 1, min(x)]
    for bounds in ((high, None), (None, low)):
        with pytest.raises(OverflowError, match="does not fit"):
            mnp.clip(ours, *bounds)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_frexp_of_numbers_without_a_leading_one(name):
    """Also where the device's arithmetic takes them for zeros."""
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    smallest = ml_dtypes.finfo(dtype).smallest_subnormal
    with mw.enable_x64(True):
        x = (np.array([1, -1, 3, 7, -12, 55], np.float64) * float(smallest)).astype(dtype)
        for f in (mnp.frexp, mw.jit(mnp.frexp)):
            mantissa, exponent = f(mnp.asarray(x))
            wanted = np.frexp(x.astype(np.float64))
            assert np.array_equal(np.asarray(mantissa).astype(np.float64), wanted[0]) and mantissa.dtype == dtype
            assert np.array_equal(np.asarray(exponent), wanted[1])


def test_a_second_derivative_where_two_pieces_meet():
    for f, g in ((nn.celu, jax.nn.celu), (nn.elu, jax.nn.elu)):
        for x in (0.0, -0.0, -1.5, 2.0):
            assert float(mw.grad(mw.grad(f))(x)) == pytest.approx(float(jax.grad(jax.grad(g))(x)), rel=1e-6)


@pytest.mark.parametrize("wide", [False, True])
def test_integers_and_bools_become_the_floats_that_they_become_in_jax(wide):
    calls = {
        "rint": ([1, 2],), "angle": ([3, 1],), "unwrap": ([4, 1, 2],), "fabs": ([3, 1],), "sinc": ([0, 2],),
        "kron": ([3, 4], 0.5), "heaviside": ([0, 2], [5, 1]),
    }  # fmt: skip
    with mw.enable_x64(wide), jax.enable_x64(wide):
        for name, args in calls.items():
            for dtype in ("uint8", "int32", "bool"):
                given = [np.array(a, dtype) if isinstance(a, list) else a for a in args]
                got, want = getattr(mnp, name)(*given), getattr(jnp, name)(*given)
                assert (got.dtype, got.weak_type) == (want.dtype, want.weak_type), (name, dtype)
                np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-6)
        for f in (
            lambda lib, np_: np_.isfinite(-1.5),
            lambda lib, np_: np_.asarray(1.0) > 2,
            lambda lib, np_: np_.signbit(1.0),
        ):
            ours, theirs = f(mw, mnp), f(jax, jnp)
            assert not ours.weak_type  # nor is what is made of it
            assert mnp.fabs(ours).weak_type == jnp.fabs(theirs).weak_type


def test_bools_and_unsigned_integers_are_ordered_and_have_signs():
    flags, counts = np.array([[False, True, True], [True, False, False]]), np.array([0, 3, 200], np.uint8)
    for got, want in zip(mw.lax.top_k(flags, 2), jax.lax.top_k(flags, 2)):
        assert got.dtype == want.dtype and got.tolist() == want.tolist()
    for f in (mw.lax.sign, mw.jit(mw.lax.sign)):
        assert f(counts).tolist() == jax.lax.sign(counts).tolist() == [0, 1, 1]


def test_exponents_and_counts_keep_their_width():
    """Exponents beyond 32 bits do not wrap around, and the logarithm of a count is taken in the dtype of the result."""
    with mw.enable_x64(True):
        exponents = np.array([2**63 - 1, -(2**63), 2**32 + 1, 3, -1])
        for f in (mnp.ldexp, mw.jit(mnp.ldexp)):
            assert f(1.5, exponents).tolist() == [np.inf, 0, np.inf, 12, 0.75]
            assert f(1.5, np.array([2**32 - 1, 2], np.uint32)).tolist() == [np.inf, 6]
        x, where = np.array([[2.75, 1.25], [2.25, 1.75]]), np.array([[True, True], [False, True]])
        assert nn.logmeanexp(x, where=where).item() == pytest.approx(np.log(np.exp(x[where]).mean()), rel=1e-14)
        for f in (nn.softmax, nn.log_softmax):
            assert f(np.array([1, 2, 3], np.int32), where=where[0, [0, 1, 0]]).dtype == "float64"
    for dtype in ("float16", "bfloat16"):
        assert nn.logmeanexp(mnp.asarray(x, dtype), where=where).dtype == dtype


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float16"])
def test_sets_of_narrow_floats_with_nan(name):
    """Which NumPy, where it computes for us, would not bring in order."""
    x = np.array([0.5, np.nan, -2.5, 3.0, np.nan, 0.5, 3.0, -2.5], np.float32)
    ours = mnp.asarray(x).astype(name)
    assert mnp.unique(ours).astype("float32").tolist()[:3] == [-2.5, 0.5, 3.0] and mnp.unique(ours).shape == (4,)
    values, counts = mnp.unique(ours, return_counts=True)
    assert values.dtype == name and counts.tolist() == [2, 2, 2, 2]
    assert mnp.unique_values(ours).shape == (5,) and mnp.union1d(ours, ours[:2]).shape == (4,)
    assert mnp.unique(ours, size=mnp.unique(ours).size, fill_value=0).shape == (4,)


def test_conjugates_of_floats_are_weakly_typed_as_the_floats_are() -> None:
    assert mw.typeof(mw.lax.conj(0.5)).weak_type and not mw.typeof(mw.lax.conj(np.float32(0.5))).weak_type


def test_bits_are_as_wide_as_integers_may_be() -> None:
    for wide, dtype in ((False, np.uint32), (True, np.uint64)):
        with mw.enable_x64(wide), jax.enable_x64(wide):
            got, want = (m.random.bits(m.random.key(3), (4,)) for m in (mw, jax))
            assert got.dtype == dtype and got.tolist() == want.tolist()


@pytest.mark.parametrize("dtype", [None, "float32", "int32"])
def test_products_of_python_numbers_have_the_types_that_are_asked_for(dtype):
    for lib, np_, found in ((mw, mnp, got := []), (jax, jnp, want := [])):
        row = np_.broadcast_to(1.0, (3,))
        for f, args in (
            *((f, args) for f in (np_.dot, np_.inner) for args in ((2.0, 3.0), (2, 3), (2.0, row), (row, row))),
            *((f, (row, row)) for f in (np_.vdot, np_.matmul)),
            (np_.tensordot, (row, row, 1)),
            (lambda *xs, f=np_.einsum, **kw: f("i,j", *xs, **kw), (row, row)),
        ):
            out = f(*args, preferred_element_type=dtype)
            found.append((out.dtype, lib.typeof(out).weak_type, out.tolist()))
    assert got == want


def test_what_is_chosen_is_strongly_typed():
    for which in (1, np.array([0, 1])):
        (ours, theirs) = (np_.choose(which, [1.0, 2], mode="clip") for np_ in (mnp, jnp))
        assert mw.typeof(ours).weak_type is jax.typeof(theirs).weak_type is False
        assert ours.dtype == theirs.dtype and ours.tolist() == theirs.tolist()
