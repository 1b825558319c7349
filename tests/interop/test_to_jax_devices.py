"""Functions of ours with shardings and manual regions, on several devices of JAX's, and functions of JAX's there that
their users partition, in a process of their own."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("jax", reason="JAX is not installed")

PROGRAM = """
import jax
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AxisType, NamedSharding as JaxSharding, PartitionSpec

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, P, lax

mw.config.update("num_devices", 8)
mesh = mw.make_mesh((2, 2, 2), ("x", "y", "z"))
theirs = jax.make_mesh((2, 2, 2), ("x", "y", "z"), axis_types=(AxisType.Auto,) * 3)
X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32)


def constrained(a):
    hidden = mw.with_sharding_constraint(mnp.tanh(a @ W), NamedSharding(mesh, P(P.UNCONSTRAINED, "y")))
    return mw.with_sharding_constraint(hidden @ W.T, NamedSharding(mesh, P(("x", "z"))))


def region(a):
    def body(u):
        moved = lax.ppermute(u, "x", [(0, 1), (1, 0)])
        return lax.psum(u, "y") * lax.axis_index("z") + moved

    spec = P(("x", "z"), "y")
    return mw.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(a)


def nested(a):
    # Three deep, one in a loop, with a constraint: GSPMD's notation of this ends XLA's process.
    def third(c):
        return mnp.sin(c) * lax.psum(c.sum(), ("x", "z"))

    def second(b):
        inner = mw.shard_map(third, in_specs=P("z"), out_specs=P("z"), axis_names={"z"})
        b = mw.with_sharding_constraint(b, NamedSharding(mesh, P("z")))
        return lax.scan(lambda c, x: (c + lax.psum(inner(x), "y"), None), b, mnp.stack([b, b * 2]))[0]

    def first(a):
        return mw.shard_map(second, in_specs=P(None, "y"), out_specs=P(None, "y"), axis_names={"y"})(a) * 2

    return mw.shard_map(first, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})(a)


def positions(a):
    # XLA refuses the number of a device where some axes are automatic.
    def inner(v):
        return lax.fori_loop(0, 2, lambda i, c: c * 2 + lax.axis_index("x") + lax.axis_index("z") * 3, v)

    def body(u):
        each = mw.shard_map(inner, in_specs=P(None, "z"), out_specs=P(None, "z"), axis_names={"z"})
        return each(u + lax.axis_index("x"))

    return mw.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"}, check_vma=False)(a)


def own_part(a):
    def body(u):
        return (lax.all_gather_invariant(u, "x", tiled=True) * mnp.arange(8.0)[:, None]).sum(0)

    summed = mw.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P(), axis_names={"x"})
    return mw.grad(lambda a: mnp.sin(summed(a)).sum())(a)


def resharded(a):
    a = mw.reshard(a, NamedSharding(explicit, P("x", "y")))
    return mw.reshard(mnp.tanh(a), NamedSharding(explicit, P(("y", "z"))))


explicit = mw.make_mesh((2, 2, 2), ("x", "y", "z"), axis_types=(mw.sharding.AxisType.Explicit,) * 3)
placed = jax.device_put(X, JaxSharding(theirs, PartitionSpec("x", "y")))
for function in (constrained, region, nested, positions, own_part, resharded):
    got = jax.jit(mw.to_jax(function))(placed)
    np.testing.assert_allclose(got, mw.jit(function)(X), rtol=1e-5, atol=1e-5)
spec = jax.jit(mw.to_jax(constrained))(placed).sharding.spec
assert spec == PartitionSpec(("x", "z")), spec
grad = jax.jit(jax.grad(lambda a: mw.to_jax(region)(a).sum()))(placed)
np.testing.assert_allclose(grad, mw.grad(lambda a: region(a).sum())(X), rtol=1e-5, atol=1e-5)
assert constrained(X).shape == jax.jit(mw.to_jax(constrained))(X).shape  # shardings alone fit one device
try:
    jax.jit(mw.to_jax(region))(X)
except ValueError as error:
    assert "region was exported for 8 devices" in str(error), error
else:
    raise AssertionError("a manual region on one device")

product = custom_partitioning(lambda x, w: jax.numpy.sin(x) @ w)
product.def_partition(partition=lambda *_: 1 / 0, sharding_rule="i k, k j -> i j")  # JAX is not to partition it
split = JaxSharding(theirs, PartitionSpec("x")), JaxSharding(theirs, PartitionSpec(None, "y"))
part = mw.from_jax(jax.jit(lambda x, w: 2 * product(x, w), in_shardings=split), X, W).partition()
np.testing.assert_allclose(part(X, W), 2 * np.sin(X) @ W, rtol=1e-5)
assert part.work.redundancy < 2.5 and not part.collectives, part.explain()
"""


def test_shardings_and_regions_hold_in_jax():
    flags = "--xla_force_host_platform_device_count=8"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
