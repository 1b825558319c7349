"""Named axes of xmap that are computed in steps: values, gradients and layouts are those of the vectorised function."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.errors import ArgumentError, ArgumentTypeError, ShapeError
from meshwright.experimental.maps import Mesh, SerialLoop, serial_loop, xmap
from meshwright.sharding import PartitionSpec as P

GRID = Mesh(np.array(mw.devices()).reshape(4, 2), ("x", "y"))
A = np.arange(48, dtype=np.float32).reshape(8, 6) / 10
W = np.arange(6, dtype=np.float32)
ROWS = {"in_axes": ({0: "i"}, {}), "out_axes": ({1: "i"}, {})}
BOTH = {"in_axes": {0: "i", 1: "j"}, "out_axes": {0: "j", 1: "i"}}


def rows(x, w):
    return mnp.sin(x) * w, mnp.sum(w)


def outer(x):
    return mnp.exp(x) * mnp.arange(3)


@pytest.mark.parametrize("steps", [1, 2, 8])
def test_values_and_gradients(steps):
    def gradients(**options):
        return mw.grad(lambda a, w: mnp.sum(xmap(rows, **ROWS, **options)(a, w)[0] ** 2), (0, 1))(A, W)

    looped = {"axis_resources": {"i": SerialLoop(steps)}}
    mapped = xmap(rows, **ROWS, **looped)
    assert all(map(np.array_equal, mapped(A, W), xmap(rows, **ROWS)(A, W)))
    for got, want in zip(gradients(**looped), gradients()):
        np.testing.assert_allclose(got, want, rtol=1e-5)
    # of what is computed on the way, one share is alive
    (loop,) = [e for e in mapped.trace(A, W).jaxpr.eqns if e.op.name == "scan"]
    assert loop.op.length == steps
    assert {v.aval.shape for e in loop.op.jaxpr.eqns for v in e.outvars if e.op.name == "sin"} == {(8 // steps, 6)}


def test_loops_on_each_device():
    """Each device loops over its own part, which moves nothing; two loops are nested."""
    with GRID:
        mapped = xmap(outer, **BOTH, axis_resources={"i": (SerialLoop(2), "x"), "j": SerialLoop(3)})
        got, want = mapped(A), xmap(outer, **BOTH)(A)
        part = mapped.lower(A).partition()
    assert np.array_equal(got, want) and got.sharding.spec == P(None, "x")
    assert part.collectives == []
    with serial_loop("steps", 2):
        named = xmap(outer, **BOTH, axis_resources={"i": "steps"})
    assert np.array_equal(named(A), want)


REFUSALS = [
    (
        ShapeError,
        lambda: xmap(outer, **BOTH, axis_resources={"i": SerialLoop(3)}),
        "axis 'i' of size 8 is to be computed in 3 steps, which do not divide it; give SerialLoop a number that does",
    ),
    (
        ShapeError,
        lambda: xmap(outer, **BOTH, axis_resources={"i": ("x", SerialLoop(4))}),
        "axis 'i' of size 8 is to be computed in 4 steps on each of 4 devices, which do not divide it",
    ),
    (
        ArgumentError,
        lambda: xmap(lambda x: lax.psum(x, "i"), {0: "i"}, [...], axis_resources={"i": SerialLoop(2)}),
        "makes 'i' a SerialLoop, whose steps do not meet: collectives over loop axes are not supported; give the axis "
        "no loop, or reduce what xmap returns",
    ),
    (
        ArgumentError,
        lambda: xmap(lambda x: x + lax.axis_index("i"), {0: "i"}, {0: "i"}, axis_resources={"i": SerialLoop(2)}),
        "axis_index over 'i' at",
    ),
]


@pytest.mark.parametrize("kind, make, words", REFUSALS)
def test_refused_calls(refuses, kind, make, words):
    with GRID, refuses(kind, words):
        make()(A)


def test_refused_loops(refuses):
    with refuses(ArgumentError, "SerialLoop: expected at least one step, got 0"):
        SerialLoop(0)
    with refuses(ArgumentTypeError, "SerialLoop: expected a number of steps, got 'a'"):
        SerialLoop("a")
    with serial_loop("l", 2), refuses(ArgumentError, "a loop is already called 'l'"), serial_loop("l", 3):
        pass
