"""Replaces masked sums of which only one device reads the result by a message, or by nothing.

A row of a split dimension is sent to all devices in one masked sum, as each may need it. But if all results computed
from it end in a select by position (a boundary row that is set from its neighbour), only the device at that position
uses it.

Two facts are propagated through local operations: forwards, the *home* of a value, outside of which it is masked (from
selects whose other side is constant); and backwards from all results, where a value is *read*.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from meshwright.ir.jaxpr import Atom, Jaxpr, JaxprEqn, Literal, Var
from meshwright.ir.rewrite import rebuilt, renamed
from meshwright.ops.collective.all_reduce import PsumMasked
from meshwright.ops.collective.base import AxisIndex, Collective
from meshwright.ops.collective.exchange import Ppermute
from meshwright.ops.elementwise.table import SelectN, add, and_, eq, mul
from meshwright.spmd.varying import Variance

#: positions along axes; it contains the devices that have all of these positions
Place = frozenset[tuple[tuple[str, ...], int]]
EVERYWHERE: Place = frozenset()


def send_to_one_reader(jaxpr: Jaxpr, _: Variance) -> Jaxpr:
    """Turn masked sums with one home and one reader into messages; drop those for which both are the same device."""
    sums = {id(e) for e in jaxpr.eqns if isinstance(e.op, PsumMasked)}
    tests = _tests(jaxpr) if sums else {}
    if not tests:
        return jaxpr
    homes, readers = _homes(jaxpr, tests), _readers(jaxpr, tests)
    names: dict[Var, Atom] = {}
    eqns: list[JaxprEqn] = []
    for eqn in jaxpr.eqns:
        pair = _source_and_target(eqn, homes, readers) if id(eqn) in sums else None
        if pair is None:
            eqns.append(renamed(eqn, names))
        elif pair[0] == pair[1]:
            names[eqn.outvars[0]] = names.get(eqn.invars[0], eqn.invars[0])  # type: ignore[arg-type]
        else:
            sent = eqn.replace(op=Ppermute(eqn.op.axes, eqn.op.sizes, (pair,)))  # type: ignore[attr-defined]
            eqns.append(renamed(sent, names))
    return rebuilt(jaxpr, eqns, names)


def _source_and_target(
    eqn: JaxprEqn, homes: Mapping[Atom, Place], readers: Mapping[Atom, Place]
) -> tuple[int, int] | None:
    """The positions along a sum's axes of the device that has the summand and of the device that reads the sum."""
    source = _along(eqn.op, homes.get(eqn.invars[0], EVERYWHERE))
    target = _along(eqn.op, readers[eqn.outvars[0]])
    return None if source is None or target is None else (source, target)


def _along(op: Any, place: Place) -> int | None:
    """The position along an op's axes of the devices at a place; None if the place does not fix it."""
    known = dict(place)
    if op.axes in known:
        return known[op.axes]
    alone = [known.get((axis,)) for axis in op.axes]
    return None if None in alone else int(np.ravel_multi_index(alone, op.sizes))  # type: ignore[arg-type]


def _tests(jaxpr: Jaxpr) -> dict[Atom, Place]:
    """The booleans that are true only at a place: a position compared with a number, and conjunctions of these."""
    tests: dict[Atom, Place] = {}
    positions = _positions(jaxpr)
    for eqn in jaxpr.eqns:
        a, b = (*eqn.invars, None, None)[:2]
        if eqn.op == eq and a in positions and isinstance(b, Literal):
            tests[eqn.outvars[0]] = frozenset([(positions[a][0], int(np.asarray(b.val)))])
        elif eqn.op == and_ and (a in tests or b in tests):
            tests[eqn.outvars[0]] = frozenset().union(*(tests.get(part, EVERYWHERE) for part in eqn.invars))
        elif eqn.op.moves_only and a in tests:
            tests[eqn.outvars[0]] = tests[a]
    return tests


def _positions(jaxpr: Jaxpr) -> dict[Atom | None, tuple[tuple[str, ...], int]]:
    """The values that are positions along axes, with the axes and the number of positions.

    A position along major axes, times the number of positions along minor axes, plus the position along these, is one
    along both.
    """
    positions: dict[Atom | None, tuple[tuple[str, ...], int]] = {}
    scaled: dict[Atom | None, tuple[tuple[str, ...], int, int]] = {}
    for eqn in jaxpr.eqns:
        a, b = (*eqn.invars, None, None)[:2]
        if isinstance(eqn.op, AxisIndex):
            positions[eqn.outvars[0]] = eqn.op.axes, eqn.op.group_size
        elif eqn.op == mul and a in positions and isinstance(b, Literal):
            scaled[eqn.outvars[0]] = *positions[a], int(np.asarray(b.val))
        elif eqn.op == add and a in scaled and b in positions and scaled[a][2] == positions[b][1]:
            (major, count, _), (minor, few) = scaled[a], positions[b]
            positions[eqn.outvars[0]] = (*major, *minor), count * few
    return positions


def _homes(jaxpr: Jaxpr, tests: Mapping[Atom, Place]) -> dict[Atom, Place]:
    """The homes of values that are masked everywhere else."""
    constants = {e.outvars[0] for e in jaxpr.eqns if e.op.moves_only and isinstance(e.invars[0], Literal)}
    homes: dict[Atom, Place] = {}
    for eqn in jaxpr.eqns:
        variables = {a for a in eqn.invars if isinstance(a, Var)}
        if (chosen := _chosen(eqn, tests)) is not None:
            other = eqn.invars[1]
            if isinstance(other, Literal) or other in constants:
                homes[eqn.outvars[0]] = chosen | homes.get(eqn.invars[2], EVERYWHERE)
        elif variables and _is_local(eqn) and all(v in homes for v in variables):
            first, *rest = (homes[v] for v in variables)
            if all(home == first for home in rest):
                homes.update(dict.fromkeys(eqn.outvars, first))
    return homes


def _readers(jaxpr: Jaxpr, tests: Mapping[Atom, Place]) -> dict[Atom, Place]:
    """The places where values are read."""
    read: dict[Atom, Place] = dict.fromkeys(jaxpr.outvars, EVERYWHERE)

    def note(atom: Atom, place: Place) -> None:
        if isinstance(atom, Var):
            read[atom] = read[atom] & place if atom in read else place

    for eqn in reversed(jaxpr.eqns):
        places = [read[v] for v in eqn.outvars if v in read]
        place = frozenset.intersection(*places) if places and _is_local(eqn) else EVERYWHERE
        chosen = _chosen(eqn, tests) or EVERYWHERE
        for i, atom in enumerate(eqn.invars):
            note(atom, place | chosen if i == 2 else place)
    return {**dict.fromkeys((v for e in jaxpr.eqns for v in e.outvars), EVERYWHERE), **read}


def _chosen(eqn: JaxprEqn, tests: Mapping[Atom, Place]) -> Place | None:
    """The place at which an equation selects its last operand, if it selects by position."""
    return tests.get(eqn.invars[0]) if isinstance(eqn.op, SelectN) else None


def _is_local(eqn: JaxprEqn) -> bool:
    """Whether a device computes an equation from its own operands alone, without effects or regions."""
    return not (isinstance(eqn.op, Collective) or eqn.op.has_effects or eqn.op.holds_jaxprs)
