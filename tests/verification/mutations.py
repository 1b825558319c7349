"""Mistakes to put into per-device programs: each a small change of one equation that leaves its types as they are."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from meshwright.ops.collective.all_reduce import ALL_REDUCE, AllReduce
from meshwright.ops.collective.base import AxisIndex, Collective
from meshwright.ops.collective.exchange import Ppermute
from meshwright.ops.collective.tiles import AllGather, AllSlice, ReduceScatter
from meshwright.ops.elementwise.table import ConvertElementType, SelectN, add, copy, eq, ge, gt, le, lt, max_, min_, sub
from meshwright.ops.shape.slice_pad import Concatenate, Pad, Slice
from meshwright.sharding import AbstractMesh

#: comparisons and the ones they are easily confused with
_CONFUSED = {"lt": (le, ge), "le": (lt, gt), "gt": (ge, le), "ge": (gt, lt)}
_OTHER = {"add": (sub,), "sub": (add,), "mul": (add,), "max": (min_,), "min": (max_,)}


@dataclass(frozen=True)
class Mutation:
    """A kind of mistake in equation ``place``, which becomes ``eqns``."""

    kind: str
    place: int
    eqns: tuple[JaxprEqn, ...]

    def applied(self, jaxpr: ClosedJaxpr) -> ClosedJaxpr:
        """The program with the mistake."""
        inner = jaxpr.jaxpr
        eqns = [*inner.eqns[: self.place], *self.eqns, *inner.eqns[self.place + 1 :]]
        return jaxpr.replace(jaxpr=inner.replace(eqns=eqns))


def mutations(jaxpr: Jaxpr, mesh: AbstractMesh) -> Iterator[Mutation]:
    """All mistakes of a program, those in bodies of loops and branches among them."""
    for place, eqn in enumerate(jaxpr.eqns):
        for kind, eqns in _of_equation(eqn, mesh):
            yield Mutation(kind, place, tuple(eqns))
        regions = eqn.op.regions() if eqn.op.holds_jaxprs else ()
        for number, region in enumerate(regions):
            for inner in mutations(region.jaxpr, mesh):
                if eqn.op.name == "while" and region.eqns[inner.place].outvars[0].aval.shape == ():
                    continue  # a loop whose counter is wrong need not end
                changed = [*regions[:number], inner.applied(region), *regions[number + 1 :]]
                yield Mutation(f"{inner.kind} in {eqn.op.name}", place, (eqn.replace(op=eqn.op.with_regions(changed)),))


Found = Iterator[tuple[str, Sequence[JaxprEqn]]]


def _of_equation(eqn: JaxprEqn, mesh: AbstractMesh) -> Found:
    op = eqn.op
    if isinstance(op, Collective):
        yield from _of_collective(eqn, op, mesh)
    for other in (*_CONFUSED.get(op.name, ()), *_OTHER.get(op.name, ())):
        if not (op.name in _OTHER and dtypes.is_bool(eqn.invars[0].aval.dtype)):
            yield f"{op.name} as {other.name}", [eqn.replace(op=other)]
    if op.name == "select_n" and len(eqn.invars) == 3:
        yield "mask the wrong way", [eqn.replace(invars=[eqn.invars[0], eqn.invars[2], eqn.invars[1]])]
    if isinstance(op, Slice):
        yield from _moved_slice(eqn, op)
    if isinstance(op, Pad):
        yield from _moved_pad(eqn, op)
    for i, atom in enumerate(eqn.invars):
        if (
            isinstance(atom, Literal)
            and dtypes.is_integer(atom.aval.dtype)
            and op.name in ("add", "sub", "mul", "clamp")
        ):
            off = Literal(np.asarray(atom.val + 1, atom.aval.dtype)[()], atom.aval)
            yield "a number off by one", [eqn.replace(invars=[*eqn.invars[:i], off, *eqn.invars[i + 1 :]])]
    if op.name == "dynamic_slice":
        yield from _moved_start(eqn)
    if op.name in ("dot_general", "sub", "div") and eqn.invars[0].aval == eqn.invars[1].aval:
        yield "operands exchanged", [eqn.replace(invars=eqn.invars[::-1])]


def _of_collective(eqn: JaxprEqn, op: Collective, mesh: AbstractMesh) -> Found:
    if isinstance(op, AxisIndex):
        out, late = eqn.outvars[0], Var(eqn.outvars[0].aval)
        yield "a position off by one", [
            eqn.replace(outvars=[late]), JaxprEqn(add, [late, Literal(np.int32(1), late.aval)], [out], eqn.source)
        ]  # fmt: skip
    elif eqn.invars[0].aval == eqn.outvars[0].aval:
        yield f"{op.name} dropped", [eqn.replace(op=copy)]
    if op.gives_all_the_same and eqn.invars[0].aval == eqn.outvars[0].aval:
        yield f"{op.name} on the first device alone", _on_the_first_alone(eqn, op)
    if isinstance(op, AllGather):
        copies = [eqn.invars[0]] * math.prod(op.sizes)
        yield "gathered from oneself", [eqn.replace(op=Concatenate(op.dimension), invars=copies)]
        sent, n = Var(eqn.invars[0].aval), math.prod(op.sizes)
        turned = Ppermute(op.axes, op.sizes, tuple((i, (i + 1) % n) for i in range(n)))
        yield "gathered from the neighbours", [
            JaxprEqn(turned, list(eqn.invars), [sent], eqn.source), eqn.replace(invars=[sent])
        ]  # fmt: skip
    if isinstance(op, ReduceScatter):
        yield "not summed", [eqn.replace(op=AllSlice(op.axes, op.sizes, op.dimension))]
    if isinstance(op, AllReduce):
        for kind in ALL_REDUCE.values():
            if kind is not type(op) and kind.reduction in ("sum", "max"):
                yield f"{op.name} as {kind.reduction}", [eqn.replace(op=kind(op.axes, op.sizes))]
        if len(op.axes) > 1:
            yield "an axis forgotten", [eqn.replace(op=op.over(op.axes[1:], op.sizes[1:]))]
        once = Var(eqn.outvars[0].aval)
        yield f"{op.name} twice", [eqn.replace(outvars=[once]), eqn.replace(invars=[once])]
    if isinstance(op, Ppermute):
        n = math.prod(op.sizes)
        further = tuple((a, (b + 1) % n) for a, b in op.perm)
        yield "sent one device too far", [eqn.replace(op=dataclasses.replace(op, perm=further))]
        for pairs in (op.perm[1:], op.perm[:-1]):
            yield "rows of a neighbour missing", [eqn.replace(op=dataclasses.replace(op, perm=pairs))]
        yield "sent the wrong way", [eqn.replace(op=dataclasses.replace(op, perm=tuple((b, a) for a, b in op.perm)))]
    for axis in mesh.axis_names:
        if len(op.axes) == 1 and axis not in op.axes and mesh.axis_size(axis) == op.sizes[0]:
            yield "the wrong axis", [eqn.replace(op=op.over((axis,), op.sizes))]
    if len(op.axes) > 1 and op.sizes[0] == op.sizes[1] and not isinstance(op, AllReduce):
        yield "axes in the wrong order", [eqn.replace(op=op.over(op.axes[::-1], op.sizes[::-1]))]


def _on_the_first_alone(eqn: JaxprEqn, op: Collective) -> Sequence[JaxprEqn]:
    """The other devices along the first of its axes keep what they have."""
    made, place = Var(eqn.outvars[0].aval), Var(ShapedArray((), np.dtype(np.int32)))
    first = Var(ShapedArray((), np.dtype(bool)))
    zero = Literal(np.int32(0), place.aval)
    return [
        eqn.replace(outvars=[made]),
        JaxprEqn(AxisIndex(op.axes[:1], op.sizes[:1]), [], [place], eqn.source),
        JaxprEqn(eq, [place, zero], [first], eqn.source),
        JaxprEqn(SelectN(), [first, eqn.invars[0], made], list(eqn.outvars), eqn.source),
    ]


def computed_in(eqn: JaxprEqn, dtype: Any) -> Sequence[JaxprEqn]:
    """An equation with one operand and its result converted to another type; no float64 shows it."""
    narrow = np.dtype(dtype)
    before, after = (Var(v.aval.update(dtype=narrow)) for v in (eqn.invars[0], eqn.outvars[0]))
    return [
        JaxprEqn(ConvertElementType(narrow), [eqn.invars[0]], [before], eqn.source),
        eqn.replace(invars=[before, *eqn.invars[1:]], outvars=[after]),
        JaxprEqn(ConvertElementType(eqn.outvars[0].aval.dtype), [after], list(eqn.outvars), eqn.source),
    ]


def summed_after(eqn: JaxprEqn, following: JaxprEqn) -> Sequence[JaxprEqn]:
    """A sum and the conversion of its result, in the other order: each term is rounded."""
    narrow = Var(eqn.invars[0].aval.update(dtype=following.outvars[0].aval.dtype))
    return [following.replace(invars=list(eqn.invars), outvars=[narrow]), following.replace(op=eqn.op, invars=[narrow])]


def _moved_slice(eqn: JaxprEqn, op: Any) -> Found:
    for d, (start, limit) in enumerate(zip(op.start_indices, op.limit_indices)):
        for by in (-1, 1):
            if 0 <= start + by and limit + by <= eqn.invars[0].aval.shape[d]:
                starts, limits = list(op.start_indices), list(op.limit_indices)
                starts[d], limits[d] = start + by, limit + by
                moved = dataclasses.replace(op, start_indices=tuple(starts), limit_indices=tuple(limits))
                yield "a slice off by one", [eqn.replace(op=moved)]


def _moved_pad(eqn: JaxprEqn, op: Any) -> Found:
    for d, (low, high, inner) in enumerate(op.padding_config):
        if low or high:
            config = list(op.padding_config)
            config[d] = (low + 1, high - 1, inner)
            yield "padding off by one", [eqn.replace(op=dataclasses.replace(op, padding_config=tuple(config)))]


def _moved_start(eqn: JaxprEqn) -> Found:
    x, *starts = eqn.invars
    for i, start in enumerate(starts):
        if isinstance(start, Var):
            off = Var(start.aval)
            one = Literal(np.asarray(1, start.aval.dtype)[()], start.aval.strong())
            moved = [*starts[:i], off, *starts[i + 1 :]]
            yield "an offset off by one", [
                JaxprEqn(add, [start, one], [off], eqn.source), eqn.replace(invars=[x, *moved])
            ]  # fmt: skip
