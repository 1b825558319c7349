"""Several shifts of one array, in several dimensions, as one exchange.

A stencil with corners (nine points of a plane) reads elements next to a tile along both dimensions; one of higher order
reads several rows. Separately, each shift would fetch rows, and then columns of the result. Together they are windows
of a tile with a halo: rows are fetched first, then columns of the tile with these rows, so that the columns include the
corners. Programs do not contain the op; it replaces paddings that shift an array.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import partial, reduce
from typing import Any, ClassVar

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import ShapeError
from meshwright.ir.contract import ArrayLike, Localizer, Value
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Var, all_eqns
from meshwright.ir.op import BatchAxis, BatchedResults, Cotangents, Zero
from meshwright.ir.rewrite import in_regions, replaced
from meshwright.ops.composite import Composite
from meshwright.ops.elementwise.table import add, scalar_like
from meshwright.ops.shape.joined_pads import is_zero, zeros_of
from meshwright.ops.shape.rearrange import Linear1
from meshwright.ops.shape.slice_pad import Pad, pad, slice_in_dim
from meshwright.sharding.rule import WINDOW, ShardingRule, make_rule
from meshwright.sharding.window import Window

#: number of rows down along each dimension
Shift = tuple[int, ...]


@dataclass(frozen=True)
class Shifts(Linear1, Composite):
    """The operand shifted by each of ``shifts``, filled with zeros."""

    shifts: tuple[Shift, ...]
    name: ClassVar[str] = "shifts"
    multiple_results: ClassVar[bool] = True
    computes: ClassVar[bool] = False

    def infer(self, x: ShapedArray) -> tuple[ShapedArray, ...]:
        if any(len(shift) != x.ndim or any(abs(by) > n for by, n in zip(shift, x.shape)) for shift in self.shifts):
            raise ShapeError(f"shifts: {self.shifts} are not of {x}")
        return (x,) * len(self.shifts)

    def expand(self, x: Value) -> list[Value]:
        return [_shifted(x, shift) for shift in self.shifts]

    def transpose(self, cts: Any, x: Any) -> Cotangents:
        back = [_shifted(ct, [-by for by in s]) for ct, s in zip(cts, self.shifts) if not isinstance(ct, Zero)]
        return [reduce(add, back) if back else Zero(x.aval)]

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        (x,), (dim,) = args, dims
        assert dim is not None
        return Shifts(tuple((*s[:dim], 0, *s[dim:]) for s in self.shifts)).bind(x), [dim] * len(self.shifts)

    def sharding_rule(self, x: ShapedArray) -> ShardingRule:
        names = [f"d{d}" for d in range(x.ndim)]
        kinds = {name: WINDOW for d, name in enumerate(names) if any(s[d] for s in self.shifts)}
        return make_rule([names], [names] * len(self.shifts), dict(zip(names, x.shape)), kinds)

    def localize(self, ctx: Localizer, x: Value) -> ArrayLike | Sequence[ArrayLike]:
        split = [d for d in range(ctx.in_avals[0].ndim) if ctx.is_split(0, d) and any(s[d] for s in self.shifts)]
        rim: Any = x
        for d in split:
            above, rows = self._above(d), ctx.out_local_shapes[0][d]
            length = above + rows - min(0, *(s[d] for s in self.shifts))
            rim = ctx.fetch_window(rim, 0, d, Window(partial(_begin, rows, above), length))
        results: list[Any] = []
        for shift in self.shifts:
            part = rim
            for d in split:
                start = self._above(d) - shift[d]
                part = slice_in_dim(part, start, start + ctx.out_local_shapes[0][d], axis=d)
            results.append(_shifted(part, [0 if d in split else by for d, by in enumerate(shift)]))
        return results

    def _above(self, dim: int) -> int:
        """The number of rows above a tile that are needed."""
        return max(0, *(s[dim] for s in self.shifts))


def _begin(rows: int, above: int, tile: int) -> int:
    return tile * rows - above


def _shifted(x: Any, shift: Sequence[int]) -> Any:
    return pad(x, scalar_like(0, x), [(by, -by, 0) for by in shift]) if any(shift) else x


# --- recognized in programs ---------------------------------------------------------------------------------
def joined_shifts(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """Combine shifts of one array that need the same rows."""
    if not any(isinstance(e.op, Pad) for e in all_eqns(jaxpr.jaxpr)):
        return jaxpr
    zeros = zeros_of(jaxpr)
    groups: dict[Var, list[JaxprEqn]] = {}
    for eqn in jaxpr.jaxpr.eqns:
        if _shift(eqn, zeros) is not None:
            groups.setdefault(eqn.invars[0], []).append(eqn)  # type: ignore[arg-type]
    joined = {x: group for x, group in groups.items() if _overlap([_of(e) for e in group])}
    firsts = {id(group[0]): group for group in joined.values()}
    rest = {id(e) for group in joined.values() for e in group[1:]}

    def rewritten(eqn: JaxprEqn) -> JaxprEqn | list[JaxprEqn]:
        if eqn.op.holds_jaxprs:
            return in_regions(eqn, joined_shifts)
        if id(eqn) in rest:
            return []
        if id(eqn) not in firsts:
            return eqn
        group = firsts[id(eqn)]
        outs = [e.outvars[0] for e in group]
        return eqn.replace(op=Shifts(tuple(map(_of, group))), invars=[eqn.invars[0]], outvars=outs)

    return replaced(jaxpr, rewritten)


def _overlap(shifts: Sequence[Shift]) -> bool:
    """Whether some shift is along several dimensions, or several shifts are in the same direction."""
    ways = {(d, by > 0, by) for shift in shifts for d, by in enumerate(shift) if by}
    return any(sum(map(bool, s)) > 1 for s in shifts) or len({(d, down) for d, down, _ in ways}) < len(ways)


def _of(eqn: JaxprEqn) -> Shift:
    return tuple(low for low, _, _ in eqn.op.padding_config)  # type: ignore[attr-defined]


def _shift(eqn: JaxprEqn, zeros: Container[Atom]) -> Shift | None:
    """The distances by which an equation shifts an array, if it does nothing else."""
    if not isinstance(eqn.op, Pad) or not isinstance(eqn.invars[0], Var) or not is_zero(eqn.invars[1], zeros):
        return None
    config = zip(eqn.op.padding_config, eqn.invars[0].aval.shape)
    return _of(eqn) if all(lo == -hi and not inner and abs(lo) < n for (lo, hi, inner), n in config) else None
