"""The libraries of teaching programs, beside JAX's."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.example_libraries import optimizers as jax_optimizers
from jax.example_libraries import stax as jax_stax

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.errors import ArgumentError
from meshwright.example_libraries import optimizers, stax

RNG = np.random.default_rng(0)
PARAMS = {"w": RNG.normal(size=(3, 4)).astype("f"), "b": [RNG.normal(size=4).astype("f"), np.ones((1,), "f")]}
GRADS = [jax.tree.map(lambda x: RNG.normal(size=x.shape).astype("f"), PARAMS) for _ in range(4)]

OPTIMIZERS = {
    "sgd": lambda o: o.sgd(0.1),
    "momentum": lambda o: o.momentum(0.1, 0.9),
    "nesterov": lambda o: o.nesterov(0.1, 0.9),
    "adagrad": lambda o: o.adagrad(0.1),
    "rmsprop": lambda o: o.rmsprop(0.1),
    "rmsprop_momentum": lambda o: o.rmsprop_momentum(0.1),
    "adam": lambda o: o.adam(0.1),
    "adamax": lambda o: o.adamax(0.1),
    "sm3": lambda o: o.sm3(0.1),
    "exponential": lambda o: o.sgd(o.exponential_decay(0.1, 3, 0.5)),
    "inverse": lambda o: o.sgd(o.inverse_time_decay(0.1, 3, 0.5)),
    "staircase": lambda o: o.sgd(o.inverse_time_decay(0.1, 3, 0.5, True)),
    "polynomial": lambda o: o.sgd(o.polynomial_decay(0.1, 3, 0.01, 2.0)),
    "piecewise": lambda o: o.sgd(o.piecewise_constant([1, 2], [0.1, 0.2, 0.3])),
}


def run(library, name, jit):
    init, update, get_params = OPTIMIZERS[name](library)
    state, update = init(PARAMS), jit(update)
    for i, grads in enumerate(GRADS):
        state = update(i, grads, state)
    return state, get_params(state)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_jax(name):
    state, mine = run(optimizers, name, mw.jit)
    _, theirs = run(jax_optimizers, name, jax.jit)
    for x, y in zip(mw.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-6)
    again = optimizers.pack_optimizer_state(optimizers.unpack_optimizer_state(state))
    assert mw.tree.structure(again) == mw.tree.structure(state)


def test_states_and_gradients():
    init, update, get_params = optimizers.sm3(0.5, momentum=0.0)
    state = mw.jit(update)(0, {"a": np.float32(2)}, init({"a": np.float32(1)}))
    assert get_params(state)["a"] == 0.5 and get_params(state)["a"].shape == ()
    clipped = optimizers.clip_grads(PARAMS, 1.0)
    assert abs(float(optimizers.l2_norm(clipped)) - 1) < 1e-6
    with pytest.raises(ArgumentError, match="must be alike"):
        update(0, [np.float32(2)], state)
    with pytest.raises(ArgumentError, match="JoinPoint"):
        optimizers.pack_optimizer_state({"a": 1})
    with pytest.raises(ArgumentError, match="a value more"):
        optimizers.piecewise_constant([1], [1])
    with pytest.raises(ArgumentError, match="function of the step"):
        optimizers.sgd(np.ones(2))


#: networks, and the shapes of their inputs
NETWORKS = {
    "dense": (lambda s: s.serial(s.Dense(8), s.Relu, s.Dropout(0.7), s.Dense(3), s.LogSoftmax), (-1, 5)),
    "images": (
        lambda s: s.serial(
            s.Conv(4, (3, 3), padding="SAME"), s.BatchNorm(), s.Relu, s.MaxPool((2, 2), strides=(2, 2)),
            s.AvgPool((2, 2), padding="SAME"), s.SumPool((2, 2)), s.Flatten, s.Dense(3), s.Softmax,
        ),
        (2, 6, 6, 3),
    ),
    "branches": (
        lambda s: s.serial(
            s.FanOut(2), s.parallel(s.Dense(5), s.Identity), s.FanInSum, s.FanOut(2),
            s.parallel(s.Tanh, s.shape_dependent(lambda shape: s.Dense(shape[-1]))), s.FanInConcat(),
        ),
        (-1, 5),
    ),
    "transposed": (lambda s: s.serial(s.ConvTranspose(4, (3, 3), (2, 2), "SAME"), s.Selu), (-1, 4, 5, 3)),
    "lines": (lambda s: s.serial(s.Conv1DTranspose(4, (3,), strides=(2,)), s.Softplus, s.Gelu), (-1, 4, 3)),
    "normal": (lambda s: s.serial(s.BatchNorm(0, center=False), s.BatchNorm((0,), scale=False)), (-1, 3)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_those_of_jax(name):
    make, shape = NETWORKS[name]
    (init, apply), (jax_init, jax_apply) = make(stax), make(jax_stax)
    key, jax_key = mw.random.PRNGKey(3), jax.random.PRNGKey(3)
    (out, params), (jax_out, jax_params) = init(key, shape), jax_init(jax_key, shape)
    assert out == jax_out
    for x, y in zip(mw.tree.leaves(params), jax.tree.leaves(jax_params), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    x = RNG.normal(size=[7 if n == -1 else n for n in shape]).astype("f")
    mine, theirs = mw.jit(apply)(params, x, rng=key), jax_apply(jax_params, jnp.asarray(x), rng=jax_key)
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_any_number_of_inputs():
    init, _ = stax.serial(stax.Conv(2, (3, 3)), stax.MaxPool((2, 2)), stax.Flatten)
    assert init(mw.random.key(0), (-1, 5, 5, 1))[0] == (-1, 8)
    with pytest.raises(ArgumentError, match="needs a key"):
        stax.Dropout(0.5)[1]((), mnp.ones(3))
