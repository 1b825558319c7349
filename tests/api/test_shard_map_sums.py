"""Sums that are still to be made at the borders of ``shard_map``: ``P(unreduced={"x"})``."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P
from meshwright import lax
from meshwright.errors import ArgumentError, ShardingError, ShardingTypeError
from meshwright.sharding import AxisType

pytestmark = pytest.mark.usefixtures("mesh")
WHOLE, SUM = P(), P(None, None, unreduced={"x"})
A = np.arange(8, dtype=np.float32).reshape(2, 4)
B = (A * 2 - 3).reshape(4, 2)


@pytest.fixture
def mesh():
    with mw.set_mesh(mw.make_mesh((2, 2), ("x", "y"), axis_types=AxisType.Explicit)):
        yield


def operands():
    return mw.device_put(A, P(None, "x")), mw.device_put(B, P("x", None))


def pending():
    """The product, as a sum over x that is still to be made."""
    product = mnp.einsum("ij,jk->ik", *operands(), out_sharding=SUM)
    assert str(mw.typeof(product)) == "f32[2,2]{U:x}"
    return product


def plain(x):
    return np.asarray(plain_of(x))


def plain_of(x):
    return mw.reshard(x, P(None, None))


def made(f, out_specs=WHOLE, in_specs=SUM, **options):
    return mw.shard_map(f, in_specs=in_specs, out_specs=out_specs, **options)


TWICE = [
    made(lambda c: lax.psum(c * 2, "x")),
    made(lambda c: lax.psum(lax.psum(c, "y") - c * mnp.float32(0), "x")),  # the same along y: twice it
    made(lambda c: lax.psum(c.T + c.T, "x").T),
    made(lambda c: lax.psum(c @ (mnp.eye(2) * 2), "x")),
    made(lambda c: lax.psum_scatter(c + c, "x", tiled=True), P("x")),
    made(lambda c: c * 2, SUM),
    mw.shard_map(lambda c: lax.psum(c + c, "x"), out_specs=P()),  # in_specs as the type says
    mw.jit(made(lambda c: lax.psum(mw.jit(lambda c: c * 2)(c), "x"))),
    made(lambda c: 2 * lax.psum(c, "x"), axis_names={"x"}),
]


@pytest.mark.parametrize("number", range(len(TWICE)))
def test_terms_add_up_to_the_value(number):
    out = TWICE[number](pending())
    np.testing.assert_array_equal(plain(out), 2 * A @ B)
    assert ("{U:x}" in str(mw.typeof(out))) == (number == 5)


def test_under_disable_jit():
    c = pending()
    with mw.disable_jit():
        np.testing.assert_array_equal(plain(TWICE[0](c)), 2 * A @ B)
        np.testing.assert_array_equal(plain(TWICE[3](c)), 2 * A @ B)


BOTH = P(None, None, unreduced={"x", "y"})


def pending_over_both():
    a, b = mw.device_put(A, P(None, ("x", "y"))), mw.device_put(B, P(("x", "y"), None))
    return mnp.einsum("ij,jk->ik", a, b, out_sharding=BOTH)


@pytest.mark.parametrize(
    "f, out_specs",
    [
        (lambda c: lax.psum(c, ("x", "y")), WHOLE),
        (lambda c: lax.psum(lax.psum(c, "x").T, "y").T, WHOLE),
        (lambda c: lax.psum(c, "y"), SUM),
        (lambda c: lax.psum_scatter(lax.psum(c, "y"), "x", tiled=True), P("x")),
        (lambda c: lax.psum_scatter(c, "y", scatter_dimension=1, tiled=True), P(None, "y", unreduced={"x"})),
    ],
)
def test_sums_over_two_axes_are_made_together_or_one_by_one(f, out_specs):
    c = pending_over_both()
    out = made(f, out_specs, BOTH)(c)
    np.testing.assert_array_equal(plain(out), A @ B)
    assert ("{U:x}" in str(mw.typeof(out))) == bool(out_specs.unreduced)
    slope = mw.grad(lambda c: mnp.sum(plain_of(made(f, out_specs, BOTH)(c)) ** 2))(c)
    np.testing.assert_array_equal(plain(slope), 2 * A @ B)


def test_a_sum_that_is_half_made_is_not_used():
    with pytest.raises(ShardingTypeError, match=r"sin at .* still to be made over x, "):
        made(lambda c: mnp.sin(lax.psum(c, "y")), SUM, BOTH)(pending_over_both())


def test_derivatives():
    weights = np.array([[1, -2], [3, 5]], np.float32)
    c = pending()
    slope = mw.grad(lambda c: mnp.sum(TWICE[0](c) ** 2 * weights))(c)
    np.testing.assert_array_equal(plain(slope), 8 * (A @ B) * weights)
    _, tangent = mw.jvp(TWICE[0], (c,), (c,))
    np.testing.assert_array_equal(plain(tangent), 2 * A @ B)


def test_a_product_whose_sum_is_left_open():
    def terms(a, b):
        assert str(mw.typeof(a)) == "f32[2,2]{V:x}"
        return lax.pcast(a @ b, "x", to="unreduced")

    product = made(terms, SUM, (P(None, "x"), P("x", None)))
    out = product(*operands())
    assert str(mw.typeof(out)) == "f32[2,2]{U:x}"
    np.testing.assert_array_equal(plain(out), A @ B)
    slopes = mw.grad(lambda a, b: mnp.sum(mw.reshard(product(a, b), P(None, None)) ** 2), (0, 1))(*operands())
    for slope, want in zip(slopes, (2 * (A @ B) @ B.T, 2 * A.T @ (A @ B))):
        np.testing.assert_array_equal(np.asarray(slope), want)


def slope_inside(typed):
    """The derivative by values that are ``typed`` alike on all devices, inside of the region: terms of each device."""
    return lambda a, w: mw.grad(lambda w: mnp.sum((a @ w) ** 2))(typed(w))


REDUCED = P(None, None, reduced={"x"})
CAST, AS_IT_IS = slope_inside(lambda w: lax.pcast(w, "x", to="reduced")), slope_inside(lambda w: w)
GATHERED = slope_inside(lambda w: lax.all_gather(w, "x", to="reduced", tiled=True))


@pytest.mark.parametrize(
    "f, spec, out_specs",
    [
        (lambda *args: lax.psum(CAST(*args), "x"), P(), WHOLE),
        (CAST, P(), SUM),
        (lambda *args: lax.psum(AS_IT_IS(*args), "x"), REDUCED, WHOLE),
        (AS_IT_IS, REDUCED, SUM),
        (lambda *args: lax.psum(AS_IT_IS(*args), "x"), None, WHOLE),  # as the type says
        (lambda *args: lax.psum_scatter(GATHERED(*args), "x", tiled=True), P("x"), P("x")),
        (lambda *args: lax.psum_scatter(CAST(*args), "x", tiled=True), P(), P("x")),
    ],
)
def test_cotangents_of_what_is_reduced_are_terms(f, spec, out_specs):
    """Each device has its own part of the sum, which is made once, by psum and not before."""
    a, w = mw.device_put(A, P("x", None)), mw.device_put(B, P("x", None) if spec == P("x") else P(None, None))
    if spec in (REDUCED, None):
        w = mw.reshard(w, REDUCED)
    specs = {} if spec is None else {"in_specs": (P("x"), spec)}
    out = mw.shard_map(f, out_specs=out_specs, **specs)(a, w)
    np.testing.assert_array_equal(plain(out), 2 * A.T @ (A @ B))


@pytest.mark.parametrize(
    "f",
    [
        lambda c: lax.psum(mnp.sin(c), "x"),
        lambda c: lax.psum(c * lax.axis_index("x"), "x"),
        lambda c: lax.psum(c + 1, "x"),
        lambda c: lax.psum(c * c, "x"),
        lambda c: lax.pmax(c, "x"),
        lambda c: lax.all_gather(c, "x", to="invarying"),
        lambda c: lax.psum(mnp.where(c > 0, c, 0), "x"),
        lambda c: lax.psum(lax.fori_loop(0, 2, lambda i, c: mnp.sin(c), c), "x"),
    ],
)
def test_what_is_not_linear_in_a_term_is_refused(f):
    with pytest.raises(ShardingTypeError, match=r"sum that is still to be made over x.*with psum"):
        made(f)(pending())


@pytest.mark.parametrize("spec", [P(), P("x"), P(unreduced={"y"})])
def test_a_term_is_no_result(spec):
    with pytest.raises(ShardingTypeError, match=r"is (a sum still to be made over x|the same on all devices along y)"):
        made(lambda c: c, spec)(pending())


def test_what_is_the_same_everywhere_is_no_term():
    with pytest.raises(ShardingTypeError, match=r"result 0 is the same on all devices along x"):
        made(lambda c: lax.psum(c, "x"), SUM)(pending())
    with pytest.raises(ShardingTypeError, match=r"result 0 is the same on all devices along x"):
        made(lambda a: a, SUM, WHOLE)(mnp.ones((2, 2)))


def test_what_the_type_does_not_say_is_refused():
    with pytest.raises(ArgumentError, match=r"whose type .*U:x.* says"):
        made(lambda c: c, P(), P())(pending())
    with pytest.raises(ArgumentError, match="leave check_vma=False out"):
        made(lambda c: lax.psum(c, "x"), check_vma=False)(pending())
    with pytest.raises(ArgumentError, match=r"only \['y'\] are manual"):
        made(lambda c: c, axis_names={"y"})(pending())


def test_a_result_is_reduced_as_its_spec_says():
    """The weights of a layer, made in one region and used in another, whose derivatives are terms there."""
    weights, x = mnp.arange(4.0), mw.device_put(np.arange(8, dtype=np.float32) ** 2, P("x"))
    reduced = P(reduced={"x"})
    make = made(lambda w: 2 * w + 1, reduced, WHOLE)
    use = made(lambda w, x: lax.psum(mnp.sum(mnp.sin(w) * x), "x"), WHOLE, (reduced, P("x")))
    assert str(mw.typeof(make(weights))) == "f32[4]{R:x}"
    want = 2 * np.cos(2 * np.arange(4) + 1) * np.asarray(x).reshape(2, 4).sum(0)
    for step in (mw.grad(lambda w: use(make(w), x)), mw.jit(mw.grad(lambda w: use(make(w), x)))):
        np.testing.assert_allclose(np.asarray(step(weights)), want, rtol=1e-5)
    with pytest.raises(ShardingError, match=r"which P\(reduced=\{'x'\}\) does not name"):
        made(lambda w: w, reduced, reduced)(make(weights))
