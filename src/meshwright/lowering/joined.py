"""Reductions in the form for which XLA's CPU compiler generates fast code.

Its code for reducing several adjacent dimensions that are followed by a kept dimension is slow. Merged into one
dimension by a reshape, they are fast. An optimization barrier keeps XLA from folding the reshape into the reduction.
Speedups measured in float32, CPU time:

=======================  =====  =======================  =====
``(8, 64, 256)``, 0, 1   2.2    ``(16, 32, 32, 64)``     10.6
``(8, 128, 1024)``       3.5    ``(16, 8, 8, 512)``      5.5
``(8, 32, 4096)``        3.7    ``(4, 8, 64, 256)`` 1,2  2.9
``(8, 1024, 64)``        2.3    ``(2, 2, 65536)``        1.3
=======================  =====  =======================  =====

Maxima behave like sums. XLA still chooses the order in which elements are added (in windows of rows).
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace
from itertools import pairwise
from math import prod

from meshwright.core.config import config
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Var
from meshwright.ir.passes import Pass
from meshwright.ir.rewrite import replaced_in_all
from meshwright.ops.control.markers import OptimizationBarrier
from meshwright.ops.reduce.reductions import Reduction
from meshwright.ops.shape.broadcast_reduce import ReduceSum
from meshwright.ops.shape.rearrange import Reshape

#: number of operand elements below which this is not faster
_LARGE = 1 << 14


def join_reduced_dims(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """Merge the adjacent reduced dimensions of reductions of large operands, in called functions too."""

    def rule_in(inner: ClosedJaxpr) -> Callable[[JaxprEqn], list[JaxprEqn]]:
        reshaped = {e.outvars[0] for e in inner.eqns if isinstance(e.op, Reshape)}
        return lambda eqn: _in_its_place(eqn, reshaped)

    return replaced_in_all(jaxpr, rule_in)


def _in_its_place(eqn: JaxprEqn, reshaped: Container[Atom]) -> list[JaxprEqn]:
    """The equations that replace a reduction over one run of dimensions followed by kept ones; none for others.

    There must be several reduced dimensions, or the operand must be in ``reshaped`` (the result of a reshape).
    """
    if not isinstance(eqn.op, (ReduceSum, Reduction)) or eqn.invars[0].aval.size < _LARGE:
        return []
    (x,), axes = eqn.invars, sorted(eqn.op.axes)
    in_a_run = all(b == a + 1 for a, b in pairwise(axes)) and axes[-1] < x.aval.ndim - 1
    return _joined(eqn, axes[0], axes[-1] + 1) if in_a_run and (len(axes) > 1 or x in reshaped) else []


def _joined(eqn: JaxprEqn, first: int, end: int) -> list[JaxprEqn]:
    (x,) = eqn.invars
    shape = (*x.aval.shape[:first], prod(x.aval.shape[first:end]), *x.aval.shape[end:])
    rows = Var(x.aval.update(shape=shape))
    kept = Var(rows.aval)
    return [
        JaxprEqn(Reshape(shape), [x], [rows], eqn.source, eqn.note),
        JaxprEqn(OptimizationBarrier(), [rows], [kept], eqn.source, eqn.note),
        eqn.replace(op=replace(eqn.op, axes=(first,)), invars=[kept]),  # type: ignore[call-arg]
    ]


JOINED_REDUCTIONS = Pass(
    "join reduced dimensions",
    lambda j: join_reduced_dims(j) if config.platform == "cpu" else j,
    "On CPUs, adjacent reduced dimensions are merged into one.",
)
