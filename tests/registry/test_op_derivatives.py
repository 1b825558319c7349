"""Derivatives of every op at double precision: against central differences, forwards against backwards, and twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy_eval import evaluate_fun, results_of
from samples import SAMPLES, Sample
from samples.elementwise import rows
from sharding_harness import difference

from meshwright.core.config import config
from meshwright.ir.op import Op
from meshwright.ir.tracing import trace_to_jaxpr, typeof
from meshwright.ir.verify import verify
from meshwright.ops.elementwise.base import Elementwise
from meshwright.runtime.array import default_sharding
from meshwright.runtime.compiling import compile_jaxpr
from meshwright.transforms.autodiff import jvp, vjp

#: half the distance of the two points of a central difference
STEP = 1e-5
WIDE = {np.dtype(np.float32): np.dtype(np.float64), np.dtype(np.complex64): np.dtype(np.complex128)}


@pytest.fixture(scope="module", autouse=True)
def double_precision() -> Iterator[None]:
    with config.override("enable_x64", True):
        yield


def widened(sample: Sample) -> tuple[Op, list[np.ndarray]]:
    """The op and operands in double precision."""
    changes = {f.name: getattr(sample.op, f.name) for f in dataclasses.fields(sample.op)}
    wide = {n: WIDE[v] for n, v in changes.items() if isinstance(v, np.dtype) and v in WIDE}
    op = dataclasses.replace(sample.op, **wide) if wide else sample.op
    return op, [np.asarray(a).astype(WIDE.get(a.dtype, a.dtype)) for a in sample.args]


def differentiable(sample: Sample) -> list[int]:
    """The operands to differentiate by."""
    return [i for i, a in enumerate(sample.args) if a.dtype.kind in "fc" and i not in sample.fixed and a.size]


def run(fun: Any, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Trace, verify, compile and run a function of flat arrays."""
    jaxpr = trace_to_jaxpr(fun, [typeof(a) for a in args])
    verify(jaxpr)
    executable = compile_jaxpr(jaxpr, "derivatives", [default_sharding()] * len(jaxpr.out_avals))
    return [np.asarray(y) for y in executable(args)]


def direction(x: np.ndarray, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    value = rng.normal(size=x.shape) + (1j * rng.normal(size=x.shape) if x.dtype.kind == "c" else 0)
    return np.asarray(value, x.dtype)


def inner(xs: Sequence[np.ndarray], ys: Sequence[np.ndarray]) -> float:
    """The pairing that transposes keep: without conjugation, the real part of it."""
    return float(sum(np.sum(np.asarray(x) * np.asarray(y)).real for x, y in zip(xs, ys, strict=True)))


CASES = [s for s in SAMPLES if s.smooth and differentiable(s)]


@pytest.mark.parametrize("sample", CASES, ids=lambda s: s.id)
def test_derivative(sample: Sample) -> None:
    op, args = widened(sample)
    places = differentiable(sample)
    given = [args[i] for i in places]
    outs = [i for i, y in enumerate(evaluate_fun(lambda *xs: results_of(op, *xs), args)) if y.dtype.kind in "fc"]
    if not outs:
        return  # comparisons, positions: nothing to differentiate

    def f(*values: Any) -> list[Any]:
        full = list(args)
        for i, v in zip(places, values):
            full[i] = v
        results = results_of(op, *full)
        return [results[i] for i in outs]

    v = [direction(x, 1 + i) for i, x in enumerate(given)]
    y0 = evaluate_fun(f, given)
    u = [direction(y, 11 + i) for i, y in enumerate(y0)]
    n, m = len(given), len(y0)

    def derivatives(*xs: Any) -> list[Any]:
        xs, vs, us = xs[:n], xs[n : 2 * n], xs[2 * n :]
        values, tangents = jvp(f, tuple(xs), tuple(vs))
        again, pull = vjp(f, *xs)
        return [*values, *tangents, *again, *pull(list(us))]

    found = run(derivatives, [*given, *v, *u])
    values, tangents, again, cotangents = found[:m], found[m : 2 * m], found[2 * m : 3 * m], found[3 * m :]
    steps = [evaluate_fun(f, [x + s * STEP * d for x, d in zip(given, v)]) for s in (1, -1)]
    for got, want in zip((*values, *again), (*y0, *y0), strict=True):
        assert not difference(got, want, 1e-12)
    for got, plus, minus in zip(tangents, *steps, strict=True):
        with np.errstate(invalid="ignore"):
            want = np.where(np.isnan(plus), 0, (plus - minus) / (2 * STEP))  # what a gather fills with is constant
        scale = max(1.0, float(np.max(np.abs(want), initial=0)))
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-7 * scale)
    assert [c.shape for c in cotangents] == [x.shape for x in given]
    left, right = inner(tangents, u), inner(v, cotangents)
    assert abs(left - right) <= 1e-9 * max(1.0, abs(left)), f"<Jv, u> = {left}, <v, J'u> = {right}"


ROWS = {op.name for op in rows()}
TWICE = [s for s in CASES if s.op.name in ROWS or (isinstance(s.op, Elementwise) and s.args[0].ndim == 2)]


@pytest.mark.parametrize("sample", [s for s in TWICE if all(a.dtype.kind == "f" for a in s.args)], ids=lambda s: s.id)
def test_second_derivative(sample: Sample) -> None:
    op, args = widened(sample)
    places = differentiable(sample)
    given = [args[i] for i in places]
    if evaluate_fun(lambda *xs: results_of(op, *xs), args)[0].dtype.kind != "f":
        return
    v = [direction(x, 1 + i) for i, x in enumerate(given)]

    def first(*values: Any) -> Any:
        def f(*inner_values: Any) -> Any:
            full = list(args)
            for i, value in zip(places, inner_values):
                full[i] = value
            return op.bind(*full)

        return jvp(f, values, tuple(v))[1]

    n = len(given)
    w = [direction(x, 21 + i) for i, x in enumerate(given)]
    u = direction(np.asarray(evaluate_fun(lambda *xs: [first(*xs)], given)[0]), 31)

    def second(*xs: Any) -> list[Any]:
        _, tangent = jvp(first, tuple(xs[:n]), tuple(xs[n : 2 * n]))
        _, pull = vjp(first, *xs[:n])
        return [tangent, *pull(xs[-1])]

    got, *cotangents = run(second, [*given, *w, u])
    plus, minus = (
        evaluate_fun(lambda *xs: [first(*xs)], [x + s * STEP * d for x, d in zip(given, w)])[0] for s in (1, -1)
    )
    want = (plus - minus) / (2 * STEP)
    scale = max(1.0, float(np.max(np.abs(want), initial=0)))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6 * scale)
    left, right = inner([got], [u]), inner(w, cotangents)
    assert abs(left - right) <= 1e-8 * max(1.0, abs(left))
