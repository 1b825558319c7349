"""Random programs of one device for ``shard_map``, the same in JAX and here: both sides run this module.

A program is a function of a backend (:class:`Backend`), so that one seed gives one program. Every value has the shape
``SHAPE`` on each device; collectives that change shapes are followed by what brings them back.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

AXES = {"d": 2, "e": 2}
SHAPE = (4, 2)


@dataclass(frozen=True)
class Backend:
    """A library by its functions."""

    np: Any
    lax: Any
    lib: Any
    mesh: Any
    P: Any


def arguments(seed: int) -> list[np.ndarray]:
    """Two arrays to be cut, and two that devices share."""
    rng = np.random.default_rng(seed)
    shapes = [(8, 2), (8, 4), (4, 2), (4, 2)]
    return [rng.normal(size=s).astype(np.float32) for s in shapes]


def in_specs(P: Any) -> tuple[Any, ...]:
    """How the arguments are cut."""
    return P("d"), P("d", "e"), P(), P()


class Program:
    """The per-device function of a seed."""

    def __init__(self, seed: int, depth: int = 2) -> None:
        self.random = random.Random(seed)
        self.steps = [self._step(depth) for _ in range(self.random.randint(2, 5))]
        self.specs = [self._spec() for _ in range(self.random.randint(1, 2))]

    def _axes(self) -> tuple[str, ...]:
        return self.random.choice([("d",), ("e",), ("d",), ("e",), ("d", "e")])

    def _spec(self) -> tuple[str, ...]:
        return self.random.choice([("d", "e"), ("d", "e"), ("d",), ("e",), ()])

    def _step(self, depth: int) -> Callable[[Backend, list[Any]], Any]:
        kinds = [_unary, _binary, _binary, _reduce, _reduce, _moved, _index, _cast]
        if depth:
            kinds += [_scanned, _branch, _gradient, _gradient, _wrapped, _custom, _mapped]
        return self.random.choice(kinds)(self, depth)

    def inner(self, depth: int, n: int = 2) -> Callable[[Backend, list[Any]], Any]:
        """A small program of values: the last value it makes."""
        steps = [self._step(depth - 1) for _ in range(self.random.randint(1, n))]

        def run(b: Backend, values: list[Any]) -> Any:
            values = list(values)
            for step in steps:
                values.append(step(b, values))
            return values[-1]

        return run

    def pick(self) -> Callable[[list[Any]], Any]:
        """One of the values, later ones more often."""
        place = self.random.random() ** 0.5
        return lambda values: values[int(place * len(values))]

    def __call__(self, b: Backend, *args: Any) -> tuple[Any, ...]:
        values = list(args)
        for step in self.steps:
            values.append(step(b, values))
        return tuple(values[-1 - i] for i in range(len(self.specs)))


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
    pick, axes, kind = p.pick(), p._axes(), p.random.randrange(5)

    def run(b: Backend, v: list[Any]) -> Any:
        x = pick(v)
        if kind == 0:
            return b.lax.psum(x, axes)
        if kind == 1:
            return b.lax.pmean(x, axes)
        if kind == 2:
            return b.lax.pmax(b.lax.stop_gradient(x), axes) + 0.0
        if kind == 3:
            return b.lax.psum(x.sum(), axes) * b.np.ones(SHAPE, np.float32)
        return b.lax.psum_scatter(b.np.concatenate([x] * _count(axes)), axes, tiled=True)

    return run


def _count(axes: tuple[str, ...]) -> int:
    return int(np.prod([AXES[a] for a in axes]))


def _moved(p: Program, depth: int) -> Any:
    pick, axes, kind = p.pick(), p._axes(), p.random.randrange(4)
    axis, shift = p.random.choice(["d", "e"]), p.random.random() < 0.3

    def run(b: Backend, v: list[Any]) -> Any:
        x = pick(v)
        if kind == 0:
            return b.lax.ppermute(x, axis, [(0, 1)] if shift else [(0, 1), (1, 0)])
        if kind == 1:
            return b.lax.all_to_all(x, axis, 0, 0, tiled=True)
        gathered = b.lax.all_gather(x, axes, to="varying" if kind == 2 else "invarying")
        return gathered[0] * 0.5 - gathered[-1] * gathered[0]

    return run


def _index(p: Program, depth: int) -> Any:
    pick, axis = p.pick(), p.random.choice(["d", "e"])
    return lambda b, v: pick(v) * (b.lax.axis_index(axis) + 1.0)


def _cast(p: Program, depth: int) -> Any:
    pick, axis = p.pick(), p.random.choice(["d", "e"])

    def run(b: Backend, v: list[Any]) -> Any:
        return b.lax.pcast(b.lax.psum(pick(v), axis), axis, to="varying")

    return run


def _scanned(p: Program, depth: int) -> Any:
    start, body, cast = p.pick(), p.inner(depth), p.random.random() < 0.7
    outputs = p.random.random() < 0.5

    def run(b: Backend, v: list[Any]) -> Any:
        def step(carry: Any, x: Any) -> Any:
            new = body(b, [*v, carry]) * x
            return new, new.sum()

        init = start(v)
        if cast:
            init = init + 0.0 * sum(x * y for x in v for y in (v[1],))
        carry, ys = b.lax.scan(step, init, np.float32([0.5, 1.5]))
        return carry * ys.sum() if outputs else carry

    return run


def _branch(p: Program, depth: int) -> Any:
    where, one, two = p.pick(), p.inner(depth), p.inner(depth)
    axes = p.random.choice([("d", "e"), ("d", "e"), ("d",), ()])

    def run(b: Backend, v: list[Any]) -> Any:
        test = where(v).sum()
        if axes:
            test = b.lax.pmax(b.lax.stop_gradient(test), axes)
        zero = 0.0 * v[1]
        return b.lax.cond(test > 0, lambda: one(b, v) + zero, lambda: two(b, v) + zero)

    return run


def _gradient(p: Program, depth: int) -> Any:
    pick, body, end, axes = p.pick(), p.inner(depth), p.random.randrange(4), p._axes()
    forward = p.random.random() < 0.25

    def run(b: Backend, v: list[Any]) -> Any:
        def loss(x: Any) -> Any:
            y = b.np.sin(body(b, [*v, x])).sum()
            if end == 0:
                return b.lax.psum(y, axes)
            if end == 1:
                return b.lax.pmean(y, axes)
            return b.lax.psum(y, ("d", "e")) if end == 2 else y

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
    one, two, axis = p.pick(), p.pick(), p.random.choice(["d", "e"])

    def run(b: Backend, v: list[Any]) -> Any:
        whole = two(v)
        return b.lib.vmap(lambda row: b.lax.psum(row, axis) * whole[0] + row)(one(v))

    return run


# --- what is run --------------------------------------------------------------------------------------------
def evaluated(b: Backend, seed: int, check: bool = True) -> list[np.ndarray]:
    """Values of the mapped program, the gradient of a loss of them by every argument, and a tangent.

    Raises whatever the library raises where it refuses the program.
    """
    program = Program(seed)
    spec = [b.P(axes) if axes else b.P() for axes in program.specs]
    over = b.lib.shard_map(
        lambda *args: program(b, *args), mesh=b.mesh, in_specs=in_specs(b.P), out_specs=tuple(spec), check_vma=check
    )
    args = arguments(seed)

    def loss(*args: Any) -> Any:
        outs = over(*args)
        return sum((b.np.sin(y) * np.arange(1, y.shape[0] + 1, dtype=np.float32)[:, None]).sum() for y in outs)

    def everything(*args: Any) -> Any:
        tangents = tuple(a * 0.5 + 0.25 for a in args)
        return over(*args), b.lib.grad(loss, (0, 1, 2, 3))(*args), b.lib.jvp(loss, args, tangents)[1]

    values, grads, tangent = b.lib.jit(everything)(*args)
    return [np.asarray(x) for x in (*values, *grads, tangent)]
