"""Splits multi-dimensional FFTs into one-dimensional FFTs if a transformed dimension is sharded.

Each dimension is then transformed while it is whole. A mesh axis moves off a dimension when that is transformed, and
need not return before the next transform, as in pencil decompositions (S. Foster and D. Worley, "Parallel algorithms
for the spectral transform method", 1997). Unsplit dimensions are transformed first. A second transform of the result
(such as the inverse FFT after multiplication by a filter) visits the dimensions in reverse order, so that each is
already whole when it is transformed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Var
from meshwright.ir.op import Op
from meshwright.ops.linalg.fft import FFT, IFFT, IRFFT, Fft
from meshwright.ops.shape.rearrange import Transpose
from meshwright.sharding.rule import PARALLEL
from meshwright.spmd.propagate import Propagation
from meshwright.spmd.rules import eqn_rule


def separate_ffts(closed: ClosedJaxpr, propagation: Propagation) -> ClosedJaxpr:
    """The program with multi-dimensional FFTs over a split dimension replaced by one-dimensional ones."""
    orders: dict[Var, Sequence[int]] = {}
    eqns: list[JaxprEqn] = []
    for eqn in closed.jaxpr.eqns:
        order = _order(eqn, propagation, orders)
        eqns += [eqn] if order is None else _each_alone(eqn, order)
        if order is None and orders:
            order = next((orders[a] for a in eqn.invars if isinstance(a, Var) and a in orders and _keeps(eqn, a)), None)
        if order is not None:
            orders[eqn.outvars[0]] = order
    return closed.replace(jaxpr=closed.jaxpr.replace(eqns=eqns)) if orders else closed


def _order(eqn: JaxprEqn, propagation: Propagation, orders: Mapping[Var, Sequence[int]]) -> Sequence[int] | None:
    """The order in which to transform dimensions, as indices into the transformed ones; None: do not split the FFT."""
    op = eqn.op
    if not isinstance(op, Fft) or (rank := len(op.fft_lengths)) == 1:
        return None
    (x,), (out,) = eqn.invars, eqn.outvars
    values = [v for v in (x, out) if isinstance(v, Var)]
    if not any(any(propagation.layout(v).dims[-rank:]) for v in values):
        return None
    split = [bool(propagation.layout(values[0]).dims[d - rank]) for d in range(rank)]
    order = sorted(range(rank), key=lambda d: split[d])
    done = orders.get(x) if isinstance(x, Var) else None
    if done is not None and len(done) == rank:
        order = list(reversed(done))
    match op.fft_type:
        case "RFFT":  # the real-to-complex transform of the last dimension comes first
            order.sort(key=lambda d: d != rank - 1)
        case "IRFFT":
            order.sort(key=lambda d: d == rank - 1)
    return order


def _keeps(eqn: JaxprEqn, operand: Var) -> bool:
    """Whether an equation is elementwise, with a result of the shape and factors of ``operand``."""
    if len(eqn.outvars) != 1 or eqn.op.holds_jaxprs or eqn.outvars[0].aval.shape != operand.aval.shape:
        return False
    rule = eqn_rule(eqn)
    return rule.operands[eqn.invars.index(operand)] == rule.results[0] and {f.kind for f in rule.factors} <= {PARALLEL}


def _each_alone(eqn: JaxprEqn, order: Sequence[int]) -> Iterator[JaxprEqn]:
    """The equations of one-dimensional transforms that replace a multi-dimensional one."""
    op, x, rank = cast(Fft, eqn.op), eqn.invars[0], len(order)
    kinds = [IFFT if op.fft_type in (IFFT, IRFFT) else FFT] * (rank - 1) + [op.fft_type]
    for n, d in enumerate(order):
        steps = list(_along(x, x.aval.ndim - rank + d, Fft(kinds[d], (op.fft_lengths[d],)), eqn))
        if n == rank - 1:
            steps[-1] = steps[-1].replace(outvars=eqn.outvars)
        yield from steps
        x = steps[-1].outvars[0]


def _along(x: Atom, dim: int, op: Fft, eqn: JaxprEqn) -> Iterator[JaxprEqn]:
    """The equations of a transform of one dimension, which is transposed to the last place and back."""
    last = x.aval.ndim - 1
    steps: list[Op] = [op]
    if dim != last:
        there = (*(d for d in range(last + 1) if d != dim), dim)
        back = tuple(there.index(d) for d in range(last + 1))
        steps = [Transpose(there), op, Transpose(back)]
    for step in steps:
        out = Var(step.infer(x.aval))
        yield eqn.replace(op=step, invars=[x], outvars=[out])
        x = out
