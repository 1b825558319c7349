"""Random programs of one device for ``shard_map``, the same in JAX and here: both sides run this module.

A program is a function of a backend (:class:`Backend`), so that one seed gives one program. All values of a region have
one shape on each device, and are kept small; collectives that change shapes are followed by what brings them back. The
second value of a region varies over all its axes.

There are three kinds: ``checked`` and ``unchecked`` programs over two axes, and ``nested`` ones, which are manual along
one axis and hold regions that are so along the other.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

AXES = {"d": 2, "e": 2}
KINDS = ("checked", "unchecked", "nested")


@dataclass(frozen=True)
class Backend:
    """A library by its functions."""

    np: Any
    lax: Any
    lib: Any
    mesh: Any
    P: Any
    inner_mesh: Any = None


def arguments(seed: int, kind: str) -> list[np.ndarray]:
    """Two arrays to be cut, and two that devices share."""
    rng = np.random.default_rng(seed)
    shapes = [(8, 2), (8, 2 if kind == "nested" else 4), (4, 2), (4, 2)]
    return [rng.normal(size=s).astype(np.float32) for s in shapes]


class Program:
    """The per-device function of a seed."""

    def __init__(self, seed: int, kind: str, depth: int = 2) -> None:
        self.random = random.Random(seed)
        # Where nothing is checked, JAX's transpose of the other takes cotangents to be the same on all devices.
        self.gathers = "varying" if kind == "unchecked" else "invarying"
        self.axes = ["d"] if kind == "nested" else ["d", "e"]
        self.steps = [self._step(depth) for _ in range(self.random.randint(2, 5))]
        self.specs = [self._spec() for _ in range(self.random.randint(1, 2))]

    def some_axes(self) -> tuple[str, ...]:
        """One or more of the axes that are manual here."""
        return self.random.choice([*((a,) for a in self.axes * 2), tuple(self.axes)])

    def axis(self) -> str:
        """One of the axes that are manual here."""
        return self.random.choice(self.axes)

    def _spec(self) -> tuple[str, ...]:
        return self.random.choice([tuple(self.axes)] * 12 + [("d",), tuple(self.axes[1:]), ()])

    def _step(self, depth: int) -> Callable[[Backend, list[Any]], Any]:
        kinds = [_unary, _binary, _binary, _reduce, _reduce, _moved, _index, _cast]
        if depth:
            kinds += [_scanned, _branch, _gradient, _gradient, _wrapped, _custom, _mapped]
        if depth and len(self.axes) == 1:
            kinds += [_region] * 4
        return self.random.choice(kinds)(self, depth)

    def inner(self, depth: int, n: int = 2) -> Callable[[Backend, list[Any]], Any]:
        """A small program of values: the last value it makes."""
        steps = [self._step(depth - 1) for _ in range(self.random.randint(1, n))]

        def run(b: Backend, values: list[Any]) -> Any:
            values = list(values)
            for step in steps:
                values.append(_small(b, step(b, values)))
            return values[-1]

        return run

    def pick(self) -> Callable[[list[Any]], Any]:
        """One of the values, later ones more often."""
        place = self.random.random() ** 0.5
        return lambda values: values[int(place * len(values))]

    def __call__(self, b: Backend, *args: Any) -> tuple[Any, ...]:
        values = list(args)
        for step in self.steps:
            values.append(_small(b, step(b, values)))
        return tuple(values[-1 - i] for i in range(len(self.specs)))


def _small(b: Backend, x: Any) -> Any:
    return x / b.np.sqrt(1 + 0.1 * x * x)


# --- steps --------------------------------------------------------------------------------------------------
def _unary(p: Program, depth: int) -> Any:
    pick, kind, factor = p.pick(), p.random.randrange(4), p.random.choice([0.5, -1.5, 2.0])
    return lambda b, v: [b.np.sin, b.np.tanh, lambda x: x * factor, lambda x: x + factor][kind](pick(v))


def _binary(p: Program, depth: int) -> Any:
    one, two, kind = p.pick(), p.pick(), p.random.randrange(3)
    return lambda b, v: [lambda x, y: x * y, lambda x, y: x - y, lambda x, y: b.np.where(x > y, x, 0.5 * y)][kind](
        one(v), two(v)
    )


def _reduce(p: Program, depth: int) -> Any:
    pick, axes, kind = p.pick(), p.some_axes(), p.random.randrange(5)

    def run(b: Backend, v: list[Any]) -> Any:
        x = pick(v)
        if len(axes) > 1:
            x = x + 0.0 * v[1]  # JAX sums over several axes what varies over all of them or none
        if kind == 0:
            return b.lax.psum(x, axes)
        if kind == 1:
            return b.lax.pmean(x, axes)
        if kind == 2:
            return b.lax.pmax(b.lax.stop_gradient(x), axes) + 0.0
        if kind == 3:
            return b.lax.psum(x.sum(), axes) * b.np.ones(x.shape, np.float32)
        return b.lax.psum_scatter(b.np.concatenate([x] * _count(axes)), axes, tiled=True)

    return run


def _count(axes: tuple[str, ...]) -> int:
    return int(np.prod([AXES[a] for a in axes]))


def _moved(p: Program, depth: int) -> Any:
    pick, axes, kind = p.pick(), p.some_axes(), p.random.randrange(4)
    axis, shift = p.axis(), p.random.random() < 0.3

    same = p.gathers

    def run(b: Backend, v: list[Any]) -> Any:
        x = pick(v)
        if kind == 0:
            return b.lax.ppermute(x, axis, [(0, 1)] if shift else [(0, 1), (1, 0)])
        if kind == 1:
            return b.lax.all_to_all(x, axis, 0, 0, tiled=True)
        gathered = b.lax.all_gather(x, axes, to="varying" if kind == 2 else same)
        return gathered[0] * 0.5 - gathered[-1] * gathered[0]

    return run


def _index(p: Program, depth: int) -> Any:
    pick, axis = p.pick(), p.axis()
    return lambda b, v: pick(v) * (b.lax.axis_index(axis) + 1.0)


def _cast(p: Program, depth: int) -> Any:
    pick, axis = p.pick(), p.axis()

    def run(b: Backend, v: list[Any]) -> Any:
        return b.lax.pcast(b.lax.psum(pick(v), axis), axis, to="varying")

    return run


def _scanned(p: Program, depth: int) -> Any:
    start, body, cast = p.pick(), p.inner(depth), p.random.random() < 0.8
    outputs = p.random.random() < 0.5

    def run(b: Backend, v: list[Any]) -> Any:
        varied = 0.0 * v[1] if cast else 0.0  # JAX wants a carry to come out as it goes in

        def step(carry: Any, x: Any) -> Any:
            new = body(b, [*v, carry]) * x + varied
            return new, new.sum()

        init = start(v) + varied
        carry, ys = b.lax.scan(step, init, np.float32([0.5, 1.5]))
        return carry * ys.sum() if outputs else carry

    return run


def _branch(p: Program, depth: int) -> Any:
    where, together = p.pick(), p.random.random() < 0.7
    one, two = (p.inner(depth), p.inner(depth)) if together else (_binary(p, depth), _unary(p, depth))

    def run(b: Backend, v: list[Any]) -> Any:
        test = where(v).sum()
        if together:  # else each device takes a branch of its own, and no collective may wait for others in it
            test = b.lax.pmax(b.lax.stop_gradient(test), axes)
        zero = 0.0 * v[1]
        return b.lax.cond(test > 0, lambda: one(b, v) + zero, lambda: two(b, v) + zero)

    axes = tuple(p.axes)
    return run


def _gradient(p: Program, depth: int) -> Any:
    pick, body, end, axes = p.pick(), p.inner(depth), p.random.randrange(4), p.some_axes()
    forward, all_axes = p.random.random() < 0.25, tuple(p.axes)

    def run(b: Backend, v: list[Any]) -> Any:
        def loss(x: Any) -> Any:
            y = (b.np.sin(body(b, [*v, x])) + 0.0 * v[1]).sum()
            if end == 0:
                return b.lax.psum(y, axes)
            if end == 1:
                return b.lax.pmean(y, axes)
            return b.lax.psum(y, all_axes) if end == 2 else y

        x = pick(v)
        if forward:
            return b.lib.jvp(loss, (x,), (x * 0.5,))[1] * x
        return b.lib.grad(loss)(x)

    return run


def _wrapped(p: Program, depth: int) -> Any:
    body, kind = p.inner(depth), p.random.randrange(2)

    def run(b: Backend, v: list[Any]) -> Any:
        fun = [b.lib.jit, b.lib.checkpoint][kind]
        return fun(lambda *values: body(b, list(values)))(*v)

    return run


def _custom(p: Program, depth: int) -> Any:
    one, two, forward = p.pick(), p.pick(), p.random.random() < 0.5

    def run(b: Backend, v: list[Any]) -> Any:
        x, y = one(v), two(v)
        x, y = x + 0.0 * y, y + 0.0 * x
        if forward:
            f = b.lib.custom_jvp(lambda x, y: x * b.np.sin(y))
            f.defjvp(lambda xs, ts: (xs[0] * b.np.sin(xs[1]), ts[0] * b.np.sin(xs[1]) + 2.0 * ts[1] * xs[0]))
        else:
            f = b.lib.custom_vjp(lambda x, y: x * b.np.sin(y))
            f.defvjp(lambda x, y: (x * b.np.sin(y), (x, y)), lambda r, g: (g * b.np.sin(r[1]), 2.0 * g * r[0]))
        return f(x, y)

    return run


def _mapped(p: Program, depth: int) -> Any:
    one, two, axis = p.pick(), p.pick(), p.axis()

    def run(b: Backend, v: list[Any]) -> Any:
        whole = two(v)
        return b.lib.vmap(lambda row: b.lax.psum(row, axis) * whole[0] + row)(one(v))

    return run


def _region(p: Program, depth: int) -> Any:
    one, two, spec = p.pick(), p.pick(), p.random.random() < 0.3
    p.axes.append("e")
    body = p.inner(depth, 3)
    p.axes.pop()

    def run(b: Backend, v: list[Any]) -> Any:
        def part(x: Any, y: Any) -> Any:
            out = body(b, [x, y + 0.0 * b.lax.axis_index("d"), x[:1] * 0.5 + 0.0 * x])
            return b.lax.pmean(out, "e") if spec else out

        return b.np.resize(
            b.lib.shard_map(
                part, mesh=b.inner_mesh, in_specs=(b.P("e"), b.P("e")), out_specs=b.P() if spec else b.P("e"),
                axis_names={"e"},
            )(one(v), two(v)), v[1].shape,
        )  # fmt: skip

    return run


# --- what is run --------------------------------------------------------------------------------------------
def evaluated(b: Backend, seed: int, kind: str) -> list[np.ndarray]:
    """Values of the mapped program, the gradient of a loss of them by every argument, and a tangent.

    Raises whatever the library raises where it refuses the program.
    """
    program, args = Program(seed, kind), arguments(seed, kind)
    specs = [b.P(axes) if axes else b.P() for axes in program.specs]
    cut = b.P("d"), b.P("d", "e"), b.P(), b.P()
    options: dict[str, Any] = {"check_vma": kind != "unchecked"}
    if kind == "nested":
        options["axis_names"] = {"d"}
        cut = b.P("d"), b.P("d"), b.P(), b.P()
    over = b.lib.shard_map(
        lambda *args: program(b, *args), mesh=b.mesh, in_specs=cut, out_specs=tuple(specs), **options
    )

    def loss(*args: Any) -> Any:
        outs = over(*args)
        return sum((b.np.sin(y) * np.arange(1, y.shape[0] + 1, dtype=np.float32)[:, None]).sum() for y in outs)

    def everything(*args: Any) -> Any:
        return over(*args), b.lib.grad(loss, (0, 1, 2, 3))(*args), b.lib.jvp(loss, args, tangents(args))[1]

    values, grads, tangent = b.lib.jit(everything)(*args)
    return [np.asarray(x) for x in (*values, *grads, tangent)]


def tangents(args: Any) -> tuple[Any, ...]:
    """The direction of the forward derivative."""
    return tuple(a * 0.5 + 0.25 for a in args)
