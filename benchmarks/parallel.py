"""Parallel interfaces on 8 CPU devices of one process, against JAX.

``pmap`` and ``shard_map`` of a training step, ``device_put`` between shardings, and a warm call with 100 sharded
arguments. Every call is waited for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.common import alternate, in_process, milliseconds, ratio, seconds_per_call, table

WIDTHS = (64, 256, 256, 10)
BATCH = 512


def _library(name: str) -> tuple[Any, Any, Any]:
    if name == "jax":
        import jax
        import jax.numpy as jnp

        return jax, jnp, jax.jit
    import meshwright as mw
    import meshwright.numpy as mnp

    return mw, mnp, mw.jit


def _mesh(lib: Any) -> Any:
    return lib.sharding.Mesh(np.array(lib.devices()), ("i",))


def _step(lib: Any, jnp: Any) -> Any:
    """One step of gradient descent on a device's examples, with gradients averaged over ``i``."""

    def loss(params: Any, x: Any, t: Any) -> Any:
        for i, (w, b) in enumerate(params):
            x = x @ w + b
            x = jnp.tanh(x) if i < len(params) - 1 else x
        return ((x - t) ** 2).mean()

    def step(params: Any, x: Any, t: Any) -> Any:
        value, grads = lib.value_and_grad(loss)(params, x, t)
        grads = lib.lax.pmean(grads, "i")
        return lib.tree_util.tree_map(lambda p, g: p - 0.01 * g, params, grads), lib.lax.pmean(value, "i")

    return step


def _data() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    params = [
        (rng.normal(size=(m, n)).astype("f") / np.float32(m) ** 0.5, np.zeros(n, "f"))
        for m, n in itertools.pairwise(WIDTHS)
    ]
    return params, rng.normal(size=(BATCH, WIDTHS[0])).astype("f"), rng.normal(size=(BATCH, WIDTHS[-1])).astype("f")


def pmap_step(name: str) -> float:
    """Seconds per step, with a copy of the parameters on every device."""
    lib, jnp, _ = _library(name)
    step = lib.pmap(_step(lib, jnp), "i")
    params, x, t = _data()
    held = lib.tree_util.tree_map(lambda p: np.broadcast_to(p, (8, *p.shape)), params)
    x, t = x.reshape(8, -1, WIDTHS[0]), t.reshape(8, -1, WIDTHS[-1])
    held = step(held, x, t)[0]
    return seconds_per_call(lambda: lib.block_until_ready(step(held, x, t)), lambda out: None)


def shard_map_step(name: str) -> float:
    """Seconds per step, with replicated parameters and split examples."""
    lib, jnp, jit = _library(name)
    mesh, P = _mesh(lib), lib.sharding.PartitionSpec
    step = jit(
        lib.shard_map(_step(lib, jnp), mesh=mesh, in_specs=(P(), P("i"), P("i")), out_specs=(P(), P()), check_vma=False)
    )
    params, x, t = _data()
    params = lib.device_put(params, lib.sharding.NamedSharding(mesh, P()))
    x, t = (lib.device_put(v, lib.sharding.NamedSharding(mesh, P("i"))) for v in (x, t))
    return seconds_per_call(lambda: lib.block_until_ready(step(params, x, t)), lambda out: None)


def put(name: str) -> float:
    """Seconds of a ``device_put`` of 64 MiB from split rows to split columns."""
    lib, _, _ = _library(name)
    mesh, P = _mesh(lib), lib.sharding.PartitionSpec
    rows, columns = (lib.sharding.NamedSharding(mesh, P(*entries)) for entries in (("i",), (None, "i")))
    x = lib.block_until_ready(lib.device_put(np.ones((4096, 4096), np.float32), rows))
    return seconds_per_call(lambda: lib.block_until_ready(lib.device_put(x, columns)), lambda out: None)


def many(name: str) -> float:
    """Seconds of a warm call with 100 sharded arguments of 8 KiB each."""
    lib, _, jit = _library(name)
    mesh, P = _mesh(lib), lib.sharding.PartitionSpec
    split = lib.sharding.NamedSharding(mesh, P("i"))
    xs = [lib.device_put(np.full((8, 256), i, np.float32), split) for i in range(100)]
    f = jit(lambda xs: [x + 1 for x in xs])
    return seconds_per_call(lambda: lib.block_until_ready(f(xs)), lambda out: None)


CASES = {
    "pmap of a training step": "pmap_step",
    "shard_map of a training step": "shard_map_step",
    "device_put of 64 MiB, rows to columns": "put",
    "warm call, 100 sharded arguments": "many",
}


def _process(function: str, name: str) -> Callable[[], Any]:
    env = {"MESHWRIGHT_NUM_DEVICES": "8", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    return lambda: in_process("benchmarks.parallel", function, name, env=env)


def main() -> None:
    """Print the table."""
    rows = []
    for title, function in CASES.items():
        found = alternate({name: _process(function, name) for name in ("meshwright", "jax")}, rounds=3)
        ours, theirs = found["meshwright"], found["jax"]
        rows.append([title, milliseconds(ours), milliseconds(theirs), ratio(theirs, ours)])
    table("Parallel interfaces, 8 devices, blocking", ["", "Meshwright", "JAX", "JAX / ours"], rows)
