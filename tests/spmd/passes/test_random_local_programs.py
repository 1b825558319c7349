"""Random per-device programs: after all passes every device computes the same and sends no more, with what starting a
collective counts."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from local_programs import MESH, all_slice, array, kinds, optimize, same, sent, trace

import meshwright.numpy as mnp
from meshwright import lax
from meshwright.ir.tracing import typeof
from meshwright.ir.verify import verify
from meshwright.spmd.prices import prices

AXES = st.sampled_from(["x", "y", "xy", "yx"])
SHAPES = st.lists(st.sampled_from([1, 2, 3, 6, 12]), min_size=1, max_size=3).map(tuple)
QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}
LARGEST = 1 << 12


def group(axes: str) -> int:
    return int(np.prod([MESH.shape[a] for a in axes]))


def reduced(draw: Any, x: Any) -> Any:
    kind = draw(st.sampled_from([lax.psum, lax.psum, lax.psum, lax.pmax, lax.pmin]))
    return kind(x, tuple(draw(AXES)))


def moved(draw: Any, x: Any) -> Any:
    """A gather, slice, scatter or all-to-all where the shape allows it."""
    axes, dim = draw(AXES), draw(st.integers(0, typeof(x).ndim - 1))
    n, shape = group(axes), typeof(x).shape
    kind = draw(st.sampled_from(["gather", "slice", "scatter", "exchange", "ring"]))
    if kind == "gather" and typeof(x).size * n <= LARGEST:
        return lax.all_gather(x, tuple(axes), axis=dim, tiled=True)
    if kind == "slice" and shape[dim] % n == 0:
        return all_slice(x, axes, dim)
    if kind == "scatter" and shape[dim] % n == 0:
        return lax.psum_scatter(x, tuple(axes), scatter_dimension=dim, tiled=True)
    if kind == "exchange" and shape[dim] % n == 0 and len(shape) > 1:
        return lax.all_to_all(x, tuple(axes), dim, (dim + 1) % len(shape), tiled=True)
    if kind == "ring":
        return lax.ppermute(x, axes[0], [(i, (i + 1) % group(axes[0])) for i in range(group(axes[0]))])
    return -x


def local(draw: Any, x: Any) -> Any:
    dim = draw(st.integers(0, typeof(x).ndim - 1))
    match draw(st.sampled_from(["neg", "scale", "slice", "sum", "max", "transpose", "narrow", "sin"])):
        case "scale":
            return x * np.float32(0.5)
        case "slice":
            return lax.slice_in_dim(x, 0, (typeof(x).shape[dim] + 1) // 2, axis=dim)
        case "sum" if typeof(x).ndim > 1:
            return mnp.sum(x, axis=dim)
        case "max" if typeof(x).ndim > 1:
            return mnp.max(x, axis=dim)
        case "transpose":
            return mnp.transpose(x)
        case "narrow":
            return x.astype(np.float16).astype(np.float32)
        case "sin":
            return mnp.sin(x)
    return -x


def joined(draw: Any, x: Any, values: list[Any]) -> Any:
    others = [v for v in values if typeof(v).shape == typeof(x).shape]
    return draw(st.sampled_from([mnp.add, mnp.subtract, mnp.maximum, mnp.multiply]))(x, draw(st.sampled_from(others)))


def looped(draw: Any, x: Any, values: list[Any]) -> Any:
    w = draw(st.sampled_from(values))
    axes = tuple(draw(AXES))
    if draw(st.booleans()):
        return lax.scan(lambda c, _: (c * np.float32(0.5) + lax.psum(w, axes).mean(), lax.pmax(c, axes)), x, None, 3)[0]
    return lax.cond(mnp.sum(w) > 1e9, lambda c: lax.psum(c, axes), lambda c: c - lax.pmax(w, axes).mean(), x)


def check(data: st.DataObject) -> None:
    axes = st.sampled_from(["", "x", "y", "xy"])
    inputs = [array(*data.draw(SHAPES), over=data.draw(axes)) for _ in range(data.draw(st.integers(1, 3)))]

    def program(*args: Any) -> list[Any]:
        values = list(args)
        for _ in range(data.draw(st.integers(2, 9))):
            x = data.draw(st.sampled_from(values[-3:]))
            match data.draw(st.sampled_from(["reduce", "move", "move", "local", "local", "join", "join", "loop"])):
                case "reduce":
                    values.append(reduced(data.draw, x))
                case "move":
                    values.append(moved(data.draw, x))
                case "local":
                    values.append(local(data.draw, x))
                case "join":
                    values.append(joined(data.draw, x, values))
                case "loop":
                    values.append(looped(data.draw, x, values))
        return values[-2:]

    before = trace(program, inputs)
    limit = data.draw(st.sampled_from([0, 0, 256]), label="combine_bytes")
    after, changes = optimize(before, inputs, limit)
    verify(after, "after all passes")
    latency = prices(MESH).latency
    assert all(
        c.bytes_sent[1] + latency * c.collectives[1] <= c.bytes_sent[0] + latency * c.collectives[0] for c in changes
    ), changes
    assert sent(after) + latency * len(kinds(after)) <= sent(before) + latency * len(kinds(before))
    # Halves are rounded: a sum in another order may fall on the other side.
    same(before, after, inputs, 4e-3)


@settings(max_examples=15, derandomize=True, **QUIET)
@given(st.data())
def test_random_local_programs(data):
    check(data)


@pytest.mark.slow
@settings(max_examples=int(os.environ.get("MESHWRIGHT_FUZZ_EXAMPLES", "1000")), **QUIET)
@given(st.data())
def test_many_random_local_programs(data):
    check(data)
