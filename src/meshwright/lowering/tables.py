"""Numbers that a TPU looks up in small tables, computed by its scalar unit.

Each device finds the start of its rows, or how many it has, in a table, by its position. A slice of a table is a kernel
of its own, of some 1,800 cycles on a v5e by libtpu's estimate; arithmetic on scalars is none. The entries of a table
are a few arithmetic sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn
from meshwright.ir.passes import dead_code
from meshwright.ir.rewrite import replaced_in_all, written_out
from meshwright.ops.elementwise.clamp import clamp
from meshwright.ops.elementwise.table import add, convert, lt, mul, select, sub
from meshwright.ops.indexing.dynamic_slice import DynamicSlice
from meshwright.ops.shape.rearrange import reshape
from meshwright.sharding.tables import Run, runs

#: the most sequences of which a table consists that is computed
_MOST = 8
#: the largest magnitude of entries, so that differences are numbers of 32 bits
_LARGEST = 2**30


def compute_entries(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with entries of small tables of integers computed; the same object if it looks none up."""
    after = replaced_in_all(jaxpr, _rule_in)
    return after if after is jaxpr else dead_code(after)


def _rule_in(jaxpr: ClosedJaxpr) -> Callable[[JaxprEqn], Sequence[JaxprEqn]]:
    tables: dict[Atom, Any] = dict(zip(jaxpr.jaxpr.constvars, jaxpr.consts))

    def rule(eqn: JaxprEqn) -> Sequence[JaxprEqn]:
        if not isinstance(eqn.op, DynamicSlice) or eqn.op.slice_sizes != (1,) or eqn.invars[0] not in tables:
            return ()
        table, *at = eqn.invars
        entries = np.asarray(tables[table]) if table.aval.dtype == np.int32 else np.array([_LARGEST])
        found = runs(entries.tolist()) if abs(entries.astype(np.int64)).max() < _LARGEST else []
        if not 0 < len(found) <= _MOST:
            return ()
        return written_out(eqn.replace(invars=at), lambda at: [_entry(at, found, entries.size)])

    return rule


def _entry(at: Any, found: Sequence[Run], size: int) -> Any:
    """The entry at a position, as an array of one, of a table that consists of these sequences."""
    at = convert(clamp(np.zeros((), at.dtype), at, np.asarray(size - 1, at.dtype)), np.dtype(np.int32))
    entry = None
    for run in found:
        value = add(mul(sub(at, np.int32(run.start)), np.int32(run.step)), np.int32(run.first))
        entry = value if entry is None else select(lt(at, np.int32(run.start)), entry, value)
    return reshape(entry, (1,))
