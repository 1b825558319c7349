"""Fourier transforms of several dimensions as one for each, where a transformed dimension is split.

Then each is done while its dimension is whole: an axis leaves a dimension when that is transformed, and need not come
back before the next one is, as with pencils (S. Foster and D. Worley, "Parallel algorithms for the spectral transform
method", 1997). Dimensions that are whole come first.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Var
from meshwright.ir.op import Op
from meshwright.ops.linalg.fft import FFT, IFFT, IRFFT, Fft
from meshwright.ops.shape.rearrange import Transpose
from meshwright.spmd.propagate import Propagation


def apart(closed: ClosedJaxpr, propagation: Propagation) -> ClosedJaxpr:
    """The program with transforms of several dimensions, one of them split, taken apart."""
    if not any(isinstance(e.op, Fft) for e in closed.jaxpr.eqns):
        return closed
    eqns = [new for eqn in closed.jaxpr.eqns for new in _each_alone(eqn, propagation)]
    return closed.replace(jaxpr=closed.jaxpr.replace(eqns=eqns))


def _each_alone(eqn: JaxprEqn, propagation: Propagation) -> Iterator[JaxprEqn]:
    op = eqn.op
    rank = len(op.fft_lengths) if isinstance(op, Fft) else 1
    values = [a for a in (*eqn.invars, *eqn.outvars) if isinstance(a, Var)] if rank > 1 else []
    split = [any(propagation.layout(v).dims[d - rank] for v in values[:1]) for d in range(rank)]
    if not any(any(propagation.layout(v).dims[-rank:]) for v in values):
        yield eqn
        return
    order = sorted(range(rank - 1), key=lambda d: split[d])
    kinds = dict.fromkeys(order, IFFT if op.fft_type in (IFFT, IRFFT) else FFT)  # type: ignore[attr-defined]
    match op.fft_type:  # type: ignore[attr-defined]
        case "RFFT":  # of real numbers first
            order = [rank - 1, *order]
        case "IRFFT":
            order = [*order, rank - 1]
        case _:
            order = sorted(range(rank), key=lambda d: split[d])
    kinds[rank - 1] = op.fft_type  # type: ignore[attr-defined]
    x: Atom = eqn.invars[0]
    for n, d in enumerate(order):
        step = Fft(kinds[d], (op.fft_lengths[d],))  # type: ignore[attr-defined]
        step_eqns = list(_along(x, x.aval.ndim - rank + d, step, eqn))
        if n == rank - 1:
            step_eqns[-1] = step_eqns[-1].replace(outvars=eqn.outvars)
        yield from step_eqns
        x = step_eqns[-1].outvars[0]


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
