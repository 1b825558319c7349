"""Tests of loops that XLA counts wrongly.

Where bounds and step are known, possibly only after constants are folded, XLA counts the runs of a loop, and removes
one that it finds to run never or once. For ``while i < n: i += s`` with ``s`` above 1 its count can be one too few:
jaxlib 0.10.2 runs the loops with i = 0, n = 1, s = 2, and with i = -3, n = 0, s = 2, never and once. It counts loops
with a step of 1, and those whose test is ``<=``, ``>`` or ``>=``, rightly. A test of two comparisons it does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from meshwright.core.dtypes import is_integer
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Literal, all_eqns
from meshwright.ir.rewrite import replaced_in_all, written_out
from meshwright.ops.control.bodies import Body
from meshwright.ops.control.flow import ControlOp
from meshwright.ops.elementwise.table import and_, le, ne


def keep_counts(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with tests ``i < n`` of loops written as ``i <= n and i != n``, unless ``i`` is counted in ones."""
    return replaced_in_all(jaxpr, lambda _: _guarded)


def _guarded(eqn: JaxprEqn) -> Sequence[JaxprEqn]:
    """The loop that replaces one with such a test; none for other equations."""
    bodies = eqn.op.bodies() if isinstance(eqn.op, ControlOp) else ()
    runs = [body for body in bodies if not body.tests]
    tests = {i: _of_two(body, runs) for i, body in enumerate(bodies) if body.tests}
    if all(bodies[i] is test for i, test in tests.items()):
        return ()
    assert isinstance(eqn.op, ControlOp)
    after = [tests[i] if i in tests else replace(body, jaxpr=keep_counts(body.jaxpr)) for i, body in enumerate(bodies)]
    return [eqn.replace(op=eqn.op.with_bodies(after))]


def _of_two(test: Body, runs: Sequence[Body]) -> Body:
    """The test with its comparisons that XLA may count wrongly written as two each; the same object without any."""
    plain = _counted_in_ones(test, runs)
    if not any(_is_below(e) and e not in plain for e in all_eqns(test.jaxpr.jaxpr)):
        return test

    def rule(eqn: JaxprEqn) -> Sequence[JaxprEqn]:
        if not _is_below(eqn) or eqn in plain:
            return ()
        lower = slice(None) if eqn.op.name == "lt" else slice(None, None, -1)
        return written_out(eqn, lambda *args: [_below(*args[lower])])

    return replace(test, jaxpr=replaced_in_all(test.jaxpr, lambda _: rule))


def _below(x: Any, y: Any) -> Any:
    return and_(le(x, y), ne(x, y))


def _is_below(eqn: JaxprEqn) -> bool:
    return eqn.op.name in ("lt", "gt") and eqn.invars[0].aval.shape == () and is_integer(eqn.invars[0].aval.dtype)


def _counted_in_ones(test: Body, runs: Sequence[Body]) -> list[JaxprEqn]:
    """The comparisons of a value to which each run of the loop adds 1."""
    carry = test.split(test.jaxpr.jaxpr.invars)[1]
    ones: set[Atom] = {var for i, var in enumerate(carry) if all(_adds_one(run, i) for run in runs)}
    return [e for e in test.jaxpr.eqns if _is_below(e) and e.invars[e.op.name == "gt"] in ones]


def _adds_one(run: Body, place: int) -> bool:
    """Whether a body adds 1 to what is carried at a place."""
    inner = run.jaxpr.jaxpr
    step = next((e for e in inner.eqns if inner.outvars[place] in e.outvars), None)
    start = run.split(inner.invars)[1][place]
    return step is not None and step.op.name == "add" and start in step.invars and any(map(_is_one, step.invars))


def _is_one(atom: Atom) -> bool:
    return isinstance(atom, Literal) and bool(np.asarray(atom.val) == 1)
