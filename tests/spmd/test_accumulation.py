"""Gradients that a loop accumulates over microbatches: one reduction after the loop, however they are accumulated."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P

MESH = mw.AbstractMesh((4,), ("data",))
STEPS, BATCH, INPUTS, OUTPUTS = 6, 8, 12, 10
RNG = np.random.default_rng(5)


def gradient(w: Any, x: Any) -> Any:
    return mw.grad(lambda w: (mnp.tanh(x @ w) ** 2).sum())(w)


def plain(total, g, i):
    return total + g


def scaled(total, g, i):
    return total * 0.9 + g


def of_a_traced_scale(total, g, i):
    return g + total * mnp.sqrt(i + 1.0)


def running_mean(total, g, i):
    return total + (g - total) / (i + 1.0)


def skipped(total, g, i):
    return mnp.where(i % 2 == 0, total + g, total)


ACCUMULATED = [plain, scaled, of_a_traced_scale, running_mean, skipped]


def accumulate(add: Any, dtype: Any = np.float32) -> Any:
    def run(w, xs):
        def body(carry, x):
            total, i = carry
            g = gradient(w.astype(dtype), x.astype(dtype)).astype(np.float32)
            return (add(total, g, i), i + 1), None

        return lax.scan(body, (mnp.zeros((INPUTS, OUTPUTS)), np.float32(0)), xs)[0][0]

    return run


def partitioned(f: Any, *out: str, **tolerance: float) -> Any:
    args = RNG.normal(size=(INPUTS, OUTPUTS)).astype(np.float32), RNG.normal(size=(STEPS, BATCH, INPUTS)).astype("f")
    shardings = NamedSharding(MESH, P()), NamedSharding(MESH, P(None, "data"))
    part = mw.jit(f, in_shardings=shardings, out_shardings=NamedSharding(MESH, P(*out))).lower(*args).partition()
    part.verify(*args, **tolerance)
    return part


@pytest.mark.parametrize("add", ACCUMULATED, ids=lambda f: f.__name__)
def test_one_reduction_after_the_loop(add):
    (found,) = partitioned(accumulate(add)).collectives
    assert (found.kind, found.count) == ("all_reduce", 1)
    assert found.bytes_sent == 2 * INPUTS * OUTPUTS * 4 * 3 // 4


def test_narrow_gradients_are_added_up_in_the_wider_type():
    (found,) = partitioned(accumulate(plain, ml_dtypes.bfloat16), rtol=2e-2, atol=2e-2).collectives
    assert (found.kind, found.count, found.operand.dtype) == ("all_reduce", 1, np.float32)


def test_a_narrow_gradient_alone_is_sent_as_it_is():
    """Without a loop there is nothing to gain by converting first: twice the bytes."""

    def f(w, xs):
        return gradient(w.astype(ml_dtypes.bfloat16), xs[0].astype(ml_dtypes.bfloat16)).astype(np.float32)

    (found,) = partitioned(f, rtol=2e-2, atol=2e-2).collectives
    assert found.operand.dtype == ml_dtypes.bfloat16


def test_an_accumulated_gradient_that_is_split_is_scattered_once():
    (found,) = partitioned(accumulate(scaled), "data").collectives
    assert (found.kind, found.count) == ("reduce_scatter", 1)


def test_what_uses_the_sum_in_the_loop_is_right():
    """Sums that are clipped, multiplied by themselves or that a constant is added to are completed in every step."""

    def clipped(total, g, i):
        return mnp.minimum(total + g, 3.0)

    for add in (clipped, lambda total, g, i: total + g * total, lambda total, g, i: total + g + 1.0):
        partitioned(accumulate(add))


@pytest.mark.parametrize("reduce", [mnp.max, mnp.min, mnp.prod])
def test_other_partial_results_than_sums_are_not_added_up(reduce):
    """The sum of maxima of parts is not the maximum of sums."""

    def f(w, xs):
        return lax.scan(lambda c, x: (c + reduce(x, 0), None), mnp.zeros(INPUTS), xs)[0]

    partitioned(f)


def test_of_two_products_one_is_partial():
    """A recurrent layer: the product of the input is summed up beside that of the state, which every device has."""

    def of(*shape: int, spec: Any = ()) -> Any:
        return mw.ShapeDtypeStruct(shape, np.float32, sharding=NamedSharding(MESH, P(*spec)))

    def cell(xs: Any, w: Any, u: Any) -> Any:
        return lax.scan(lambda h, x: (mnp.tanh(x @ w + h @ u), None), mnp.zeros((BATCH, OUTPUTS)), xs)[0]

    xs = of(STEPS, BATCH, INPUTS, spec=(None, None, "data"))
    part = mw.jit(cell).lower(xs, of(INPUTS, OUTPUTS, spec=("data",)), of(OUTPUTS, OUTPUTS)).partition()
    (found,) = part.collectives
    assert found.reason.startswith("the result of dot_general"), found.reason
    assert "select" not in str(part.jaxpr)
    part.verify()


@pytest.mark.parametrize("rematerialized", [False, True])
def test_gradients_that_a_scan_stacks_are_reduced_in_the_type_they_are_computed_in(rematerialized):
    """Gradients of bfloat16 products that are converted for float32 weights, as layers in a scan have them: half the
    bytes of reducing what is stacked. (So does XLA.)"""
    layers, width = 3, 128

    def layer(h, w):
        return mnp.tanh(h @ w.astype(ml_dtypes.bfloat16)), None

    def step(ws, x):
        body = mw.checkpoint(layer) if rematerialized else layer
        return ws - mw.grad(lambda ws: lax.scan(body, x, ws)[0].astype(np.float32).sum())(ws)

    weights, rows = NamedSharding(MESH, P(None, "data")), NamedSharding(MESH, P("data"))
    types = [mw.ShapeDtypeStruct((layers, width, width), np.float32)]
    types.append(mw.ShapeDtypeStruct((512, width), ml_dtypes.bfloat16))
    part = mw.jit(step, in_shardings=(weights, rows), out_shardings=weights).lower(*types).partition()
    sums = [c for c in part.collectives if c.kind in ("reduce_scatter", "all_reduce")]
    assert sum(c.bytes_sent for c in sums) == layers * 2 * width * width * 3 // 4
    part.verify(rtol=0.1, atol=0.1)


@pytest.mark.parametrize("stacked", [False, True])
def test_gradients_of_stacked_layers_are_reduced_once_for_all_microbatches(stacked):
    """Each microbatch's gradients are stacked by a scan over layers. Reduced there, each sends its own."""
    layers, width = 3, 16

    def gradients(ws, x):
        def layer(h, w):
            return mnp.tanh(h @ w.astype(ml_dtypes.bfloat16)), None

        return mw.grad(lambda ws: lax.scan(layer, x, ws)[0].astype(np.float32).sum())(ws)

    def step(ws, xs):
        if stacked:
            return lax.scan(lambda total, x: (total + gradients(ws, x), None), mnp.zeros(ws.shape), xs)[0]
        return sum(gradients(ws, xs[i]) for i in range(STEPS))

    types = [mw.ShapeDtypeStruct((layers, width, width), np.float32)]
    types.append(mw.ShapeDtypeStruct((STEPS, 64, width), ml_dtypes.bfloat16))
    shardings = NamedSharding(MESH, P()), NamedSharding(MESH, P(None, "data"))
    part = mw.jit(step, in_shardings=shardings, out_shardings=shardings[0]).lower(*types).partition()
    (found,) = part.collectives
    assert (found.kind, found.count) == ("all_reduce", 1)
    assert found.bytes_sent == 2 * layers * width * width * 4 * 3 // 4
    part.verify(rtol=0.1, atol=0.1)


@pytest.mark.parametrize("kept", [lambda c: c.T, lambda c: lax.dynamic_slice(c, (0, 0), c.shape), lambda c: c[::-1]])
def test_what_moves_the_sum_in_each_step_is_no_accumulation(kept):
    """Tiles of a square array that is transposed are other tiles, of the same shape."""
    mesh, width = mw.AbstractMesh((2, 2), ("x", "y")), 8

    def f(total, a, b):
        return lax.scan(lambda c, ab: (kept(c) * 0.5 + ab[0] @ ab[1], None), total, (a, b))[0]

    args = [RNG.normal(size=s).astype("f4") for s in ((width, width), (3, width, width), (3, width, width))]
    tiled, *split = (NamedSharding(mesh, P(*spec)) for spec in (("x", "y"), (None, None, "x"), (None, "x", None)))
    rows, columns = (NamedSharding(mesh, P(*spec)) for spec in ((None, "x", None), (None, None, "y")))
    for products in (split, (rows, columns)):
        for out in (tiled, NamedSharding(mesh, P("y", "x")), NamedSharding(mesh, P())):
            mw.jit(f, in_shardings=(tiled, *products), out_shardings=out).lower(*args).partition().verify(*args)
