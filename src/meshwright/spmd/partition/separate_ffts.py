"""Fourier transforms of several dimensions as one for each dimension, where a transformed dimension is split.

Then each is done while its dimension is whole: an axis leaves a dimension when that is transformed, and need not come
back before the next one is, as with pencils (S. Foster and D. Worley, "Parallel algorithms for the spectral transform
method", 1997). Dimensions that are whole come first; a transform of what another one left, as the inverse after
multiplication by a filter, goes through the dimensions backwards, and so finds each as it needs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Var
from meshwright.ir.op import Op
from meshwright.ops.linalg.fft import FFT, IFFT, IRFFT, Fft
from meshwright.ops.shape.rearrange import Transpose
from meshwright.sharding.rule import PARALLEL
from meshwright.spmd.flatten import eqn_rule
from meshwright.spmd.propagate import Propagation


def separate_ffts(closed: ClosedJaxpr, propagation: Propagation) -> ClosedJaxpr:
    """The program with transforms of several dimensions, one of them split, taken apart."""
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
    """In which order dimensions are transformed, those of a transform counted from its first; None: all at once."""
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
        case "RFFT":  # of real numbers first
            order.sort(key=lambda d: d != rank - 1)
        case "IRFFT":
            order.sort(key=lambda d: d == rank - 1)
    return order


def _keeps(eqn: JaxprEqn, operand: Var) -> bool:
    """Whether each element of an equation's result is made where that of an operand is."""
    if len(eqn.outvars) != 1 or eqn.op.holds_jaxprs or eqn.outvars[0].aval.shape != operand.aval.shape:
        return False
    rule = eqn_rule(eqn)
    return rule.operands[eqn.invars.index(operand)] == rule.results[0] and {f.kind for f in rule.factors} <= {PARALLEL}


def _each_alone(eqn: JaxprEqn, order: Sequence[int]) -> Iterator[JaxprEqn]:
    """A transform of several dimensions as one of each."""
    op, x, rank = cast(Fft, eqn.op), eqn.invars[0], len(order)
    kinds = [IFFT if op.fft_type in (IFFT, IRFFT) else FFT] * (rank - 1) + [op.fft_type]
    for n, d in enumerate(order):
        steps = list(_along(x, x.aval.ndim - rank + d, Fft(kinds[d], (op.fft_lengths[d],)), eqn))
        if n == rank - 1:
            steps[-1] = steps[-1].replace(outvars=eqn.outvars)
        yield from steps
        x = steps[-1].outvars[0]


def _along(x: Atom, dim: int, op: Fft, eqn: JaxprEqn) -> Iterator[JaxprEqn]:
    """A transform of one dimension, which stands last meanwhile."""
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
