"""Transforms one dimension after another where Fourier transforms of several have a sharded one.

Each dimension is then transformed while it is whole. A mesh axis moves off a dimension when that is transformed, and
need not return before the next transform (:mod:`meshwright.spmd.pencils`).

Dimensions of which some rows are needed afterwards come first, and are cut at once; those that were padded before come
last, and are filled as late (:mod:`meshwright.ops.rows_needed`): axes move while the array is small. Among the others,
unsplit dimensions come first. A second transform of the result (such as the inverse FFT after multiplication by a
filter) visits these in reverse order, so that each is already whole when it is transformed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Var
from meshwright.ir.passes import DEAD_CODE
from meshwright.ir.rewrite import producers_of, use_counts
from meshwright.ops.linalg.fft import FFT, IFFT, IRFFT, RFFT, Fft
from meshwright.ops.rows_needed import Boxes, rows_needed
from meshwright.ops.shape.rearrange import Transpose
from meshwright.sharding.rule import PARALLEL
from meshwright.spmd.factors import Axes
from meshwright.spmd.pencils import Dims, Step, cheapest
from meshwright.spmd.propagate import Propagation
from meshwright.spmd.rules import eqn_rule


class _Transform(NamedTuple):
    """The transform of a dimension of an operand."""

    dim: int
    op: Fft


class _Transforms(NamedTuple):
    """``x`` transformed along several dimensions, then transposed; ``eqns``: what does it."""

    x: Atom
    steps: tuple[_Transform, ...]
    permutation: tuple[int, ...]
    eqns: tuple[JaxprEqn, ...]


def separate_ffts(closed: ClosedJaxpr, propagation: Propagation) -> ClosedJaxpr:
    """The program with transforms of several dimensions, one of them split, replaced by those of one after another."""
    found = [t for t in _transforms(closed) if _is_split(t, propagation)]
    if not found:
        return closed
    boxes = Boxes(closed)
    ends = {id(t.eqns[-1]): t for t in found}
    gone = {id(e) for t in found for e in t.eqns}
    orders: dict[Var, Sequence[int]] = {}
    eqns: list[JaxprEqn] = []
    starts: list[JaxprEqn] = []
    for eqn in closed.jaxpr.eqns:
        if (t := ends.get(id(eqn))) is not None:
            orders[eqn.outvars[0]] = order = _order(t, propagation, orders, boxes)
            new = list(_one_by_one(t, order, propagation, boxes))
            starts += new
            eqns += new
        elif id(eqn) not in gone:
            eqns.append(eqn)
            order = next((orders[a] for a in eqn.invars if isinstance(a, Var) and a in orders and _keeps(eqn, a)), ())
            if order:
                orders[eqn.outvars[0]] = order
    separate = closed.replace(jaxpr=closed.jaxpr.replace(eqns=eqns))
    return DEAD_CODE.apply(rows_needed(separate, starts, lambda v, aval: _like(v, aval, propagation)))


def _transforms(closed: ClosedJaxpr) -> Iterator[_Transforms]:
    """The transforms of several dimensions of a program, at once or by equations that follow each other."""
    ffts = [eqn for eqn in closed.jaxpr.eqns if isinstance(eqn.op, Fft)]
    if not ffts:
        return iter(())
    makers, uses = producers_of(closed.jaxpr), use_counts(closed.jaxpr.eqns, closed.jaxpr.outvars)
    ends: dict[JaxprEqn, _Transforms] = {}
    for eqn in ffts:
        here = _alone(eqn)
        before, between = _before(eqn.invars[0], makers, uses)
        if before in ends and (both := _joined(ends[before], between, here)) is not None:
            del ends[before]
            here = both
        ends[eqn] = here
    return (t for t in ends.values() if len(t.steps) > 1 and t.x.aval.size)


def _alone(eqn: JaxprEqn) -> _Transforms:
    """A transform as steps, one for each dimension."""
    op: Any = eqn.op
    rank, ndim = len(op.fft_lengths), eqn.invars[0].aval.ndim
    complex_kind = IFFT if op.fft_type in (IFFT, IRFFT) else FFT
    kinds = [complex_kind] * (rank - 1) + [op.fft_type]
    steps = tuple(_Transform(ndim - rank + d, Fft(k, (n,))) for d, (k, n) in enumerate(zip(kinds, op.fft_lengths)))
    return _Transforms(eqn.invars[0], steps, tuple(range(ndim)), (eqn,))


def _before(
    atom: Atom, makers: Mapping[Var, JaxprEqn], uses: Mapping[Var, int]
) -> tuple[JaxprEqn | None, list[JaxprEqn]]:
    """The equation that makes a value which only transposes, ``between``, lead to another one."""
    between: list[JaxprEqn] = []
    while isinstance(atom, Var) and uses[atom] == 1 and (maker := makers.get(atom)) is not None:
        if not isinstance(maker.op, Transpose):
            return maker, between
        between.insert(0, maker)
        (atom,) = maker.invars
    return None, between


def _joined(first: _Transforms, between: Sequence[JaxprEqn], then: _Transforms) -> _Transforms | None:
    """Two transforms as one; None if they have dimensions in common, or a real array is between them."""
    permutation = first.permutation
    for eqn in between:
        permutation = tuple(permutation[d] for d in eqn.op.permutation)  # type: ignore[attr-defined]
    steps = tuple(s._replace(dim=permutation[s.dim]) for s in then.steps)
    kinds = {s.op.fft_type for s in first.steps}, {s.op.fft_type for s in steps}
    if IRFFT in kinds[0] or RFFT in kinds[1] or {s.dim for s in first.steps} & {s.dim for s in steps}:
        return None
    return _Transforms(first.x, first.steps + steps, permutation, (*first.eqns, *between, *then.eqns))


def _is_split(t: _Transforms, propagation: Propagation) -> bool:
    ins, outs = _layouts(t, propagation)
    return any(ins[s.dim] or outs[s.dim] for s in t.steps)


def _layouts(t: _Transforms, propagation: Propagation) -> tuple[Sequence[Axes], Sequence[Axes]]:
    """The axes of the operand's dimensions, and those of the same dimensions of the result."""
    after = propagation.layout(t.eqns[-1].outvars[0]).dims
    return propagation.layout(t.x).dims, [after[t.permutation.index(d)] for d in range(len(after))]


def _order(
    t: _Transforms, propagation: Propagation, orders: Mapping[Var, Sequence[int]], boxes: Boxes
) -> Sequence[int]:
    """The dimensions in the order in which to transform them."""
    ins, outs = _layouts(t, propagation)
    split = ins if isinstance(t.x, Var) else outs
    dims = [s.dim for s in t.steps]
    plain = sorted(dims, key=lambda d: bool(split[d]))
    done = orders.get(t.x) if isinstance(t.x, Var) else None
    if done is not None and sorted(done) == sorted(dims):
        plain = list(reversed(done))
    change = {s.dim: _change(t, s, boxes) for s in t.steps}
    order = sorted(plain, key=lambda d: (change[d], -plain.index(d) if change[d] > 0 else plain.index(d)))
    kinds = {s.dim: s.op.fft_type for s in t.steps}
    # The real-to-complex transform comes first, the complex-to-real one last.
    return sorted(order, key=lambda d: (kinds[d] == IRFFT) - (kinds[d] == RFFT))


def _change(t: _Transforms, step: _Transform, boxes: Boxes) -> int:
    """Whether a dimension has less (-1) or more (1) rows that count after the transform than before."""
    before, after = boxes.nonzero(t.x)[step.dim], boxes.needed(t.eqns[-1].outvars[0])[t.permutation.index(step.dim)]
    less, more = before.length / before.size, after.length / after.size
    return (more > less) - (more < less)


def _keeps(eqn: JaxprEqn, operand: Var) -> bool:
    """Whether an equation is elementwise, with a result of the shape and factors of ``operand``."""
    if len(eqn.outvars) != 1 or eqn.op.holds_jaxprs or eqn.outvars[0].aval.shape != operand.aval.shape:
        return False
    rule = eqn_rule(eqn)
    return rule.operands[eqn.invars.index(operand)] == rule.results[0] and {f.kind for f in rule.factors} <= {PARALLEL}


def _one_by_one(t: _Transforms, order: Sequence[int], propagation: Propagation, boxes: Boxes) -> Iterator[JaxprEqn]:
    """The equations of transforms in an order; each dimension is transposed to the last place for its own."""
    ops, by = {s.dim: s.op for s in t.steps}, t.eqns[0]
    at = list(range(len(t.permutation)))
    steps: list[tuple[Fft | Transpose, JaxprEqn, Sequence[Axes]]] = []
    for dim, axes in zip(order, _splits(t, order, propagation, boxes)):
        there = [*(d for d in sorted(at) if d != dim), dim]
        split = tuple(axes[d] for d in there)
        if at != there:
            steps.append((Transpose(tuple(at.index(d) for d in there)), by, split))
            at = there
        steps.append((ops[dim], by, split))
    if tuple(at) != t.permutation:
        steps.append((Transpose(tuple(at.index(d) for d in t.permutation)), t.eqns[-1], ()))
    x = t.x
    for n, (op, eqn, dims) in enumerate(steps):
        out = t.eqns[-1].outvars[0] if n == len(steps) - 1 else Var(op.infer(x.aval))
        if any(dims) and n < len(steps) - 1:
            propagation.place(out, dims)
        yield eqn.replace(op=op, invars=[x], outvars=[out])
        x = out


def _splits(t: _Transforms, order: Sequence[int], propagation: Propagation, boxes: Boxes) -> Sequence[Dims]:
    """For each transform in an order, the axes that split the operand's dimensions while it is done."""
    ins, outs = (tuple(dims) for dims in _layouts(t, propagation))
    known = {axis for axes in ins for axis in axes}
    start = tuple((*a, *(axis for axis in b if axis not in known)) for a, b in zip(ins, outs))
    before, after = boxes.nonzero(t.x), boxes.needed(t.eqns[-1].outvars[0])
    steps = [Step(d, after[t.permutation.index(d)].length) for d in order]
    itemsize = t.eqns[-1].invars[0].aval.dtype.itemsize
    return cheapest(start, outs, steps, [rows.length for rows in before], itemsize, propagation.mesh)


def _like(v: Var, aval: ShapedArray, propagation: Propagation) -> Var:
    """A variable for some rows of a value, in the same layout as far as there are rows for it."""
    new = Var(aval)
    if (placement := propagation.placements.get(v)) is not None:
        propagation.place(
            new, (a if propagation.mesh.sizes(a) <= n else () for a, n in zip(placement.dims, aval.shape))
        )
    if aval.shape == v.aval.shape and v in propagation.pinned:
        propagation.pinned[new] = propagation.pinned[v]
    return new
