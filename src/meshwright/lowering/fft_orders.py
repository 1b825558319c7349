"""Fourier transforms beside LAPACK's kernels on CPUs.

The kernels take matrices column by column, and XLA's layout assignment carries that order to the operands of transforms
that they read, which take arrays row by row only: such programs fail when they run. What a transform reads and returns
passes through an array of one dimension, which has one order, where no simplification removes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn, all_eqns
from meshwright.ir.rewrite import replaced_in_all, written_out
from meshwright.ir.tracing import typeof
from meshwright.ops.control.markers import OptimizationBarrier
from meshwright.ops.linalg.batched import Batched
from meshwright.ops.shape.rearrange import reshape


def keep_orders(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program with transforms of arrays that lie row by row, if it has kernels of LAPACK."""
    if not any(isinstance(e.op, Batched) and e.op.by_lapack for e in all_eqns(jaxpr.jaxpr)):
        return jaxpr

    def apart(eqn: JaxprEqn) -> Sequence[JaxprEqn]:
        op = eqn.op
        if not isinstance(op, Batched) or not op.only_by_rows:
            return ()
        return written_out(eqn, lambda x: [_in_order(op.bind(_in_order(x)))])

    return replaced_in_all(jaxpr, lambda _: apart)


def _in_order(x: Any) -> Any:
    shape = typeof(x).shape
    if len(shape) < 2:
        return x
    return reshape(OptimizationBarrier().bind(reshape(x, (typeof(x).size,)))[0], shape)
