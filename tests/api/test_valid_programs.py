"""Programs that ``jax`` runs: sizes and axes as arrays, sizes of one in ``lax``, traced positions, buffers."""

from __future__ import annotations

import array
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp


def assert_like_jax(program):
    """``program(package, package.numpy)`` gives the same in both: structure, shapes, dtypes, values."""
    expected, found = program(jax, jnp), program(mw, mnp)
    assert jax.tree.structure(expected) == jax.tree.structure(found)
    for e, f in zip(jax.tree.leaves(expected), jax.tree.leaves(found)):
        e, f = np.asarray(e), np.asarray(f)
        assert e.shape == f.shape and e.dtype == f.dtype
        np.testing.assert_allclose(f, e, rtol=1e-5, atol=1e-5)


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


# --- lax ----------------------------------------------------------------------------------------------------
INTEGER = ["bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right_logical", "shift_right_arithmetic"]
FLOAT = [
    "add",
    "sub",
    "mul",
    "div",
    "max",
    "min",
    "pow",
    "atan2",
    "rem",
    "lt",
    "eq",
    "ne",
    "ge",
    "nextafter",
    "complex",
]
FLOAT += ["igamma", "igammac", "zeta", "betainc"]
SHAPES = [((3, 1), (3, 4)), ((1, 4), (3, 1)), ((1,), (4,)), ((), (4,)), ((1, 1), (2, 3)), ((1, 0), (3, 0))]


@pytest.mark.parametrize("name", INTEGER + FLOAT)
def test_sizes_of_one_are_repeated(name):
    dtype = "int32" if name in INTEGER else "float32"
    for shapes in SHAPES:
        args = [np.ones(s, dtype) for s in (*shapes, shapes[1])[: 3 if name == "betainc" else 2]]
        expected, found = (package.eval_shape(getattr(package.lax, name), *args) for package in (jax, mw))
        assert expected.shape == found.shape and expected.dtype == found.dtype


@pytest.mark.parametrize("shapes", SHAPES)
def test_sizes_of_one_stand_for_all(shapes):
    assert_like_jax(lambda p, n: p.lax.sub(*(numbers(*s, seed=i) for i, s in enumerate(shapes))))


@pytest.mark.parametrize("shapes", [((4,), (3, 4)), ((2, 3), (4, 3)), ((1, 1), (2, 3, 4))])
def test_ranks_are_not_mixed(shapes):
    for package, numpy in ((jax, jnp), (mw, mnp)):
        with pytest.raises(TypeError):
            package.lax.add(*(numpy.ones(s) for s in shapes))


def test_gradients_of_repeated_sizes():
    assert_like_jax(
        lambda package, numpy: package.grad(lambda x, y: package.lax.mul(x, y).sum(), (0, 1))(
            numbers(3, 1), numbers(1, 4, seed=1)
        )
    )


#: (name, program of the package and an axis)
AXES = {
    "concatenate": lambda p, n, a: p.lax.concatenate([n.ones((2, 3))] * 2, a),
    "cumsum": lambda p, n, a: p.lax.cumsum(n.ones((2, 3)), a),
    "argmax": lambda p, n, a: p.lax.argmax(n.ones((2, 3)), a, "int32"),
    "sort": lambda p, n, a: p.lax.sort(n.ones((2, 3)), dimension=a),
    "reduce_sum": lambda p, n, a: p.lax.reduce_sum(n.ones((2, 3)), (a,)),
    "reduce_max": lambda p, n, a: p.lax.reduce_max(n.ones((2, 3)), (a,)),
    "squeeze": lambda p, n, a: p.lax.squeeze(n.ones((1, 3)), (a,)),
    "expand_dims": lambda p, n, a: p.lax.expand_dims(n.ones((1, 3)), (a,)),
    "rev": lambda p, n, a: p.lax.rev(n.arange(3), (a,)),
    "slice_in_dim": lambda p, n, a: p.lax.slice_in_dim(n.ones((2, 3)), 0, 1, axis=a),
    "dynamic_slice_in_dim": lambda p, n, a: p.lax.dynamic_slice_in_dim(n.ones((2, 3)), 0, 1, axis=a),
}


@pytest.mark.parametrize("name", AXES)
@pytest.mark.parametrize("kind", [np.int64, np.array, mnp.array, bool], ids=["int64", "numpy", "array", "bool"])
def test_axes_of_lax(name, kind):
    assert_like_jax(lambda p, n: AXES[name](p, n, 0 if p is jax else kind(0)))


SIZES = {
    "zeros": lambda p, n, s: n.zeros(s),
    "full": lambda p, n, s: n.full(s, 2.0),
    "reshape": lambda p, n, s: n.arange(6).reshape(s),
    "broadcast_to": lambda p, n, s: n.broadcast_to(n.arange(2), s),
    "lax.full": lambda p, n, s: p.lax.full(s, 1.0),
    "lax.reshape": lambda p, n, s: p.lax.reshape(n.arange(6), s),
    "lax.broadcast": lambda p, n, s: p.lax.broadcast(n.arange(2), s),
    "lax.broadcasted_iota": lambda p, n, s: p.lax.broadcasted_iota("int32", s, np.int64(0)),
    "lax.iota": lambda p, n, s: p.lax.iota("int32", s[0]),
    "lax.slice": lambda p, n, s: p.lax.slice(n.ones((4, 4)), (0, np.int64(0)), s),
    "lax.dynamic_slice": lambda p, n, s: p.lax.dynamic_slice(n.ones((4, 4)), (0, 0), s),
    "normal": lambda p, n, s: p.random.normal(p.random.PRNGKey(0), s),
    "tile": lambda p, n, s: n.tile(n.ones(2), s),
}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("kind", ["mixed", "numpy", "array"])
def test_sizes(name, kind):
    shape = {"mixed": (np.int64(3), mnp.array(2)), "numpy": np.array([3, 2]), "array": mnp.array([3, 2])}[kind]
    assert_like_jax(lambda p, n: SIZES[name](p, n, (3, 2) if p is jax else shape))


@pytest.mark.parametrize("name", ["sum", "max", "mean", "var", "any", "flip", "squeeze", "expand_dims", "prod", "ptp"])
@pytest.mark.parametrize("several", [False, True])
def test_axes_of_numpy(name, several):
    assert_like_jax(lambda p, n: getattr(n, name)(n.ones((1, 3)), axis=n.array([0] if several else 0)))


def test_permutations():
    x = numbers(2, 3)
    assert_like_jax(lambda p, n: [p.lax.transpose(n.asarray(x), n.array([1, 0])), n.transpose(x, np.array([1, 0]))])
    assert_like_jax(lambda p, n: [n.asarray(x).transpose(np.array([1, 0])), n.asarray(x).transpose(n.array(1), 0)])
    assert_like_jax(lambda p, n: [n.moveaxis(x, n.array([0]), 1), n.roll(n.asarray(x), 1, axis=n.array([1]))])


def test_a_size_that_is_no_integer_is_refused_with_its_name():
    for call in (lambda: mw.lax.full((2.5,), 1.0), lambda: mw.lax.rev(mnp.ones(3), (0.0,))):
        with pytest.raises(mw.errors.ArgumentTypeError, match="expected an integer"):
            call()


# --- loops, collectives -------------------------------------------------------------------------------------
@pytest.mark.parametrize("unroll", [0, 1, 3, 10, True, False])
@pytest.mark.parametrize("steps", [0, 4])
def test_unrolled(unroll, steps):
    xs = np.arange(steps, dtype="float32")
    assert_like_jax(lambda p, n: p.lax.scan(lambda c, x: (c + x, c * x), 0.0, n.asarray(xs), unroll=unroll))
    assert_like_jax(lambda p, n: p.lax.fori_loop(0, steps, lambda i, c: c + i, 1.0, unroll=unroll))


def test_a_negative_unroll_is_refused():
    with pytest.raises(ValueError, match="unroll must not be negative"):
        mw.lax.scan(lambda c, x: (c, x), 0.0, mnp.ones(3), unroll=-1)


@pytest.mark.parametrize("groups", [[[0], [3, 1, 2]], [[0, 3], [1, 2]], [[2], [0], [1], [3]]])
def test_groups_of_several_sizes(groups):
    x = numbers(4, 3)
    for name, oracle in {"psum": np.sum, "pmax": np.max, "pmin": np.min, "pmean": np.mean}.items():
        reduced = mw.vmap(partial(getattr(mw.lax, name), axis_name="i", axis_index_groups=groups), axis_name="i")
        expected = np.empty_like(x)
        for group in groups:
            expected[group] = oracle(x[group], axis=0)
        np.testing.assert_allclose(reduced(x), expected, rtol=1e-5)
    counts = mw.vmap(lambda v: mw.lax.psum(1, "i", axis_index_groups=groups) + 0 * v, axis_name="i")(mnp.zeros(4))
    assert counts.tolist() == [next(len(g) for g in groups if i in g) for i in range(4)]


def test_gradients_of_groups_of_several_sizes():
    groups = [[0], [1, 2]]
    weights = numbers(3)

    def loss(x):
        return (weights * mw.vmap(lambda v: mw.lax.psum(v**2, "i", axis_index_groups=groups), axis_name="i")(x)).sum()

    x = numbers(3, seed=1)
    spread = np.array([weights[0], weights[1:].sum(), weights[1:].sum()])
    np.testing.assert_allclose(mw.grad(loss)(x), 2 * x * spread, rtol=1e-5)


@pytest.mark.parametrize("name", ["all_gather", "psum_scatter"])
def test_groups_of_several_sizes_have_no_common_shape(name):
    with pytest.raises(ValueError, match="of one size"):
        mw.vmap(lambda v: getattr(mw.lax, name)(v, "i", axis_index_groups=[[0], [1, 2]]), axis_name="i")(mnp.ones(3))


# --- numpy --------------------------------------------------------------------------------------------------
PROGRAMS = {
    "piecewise": lambda p, n: p.jit(lambda x: n.piecewise(x, [x < 0, x > 1], [lambda v: -v, 2.0, lambda v: v + 1]))(
        n.arange(4.0) - 1
    ),
    "piecewise of a stack": lambda p, n: p.jit(
        lambda x: n.piecewise(x, n.stack([x < 0, x > 1]), [-1, 1, lambda v, k: v + k], k=3)
    )(n.arange(4.0) - 1),
    "reduce": lambda p, n: p.jit(lambda x, i: p.lax.reduce(x, i, p.lax.add, (0,)))(n.arange(4.0), 2.0),
    "reduce by a function": lambda p, n: p.jit(lambda x, i: p.lax.reduce(x, i, lambda a, b: a + b + a * b, (0,)))(
        n.arange(4.0), 2.0
    ),
    "einsum with a path": lambda p, n: n.einsum(
        "ij,jk,kl", numbers(2, 3), numbers(3, 4), numbers(4, 5), optimize=[(1, 2), (0, 1)]
    ),
    "einsum_path": lambda p, n: n.einsum_path("ij,jk,kl", numbers(2, 3), numbers(3, 4), numbers(4, 5))[0],
    "poly of a matrix": lambda p, n: n.poly(n.array([[1.0, 2.0], [-2.0, 5.0]])),
    "insert": lambda p, n: p.jit(lambda x, i: n.insert(x, i, 9.0))(n.arange(4.0), 2),
    "insert behind": lambda p, n: p.jit(lambda x, i: n.insert(x, i, 9.0))(n.arange(4.0), 4),
    "insert before the end": lambda p, n: p.jit(lambda x, i: n.insert(x, i, 9.0))(n.arange(4.0), -1),
    "insert far outside": lambda p, n: p.jit(lambda x, i: n.insert(x, i, 9.0))(n.arange(4.0), np.array([-30, 30])),
    "insert several": lambda p, n: p.jit(lambda x, i: n.insert(x, i, n.array([7.0, 8.0, 9.0])))(
        n.arange(4.0), np.array([3, 1, 3])
    ),
    "insert columns": lambda p, n: p.jit(lambda x, i: n.insert(x, i, 9.0, axis=1))(numbers(2, 4), np.array([1, 3])),
    "delete": lambda p, n: p.jit(lambda x, i: n.delete(x, i, assume_unique_indices=True))(
        n.arange(6.0), np.array([-1, 2])
    ),
    "delete columns": lambda p, n: p.jit(lambda x, i: n.delete(x, i, axis=1, assume_unique_indices=True))(
        numbers(2, 5), np.array([4, 0, 1])
    ),
    "array of a buffer": lambda p, n: n.array(memoryview(np.arange(3.0, dtype="float32"))),
    "array of an array.array": lambda p, n: n.asarray(array.array("f", [1, 2])),
    "tuples as an index": lambda p, n: n.arange(12).reshape(3, 4)[(0, 1), (1, 2)],
    "a tuple behind a slice": lambda p, n: n.arange(12).reshape(3, 4)[:, (0, 3)],
    "nothing as an index": lambda p, n: n.arange(12).reshape(3, 4)[:, ()],
    "traced integers in lists": lambda p, n: p.jit(lambda i: n.arange(12).reshape(3, 4)[[i, 1], (0, i)])(2),
    "set at tuples": lambda p, n: n.arange(12).reshape(3, 4).at[(0, 1), (1, 2)].set(0),
    "one_hot of a list": lambda p, n: p.nn.one_hot([1, 2], 3),
    "a size as a shape": lambda p, n: p.lax.reshape(n.ones((2, 3)), 6),
    "a size of a slice": lambda p, n: p.lax.dynamic_slice(n.arange(4), [1], 2),
    "a size of a count": lambda p, n: p.lax.broadcasted_iota(np.int32, 3, 0),
    "new core dimensions": lambda p, n: n.vectorize(lambda x: (x[:2], 1.0), signature="(n)->(k),()")(n.ones((2, 3))),
    "single dimensions of a product": lambda p, n: p.lax.dot_general(
        numbers(2, 3), numbers(3, 2), ((1, 0), ((), ()))
    ),
    "a single batch dimension": lambda p, n: p.lax.dot_general(numbers(2, 3), numbers(2, 3), ((1, 1), (0, 0))),
    "exchanged dimensions": lambda p, n: p.lax.broadcast_in_dim(numbers(2, 3), (4, 3, 2), (2, 1)),
    "steps that are a float": lambda p, n: p.lax.scan(lambda c, x: (c + 1, c), 0, None, length=4.0),
    "a list of a tuple": lambda p, n: p.pure_callback(lambda x: (x, x), [np.float32(0), np.float32(0)], 1.0),
    "of one device": lambda p, n: p.pure_callback(
        lambda x: x, np.float32(0), 1.0, sharding=p.sharding.SingleDeviceSharding(p.devices()[0])
    ),
    "to a format": lambda p, n: p.device_put(n.arange(3), n.arange(3).format),
    "jit to a format": lambda p, n: p.jit(lambda x: x + 1, in_shardings=n.arange(3).format)(n.arange(3)),
    "blocks with scales": lambda p, n: p.jit(
        lambda x, y, s, t: p.lax.scaled_dot(x, y, lhs_scale=s, rhs_scale=t).astype("float32")
    )(*(n.asarray(2 * numbers(*shape), "float8_e4m3fn") for shape in ((2, 3, 8), (2, 8, 5), (2, 3, 2), (2, 4, 5)))),
    "blocks with scales on one side": lambda p, n: p.lax.scaled_dot(
        numbers(3, 8), numbers(8, 5), lhs_scale=2 ** n.round(numbers(3, 4)), preferred_element_type="bfloat16"
    ).astype("float32"),
    "a large number folded in": lambda p, n: p.random.fold_in(p.random.PRNGKey(0), 2**32 - 1),
    "array of bytes": lambda p, n: n.array(bytearray(b"abc")),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_like_jax(name):
    assert_like_jax(PROGRAMS[name])


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "nansum", "nanprod", "nanmax", "nanmin"])
def test_a_traced_initial_value(name):
    assert_like_jax(lambda p, n: p.jit(lambda x, i: getattr(n, name)(x, initial=i))(n.arange(4.0), 2.0))


def test_an_initial_value_has_a_derivative():
    assert mw.grad(lambda i: mw.lax.reduce(mnp.arange(4.0), i, mw.lax.max, (0,)))(9.0).item() == 1.0


def test_a_path_with_its_name_is_taken_as_numpy_gives_it():
    args = numbers(2, 3), numbers(3, 4), numbers(4, 5)
    path = np.einsum_path("ij,jk,kl", *args)[0]
    np.testing.assert_allclose(mnp.einsum("ij,jk,kl", *args, optimize=path), np.einsum("ij,jk,kl", *args), rtol=1e-4)


@pytest.mark.parametrize("bad", [b"abc", "abc"])
def test_text_is_no_buffer(bad):
    with pytest.raises(TypeError, match="cannot make an array"):
        mnp.array(bad)


def test_pad_by_a_function():
    def edges(row, widths, axis, options):
        low = row.at[: widths[0]].set(options.get("low", 7.0)) if widths[0] else row
        return low.at[row.shape[0] - widths[1] :].set(axis) if widths[1] else low

    assert_like_jax(lambda p, n: n.pad(numbers(2, 3), ((1, 2), (2, 1)), edges))
    assert_like_jax(lambda p, n: n.pad(numbers(2, 3), 1, edges, low=9.0))


# --- attention ----------------------------------------------------------------------------------------------
Q, K, V = numbers(5, 4, 8), numbers(5, 2, 8, seed=1), numbers(5, 2, 8, seed=2)
ATTENTION = {
    "plain": {},
    "causal": {"is_causal": True, "scale": 0.5},
    "mask": {"mask": np.tri(5, dtype=bool)[None].repeat(4, 0)},
    "mask with a batch": {"mask": np.tri(5, dtype=bool)[None, None]},
    "bias": {"bias": numbers(4, 5, 5, seed=3)},
    "window": {"local_window_size": (2, 1)},
    "residual": {"return_residual": True},
    "xla": {"implementation": "xla"},
}


@pytest.mark.parametrize("case", ATTENTION)
def test_attention_without_a_batch(case):
    assert_like_jax(lambda p, n: p.nn.dot_product_attention(Q, K, V, **ATTENTION[case]))


@pytest.mark.parametrize("batched", [False, True])
def test_attention_of_given_lengths(batched):
    def program(p, n):
        lengths = {"query_seq_lengths": n.array([3]), "key_value_seq_lengths": n.array([4])}
        arrays = [n.asarray(x)[None] if batched else n.asarray(x) for x in (Q, K, V)]
        return p.nn.dot_product_attention(*arrays, **lengths)

    assert_like_jax(program)
