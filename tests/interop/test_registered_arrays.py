"""Our arrays as arguments of JAX's, optax's and chex's functions, and JAX's as arguments of ours."""

import pickle

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
import jax.numpy as jnp  # noqa: E402
from jax.sharding import PartitionSpec  # noqa: E402

import meshwright as mw  # noqa: E402
import meshwright.numpy as mnp  # noqa: E402
from meshwright import errors  # noqa: E402
from meshwright.interop.jax import registered  # noqa: E402
from meshwright.ir.tracing import FOREIGN, ArrayMethods, Tracer  # noqa: E402
from meshwright.sharding import Sharding  # noqa: E402


@pytest.fixture(autouse=True)
def registered_here(monkeypatch):
    """The registration, of which nothing of ours is left for tests after these."""
    bases = {kind: kind.__bases__ for kind in (ArrayMethods, Sharding)}
    for kind in (mw.Array, Tracer):
        monkeypatch.setattr(kind, "__jax_array__", None, raising=False)
    registered.register_arrays.cache_clear()
    mw.interop.jax.register_arrays()
    yield
    FOREIGN.clear()
    for kind, given in bases.items():
        kind.__bases__ = given


def pointer(x):
    return (x.buffer if isinstance(x, mw.Array) else x).unsafe_buffer_pointer()


X = np.arange(1, 13, dtype="f4").reshape(3, 4)


def test_both_ways_share_memory_and_keep_types():
    for dtype in ("float32", "bfloat16", "int4", "bool", "complex64", "float8_e4m3fn"):
        ours = mnp.asarray(np.arange(64) % 2, dtype=dtype)
        theirs = mw.interop.jax.to_arrays({"x": ours})["x"]
        back = mw.interop.jax.from_arrays(theirs)
        assert theirs.dtype == ours.dtype == back.dtype and type(back) is mw.Array
        np.testing.assert_array_equal(np.asarray(theirs), np.asarray(back))
        assert dtype == "int4" or pointer(ours) == pointer(theirs) == pointer(back), dtype
    assert mw.interop.jax.to_arrays(mnp.asarray(2.0)).weak_type and mnp.asarray(jnp.asarray(2.0)).weak_type
    key = mw.interop.jax.to_arrays(mw.random.key(7))
    np.testing.assert_allclose(jax.random.normal(key, 3), mw.random.normal(jax.random.key(7), (3,)), rtol=1e-6)


def test_donated_memory_of_the_other_library_is_not_written_to():
    ours, theirs = mnp.asarray(X), jnp.asarray(X)
    jax.jit(lambda x: 2 * x, donate_argnums=0)(ours).block_until_ready()
    mw.jit(lambda x: 2 * x, donate_argnums=0)(theirs).block_until_ready()
    np.testing.assert_array_equal(ours, X)
    np.testing.assert_array_equal(theirs, X)


def calls(library, numpy):
    """By both libraries' names."""
    return {
        "jit": lambda x: library.jit(lambda x: x * 2 + 1)(x),
        "grad": library.grad(lambda x: (x * x).sum()),
        "vmap": library.vmap(lambda x: x.sum()),
        "sin": numpy.sin,
        "where": lambda x: numpy.where(x > 2, x, 0),
        "concatenate": lambda x: numpy.concatenate([x, x]),
        "stack": lambda x: numpy.stack([x, x]),
        "zeros_like": numpy.zeros_like,
        "full": lambda x: numpy.full((2,), x[0, 0]),
        "closed over": lambda x: library.jit(lambda y: x + y * x)(numpy.ones((3, 4))),
    }


THEIRS = calls(jax, jnp) | {
    "operators": lambda x: jnp.ones((4, 3)) @ x - x.sum() / (x[0] * jnp.ones(4)),
    "index": lambda x: jnp.arange(20.0)[mw.interop.jax.from_arrays(jnp.asarray(x)).astype("int32")],
    "scan": lambda x: jax.lax.scan(lambda c, row: (c + row, c), jnp.zeros(4), x)[1],
    "device_put": jax.device_put,
}


@pytest.mark.parametrize("name", THEIRS)
def test_jaxs_functions_take_ours(name):
    got = THEIRS[name](mnp.asarray(X))
    assert type(got) is type(jnp.ones(1))
    np.testing.assert_allclose(got, THEIRS[name](jnp.asarray(X)), rtol=1e-6)


OURS = calls(mw, mnp) | {
    "index": lambda x: mnp.arange(20.0)[jnp.asarray(x).astype("int32")],
    "scan": lambda x: mw.lax.scan(lambda c, row: (c + row, c), mnp.zeros(4), x)[1],
    "cond": lambda x: mw.lax.cond(x[0, 0] > 0, mnp.sin, mnp.cos, x),
    "vjp": lambda x: mw.vjp(mnp.sin, x)[1](x)[0],
    "mesh": lambda x: mw.device_put(x, mw.NamedSharding(mw.make_mesh((3,), ("a",)), mw.P("a"))) + 1,
}


@pytest.mark.parametrize("name", OURS)
def test_our_functions_take_jaxs(name):
    got = OURS[name](jnp.asarray(X))
    assert type(got) is mw.Array
    np.testing.assert_allclose(got, OURS[name](mnp.asarray(X)), rtol=1e-6)


def test_what_instances_are():
    x = mnp.asarray(X)
    assert isinstance(x, jax.Array) and isinstance(x, mw.Array) and type(x) is mw.Array
    assert not isinstance(jnp.ones(1), mw.Array) and type(pickle.loads(pickle.dumps(x))) is mw.Array
    assert not isinstance(x.sharding, jax.sharding.Sharding)
    inside = []
    mw.jit(lambda x: (inside.append(isinstance(x, jax.Array)), x)[1])(x)
    assert inside == [True]


def test_arrays_on_virtual_meshes_are_taken_whole():
    x = mw.device_put(X[:2], mw.NamedSharding(mw.make_mesh((2,), ("a",)), mw.P("a")))
    np.testing.assert_array_equal(jax.jit(lambda x: x + 1)(x), X[:2] + 1)
    np.testing.assert_array_equal(jnp.zeros_like(x), 0 * X[:2])
    assert PartitionSpec() != x.sharding.spec


def test_what_we_trace_is_refused_by_jax_with_the_remedy(refuses):
    x = mnp.asarray(X)
    with refuses(errors.RuleError, "meshwright.numpy", "from_jax"):
        mw.jit(lambda x: jax.jit(jnp.sin)(x))(x)
    with pytest.raises(Exception, match=r"meshwright.numpy or meshwright.lax"):
        mw.jit(lambda x: jnp.add(jnp.ones((3, 4)), x))(x)
    # Operators leave it to ours.
    np.testing.assert_allclose(mw.jit(lambda x: jnp.ones((3, 4)) + x * jnp.ones(4))(x), X + 1)


def test_another_release_of_jax_is_refused_by_name(monkeypatch, refuses):
    monkeypatch.setattr(registered, "_NEEDED", ((registered._CORE, "no_such_table"),))
    registered.register_arrays.cache_clear()
    with refuses(errors.MissingExtraError, "no_such_table", "install 'jax>=", "to_arrays"):
        mw.interop.jax.register_arrays()


# --- libraries around JAX -----------------------------------------------------------------------------------
TRANSFORMATIONS = {
    "adamw": lambda optax: optax.adamw(1e-2),
    "sgd": lambda optax: optax.sgd(optax.cosine_decay_schedule(0.1, 10), momentum=0.9, nesterov=True),
    "adafactor": lambda optax: optax.adafactor(1e-2, min_dim_size_to_factor=2),
    "clipped lion": lambda optax: optax.chain(optax.clip_by_global_norm(0.5), optax.lion(1e-3)),
    "masked": lambda optax: optax.chain(
        optax.masked(optax.add_decayed_weights(0.1), {"w": True, "b": False}), optax.rmsprop(1e-2)
    ),
}


def of_model(np_, params, x, y):
    return np_.mean((np_.tanh(x @ params["w"]) + params["b"] - y) ** 2)


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_training_with_bare_transformations_of_optax(name):
    optax = pytest.importorskip("optax", reason="optax is not installed")
    x, y = X, np.sin(np.arange(6, dtype="f4")).reshape(3, 2)
    initial = {"w": np.linspace(-0.5, 0.5, 8, dtype="f4").reshape(4, 2), "b": np.zeros(2, "f4")}

    def trained(np_, value_and_grad, asarray):
        tx = TRANSFORMATIONS[name](optax)
        params = {k: asarray(v) for k, v in initial.items()}
        state, losses = tx.init(params), []
        for _ in range(4):
            loss, grads = value_and_grad(lambda p: of_model(np_, p, x, y))(params)
            updates, state = tx.update(grads, state, params)
            params = optax.apply_updates(params, updates)
            losses.append(float(loss))
        return losses, params

    got, ours = trained(mnp, lambda f: mw.jit(mw.value_and_grad(f)), mnp.asarray)
    want, theirs = trained(jnp, lambda f: jax.jit(jax.value_and_grad(f)), jnp.asarray)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    for k in initial:
        np.testing.assert_allclose(ours[k], theirs[k], rtol=1e-6, atol=1e-6)


def passing(chex, x):
    """Assertions of chex's for arrays, of which each holds for ``x``, an array of 3 by 4 numbers."""
    y, tree = x + 0, {"a": x, "b": [x[0]]}
    return {
        "assert_axis_dimension": lambda: chex.assert_axis_dimension(x, 1, 4),
        "assert_axis_dimension_gt": lambda: chex.assert_axis_dimension_gt(x, 1, 3),
        "assert_axis_dimension_gteq": lambda: chex.assert_axis_dimension_gteq(x, 1, 4),
        "assert_axis_dimension_lt": lambda: chex.assert_axis_dimension_lt(x, 1, 5),
        "assert_axis_dimension_lteq": lambda: chex.assert_axis_dimension_lteq(x, 1, 4),
        "assert_equal_rank": lambda: chex.assert_equal_rank([x, y]),
        "assert_equal_shape": lambda: chex.assert_equal_shape([x, y]),
        "assert_equal_shape_prefix": lambda: chex.assert_equal_shape_prefix([x, y], 1),
        "assert_equal_shape_suffix": lambda: chex.assert_equal_shape_suffix([x, y], 1),
        "assert_equal_size": lambda: chex.assert_equal_size([x, y]),
        "assert_is_broadcastable": lambda: chex.assert_is_broadcastable(x[0].shape, x.shape),
        "assert_rank": lambda: chex.assert_rank([x, y], 2),
        "assert_shape": lambda: chex.assert_shape(x, (3, ...)),
        "assert_size": lambda: chex.assert_size(x, 12),
        "assert_type": lambda: chex.assert_type([x, y], "float32"),
        "assert_tree_has_only_ndarrays": lambda: chex.assert_tree_has_only_ndarrays(tree),
        "assert_tree_no_nones": lambda: chex.assert_tree_no_nones(tree),
        "assert_tree_shape_prefix": lambda: chex.assert_tree_shape_prefix(tree["b"], (4,)),
        "assert_tree_shape_suffix": lambda: chex.assert_tree_shape_suffix(tree, (4,)),
        "assert_trees_all_equal_dtypes": lambda: chex.assert_trees_all_equal_dtypes(tree, tree),
        "assert_trees_all_equal_shapes": lambda: chex.assert_trees_all_equal_shapes(tree, tree),
        "assert_trees_all_equal_shapes_and_dtypes": lambda: chex.assert_trees_all_equal_shapes_and_dtypes(tree, tree),
        "assert_trees_all_equal_sizes": lambda: chex.assert_trees_all_equal_sizes(tree, tree),
        "assert_trees_all_equal_structs": lambda: chex.assert_trees_all_equal_structs(tree, tree),
    }


def passing_with_values(chex, x):
    y, tree = x + 0, {"a": x, "b": [x[0]]}
    twice = {"a": y, "b": [y[0]]}
    return {
        "assert_numerical_grads ": lambda: chex.assert_numerical_grads(
            mw.to_jax(lambda x: mnp.tanh(x / 9).sum()), (x,), order=1, modes=["rev"]
        ),
        "assert_numerical_grads": lambda: chex.assert_numerical_grads(lambda x: (x * x * x).sum() / 100, (x,), order=1),
        "assert_scalar_in": lambda: chex.assert_scalar_in(x[0, 0].item(), 0, 2),
        "assert_tree_all_finite": lambda: chex.assert_tree_all_finite(tree),
        "assert_tree_is_on_device": lambda: chex.assert_tree_is_on_device(tree, platform="cpu"),
        "assert_tree_is_on_host": lambda: chex.assert_tree_is_on_host(tree, allow_cpu_device=True),
        "assert_trees_all_close": lambda: chex.assert_trees_all_close(tree, twice),
        "assert_trees_all_close_ulp": lambda: chex.assert_trees_all_close_ulp(tree, twice),
        "assert_trees_all_equal": lambda: chex.assert_trees_all_equal(tree, twice),
        "assert_trees_all_equal_comparator": lambda: chex.assert_trees_all_equal_comparator(
            lambda a, b: bool((a == b).all()), lambda a, b: "differ", tree, twice
        ),
    }


def test_all_assertions_of_chex_hold_for_arrays():
    chex = pytest.importorskip("chex", reason="chex is not installed")
    for name, holds in {**passing(chex, mnp.asarray(X)), **passing_with_values(chex, mnp.asarray(X))}.items():
        holds()
        assert name.strip() in dir(chex)
    mw.jit(mw.grad(lambda x: ([check() for check in passing(chex, x).values()], x.sum())[1]))(mnp.asarray(X))


def test_assertions_of_chex_fail_where_they_should():
    chex = pytest.importorskip("chex", reason="chex is not installed")
    x = mnp.asarray(X)
    on_mesh = mw.device_put(X[:2], mw.NamedSharding(mw.make_mesh((2,), ("a",)), mw.P("a")))
    chex.assert_tree_is_sharded(on_mesh, devices=list(on_mesh.sharding.devices))
    for fails in (
        lambda: chex.assert_axis_dimension(x, 1, 3),
        lambda: chex.assert_tree_is_on_host({"a": x}, allow_cpu_device=False),
        lambda: chex.assert_tree_is_on_device(x, platform="tpu"),
        lambda: chex.assert_tree_is_sharded(x, devices=[]),
        lambda: chex.assert_tree_is_on_device(on_mesh, platform="cpu"),
        lambda: chex.assert_trees_all_close({"a": x}, {"a": x + 1}),
        lambda: chex.assert_tree_all_finite({"a": x / 0}),
        lambda: chex.assert_numerical_grads(mw.to_jax(_wrong_gradient), (x,), order=1, modes=["rev"]),
    ):
        with pytest.raises(AssertionError):
            fails()


@mw.custom_vjp
def _wrong_gradient(x):
    return (x * x).sum()


_wrong_gradient.defvjp(lambda x: (_wrong_gradient(x), x), lambda x, ct: (3 * x * ct,))


def test_functions_of_ours_in_transformations_of_jax_are_refused_with_the_remedy(refuses):
    with refuses(errors.ArgumentTypeError, "JAX is tracing it", "to_jax(f)"):
        jax.grad(lambda x: mw.jit(mnp.sin)(x).sum())(mnp.asarray(X))
    with refuses(errors.ArgumentTypeError, "JAX is tracing it", "to_jax(f)"):
        jax.grad(lambda x: mnp.sin(x).sum())(mnp.asarray(X))
