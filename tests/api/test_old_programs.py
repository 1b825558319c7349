"""Programs as people wrote them from 2021 to 2024: the import is swapped, nothing else is."""

import functools
from typing import NamedTuple

import numpy as np
import pytest

import meshwright as jax
import meshwright.numpy as jnp
from meshwright import errors, lax
from meshwright.experimental import PartitionSpec, maps, mesh_utils, multihost_utils
from meshwright.experimental.maps import Mesh, xmap
from meshwright.experimental.pjit import AUTO, pjit, with_sharding_constraint
from meshwright.experimental.shard_map import shard_map
from meshwright.interpreters import pxla, sharded_jit, xla
from meshwright.lib import xla_bridge, xla_client, xla_extension
from meshwright.sharding import GSPMDSharding, NamedSharding, PmapSharding, PositionalSharding
from meshwright.sharding import PartitionSpec as P

N = jax.local_device_count()
RNG = np.random.default_rng(0)


def grid(*names, shape=(4, 2)):
    return Mesh(mesh_utils.create_device_mesh(shape), names)


# --- pmap ---------------------------------------------------------------------------------------------------
def test_a_line_is_fitted_with_replicated_parameters():
    class Params(NamedTuple):
        weight: jnp.ndarray
        bias: jnp.ndarray

    def loss_fn(params, xs, ys):
        return jnp.mean((params.weight * xs + params.bias - ys) ** 2)

    @functools.partial(jax.pmap, axis_name="num_devices")
    def update(params, xs, ys):
        loss, grads = jax.value_and_grad(loss_fn)(params, xs, ys)
        grads, loss = lax.pmean(grads, axis_name="num_devices"), lax.pmean(loss, axis_name="num_devices")
        return jax.tree_multimap(lambda p, g: p - g * 0.1, params, grads), loss

    xs = RNG.normal(size=(128, 1)).astype("f")
    ys = 2 * xs - 1
    params = jax.tree_map(lambda x: jnp.array([x] * N), Params(jnp.float32(0.5), jnp.float32(0)))
    split = lambda a: a.reshape(N, a.shape[0] // N, *a.shape[1:])  # noqa: E731
    for _ in range(60):
        params, loss = update(params, split(xs), split(ys))
    assert isinstance(params.weight, pxla.ShardedDeviceArray) and loss.shape == (N,)
    fitted = jax.device_get(jax.tree_map(lambda x: x[0], params))
    assert np.allclose(fitted, (2, -1), atol=1e-2)


def test_a_training_state_is_replicated_and_donated():
    """``jax_utils.replicate``, ``common_utils.shard``, a key for each device, metrics that are averaged."""

    def train_step(state, batch, rng):
        rng, new_rng = jax.random.split(rng)
        rng = jax.random.fold_in(rng, lax.axis_index("batch"))

        def loss_fn(params):
            h = jax.nn.relu(batch["image"] @ params["w"])
            h = jnp.where(jax.random.bernoulli(rng, 0.9, h.shape), h / 0.9, 0)
            onehot = jax.nn.one_hot(batch["label"], 4)
            return -jnp.mean(jnp.sum(onehot * jax.nn.log_softmax(h @ params["v"]), -1))

        loss, grads = jax.value_and_grad(loss_fn)(state["params"])
        params = jax.tree_map(lambda p, g: p - 0.5 * g, state["params"], lax.pmean(grads, "batch"))
        return {"step": state["step"] + 1, "params": params}, lax.pmean({"loss": loss}, axis_name="batch"), new_rng

    p_train_step = jax.pmap(train_step, "batch", donate_argnums=(0,))
    params = {"w": RNG.normal(size=(6, 8)).astype("f") / 3, "v": RNG.normal(size=(8, 4)).astype("f") / 3}
    state = jax.device_put_replicated({"step": 0, "params": params}, jax.local_devices())
    batch = {"image": RNG.normal(size=(N, 4, 6)).astype("f"), "label": np.arange(4 * N).reshape(N, 4) % 4}
    rng = jax.random.split(jax.random.PRNGKey(0), N)
    losses = []
    for _ in range(3):
        before = state
        state, metrics, rng = p_train_step(state, batch, rng)
        losses.append(float(jax.device_get(metrics["loss"])[0]))
    assert losses[2] < losses[0] and before["params"]["w"].is_deleted()
    assert jax.tree_map(lambda x: x[0], state)["step"] == 3
    assert state["params"]["w"].addressable_shards[3].data.shape == (1, 6, 8)


def test_maps_over_rows_and_columns():
    @functools.partial(jax.pmap, axis_name="rows")
    @functools.partial(jax.pmap, axis_name="cols")
    def normalized(x):
        return x / lax.psum(x, "rows"), x / lax.psum(x, "cols"), x / lax.psum(x, ("rows", "cols"))

    rows, cols, both = normalized(jnp.arange(8.0).reshape(4, 2))
    assert np.allclose(rows.sum(0), 1) and np.allclose(cols.sum(1), 1) and np.allclose(both.sum(), 1)


def test_collectives_of_a_map():
    x = np.arange(64).reshape(8, 8)
    ring = [(i, (i + 1) % N) for i in range(N)]

    @functools.partial(jax.pmap, axis_name="i")
    def f(row):
        groups = [[0, 1, 2, 3], [4, 5, 6, 7]]
        return (
            lax.ppermute(row, "i", perm=ring), lax.all_to_all(row, "i", 0, 0), lax.psum_scatter(row, "i"),
            lax.psum(row[0], "i", axis_index_groups=groups), lax.all_gather(row[0], "i"), lax.pswapaxes(row, "i", 0),
        )  # fmt: skip

    shifted, swapped, scattered, grouped, gathered, also_swapped = f(x)
    assert np.array_equal(shifted, np.roll(x, 1, 0)) and np.array_equal(swapped, x.T)
    assert np.array_equal(also_swapped, x.T) and np.array_equal(scattered, x.sum(0))
    assert grouped.tolist() == [48] * 4 + [176] * 4 and np.array_equal(gathered[5], x[:, 0])


# --- HLO ----------------------------------------------------------------------------------------------------
def test_from_a_function_to_its_optimized_module():
    def f(x):
        return jnp.sin(jnp.cos(x))

    computation = jax.xla_computation(f)(np.ones(4, np.float32))
    module = xla_client._xla.hlo_module_from_text(computation.as_hlo_text())
    assert module.name == "xla_computation_f"
    assert xla_client._xla.hlo_module_to_dot_graph(module).startswith("digraph")
    backend = jax.lib.xla_bridge.get_backend()
    compiled = backend.compile(computation, xla_client.CompileOptions())
    assert compiled.hlo_modules()[0].to_string().startswith("HloModule xla_computation_f, is_scheduled=true")
    (out,) = compiled.execute([backend.buffer_from_pyval(np.ones(4, np.float32))])
    np.testing.assert_allclose(out.to_py(), np.sin(np.cos(np.ones(4))), rtol=1e-6)
    again = xla_client.XlaComputation(computation.as_serialized_hlo_module_proto())
    assert again.as_hlo_text() == computation.as_hlo_text()
    assert isinstance(jnp.ones(3), xla.DeviceArray) and xla_extension.DeviceArray is xla.DeviceArray
    with pytest.raises(errors.ImportProgramError, match="expected the text of an HLO module"):
        xla_extension.hlo_module_from_text("HloModule {")


def test_a_replicated_computation_runs_on_all_devices():
    computation = jax.xla_computation(lambda x: lax.psum(x, "i"), axis_env=[("i", N)])(np.float32(0))
    options = xla_bridge.get_compile_options(num_replicas=N, num_partitions=1)
    compiled = xla_bridge.get_backend().compile(computation, options)
    backend = xla_bridge.get_backend()
    given = [[backend.buffer_from_pyval(np.float32(d.id), d) for d in compiled.local_devices()]]
    assert [float(b.to_py()) for b in compiled.execute_sharded_on_local_devices(given)[0]] == [28.0] * N


# --- pjit ---------------------------------------------------------------------------------------------------
def test_pjit_moves_what_lies_otherwise():
    mesh = maps.Mesh(np.asarray(jax.devices()).reshape(4, 2), ("x", "y"))
    data = np.arange(16).reshape(8, 2)
    f = pjit(lambda x: x, in_axis_resources=None, out_axis_resources=PartitionSpec("x", "y"))
    g = pjit(
        lambda x, y: jnp.concatenate([x, y], axis=1),
        in_axis_resources=(PartitionSpec("x", None), PartitionSpec("x", "y")),
        out_axis_resources=None,
    )
    with maps.Mesh(mesh.devices, mesh.axis_names):
        split = f(data)
        with pytest.warns(errors.MovedArgumentWarning, match="takes argument x of type"):
            out = g(split, data)
    assert [b.shape for b in split.device_buffers] == [(2, 1)] * 8 and [b.shape for b in out.device_buffers] == [
        (8, 4)
    ] * 8
    assert np.array_equal(out, np.c_[data, data])
    today = jax.jit(lambda x: x, in_shardings=NamedSharding(mesh, P("x")))
    with pytest.raises(errors.ShardingError, match="move it with device_put"):
        today(split)


def test_pjit_of_a_model():
    """A step with its state as a tree of specs, made by an initializer that is pjitted too; the AOT path."""
    mesh = grid("dp", "mp", shape=(2, 4))
    specs = {"wi": P(None, "mp"), "wo": P("mp", None)}

    def init(key):
        k1, k2 = jax.random.split(key)
        return {"wi": jax.random.normal(k1, (16, 32)) * 0.1, "wo": jax.random.normal(k2, (32, 16)) * 0.1}

    def loss(params, x):
        h = with_sharding_constraint(jax.nn.gelu(x @ params["wi"]), P("dp", "mp"))
        return jnp.mean((h @ params["wo"] - x) ** 2)

    def step(params, x):
        value, grads = jax.value_and_grad(loss)(params, x)
        return jax.tree_map(lambda p, g: p - g, params, grads), value

    with mesh:
        params = pjit(init, in_axis_resources=None, out_axis_resources=specs)(jax.random.PRNGKey(0))
        p_step = pjit(step, in_axis_resources=(specs, P("dp")), out_axis_resources=(specs, None), donate_argnums=(0,))
        x = np.ones((8, 16), np.float32)
        losses = []
        for _ in range(3):
            params, value = p_step(params, x)
            losses.append(float(value))
        compiled = p_step.lower(params, x).compile()
        inner = pjit(jnp.sin, in_axis_resources=P("dp"), out_axis_resources=P("mp"))
        nested = pjit(lambda x: inner(x) * 2, in_axis_resources=None, out_axis_resources=P(("dp", "mp")))(np.ones(8))
        made = pjit(lambda: jnp.arange(8.0), in_axis_resources=None, out_axis_resources=P("dp"))()
        times = pjit(lambda x, n: x * n, (P("dp"),), P("dp"), static_argnums=(1,))(np.ones(8), 3)
    assert losses[2] < losses[0] and params["wi"].sharding.spec == P(None, "mp")
    assert compiled.input_shardings[0][1].spec == P("dp") and "all-reduce" in compiled.as_text()
    assert nested.sharding.spec == P(("dp", "mp")) and made.sharding.spec == P("dp") and times[0] == 3


def test_pjit_that_chooses():
    with grid("x", "y") as mesh:
        shape = jax.ShapeDtypeStruct((64, 64), jnp.float32)
        compiled = pjit(lambda x: jnp.sin(x), in_shardings=AUTO(mesh), out_shardings=AUTO(mesh)).lower(shape).compile()
    assert isinstance(compiled.input_shardings[0][0], NamedSharding)


# --- xmap and sharded_jit -----------------------------------------------------------------------------------
def test_a_named_network():
    """The tutorial's: products over named axes, reductions by name, classes as an axis."""

    def predict(w1, w2, image):
        hidden = jax.nn.relu(lax.pdot(image, w1, "inputs"))
        logits = lax.pdot(hidden, w2, "hidden")
        return logits - jax.scipy.special.logsumexp(logits, "classes")

    def named_loss(w1, w2, images, labels):
        targets = jax.nn.one_hot(labels, lax.psum(1, "classes"), axis="classes")
        losses = jnp.sum(targets * predict(w1, w2, images), "classes")
        return -jnp.mean(losses, axis="batch")

    in_axes = [["inputs", "hidden", ...], ["hidden", "classes", ...], ["batch", "inputs", ...], ["batch", ...]]
    loss = xmap(named_loss, in_axes=in_axes, out_axes=[...], axis_resources={"batch": "x"})
    w1, w2 = RNG.normal(size=(12, 6)).astype("f"), RNG.normal(size=(6, 5)).astype("f")
    images, labels = RNG.normal(size=(8, 12)).astype("f"), np.arange(8) % 5

    def want(w1):
        logits = jax.nn.log_softmax(jax.nn.relu(images @ w1) @ w2)
        return -logits[np.arange(8), labels].mean()

    with maps.mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y")):
        np.testing.assert_allclose(loss(w1, w2, images, labels), want(w1), rtol=1e-5)
        np.testing.assert_allclose(jax.grad(loss)(w1, w2, images, labels), jax.grad(want)(w1), rtol=1e-4, atol=1e-6)
    with pytest.raises(errors.ArgumentError, match="num_classes=3, but axis 'c' has size 2; give the same"):
        jax.vmap(lambda x: jax.nn.one_hot(x, 3, axis="c"), axis_name="c")(np.arange(2))


def test_reductions_by_name():
    x = RNG.normal(size=(4, 3)).astype("f")
    f = xmap(
        lambda x: (jnp.sum(x, ("i", 0)), jnp.max(x, axis="i"), jnp.min(x, "i"), jnp.mean(x, axis=("i",))),
        in_axes=["i", ...],
        out_axes=[...],
    )
    for got, want in zip(f(x), (x.sum(), x.max(0), x.min(0), x.mean(0))):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_parts_of_2021():
    parts = sharded_jit.PartitionSpec

    @functools.partial(sharded_jit.sharded_jit, in_parts=(parts(4, 2), None), out_parts=parts(4, 2))
    def f(x, y):
        return jnp.sin(x) + y

    z = f(np.ones((8, 4), "f"), np.ones((8, 4), "f"))
    assert z.sharding.shape == (4, 2) and z.sharding_spec.mesh_shape == (4, 2)


# --- shardings ----------------------------------------------------------------------------------------------
def test_positions_as_a_sharding(capsys):
    sharding = PositionalSharding(mesh_utils.create_device_mesh((8,)))
    x = RNG.normal(size=(16, 16)).astype("f")
    a = jax.device_put(x, sharding.reshape(4, 2).replicate(1))
    b = jax.device_put(x, sharding.reshape(4, 2).replicate(0))
    c = jnp.dot(a, b)
    jax.debug.visualize_array_sharding(c)
    assert "│ CPU 6 │ CPU 7 │" in capsys.readouterr().out
    assert c.sharding.is_equivalent_to(sharding.reshape(4, 2), 2) and np.allclose(c, x @ x, atol=1e-5)
    few, others = (PositionalSharding(d).reshape(2, 2) for d in (jax.devices()[:4], jax.devices()[4:]))
    with pytest.raises(ValueError, match=r"of devices 0, 1, 2, 3 and .* of devices 4, 5, 6, 7; .*device_put"):
        jax.device_put(x, few) + jax.device_put(x, others)
    jax.config.update("jax_threefry_partitionable", True)
    keys = jax.jit(lambda k: jax.random.uniform(k, (8,)), out_shardings=sharding)(jax.random.key(42))
    assert keys.sharding == sharding


def test_shardings_as_protos_and_specs():
    proto = xla_client.OpSharding()
    proto.type = xla_client.OpSharding.Type.OTHER
    proto.tile_assignment_dimensions, proto.tile_assignment_devices = [4, 2], list(range(8))
    named = jax.sharding.MeshPspecSharding(grid("x", "y"), P("x", "y"))
    found = GSPMDSharding(jax.devices(), proto)
    assert found == GSPMDSharding(jax.devices(), "{devices=[4,2]<=[8]}") and found.is_equivalent_to(named, 2)
    proto.tile_assignment_dimensions, proto.replicate_on_last_tile_dim = [4, 1, 2], True
    assert GSPMDSharding(jax.devices(), proto).is_equivalent_to(NamedSharding(named.mesh, P("x")), 2)
    proto = xla_client.OpSharding()
    proto.type = xla_client.OpSharding.Type.REPLICATED
    assert jax.sharding.OpShardingSharding(jax.devices(), proto) == GSPMDSharding.get_replicated(jax.devices())
    assert isinstance(found, jax.sharding.XLACompatibleSharding)
    split = PmapSharding.default((8, 3)).to_named()
    assert split.is_equivalent_to(jax.pmap(lambda x: x)(np.ones((8, 3))).sharding, 2)
    whole = PmapSharding.default((4, 3), None, jax.devices())
    assert whole.is_fully_replicated and whole.shard_shape((4, 3)) == (4, 3)


# --- shard_map and 2023 ---------------------------------------------------------------------------------------
def test_a_product_that_gathers_while_it_computes():
    mesh = Mesh(jax.devices(), ("i",))

    @jax.jit
    @functools.partial(shard_map, mesh=mesh, in_specs=(P("i", None), P("i", None)), out_specs=P("i", None))
    def overlapped(lhs, rhs):
        size, index = lax.psum(1, "i"), lax.axis_index("i")
        block = lhs.shape[1] // size
        cut = lambda i: lax.dynamic_slice_in_dim(lhs, i * block, block, 1)  # noqa: E731
        out = cut(index) @ rhs
        for i in range(1, size):
            rhs = lax.ppermute(rhs, "i", [(k, (k + 1) % size) for k in range(size)])
            out += cut((index - i) % size) @ rhs
        return out

    a, b = RNG.normal(size=(16, 16)).astype("f"), RNG.normal(size=(16, 8)).astype("f")
    put = lambda x: jax.device_put(x, NamedSharding(mesh, P("i", None)))  # noqa: E731
    assert np.allclose(overlapped(put(a), put(b)), a @ b, atol=1e-4)
    partly = shard_map(lambda x: x * 2, grid("i", "j"), in_specs=P("i"), out_specs=P("i"), auto=frozenset({"j"}))
    assert np.array_equal(jax.jit(partly)(a), 2 * a)


def test_weights_that_are_gathered_where_they_are_used():
    mesh = Mesh(jax.devices(), ("i",))

    def loss(ws, x):
        for w in ws:
            x = jax.nn.relu(x @ lax.all_gather(w, "i", tiled=True))
        return lax.pmean(jnp.mean(x**2), "i")

    fsdp = shard_map(loss, mesh, in_specs=(P("i"), P("i")), out_specs=P())
    ws, x = [RNG.normal(size=(16, 16)).astype("f") / 4] * 2, RNG.normal(size=(8, 16)).astype("f")
    split = NamedSharding(mesh, P("i"))
    slopes = jax.jit(jax.grad(fsdp))([jax.device_put(w, split) for w in ws], jax.device_put(x, split))
    want = jax.grad(lambda ws: (jax.nn.relu(jax.nn.relu(x @ ws[0]) @ ws[1]) ** 2).mean())(ws)
    assert slopes[0].sharding.spec == P("i") and np.allclose(slopes[1], want[1], atol=1e-5)


def test_a_step_over_three_axes():
    mesh = grid("data", "fsdp", "tensor", shape=(2, 2, 2))
    place = jax.tree_util.tree_map(
        lambda s: NamedSharding(mesh, s), {"w": P("fsdp", "tensor")}, is_leaf=lambda s: isinstance(s, P)
    )
    rows = NamedSharding(mesh, P(("data", "fsdp"), None))

    def loss(p, x):
        return (lax.with_sharding_constraint(x @ p["w"], P(("data", "fsdp"), "tensor")) ** 2).mean()

    def update(p, x):
        return jax.tree_util.tree_map(lambda a, g: a - g, p, jax.grad(loss)(p, x))

    x = jax.make_array_from_callback((8, 16), rows, lambda index: np.ones((8, 16), "f")[index])
    with mesh:
        params = jax.jit(lambda k: {"w": jax.random.normal(k, (16, 32))}, out_shardings=place)(jax.random.PRNGKey(0))
        step = jax.jit(update, in_shardings=(place, rows), out_shardings=place, donate_argnums=0)
        after = step(params, x)
    assert after["w"].sharding == place["w"] and params["w"].is_deleted()
    assert multihost_utils.process_allgather(after["w"], tiled=True).shape == (16, 32)


def test_values_of_hosts():
    mesh = Mesh(mesh_utils.create_device_mesh((8,), jax.devices()), ("data",))
    x = np.arange(16.0, dtype=np.float32).reshape(8, 2)
    whole = multihost_utils.host_local_array_to_global_array(x, mesh, P("data"))
    assert whole.sharding.spec == P("data")
    assert np.array_equal(multihost_utils.global_array_to_host_local_array(whole, mesh, P("data")), x)
    assert mesh.local_mesh is mesh and not mesh.is_multi_process and mesh.shape["data"] == 8
    multihost_utils.sync_global_devices("end")


# --- ahead of time, in bytes, settings ------------------------------------------------------------------------
def test_programs_as_bytes():
    exported = jax.export.export(jax.jit(lambda x: 2 * x * x))(jax.ShapeDtypeStruct((), np.float32))
    again = jax.export.deserialize(exported.serialize(vjp_order=2))
    assert float(3.0 * again.call(4.0)) == 96.0 and float(jax.grad(jax.grad(again.call))(0.1)) == pytest.approx(4.0)
    versions = jax.export
    assert versions.minimum_supported_calling_convention_version <= again.calling_convention_version
    assert again.platforms == (jax.export.default_export_platform(),)
    shardings = jax.jit(lambda x: x + x, out_shardings=NamedSharding(Mesh(jax.devices(), ("a",)), P("a")))
    out = jax.export.export(shardings)(np.ones(8, np.float32))
    assert repr(out.out_shardings_hlo) == "(HloSharding('{devices=[8]<=[8]}'),)"
    assert out.out_shardings_jax(Mesh(jax.devices(), ("b",)))[0].spec == P("b")


def test_what_a_compiled_program_is_called_with():
    compiled = jax.jit(lambda x, y: 2 * x + y).lower(3, 4).compile()
    assert compiled(5, 6) == 16
    with pytest.raises(TypeError, match=r"compiled for arguments \(\*, \*\), got \(\*,\)"):
        compiled(5)
    with pytest.raises(RuntimeError, match="the backend here is 'cpu'"):
        jax.devices("gpu")


def test_settings_that_are_always_so():
    for name, value in {
        "jax_array": True, "jax_threefry_partitionable": True, "jax_spmd_mode": "allow_all",
        "jax_parallel_functions_output_gda": False, "jax_use_shardy_partitioner": True, "jax_platform_name": "cpu",
    }.items():  # fmt: skip
        jax.config.update(name, value)
    with pytest.raises(errors.ConfigError) as error:
        jax.config.update("jax_threefry_partitionable", False)
    assert str(error.value) == (
        "config.update('jax_threefry_partitionable'): expected True, as it always is here, got False; "
        "leave the line out"
    )
    with jax.experimental.enable_x64():
        assert jnp.ones(2).dtype == np.float64
        with jax.experimental.disable_x64():
            assert jnp.ones(2).dtype == np.float32
