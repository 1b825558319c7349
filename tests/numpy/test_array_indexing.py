"""Reading and updating elements: every form of index, against NumPy and jax."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_oracle import assert_same, check_functions, sample, traced

import meshwright.numpy as mnp
from meshwright.core.avals import ShapedArray
from meshwright.errors import (
    ArgumentError,
    ConcretizationTypeError,
    DTypeWarning,
    ImmutableArrayError,
    IndexingError,
    ShapeError,
)
from meshwright.ir.tracing import trace_to_jaxpr, typeof
from meshwright.transforms.autodiff import grad
from meshwright.transforms.vmap import vmap

SHAPE = (3, 4, 5)
X = np.arange(60, dtype=np.float32).reshape(SHAPE)

BASIC = [
    0, -1, slice(1, None), slice(None, None, -1), slice(3, None, -2), slice(1, 1), None, ..., (0, 1), (..., 2),
    (slice(None), 1), (slice(0, 2), None, slice(None, None, 2)), (0, ..., None, -1), (None, None), (1, 2, 3), (),
    (slice(-2, None), slice(-100, 100), slice(4, 0, -3)), (np.int64(1), slice(None), np.array(2)), slice(None, None, 2),
]  # fmt: skip
ADVANCED = [
    np.array([2, 0]), (np.array([[0, 1], [2, 2]]),), (slice(None), np.array([3, 1, 1])),
    (np.array([0, 2]), np.array([1, 3])),
    (np.array([0, 2]), slice(None), np.array([1, 3])), (slice(1, None), np.array([0, 1]), np.array([4, -1])),
    (0, slice(None), np.array([1, 2])), (slice(None), 1, np.array([0, 0, 3])), (..., np.array([1, -2])),
    (np.array([[0], [2]]), np.array([[1, 3, 0]])), (np.array([1]), None, slice(None, None, -1)), np.zeros(0, int),
    (slice(None, None, 2), None, np.array([1, 2]), ..., None), ([0, 1], [2, 3]), ([True, False, True],),
    (np.array([0, 1], np.uint8), np.array([-1, 2], np.int8)),
]  # fmt: skip
MASKS = [
    X[:, 0, 0] > 10, X > 30, (slice(None), np.array([True, False, True, True])), True,
    (X[..., 0] % 2 == 0, np.array(1)),
    (False, 0), (np.array([True, False, True]), slice(None), np.array([1, 2])),
]  # fmt: skip


@pytest.mark.parametrize("index", [*BASIC, *ADVANCED, *MASKS], ids=repr)
def test_reading_is_numpys(index: Any) -> None:
    want = X[index]
    assert_same(mnp.asarray(X)[index], want)
    assert_same(traced(lambda x: mnp.asarray(x)[index], X), want)


def primitives(f: Any, *avals: ShapedArray) -> list[str]:
    return [e.op.name for e in trace_to_jaxpr(lambda *a: [f(*a)], avals).jaxpr.eqns]


@pytest.mark.parametrize("index", BASIC, ids=repr)
def test_static_indices_do_not_gather(index: Any) -> None:
    used = primitives(lambda x: x[index], typeof(mnp.asarray(X)))
    assert set(used) <= {"slice", "squeeze", "reshape", "rev"}
    assert len(used) <= 3


def test_traced_scalars_slice_dynamically() -> None:
    scalar = ShapedArray((), np.dtype("int32"))
    used = primitives(lambda x, i: x[i], typeof(mnp.asarray(X)), scalar)
    assert used == ["lt", "add", "select_n", "dynamic_slice", "squeeze"]
    for index in (0, 2, -1, 7, -9):
        check_functions(lambda x, i: mnp.asarray(x)[1:, i], lambda x, i: jnp.asarray(x)[1:, i], X, np.array(index))


@pytest.mark.parametrize("index", [7, -9, np.array([5, -5, 1]), (np.array([1, 9]), np.array([-7, 2]))], ids=repr)
def test_out_of_range_gives_the_nearest_element(index: Any) -> None:
    assert_same(mnp.asarray(X)[index], jnp.asarray(X)[index])


def test_traced_index_arrays() -> None:
    i, j = np.array([[0, -1], [2, 1]]), np.array([3, 1])
    for f in (
        lambda x, i, j: x[i],
        lambda x, i, j: x[:, i, 2],
        lambda x, i, j: x[i, :, j],
        lambda x, i, j: x[None, i, j, ::-1],
        lambda x, i, j: x[j[0], :, j],
    ):
        check_functions(
            lambda x, i, j, f=f: f(mnp.asarray(x), mnp.asarray(i), mnp.asarray(j)),
            lambda x, i, j, f=f: f(jnp.asarray(x), jnp.asarray(i), jnp.asarray(j)), X, i, j,
        )  # fmt: skip


@st.composite
def indices(draw: Any, shape: tuple[int, ...]) -> Any:
    """A random index: ints, slices, new axes and index arrays, and an ellipsis for some dimensions."""
    batch = draw(st.sampled_from([(2,), (3, 1), (1,), ()]))

    def entry(n: int) -> list[Any]:
        kind = draw(st.sampled_from(["int", "slice", "array", "new"]))
        bounds = st.one_of(st.none(), st.integers(-n - 1, n + 1))
        if kind == "int":
            return [draw(st.integers(-n, n - 1))]
        if kind == "slice":
            return [slice(draw(bounds), draw(bounds), draw(st.sampled_from([None, 1, 2, -1, -2, 3])))]
        if kind == "array":
            size = int(np.prod(batch))
            values = draw(st.lists(st.integers(-n, n - 1), min_size=size, max_size=size))
            return [np.array(values, np.int32).reshape(batch)]
        return [None, slice(None)]

    first = draw(st.integers(0, len(shape)))
    last = draw(st.integers(first, len(shape)))
    before = [e for n in shape[:first] for e in entry(n)]
    after = [e for n in shape[last:] for e in entry(n)]
    return (*before, ..., *after)


@settings(max_examples=40, deadline=None)
@given(indices(SHAPE))
def test_random_indices_read_as_numpy(index: Any) -> None:
    want = X[index]
    assert_same(mnp.asarray(X)[index], want, repr(index))


@settings(max_examples=13, deadline=None)
@given(indices(SHAPE), st.sampled_from(["set", "add", "multiply", "min", "max"]))
def test_random_indices_update_as_jax(index: Any, method: str) -> None:
    values = sample(X[index].shape[-1:], seed=7)
    if method == "set" and any(isinstance(e, np.ndarray) for e in index):
        values = np.float32(3)  # which of several updates stays is not defined
    ours = getattr(mnp.asarray(X).at[index], method)(values)
    assert_same(ours, getattr(jnp.asarray(X).at[index], method)(values), f"{index} {method}")


# --- updates ------------------------------------------------------------------------------------------------
METHODS = ["set", "add", "subtract", "multiply", "divide", "power", "min", "max"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "index", [1, (slice(None, None, -2), 0), (slice(None), np.array([2, 0])), (..., None, 1)], ids=repr
)
def test_updates(method: str, index: Any) -> None:
    x = np.abs(sample(SHAPE)) + np.float32(0.5)
    value = sample(x[index].shape, seed=3, low=0.5)
    assert_same(getattr(mnp.asarray(x).at[index], method)(value), getattr(jnp.asarray(x).at[index], method)(value))
    f = lambda x, v: getattr(mnp.asarray(x).at[index], method)(v)  # noqa: E731
    assert_same(traced(f, x, value), getattr(jnp.asarray(x).at[index], method)(value))


def test_updates_add_up_where_a_position_comes_twice() -> None:
    index = np.array([1, 1, 2, 1])
    x = np.zeros(4, np.float32)
    assert mnp.asarray(x).at[index].add(np.array([1.0, 2.0, 4.0, 8.0])).tolist() == [0, 11, 4, 0]
    assert (mnp.asarray(x) + 1).at[index].multiply(2.0).tolist() == [1, 8, 2, 1]


def test_updates_out_of_range_are_dropped() -> None:
    x = np.arange(4, dtype=np.float32)
    index = np.array([9, 1, -9])
    assert_same(mnp.asarray(x).at[index].set(7.0), jnp.asarray(x).at[index].set(7.0))
    assert_same(mnp.asarray(x).at[index].add(7.0, mode="clip"), jnp.asarray(x).at[index].add(7.0, mode="clip"))
    traced_set = traced(lambda x, i: mnp.asarray(x).at[mnp.asarray(i)].set(7.0), x, np.array(6))
    assert traced_set.tolist() == [0, 1, 2, 3]


def test_get_modes() -> None:
    x = np.arange(4, dtype=np.float32)
    index = np.array([9, 1, -9])
    for options in ({"mode": "fill"}, {"mode": "clip"}, {"mode": "fill", "fill_value": -5.0}):
        assert_same(mnp.asarray(x).at[index].get(**options), jnp.asarray(x).at[index].get(**options))
    whole = np.arange(4)
    assert_same(mnp.asarray(whole).at[index].get(mode="fill"), jnp.asarray(whole).at[index].get(mode="fill"))


def test_a_fill_of_minus_zero_is_not_the_one_of_zero() -> None:
    x = mnp.arange(3.0)
    for kind in (float, np.float32, np.float64, mnp.float32, mnp.bfloat16):
        fills = [mnp.take(x, mnp.array([7]), mode="fill", fill_value=kind(v)) for v in (0.0, -0.0, 0.0)]
        assert [np.signbit(y).item() for y in fills] == [False, True, False], kind
    c = x.astype("complex64")
    filled = [mnp.take(c, mnp.array([7]), mode="fill", fill_value=v) for v in (0j, complex(-0.0, 1), complex(0.0, 1))]
    assert [np.signbit(np.real(y)).item() for y in filled] == [False, True, False]


def test_values_are_converted_to_the_arrays_dtype() -> None:
    with pytest.warns(DTypeWarning, match="int32"):
        written = mnp.arange(3).at[0].set(2.7)
    assert written.dtype == np.int32 and written.tolist() == [2, 1, 2]
    assert mnp.zeros(3, "bfloat16").at[1].add(1).dtype.name == "bfloat16"
    with pytest.raises(ArgumentError, match="complex values cannot be written"):
        mnp.zeros(3).at[0].set(1j)


def test_apply() -> None:
    x = mnp.arange(4.0)
    assert x.at[1:3].apply(mnp.square).tolist() == [0, 1, 4, 3]


def test_a_traced_mask_updates_with_scalars_only() -> None:
    x = sample((3, 4))
    f = lambda x: mnp.asarray(x).at[mnp.asarray(x) > 0].set(-1.0)  # noqa: E731
    assert_same(traced(f, x), np.where(x > 0, np.float32(-1), x))
    with pytest.raises(ConcretizationTypeError, match="needs a scalar value"):
        traced(lambda x: mnp.asarray(x).at[x > 0].set(np.ones(3)), x)
    with pytest.raises(ConcretizationTypeError, match="where"):
        traced(lambda x: x[x > 0], x)


# --- derivatives and batches --------------------------------------------------------------------------------
GRADIENT_INDICES = [1, (slice(None, None, 2), None, 3), np.array([0, 2, 2]), (slice(None), np.array([1, 0]))]


@pytest.mark.parametrize("index", GRADIENT_INDICES, ids=repr)
def test_gradients(index: Any) -> None:
    weights = sample(X[index].shape, seed=4)
    got = grad(lambda x: (x[index] * weights).sum())(mnp.asarray(X))
    want = np.zeros_like(X)
    np.add.at(want, index, weights)
    assert_same(got, want)
    if index is not GRADIENT_INDICES[2]:  # which of several updates stays is not defined
        into = grad(lambda v: (mnp.asarray(X).at[index].set(v) * X).sum())(mnp.asarray(weights))
        assert_same(into, X[index])


def test_batches() -> None:
    i = np.array([2, 0, -1])
    got = vmap(lambda x, i: x[i])(mnp.asarray(X), mnp.asarray(i))
    assert_same(got, np.stack([x[j] for x, j in zip(X, i)]))
    got = vmap(lambda x, i: x.at[i].set(0.0), (0, 0))(mnp.asarray(X), mnp.asarray(i))
    want = X.copy()
    want[np.arange(3), i] = 0
    assert_same(got, want)


def test_take() -> None:
    index = np.array([[1, -1], [0, 2]])
    for axis in (0, 1, -1, None):
        assert_same(mnp.take(X, index, axis), jnp.take(jnp.asarray(X), index, axis))
    for mode in ("clip", "wrap", "fill"):
        far = np.array([7, -8, 1])
        assert_same(mnp.take(X, far, 1, mode=mode), jnp.take(jnp.asarray(X), far, 1, mode=mode))


def test_take_along_axis() -> None:
    order = np.argsort(-X + 3 * (X % 5), axis=1)
    check_functions(
        lambda x, i: mnp.take_along_axis(x, i, 1), lambda x, i: jnp.take_along_axis(jnp.asarray(x), i, 1), X, order
    )
    check_functions(
        lambda x, i: mnp.take_along_axis(x, i, -1), lambda x, i: jnp.take_along_axis(jnp.asarray(x), i, -1), X,
        np.array([[[3]]]),
    )  # fmt: skip
    with pytest.raises(ShapeError, match="take_along_axis"):
        mnp.take_along_axis(X, np.zeros((3, 4), int), 1)


# --- errors -------------------------------------------------------------------------------------------------
def test_index_errors() -> None:
    x = mnp.asarray(X)
    with pytest.raises(IndexingError, match="too many indices"):
        x[0, 0, 0, 0]
    with pytest.raises(IndexingError, match="one ellipsis"):
        x[..., ...]
    with pytest.raises(IndexingError, match="can be an index"):
        x[1.0]
    with pytest.raises(IndexingError, match="can be an index"):
        x["a"]
    with pytest.raises(IndexingError, match="mask of shape"):
        x[np.ones(4, bool)]
    with pytest.raises(ShapeError, match=r"indexing: shapes \(2,\) and \(3,\)"):
        x[np.array([0, 1]), np.array([0, 1, 2])]
    with pytest.raises(IndexingError, match="slice bounds must be known"):
        traced(lambda x, i: x[i:], X, np.array(1))
    with pytest.raises(ImmutableArrayError, match=r"x\.at\[index\]\.set"):
        x[0] = 1
    with pytest.raises(ShapeError, match=r"at\.set"):
        x.at[0].set(np.ones(3))
    with pytest.raises(ArgumentError, match="mode must be"):
        x.at[np.array([0])].set(1, mode="never")
