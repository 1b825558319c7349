"""An MLP training step on a 4×2 mesh of 8 virtual devices: unpartitioned, partitioned, and JAX's host devices."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.common import alternate, in_process, milliseconds, ratio, seconds_per_call, table

SIZES = [(64, 64, 256), (512, 512, 2048), (1024, 1024, 4096)]


def _data(batch: int, width: int, hidden: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    params = (normal(width, hidden) / width**0.5, normal(hidden, width) / hidden**0.5)
    return params, normal(batch, width), normal(batch, width)


def _step(np_like: Any, grad: Any) -> Any:
    def loss(params: Any, x: Any, y: Any) -> Any:
        w1, w2 = params
        return ((np_like.maximum(x @ w1, 0) @ w2 - y) ** 2).mean()

    def step(params: Any, x: Any, y: Any) -> Any:
        grads = grad(loss)(params, x, y)
        return tuple(p - 0.01 * g for p, g in zip(params, grads))

    return step


def lowered(sizes: tuple[int, int, int]) -> Any:
    """The step with its shardings, lowered."""
    import meshwright as mw
    import meshwright.numpy as mnp
    from meshwright import NamedSharding
    from meshwright import PartitionSpec as P

    mesh = mw.AbstractMesh((4, 2), ("data", "model"))
    weights = (NamedSharding(mesh, P(None, "model")), NamedSharding(mesh, P("model", None)))
    batch = NamedSharding(mesh, P("data"))
    run = mw.jit(_step(mnp, mw.grad), in_shardings=(weights, batch, batch), out_shardings=weights)
    return run.lower(*_data(*sizes))


def partitioned(sizes: tuple[int, int, int]) -> Any:
    """The step as a per-device program."""
    return lowered(sizes).partition()


def ours(sizes: tuple[int, int, int], partitioned: bool) -> float:
    """Seconds per step, with the parameters fed back."""
    import meshwright as mw
    import meshwright.numpy as mnp
    from meshwright import NamedSharding
    from meshwright import PartitionSpec as P

    step = _step(mnp, mw.grad)
    params, x, y = _data(*sizes)
    shardings = None
    if partitioned:
        mesh = mw.make_mesh((4, 2), ("data", "model"))
        weights = (NamedSharding(mesh, P(None, "model")), NamedSharding(mesh, P("model", None)))
        batch = NamedSharding(mesh, P("data"))
        shardings = (weights, batch, batch)
        params, x, y = (mw.device_put(v, s) for v, s in zip((params, x, y), shardings))
        run = mw.jit(step, in_shardings=shardings, out_shardings=weights)
    else:
        params, x, y = mw.device_put((params, x, y))
        run = mw.jit(step)
    state = [params]

    def once() -> Any:
        state[0] = run(state[0], x, y)
        return state[0]

    return seconds_per_call(once, mw.block_until_ready)


def jax_forced(sizes: tuple[int, int, int]) -> float:
    """Seconds per step in JAX with 8 forced host devices, waiting for each step, as it may hang otherwise."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    weights = (NamedSharding(mesh, P(None, "model")), NamedSharding(mesh, P("model", None)))
    batch = NamedSharding(mesh, P("data"))
    params, x, y = (jax.device_put(v, s) for v, s in zip(_data(*sizes), (weights, batch, batch)))
    run = jax.jit(_step(jnp, jax.grad), in_shardings=(weights, batch, batch), out_shardings=weights)
    state = [params]

    def once() -> Any:
        state[0] = jax.block_until_ready(run(state[0], x, y))
        return state[0]

    return seconds_per_call(once, jax.block_until_ready)


def main() -> None:
    rows = []
    forced = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    virtual = {"MESHWRIGHT_NUM_DEVICES": "8"}
    for sizes in SIZES:
        found = alternate(
            {
                "whole": lambda s=sizes: in_process("benchmarks.mlp", "ours", s, False),
                "mesh": lambda s=sizes: in_process("benchmarks.mlp", "ours", s, True, env=virtual),
                "jax": lambda s=sizes: in_process("benchmarks.mlp", "jax_forced", s, env=forced, limit=120),
            },
            rounds=3,
        )
        rows.append(
            [
                "×".join(map(str, sizes)),
                *(milliseconds(found[k]) for k in ("whole", "mesh", "jax")),
                ratio(found["mesh"], found["whole"]),
                ratio(found["jax"], found["mesh"]),
                ratio(found["jax"], found["whole"]),
            ]
        )
    table(
        "MLP training step, mesh data=4 × model=2, 8 virtual devices on one CPU",
        [
            "batch×width×hidden",
            "unpartitioned",
            "partitioned",
            "JAX, 8 host devices",
            "partitioned / whole",
            "JAX / ours",
            "JAX / unpartitioned",
        ],
        rows,
        "targets: partitioned / whole ≤ 1.15 on the two larger; JAX / ours ≥ 1.8, if the whole is",
    )
