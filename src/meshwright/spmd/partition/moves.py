"""Merges slices, concatenations, pads and rotations along a split dimension into one redistribution.

Partitioned one by one, each op would move rows into the tiles of its own result: the two halves of an array are sent
in half-empty permutes, and rows that are sliced and concatenated again are sent twice. Equations that take rows of the
same arrays, and chains of such equations, form one index map that is planned as a whole
(:mod:`meshwright.sharding.row_map`). They are merged if that sends less.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from meshwright.core.key_types import is_key
from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Var
from meshwright.ir.op import Op
from meshwright.ir.rewrite import use_counts
from meshwright.ops.shape.cyclic import CyclicWindow
from meshwright.ops.shape.joined_pads import is_zero, zeros_of
from meshwright.ops.shape.row_moves import RowMoves
from meshwright.ops.shape.shifts import Shifts
from meshwright.ops.shape.slice_pad import Concatenate, Pad, Slice
from meshwright.sharding import AbstractMesh, Layout
from meshwright.sharding.row_map import ZEROS, RowMap, Span
from meshwright.sharding.window import Shown, plan_ring


@dataclass(frozen=True)
class _Move:
    """One or more equations as a map of rows of ``operands``; ``sent``: the rows they send if not merged."""

    dim: int
    map: RowMap
    operands: tuple[Var, ...]
    results: tuple[Var, ...]
    eqns: tuple[JaxprEqn, ...]
    sent: int
    tiles: int


def merge_moves(closed: ClosedJaxpr, layout: Callable[[Var], Layout], mesh: AbstractMesh) -> ClosedJaxpr:
    """The program with row moves along split dimensions merged where that sends less."""
    jaxpr = closed.jaxpr
    if not any(type(e.op) in _maps for e in jaxpr.eqns):
        return closed
    zeros = zeros_of(closed)
    moves = _chains(jaxpr, lambda eqn: _move(eqn, layout, mesh, zeros))
    siblings: dict[tuple[int, tuple[Var, ...]], list[_Move]] = {}
    for move in moves:
        siblings.setdefault((move.dim, move.operands), []).append(move)
    merged = [m for group in siblings.values() for m in _joined(group)]
    if not merged:
        return closed
    gone = {id(eqn) for m in merged for eqn in m.eqns}
    firsts = {id(m.eqns[0]): m for m in merged}
    eqns: list[JaxprEqn] = []
    for eqn in jaxpr.eqns:
        if id(eqn) in firsts:
            m = firsts[id(eqn)]
            eqns.append(eqn.replace(op=RowMoves(m.dim, m.map), invars=list(m.operands), outvars=list(m.results)))
        elif id(eqn) not in gone:
            eqns.append(eqn)
    return closed.replace(jaxpr=jaxpr.replace(eqns=eqns))


def _chains(jaxpr: Jaxpr, as_move: Callable[[JaxprEqn], _Move | None]) -> Iterable[_Move]:
    """The row moves; a move whose result has one use, by another move, is composed with that if it sends less."""
    uses = use_counts(jaxpr.eqns, jaxpr.outvars)
    moves: dict[Var, _Move] = {}
    for eqn in jaxpr.eqns:
        move = as_move(eqn)
        if move is None:
            continue
        for operand in move.operands:
            inner = moves.get(operand)
            if inner is not None and uses[operand] == 1 and (both := _after(move, inner)) is not None:
                move = both
                del moves[operand]
        moves[move.results[0]] = move
    return moves.values()


def _after(move: _Move, inner: _Move) -> _Move | None:
    """The composition of ``move`` with ``inner``, whose result it takes; None if it does not send less."""
    if (move.dim, move.tiles) != (inner.dim, inner.tiles):
        return None
    number = move.operands.index(inner.results[0])
    through = move.map.of(number, inner.map, 0)
    rest = (*move.operands[:number], *move.operands[number + 1 :])
    # The merged equation replaces the first one, where all operands are available.
    both = _distinct(replace(move, eqns=(*move.eqns, *inner.eqns)), (*rest, *inner.operands), through)
    sent = move.sent + inner.sent
    return replace(both, sent=sent) if both.map.plan(move.tiles).sent < sent else None


def _distinct(move: _Move, operands: Sequence[Var], m: RowMap) -> _Move:
    """``move`` with these operands and their map, without duplicate operands."""
    once = tuple(dict.fromkeys(operands))
    place = {i: once.index(v) for i, v in enumerate(operands)} | {ZEROS: ZEROS}
    targets = tuple(tuple(s._replace(source=place[s.source]) for s in spans) for spans in m.targets)
    sizes = tuple(m.sources[operands.index(v)] for v in once)
    return replace(move, operands=once, map=RowMap(sizes, targets))


def _joined(group: Sequence[_Move]) -> Iterator[_Move]:
    """Row moves of the same arrays merged into one if that sends less, or else those that pay on their own."""
    first = group[0]
    targets = tuple(spans for m in group for spans in m.map.targets)
    whole = RowMap(first.map.sources, targets)
    sent = sum(m.sent for m in group)
    if whole.plan(first.tiles).sent < sent:
        eqns = tuple(eqn for m in group for eqn in m.eqns)
        yield replace(first, map=whole, results=tuple(v for m in group for v in m.results), eqns=eqns, sent=sent)
    else:
        yield from (m for m in group if m.map.plan(m.tiles).sent < m.sent)


# --- equations as maps --------------------------------------------------------------------------------------
def _move(eqn: JaxprEqn, layout: Callable[[Var], Layout], mesh: AbstractMesh, zeros: Container[Atom]) -> _Move | None:
    """The row move of an equation that moves rows along one split dimension; None for other equations."""
    if type(eqn.op) not in _maps or (isinstance(eqn.op, Pad) and not is_zero(eqn.invars[1], zeros)):
        return None
    mapped = _maps[type(eqn.op)](eqn)
    if mapped is None or not isinstance(eqn.invars[0], Var) or is_key(eqn.invars[0].aval.dtype):
        return None
    dim, m, count, alone = mapped
    operands: Any = eqn.invars[:count]
    axes = next((a for v in (*operands, *eqn.outvars) if (a := layout(v).dims[dim])), ())
    if not axes or min(*m.sources, *m.sizes) < 2:  # one row is not worth splitting
        return None
    tiles = mesh.sizes(axes)
    sent = _sent(alone or m, tiles, isinstance(eqn.op, CyclicWindow))
    move = _Move(dim, m, (), tuple(eqn.outvars), (eqn,), sent, tiles)
    return _distinct(move, operands, m)


class _Mapped(NamedTuple):
    """The dimension along which an equation moves rows, the row map, and the number of operands the rows come from.

    ``alone``: the map whose rows the equation sends if partitioned alone, if that is another one.
    """

    dim: int
    map: RowMap
    operands: int
    alone: RowMap | None = None


def _slice(eqn: JaxprEqn) -> _Mapped | None:
    op, shape = eqn.op, eqn.invars[0].aval.shape
    spans = list(zip(op.start_indices, op.limit_indices, op.strides))  # type: ignore[attr-defined]
    cut = [d for d, (span, n) in enumerate(zip(spans, shape)) if span != (0, n, 1)]
    if len(cut) != 1 or spans[cut[0]][2] != 1:
        return None
    (d,) = cut
    return _Mapped(d, RowMap((shape[d],), ((Span(0, *spans[d][:2]),),)), 1)


def _pad(eqn: JaxprEqn) -> _Mapped | None:
    shape = eqn.invars[0].aval.shape
    changed = [d for d, config in enumerate(eqn.op.padding_config) if config != (0, 0, 0)]  # type: ignore[attr-defined]
    if len(changed) != 1:
        return None
    (d,) = changed
    low, high, inner = eqn.op.padding_config[d]  # type: ignore[attr-defined]
    if inner or not shape[d]:
        return None
    spans = (Span(ZEROS, 0, max(low, 0)), Span(0, max(-low, 0), shape[d] - max(-high, 0)), Span(ZEROS, 0, max(high, 0)))
    return _Mapped(d, RowMap((shape[d],), (tuple(s for s in spans if s.rows > 0),)), 1)


def _concatenate(eqn: JaxprEqn) -> _Mapped | None:
    d = eqn.op.dimension  # type: ignore[attr-defined]
    sizes = tuple(a.aval.shape[d] for a in eqn.invars)
    return _Mapped(d, RowMap(sizes, (tuple(Span(i, 0, n) for i, n in enumerate(sizes)),)), len(sizes))


def _cyclic(eqn: JaxprEqn) -> _Mapped | None:
    d, size = eqn.op.dimension, eqn.invars[0].aval.shape[eqn.op.dimension]  # type: ignore[attr-defined]
    pieces = eqn.op.pieces(size)  # type: ignore[attr-defined]
    return _Mapped(d, RowMap((size,), (tuple(Span(0, low, high) for low, high in pieces),)), 1)


def _shift(eqn: JaxprEqn) -> _Mapped | None:
    op: Any = eqn.op
    shape = eqn.invars[0].aval.shape
    moved = [d for d, by in enumerate(op.shifts[0]) if by]
    if len(op.shifts) > 1 or len(moved) != 1:
        return None
    (d,) = moved
    # Borders are filled from rows that a tile has, or is sent for the rest.
    whole, alone = (RowMap((shape[d],), (tuple(s.spans(d, shape[d])),)) for s in (op, replace(op, borders=())))
    return _Mapped(d, whole, 1, alone)


_maps: dict[type[Op], Callable[[JaxprEqn], _Mapped | None]] = {
    Slice: _slice, Pad: _pad, Concatenate: _concatenate, CyclicWindow: _cyclic, Shifts: _shift,
}  # fmt: skip


@lru_cache(maxsize=4096)
def _sent(m: RowMap, tiles: int, ring: bool) -> int:
    """The number of rows that the equation of a map sends if partitioned alone, window by window."""
    (spans,), (size,) = m.targets, m.sizes
    rows = -(-size // tiles)
    if ring and m.sources[0] % tiles == 0:
        return plan_ring(m.sources[0], tiles, lambda t: spans[0].low + t * rows, rows).sent
    sent, at = 0, 0
    for source, low, high in spans:
        if source != ZEROS:
            sent += Shown(m.sources[source], size, at - low).sent(tiles)
        at += high - low
    return sent
