"""Tests that ``test_real_devices`` runs in processes with several real devices; in others they are not collected."""

import os
import subprocess
import sys
from contextlib import ExitStack

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding
from meshwright import PartitionSpec as P
from meshwright.api import partitioned
from meshwright.errors import CallbackError, DeletedArrayError, DeviceError, DLPackError, MeshError, TransferError

pytestmark = pytest.mark.filterwarnings("ignore::meshwright.errors.MeshwrightWarning")
REAL = int(os.environ["MESHWRIGHT_REAL_DEVICES"])
MESH = mw.make_mesh((4, 2), ("x", "y"))
#: neither dimension is divided by all the axes below
VALUE = np.arange(70, dtype=np.float32).reshape(7, 10)
SPECS = [P(), P("x"), P("y", "x"), P(None, ("x", "y")), P(("y", "x")), P(("x", "y"), None)]


def at(*spec, mesh=MESH):
    return NamedSharding(mesh, P(*spec))


def test_devices():
    assert (
        len(mw.devices()) == 8 and mw.local_device_count() == 8 and len({d.hardware_id for d in mw.devices()}) == REAL
    )
    assert REAL == 8 or mw.devices()[0].device_kind == "virtual " + mw.config.platform
    assert [d.local_hardware_id for d in mw.local_devices()] == list(range(8))


@pytest.mark.parametrize("source", SPECS, ids=str)
def test_placing_and_resharding(source):
    x = mw.device_put(VALUE, NamedSharding(MESH, source))
    np.testing.assert_array_equal(x, VALUE)
    for shard in x.addressable_shards:
        np.testing.assert_array_equal(shard.data, VALUE[shard.index])
        assert shard.data.devices() == {shard.device}
    for target in SPECS:
        np.testing.assert_array_equal(mw.device_put(x, NamedSharding(MESH, target)), VALUE)
    other = mw.make_mesh((2, 4), ("a", "b"))
    for spec in (P("a", "b"), P(("b", "a")), P()):
        np.testing.assert_array_equal(mw.device_put(x, NamedSharding(other, spec)), VALUE)
    reversed_ = mw.sharding.Mesh(np.array(mw.devices()[::-1]).reshape(4, 2), ("x", "y"))
    np.testing.assert_array_equal(mw.device_put(x, at("y", "x", mesh=reversed_)), VALUE)
    np.testing.assert_array_equal(mw.device_put(x, mw.devices()[5]), VALUE)


def test_resharding_does_not_go_through_the_host(monkeypatch):
    x = mw.device_put(VALUE, at("x"))
    monkeypatch.setattr(type(x), "_host", lambda self: pytest.fail("the array was fetched"))
    mw.device_put(x, at(None, "y")).block_until_ready()


@pytest.mark.parametrize("dtype", ["bfloat16", "bool", "int4", "complex64", "float8_e4m3fn"])
def test_dtypes(dtype):
    x = mw.device_put(mnp.asarray(VALUE > 20).astype(dtype), at("x", "y"))
    np.testing.assert_array_equal(np.asarray(x, np.complex64), VALUE > 20)
    np.testing.assert_array_equal(np.asarray(mw.device_put(x, at("y")), np.complex64), VALUE > 20)


def test_random_keys():
    keys = mw.device_put(mw.random.split(mw.random.key(0), 8), at(("x", "y")))
    draw = mw.jit(mw.vmap(lambda k: mw.random.normal(k, (3,))))
    np.testing.assert_array_equal(draw(keys), draw(mw.random.split(mw.random.key(0), 8)))
    assert keys.addressable_shards[3].data.shape == (1,)


def test_single_devices_compute_where_their_arrays_are():
    x = mw.device_put(mnp.arange(4.0), mw.devices()[5])
    for y in (x + 1, mw.jit(lambda x: x + 1)(x), x + mnp.ones(4)):
        assert y.devices() == {mw.devices()[5]}
        np.testing.assert_array_equal(y, np.arange(4.0) + 1)
    with pytest.raises(MeshError, match="another on"):
        x + mw.device_put(mnp.arange(4.0), mw.devices()[1])


def test_donation():
    step = mw.jit(lambda x, y: (x + y, y), donate_argnums=0)
    x, y = (mw.device_put(VALUE, at("x", "y")) for _ in range(2))
    before = [np.asarray(s.data) for s in y.addressable_shards]
    z, _ = step(x, y)
    assert x.is_deleted() and not y.is_deleted()
    np.testing.assert_array_equal(z, 2 * VALUE)
    for shard, old in zip(y.addressable_shards, before):
        np.testing.assert_array_equal(shard.data, old)


several = pytest.mark.skipif(REAL == 1, reason="one real device has all")


@several
@pytest.mark.skipif(mw.config.platform in ("cuda", "rocm"), reason="NumPy reads no memory of GPUs")
def test_dlpack_of_shards():
    x = mw.device_put(VALUE, at("x"))
    with pytest.raises(DLPackError, match="addressable_shards"):
        np.from_dlpack(x)
    np.testing.assert_array_equal(np.from_dlpack(x.addressable_shards[2].data), VALUE[2:4])


def memories(x):
    """Those that an array's buffers are in."""
    return {getattr(b, "sharding", None) and b.sharding.memory_kind for b in getattr(x.buffer, "buffers", [x.buffer])}


@pytest.mark.skipif(mw.config.platform == "cpu", reason="the CPU has one memory behind all kinds")
def test_memory_of_the_host():
    host = at("x", "y").with_memory_kind("pinned_host")
    x = mw.device_put(VALUE, host)
    assert memories(x) == {"pinned_host"}
    moved = [
        mw.device_put(x, at("x", "y")),
        mw.device_put(x, at("y")),
        mw.device_put(x, at("y").with_memory_kind("pinned_host")),
    ]
    kinds = [memories(y) <= {"device", None} for y in moved[:2]], memories(moved[2])
    assert kinds == ([True, True], {"pinned_host"})
    for y in (x, *moved, mw.jit(lambda x: x * 2)(moved[0]) / 2):
        np.testing.assert_array_equal(y, VALUE)
    policy = mw.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["kept"]
    )
    f = lambda x: mnp.sin(mw.checkpoint_name(mnp.sin(x), "kept")).sum()  # noqa: E731
    np.testing.assert_allclose(mw.grad(mw.checkpoint(f, policy=policy))(VALUE), mw.grad(f)(VALUE), rtol=1e-6)


def test_closed_over_constants_are_on_all_devices():
    table = np.arange(9000, dtype=np.float32).reshape(90, 100)
    split = mw.device_put(table, at(None, "x"))
    f = mw.jit(lambda i: mnp.sum(mnp.asarray(table)[i] + split[i], -1))
    np.testing.assert_allclose(f(mw.device_put(np.arange(8), at("x"))), 2 * table[:8].sum(-1), rtol=1e-6)


on_cpus = pytest.mark.skipif(mw.config.platform != "cpu", reason="programs on accelerators do not call Python")


@on_cpus
def test_callbacks_are_called_once_with_whole_arrays():
    seen = []
    f = mw.jit(lambda x: mw.pure_callback(lambda v: (seen.append(v), np.sin(v))[1], x, x) * 2)
    np.testing.assert_allclose(f(mw.device_put(VALUE, at("x"))), 2 * np.sin(VALUE), rtol=1e-6)
    np.testing.assert_array_equal(np.stack(seen), VALUE[None])


@on_cpus
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "bool", "uint8", "float8_e4m3fn"])
def test_results_of_callbacks_reach_all_devices_bit_by_bit(dtype):
    result = np.asarray(mnp.asarray(np.array([-0.0, 1.0, -3.0, 0.0])).astype(dtype))
    f = mw.jit(lambda x: mw.io_callback(lambda _: result, mw.ShapeDtypeStruct((4,), dtype), x[0, 0]))
    out = f(mw.device_put(VALUE, at("x", "y")))
    assert {np.asarray(shard.data).tobytes() for shard in out.addressable_shards} == {result.tobytes()}


def printing(x):
    mw.debug.print("all {}", x[:, 0], ordered=True)

    def body(i, c):
        mw.debug.print("step {}", i, ordered=True)
        return c + c.sum()

    last = mw.lax.fori_loop(0, 2, body, x)
    mw.lax.cond(last.sum() > 0, lambda: mw.debug.print("large"), lambda: mw.debug.print("small"))
    return mw.vmap(mw.grad(lambda r: (mw.debug.print("row {}", r[0]), (r**2).sum())[1]))(x)


@on_cpus
def test_printing_once(capsys):
    np.testing.assert_array_equal(mw.jit(printing)(mw.device_put(VALUE, at("x", "y"))), 2 * VALUE)
    lines = capsys.readouterr().out.splitlines()
    ordered = [s for s in lines if s.startswith(("all", "step"))]
    assert ordered == ["all [ 0. 10. 20. 30. 40. 50. 60.]", "step 0", "step 1"]
    assert sorted(set(lines) - set(ordered)) == ["large", *(f"row {10 * i}.0" for i in range(7))]
    assert len(lines) == 11


@on_cpus
@pytest.mark.parametrize("manual", [("x", "y"), ("x",)], ids=str)
def test_in_regions_each_device_calls(manual, capsys):
    def body(v, w):
        mw.debug.print("at {} of {}, {}", mw.lax.axis_index("x"), w, v.sum())
        return v * mw.pure_callback(np.square, w, w)

    f = mw.shard_map(body, mesh=MESH, in_specs=(P("x"), P()), out_specs=P("x"), axis_names=set(manual))
    np.testing.assert_array_equal(mw.jit(f)(np.arange(8.0, dtype=np.float32), np.float32(3)), np.arange(8) * 9)
    lines = sorted(capsys.readouterr().out.splitlines())
    assert lines == sorted([f"at {i} of 3.0, {4 * i + 1}.0" for i in range(4)] * (2 if "y" in manual else 1))


def refuse_five(v):
    if v == 5:
        raise ValueError("of one device")


@on_cpus
def test_errors_of_callbacks_end_the_run_on_all_devices():
    body = lambda v: (mw.debug.callback(refuse_five, v.sum()), mw.lax.psum(v, "x"))[1]  # noqa: E731
    one = mw.shard_map(body, mesh=MESH, in_specs=P("x"), out_specs=P())
    x = np.arange(8, dtype=np.float32)
    calls = []

    def second(v):
        calls.append(v)
        if len(calls) == 2:
            raise KeyError("in a loop")

    step = lambda i, c: (mw.debug.callback(second, i), c + c.sum())[1]  # noqa: E731
    loop = mw.jit(lambda x: mw.lax.fori_loop(0, 9, step, x), in_shardings=at("x"))
    for _ in range(2):
        with pytest.raises(CallbackError, match="refuse_five raised ValueError: of one device"):
            mw.jit(one)(x)
    np.testing.assert_array_equal(mw.jit(one)(0 * x), np.zeros(2))
    with pytest.raises(CallbackError, match="second raised KeyError: 'in a loop'") as caught:
        loop(x)
    assert len(calls) == 2 and isinstance(caught.value.__cause__, KeyError)


@pytest.mark.skipif(mw.config.platform == "cpu", reason="programs on CPUs call Python")
def test_callbacks_are_refused():
    x = mw.device_put(VALUE, at("x"))
    with pytest.raises(DeviceError, match=r"calls Python, which programs on .* cannot; return the values"):
        mw.jit(lambda a: mw.pure_callback(np.sin, a, a))(x)


@on_cpus
def test_programs_that_the_cache_has_are_not_lowered(tmp_path, monkeypatch):
    orders = [mw.devices(), [*mw.devices()[4:], *mw.devices()[:4]]]
    meshes = [mw.sharding.Mesh(np.array(order).reshape(4, 2), ("x", "y")) for order in orders]

    def run(mesh, factor=2.0, spec=("x", "y")):
        x = mw.device_put(VALUE, at(*spec, mesh=mesh))
        f = mw.jit(lambda x: mnp.cumsum(x, 0) * factor, out_shardings=at("y", mesh=mesh))
        np.testing.assert_array_equal(f(x), np.cumsum(VALUE, 0) * factor)

    made, real = [], partitioned.lower
    monkeypatch.setattr(partitioned, "lower", lambda *a: (made.append(a[1]), real(*a))[1])
    cached = {"compilation_cache_dir": str(tmp_path / "programs"), "persistent_cache_min_compile_time_secs": 0.0}
    with ExitStack() as stack:
        for name, value in cached.items():
            stack.enter_context(mw.config.override(name, value))
        for lowered in (4, 4):  # at first each of them; then none
            for mesh in meshes:
                run(mesh)
            run(meshes[0], 3.0)
            run(meshes[0], spec=("y",))
            assert len(made) == lowered
        for _ in range(2):  # what calls Python is not kept
            mw.jit(lambda x: (mw.debug.print("{}", x[0, 0]), x * 2)[1])(mw.device_put(VALUE, at("x")))
        assert len(made) == 6


def test_per_device_functions():
    f = mw.shard_map(
        lambda x: (
            mw.lax.psum(x, ("x", "y")) + mw.lax.ppermute(x, "x", [(i, (i + 1) % 4) for i in range(4)])
            + mw.lax.axis_index(("x", "y"))
        ),
        mesh=MESH, in_specs=P(("x", "y")), out_specs=P(("x", "y")),
    )  # fmt: skip
    v = np.arange(16, dtype=np.float32)
    blocks = v.reshape(4, 2, 2)
    want = blocks.sum((0, 1)) + np.roll(blocks, 1, 0) + np.arange(8).reshape(4, 2, 1)
    np.testing.assert_array_equal(f(v), want.reshape(-1))
    np.testing.assert_array_equal(mw.pmap(lambda x: mw.lax.psum(x, "i"), axis_name="i")(np.arange(8)), [28] * 8)


def test_rows_are_exchanged():
    """Device i sends its first row to device 7 - i, where it becomes the last of three; and back."""
    i = np.arange(8, dtype=np.int32)
    ones = np.zeros((8, 8), np.int32)
    ones[i, 7 - i] = 1
    tables = [np.ravel(t) for t in (0 * ones, ones, 2 * ones, ones)]
    f = mw.shard_map(
        lambda x, *t: mw.lax.ragged_all_to_all(x, mnp.zeros(3), *t, axis_name=("x", "y")),
        mesh=MESH, in_specs=P(("x", "y")), out_specs=P(("x", "y")),
    )  # fmt: skip
    x = np.arange(16, dtype=np.float32)
    want = np.zeros((8, 3), np.float32)
    want[:, 2] = x[::2][::-1]
    np.testing.assert_array_equal(mw.jit(f)(x, *tables), want.ravel())
    slopes = mw.jit(mw.grad(lambda x: (f(x, *tables) ** 2).sum()))(x)
    np.testing.assert_array_equal(slopes, np.where(np.arange(16) % 2, 0, 2 * x))


def test_thousands_of_steps_are_started_without_waiting():
    @mw.jit
    def step(w, x):
        return w - 0.1 * mw.grad(lambda w: (mnp.tanh(x @ w) ** 2).mean())(w)

    w, x = (
        mw.device_put(np.ones((8, 4), np.float32), at(None, "y")),
        mw.device_put(np.ones((8, 8), np.float32), at("x")),
    )
    for _ in range(3000):
        w = step(w, x)
    assert np.isfinite(np.asarray(w)).all()


def test_programs_move_what_nobody_has_placed():
    """In a process that has placed nothing before."""
    program = (
        "import meshwright as mw\nf = mw.pmap(lambda x, s: mw.lax.psum(x * s, 'i'), 'i', in_axes=(0, None))\n"
        "assert (f(mw.numpy.arange(8.0), 2.0) == 56).all()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "MESHWRIGHT_NUM_DEVICES": "8"})


def test_results_are_arguments_whatever_was_done_with_them():
    """They are kept as one operand of programs, or as a buffer on each device."""
    x, step = mw.device_put(VALUE, at("x", "y")), mw.jit(lambda a, b: (a + b, a))
    for i in range(1, 4):
        x, before = step(x, np.float32(1))
        np.testing.assert_array_equal(before, VALUE + i - 1)
        for shard in x.addressable_shards:
            np.testing.assert_array_equal(shard.data, VALUE[shard.index] + i)
        y, _ = step(mw.device_put(x, at("y")), x)
        np.testing.assert_array_equal(y, 2 * (VALUE + i))
    x.delete()
    with pytest.raises(DeletedArrayError, match="was deleted"):
        step(x, np.float32(1))


@several
def test_arrays_that_a_program_takes_to_other_devices_are_transferred():
    x = mnp.arange(8.0)
    here, there = mw.device_put(x, at("x")), mw.device_put(x, mw.devices()[5])
    double, plus = mw.jit(lambda a: a * 2, in_shardings=at("x")), mw.jit(lambda a, b: a + b)
    for move in (lambda: double(x), lambda: plus(here, x), lambda: plus(there, x), lambda: there + x, lambda: here + x):
        move()
        with mw.transfer_guard_device_to_device("disallow"):
            with pytest.raises(TransferError, match="implicit device-to-device transfer of f32"):
                move()
    with mw.transfer_guard_device_to_device("disallow"):
        for stay in (lambda: double(here), lambda: plus(here, here), lambda: there + there, lambda: there * 2):
            stay()
    with mw.transfer_guard_device_to_device("disallow_explicit"):
        mw.device_put(here, at())  # by a program on the same devices


@pytest.mark.parametrize("shape", [(0, 4), (0, 0)])
def test_arrays_without_elements_are_exchanged(shape):
    """By no collective: XLA refuses those."""
    x = mw.device_put(np.zeros(shape, np.float32), at("x"))
    for spec in SPECS:
        assert np.asarray(mw.device_put(x, NamedSharding(MESH, spec))).shape == shape
    assert float(x.sum()) == 0 == float(mw.jit(lambda a: mnp.tensordot(a, a, ((0,), (0,))).sum())(x))
    scattered = mw.shard_map(
        lambda a: mw.lax.psum_scatter(a, "x", tiled=True), mesh=MESH, in_specs=P(), out_specs=P("x"), check_vma=False
    )
    assert scattered(x).shape == shape


def test_no_device_has_part_of_a_key():
    """Words that are split between devices are gathered where they become keys, eagerly and by programs."""
    words = mw.random.key_data(mw.random.split(mw.random.key(3), 8))
    split = mw.device_put(words, at("x", "y"))
    for wrap in (mw.random.wrap_key_data, mw.jit(lambda w: mw.random.wrap_key_data(w + np.uint32(0)))):
        keys = wrap(split)
        assert {s.data.words().shape for s in keys.addressable_shards} == {(2, 2)}
        np.testing.assert_array_equal(mw.random.key_data(keys), words)
        drawn = mw.jit(mw.vmap(lambda k: mw.random.uniform(k)))(keys)
        np.testing.assert_array_equal(drawn, mw.vmap(mw.random.uniform)(mw.random.wrap_key_data(words)))


@several
@on_cpus
@pytest.mark.parametrize("inner", ["program", "eager op", "move"])
@pytest.mark.parametrize("call", ["pure_callback", "io_callback", "shard_map"])
def test_programs_on_devices_that_wait_for_the_call_are_refused(inner, call):
    """They would wait for each other, until XLA ends the process."""
    double = mw.jit(lambda v: v * 2 + v.sum())
    x = mw.device_put(VALUE[:4, :8], at("x"))
    double(x)

    def function(v):
        v = mw.device_put(np.asarray(VALUE[:4, :8]), at("x"))
        made = {"program": double, "eager op": lambda v: v.sum(), "move": lambda v: mw.device_put(v, at("y"))}[inner](v)
        return np.zeros((1, 8) if call == "shard_map" else (4, 8), np.float32) * np.sum(made)

    called = mw.io_callback if call == "io_callback" else mw.pure_callback
    step = lambda x: called(function, mw.ShapeDtypeStruct(x.shape, x.dtype), x)  # noqa: E731
    if call == "shard_map":
        step = mw.shard_map(step, mesh=MESH, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    with pytest.raises(CallbackError, match="wait for the Python function that calls it"):
        mw.jit(step)(x).block_until_ready()
    np.testing.assert_array_equal(double(x), VALUE[:4, :8] * 2 + VALUE[:4, :8].sum())


@several
@on_cpus
def test_callbacks_compute_on_devices_that_do_not_wait():
    one = mw.jit(lambda v: v * 2)
    here = lambda v: np.asarray(one(v))  # noqa: E731
    split = mw.device_put(VALUE, at("x"))
    got = mw.jit(lambda x: mw.pure_callback(here, mw.ShapeDtypeStruct(x.shape, x.dtype), x))(split)
    np.testing.assert_array_equal(got, 2 * VALUE)
    there = lambda v: np.asarray(mw.jit(lambda a: a + 1)(split))  # noqa: E731
    alone = mw.jit(lambda x: mw.pure_callback(there, mw.ShapeDtypeStruct(x.shape, x.dtype), x))
    np.testing.assert_array_equal(alone(VALUE), VALUE + 1)


@pytest.mark.skipif(REAL < 4, reason="needs two real devices that wait, and two others")
@on_cpus
def test_programs_on_other_devices_than_those_that_wait_are_refused():
    """XLA starts a program on several devices when the last one has ended, wherever that runs."""
    first, last = (mw.Mesh(np.array(mw.devices())[part], ("a",)) for part in (slice(0, 4), slice(4, 8)))
    here, there = (NamedSharding(mesh, P("a")) for mesh in (first, last))
    inner = mw.jit(lambda v: v + v.sum(), in_shardings=there)
    x = mw.device_put(VALUE[:4, :8], here)
    step = mw.jit(lambda x: mw.pure_callback(lambda v: np.asarray(inner(np.asarray(v))), x.aval, x))
    with pytest.raises(CallbackError, match="others than these, wait for the Python function"):
        step(x).block_until_ready()
    np.testing.assert_allclose(inner(VALUE[:4, :8]), VALUE[:4, :8] + VALUE[:4, :8].sum(), rtol=1e-5)
