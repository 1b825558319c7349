"""Limits of loops, so that programs end for inputs that were drawn at random.

A loop that runs until it has converged may never end for such inputs, and nothing interrupts a program that XLA runs.
The same limit in both programs makes them stop at the same place, where they can be compared like anywhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn
from meshwright.ir.rewrite import replaced_in_all
from meshwright.ops.control.flow import ControlOp
from meshwright.spmd.partition.result import Partition

#: after how many runs of its body a loop ends that does not count to a number
MOST_RUNS = 1_000


def with_limits(part: Partition) -> tuple[Partition, str]:
    """The partitioned program, and the one that it was made from, with limits, and a note if there are any."""
    source, local = limited(part.source), limited(part.jaxpr)
    if source is part.source and local is part.jaxpr:
        return part, ""
    note = f"loops that do not count up to a number were ended after {MOST_RUNS:,} runs, if they ran as long"
    return replace(part, source=source, jaxpr=local), note


def limited(jaxpr: ClosedJaxpr, most: int = MOST_RUNS) -> ClosedJaxpr:
    """The program with loops that end after ``most`` runs, but for those that count up to a number.

    The same object if there are no such loops.
    """

    def ended(eqn: JaxprEqn) -> Sequence[JaxprEqn]:
        if not isinstance(eqn.op, ControlOp) or eqn.op.is_counted:
            return ()
        return [eqn.op.limited(eqn, most, lambda inner: limited(inner, most))]

    return replaced_in_all(jaxpr, lambda _: ended)
