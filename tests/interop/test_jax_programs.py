"""Programs of flax, equinox, haiku, optax and chex through ``from_jax``: JAX's results, verified, names kept."""

import re

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax_programs  # noqa: E402

import meshwright as mw  # noqa: E402
import meshwright.numpy as mnp  # noqa: E402


def numbers(tree):
    """The arrays of a tree that were not donated, as NumPy's; keys as their words."""
    leaves = jax.tree_util.tree_leaves(tree)
    kept = [x for x in leaves if isinstance(x, mw.Array) or (isinstance(x, jax.Array) and not x.is_deleted())]
    is_key = lambda x: isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)  # noqa: E731
    return [np.asarray(jax.random.key_data(x) if is_key(x) else x, np.float64) for x in kept]


@pytest.mark.parametrize("name", jax_programs.PROGRAMS)
def test_programs_are_jaxs_and_verified_when_split(name):
    libraries, make = jax_programs.PROGRAMS[name]
    for library in libraries:
        pytest.importorskip(library, reason=f"{library} is not installed: make test-torch")
    function, args, *reference = make()
    program = mw.from_jax(function, *args)
    copied = jax.tree_util.tree_map(lambda x: x.copy() if isinstance(x, jax.Array) else x, args)
    outs = program(*args)
    want = (reference[0] if reference else function)(*copied)
    assert jax.tree_util.tree_structure(outs) == jax.tree_util.tree_structure(want)
    for got, value in zip(numbers(outs), numbers(want), strict=True):
        np.testing.assert_allclose(got, value, rtol=2e-5, atol=2e-6 * max(np.abs(value).max(), 1))
    if name == "nnx_training_step":  # which updates its arguments
        for got, value in zip(numbers(args), numbers(copied), strict=True):
            np.testing.assert_allclose(got, value, rtol=2e-5, atol=2e-6)
    assert all(re.match(r"[A-Za-z_]\w*[.\[]|[a-z_]+$", p.name) and "Arg_" not in p.name for p in program.parameters)
    part = program.partition(num_devices=None if reference else 4)
    part.verify()
    assert all(c.source.is_known for c in part.collectives)


def test_names_are_those_of_the_users_modules():
    pytest.importorskip("flax", reason="flax is not installed: make test-torch")
    pytest.importorskip("equinox", reason="equinox is not installed: make test-torch")
    expected = {
        "nnx_mlp_jitted": "model.hidden.kernel.value",
        "equinox_mlp_filter_jitted": "model.layers[0].weight",
        "linen_mlp": "variables['params']['hidden']['kernel']",
    }
    for name, parameter in expected.items():
        function, args = jax_programs.PROGRAMS[name][1]()
        assert parameter in {p.name for p in mw.from_jax(function, *args).parameters}


def test_optax_and_chex_with_our_functions_and_arrays():
    optax = pytest.importorskip("optax", reason="optax is not installed: make test-torch")
    chex = pytest.importorskip("chex", reason="chex is not installed: make test-torch")
    tx = optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(optax.linear_schedule(1e-2, 0, 9)))

    @mw.jit
    @chex.assert_max_traces(n=1)
    def gradient(p, x):
        chex.assert_shape(p["w"], (3, 4))
        return mw.grad(lambda p: (mnp.tanh(x @ p["w"]) ** 2).sum())(p)

    wave = np.arange(12, dtype="f4").reshape(3, 4) / 9
    params, x = {"w": mnp.asarray(wave)}, mnp.ones((5, 3))
    state = mw.from_jax(tx.init)(params)
    update = mw.from_jax(lambda g, s, p: (lambda u, s: (optax.apply_updates(p, u), s))(*tx.update(g, s, p)))
    theirs = {"w": jax.numpy.asarray(wave)}
    their_state, their_gradient = tx.init(theirs), jax.grad(lambda p: mw.to_jax(lambda w: gradient_of(w, x))(p["w"]))
    for _ in range(3):
        params, state = update(gradient(params, x), state, params)
        updates, their_state = tx.update(their_gradient(theirs), their_state, theirs)
        theirs = optax.apply_updates(theirs, updates)
    chex.assert_trees_all_close(params, theirs, rtol=1e-5)
    chex.assert_trees_all_equal_shapes_and_dtypes(params, theirs)
    chex.assert_tree_all_finite(params)


def gradient_of(w, x):
    return (mnp.tanh(x @ w) ** 2).sum()


def optimizers(optax):
    """Bare transformations of every kind: with schedules, masks, wrappers, several updates a step, traces of state."""
    return {
        "adamw": optax.adamw(1e-2),
        "clipped": optax.chain(optax.clip_by_global_norm(0.1), optax.adam(optax.cosine_decay_schedule(1e-2, 9))),
        "masked": optax.masked(optax.lamb(1e-2), {"w": True, "b": False}),
        "multi": optax.MultiSteps(optax.sgd(0.1, momentum=0.9), 2).gradient_transformation(),
        "lion": optax.lion(1e-2),
        "partition": optax.partition({"a": optax.adafactor(1e-2), "b": optax.rmsprop(1e-2)}, {"w": "a", "b": "b"}),
    }


@pytest.mark.parametrize("name", ["adamw", "clipped", "masked", "multi", "lion", "partition"])
def test_bare_transformations_of_optax_given_our_arrays(name):
    optax = pytest.importorskip("optax", reason="optax is not installed: make test-torch")
    chex = pytest.importorskip("chex", reason="chex is not installed: make test-torch")
    wave = {"w": np.sin(np.arange(12, dtype="f4")).reshape(3, 4), "b": np.zeros(4, "f4")}
    made = optimizers(optax)[name]
    tx, apply = mw.from_jax(made), mw.from_jax(optax.apply_updates)

    def loss(p, x):
        return (mnp.tanh(x @ p["w"] + p["b"]) ** 2).sum()

    @mw.jit
    def step(params, state, x):
        updates, state = tx.update(mw.grad(loss)(params, x), state, params)
        return apply(params, updates), state

    params, x = mw.tree.map(mnp.asarray, wave), np.ones((5, 3), "f4")
    state = tx.init(params)
    theirs = jax.tree.map(jax.numpy.asarray, wave)
    their_state = made.init(theirs)
    their_loss = lambda p: (jax.numpy.tanh(x @ p["w"] + p["b"]) ** 2).sum()  # noqa: E731
    for _ in range(3):
        params, state = step(params, state, x)
        updates, their_state = made.update(jax.grad(their_loss)(theirs), their_state, theirs)
        theirs = optax.apply_updates(theirs, updates)
    assert all(isinstance(p, mw.Array) for p in mw.tree.leaves((params, state)))
    chex.assert_trees_all_close(params, theirs, rtol=2e-5, atol=1e-6)
    chex.assert_trees_all_equal_structs(jax.tree.leaves(state), jax.tree.leaves(their_state))
    part = step.lower(params, state, x).partition(num_devices=2)
    part.verify()


def test_losses_of_optax_are_differentiated_and_batched_by_ours():
    optax = pytest.importorskip("optax", reason="optax is not installed: make test-torch")
    loss = mw.from_jax(optax.softmax_cross_entropy_with_integer_labels)
    x, labels = np.sin(np.arange(12, dtype="f4")).reshape(4, 3), np.array([0, 2, 1, 1])
    got = mw.vmap(mw.grad(lambda x, i: loss(x, i)))(x, labels)
    want = jax.vmap(jax.grad(optax.softmax_cross_entropy_with_integer_labels))(x, labels)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_arrays_of_jax_say_how_they_become_ours(refuses):
    with refuses(TypeError, "array of jax: float32 of shape (30, 40)", "from_arrays", "register_arrays()"):
        mw.jit(lambda x: x + 1)(jax.numpy.ones((30, 40)))
    with refuses(TypeError, "['a']", "from_arrays"):
        mw.grad(lambda x: x["a"].sum())({"a": jax.numpy.ones(3)})


def test_chex_asserts_of_our_arrays_in_and_out_of_traces():
    chex = pytest.importorskip("chex", reason="chex is not installed: make test-torch")

    def checked(p, x):
        chex.assert_shape(p["w"], (3, 4))
        chex.assert_rank([x, p["b"]], [2, 1])
        chex.assert_type([x, p["w"]], float)
        chex.assert_equal_shape([p["w"], 2 * p["w"]])
        chex.assert_tree_shape_prefix({"w": p["w"]}, (3,))
        chex.assert_trees_all_equal_shapes_and_dtypes(p, mw.tree.map(mnp.cos, p))
        chex.assert_tree_no_nones(p)
        return (x @ p["w"] + p["b"]).sum()

    p = {"w": mnp.ones((3, 4)), "b": mnp.zeros(4)}
    for f in (checked, mw.jit(checked), mw.grad(checked), mw.vmap(checked, in_axes=(None, None), axis_size=2)):
        chex.assert_tree_all_finite(f(p, mnp.ones((5, 3))))
    with pytest.raises(AssertionError, match="shape"):
        mw.jit(lambda x: chex.assert_shape(x, (4,)))(mnp.ones(3))
    chex.assert_trees_all_close(p, {"w": np.ones((3, 4)), "b": np.zeros(4)})
    chex.assert_axis_dimension(p["w"], 1, 4)  # traced, it asks whether something is an array of JAX's
    with pytest.raises(AssertionError, match="differ in leaves"):
        chex.assert_trees_all_close(p, {"w": np.ones((3, 4)), "b": np.ones(4)})
