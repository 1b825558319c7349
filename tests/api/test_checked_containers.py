"""Containers that check their leaves: only arrays, and what is exactly an ``object()``, are ever put into them."""

from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.sharding import NamedSharding
from meshwright.sharding import PartitionSpec as P

mw.config.update("num_devices", 8)
MESH = mw.make_mesh((4,), ("x",), devices=mw.devices()[:4], axis_types=(mw.sharding.AxisType.Auto,))
SPLIT, WHOLE = NamedSharding(MESH, P("x")), NamedSharding(MESH, P())


class Scale:
    """Accepts what JAX's documentation tells such classes to accept, and refuses anything else."""

    def __init__(self, x: Any) -> None:
        if type(x) is not object:
            assert isinstance(x, (mw.Array, np.ndarray)), f"{x!r} of type {type(x).__name__}"
        self.x = x


mw.tree_util.register_pytree_node(Scale, lambda s: ((s.x,), None), lambda _, xs: Scale(*xs))
S = Scale(np.arange(8, dtype=np.float32))


@mw.custom_vjp
def _squared(s: Scale) -> Scale:
    return Scale(s.x**2)


_squared.defvjp(lambda s: (_squared(s), s), lambda s, ct: (Scale(2 * s.x * ct.x),))

USES = {
    "jit": lambda: mw.jit(lambda s: Scale(s.x + 1))(S),
    "shardings": lambda: mw.jit(lambda s: Scale(s.x + 1), in_shardings=(SPLIT,), out_shardings=WHOLE)(S),
    "explained": lambda: mw.jit(lambda s: Scale(s.x + 1), in_shardings=SPLIT).lower(S).partition().explain() and S,
    "scan": lambda: lax.scan(lambda c, x: (Scale(c.x * 2), Scale(c.x + x.x)), S, S)[1],
    "while_loop": lambda: lax.while_loop(lambda s: s.x[0] < 4, lambda s: Scale(s.x + 1), S),
    "cond": lambda: lax.cond(True, lambda s: Scale(s.x + 1), lambda s: s, S),
    "grad": lambda: mw.grad(lambda s: (s.x**2).sum())(S),
    "vjp": lambda: mw.vjp(lambda s: Scale(s.x**2), S)[1](S)[0],
    "custom_vjp": lambda: mw.grad(lambda s: _squared(s).x.sum())(S),
    "checkpoint": lambda: mw.grad(lambda s: mw.checkpoint(lambda s: Scale(mnp.sin(s.x)))(s).x.sum())(S),
    "vmap": lambda: mw.vmap(lambda s, t: Scale(s.x + t.x), in_axes=(0, None))(S, S),
    "pmap": lambda: mw.pmap(lambda s: Scale(s.x + 1))(S),
    "shard_map": lambda: mw.shard_map(lambda s: Scale(s.x + 1), mesh=MESH, in_specs=P("x"), out_specs=P("x"))(S),
    "device_put": lambda: mw.device_put(S, SPLIT),
    "constraint": lambda: mw.jit(lambda s: lax.with_sharding_constraint(s, SPLIT))(S),
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_only_arrays_and_objects_are_put_into_a_container(use: str) -> None:
    assert isinstance(USES[use](), Scale)
