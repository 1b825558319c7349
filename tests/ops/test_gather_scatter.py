"""gather and the scatters against jax: index forms, modes, derivatives, batching."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from op_checks import check_batch, check_grad, check_value, values

from meshwright.core.avals import ShapedArray
from meshwright.errors import ArgumentError, DTypeError, RuleError, ShapeError
from meshwright.ir.op import BatchAxis
from meshwright.ops.indexing import gather_scatter as G
from meshwright.ops.indexing.gather_scatter import GatherDimensionNumbers as N
from meshwright.transforms.autodiff import jvp

MODES = ["clip", "fill", "promise_in_bounds"]


def theirs_gather(n: N, sizes, **kwargs):
    numbers = lax.GatherDimensionNumbers(**dataclasses.asdict(n))
    return lambda x, i: lax.gather(x, i, numbers, sizes, **kwargs)


def both_scatters(name, n: N, **kwargs):
    mine = G.ScatterDimensionNumbers(*dataclasses.astuple(n))
    theirs = lax.ScatterDimensionNumbers(*dataclasses.astuple(n))
    return (
        lambda x, i, u: getattr(G, name)(x, i, u, mine, **kwargs),
        lambda x, i, u: getattr(lax, name)(x, i, u, theirs, **kwargs),
    )


@dataclasses.dataclass(frozen=True)
class Form:
    """A way of indexing: operand shape, dimension numbers, window, shape of the indices, result shape."""

    shape: tuple[int, ...]
    numbers: N
    sizes: tuple[int, ...]
    indices: tuple[int, ...]
    result: tuple[int, ...]


FORMS = {
    "rows": Form((5, 3), N((1,), (0,), (0,)), (1, 3), (4, 1), (4, 3)),
    "columns": Form((3, 5), N((0,), (1,), (1,)), (3, 1), (4, 1), (3, 4)),
    "points": Form((4, 5), N((), (0, 1), (0, 1)), (1, 1), (3, 2, 2), (3, 2)),
    "swapped": Form((4, 5), N((), (0, 1), (1, 0)), (1, 1), (3, 2), (3,)),
    "one row": Form((5, 3), N((0,), (0,), (0,)), (1, 3), (1,), (3,)),
    "windows": Form((6, 5, 2), N((1, 2), (2,), (0, 1)), (2, 3, 1), (3, 2), (3, 2, 3)),
    "window first": Form((6, 2), N((0, 2), (), (0,)), (3, 2), (4, 1), (3, 4, 2)),
    "batched": Form((3, 5, 2), N((2,), (1,), (1,), (0,), (0,)), (1, 1, 2), (3, 4, 1), (3, 4, 2)),
    "batched second": Form((5, 3), N((), (0,), (0,), (1,), (1,)), (1, 1), (4, 3, 1), (4, 3)),
}


def index_values(form: Form, low: int = -2, high: int = 7, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(low, high, form.indices).astype(np.int32)


def inside(form: Form, unique: bool = False) -> np.ndarray:
    """Indices in bounds; ``unique``: windows that do not overlap."""
    limits = [form.shape[d] - form.sizes[d] for d in form.numbers.start_index_map]
    count = int(np.prod(form.indices[:-1]))
    grid = np.stack(
        np.meshgrid(
            *[np.arange(0, m + 1, form.sizes[d]) for d, m in zip(form.numbers.start_index_map, limits)], indexing="ij"
        ),
        -1,
    ).reshape(-1, len(limits))
    rng = np.random.default_rng(1)
    if unique:
        assert len(grid) >= count
        return rng.permutation(grid)[:count].reshape(form.indices).astype(np.int32)
    return rng.integers(0, np.array(limits) + 1, form.indices).astype(np.int32)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_gather(form, mode):
    x = values(*form.shape)
    i = inside(form) if mode == "promise_in_bounds" else index_values(form)
    theirs = theirs_gather(form.numbers, form.sizes, mode=mode)
    check_value(lambda x, i: G.gather(x, i, form.numbers, form.sizes, mode=mode), theirs, x, i)
    if mode != "fill":  # jax's own jvp of a filled value is NaN in the value, compared above
        check_grad(lambda x: G.gather(x, i, form.numbers, form.sizes, mode=mode), lambda x: theirs(x, i), x)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_gather_fill_derivative(form):
    x, i = values(*form.shape), index_values(form)
    theirs = theirs_gather(form.numbers, form.sizes, mode="fill", fill_value=7.0)
    check_grad(
        lambda x: G.gather(x, i, form.numbers, form.sizes, mode="fill", fill_value=7.0), lambda x: theirs(x, i), x
    )


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.bool_, np.complex64, np.float16])
def test_fill_defaults(dtype):
    form = FORMS["rows"]
    x, i = values(*form.shape).astype(dtype), np.array([[1], [-1], [5], [4]], np.int32)
    check_value(
        lambda x, i: G.gather(x, i, form.numbers, form.sizes),
        theirs_gather(form.numbers, form.sizes, mode="fill"),
        x,
        i,
    )
    check_value(
        lambda x, i: G.gather(x, i, form.numbers, form.sizes, fill_value=1),
        theirs_gather(form.numbers, form.sizes, mode="fill", fill_value=1), x, i,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint32])
@pytest.mark.parametrize("mode", ["clip", "fill"])
def test_index_dtypes(dtype, mode):
    form = FORMS["rows"]
    x = values(300, 3)
    i = np.array([[3], [120], [-1 % 250], [77]]).astype(dtype)
    check_value(
        lambda x, i: G.gather(x, i, form.numbers, form.sizes, mode=mode),
        theirs_gather(form.numbers, form.sizes, mode=mode), x, i,
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["clip", "fill"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_gather_batching(form, mode):
    x, i = values(*form.shape), index_values(form)
    check_batch(lambda x, i: G.gather(x, i, form.numbers, form.sizes, mode=mode, fill_value=3), x, i, size=2)


def test_batch_dimension_stays_beside_its_neighbour():
    n = N((1,), (0,), (0,))
    op = G.Gather(n, (1, 3), G.GatherScatterMode.CLIP)
    x, i = values(5, 2, 3), np.zeros((4, 1), np.int32)
    _, out = op.batch(BatchAxis(2), (x, i), (1, None))
    assert out == 1  # before the features, as in the table


@pytest.mark.parametrize("mode", ["clip", "drop"])
@pytest.mark.parametrize("name", ["scatter_add", "scatter_mul", "scatter_min", "scatter_max"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_scatter(form, name, mode):
    x, i, u = values(*form.shape) / 8, index_values(form), values(*form.result, seed=2) / 4
    ours, theirs = both_scatters(name, form.numbers, mode=mode)
    check_value(ours, theirs, x, i, u, tol=1e-6)
    # jax's derivatives of scatter_min and scatter_max do not clip: give it indices that need no clipping.
    limits = [form.shape[d] - form.sizes[d] for d in form.numbers.start_index_map]
    j = np.clip(i, 0, limits).astype(np.int32) if mode == "clip" else i
    if name != "scatter_mul":
        check_grad(lambda x, u: ours(x, i, u), lambda x, u: theirs(x, j, u), x, u)
    else:
        check_grad(lambda x: ours(x, i, u), lambda x: theirs(x, i, u), x)


@pytest.mark.parametrize("name", ["scatter", "scatter_mul"])
@pytest.mark.parametrize("form", [f for k, f in FORMS.items() if k not in ("windows", "window first")])
def test_scatter_unique(form, name):
    if form.numbers.operand_batching_dims:
        i = np.broadcast_to(np.array([3, 0, 4, 1], np.int32)[:, None], (4, 3))
        i = (i if form.indices[0] == 4 else i.T)[..., None].copy()
    else:
        i = inside(form, unique=True)
    x, u = values(*form.shape) / 8, values(*form.result, seed=2) / 4
    ours, theirs = both_scatters(name, form.numbers, unique_indices=True)
    check_value(ours, theirs, x, i, u, tol=1e-6)
    check_grad(lambda x, u: ours(x, i, u), lambda x, u: theirs(x, i, u), x, u)


@pytest.mark.parametrize("mode", ["clip", "drop"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_scatter_set_with_collisions(form, mode):
    x, i, u = values(*form.shape) / 8, index_values(form, 0, 3), values(*form.result, seed=2) / 4
    ours, theirs = both_scatters("scatter", form.numbers, mode=mode)
    check_value(ours, theirs, x, i, u)
    check_grad(lambda x, u: ours(x, i, u), lambda x, u: theirs(x, i, u), x, u)


@pytest.mark.parametrize("name", ["scatter", "scatter_add", "scatter_min"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_scatter_batching(form, name):
    x, i, u = values(*form.shape), index_values(form, seed=3), values(*form.result, seed=2)
    ours, _ = both_scatters(name, form.numbers, mode="drop")
    check_batch(lambda x, i, u: ours(x, i, u), x, i, u, size=2)


def test_embedding_and_its_gradient():
    table, tokens = values(7, 4) / 8, np.array([[3, 0, 3], [6, 6, 1]], np.int32)
    n = N((2,), (0,), (0,))
    check_grad(lambda t: G.gather(t, tokens[..., None], n, (1, 4), mode="clip"), lambda t: t[tokens], table)


@settings(max_examples=13, deadline=None)
@given(st.data())
def test_any_form(data):
    """Random dimension numbers: window, collapsed and batching dimensions in any order."""
    ndim = data.draw(st.integers(1, 4), "ndim")
    roles = [data.draw(st.sampled_from(["window", "collapsed", "batching"])) for _ in range(ndim)]
    shape = tuple(data.draw(st.integers(1, 4)) for _ in range(ndim))
    batching = [d for d, r in enumerate(roles) if r == "batching"]
    sizes = tuple(data.draw(st.integers(1, s)) if r == "window" else 1 for s, r in zip(shape, roles))
    indexed = data.draw(st.permutations([d for d in range(ndim) if roles[d] != "batching"]))
    extra = data.draw(st.integers(0, 2))
    places = data.draw(st.permutations(range(len(batching) + extra)))[: len(batching)]
    batch = [data.draw(st.integers(0, 3)) for _ in range(len(batching) + extra)]
    for d, p in zip(batching, places):
        batch[p] = shape[d]
    window = [sizes[d] for d in range(ndim) if roles[d] == "window"]
    offset = sorted(data.draw(st.permutations(range(len(batch) + len(window))))[: len(window)])
    collapsed = tuple(d for d, r in enumerate(roles) if r == "collapsed")
    n = N(tuple(offset), collapsed, tuple(indexed), tuple(batching), tuple(places))
    indices = np.random.default_rng(data.draw(st.integers(0, 99))).integers(-1, 4, (*batch, len(indexed)))
    x = values(*shape)
    mode = data.draw(st.sampled_from(["clip", "fill"]))
    ours = lambda x, i: G.gather(x, i, n, sizes, mode=mode)  # noqa: E731
    i = indices.astype(np.int32)
    check_value(ours, theirs_gather(n, sizes, mode=mode), x, i)
    u = values(*np.shape(ours(x, i)), seed=1)
    add, jax_add = both_scatters("scatter_add", n, mode=mode)
    check_value(add, jax_add, x, i, u, tol=1e-6)


def test_gather_along():
    x = values(3, 5, 2)
    for dim in range(3):
        i = np.random.default_rng(0).permuted(np.indices(x.shape)[dim], axis=dim).astype(np.int32)
        np.testing.assert_array_equal(G.gather_along(x, i, dim), np.take_along_axis(x, i, dim))


def test_ties_share_the_derivative_of_scatter_max():
    x, i, u = values(5), np.array([[1], [3], [1], [1]], np.int32), np.array([9.0, -9.0, 9.0, 8.0], np.float32)
    ours, theirs = both_scatters("scatter_max", N((), (0,), (0,)))
    check_grad(lambda x, u: ours(x, i, u), lambda x, u: theirs(x, i, u), x, u)


def test_empty():
    form = FORMS["rows"]
    i = np.zeros((0, 1), np.int32)
    x = values(5, 3)
    check_value(lambda x, i: G.gather(x, i, form.numbers, form.sizes), theirs_gather(form.numbers, form.sizes), x, i)
    ours, theirs = both_scatters("scatter_add", form.numbers)
    check_value(ours, theirs, x, i, np.zeros((0, 3), np.float32))
    ours, theirs = both_scatters("scatter", form.numbers)
    check_grad(lambda x, u: ours(x, i, u), lambda x, u: theirs(x, i, u), x, np.zeros((0, 3), np.float32))


def test_bad_input():
    x, i = values(5, 3), np.zeros((4, 1), np.int32)
    n = N((1,), (0,), (0,))
    with pytest.raises(ShapeError, match="windows must lie inside"):
        G.gather(x, i, n, (1, 4))
    with pytest.raises(ShapeError, match="index vectors have 1 components"):
        G.gather(x, i, N((1,), (0,), (0, 1)), (1, 3))
    with pytest.raises(ShapeError, match="size 1 in collapsed"):
        G.gather(x, i, n, (2, 3))
    with pytest.raises(ShapeError, match="offset_dims must name"):
        G.gather(x, i, N((), (0,), (0,)), (1, 3))
    with pytest.raises(ShapeError, match="must pair up"):
        G.gather(x, i, N((), (1,), (1,), (0,), (0,)), (1, 1))
    with pytest.raises(DTypeError, match="must be integers"):
        G.gather(x, i.astype(np.float32), n, (1, 3))
    with pytest.raises(ArgumentError, match="mode of gather or scatter"):
        G.gather(x, i, n, (1, 3), mode="wrap")
    s = G.ScatterDimensionNumbers((1,), (0,), (0,))
    with pytest.raises(ShapeError, match=r"updates have shape \(3, 3\), expected \(4, 3\)"):
        G.scatter(x, i, values(3, 3), s)
    with pytest.raises(ShapeError, match="must name a dimension of updates"):
        G.scatter(x, i, values(4), s)
    with pytest.raises(DTypeError, match="must have one dtype"):
        G.scatter_add(x, i, np.ones((4, 3), np.int32), s)
    with pytest.raises(RuleError, match="unique_indices=True"):
        jvp(lambda u: G.scatter_mul(x, i, u, s), (values(4, 3),), (values(4, 3),))


def test_rules():
    x, i = ShapedArray((8, 6), np.dtype(np.float32)), ShapedArray((5, 1), np.dtype(np.int32))
    n = N((1,), (0,), (0,))
    rule = G.Gather(n, (1, 6)).sharding_rule(x, i)
    assert str(rule) == "[x0 o1], [i0 1] -> [i0 o1]; x0: reduction (masked)"
    u = ShapedArray((5, 6), np.dtype(np.float32))
    s = G.ScatterDimensionNumbers((1,), (0,), (0,))
    assert str(G.ScatterAdd(s).sharding_rule(x, i, u)) == "[x0 o1], [i0 1], [i0 o1] -> [x0 o1]; i0: reduction (masked)"
    assert str(G.Scatter(s).sharding_rule(x, i, u)) == "[x0 o1], [1 1], [1 o1] -> [x0 o1]"
