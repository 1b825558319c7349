"""The rough idea of a peak: counted by hand for small programs, and not far from predictions for larger ones."""

from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P
from meshwright.ir.jaxpr import Jaxpr
from meshwright.spmd.memory.estimate import estimate
from meshwright.spmd.memory.predict import predict


def traced(fun: Any, *shapes: tuple[int, ...]) -> Jaxpr:
    return mw.make_jaxpr(fun)(*(mw.ShapeDtypeStruct(s, np.float32) for s in shapes)).jaxpr


def test_a_value_is_held_until_its_last_use():
    """While the second product is computed: two arguments, the first one's result, and its own, which is the result."""
    jaxpr = traced(lambda x, y: (x @ y) @ y, (8, 4), (4, 4))
    assert estimate(jaxpr) == 4 * (8 * 4 + 4 * 4 + 8 * 4 + 8 * 4)
    # With a third one the first result is gone, and there are as many bytes.
    assert estimate(traced(lambda x, y: ((x @ y) @ y) @ y, (8, 4), (4, 4))) == 4 * (8 * 4 + 4 * 4 + 3 * 8 * 4)


def test_arguments_and_results_are_held_all_the_time():
    jaxpr = traced(lambda x, y: (mnp.sin(x), x, y @ y), (5, 3), (6, 6))
    assert estimate(jaxpr) == 4 * (2 * 5 * 3 + 2 * 6 * 6)


def test_what_a_loop_needs_inside_counts_once():
    def f(x: Any) -> Any:
        return lax.fori_loop(0, 9, lambda _, c: mnp.tanh(mnp.concatenate([c] * 10))[: c.shape[0]], x)

    plain = 4 * (32 + 32)  # the argument, the result
    wide = 2 * 4 * 320  # what is ten times as wide, and its tanh
    assert plain + wide <= estimate(traced(f, (32,))) <= plain + wide + 4 * 32 + 64


def _step(params: Any, x: Any) -> Any:
    def loss(params: Any) -> Any:
        value = x
        for first, second in params:
            value = value + mnp.tanh(value @ first) @ second
        return (value * value).mean()

    return mw.tree.map(lambda p, g: p - 0.1 * g, params, mw.grad(loss)(params))


@pytest.mark.parametrize("layers", [1, 3, 8])
def test_ratios_of_estimates_are_near_those_of_predictions(layers):
    mesh = mw.AbstractMesh((4, 2), ("data", "model"))

    def of(shape: tuple[int, ...], *spec: Any) -> Any:
        return mw.ShapeDtypeStruct(shape, np.float32, sharding=NamedSharding(mesh, P(*spec)))

    found = []
    for rows in (16, 1024):
        weights = [(of((64, 256), None, "model"), of((256, 64), "model"))] * layers
        jaxpr = mw.jit(_step).lower(weights, of((rows, 64), "data")).partition().jaxpr
        found.append((estimate(jaxpr.jaxpr), predict(jaxpr, mesh).peak_bytes))
    (small, small_peak), (large, large_peak) = found
    assert large > small
    assert 1 / 1.6 < (large / small) / (large_peak / small_peak) < 1.6
