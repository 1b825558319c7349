"""Run by ``test_jobs`` in two processes with four virtual devices each: a mesh of 8 that is real and virtual."""

import numpy as np

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding
from meshwright import PartitionSpec as P
from meshwright.errors import CallbackError, DeviceError, DistributedError, NonFiniteError, ProgramMismatchError
from meshwright.experimental import multihost_utils as mh

mw.distributed.initialize()
RANK, COUNT = mw.process_index(), mw.process_count()
assert (COUNT, mw.device_count(), mw.local_device_count(), mw.process_indices()) == (2, 8, 4, [0, 1])
assert [d.process_index for d in mw.devices()] == [0] * 4 + [1] * 4
assert mw.local_devices() == mw.devices()[4 * RANK : 4 * RANK + 4] and mw.local_devices(1) == mw.devices()[4:]

# values between processes
mh.sync_global_devices("start")
mine = np.array([RANK, 0.1])
np.testing.assert_array_equal(mh.process_allgather(mine), [[0, 0.1], [1, 0.1]])
np.testing.assert_array_equal(mh.process_allgather(mine, tiled=True), [0, 0.1, 1, 0.1])
got = mh.broadcast_one_to_all({"a": np.full(3, -RANK), "b": np.float32(RANK + 7)})
np.testing.assert_array_equal(got["a"], [0, 0, 0])
assert got["b"] == 7 and mh.broadcast_one_to_all(np.int8(RANK), is_source=RANK == 1) == 1
mh.assert_equal({"a": np.arange(3)})
try:
    mh.assert_equal({"a": np.arange(3) + RANK})
    raise SystemExit("assert_equal did not raise")
except DeviceError as error:
    assert "['a'] of process 1" in str(error), error

# arrays
mesh = mw.make_mesh((4, 2), ("x", "y"))
value = np.arange(80, dtype=np.float32).reshape(8, 10)
half = value[4 * RANK : 4 * RANK + 4]
rows = NamedSharding(mesh, P("x"))
x = mw.make_array_from_process_local_data(rows, half)
assert x.shape == (8, 10) and not x.is_fully_addressable and len(x.addressable_shards) == 4 == len(x.global_shards) - 4
for shard in x.addressable_shards:
    np.testing.assert_array_equal(shard.data, value[shard.index])
whole = mw.make_array_from_process_local_data(rows, value, (8, 10))
called = mw.make_array_from_callback((8, 10), rows, lambda index: value[index])
for y in (x, whole, called, mw.device_put(value, rows), mw.device_put(x, NamedSharding(mesh, P("y", "x")))):
    np.testing.assert_array_equal(mh.process_allgather(y), value)
np.testing.assert_array_equal(mh.global_array_to_host_local_array(x, mesh, P("x")), half)
np.testing.assert_array_equal(mh.process_allgather(mh.host_local_array_to_global_array(half, mesh, P("x"))), value)
other_order = mw.sharding.Mesh(np.array(mw.devices())[[0, 2, 1, 3, 4, 6, 5, 7]].reshape(4, 2), ("x", "y"))
y = mw.device_put(x, NamedSharding(other_order, P("x")))
np.testing.assert_array_equal(mh.process_allgather(y), value)
np.testing.assert_array_equal(mh.process_allgather(mw.device_put(y, rows)), value)
# tiles of a process with others' between them: its data is its tiles, one after the other
woven = mw.sharding.Mesh(np.array(mw.devices())[[0, 4, 1, 5, 2, 6, 3, 7]], ("x",))
mine = value[[r for r in range(8) if r % 2 == RANK]]
z = mw.make_array_from_process_local_data(NamedSharding(woven, P("x")), mine)
np.testing.assert_array_equal(mh.process_allgather(z), value)
assert "several processes" in repr(x)
try:
    np.asarray(x)
    raise SystemExit("np.asarray did not raise")
except DeviceError as error:
    assert "process_allgather" in str(error)

# arguments that are results as they are, and those that nothing uses
y = mw.make_array_from_callback((8, 10), rows, lambda index: np.ones((8, 10), np.float32)[index])
out = mw.jit(lambda x, y: (x, y + 1, x))(x, y)
assert out[0].sharding == out[2].sharding == rows
for got, expected in zip(out, (value, 2, value)):
    np.testing.assert_array_equal(mh.process_allgather(got), np.broadcast_to(expected, (8, 10)))
moved, both = mw.jit(lambda x, y: (x, y + x), out_shardings=(NamedSharding(mesh, P()), None))(x, y)
np.testing.assert_array_equal(np.asarray(moved), value)
np.testing.assert_array_equal(mh.process_allgather(both), value + 1)
made = mw.jit(lambda y: y * 3)(y)
given, summed = mw.jit(lambda y, x: (y, x + 1), donate_argnums=(0, 1))(made, mw.jit(lambda x: x * 1)(x))
np.testing.assert_array_equal(mh.process_allgather(given), np.full((8, 10), 3))
np.testing.assert_array_equal(mh.process_allgather(summed), value + 1)
for keep in (False, True):
    twice = mw.jit(lambda x, unused, number: x * 2, keep_unused=keep)
    for call in (twice, twice.lower(x, y, np.arange(3)).compile()):
        np.testing.assert_array_equal(mh.process_allgather(call(x, y, np.arange(3))), value * 2)

try:
    mw.device_put(np.full(3, RANK), NamedSharding(mesh, P()))
    raise SystemExit("the other value was not seen")
except DistributedError as error:
    assert "device_put: rank" in str(error) and "make_array_from_process_local_data" in str(error), error

# programs: partitioned, per device, eager
loss = mw.jit(lambda x, w: (mnp.tanh(x @ w) ** 2).mean())
w = mw.device_put(value.T[:, :6] / 80, NamedSharding(mesh, P(None, "y")))
want = (np.tanh(value @ value.T[:, :6] / 80) ** 2).mean()
np.testing.assert_allclose(loss(x, w), want, rtol=1e-5)
g = mw.jit(mw.grad(loss, argnums=1))(x, w)
assert g.sharding.mesh == mesh
np.testing.assert_allclose(mh.process_allgather(x.sum(0)), value.sum(0))
f = mw.shard_map(
    lambda v: mw.lax.psum(v, "x") + mw.lax.ppermute(v, "x", [(i, (i + 1) % 4) for i in range(4)]),
    mesh=mesh, in_specs=P("x"), out_specs=P("x"),
)  # fmt: skip
blocks = value.reshape(4, 2, 10)
np.testing.assert_array_equal(
    mh.process_allgather(f(x)), (blocks.sum(0) + np.roll(blocks, 1, 0)).reshape(8, 10)
)  # fmt: skip
for _ in range(100):
    w = mw.jit(lambda w, g: w - 0.1 * g)(w, g)
np.testing.assert_array_equal(mnp.arange(3) + 1, [1, 2, 3])  # this process's own

# Python functions: one process calls them, all have the results, and the errors
called = []
f = mw.jit(lambda x: mw.io_callback(lambda v: (called.append(v), v + RANK)[1], x, x, ordered=True) * 2)
np.testing.assert_array_equal(mh.process_allgather(f(x)), 2 * value)
assert len(called) == (RANK == 0)
f = mw.shard_map(lambda v: (mw.debug.callback(called.append, v), v)[1], mesh=mesh, in_specs=P("x"), out_specs=P("x"))
mw.jit(f)(x)
assert len(called) == 4 + (RANK == 0)
try:
    mw.jit(lambda x: (mw.debug.callback(lambda v: v["key"], x), x.sum())[1])(x)
    raise SystemExit("the error was not raised")
except CallbackError as error:
    assert ("on rank 0: " in str(error)) == RANK and "raised IndexError" in str(error), error

# results that are checked, by all or by none: one process alone has the NaN
with mw.debug_nans(True):
    np.testing.assert_array_equal(mh.process_allgather(mw.jit(lambda x: mnp.sqrt(x) * 0)(x)), 0 * value)
    try:
        mw.jit(lambda x: mnp.log(x - 30) * 2)(x)
        raise SystemExit("the NaN was not seen")
    except NonFiniteError as error:
        assert "log made a NaN" in str(error) and "work_together.py" in str(error), error

# a mesh of the other process's devices
theirs = mw.sharding.Mesh(np.array(mw.local_devices(1 - RANK)), ("x",))
try:
    mw.jit(mnp.sum)(mw.device_put(np.ones(8, np.float32), NamedSharding(theirs, P("x"))))
    raise SystemExit("a program ran without a device of this process")
except mw.errors.MeshError as error:
    assert f"none of which is a device of this process, {RANK}" in str(error), error
own = mw.sharding.Mesh(np.array(mw.local_devices()), ("x",))
assert float(mw.jit(mnp.sum)(mw.device_put(np.arange(8.0), NamedSharding(own, P("x"))))) == 28

# another program
try:
    mw.jit(lambda x: (x * (2.0 + RANK)).sum())(x)
    raise SystemExit("the mismatch was not seen")
except ProgramMismatchError as error:
    text = str(error)
    assert error.ranks == (1,) and "rank 1 is about to run another program" in text, text
    assert "2.0" in text and "3.0" in text and "work_together.py" in text, text
for size in (4, 4000):
    closed = np.zeros(size, np.float32)
    closed[size // 2] = RANK
    try:
        mw.jit(lambda x, closed=closed: x + mnp.asarray(closed).sum())(x)
        raise SystemExit("the closed-over array was not seen")
    except ProgramMismatchError as error:
        assert f"the closed-over array 0, float32[{size}] of values with" in str(error), error
np.testing.assert_allclose(loss(x, w), loss(x, w))
print(f"all is well in {RANK}")
