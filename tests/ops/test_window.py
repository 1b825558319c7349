"""Window reductions against jax: values, derivatives of every order, batching, what users may write, bad input."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from op_checks import check_batch, check_grad, check_value, values

from meshwright.api.jit import jit
from meshwright.core.avals import ShapedArray
from meshwright.core.config import config
from meshwright.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from meshwright.ir.tracing import trace_to_jaxpr
from meshwright.ops.elementwise.table import add, integer_pow, max_, mul, sin
from meshwright.ops.shape.broadcast_reduce import reduce_sum
from meshwright.ops.window import reductions as W
from meshwright.ops.window import select as S
from meshwright.stablehlo.emit import lower_to_stablehlo
from meshwright.transforms.autodiff import grad, jvp, vjp

REDUCTIONS = {
    "sum": (W.reduce_window_sum, lax.add, 0.0),
    "max": (W.reduce_window_max, lax.max, -np.inf),
    "min": (W.reduce_window_min, lax.min, np.inf),
    "prod": (W.reduce_window_prod, lax.mul, 1.0),
}
#: name: (shape, window parameters)
CASES = {
    "plain": ((2, 5, 4), ((1, 2, 3), (1, 1, 1), "VALID")),
    "same, strides": ((7, 2, 6), ((3, 1, 2), (2, 1, 3), "SAME")),
    "tiles": ((6, 2, 4), ((3, 1, 2), (3, 1, 2), "VALID")),
    "gaps": ((8, 3), ((2, 1), (3, 2), ((1, 0), (0, 0)))),
    "padding": ((5, 4), ((3, 2), (1, 2), ((2, 1), (0, 3)))),
    "negative padding": ((7, 4), ((2, 2), (2, 1), ((-2, 1), (1, -1)))),
    "dilated base": ((4, 3), ((3, 2), (1, 2), ((1, 0), (0, 2)), (2, 3))),
    "dilated window": ((7, 4), ((3, 2), (2, 1), ((1, 0), (0, 1)), None, (2, 3))),
    "dilated both": ((4, 5), ((2, 3), (1, 2), ((2, 1), (0, 1)), (3, 1), (2, 2))),
    "whole": ((3, 5), ((1, 5), (1, 1), "VALID")),
    "large window": ((13, 12), ((7, 6), (2, 3), ((3, 2), (1, -1)))),
    "no result": ((2, 3), ((3, 1), (1, 1), "VALID")),
}


def pair(kind, name):
    shape, args = CASES[name]
    ours, combine, init = REDUCTIONS[kind]
    x = values(*shape) if kind != "prod" else 1 + values(*shape) / 50
    if kind == "prod" and x.size > 4:
        x.flat[3] = 0  # a derivative that divides would fail
    return x, lambda x: ours(x, *args), lambda x: lax.reduce_window(x, init, combine, *args)


@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize("name", CASES)
def test_values_agree_with_jax(name, kind):
    x, ours, theirs = pair(kind, name)
    check_value(ours, theirs, x, tol=1e-4)


def windows_by_loop(x, combine, init, args):
    """A differentiable loop in jax, for what ``lax.reduce_window`` has no derivative of."""
    sizes, strides, padding, *dilations = args
    base, window = [d or (1,) * x.ndim for d in (*dilations, None, None)][:2]
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(x.shape, [(k - 1) * w + 1 for k, w in zip(sizes, window)], strides, padding)
    x = lax.pad(x, np.asarray(init, x.dtype), [(lo, hi, b - 1) for (lo, hi), b in zip(padding, base)])
    rows = [max(0, (n - (k - 1) * w - 1) // s + 1) for n, k, w, s in zip(x.shape, sizes, window, strides)]
    out = jnp.full(rows, init, x.dtype)
    for offset in itertools.product(*map(range, sizes)):
        index = tuple(slice(o * w, o * w + (m - 1) * s + 1 if m else o * w, s)
                      for o, w, m, s in zip(offset, window, rows, strides))  # fmt: skip
        out = combine(out, x[index])
    return out


@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize("name", CASES)
def test_derivatives_agree_with_a_loop(name, kind):
    x, ours, _ = pair(kind, name)
    _, combine, init = REDUCTIONS[kind]
    check_grad(ours, lambda x: windows_by_loop(x, combine, init, CASES[name][1]), x, tol=1e-3)


@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize("name", ["same, strides", "dilated both"])
def test_batching_is_a_loop(name, kind):
    x, ours, _ = pair(kind, name)
    check_batch(ours, x, tol=1e-5)
    # Products are differentiated by other ops, which have tests of their own.
    if kind != "prod":
        y = np.asarray(ours(x))
        check_batch(lambda x, t: jvp(ours, (x,), (t,))[1], x, values(*x.shape, seed=5), tol=1e-5)
        check_batch(lambda x, ct: vjp(ours, x)[1](ct)[0], x, values(*y.shape, seed=6), tol=1e-5)


@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("size", [3, 7])
def test_of_equal_values_the_first_is_selected(kind, size):
    """Both ways of scattering: offset by offset for the small window, by StableHLO's op for the large one."""
    x = np.repeat(values(2, 3) if kind == "max" else -values(2, 3), size, axis=1).astype(np.float32)
    x = np.concatenate([x] * size)
    ours, combine, init = REDUCTIONS[kind]
    args = (size, size), (2, 3), "SAME"
    check_grad(lambda x: ours(x, *args), lambda x: lax.reduce_window(x, init, combine, *args), x)


def test_small_windows_are_scattered_by_offset_and_large_ones_by_the_op():
    def text(size):
        x = values(12, 12)
        op = S.SelectAndScatterAdd((size, size), (1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1), "ge")
        rows = 13 - size
        jaxpr = trace_to_jaxpr(
            lambda s, x: [op.bind(s, x)], [ShapedArray((rows, rows), x.dtype), ShapedArray((12, 12), x.dtype)]
        )
        return str(lower_to_stablehlo(jaxpr))

    assert "stablehlo.select_and_scatter" not in text(2)
    assert "stablehlo.select_and_scatter" in text(6)


def test_what_overlapping_windows_select_is_made_once():
    """XLA's CPU compiler computes a value again in each loop that uses it: of these two, no loop is part of another."""

    def text(strides):
        gradient = jit(grad(lambda x: (reduce_max(x, (3, 3), strides, "VALID") ** 2).sum()))
        return gradient.lower(values(9, 9).astype(np.float32)).compile().as_text()

    reduce_max = REDUCTIONS["max"][0]
    assert text((2, 2)).count("call(") == 2
    assert "call(" not in text((3, 3))


@pytest.mark.parametrize("size, stride, low, high", [(3, 2, 1, 1), (3, 1, 0, 2), (2, 3, 1, 0)])
def test_gradients_of_uneven_windows(size, stride, low, high):
    """Ties, infinities and NaN among the values; the first that is selected gets everything."""
    x = np.array([[3, 3, -np.inf, 1, np.nan, 2, 2, np.inf, np.inf], [0, -0.0, 5, 5, 4, -np.inf, -np.inf, 1, 6]])
    op = S.SelectAndScatterAdd((1, size), (1, stride), ((0, 0), (low, high)), (1, 1), (1, 1), "ge")
    rows = (9 + low + high - size) // stride + 1
    source = np.arange(1.0, 2 * rows + 1).reshape(2, rows)
    padded = np.pad(x, ((0, 0), (low, high)), constant_values=-np.inf)
    expected = np.zeros(padded.shape)
    for i, j in np.ndindex(2, rows):
        seen = padded[i, j * stride : j * stride + size]
        best = 0
        for k in range(1, size):
            best = best if seen[best] >= seen[k] or seen[k] == -np.inf else k
        expected[i, j * stride + best] += source[i, j]
    np.testing.assert_array_equal(jit(op.bind)(source, x), expected[:, low : low + 9])


def test_integers_and_bools():
    x = values(5, 4).astype(np.int32)
    args = (2, 3), (1, 2), "SAME"
    check_value(
        lambda x: [W.reduce_window_max(x, *args), W.reduce_window_min(x, *args), W.reduce_window_sum(x, *args)],
        lambda x: [
            lax.reduce_window(x, np.int32(-(2**31)), lax.max, *args),
            lax.reduce_window(x, np.int32(2**31 - 1), lax.min, *args),
            lax.reduce_window(x, np.int32(0), lax.add, *args),
        ],
        x,
    )
    check_value(
        lambda x: [W.reduce_window(x, False, "or", *args), W.reduce_window(x, True, np.logical_and, *args)],
        lambda x: [
            lax.reduce_window(x, np.False_, lax.bitwise_or, *args),
            lax.reduce_window(x, np.True_, lax.bitwise_and, *args),
        ],
        x > 2,
    )


@pytest.mark.parametrize("kind", REDUCTIONS)
def test_higher_derivatives_in_double_precision(kind):
    ours, combine, init = REDUCTIONS[kind]
    args = (3, 2), (2, 1), ((1, 0), (0, 1))
    with config.override("enable_x64", True), jax.enable_x64(True):
        x = values(5, 4, dtype=np.float64) / 7
        energy = lambda x: reduce_sum(sin(ours(mul(x, x), *args)), (0, 1))  # noqa: E731
        theirs = lambda x: jnp.sin(windows_by_loop(x * x, combine, init, args)).sum()  # noqa: E731
        check_grad(grad(energy), jax.grad(theirs), x, tol=1e-9)
        again = lambda g, total: lambda x: total(g(x))  # noqa: E731
        check_grad(
            grad(again(grad(energy), lambda y: reduce_sum(mul(y, y), (0, 1)))),
            jax.grad(again(jax.grad(theirs), lambda y: (y * y).sum())),
            x, tol=1e-8,
        )  # fmt: skip


def test_average_pooling():
    x = values(2, 5, 4, 3)
    window = (1, 3, 2, 1), (1, 2, 2, 1), "SAME"

    def ours(x):
        ones = np.ones(x.shape, np.float32)
        return mul(W.reduce_window_sum(x, *window), integer_pow(W.reduce_window_sum(ones, *window), -1))

    def theirs(x):
        return lax.reduce_window(x, 0.0, lax.add, *window) / lax.reduce_window(jnp.ones(x.shape), 0.0, lax.add, *window)

    check_grad(ours, theirs, x)


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_any_parameters(data):
    rank = data.draw(st.integers(1, 2), "rank")
    kind = data.draw(st.sampled_from(["sum", "max", "min", "prod"]), "kind")

    def each(low, high, what):
        return tuple(data.draw(st.integers(low, high), what) for _ in range(rank))

    shape, sizes, strides, base, window = (
        each(1, 6, "n"), each(1, 4, "k"), each(1, 3, "stride"), each(1, 3, "base"), each(1, 3, "window")
    )  # fmt: skip
    pads = []
    for n, b in zip(shape, base):
        low = data.draw(st.integers(-2, 3), "low")
        pads.append((low, max(data.draw(st.integers(-2, 3), "high"), -((n - 1) * b + 1) - low)))
    args = sizes, strides, tuple(pads), base, window
    ours, combine, init = REDUCTIONS[kind]
    x = values(*shape) / 16
    check_grad(lambda x: ours(x, *args), lambda x: windows_by_loop(x, combine, init, args), x, tol=1e-3)


# --- reduce_window ------------------------------------------------------------------------------------------
def shifted_max(a, b):
    return max_(b, a)


@pytest.mark.parametrize(
    "computation, theirs, init",
    [
        (add, lax.add, 0), (np.add, lax.add, 0.0), ("add", lax.add, 0.0), ("sum", lax.add, 0.0),
        (lambda a, b: a + b, lax.add, 0.0), (max_, lax.max, -np.inf), (np.maximum, lax.max, -np.inf),
        (shifted_max, lax.max, -np.inf), (np.minimum, lax.min, np.inf), (np.multiply, lax.mul, 1.0),
        (add, lax.add, 2.5), (np.maximum, lax.max, 0.75), (np.minimum, lax.min, np.float32(-1)),
        (mul, lax.mul, 0.5),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dilated", [False, True])
def test_reduce_window(computation, theirs, init, dilated):
    x = values(6, 5) / 4
    args = ((3, 2), (2, 1), ((1, 2), (0, 1)), *(((2, 1), (1, 3)) if dilated else ()))
    check_value(
        lambda x: W.reduce_window(x, init, computation, *args),
        lambda x: lax.reduce_window(x, np.float32(init), theirs, *args),
        x, tol=1e-4,
    )  # fmt: skip


def test_traced_initial_value():
    x, init = values(6), np.float32(1.5)
    check_grad(
        lambda x, init: W.reduce_window(x, init, "max", (3,), (2,), "SAME"),
        lambda x, init: jnp.maximum(lax.reduce_window(x, -np.inf, lax.max, (3,), (2,), "SAME"), init),
        x, init,
    )  # fmt: skip


X = np.ones((4, 6), np.float32)
BAD = {
    "name": (lambda: W.reduce_window(X, 0.0, "median", (2, 2), (1, 1), "SAME"), ArgumentError, "'median'"),
    "no function": (lambda: W.reduce_window(X, 0.0, 3, (2, 2), (1, 1), "SAME"), ArgumentTypeError, "computation 3"),
    "several arrays": (lambda: W.reduce_window((X, X), 0.0, add, (2, 2), (1, 1), "SAME"), ArgumentError, "structure"),
    "init shape": (lambda: W.reduce_window(X, X[0], add, (2, 2), (1, 1), "SAME"), ShapeError, "scalar"),
    "rank": (lambda: W.reduce_window_sum(X, (2,), (1, 1), "SAME"), ShapeError, "window_dimensions needs 2"),
    "padding": (lambda: W.reduce_window_sum(X, (2, 2), (1, 1), [(1, 1)]), ArgumentError, "2 .low, high. pairs"),
    "word": (lambda: W.reduce_window_sum(X, (2, 2), (1, 1), "CIRCULAR"), ArgumentError, "'CIRCULAR'"),
    "stride": (lambda: W.reduce_window_max(X, (2, 2), (1, 0), "VALID"), ShapeError, "stride of .* 1 is 0"),
    "size": (lambda: W.reduce_window_max(X, (0, 2), (1, 1), "VALID"), ShapeError, "window size of window dimension 0"),
    "cut": (lambda: W.reduce_window_max(X, (1, 2), (1, 1), [(-3, -2), (0, 0)]), ShapeError, "cuts more"),
    "bool sum": (lambda: W.reduce_window_sum(X > 0, (2, 2), (1, 1), "SAME"), DTypeError, "bool"),
    "complex max": (lambda: jvp(lambda x: W.reduce_window_max(x, (2, 2), (1, 1), "SAME"), (X * 1j,), (X * 1j,)),
                    DTypeError, "no derivative"),
    "op rank": (lambda: W.ReduceWindowSum((2,), (1,), ((0, 0),), (1,), (1,)).bind(X), ShapeError, "2 entries"),
    "source": (lambda: S.SelectAndScatterAdd((2, 2), (2, 2), ((0, 0),) * 2, (1, 1), (1, 1), "ge").bind(X, X),
               ShapeError, r"windows over operand .* are \(2, 3\)"),
    "tangents": (lambda: S.SelectAndGatherAdd((2, 2), (2, 2), ((0, 0),) * 2, (1, 1), (1, 1), "ge").bind(X[1:], X),
                 ShapeError, "one shape"),
}  # fmt: skip


def test_the_last_of_equal_elements():
    x, size = np.random.default_rng(4).integers(0, 3, (9, 8)).astype(np.float32), (2, 3)
    windows = (size, (1, 2), ((1, 0), (0, 1)), (1, 1), (1, 1))
    opposite = (size, (1, 2), ((0, 1), (1, 0)), (1, 1), (1, 1))
    first, last = S.SelectAndScatterAdd(*opposite, "ge"), S.SelectAndScatterAdd(*windows, "ge", last=True)
    y = np.arange(36, dtype=np.float32).reshape(9, 4) + 1
    want = np.asarray(first.bind(y[::-1, ::-1], x[::-1, ::-1]))[::-1, ::-1]
    np.testing.assert_array_equal(last.bind(y, x), want)
    (back,) = vjp(lambda y: last.bind(y, x), y)[1](x * 3 + 1)
    gathered = S.SelectAndGatherAdd(*opposite, "ge").bind((x * 3 + 1)[::-1, ::-1], x[::-1, ::-1])
    np.testing.assert_array_equal(back, np.asarray(gathered)[::-1, ::-1])


@pytest.mark.parametrize(("call", "error", "message"), BAD.values(), ids=BAD)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
