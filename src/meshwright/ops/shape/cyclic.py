"""Windows of an array that wrap around at its end: rotations, and periodic borders.

Programs express them as concatenated slices of one array (``roll``, ``pad(mode="wrap")``, stencils on a torus). Along a
split dimension, each slice would be communicated separately. As one window, tiles form a ring, and each device sends
the rows its neighbour needs, once. (XLA's partitioner also recognizes rotations as such a window.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.core.words import counted
from meshwright.errors import ShapeError
from meshwright.ir.contract import ArrayLike, Localizer, Value
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Var
from meshwright.ir.op import BatchAxis, BatchedResults, Cotangents
from meshwright.ir.rewrite import in_regions, replaced
from meshwright.ops.composite import Composite
from meshwright.ops.elementwise.monoid import nothing
from meshwright.ops.elementwise.table import add, scalar_like
from meshwright.ops.shape.rearrange import Linear1, above
from meshwright.ops.shape.slice_pad import Concatenate, Slice, concatenate, pad, slice_in_dim
from meshwright.sharding.rule import WINDOW, ShardingRule, make_rule
from meshwright.sharding.window import Window


@dataclass(frozen=True)
class CyclicWindow(Linear1, Composite):
    """Rows ``start, start + 1, ...`` (``length`` of them, modulo the size) along ``dimension``."""

    dimension: int
    start: int
    length: int
    name: ClassVar[str] = "cyclic_window"
    moves_only: ClassVar[bool] = True

    def infer(self, x: ShapedArray) -> ShapedArray:
        d = self.dimension
        if not 0 <= d < x.ndim or not 0 <= self.start < x.shape[d] or self.length < 1:
            raise ShapeError(f"cyclic_window: no {counted(self.length, 'row')} from {self.start} on along {d} in {x}")
        return x.update(shape=(*x.shape[:d], self.length, *x.shape[d + 1 :]))

    def pieces(self, size: int) -> Iterator[tuple[int, int]]:
        """The window as consecutive spans ``[low, high)`` of the operand's rows."""
        low, left = self.start, self.length
        while left:
            high = min(low + left, size)
            yield low, high
            low, left = 0, left - (high - low)

    def expand(self, x: Value) -> list[Value]:
        d = self.dimension
        return [concatenate([slice_in_dim(x, low, high, 1, d) for low, high in self.pieces(x.shape[d])], d)]

    def transpose(self, ct: Any, x: Any) -> Cotangents:
        size, d = x.aval.shape[self.dimension], self.dimension
        parts, at = [], 0
        for low, high in self.pieces(size):
            config = [(0, 0, 0)] * x.aval.ndim
            config[d] = (low, size - high, 0)
            parts.append(pad(slice_in_dim(ct, at, at + high - low, 1, d), scalar_like(0, ct), config))
            at += high - low
        return [reduce(add, parts)]

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        (x,), (dim,) = args, dims
        return CyclicWindow(above(self.dimension, dim), self.start, self.length).bind(x), dim  # type: ignore[arg-type]

    def sharding_rule(self, x: ShapedArray) -> ShardingRule:
        names = [f"d{d}" for d in range(x.ndim)]
        return make_rule([names], [names], dict(zip(names, x.shape)), {names[self.dimension]: WINDOW})

    def localize(self, ctx: Localizer, x: Value) -> ArrayLike | Sequence[ArrayLike]:
        d, first = self.dimension, self.start
        if not ctx.is_split(0, d):
            return self.expand(x)[0]
        size, rows = ctx.in_avals[0].shape[d], ctx.out_local_shapes[0][d]
        if not ctx.is_uneven(0, d):
            return ctx.fetch_window(x, 0, d, Window(lambda t: first + t * rows, rows), cyclic=True)
        # Padding interrupts the ring: use one window per turn, zero where the turn does not reach.
        stop = self.start + self.length

        def turn(k: int) -> Any:
            window = Window(lambda t: first + t * rows - k, rows, stop - k)
            return ctx.fetch_window(x, 0, d, window, nothing(ctx.in_avals[0].dtype))

        turns = [turn(k) for k in range(0, stop, size)]
        return reduce(add, turns)  # for bools, ``add`` is ``or``

    def moved(self, x: np.ndarray) -> np.ndarray:
        return np.take(x, np.arange(self.start, self.start + self.length), self.dimension, mode="wrap")


# --- recognized in programs ---------------------------------------------------------------------------------
def cyclic_windows(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """Turn concatenated slices of one array, each starting where the previous one ended, into one window."""
    slices = {e.outvars[0]: e for e in jaxpr.eqns if isinstance(e.op, Slice)}
    return replaced(jaxpr, lambda e: in_regions(e, cyclic_windows) if e.op.holds_jaxprs else _as_window(e, slices))


def _as_window(eqn: JaxprEqn, slices: dict[Var, JaxprEqn]) -> JaxprEqn:
    if not isinstance(eqn.op, Concatenate):
        return eqn
    d = eqn.op.dimension
    spans = [_span(atom, d, slices) for atom in eqn.invars]
    whole = max((x for x, _, _ in spans), key=lambda x: x.aval.shape[d])
    size = whole.aval.shape[d]
    if not size:
        return eqn
    joined = all(high % size == low for (_, _, high), (_, low, _) in pairwise(spans))
    if not joined or any(x is not whole for x, _, _ in spans) or not isinstance(whole, Var):
        return eqn
    window = CyclicWindow(d, spans[0][1], eqn.outvars[0].aval.shape[d])
    return eqn.replace(op=window, invars=[whole])


def _span(atom: Atom, d: int, slices: dict[Var, JaxprEqn]) -> tuple[Atom, int, int]:
    """``(array, low, high)`` for a value that is rows of an array along ``d``; otherwise the value itself with all
    rows."""
    maker = slices.get(atom) if isinstance(atom, Var) else None
    if maker is not None:
        op, (x,) = maker.op, maker.invars
        others = all(a == b for i, (a, b) in enumerate(zip(x.aval.shape, atom.aval.shape)) if i != d)
        if others and op.strides[d] == 1:  # type: ignore[attr-defined]
            return x, op.start_indices[d], op.limit_indices[d]  # type: ignore[attr-defined]
    return atom, 0, atom.aval.shape[d]
