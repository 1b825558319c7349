"""Clamps the starts of slices of slices, which XLA adds.

XLA makes one ``dynamic_slice`` of two that follow each other, and starts it at the sum of their starts. It clamps that
sum, where it would have to add clamped starts: results differ if one of the windows lies partly outside of its array.
The same happens to updates of slices that are written back, and to gathers of a single window. What stands between
may be simplified away, and calls may be inlined, so anything that keeps the order of the elements is looked through.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from meshwright.ir.jaxpr import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, all_eqns, sub_jaxprs
from meshwright.ir.rewrite import replaced_in_all, written_out
from meshwright.ir.tracing import typeof
from meshwright.ops.elementwise.clamp import clamp
from meshwright.ops.elementwise.table import scalar_like
from meshwright.ops.indexing.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from meshwright.ops.indexing.gather_scatter import Gather
from meshwright.ops.shape.rearrange import Reshape, Transpose
from meshwright.ops.shape.slice_pad import concatenate, slice_in_dim

Shape = tuple[int, ...]
#: along which dimensions a value is a window of a longer one, and the results of the ops that cut it
Cuts = frozenset[tuple[int, Var]]
_NONE: Cuts = frozenset()


def keep_starts(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with clamped starts of slices of slices; the same object if there are none."""
    if sum(isinstance(e.op, (DynamicSlice, DynamicUpdateSlice, Gather)) for e in all_eqns(jaxpr.jaxpr)) < 2:
        return jaxpr
    chains = _Chains()
    chains.follow(jaxpr.jaxpr, {})
    found = chains.found

    def rule(eqn: JaxprEqn) -> Sequence[JaxprEqn]:
        return written_out(eqn, partial(_inside, eqn)) if eqn.outvars and eqn.outvars[0] in found else ()

    return replaced_in_all(jaxpr, lambda _: rule) if found else jaxpr


# --- which ones -----------------------------------------------------------------------------------------------
class _Chains:
    """Collects the results of slices and updates along a dimension along which their operand has been cut."""

    def __init__(self) -> None:
        self.found: set[Var] = set()
        self._updates: set[Var] = set()
        #: by jaxpr, with which cuts of parameters it has been walked, and the cuts of its results
        self._walked: dict[Jaxpr, tuple[dict[Shape, Cuts], dict[Shape, Cuts]]] = {}

    def follow(self, jaxpr: Jaxpr, given: Mapping[Shape, Cuts]) -> dict[Shape, Cuts]:
        """Walk a jaxpr. Which operand becomes which parameter depends on the op, so cuts are ``given`` by shape."""
        if jaxpr in self._walked:
            known, outs = self._walked[jaxpr]
            if all(cuts <= known.get(shape, _NONE) for shape, cuts in given.items()):
                return outs
            given = {shape: known.get(shape, _NONE) | given.get(shape, _NONE) for shape in {*known, *given}}
        cuts = {v: given[v.aval.shape] for v in jaxpr.invars if v.aval.shape in given}
        for eqn in jaxpr.eqns:
            for v, found in zip(eqn.outvars, self._results(eqn, cuts)):
                if found:
                    cuts[v] = found
        self._walked[jaxpr] = dict(given), _by_shape(jaxpr.outvars, cuts)
        return self._walked[jaxpr][1]

    def _results(self, eqn: JaxprEqn, cuts: Mapping[Var, Cuts]) -> Sequence[Cuts]:
        op, given = eqn.op, _by_shape(eqn.invars, cuts)
        if isinstance(op, (DynamicSlice, DynamicUpdateSlice)) or (isinstance(op, Gather) and _is_single(op, eqn)):
            return [self._window(eqn, cuts)]
        if op.holds_jaxprs:
            outs: dict[Shape, Cuts] = {}
            for inner in dict.fromkeys(sub_jaxprs(op)):
                for shape, found in self.follow(inner, given).items():
                    outs[shape] = outs.get(shape, _NONE) | found
            return [outs.get(v.aval.shape, _NONE) for v in eqn.outvars]
        if not given:
            return ()
        if isinstance(op, Transpose):
            return [frozenset((op.permutation.index(d), v) for d, v in _cuts_of(eqn.invars[0], cuts))]
        if isinstance(op, Reshape):
            before, after = (_long(a.aval.shape) for a in (*eqn.invars, *eqn.outvars))
            if list(before.values()) != list(after.values()):
                return [frozenset((d, v) for d in after for _, v in _cuts_of(eqn.invars[0], cuts))]
        return [_kept(v.aval.shape, given) for v in eqn.outvars]

    def _window(self, eqn: JaxprEqn, cuts: Mapping[Var, Cuts]) -> Cuts:
        """The cuts of the result of a slice, or of an update."""
        (out,), shape, sizes, x = eqn.outvars, eqn.invars[0].aval.shape, _sizes(eqn), _cuts_of(eqn.invars[0], cuts)
        short = [d for d, (k, n) in enumerate(zip(sizes, shape)) if k < n]
        met = {v for d, v in x if d in short}
        is_update = isinstance(eqn.op, DynamicUpdateSlice)
        if is_update:  # a slice that was updated before
            met |= {v for d, v in _cuts_of(eqn.invars[1], cuts) if d in short and v in self._updates}
        if isinstance(eqn.op, Gather) and not eqn.op.moves_only:  # it masks what lies outside
            self.found |= met
            return _NONE
        if met:
            self.found |= {out, *met}
            self._updates |= {out} if is_update else set()
        after = x | {(d, out) for d in short} if met or not is_update else x
        if not isinstance(eqn.op, Gather):
            return frozenset(after)
        numbers = eqn.op.dimension_numbers
        place = dict(zip(numbers.window_dims(len(shape)), numbers.offset_dims))
        return frozenset((place[d], v) for d, v in after if d in place)


def _cuts_of(atom: Atom, cuts: Mapping[Var, Cuts]) -> Cuts:
    return cuts.get(atom, _NONE) if isinstance(atom, Var) else _NONE


def _is_single(op: Gather, eqn: JaxprEqn) -> bool:
    """Whether a gather looks up a single window."""
    return all(n == 1 for n in eqn.invars[1].aval.shape[:-1]) and not op.dimension_numbers.operand_batching_dims


def _sizes(eqn: JaxprEqn) -> Shape:
    """The sizes of the window of a slice or an update."""
    op: Any = eqn.op
    return eqn.invars[1].aval.shape if isinstance(op, DynamicUpdateSlice) else tuple(op.slice_sizes)


def _long(shape: Shape) -> dict[int, int]:
    """The dimensions of more than one row, with their sizes."""
    return {d: n for d, n in enumerate(shape) if n > 1}


def _by_shape(atoms: Sequence[Atom], cuts: Mapping[Var, Cuts]) -> dict[Shape, Cuts]:
    found: dict[Shape, Cuts] = {}
    for atom in atoms:
        if isinstance(atom, Var) and atom in cuts:
            found[atom.aval.shape] = found.get(atom.aval.shape, _NONE) | cuts[atom]
    return found


def _kept(shape: Shape, given: Mapping[Shape, Cuts]) -> Cuts:
    """The cuts of a value of ``shape``, from operands that have the same elements, or one for each of its own."""
    found: set[tuple[int, Var]] = set()
    to = _long(shape)
    for other, cuts in given.items():
        of = _long(other)
        if list(of.values()) == list(to.values()):
            place = dict(zip(of, to))
            found |= {(place[d], v) for d, v in cuts if d in place}
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
    first = len(eqn.invars) - len(limits)
    update, starts = operands[: first - 1], operands[first - 1 :]
    inside = [
        start if _is_inside(atom, limit) else _limited(start, limit)
        for atom, start, limit in zip(eqn.invars[first:], starts, limits)
    ]
    return [eqn.op.bind(x, *update, *inside)]


def _is_inside(atom: Atom, limit: int) -> bool:
    return isinstance(atom, Literal) and 0 <= int(atom.val) <= limit


def _limited(start: Any, limit: int) -> Any:
    top = min(limit, int(np.iinfo(typeof(start).dtype).max))
    return clamp(scalar_like(0, start), start, scalar_like(top, start))
