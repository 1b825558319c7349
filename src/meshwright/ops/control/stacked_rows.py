"""Turns array rows that a loop reads or writes one after the other into slices and outputs of a scan.

A loop that reads or writes an array at its counter (``x[i]``, or a chunk from ``i * n`` on) is a scan over the rows of
the array. As a window at a dynamic position, the rows would be looked up on all devices and sent to all in every step.
As slices of a scan they have the layout that the step needs, to which the array is resharded before the loop, and
written rows may stay partial sums until the loop ends. Every step reads and writes the same rows as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Literal, Var, all_eqns
from meshwright.ir.op import Op
from meshwright.ir.rewrite import Replacement, in_regions, producers_of, replaced, use_counts
from meshwright.ops.control.counters import Counters, Line, is_counter
from meshwright.ops.control.regions import omit, split
from meshwright.ops.control.scan import Scan
from meshwright.ops.control.while_loop import While
from meshwright.ops.indexing.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from meshwright.ops.indexing.gather_add import Gather
from meshwright.ops.indexing.gather_scatter import Scatter
from meshwright.ops.shape.broadcast_reduce import Iota
from meshwright.ops.shape.rearrange import Reshape, Transpose
from meshwright.ops.shape.slice_pad import Slice


@dataclass(frozen=True)
class Rows:
    """``count`` blocks of ``size`` rows along ``dim``, starting at row ``low``; a loop visits them in order, or
    backwards."""

    dim: int
    low: int
    size: int
    count: int
    backwards: bool

    def block(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of one block; a single row has no dimension for it."""
        return (*shape[: self.dim], *([self.size] if self.size > 1 else []), *shape[self.dim + 1 :])

    def cut(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of an array split into blocks, with the block number before the rows."""
        return (*shape[: self.dim], self.count, *self.block(shape)[self.dim :])

    def are_all(self, shape: Sequence[int]) -> bool:
        return self.low == 0 and self.size * self.count == shape[self.dim]

    def are_leading(self, shape: Sequence[int]) -> bool:
        """Whether these are all rows of the leading dimension, like the slices of a scan."""
        return self.are_all(shape) and self.dim == 0 and self.size == 1


def leading_rows(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """Turn rows of leading dimensions into slices and outputs of loops, except for arrays that a loop both reads and
    writes in place: there would be two of such an array, before and after."""
    return _in_loops(jaxpr, Rows.are_leading, in_place=False)


def blocks_of_rows(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """Turn rows and blocks of rows, along any dimension, into slices and outputs of loops; arrays are rearranged before
    the loop, and results after it."""
    return _in_loops(jaxpr, lambda rows, shape: True, in_place=True)


_Wanted = Callable[[Rows, Sequence[int]], bool]


def _in_loops(jaxpr: ClosedJaxpr, wanted: _Wanted, in_place: bool) -> ClosedJaxpr:
    if not any(isinstance(e.op, (Scan, While)) for e in all_eqns(jaxpr.jaxpr)):
        return jaxpr
    numbered = {e.outvars[0] for e in jaxpr.jaxpr.eqns if isinstance(e.op, Iota) and e.outvars[0].aval.ndim == 1}

    def rewritten(eqn: JaxprEqn) -> Replacement:
        eqn = in_regions(eqn, partial(_in_loops, wanted=wanted, in_place=in_place))
        loop = _as_scan(eqn)
        return eqn if loop is None else (_Loop(loop, numbered, wanted, in_place).rewritten() or eqn)

    return replaced(jaxpr, rewritten)


def _as_scan(eqn: JaxprEqn) -> JaxprEqn | None:
    """A loop as a scan, if it has a known number of at least two steps."""
    op = eqn.op
    runs = op.trips(eqn.invars) if isinstance(op, (Scan, While)) and not op.has_effects else None
    if runs is None or runs < 2:
        return None
    if isinstance(op, While):
        scan = Scan(op.body_jaxpr, runs, len(eqn.outvars), op.body_nconsts)
        return eqn.replace(op=scan, invars=eqn.invars[op.cond_nconsts :])
    return eqn


class _Loop:
    """A scan, and the rows that it reads and writes."""

    def __init__(self, eqn: JaxprEqn, numbered: set[Var], wanted: _Wanted, in_place: bool) -> None:
        op = eqn.op
        assert isinstance(op, Scan)
        self.eqn, self.op, self.body, self.wanted, self.in_place = eqn, op, op.jaxpr.jaxpr, wanted, in_place
        self.consts, self.carry, self.xs = split(self.body.invars, op.num_consts, op.num_carry)
        #: the values outside the loop for its parameters
        self.outside: dict[Var, Atom] = dict(zip(self.body.invars, eqn.invars))
        self.made, self.uses = producers_of(self.body), use_counts(self.body.eqns, self.body.outvars)
        self.counters = Counters(
            self.body.eqns,
            op.length,
            dict(self._counters(numbered)),
            {p for p in self.consts if self.outside[p] in numbered},
        )
        reads = [(e, rows) for e in self.body.eqns if (rows := self._read(e)) is not None]
        writes = {p: rows for p, out in zip(self.carry, self.body.outvars) if (rows := self._written(p, out, reads))}
        reads = [(e, rows) for e, rows in reads if e.invars[0] in self.consts or e.invars[0] in writes]
        found = [*(rows for _, rows in reads), *writes.values()]
        free = not self.xs and len(self.body.outvars) == op.num_carry
        #: the order of slices and outputs: fixed if the scan has some, else that of the first rows
        self.backwards = found[0].backwards if free and found else op.reverse
        self.reads = {e.outvars[0]: rows for e, rows in reads if rows.backwards == self.backwards}
        self.writes = {self.carry.index(p): rows for p, rows in writes.items() if rows.backwards == self.backwards}

    # --- analysis -------------------------------------------------------------------------------------------
    def _counters(self, numbered: set[Var]) -> Iterator[tuple[Var, Line]]:
        """Parameters that are counters, with their lines."""
        n = self.op.length
        for parameter in self.consts:
            value = self.outside[parameter]
            if isinstance(value, Literal) and is_counter(value.aval):
                yield parameter, Line(int(value.val))
        for parameter, out in zip(self.carry, self.body.outvars):
            value, step = self.outside[parameter], self._added(parameter, out)
            if isinstance(value, Literal) and is_counter(value.aval) and step is not None:
                yield parameter, Line(int(value.val), step)
        for parameter in self.xs:
            if self.outside[parameter] in numbered:
                yield parameter, Line(n - 1, -1) if self.op.reverse else Line(0, 1)

    def _added(self, parameter: Var, out: Atom) -> int | None:
        """The number that each run adds to a carry."""
        eqn = self.made.get(out) if isinstance(out, Var) else None
        if eqn is None or eqn.op.name != "add" or parameter not in eqn.invars:
            return None
        others = [a for a in eqn.invars if a is not parameter]
        return int(others[0].val) if len(others) == 1 and isinstance(others[0], Literal) else None

    def _read(self, eqn: JaxprEqn) -> Rows | None:
        """The rows of which an equation reads one block per run; None if it does not."""
        op = eqn.op
        if not isinstance(op, (DynamicSlice, Gather)) or eqn.invars[0] not in (*self.consts, *self.carry):
            return None
        numbers = op.dimension_numbers if isinstance(op, Gather) else None
        return self._rows(eqn.invars[0].aval, op.slice_sizes, self._starts(eqn.invars[1:], numbers))

    def _written(self, carry: Var, out: Atom, reads: Sequence[tuple[JaxprEqn, Rows]]) -> Rows | None:
        """The rows of a carry of which each run writes one block, and reads no other; None if it does not."""
        eqn = self.made.get(out) if isinstance(out, Var) else None
        if eqn is None or eqn.invars[0] is not carry or not isinstance(eqn.op, (DynamicUpdateSlice, Scatter)):
            return None
        x, rows = carry.aval, self._window_written(eqn)
        mine = [r for e, r in reads if e.invars[0] is carry]
        if mine and not self.in_place:
            return None
        alone = self.uses[carry] == 1 + len(mine) and self.uses[eqn.outvars[0]] == 1 and all(r == rows for r in mine)
        fits = alone and rows is not None and rows.are_all(x.shape)
        return rows if fits and _update_of(eqn).aval.update(shape=x.shape) == out.aval else None

    def _window_written(self, eqn: JaxprEqn) -> Rows | None:
        """The rows of which an equation writes one block per run."""
        op, x, update = eqn.op, eqn.invars[0].aval, _update_of(eqn).aval
        if isinstance(op, Scatter):
            starts = self._starts(eqn.invars[1:2], op.dimension_numbers.gather())
            return self._rows(x, op.window(x.shape, update.shape), starts)
        return self._rows(x, update.shape, self._starts(eqn.invars[2:]))

    def _starts(self, atoms: Sequence[Atom], numbers: Any = None) -> dict[int, Line | None]:
        """The start of the window of a read or write, by dimension; empty if there are several windows."""
        if numbers is None:
            return {d: self.counters.of(a) for d, a in enumerate(atoms)}
        (indices,) = atoms
        one = indices.aval.size == 1 and len(numbers.start_index_map) == 1 and not numbers.operand_batching_dims
        return {numbers.start_index_map[0]: self.counters.of(indices)} if one else {}

    def _rows(self, x: ShapedArray, sizes: Sequence[int], starts: dict[int, Line | None]) -> Rows | None:
        """The adjacent blocks formed by windows at ``starts``; None if they are not adjacent, or not wanted."""
        cut = [d for d, (k, n) in enumerate(zip(sizes, x.shape)) if k != n]
        line = starts.get(cut[0]) if len(cut) == 1 else None
        if line is None or abs(line.step) != sizes[cut[0]]:
            return None
        low, high = line.ends(self.op.length)
        rows = Rows(cut[0], low, sizes[cut[0]], self.op.length, line.step < 0)
        inside = low >= 0 and high + rows.size <= x.shape[rows.dim]
        return rows if inside and self.wanted(rows, x.shape) else None

    # --- rewriting ------------------------------------------------------------------------------------------
    def rewritten(self) -> list[JaxprEqn] | None:
        """The loop with these rows as slices and outputs, with the equations that stack rows before it and restore
        arrays after it; None if there are no such rows."""
        if not self.reads and not self.writes:
            return None
        slices: dict[tuple[Var, Rows], Var] = {}
        blocks: dict[int, Var] = {}
        eqns = [self._step(eqn, slices, blocks) for eqn in self.body.eqns]
        flags = [i in self.writes for i in range(self.op.num_carry)]
        carried, outs = split(self.body.outvars, len(flags))
        body = self.body.replace(
            invars=[*self.consts, *omit(self.carry, flags), *self.xs, *slices.values()],
            outvars=[*omit(carried, flags), *outs, *blocks.values()],
            eqns=eqns,
        )
        op = replace(
            self.op, jaxpr=self.op.jaxpr.replace(jaxpr=body), num_carry=flags.count(False), reverse=self.backwards
        )
        return self._between(op, flags, slices, blocks)

    def _step(self, eqn: JaxprEqn, slices: dict[tuple[Var, Rows], Var], blocks: dict[int, Var]) -> JaxprEqn:
        """An equation of the body, rewritten to read a slice or return a block if it reads or writes rows."""
        if not eqn.outvars:
            return eqn
        out = eqn.outvars[0]
        if out in self.reads:
            x, rows = eqn.invars[0], self.reads[out]
            assert isinstance(x, Var)  # a parameter
            part = slices.setdefault((x, rows), Var(x.aval.update(shape=rows.block(x.aval.shape))))
            return eqn.replace(op=Reshape(out.aval.shape), invars=[part])
        place = next((i for i in self.writes if self.body.outvars[i] is out), None)
        if place is None:
            return eqn
        update, shape = _update_of(eqn), self.writes[place].block(out.aval.shape)
        blocks[place] = Var(update.aval.update(shape=shape))
        return eqn.replace(op=Reshape(shape), invars=[update], outvars=[blocks[place]])

    def _between(
        self, op: Scan, flags: Sequence[bool], slices: Mapping[tuple[Var, Rows], Var], blocks: Mapping[int, Var]
    ) -> list[JaxprEqn]:
        """The loop, with the equations on its operands and results."""
        consts, carry, xs = split(self.eqn.invars, len(self.consts), len(flags))
        before, stacked = [], []
        for x, rows in slices:
            eqns = self._moves(self.outside[x], _stacking(rows, x.aval.shape))
            before += eqns
            stacked.append(eqns[-1].outvars[0] if eqns else self.outside[x])
        carried, outs = split(self.eqn.outvars, len(flags))
        after, written = [], []
        for place, block in blocks.items():
            result, rows = carried[place], self.writes[place]
            moves = _putting_back(rows, result.aval.shape)
            written.append(Var(block.aval.with_dim(0, rows.count)) if moves else result)
            after += self._moves(written[-1], moves, result)
        operands = [*consts, *omit(carry, flags), *xs, *stacked]
        loop = self.eqn.replace(op=op, invars=operands, outvars=[*omit(carried, flags), *outs, *written])
        return [*before, loop, *after]

    def _moves(self, x: Atom, ops: Sequence[Op], result: Var | None = None) -> list[JaxprEqn]:
        """Equations that apply ``ops`` in turn, the last of them with result ``result``."""
        eqns: list[JaxprEqn] = []
        for op in ops:
            out = result if result is not None and op is ops[-1] else Var(op.infer(x.aval))
            eqns.append(self.eqn.replace(op=op, invars=[x], outvars=[out]))
            x = out
        return eqns


def _update_of(eqn: JaxprEqn) -> Atom:
    """The value that an equation writes."""
    return eqn.invars[2 if isinstance(eqn.op, Scatter) else 1]


def _stacking(rows: Rows, shape: tuple[int, ...]) -> list[Op]:
    """The ops that turn an array into the slices of a scan."""
    ops: list[Op] = []
    if not rows.are_all(shape):
        before, after, size = shape[: rows.dim], shape[rows.dim + 1 :], rows.size * rows.count
        low = (*[0] * len(before), rows.low, *[0] * len(after))
        ops.append(Slice(low, (*before, rows.low + size, *after), (1,) * len(shape)))
        shape = (*before, size, *after)
    if rows.cut(shape) != shape:
        ops.append(Reshape(rows.cut(shape)))
    if rows.dim:
        order = range(len(rows.cut(shape)))
        ops.append(Transpose((rows.dim, *(d for d in order if d != rows.dim))))
    return ops


def _putting_back(rows: Rows, shape: tuple[int, ...]) -> list[Op]:
    """The ops that turn a scan's outputs into an array."""
    ops: list[Op] = []
    if rows.dim:
        rest = range(rows.dim + 1, len(rows.cut(shape)))
        ops.append(Transpose((*range(1, rows.dim + 1), 0, *rest)))
    if rows.cut(shape) != shape:
        ops.append(Reshape(shape))
    return ops
