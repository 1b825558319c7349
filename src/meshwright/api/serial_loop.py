"""Named axes of ``xmap`` that are computed in steps: the function is mapped over one chunk of the axis at a time.

Follows ``SerialLoop`` and ``serial_loop`` of ``xmap`` in JAX before 0.4.31.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod
from types import MappingProxyType
from typing import Any

from meshwright.api.control_flow import scan
from meshwright.core.records import dataclass
from meshwright.core.signature import described
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, ArgumentTypeError, ShapeError
from meshwright.ir.jaxpr import ClosedJaxpr, all_eqns
from meshwright.ir.tracing import typeof
from meshwright.ops.collective.base import Collective
from meshwright.ops.shape.rearrange import reshape, transpose

Name = Hashable

_LOOPS: ContextVar[Mapping[Name, SerialLoop]] = ContextVar("serial loops", default=MappingProxyType({}))


@dataclass(frozen=True)
class SerialLoop:
    """An entry of ``axis_resources``: computes the axis in ``length`` steps, each on a chunk of the axis, so that
    intermediate values take the memory of one chunk. Next to axes of the mesh, each device loops over its own part.

    Inside the function, collectives and ``axis_index`` over such an axis are not available.

    Raises:
      ArgumentTypeError: ``length`` is not an integer. ArgumentError: it is not positive.

    Example:
      >>> from meshwright.experimental.maps import SerialLoop, xmap
      >>> xmap(mnp.sin, in_axes={0: "i"}, out_axes={0: "i"}, axis_resources={"i": SerialLoop(2)})(mnp.zeros(4))
      Array([0., 0., 0., 0.], dtype=float32)
    """

    length: int

    def __post_init__(self) -> None:
        try:
            length = operator.index(self.length)
        except TypeError:
            raise ArgumentTypeError(f"SerialLoop: expected a number of steps, got {self.length!r}") from None
        if length < 1:
            raise ArgumentError(f"SerialLoop: expected at least one step, got {length}")
        object.__setattr__(self, "length", length)


@contextmanager
def serial_loop(name: Name, length: int) -> Iterator[None]:
    """In this context, ``name`` means ``SerialLoop(length)`` in the ``axis_resources`` of an ``xmap`` created here.

    Raises:
      ArgumentError: a loop of this name is already open, or ``length`` is not positive.

    Example:
      >>> from meshwright.experimental.maps import serial_loop, xmap
      >>> with serial_loop("steps", 2):
      ...     f = xmap(mnp.sin, in_axes={0: "i"}, out_axes={0: "i"}, axis_resources={"i": "steps"})
    """
    if name in _LOOPS.get():
        raise ArgumentError(f"serial_loop: a loop is already called {name!r}; give this one another name")
    token = _LOOPS.set({**_LOOPS.get(), name: SerialLoop(length)})
    try:
        yield
    finally:
        _LOOPS.reset(token)


def split_resources(resources: Mapping[Name, Any]) -> tuple[dict[Name, tuple[Any, ...]], dict[Name, int]]:
    """The mesh axes and the number of steps that ``axis_resources`` assign to each named axis."""
    entries = {n: tuple(r) if isinstance(r, (tuple, list)) else (r,) for n, r in resources.items()}
    named = _LOOPS.get()
    resolved = {n: [named.get(r, r) for r in used] for n, used in entries.items()}
    steps = {n: prod(r.length for r in used if isinstance(r, SerialLoop)) for n, used in resolved.items()}
    axes = {n: tuple(r for r in used if not isinstance(r, SerialLoop)) for n, used in resolved.items()}
    looped = {n for n, used in resolved.items() if any(isinstance(r, SerialLoop) for r in used)}
    return {n: used for n, used in axes.items() if used}, {n: steps[n] for n in steps if n in looped}


def check_loops(
    fun: Any, jaxpr: ClosedJaxpr, sizes: Mapping[Name, int], steps: Mapping[Name, int], ways: Mapping[Name, int]
) -> None:
    """Raise unless every loop has chunks of equal size, and the function has no collective across steps.

    Raises:
      ShapeError: the number of steps (times devices) does not divide the axis. ArgumentError: a collective over the
        axis.
    """
    for name, length in steps.items():
        if sizes[name] % (length * ways[name]):
            devices = f" on each of {ways[name]} devices" if ways[name] > 1 else ""
            raise ShapeError(
                f"xmap of {described(fun)}: axis {name!r} of size {sizes[name]} is to be computed in "
                f"{counted(length, 'step')}{devices}, which do not divide it; give SerialLoop a number that does"
            )
    for eqn in all_eqns(jaxpr.jaxpr):
        met = [a for a in eqn.op.axes if a in steps] if isinstance(eqn.op, Collective) else []
        if met:
            raise ArgumentError(
                f"xmap of {described(fun)}: {eqn.op.name} over {met[0]!r} at {eqn.source}, but axis_resources makes "
                f"{met[0]!r} a SerialLoop, whose steps do not meet: collectives over loop axes are not supported; give "
                "the axis no loop, or reduce what xmap returns"
            )


def in_steps(
    fun: Callable[..., Sequence[Any]], steps: int, ways: int, ins: Sequence[int | None], outs: Sequence[int | None]
) -> Callable[..., list[Any]]:
    """``fun`` applied to ``steps`` chunks of the dimensions ``ins`` of its arguments (None: the whole argument), one
    after the other, with results concatenated along ``outs`` (None: the same in every step). Each of the ``ways`` parts
    of a dimension is divided into chunks separately."""

    def run(*args: Any) -> list[Any]:
        shares = [_cut(x, d, steps, ways) for x, d in zip(args, ins) if d is not None]

        def step(_: None, now: Sequence[Any]) -> tuple[None, Any]:
            cut = iter(now)
            return None, fun(*(x if d is None else next(cut) for x, d in zip(args, ins)))

        _, results = scan(step, None, shares, length=steps)
        return [y[0] if d is None else _joined(y, d, ways) for y, d in zip(results, outs)]

    return run


def _cut(x: Any, dim: int, steps: int, ways: int) -> Any:
    """The chunks of dimension ``dim``, along a new leading dimension."""
    before, size, after = _around(typeof(x).shape, dim)
    parts = reshape(x, (*before, ways, steps, size // (ways * steps), *after))
    order = (dim + 1, *(d for d in range(typeof(parts).ndim) if d != dim + 1))
    return reshape(transpose(parts, order), (steps, *before, size // steps, *after))


def _joined(y: Any, dim: int, ways: int) -> Any:
    """The inverse of ``_cut``."""
    (steps, *before), share, after = _around(typeof(y).shape, dim + 1)
    parts = reshape(y, (steps, *before, ways, share // ways, *after))
    order = (*range(1, dim + 2), 0, *range(dim + 2, typeof(parts).ndim))
    return reshape(transpose(parts, order), (*before, steps * share, *after))


def _around(shape: tuple[int, ...], dim: int) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    return shape[:dim], shape[dim], shape[dim + 1 :]
