"""Barriers and what else has operands that share no dimension: an axis may split each of them."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P
from meshwright.ops.control.markers import OptimizationBarrier
from meshwright.sharding import Layout
from meshwright.spmd.propagate import propagate
from meshwright.spmd.rules import rule_of

MESH = mw.AbstractMesh((4,), ("d",))


def of(*shape: int) -> mw.ShapeDtypeStruct:
    return mw.ShapeDtypeStruct(shape, np.float32)


def test_parts_of_a_rule():
    avals = tuple(mw.typeof(np.zeros(s, np.float32)) for s in ((4, 6), (), (4, 5)))
    one, two = rule_of(OptimizationBarrier(), avals).parts
    assert str(one.rule) == "[x0d0 x0d1], [] -> [x0d0 x0d1], []" and one.operands == one.results == (0, 1)
    assert str(two.rule) == "[x2d0 x2d1] -> [x2d0 x2d1]" and two.operands == two.results == (2,)
    rule = one.rule
    assert [part.rule for part in rule.parts] == [rule]


def test_each_operand_keeps_its_axis():
    def f(w, x):
        w, x = lax.optimization_barrier((w, x))
        return w * 2, x + 1

    split = NamedSharding(MESH, P("d"))
    args = np.arange(24, dtype=np.float32).reshape(8, 3), np.arange(40, dtype=np.float32).reshape(8, 5)
    part = mw.jit(f, in_shardings=(split, split), out_shardings=(split, split)).lower(*args).partition()
    assert not part.collectives
    part.verify(*args)
    assert "optimization_barrier" in part.as_text()


def test_axes_spread_through_a_barrier_along_each_operand():
    jaxpr = mw.make_jaxpr(lambda w, x: lax.optimization_barrier((w, x)))(*(np.zeros((8, 4), np.float32),) * 2)
    found = propagate(jaxpr.jaxpr, MESH, [Layout((("d",), ())), Layout(((), ("d",)))], [None, None])
    assert [found.layout(v).dims for v in jaxpr.jaxpr.outvars] == [(("d",), ()), ((), ("d",))]


@pytest.mark.parametrize("scan", [False, True])
def test_fully_sharded_layers_that_are_computed_again(scan):
    """Every weight is gathered forward and again backward, every gradient scattered, and no arithmetic repeated."""
    layers, width, hidden, batch = 3, 16, 64, 512

    def layer(x, p):
        return x + mnp.tanh(x @ p["up"]) @ p["down"]

    def loss(params, x):
        again = mw.checkpoint(layer)
        if scan:
            x, _ = lax.scan(lambda x, p: (again(x, p), None), x, params)
        else:
            for i in range(layers):
                x = again(x, {n: p[i] for n, p in params.items()})
        return (x * x).sum()

    sizes = {"up": (width, hidden), "down": (hidden, width)}
    split = NamedSharding(MESH, P("d"))
    if scan:
        params = {n: of(layers, *s) for n, s in sizes.items()}
        where = dict.fromkeys(sizes, NamedSharding(MESH, P(None, "d")))
    else:
        params = {n: [of(*s)] * layers for n, s in sizes.items()}
        where = {n: [split] * layers for n in sizes}
    step = mw.jit(mw.grad(loss), in_shardings=(where, split), out_shardings=where)
    part = step.lower(params, of(batch, width)).partition()
    total = layers * 2 * width * hidden * 4
    assert part.bytes_sent == 3 * total * 3 // 4
    assert part.work.product_redundancy == 1
    part.verify()


def test_a_barrier_that_is_read_stays():
    text = """
module @m attributes {mhlo.num_partitions = 4 : i32} {
  func.func public @main(%x: tensor<8x4xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"},
                         %y: tensor<8x6xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"})
      -> (tensor<8x4xf32>, tensor<8x6xf32>) {
    %t = stablehlo.create_token : !stablehlo.token
    %0:3 = stablehlo.optimization_barrier %x, %t, %y : tensor<8x4xf32>, !stablehlo.token, tensor<8x6xf32>
    return %0#0, %0#2 : tensor<8x4xf32>, tensor<8x6xf32>
  }
}"""
    program = mw.load(text)
    part = program.partition()
    assert "optimization_barrier" in program.as_text("stablehlo")
    assert "optimization_barrier" in part.as_text("stablehlo")
    assert not part.collectives
    part.verify()


def test_a_rule_that_sums_is_one_part():
    """Updates that share no dimension with the operand make every result partial where they are split."""

    def f(x, i, u):
        dims = lax.ScatterDimensionNumbers((1, 2), (), (0, 1))
        return lax.scatter_add(x, i, u, dims)

    x, u = np.zeros((7, 4), np.float32), np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    i = np.array([[0, 0], [2, 1], [5, 0], [3, 1]], np.int32)
    on = NamedSharding(MESH, P()), NamedSharding(MESH, P("d")), NamedSharding(MESH, P("d"))
    part = mw.jit(f, in_shardings=on, out_shardings=on[0]).lower(x, i, u).partition()
    part.verify(x, i, u)
    assert part.bytes_sent
