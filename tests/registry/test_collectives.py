"""Collectives under ``vmap(axis_name)``, nested over two axes in both orders, against NumPy; and their transposes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy_eval import evaluate_fun
from samples import floats, ints

from meshwright.ir.state import extend_axis_env
from meshwright.lax import axis_index
from meshwright.ops.collective.all_reduce import ALL_REDUCE, Pmax, Pmin, Pprod, Psum
from meshwright.ops.collective.exchange import AllToAll, Ppermute
from meshwright.ops.collective.tiles import AllGather, AllGatherInvariant, AllSlice, ReduceScatter
from meshwright.transforms.autodiff import jvp, vjp
from meshwright.transforms.vmap import vmap

SIZES = {"a": 2, "b": 3}
#: axes of a collective, the first being the major one
AXES = [("a",), ("b",), ("a", "b"), ("b", "a")]
#: a device's array: divisible by 6 along both dimensions
SHAPE = (6, 12)


def groups(axes: Sequence[str]) -> list[list[tuple[int, int]]]:
    """The devices (a, b) of each group, in order along ``axes``."""
    found: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    names = list(SIZES)
    for place in itertools.product(*(range(SIZES[n]) for n in axes)):
        along = dict(zip(axes, place))
        others = [n for n in names if n not in axes]
        for rest in itertools.product(*(range(SIZES[n]) for n in others)):
            at = {**along, **dict(zip(others, rest))}
            found.setdefault(rest, []).append((at["a"], at["b"]))
    return list(found.values())


def tile(x: np.ndarray, dim: int, n: int, i: int) -> np.ndarray:
    return np.split(x, n, dim)[i]


def collectives(axes: tuple[str, ...]) -> dict[str, tuple[Any, Callable[[list[np.ndarray]], list[np.ndarray]]]]:
    """Each collective over ``axes``, with what it does to the arrays of one group in NumPy."""
    sizes = tuple(SIZES[n] for n in axes)
    n = int(np.prod(sizes))
    shift = tuple((i, (i + 1) % n) for i in range(n))
    some = ((0, n - 1), (n - 1, 1))[: n - 1] if n > 2 else ((0, 1),)

    def permuted(xs: list[np.ndarray], perm: Sequence[tuple[int, int]]) -> list[np.ndarray]:
        out = [np.zeros_like(x) for x in xs]
        for s, t in perm:
            out[t] = xs[s]
        return out

    def swapped(xs: list[np.ndarray], split: int, concat: int) -> list[np.ndarray]:
        return [np.concatenate([tile(x, split, n, i) for x in xs], concat) for i in range(n)]

    found: dict[str, tuple[Any, Callable[[list[np.ndarray]], list[np.ndarray]]]] = {
        "psum": (Psum(axes, sizes), lambda xs: [sum(xs)] * n),
        "pmax": (Pmax(axes, sizes), lambda xs: [np.max(xs, 0)] * n),
        "pmin": (Pmin(axes, sizes), lambda xs: [np.min(xs, 0)] * n),
        "pprod": (Pprod(axes, sizes), lambda xs: [np.prod(xs, 0, dtype=xs[0].dtype)] * n),
        "shift": (Ppermute(axes, sizes, shift), lambda xs: permuted(xs, shift)),
        "some": (Ppermute(axes, sizes, some), lambda xs: permuted(xs, some)),
    }
    for d in (0, 1):
        found[f"all_gather_invariant{d}"] = (
            AllGatherInvariant(axes, sizes, d),
            lambda xs, d=d: [np.concatenate(xs, d)] * n,
        )
        found[f"all_gather{d}"] = AllGather(axes, sizes, d), lambda xs, d=d: [np.concatenate(xs, d)] * n
        found[f"all_slice{d}"] = (
            AllSlice(axes, sizes, d),
            lambda xs, d=d: [tile(x, d, n, i) for i, x in enumerate(xs)],
        )
        for kind, total in (("sum", np.sum), ("max", np.max)):
            found[f"reduce_scatter{d}{kind}"] = (
                ReduceScatter(axes, sizes, d, kind),
                lambda xs, d=d, f=total: [tile(f(np.stack(xs), 0), d, n, i) for i in range(n)],
            )
        found[f"all_to_all{d}"] = AllToAll(axes, sizes, d, 1 - d), lambda xs, d=d: swapped(xs, d, 1 - d)
    return found


def on_devices(op: Any, order: Sequence[str]) -> Callable[[Any], Any]:
    """``op`` on arrays [a, b, ...], the axes batched in ``order``, outermost first."""
    fun: Callable[[Any], Any] = op.bind
    for name in reversed(order):
        other_inside = list(order).index(name) == 0
        dim = 0 if name == "a" or not other_inside else 1
        fun = vmap(fun, in_axes=dim, out_axes=dim, axis_name=name)
    return fun


def reference(axes: Sequence[str], f: Callable[[list[np.ndarray]], list[np.ndarray]], x: np.ndarray) -> np.ndarray:
    out: dict[tuple[int, int], np.ndarray] = {}
    for group in groups(axes):
        out.update(zip(group, f([x[i] for i in group])))
    return np.stack([np.stack([out[a, b] for b in range(3)]) for a in range(2)])


CASES = [(axes, name) for axes in AXES for name in collectives(axes)]


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")], ids="".join)
@pytest.mark.parametrize(("axes", "name"), CASES, ids=[f"{name}-{'.'.join(axes)}" for axes, name in CASES])
def test_collective(axes: tuple[str, ...], name: str, order: tuple[str, str]) -> None:
    op, f = collectives(axes)[name]
    x = ints(2, 3, *SHAPE, low=-200)
    if name == "pprod":
        x = x % 3 + 1
    (got,) = evaluate_fun(lambda v: [on_devices(op, order)(v)], [x])
    np.testing.assert_array_equal(got, reference(axes, f, x))


@pytest.mark.parametrize("axes", AXES, ids=".".join)
@pytest.mark.parametrize("kind", ["and", "or"])
def test_bits(axes: tuple[str, ...], kind: str) -> None:
    sizes = tuple(SIZES[n] for n in axes)
    x = ints(2, 3, 4, low=0) * 37 % 64
    (got,) = evaluate_fun(lambda v: [on_devices(ALL_REDUCE[kind](axes, sizes), ("a", "b"))(v)], [x])
    combine = np.bitwise_and if kind == "and" else np.bitwise_or
    np.testing.assert_array_equal(got, reference(axes, lambda xs: [combine.reduce(xs)] * len(xs), x))


@pytest.mark.parametrize("axes", AXES, ids=".".join)
def test_axis_index(axes: tuple[str, ...]) -> None:
    (got,) = evaluate_fun(
        lambda v: [vmap(vmap(lambda x: x + axis_index(axes), axis_name="b"), axis_name="a")(v)],
        [np.zeros((2, 3), np.int32)],
    )
    want = reference(axes, lambda xs: [np.asarray(i) for i in range(len(xs))], np.zeros((2, 3)))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", ["psum", "pmax", "pprod", "shift", "all_gather0", "all_slice1", "reduce_scatter0sum"])
def test_replicated_operand(name: str) -> None:
    """An operand without the batch dimension: all devices hold the same."""
    op, f = collectives(("b",))[name]
    x = ints(*SHAPE, low=1) % 5
    ((got),) = evaluate_fun(
        lambda v: [vmap(lambda i: op.bind(v) + i * 0, axis_name="b")(np.zeros((3, 1, 1), np.int32))], [x]
    )
    np.testing.assert_array_equal(got, np.stack(f([x] * 3)))


LINEAR = [(axes, name) for axes, name in CASES if name not in ("pmax", "pmin", "pprod") and not name.endswith("max")]


@pytest.mark.parametrize(("axes", "name"), LINEAR, ids=[f"{name}-{'.'.join(axes)}" for axes, name in LINEAR])
def test_transpose(axes: tuple[str, ...], name: str) -> None:
    """``<J v, u> == <v, J' u>`` summed over all devices, the derivative being taken of the whole batched function."""
    op, _ = collectives(axes)[name]
    x, v = floats(2, 3, *SHAPE), floats(2, 3, *SHAPE, seed=1)
    fun = on_devices(op, ("a", "b"))
    (y,) = evaluate_fun(lambda t: [fun(t)], [x])
    u = floats(*y.shape, seed=2)

    def both(x: Any, v: Any, u: Any) -> list[Any]:
        return [jvp(fun, (x,), (v,))[1], vjp(fun, x)[1](u)[0]]

    tangent, cotangent = evaluate_fun(both, [x, v, u])
    left, right = np.sum(tangent.astype(np.float64) * u), np.sum(v.astype(np.float64) * cotangent)
    assert abs(left - right) <= 1e-4 * max(1, abs(left), float(np.abs(tangent).max()))


@pytest.mark.parametrize("name", ["psum", "shift", "all_gather0", "all_slice1", "reduce_scatter0sum", "all_to_all0"])
def test_transpose_inside(name: str) -> None:
    """Differentiated inside the ``vmap``: the transpose of a collective is a collective."""
    op, _ = collectives(("b",))[name]
    x, v = floats(3, *SHAPE), floats(3, *SHAPE, seed=1)
    fun = vmap(op.bind, axis_name="b")
    (y,) = evaluate_fun(lambda t: [fun(t)], [x])
    u = floats(*y.shape, seed=2)
    inside = vmap(lambda x, u: vjp(op.bind, x)[1](u)[0], axis_name="b")
    cotangent, tangent = evaluate_fun(lambda x, v, u: [inside(x, u), fun(v)], [x, v, u])
    left, right = np.sum(tangent.astype(np.float64) * u), np.sum(v.astype(np.float64) * cotangent)
    assert abs(left - right) <= 1e-4 * max(1, abs(left))


@pytest.mark.parametrize("name", ["pmax", "pmin"])
def test_tangent_of_extremum(name: str) -> None:
    """The device that has the extremum gives the tangent."""
    op, _ = collectives(("a", "b"))[name]
    x, t = floats(2, 3, 5), floats(2, 3, 5, seed=1)
    fun = on_devices(op, ("a", "b"))
    (tangent,) = evaluate_fun(lambda x, t: [jvp(fun, (x,), (t,))[1]], [x, t])
    flat, flat_t = x.reshape(6, 5), t.reshape(6, 5)
    best = flat.argmax(0) if name == "pmax" else flat.argmin(0)
    np.testing.assert_allclose(tangent, np.broadcast_to(flat_t[best, range(5)], (2, 3, 5)), rtol=1e-6)


def test_parts_of_an_axis() -> None:
    """Collectives over sub-axes of a mesh axis: batched over both parts, one may be named alone."""
    parts = ("x:(1)2", "x:(2)3")
    x = ints(2, 3, 4, low=0)

    def local(v: Any) -> list[Any]:
        whole = Psum(parts, (2, 3)).bind(v)
        minor = AllGather(parts[1:], (3,), 0).bind(v)
        major = Ppermute(parts[:1], (2,), ((0, 1), (1, 0))).bind(v)
        return [whole, minor, major]

    def run(v: Any) -> list[Any]:
        with extend_axis_env({parts[0]: 2, parts[1]: 3}):
            return vmap(vmap(local, axis_name=parts[1]), axis_name=parts[0])(v)

    whole, minor, major = evaluate_fun(run, [x])
    np.testing.assert_array_equal(whole, np.broadcast_to(x.sum((0, 1)), x.shape))
    np.testing.assert_array_equal(minor, np.broadcast_to(x.reshape(2, 1, 12), (2, 3, 12)))
    np.testing.assert_array_equal(major, x[::-1])
