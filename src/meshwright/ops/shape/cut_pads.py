"""Cuts padded arrays before they are added up, where only a part of their sum is needed.

The derivative of a stencil, of windows of a padded array, pads the cotangent of each window to the size of that array,
adds them, and cuts the padding off. Tiles of the padded size are not those of the array, so along a split dimension
each of these steps moves almost all rows. If each term is cut, what is left is the cotangent shifted by a few rows, in
the tiles of the array.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Var, all_eqns
from meshwright.ir.passes import DEAD_CODE
from meshwright.ir.rewrite import in_regions, producers_of, replaced, uses_of
from meshwright.ops.elementwise.table import add
from meshwright.ops.shape.slice_pad import Pad, Slice


def cut_pads(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program with slices of sums of padded arrays as sums of the arrays, padded less, or cut."""
    if not {Pad, Slice} <= {type(e.op) for e in all_eqns(closed.jaxpr)}:
        return closed
    makers, uses = producers_of(closed.jaxpr), uses_of(closed.jaxpr)

    def cut(eqn: JaxprEqn) -> JaxprEqn | list[JaxprEqn]:
        if eqn.op.holds_jaxprs:
            return in_regions(eqn, cut_pads)
        if not isinstance(eqn.op, Slice) or set(eqn.op.strides) != {1}:
            return eqn
        order = _sum_of_pads(eqn.invars[0], makers, uses)
        pads = [
            (e.invars[0].aval.shape, _part_of(e.op, eqn.op, e.outvars[0].aval.shape))
            for e in order or ()
            if isinstance(e.op, Pad)
        ]
        # A term of which nothing is left would be cut by more than it has.
        left = all(
            n + min(low, 0) + min(high, 0) > 0
            for shape, pad in pads
            for n, (low, high, _) in zip(shape, pad.padding_config)
        )
        return eqn if order is None or not left else list(_cut(eqn, eqn.op, order))

    after = replaced(closed, cut)
    return after if after is closed else DEAD_CODE.apply(after)


def _sum_of_pads(
    whole: Atom, makers: Mapping[Var, JaxprEqn], uses: Mapping[Var, Sequence[JaxprEqn | None]]
) -> list[JaxprEqn] | None:
    """The pads and additions that compute a value, last one first; None if it is not a sum of arrays padded at their
    ends, or if something else needs one of these sums."""
    order: list[JaxprEqn] = []
    left = [whole]
    while left:
        value = left.pop()
        maker = makers.get(value) if isinstance(value, Var) else None
        if maker is None or len(uses[value]) > 1:  # type: ignore[index]
            return None
        if maker.op == add:
            left.extend(maker.invars)
        elif not isinstance(maker.op, Pad) or any(inner for _, _, inner in maker.op.padding_config):
            return None
        order.append(maker)
    return order if any(e.op == add for e in order) else None


def _part_of(pad: Pad, part: Slice, shape: Sequence[int]) -> Pad:
    """The padding that gives a part of a padded array of ``shape``."""
    ends = zip(pad.padding_config, part.start_indices, part.limit_indices, shape)
    return Pad(tuple((low - start, high - (size - limit), 0) for (low, high, _), start, limit, size in ends))


def _cut(eqn: JaxprEqn, part: Slice, order: Sequence[JaxprEqn]) -> Iterator[JaxprEqn]:
    """The equations ``order``, last one first, for the part of their result that ``eqn`` takes."""
    aval = eqn.outvars[0].aval
    parts: dict[Atom, Var] = {e.outvars[0]: Var(aval) for e in order}
    parts[eqn.invars[0]] = eqn.outvars[0]
    for old in reversed(order):
        out = parts[old.outvars[0]]
        if isinstance(old.op, Pad):
            yield old.replace(op=_part_of(old.op, part, old.outvars[0].aval.shape), outvars=[out])
        else:
            yield old.replace(invars=[parts[a] for a in old.invars], outvars=[out])
