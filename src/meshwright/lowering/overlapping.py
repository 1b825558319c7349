"""Replaces in-place updates that would read the buffer they overwrite.

XLA's CPU compiler performs ``dynamic_update_slice(x, update)`` in place if ``x`` has no other uses. If ``x`` is a view
of a value in another shape, it does not notice that an update fused into the op reads this value too; shifted rows are
then read after they have been overwritten. The same happens if the result is reshaped, since XLA moves the reshape
before the update.
Such updates are lowered to a select between the two arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from meshwright.ir.jaxpr import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Var, all_eqns
from meshwright.ir.rewrite import replaced_in_all
from meshwright.ir.tracing import typeof
from meshwright.lowering.narrow_bits import called
from meshwright.ops.control.call import FunctionCall
from meshwright.ops.elementwise.table import add, and_, ge, lt, max_, min_, scalar_like, select, sub
from meshwright.ops.indexing.dynamic_slice import DynamicSlice
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, iota
from meshwright.ops.shape.slice_pad import pad

#: ops whose result may share its operand's buffer
_VIEWS = frozenset({"broadcast_in_dim", "optimization_barrier", "reshape", "reshape_rows", "squeeze", "transpose"})


def keep_what_is_read(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with such updates replaced by selects; the same object if there are none."""
    return replaced_in_all(jaxpr, partial(_rule_in, cache(lambda: _reshaped(jaxpr.jaxpr))))


def _reshaped(jaxpr: Jaxpr) -> set[Atom]:
    """Values that are operands of view ops, in the calling function too."""
    views = [e for e in all_eqns(jaxpr) if e.op.name in _VIEWS]
    calls = [(e.op.jaxpr.jaxpr, e) for e in all_eqns(jaxpr) if isinstance(e.op, FunctionCall)]
    found: set[Atom] = {a for e in views for a in e.invars if isinstance(a, Var)}
    size = -1
    while len(found) > size:  # to a fixed point, for nested calls
        size = len(found)
        for inner, eqn in calls:
            found.update(a for a, v in zip(inner.outvars, eqn.outvars) if v in found and isinstance(a, Var))
    return found


def _rule_in(reshaped: Callable[[], set[Atom]], jaxpr: ClosedJaxpr) -> Callable[[JaxprEqn], Sequence[JaxprEqn]]:
    values: dict[Var, _Value] = {}

    def rule(eqn: JaxprEqn) -> Sequence[JaxprEqn]:
        if eqn.op.name != "dynamic_update_slice":
            return ()
        if not values:
            values.update(_values(jaxpr))
        x, update = (values.get(a) if isinstance(a, Var) else None for a in eqn.invars[:2])
        overlaps = _reads(update, x, eqn.outvars[0] in reshaped())
        return [called(_updated, eqn.invars, eqn.outvars, eqn.source)] if overlaps else ()

    return rule


class _Value:
    """A value with the values it is computed from. Compared by identity; equal expressions share one object."""

    def __init__(self, operands: Sequence[_Value], is_view: bool) -> None:
        self.operands, self.is_view = operands, is_view


def _values(jaxpr: ClosedJaxpr) -> dict[Var, _Value]:
    """The value of each variable; equal computations share one object, as XLA eliminates common subexpressions."""
    inner = jaxpr.jaxpr
    values = {v: _Value((), False) for v in (*inner.constvars, *inner.invars)}
    known: dict[Any, _Value] = {}
    for eqn in inner.eqns:
        operands = [values[a] for a in eqn.invars if isinstance(a, Var)]
        same = tuple(values[a] if isinstance(a, Var) else (str(a.val), a.aval) for a in eqn.invars)
        for i, v in enumerate(eqn.outvars):
            is_view = eqn.op.name in _VIEWS and eqn.invars[i].aval.size == v.aval.size
            values[v] = known.setdefault((eqn.op, same, i), _Value(operands, is_view))
    return values


def _reads(update: _Value | None, x: _Value | None, is_reshaped: bool) -> bool:
    """Whether ``update`` depends on a value of which ``x`` is a view.

    XLA handles a dependence on ``x`` itself, unless the result is reshaped.
    """
    shared: set[_Value | None] = {x} if is_reshaped and x is not None else set()
    views, seen, todo = [x], {x}, [update]
    while views:
        view = views.pop()
        if view is not None and view.is_view:
            shared.update(view.operands)
            views += view.operands
    while todo and shared:
        value = todo.pop()
        if value in shared:
            return True
        if value is not None and value not in seen:
            seen.add(value)
            todo += value.operands
    return False


def _updated(x: Any, update: Any, *starts: Any) -> list[Any]:
    shape, lengths = typeof(x).shape, typeof(update).shape
    margins = [n - k for n, k in zip(shape, lengths)]
    begin = [min_(max_(s, scalar_like(0, s)), scalar_like(m, s)) for s, m in zip(starts, margins)]
    inside = None
    for d, (s, n, k) in enumerate(zip(begin, shape, lengths)):
        if k < n:
            rows = iota(typeof(s).dtype, (n,), 0)
            row = broadcast_in_dim(s, (n,), ())
            end = broadcast_in_dim(add(s, scalar_like(k, s)), (n,), ())
            here = broadcast_in_dim(and_(ge(rows, row), lt(rows, end)), shape, (d,))
            inside = here if inside is None else and_(inside, here)
    if inside is None:
        return [update]
    wide = pad(update, scalar_like(0, update), [(m, m, 0) for m in margins])
    moved = DynamicSlice(shape).bind(wide, *(sub(scalar_like(m, s), s) for m, s in zip(margins, begin)))
    return [select(inside, moved, x)]
