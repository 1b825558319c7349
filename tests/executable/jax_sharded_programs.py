"""Programs with shardings and manual regions as JAX writes them, for both of its partitioners, and what JAX computes.

Run as a script, since it needs eight devices and JAX settles on its number once: pickles, for each program, the texts
that JAX lowers it to (``shardy`` and ``gspmd``, and either ``in HLO``), its arguments and its results on eight devices.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from typing import Any

os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_cpu_use_fusion_emitters=false "
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, shard_map
from jax.experimental.shard_alike import shard_alike
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

RNG = np.random.default_rng(11)
MESH = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
#: the same names over devices in another order, which no reshape and transpose of 0, 1, 2, ... gives
SHUFFLED = Mesh(np.array(jax.devices())[[3, 0, 6, 1, 7, 2, 5, 4]].reshape(4, 2), ("x", "y"))
PROGRAMS: dict[str, tuple[Any, tuple[np.ndarray, ...]]] = {}


def floats(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def at(*entries: Any, mesh: Mesh = MESH) -> NamedSharding:
    return NamedSharding(mesh, P(*entries))


def constrain(x: Any, *entries: Any) -> Any:
    return lax.with_sharding_constraint(x, at(*entries))


def program(*args: np.ndarray, **jit: Any) -> Callable[..., Any]:
    """Decorator: this function is a program, to be jitted with ``jit`` and run on ``args``."""

    def register(fun: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[fun.__name__] = jax.jit(fun, keep_unused=True, **jit), args
        return fun

    return register


def manual(fun: Callable[..., Any], ins: Any, outs: Any, axes: Any = frozenset(), mesh: Mesh = MESH) -> Any:
    return shard_map(fun, mesh=mesh, in_specs=ins, out_specs=outs, axis_names=set(axes), check_vma=False)


# --- manual regions -----------------------------------------------------------------------------------------
@program(floats(8, 6), floats(6, 3))
def reductions(a: Any, b: Any) -> Any:
    def body(a: Any, b: Any) -> Any:
        s = lax.psum(a @ b, "y")
        top = lax.pmax(a, ("x", "y")), lax.pmin(a, "x")
        return (
            s * lax.axis_index("x"),
            lax.pmean(s, "x"),
            *top,
            lax.psum_scatter(a, "y", scatter_dimension=0, tiled=True),
        )

    return manual(body, (P("x", "y"), P("y")), (P("x"), P(), P(), P(None, "y"), P(("x", "y"))))(a, b)


@program(floats(8, 16), floats(16, 4))
def moves(a: Any, b: Any) -> Any:
    def body(a: Any, b: Any) -> Any:
        ring = lax.ppermute(a, "x", [(i, (i + 1) % 4) for i in range(4)])
        some = lax.ppermute(a, "y", [(1, 0)])
        both = lax.ppermute(a, ("x", "y"), [(0, 7), (3, 2), (7, 1)])
        rows = lax.all_gather(a, "y", axis=1, tiled=True)
        stacked = lax.all_gather(b, ("y", "x"))
        turned = lax.all_to_all(a, "y", 1, 0, tiled=True)
        within = lax.all_to_all(a, "y", 1, 1, tiled=True)
        return ring, some, both, rows, stacked.sum(0), turned, within

    outs = (P("x", "y"), P("x", "y"), P("x", "y"), P("x"), P(), P("x", "y"), P("x", "y"))
    return manual(body, (P("x", "y"), P(("x", "y"))), outs)(a, b)


@program(floats(16, 3))
def axes_in_another_order(a: Any) -> Any:
    def body(a: Any) -> Any:
        return a * (lax.axis_index(("y", "x")) + 1), lax.all_gather(a, ("y", "x"), tiled=True)

    return manual(body, P(("y", "x")), (P(("y", "x")), P()))(a)


@program(floats(8, 6), floats(6, 4))
def along_one_axis(a: Any, w: Any) -> Any:
    def body(a: Any, w: Any) -> Any:
        h = jnp.tanh(constrain(a, None, "y") @ w)
        return lax.psum(h, "x") * (1.0 + lax.axis_index("x")), lax.all_gather(h, "x", axis=1, tiled=True)

    h, g = manual(body, (P("x"), P()), (P("x"), P("x")), {"x"})(a, w)
    return constrain(h, "x", "y"), g @ jnp.ones((16, 2))


@program(floats(8, 6))
def regions_in_regions(a: Any) -> Any:
    def inner(b: Any) -> Any:
        return lax.psum(b * lax.axis_index("y"), "y") + b

    def outer(a: Any) -> Any:
        b = lax.psum(jnp.sin(a), "x")
        context = jax.sharding.get_abstract_mesh()
        return shard_map(inner, mesh=context, in_specs=P(None, "y"), out_specs=P(None, "y"), check_vma=False)(b) * a

    return manual(outer, P("x"), P("x"), {"x"})(a)


@program(floats(5, 8, 6), floats(8, 6))
def region_in_a_loop(xs: Any, c: Any) -> Any:
    step = manual(lambda c, x: c + lax.psum(x * c, "x"), (P("x", "y"), P("x", "y")), P("x", "y"))
    return lax.scan(lambda c, x: (step(c, x), c.sum()), c, xs)


@program(floats(8, 6))
def loop_in_a_region(a: Any) -> Any:
    def body(a: Any) -> Any:
        def step(i: Any, c: Any) -> Any:
            return lax.ppermute(c, "x", [(j, (j + 1) % 4) for j in range(4)]) + lax.psum(a, "y") * i

        return lax.fori_loop(0, 3, step, a)

    return manual(body, P("x", "y"), P("x", "y"))(a)


@program(floats(8, 6), floats(6, 4))
def gradient_of_a_region(a: Any, w: Any) -> Any:
    loss = manual(lambda a, w: lax.psum((jnp.tanh(a @ w) ** 2).sum(), ("x", "y")), (P("x", "y"), P("y")), P())
    return jax.grad(loss, (0, 1))(a, w)


@program(floats(8, 6), floats(6, 4))
def two_regions(a: Any, w: Any) -> Any:
    h = manual(lambda a, w: lax.psum(a @ w, "y"), (P("x", "y"), P("y")), P("x"))(a, w)
    h = jnp.sort(h * 2, axis=1)
    return manual(lambda h: lax.psum(h, "x"), P("x", "y"), P(None, "y"))(h)


@program(floats(8, 6))
def region_on_shuffled_devices(a: Any) -> Any:
    def body(a: Any) -> Any:
        shifted = lax.ppermute(a, "x", [(0, 2), (2, 3)])
        return lax.all_gather(a, "x", tiled=True), a * lax.axis_index("x") + lax.axis_index("y"), shifted

    outs = (P(None, "y"), P("x", "y"), P("x", "y"))
    return manual(body, P("x", "y"), outs, mesh=SHUFFLED)(a)


# --- annotations --------------------------------------------------------------------------------------------
@program(floats(8, 6), floats(6, 4), in_shardings=(at("x"), at(None, "y")), out_shardings=at("x", "y"))
def ends(a: Any, b: Any) -> Any:
    return jnp.tanh(a @ b)


@program(
    floats(8, 6), floats(6, 4), in_shardings=(at("x", mesh=SHUFFLED), None), out_shardings=at(None, "y", mesh=SHUFFLED)
)
def shuffled_devices(a: Any, b: Any) -> Any:
    return jnp.tanh(a @ b)


@program(floats(8, 6), floats(6, 4))
def unconstrained(a: Any, b: Any) -> Any:
    h = constrain(a, P.UNCONSTRAINED, "y")
    return constrain(h @ b, "x", P.UNCONSTRAINED)


@program(floats(8, 6), floats(8, 6))
def alike(a: Any, b: Any) -> Any:
    a = constrain(a, "x", "y")
    a, b = shard_alike(jnp.sin(a), jnp.cos(b))
    return a * 2, b * 3


@program(floats(8, 6), floats(6, 6))
def constraint_in_while(a: Any, w: Any) -> Any:
    def step(state: Any) -> Any:
        i, c = state
        return i + 1, constrain(jnp.tanh(constrain(c, "x", None) @ w), "x", "y")

    return lax.while_loop(lambda s: s[0] < 3, step, (0, a))[1]


@program(floats(3, 8, 6), floats(6, 6))
def constraint_in_scan(xs: Any, w: Any) -> Any:
    def step(c: Any, x: Any) -> Any:
        c = constrain(c + x, "y", None)
        return c, constrain(c @ w, None, "y")

    return lax.scan(step, jnp.zeros((8, 6)), xs)


@program(np.int32(1), floats(8, 6))
def constraint_in_switch(i: Any, a: Any) -> Any:
    branches = [lambda a: constrain(a * 2, "x") + 1, lambda a: constrain(jnp.flip(a, 0), None, "y") - 1]
    return lax.switch(i, branches, a)


@program(floats(8, 6))
def constraint_in_a_call(a: Any) -> Any:
    inner = jax.jit(lambda a: constrain(jnp.sin(a), "x"), in_shardings=at(None, "y"), out_shardings=at("y"))
    return inner(a) + inner(a * 2)


def main(path: str) -> None:
    found = {}
    for name, (jitted, args) in PROGRAMS.items():
        texts = {}
        for partitioner, flag in (("gspmd", False), ("shardy", True)):
            jax.config.update("jax_use_shardy_partitioner", flag)
            jax.clear_caches()
            lowered = jitted.lower(*args)
            texts[partitioner], texts[f"{partitioner} in HLO"] = lowered.as_text(), lowered.as_text("hlo")
        results = [np.asarray(y) for y in jax.tree.leaves(jitted(*args))]
        found[name] = texts, args, results
    with open(path, "wb") as file:
        pickle.dump(found, file)


if __name__ == "__main__":
    main(sys.argv[1])
