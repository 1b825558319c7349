"""Programs of the libraries around JAX, small: each makes (function, arguments), as its users write it.

Where JAX itself needs devices for it, a third part is what the function is on one.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

PROGRAMS = {}


def program(*libraries):
    """Add a program to the table, which needs these libraries."""

    def add(make):
        PROGRAMS[make.__name__] = libraries, make
        return make

    return add


def _data(batch=8, features=6, classes=4):
    x = jnp.sin(jnp.arange(batch * features, dtype=jnp.float32)).reshape(batch, features)
    return x, jnp.arange(batch) % classes


def _cross_entropy(logits, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], -1).mean()


# --- flax.linen ---------------------------------------------------------------------------------------------
@program("flax")
def linen_mlp():
    import flax.linen as nn

    class MLP(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(4, name="head")(nn.gelu(nn.Dense(16, name="hidden")(x)))

    x, _ = _data()
    return MLP().apply, (MLP().init(jax.random.key(0), x), x)


@program("flax")
def linen_cnn_with_batch_norm():
    import flax.linen as nn

    class CNN(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Conv(8, (3, 3), use_bias=False)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=False)(x))
            x = nn.avg_pool(x, (2, 2), strides=(2, 2))
            return nn.Dense(4)(x.reshape(x.shape[0], -1))

    x = jnp.cos(jnp.arange(8 * 8 * 8 * 2, dtype=jnp.float32)).reshape(8, 8, 8, 2)
    variables = CNN().init(jax.random.key(0), x)

    def step(variables, x):
        def loss(params):
            out, state = CNN().apply({**variables, "params": params}, x, mutable=["batch_stats"])
            return (out**2).mean(), state

        return jax.value_and_grad(loss, has_aux=True)(variables["params"])

    return step, (variables, x)


@program("flax")
def linen_attention_with_dropout():
    import flax.linen as nn

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            y = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(num_heads=2, dropout_rate=0.1, deterministic=False)(y, y)
            return nn.Dropout(0.5, deterministic=False)(x)

    x = _data(8, 5 * 8)[0].reshape(8, 5, 8)
    variables = Block().init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, x)
    return lambda v, x, key: Block().apply(v, x, rngs={"dropout": key}), (variables, x, jax.random.key(2))


@program("flax")
def linen_scanned_and_checkpointed_layers():
    import flax.linen as nn

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return x + nn.Dense(x.shape[-1])(jnp.tanh(x)), None

    class Stack(nn.Module):
        @nn.compact
        def __call__(self, x):
            layers = nn.scan(nn.remat(Layer), variable_axes={"params": 0}, split_rngs={"params": True}, length=4)
            return layers(name="layers")(x, None)[0]

    x, _ = _data()
    variables = Stack().init(jax.random.key(0), x)
    return jax.grad(lambda v, x: (Stack().apply(v, x) ** 2).sum()), (variables, x)


@program("flax")
def linen_lstm():
    import flax.linen as nn

    x = _data(8, 5 * 3)[0].reshape(8, 5, 3)
    cell = nn.RNN(nn.LSTMCell(6))
    variables = cell.init(jax.random.key(0), x)
    return jax.value_and_grad(lambda v, x: (cell.apply(v, x) ** 2).mean()), (variables, x)


@program("flax", "optax")
def linen_train_state():
    import flax.linen as nn
    import optax
    from flax.training.train_state import TrainState

    x, labels = _data()
    model = nn.Sequential([nn.Dense(16), nn.relu, nn.Dense(4)])
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-2, 10)))
    state = TrainState.create(apply_fn=model.apply, params=model.init(jax.random.key(0), x)["params"], tx=tx)

    def train_step(state, x, labels):
        of = lambda p: _cross_entropy(state.apply_fn({"params": p}, x), labels)  # noqa: E731
        loss, grads = jax.value_and_grad(of)(state.params)
        return state.apply_gradients(grads=grads), loss

    return jax.jit(train_step, donate_argnums=0), (state, x, labels)


# --- flax.nnx -----------------------------------------------------------------------------------------------
@program("flax")
def nnx_mlp_jitted():
    from flax import nnx

    class MLP(nnx.Module):
        def __init__(self, rngs):
            self.hidden, self.head = nnx.Linear(6, 16, rngs=rngs), nnx.Linear(16, 4, rngs=rngs)

        def __call__(self, x):
            return self.head(nnx.relu(self.hidden(x)))

    return nnx.jit(lambda model, x: model(x)), (MLP(nnx.Rngs(0)), _data()[0])


@program("flax", "optax")
def nnx_training_step():
    import optax
    from flax import nnx

    class MLP(nnx.Module):
        def __init__(self, rngs):
            self.hidden, self.norm = nnx.Linear(6, 16, rngs=rngs), nnx.BatchNorm(16, rngs=rngs)
            self.head = nnx.Linear(16, 4, rngs=rngs)

        def __call__(self, x):
            return self.head(nnx.relu(self.norm(self.hidden(x))))

    model = MLP(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(1e-1, momentum=0.9), wrt=nnx.Param)

    @nnx.jit
    def train_step(model, optimizer, x, labels):
        loss, grads = nnx.value_and_grad(lambda m: _cross_entropy(m(x), labels))(model)
        optimizer.update(model, grads)
        return loss

    return train_step, (model, optimizer, *_data())


@program("flax")
def nnx_scan_over_layers():
    from flax import nnx

    @nnx.vmap(in_axes=0, out_axes=0)
    def layers(key):
        return nnx.Linear(6, 6, rngs=nnx.Rngs(key))

    graph, state = nnx.split(layers(jax.random.split(jax.random.key(0), 3)))

    def forward(state, x):
        return jax.lax.scan(lambda x, s: (jnp.tanh(nnx.merge(graph, s)(x)), None), x, state)[0].sum()

    return jax.grad(forward), (state, _data()[0])


# --- equinox ------------------------------------------------------------------------------------------------
@program("equinox")
def equinox_mlp_filter_jitted():
    import equinox as eqx

    model = eqx.nn.MLP(6, 4, 16, 2, key=jax.random.key(0))
    return eqx.filter_jit(lambda model, x: jax.vmap(model)(x)), (model, _data()[0])


@program("equinox", "optax")
def equinox_training_step():
    import equinox as eqx
    import optax

    model = eqx.nn.Sequential([
        eqx.nn.Linear(6, 16, key=jax.random.key(0)), eqx.nn.Lambda(jax.nn.silu), eqx.nn.LayerNorm(16),
        eqx.nn.Linear(16, 4, key=jax.random.key(1)),
    ])  # fmt: skip
    tx = optax.lamb(1e-2)

    @eqx.filter_jit
    def train_step(model, state, x, labels):
        loss, grads = eqx.filter_value_and_grad(lambda m: _cross_entropy(jax.vmap(m)(x), labels))(model)
        updates, state = tx.update(grads, state, eqx.filter(model, eqx.is_array))
        return eqx.apply_updates(model, updates), state, loss

    return train_step, (model, tx.init(eqx.filter(model, eqx.is_array)), *_data())


@program("equinox")
def equinox_gru_scanned():
    import equinox as eqx

    cell = eqx.nn.GRUCell(3, 6, key=jax.random.key(0))
    params, static = eqx.partition(cell, eqx.is_array)

    def forward(params, x):
        cell = eqx.combine(params, static)
        run = lambda rows: jax.lax.scan(lambda h, r: (cell(r, h), None), jnp.zeros(6), rows)[0]  # noqa: E731
        return (jax.vmap(run)(x) ** 2).mean()

    return jax.value_and_grad(forward), (params, _data(8, 15)[0].reshape(8, 5, 3))


@program("equinox")
def equinox_attention():
    import equinox as eqx

    attention = eqx.nn.MultiheadAttention(2, 8, key=jax.random.key(0))
    x = _data(8, 5 * 8)[0].reshape(8, 5, 8)
    return eqx.filter_jit(lambda a, x: jax.vmap(lambda r: a(r, r, r))(x)), (attention, x)


# --- haiku --------------------------------------------------------------------------------------------------
@program("haiku")
def haiku_mlp():
    import haiku as hk

    forward = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([16, 16, 4])(x)))
    x, _ = _data()
    return forward.apply, (forward.init(jax.random.key(0), x), x)


@program("haiku")
def haiku_convolution_with_state():
    import haiku as hk

    def net(x):
        x = hk.Conv2D(8, 3)(x)
        x = jax.nn.relu(hk.BatchNorm(True, True, 0.9)(x, is_training=True))
        return hk.Linear(4)(hk.Flatten()(hk.MaxPool(2, 2, "SAME")(x)))

    forward = hk.without_apply_rng(hk.transform_with_state(net))
    x = jnp.cos(jnp.arange(8 * 8 * 8 * 2, dtype=jnp.float32)).reshape(8, 8, 8, 2)
    return forward.apply, (*forward.init(jax.random.key(0), x), x)


# --- JAX's own means ----------------------------------------------------------------------------------------
@program()
def scan_of_checkpointed_blocks():
    def forward(w, x):
        block = jax.checkpoint(lambda x, w: (x + jnp.sin(x @ w), None))
        return (jax.lax.scan(block, x, w)[0] ** 2).sum()

    w = jnp.cos(jnp.arange(4 * 6 * 6, dtype=jnp.float32)).reshape(4, 6, 6) / 4
    return jax.value_and_grad(forward), (w, _data()[0])


@program()
def while_loop_and_branches():
    def f(x):
        x = jax.lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, jnp.tanh(c[1]) + 0.1), (0, x))[1]
        return jax.lax.switch(jnp.argmax(x[:, 0]) % 3, [jnp.sin, jnp.cos, lambda x: x * x], x)

    return f, (_data()[0],)


@program()
def shard_map_with_a_sum():
    from jax.sharding import AbstractMesh
    from jax.sharding import PartitionSpec as P

    mesh = AbstractMesh((4,), ("data",))

    def inner(w, x):
        return jax.lax.pmean((x @ w).sum(), "data"), jax.lax.all_gather(x, "data", tiled=True).sum(0)

    f = jax.shard_map(inner, mesh=mesh, in_specs=(P(), P("data")), out_specs=(P(), P()), check_vma=False)
    return jax.jit(f), (jnp.eye(6) * 2, _data()[0]), lambda w, x: ((x @ w).sum() / 4, x.sum(0))


@program()
def mixture_of_experts():
    def forward(p, x):
        gates = jax.nn.softmax(x @ p["router"])
        weight, chosen = jax.lax.top_k(gates, 2)
        slots = jax.nn.one_hot(chosen, 4) * weight[..., None]  # token, choice, expert
        h = jax.nn.relu(jnp.einsum("tf,efh->eth", x, p["up"]))
        out = jnp.einsum("eth,ehf,tke->tf", h, p["down"], slots)
        return (out**2).mean() + 0.01 * (gates.mean(0) ** 2).sum()

    wave = lambda *s: jnp.sin(jnp.arange(float(jnp.prod(jnp.array(s))))).reshape(s)  # noqa: E731
    p = {"router": wave(6, 4), "up": wave(4, 6, 8), "down": wave(4, 8, 6)}
    return jax.value_and_grad(forward), (p, _data()[0])


@program()
def ragged_experts():
    def forward(p, x):
        chosen = jnp.argmax(x @ p["router"], -1)
        order = jnp.argsort(chosen)
        sizes = jnp.bincount(chosen, length=4)
        y = jax.lax.ragged_dot(x[order], p["up"], sizes)
        return jnp.zeros_like(y).at[order].set(y)

    wave = lambda *s: jnp.sin(jnp.arange(float(jnp.prod(jnp.array(s))))).reshape(s)  # noqa: E731
    return forward, ({"router": wave(6, 4), "up": wave(4, 6, 8)}, _data()[0])


@program("optax")
def optax_per_example_clipping_and_accumulation():
    import optax

    tx = optax.MultiSteps(optax.chain(optax.add_decayed_weights(1e-2), optax.adafactor(1e-2)), 2)
    params = {"w": jnp.cos(jnp.arange(24.0)).reshape(6, 4), "b": jnp.zeros(4)}

    def step(params, state, x, labels):
        for _ in range(2):
            grads = jax.grad(lambda p: _cross_entropy(x @ p["w"] + p["b"], labels))(params)
            updates, state = tx.update(grads, state, params)
            params = optax.apply_updates(params, updates)
        return params, state

    return step, (params, tx.init(params), *_data())


@program("chex", "optax")
def chex_dataclasses():
    import chex
    import optax

    @chex.dataclass
    class State:
        w: chex.Array
        count: chex.Array

    def step(state, x, labels):
        chex.assert_shape(state.w, (6, 4))
        chex.assert_equal_shape_prefix([x, labels], 1)
        of = lambda w: optax.softmax_cross_entropy_with_integer_labels(x @ w, labels).mean()  # noqa: E731
        loss, grads = jax.value_and_grad(of)(state.w)
        return state.replace(w=state.w - 0.1 * grads, count=state.count + 1), loss

    return step, (State(w=jnp.cos(jnp.arange(24.0)).reshape(6, 4), count=jnp.zeros((), jnp.int32)), *_data())
