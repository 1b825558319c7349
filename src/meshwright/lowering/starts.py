"""Clamps the starts of slices of slices, which XLA adds.

XLA makes one ``dynamic_slice`` of two that follow each other, and starts it at the sum of their starts. It clamps that
sum, where it would have to add clamped starts: results differ if one of the windows lies partly outside of its array.
The same happens to updates of slices that are written back, and to gathers of a single window. What stands between
may be simplified away, and calls may be inlined, so anything that keeps the order of the elements is looked through.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from meshwright.ir.jaxpr import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, all_eqns, sub_jaxprs
from meshwright.ir.rewrite import replaced_in_all, written_out
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.bitcast import BitcastWidth
from meshwright.ops.elementwise.clamp import clamp
from meshwright.ops.elementwise.table import scalar_like, select
from meshwright.ops.indexing.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from meshwright.ops.indexing.gather_add import ScatterBase
from meshwright.ops.indexing.gather_scatter import Gather
from meshwright.ops.indexing.indexed import GatherScatterMode, outside
from meshwright.ops.shape.broadcast_reduce import BroadcastInDim
from meshwright.ops.shape.rearrange import Reshape, Transpose
from meshwright.ops.shape.slice_pad import concatenate, slice_in_dim

Shape = tuple[int, ...]
#: that a value, or a part of it of this shape, is a window of a longer one along a dimension, which an op cut
Cut = tuple[Shape, int, Var]
Cuts = frozenset[Cut]
_NONE: Cuts = frozenset()
#: of how many cuts a value may consist before all of their starts are clamped, so that one can stand for them
_MANY = 64


def keep_starts(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with clamped starts of slices of slices; the same object if there are none."""
    if sum(isinstance(e.op, _WINDOWS) for e in all_eqns(jaxpr.jaxpr)) < 2:
        return jaxpr
    chains = _Chains()
    chains.follow(jaxpr.jaxpr, _NONE)
    found = chains.found

    def rule(eqn: JaxprEqn) -> Sequence[JaxprEqn]:
        if isinstance(eqn.op, _WINDOWS) and eqn.outvars[0] in found:
            return written_out(eqn, partial(_inside, eqn))
        return ()

    return replaced_in_all(jaxpr, lambda _: rule) if found else jaxpr


# --- which ones -----------------------------------------------------------------------------------------------
#: XLA reads the elements that a scatter of a single window combines as a slice, and writes them as an update
_WINDOWS = DynamicSlice, DynamicUpdateSlice, Gather, ScatterBase
_UPDATES = DynamicUpdateSlice, ScatterBase


class _Chains:
    """Collects the results of slices and updates along a dimension along which their operand has been cut."""

    def __init__(self) -> None:
        self.found: set[Var] = set()
        self._updates: set[Var] = set()
        #: by jaxpr, with which cuts of parameters it has been walked, and the cuts of its results
        self._walked: dict[Jaxpr, tuple[Cuts, Cuts]] = {}

    def follow(self, jaxpr: Jaxpr, given: Cuts) -> Cuts:
        """Walk a jaxpr. Which operand becomes which parameter depends on the op, so cuts are ``given`` by shape."""
        if jaxpr in self._walked:
            known, outs = self._walked[jaxpr]
            if given <= known:
                return outs
            given |= known
        cuts = {v: _within(v.aval.shape, given) for v in jaxpr.invars} if given else {}
        for eqn in jaxpr.eqns:
            for v, found in zip(eqn.outvars, self._results(eqn, cuts)):
                if found:
                    cuts[v] = self._few(found)
        self._walked[jaxpr] = given, self._few(_cuts_of(jaxpr.outvars, cuts))
        return self._walked[jaxpr][1]

    def _few(self, cuts: Cuts) -> Cuts:
        """The cuts, or one for each shape and dimension if there are many."""
        if len(cuts) <= _MANY:
            return cuts
        self.found |= {v for _, _, v in cuts}
        last = sorted(cuts, key=lambda cut: cut[2] in self._updates)
        return frozenset({(shape, d): (shape, d, v) for shape, d, v in last}.values())

    def _results(self, eqn: JaxprEqn, cuts: Mapping[Var, Cuts]) -> Sequence[Cuts]:
        op, given = eqn.op, _cuts_of(eqn.invars, cuts)
        if isinstance(op, _WINDOWS) and _is_single(eqn):
            return [self._window(eqn, given, cuts)]
        called = [j for j in dict.fromkeys(sub_jaxprs(op)) if any(v.aval.shape for v in j.invars)]
        if called:  # others compute with single elements
            outs = _NONE.union(*(self.follow(inner, given) for inner in called))
            return [_within(v.aval.shape, outs) for v in eqn.outvars]
        if not given:
            return ()
        if isinstance(op, Transpose):
            return [_moved(given, eqn, [op.permutation.index(d) for d in range(len(op.permutation))])]
        if isinstance(op, BroadcastInDim):
            return [_moved(given, eqn, op.broadcast_dimensions)]
        if isinstance(op, BitcastWidth):
            return [_moved(given, eqn, range(min(v.aval.ndim for v in (*eqn.invars, *eqn.outvars))))]
        if isinstance(op, Reshape):
            before, after = (_long(a.aval.shape) for a in (*eqn.invars, *eqn.outvars))
            if list(before.values()) != list(after.values()):
                return [frozenset((eqn.outvars[0].aval.shape, d, v) for d in after for _, _, v in given)]
        return [_within(v.aval.shape, given) for v in eqn.outvars]

    def _window(self, eqn: JaxprEqn, given: Cuts, cuts: Mapping[Var, Cuts]) -> Cuts:
        """The cuts of the results of a slice, or of an update."""
        op, out, shape, sizes = eqn.op, eqn.outvars[0], eqn.invars[0].aval.shape, _sizes(eqn)
        short = [d for d, (k, n) in enumerate(zip(sizes, shape)) if k < n]
        whole = {(d, v) for s, d, v in _cuts_of(eqn.invars[:1], cuts) if s == shape}
        met = {v for d, v in whole if d in short}
        is_update = isinstance(op, _UPDATES)
        if is_update:  # with a slice that was updated before
            met |= {v for _, _, v in _cuts_of(eqn.invars[1:], cuts) if v in self._updates}
        if isinstance(op, Gather) and not op.moves_only:  # it masks what lies outside
            self.found |= met
            return _NONE
        if met:
            self.found |= {out, *met}
            self._updates |= {out} if is_update else set()
        its = shape if is_update else sizes
        if met or not is_update:
            whole |= {(d, out) for d in short}
        after = {(its, d, v) for d, v in whole} | _within(its, given)
        if not isinstance(op, Gather):
            return frozenset(after)
        numbers = op.dimension_numbers
        place = dict(zip(numbers.window_dims(len(shape)), numbers.offset_dims))
        return frozenset((out.aval.shape, place[d], v) for s, d, v in after if s == sizes and d in place)


def _cuts_of(atoms: Sequence[Atom], cuts: Mapping[Var, Cuts]) -> Cuts:
    return _NONE.union(*(cuts[a] for a in atoms if isinstance(a, Var) and a in cuts))


def _is_single(eqn: JaxprEqn) -> bool:
    """Whether a gather or a scatter is of a single window."""
    return all(n == 1 for i in eqn.op.index_operands(len(eqn.invars)) for n in eqn.invars[i].aval.shape[:-1])


def _sizes(eqn: JaxprEqn) -> Shape:
    """The sizes of the window of a slice or an update."""
    op: Any = eqn.op
    if isinstance(op, DynamicUpdateSlice):
        return eqn.invars[1].aval.shape
    return op.window(*(eqn.invars[i].aval.shape for i in (0, -1))) if isinstance(op, ScatterBase) else op.slice_sizes


def _long(shape: Shape) -> dict[int, int]:
    """The dimensions of more than one row, with their sizes."""
    return {d: n for d, n in enumerate(shape) if n > 1}


def _moved(given: Cuts, eqn: JaxprEqn, places: Sequence[int]) -> Cuts:
    """The cuts of a result, dimension ``places[i]`` of which is dimension ``i`` of the operand."""
    before, found = eqn.invars[0].aval.shape, set[Cut]()
    for shape, d, v in given:
        if len(shape) == len(before) and d < len(places) and before[d] > 1:
            new = list(eqn.outvars[0].aval.shape)
            for i, place in enumerate(places):
                new[place] = new[place] if shape[i] == before[i] else shape[i]
            found.add((tuple(new), places[d], v))
    return frozenset(found)


def _within(shape: Shape, given: Cuts) -> Cuts:
    """The cuts of a value of ``shape``, from operands that are parts of it, or have an element for each of its own."""
    found, to = set[Cut](), _long(shape)
    for other, d, v in given:
        of = _long(other)
        if list(of.values()) == list(to.values()):
            found |= {(shape, dict(zip(of, to))[d], v)} if d in of else set()
        elif len(other) == len(shape) and all(k <= n for k, n in zip(other, shape)):
            found.add((other, d, v))
    return frozenset(found)


# --- what they become -----------------------------------------------------------------------------------------
def _inside(eqn: JaxprEqn, x: Any, *operands: Any) -> list[Any]:
    """The op with starts inside the operand."""
    limits = [n - k for n, k in zip(typeof(x).shape, _sizes(eqn))]
    if isinstance(eqn.op, Gather):
        (indices,) = operands
        last, limits = typeof(indices).ndim - 1, eqn.op.dimension_numbers.limits(typeof(x).shape, _sizes(eqn))
        columns = [_limited(slice_in_dim(indices, i, i + 1, axis=last), limit) for i, limit in enumerate(limits)]
        return [eqn.op.bind(x, concatenate(columns, last))]
    if isinstance(eqn.op, ScatterBase):
        return _masked(eqn.op, _sizes(eqn), len(eqn.outvars), (x, *operands))
    first = len(eqn.invars) - len(limits)
    update, starts = operands[: first - 1], operands[first - 1 :]
    inside = [
        start if _is_inside(atom, limit) else _limited(start, limit)
        for atom, start, limit in zip(eqn.invars[first:], starts, limits)
    ]
    return [eqn.op.bind(x, *update, *inside)]


def _masked(op: ScatterBase, sizes: Shape, count: int, operands: Sequence[Any]) -> list[Any]:
    """A scatter with a start inside the operands, whose results are dropped if it was outside."""
    clipped = replace(op, mode=GatherScatterMode.CLIP).bind(*operands)
    written: list[Any] = clipped if op.multiple_results else [clipped]
    if op.mode is GatherScatterMode.CLIP:
        return written
    is_outside = outside(operands[count], op.dimension_numbers.gather().limits(typeof(operands[0]).shape, sizes))
    return [select(is_outside, x, y) for x, y in zip(operands, written)]


def _is_inside(atom: Atom, limit: int) -> bool:
    return isinstance(atom, Literal) and 0 <= int(atom.val) <= limit


def _limited(start: Any, limit: int) -> Any:
    top = min(limit, int(np.iinfo(typeof(start).dtype).max))
    return clamp(scalar_like(0, start), start, scalar_like(top, start))
