"""Examples of what JAX's documentation shows of functions, with the same code for both libraries."""

import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
import meshwright.scipy.linalg
from meshwright.errors import ShapeError

V, W = [1, 2, 3], [4, 5, 6]
TALL, ROW = np.arange(6).reshape(2, 3) + 1, np.array([[2, 3, 1]])


def _written(x):
    file = io.BytesIO()
    np.save(file, np.asarray(x))
    file.seek(0)
    return file


#: of a library, its numpy
SAME = {
    **{
        f"{name}[{d!r}]": lambda m, n, name=name, d=d: getattr(n, name)[d, n.array(V), n.array(W)]
        for name in ("r_", "c_")
        for d in ("0", "-1", "0,1", "0,2", "0,2,0", "0,2,-1", "-1,3", "0,3,1", "r", "c")
    },
    "r_ of matrices": lambda m, n: [n.r_[d, n.array(TALL), n.array(TALL)] for d in ("r", "c", "1")],
    "fromfunction of vectors": lambda m, n: n.fromfunction(lambda x: (x + 1) * n.arange(3), (2,)),
    "fromfunction of scalars": lambda m, n: n.fromfunction(lambda x, y: n.full((), x.ndim + y.ndim) + 0 * x, (2, 3)),
    "fromfunction of several": lambda m, n: n.fromfunction(lambda x, y: (x + y, x * y), (3, 5), dtype=int),
    "fromfunction of nothing": lambda m, n: n.fromfunction(lambda: n.arange(2), ()),
    "traced fill": lambda m, n: m.jit(lambda x: n.nonzero(x, size=5, fill_value=x.sum()))(n.array([0, 1, 0, 2])),
    "fill 0": lambda m, n: n.nonzero(n.array([0, 1, 0, 2]), size=3, fill_value=0),
    "size of axes": lambda m, n: [n.size(n.zeros((2, 3, 5)), axis=a) for a in ((1,), (0, 2), -1, (), None)],
    "piecewise of scalars": lambda m, n: n.piecewise(
        n.arange(-4, 5), n.array([False, True, False]), [lambda x: x * 0, lambda x: x * 10, lambda x: x * 100]
    ),
    "piecewise of a matrix": lambda m, n: n.piecewise(
        n.arange(3), n.array([[True, False, False], [False, False, True]]), [lambda x: x + 7, lambda x: x * 10, 5]
    ),
    "polyadd along rows": lambda m, n: n.polyadd(n.array(ROW), n.array(TALL)),
    "polyadd to the last row": lambda m, n: n.polyadd(n.array(TALL), n.array([2])),
    "polysub along rows": lambda m, n: n.polysub(n.array(ROW), n.array(TALL)),
    "polysub from the last row": lambda m, n: n.polysub(n.array([2]), n.array(TALL)),
    "polyval of several": lambda m, n: [
        n.polyval(n.array(TALL), n.array(2)),
        n.polyval(n.array(TALL), n.arange(3)),
        n.polyval(n.array(TALL)[:, None], n.arange(2)[:, None]),
        n.polyval(n.zeros((0, 3)), 2.0),
    ],
    "circulant": lambda m, n: m.scipy.linalg.circulant(n.array([V, W])),
    "byteswap": lambda m, n: [
        n.arange(6, dtype=d).reshape(2, 3).byteswap() for d in ("int32", "uint16", "int8", "float16", "bfloat16")
    ],
    **{
        f"{name}.at of integers": lambda m, n, name=name: getattr(n, name).at(
            n.array([4, 0, 7, 9]), n.array([0, 1, 1, 3]), n.array([2, 3, 0, 5]), inplace=False
        )
        for name in ("logical_and", "logical_or", "logical_xor")
    },
    **{
        f"fill of positions: {fill}": lambda m, n, fill=fill: [
            n.nonzero(n.array([0, 3, 0, 5]), size=4, fill_value=fill),
            n.flatnonzero(n.array(TALL) > 5, size=2, fill_value=fill),
            n.argwhere(n.array(TALL) > 5, size=2, fill_value=fill),
        ]
        for fill in (2.5, -1, True, np.float32(1.5), np.int8(3), np.uint32(7))
    },
    "average over axes in another order": lambda m, n: n.average(
        n.array(TALL), axis=(1, 0), weights=n.array([[1, 2], [3, 4], [0, 5]]), returned=True
    ),
    "average over some axes": lambda m, n: n.average(
        n.arange(24).reshape(2, 3, 4), axis=(2, 0), weights=n.arange(1, 9).reshape(4, 2) > 4, keepdims=True
    ),
    "polyint without constants": lambda m, n: n.polyint(n.array([3, 2, 1]), 2, None),
    "rcond of polyfit": lambda m, n: n.polyfit(n.arange(4.0), n.arange(4.0), 1, full=True)[-1],
    "bfloat16 in a file": lambda m, n: n.load(_written(n.array([1.5, -2, 3], "bfloat16"))),
    "byteswap of bool": lambda m, n: n.array([True, False]).byteswap(),
    "byteswap of one": lambda m, n: m.jit(lambda x: x.byteswap())(n.array(1)),
}


@pytest.mark.parametrize("name", SAME)
def test_examples_give_what_they_give_in_jax(name):
    got, want = (jax.tree.leaves(SAME[name](m, n)) for m, n in ((mw, mnp), (jax, jnp)))
    assert len(got) == len(want)
    assert [x.weak_type for x in got if hasattr(x, "at")] == [x.weak_type for x in want if hasattr(x, "at")]
    for x, y in zip(got, want):
        assert np.shape(x) == np.shape(y) and getattr(x, "dtype", None) == getattr(y, "dtype", None)
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def test_bytes_swapped_twice_are_the_same():
    for x in (np.array([1 + 2j, -3.5], np.complex64), np.arange(4, dtype=np.float32), np.zeros((0, 2), np.int16)):
        swapped = mnp.asarray(x).byteswap()
        assert np.asarray(swapped).tobytes() == x.byteswap().tobytes()
        assert np.asarray(swapped.byteswap()).tobytes() == x.tobytes()


def test_polynomials_that_do_not_fit_are_refused(refuses):
    with refuses(ShapeError, "broadcast"):
        mnp.polyadd(np.ones(2), np.ones((2, 3)))


@pytest.mark.parametrize("p", [[0, 1, 2], [0, 0, 1, -3, 2], [0, 0, 0], [1, -3, 2, 0], [0, 2, 0, 0], [1, 2, 3]])
def test_roots_of_traced_coefficients_may_have_leading_zeros(p):
    got = np.asarray(mw.jit(lambda p: mnp.roots(p, strip_zeros=False))(np.array(p, np.float32)))
    np.testing.assert_array_equal(np.isnan(got), np.arange(len(p) - 1) >= len(p) - 1 - np.cumprod(np.equal(p, 0)).sum())
    wanted = np.roots(p)
    found = got[~np.isnan(got)]
    np.testing.assert_allclose(np.sort_complex(found), np.sort_complex(wanted), atol=1e-5)
    assert got.dtype == jnp.roots(jnp.array(p, jnp.float32), strip_zeros=False).dtype


def test_einsum_contracts_by_what_it_is_given():
    rng = np.random.default_rng(0)
    x, y, z = (rng.standard_normal(s, np.float32) for s in ((2, 3, 4), (4, 5), (5, 3)))

    def by(lax, seen):
        def dot_general(a, b, dims, precision=None, preferred_element_type=None, **more):
            seen.append((a.shape, b.shape, dims, preferred_element_type))
            return 2 * lax.dot_general(a, b, dims, precision=precision, preferred_element_type=preferred_element_type)

        return dot_general

    for spec, args in (("bij,jk->bik", (x, y)), ("bij,jk->kbi", (x, y)), ("bij,jk,ki->b", (x, y, z))):
        ours, theirs = [], []
        got = mnp.einsum(spec, *args, _dot_general=by(mw.lax, ours), preferred_element_type=np.float32)
        want = jnp.einsum(spec, *args, _dot_general=by(jax.lax, theirs), preferred_element_type=np.float32)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        assert len(ours) == len(theirs) == len(args) - 1
    assert ours[0][-1] == np.float32


@pytest.mark.parametrize("algorithm", ["fast", "stable"])
def test_variances_about_a_given_mean(algorithm):
    """The algorithms of the variance are different functions of a mean that is not that of the array."""
    for mean, where in ((1.5, None), (np.array([[1.0], [2.0]]), None), (0.5, np.array([[True, False, True]]))):
        got, want = (
            m.nn.standardize(TALL, mean=mean, where=where, epsilon=0.25, algorithm=algorithm) for m in (mw, jax)
        )
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_open_grids_are_lists_as_in_jax():
    assert type(mnp.ogrid[:2, :3]) is type(jnp.ogrid[:2, :3]) is list


U8, I8 = np.array([1, 2, 250], "uint8"), np.array([1, -2, 3], "int8")
#: of a numpy, a power of integers; a scalar exponent that is not traced is a number, whatever its dtype
POWERS = {
    "a narrow scalar": lambda n: n.array(U8) ** n.int8(2),
    "a scalar of NumPy": lambda n: n.array(U8) ** np.int8(3),
    "a wide scalar": lambda n: n.array(I8) ** n.int32(3),
    "an unsigned scalar": lambda n: n.power(n.array(I8), n.uint8(2)),
    "a weak scalar": lambda n: n.array(3) ** n.array(3),
    "of a number": lambda n: 2 ** n.uint8(5),
    "of a float": lambda n: n.float16(1.5) ** n.array(3, "int8"),
    "of a bool": lambda n: n.array(True) ** n.int8(2),
    "a vector": lambda n: n.array(I8) ** n.array([2], "uint8"),
    "a traced one": lambda n: (mw if n is mnp else jax).jit(lambda y: n.array(U8) ** y)(np.int8(2)),
}


@pytest.mark.parametrize("name", POWERS)
def test_exponents_that_are_known_are_numbers(name):
    got, want = (POWERS[name](n) for n in (mnp, jnp))
    assert (got.dtype, got.weak_type, got.tolist()) == (want.dtype, want.weak_type, want.tolist())


def test_negative_exponents_that_are_known_are_refused(refuses):
    with refuses(TypeError, "negative power"):
        mnp.array(U8) ** mnp.int8(-1)


def test_copies_and_shards_are_weakly_typed_where_the_array_is():
    for x in (mnp.asarray(2.0), mnp.asarray(3)):
        assert x.copy().weak_type and x.addressable_data(0).weak_type and x.addressable_shards[0].data.weak_type


@pytest.mark.parametrize("name", ["sort", "argsort"])
def test_scalars_have_no_axis_to_sort_along(name, refuses):
    for axis in (-1, 0):
        with refuses(IndexError, "axis"):
            getattr(mnp, name)(3, axis=axis)
    assert getattr(mnp, name)(3, axis=None).shape == (1,)
