"""The cost of each equation on a GPU: memory traffic, kernel starts, and on-chip traffic.

XLA fuses more on GPUs than :mod:`traffic` assumes. A reduction along rows whose result is broadcast back to the row is
one kernel together with the producers of the row and the readers of the result. The kernel holds the row on the chip,
so that a softmax reads and writes memory once. A value that is read by a fused equation of the same size is written by
that equation's kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from meshwright.ir.contract import Kernels
from meshwright.ir.jaxpr import Jaxpr, JaxprEqn, Var
from meshwright.ops.collective.base import Collective
from meshwright.ops.control.regions import RegionOp
from meshwright.sharding.rule import REDUCTION
from meshwright.spmd.rules import eqn_rule
from meshwright.spmd.steptime.traffic import LOOP, REDUCES, Traffic

#: the longest row that one kernel holds, in elements: XLA for an H200 fused rows of 16,384 elements, but not of 32,768
ROW = 16384


class Launched(NamedTuple):
    """The part of an equation in the kernels of a program: its bytes to and from memory, and the kernels of its op.

    ``kernel`` is the number of the kernel that a fused equation is in, or None for one that is not fused.
    """

    nbytes: float
    kernels: Kernels
    kernel: int | None


def moved_by_kernels(jaxpr: Jaxpr) -> list[Launched]:
    """The kernels of each equation; those of regions count none here."""
    traffic = _OnGpu(jaxpr)
    nbytes = traffic.bytes_moved()
    numbers = traffic.fused_together()
    return [
        Launched(moved, traffic.kernels(n, eqn), numbers[n]) for n, (eqn, moved) in enumerate(zip(jaxpr.eqns, nbytes))
    ]


class _OnGpu(Traffic):
    def fuse(self) -> None:
        """Find the fused reductions along rows, and the equations that produce their rows."""
        rows = [n for n, eqn in enumerate(self.eqns) if self.fuses[n] == REDUCES and _of_rows(eqn)]
        self.in_rows = {n for n in rows if self.comes_back(self.eqns[n])}
        for n in self.in_rows:
            self.fuses[n], self.is_loop[n] = LOOP, True
        for n in reversed(range(len(self.eqns))):
            if self.is_loop[n] and any(reader in self.in_rows for reader in self.beside(n)):
                self.in_rows.add(n)

    def comes_back(self, eqn: JaxprEqn) -> bool:
        """Whether fused equations broadcast the result of a reduction back to the size of its operand."""
        before, found = eqn.invars[0].aval.size, list(eqn.outvars)
        for var in found:
            for out in (out for n in self.fused_readers(var) for out in self.eqns[n].outvars):
                if out.aval.size == before:
                    return True
                if out.aval.size == var.aval.size and out not in found:
                    found.append(out)
        return False

    def fused_readers(self, var: Var) -> Iterator[int]:
        """The fused equations that read a value."""
        return (n for n in self.readers.get(self.root(var), ()) if self.is_loop[n])

    def beside(self, number: int) -> Iterator[int]:
        """The fused equations of the same size that read a result of an equation."""
        for var in self.eqns[number].outvars:
            yield from (n for n in self.fused_readers(var) if _elements(self.eqns[n]) == var.aval.size)

    def is_written(self, var: Var, eqn: JaxprEqn) -> bool:
        readers = self.readers.get(var, [])
        held = any(n in self.in_rows for n in readers) and all(self.is_loop[n] for n in readers)
        return super().is_written(var, eqn) and (var in self.results or not held)

    def sweeps(self, eqn: JaxprEqn) -> float:
        return _alone(eqn).sweeps

    def kernels(self, number: int, eqn: JaxprEqn) -> Kernels:
        """The kernels that an equation starts. Of fused equations, the last one of each kernel counts.

        It is the last if it writes a result that no fused equation of the same size reads.
        """
        if not self.fuses[number]:
            return _alone(eqn)
        is_last = any(v not in self.fused_away for v in eqn.outvars) and not any(True for _ in self.beside(number))
        return Kernels(int(is_last and not eqn.op.is_view), operations=_alone(eqn).operations)

    def fused_together(self) -> list[int | None]:
        """The kernel of each equation, numbered by its last equation; None for equations that are not fused.

        An equation belongs to the kernel of the first reader of a result that is not written.
        """
        kernel: list[int | None] = [None] * len(self.eqns)
        for n in reversed(range(len(self.eqns))):
            if self.fuses[n] and not self.eqns[n].op.is_view:
                inside = (v for v in self.eqns[n].outvars if v in self.fused_away)
                readers = (kernel[r] for v in inside for r in self.readers.get(v, ()))
                kernel[n] = next((k for k in readers if k is not None), n)
        return kernel


def _alone(eqn: JaxprEqn) -> Kernels:
    """The kernels of an equation that is not fused."""
    is_none = eqn.op.is_view or isinstance(eqn.op, (Collective, RegionOp))
    return Kernels(0) if is_none else eqn.op.kernels(*(a.aval for a in eqn.invars))


def _elements(eqn: JaxprEqn) -> int:
    return max(a.aval.size for a in (*eqn.invars, *eqn.outvars))


def _of_rows(eqn: JaxprEqn) -> bool:
    """Whether an equation reduces exactly the last dimension of its operand, and one kernel can hold a row."""
    rule, shape = eqn_rule(eqn), eqn.invars[0].aval.shape
    reduced = [any(rule.factors[f].kind == REDUCTION for f in dim) for dim in rule.operands[0]]
    return len(eqn.invars) == 1 and reduced == [False] * (len(shape) - 1) + [True] and shape[-1] <= ROW
