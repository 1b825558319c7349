"""What devices repeat of a program's arithmetic: counted, shown, warned of, and avoided for products."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax, nn
from meshwright import PartitionSpec as P
from meshwright.errors import RedundancyWarning
from meshwright.spmd.rules import eqn_rule

MESH = mw.AbstractMesh((4, 2), ("data", "model"))


def of(*shape: int) -> mw.ShapeDtypeStruct:
    return mw.ShapeDtypeStruct(shape, np.float32)


def partitioned(f: Any, specs: Any, args: Any, outs: Any = None, mesh: Any = MESH) -> Any:
    def on(tree: Any) -> Any:
        return mw.tree.map(lambda s: NamedSharding(mesh, s), tree, is_leaf=lambda s: isinstance(s, P))

    return mw.jit(f, in_shardings=on(specs), out_shardings=None if outs is None else on(outs)).lower(*args).partition()


def mlp(params, x, y):
    w1, w2 = params
    return ((nn.relu(x @ w1) @ w2 - y) ** 2).mean()


def step(params, x, y):
    return tuple(p - 0.01 * g for p, g in zip(params, mw.grad(mlp)(params, x, y)))


@pytest.mark.parametrize("batch, width, hidden", [(64, 64, 256), (1024, 1024, 4096)])
def test_products_of_a_training_step_are_shared(batch, width, hidden):
    """Weight gradients are not computed on all of ``data`` to save their reduction."""
    weights = P(None, "model"), P("model", None)
    params = of(width, hidden), of(hidden, width)
    part = partitioned(step, (weights, P("data"), P("data")), (params, of(batch, width), of(batch, width)), weights)
    assert part.work.product_redundancy == 1
    assert 1 <= part.work.redundancy < 1.03
    local = 2 * width * hidden * 4 // 2
    activations = 2 * batch // 4 * width * 4
    assert part.bytes_sent <= 2 * local * 3 // 4 + activations // 2


def test_taps_of_a_kernel_are_work():
    def f(x, k):
        return nn.conv(x, k)

    jaxpr = mw.make_jaxpr(f)(np.zeros((2, 8, 8, 3), np.float32), np.zeros((3, 3, 3, 5), np.float32))
    (conv,) = [e for e in jaxpr.eqns if e.op.name == "conv_general_dilated"]
    assert eqn_rule(conv).work == 2 * 8 * 8 * 5 * 3 * 9
    assert eqn_rule(conv).is_product


def test_convolutions_are_shared():
    def loss(p, x):
        a = nn.relu(nn.conv(x, p["in"]))
        b = nn.conv(nn.relu(nn.conv(nn.avg_pool(a, 2), p["down"])), p["mid"])
        y = nn.conv(mnp.concatenate([b.repeat(2, 1).repeat(2, 2), a], -1), p["up"])
        return (y * y).mean()

    shapes = {"in": (3, 3, 4, 8), "down": (3, 3, 8, 16), "mid": (3, 3, 16, 16), "up": (3, 3, 24, 8)}
    mesh = mw.AbstractMesh((8,), ("data",))
    where = dict.fromkeys(shapes, P())
    params = {name: of(*shape) for name, shape in shapes.items()}
    part = partitioned(mw.grad(loss), (where, P("data")), (params, of(16, 16, 16, 4)), where, mesh)
    assert part.work.product_redundancy == 1
    assert part.bytes_sent == sum(2 * 4 * int(np.prod(s)) * 7 // 8 for s in shapes.values())


def test_what_is_repeated_is_named():
    """Nothing splits the product by ``model``."""
    part = partitioned(lambda x, w: mnp.tanh(x @ w), (P("data"), P()), (of(512, 256), of(256, 512)))
    work = part.work
    assert work.redundancy == work.product_redundancy == 2
    assert work.device == 2 * 128 * 256 * 512 + 128 * 512 and work.whole == 4 * work.device
    (product,) = work.repeated
    assert (product.op, product.times, product.share) == ("dot_general", 2, 1)
    assert work.warning is not None and "dot_general at test_work.py" in work.warning
    assert work.warning in part.notes and "does 2.00 times its part of the arithmetic" in part.explain()
    with pytest.warns(RedundancyWarning, match="2.00 times its part"):
        part.warn()


def test_little_work_is_not_warned_of():
    part = partitioned(lambda x, w: x @ w, (P("data"), P()), (of(8, 16), of(16, 8)))
    assert part.work.redundancy == 2 and part.work.warning is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        part.warn()


def test_loops_and_branches_count_as_often_as_they_run():
    def f(p, x, w):
        x = lax.fori_loop(0, 5, lambda i, x: mnp.tanh(x @ w), x)
        return lax.cond(p, lambda x: x @ w @ w, lambda x: x @ w, x)

    part = partitioned(f, (P(), P("data"), P()), (mw.ShapeDtypeStruct((), bool), of(16, 8), of(8, 8)))
    assert part.work.products == (2 * 4 * 8 * 8 * 7, 2 * 16 * 8 * 8 * 7)
    assert part.work.product_redundancy == 2


def test_loops_that_never_run_do_nothing():
    """They stay where they have effects; what they would send is not counted either."""

    def steps(count):
        def body(_, y):
            mw.debug.print("{}", y[0, 0])
            return y @ y

        part = partitioned(lambda x: lax.fori_loop(0, count, body, x) + 1, (P("data"),), (of(64, 64),))
        return part.work.device, part.bytes_sent, sum(p.seconds for p in part.time().parts if p.op == "dot_general")

    assert [steps(2)[n] > 0 for n in range(3)] == [True] * 3
    work, sent, seconds = steps(0)
    assert (work, sent, seconds) == (64 * 64 // 4, 0, 0)


def test_a_manual_region_does_what_all_devices_do():
    def f(x, w):
        body = mw.shard_map(lambda x, w: x @ w, mesh=MESH, in_specs=(P("data"), P()), out_specs=P("data"))
        return body(x, w)

    part = partitioned(f, (P("data"), P()), (of(16, 8), of(8, 8)))
    assert part.work.product_redundancy == 1  # the program says that every device does it


def test_a_quarter_of_the_price_is_worth_repeating():
    """A small product whose result all devices need: gathering its operand costs next to nothing."""
    specs = P(None, "data"), P("data", None)
    part = partitioned(lambda x, y: x @ y, specs, (of(2048, 4), of(4, 2048)), P())
    assert part.work.redundancy > 1 and part.bytes_sent <= 2 * 2048 * 4 * 4
