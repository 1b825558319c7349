"""What each equation is on a GPU: bytes of memory, kernels that are started, bytes that move on the chip.

XLA fuses more there than :mod:`traffic` knows of. A reduction along rows whose result goes back to the elements of its
row is one kernel with what makes them and what reads it, which holds the row on the chip: a softmax reads and writes
once. And a value that a fused equation of as many elements reads is written by the kernel of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from meshwright.ir.contract import Kernels
from meshwright.ir.jaxpr import Jaxpr, JaxprEqn, Var
from meshwright.ops.collective.base import Collective
from meshwright.ops.control.regions import RegionOp
from meshwright.sharding.rule import REDUCTION
from meshwright.spmd.flatten import eqn_rule
from meshwright.spmd.steptime.traffic import LOOP, REDUCES, Traffic

#: the longest row that a kernel holds, in elements: of what XLA compiled for an H200, 16,384 were one, 32,768 were not
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
        """Find the reductions along rows that are fused, and the equations that make their rows."""
        rows = [n for n, eqn in enumerate(self.eqns) if self.fuses[n] == REDUCES and _of_rows(eqn)]
        self.in_rows = {n for n in rows if self.comes_back(self.eqns[n])}
        for n in self.in_rows:
            self.fuses[n], self.is_loop[n] = LOOP, True
        for n in reversed(range(len(self.eqns))):
            if self.is_loop[n] and any(reader in self.in_rows for reader in self.beside(n)):
                self.in_rows.add(n)

    def comes_back(self, eqn: JaxprEqn) -> bool:
        """Whether fused equations spread the result over as many elements as were reduced."""
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
        """The fused equations that read what one makes, and are of as many elements."""
        for var in self.eqns[number].outvars:
            yield from (n for n in self.fused_readers(var) if _elements(self.eqns[n]) == var.aval.size)

    def is_written(self, var: Var, eqn: JaxprEqn) -> bool:
        readers = self.readers.get(var, [])
        held = any(n in self.in_rows for n in readers) and all(self.is_loop[n] for n in readers)
        return super().is_written(var, eqn) and (var in self.results or not held)

    def sweeps(self, eqn: JaxprEqn) -> float:
        return _alone(eqn).sweeps

    def kernels(self, number: int, eqn: JaxprEqn) -> Kernels:
        """Of a fused equation one, where it is the last of its kernel: where it writes what none beside it reads."""
        if not self.fuses[number]:
            return _alone(eqn)
        is_last = any(v not in self.fused_away for v in eqn.outvars) and not any(True for _ in self.beside(number))
        return Kernels(int(is_last and not eqn.op.is_view), operations=_alone(eqn).operations)

    def fused_together(self) -> list[int | None]:
        """For each equation the number of its kernel, of the last equation in it; None for those that are not fused.

        An equation is in the kernel of the first one that reads a result that is not written.
        """
        kernel: list[int | None] = [None] * len(self.eqns)
        for n in reversed(range(len(self.eqns))):
            if self.fuses[n] and not self.eqns[n].op.is_view:
                inside = (v for v in self.eqns[n].outvars if v in self.fused_away)
                readers = (kernel[r] for v in inside for r in self.readers.get(v, ()))
                kernel[n] = next((k for k in readers if k is not None), n)
        return kernel


def _alone(eqn: JaxprEqn) -> Kernels:
    """The kernels of an equation that is fused with none."""
    is_none = eqn.op.is_view or isinstance(eqn.op, (Collective, RegionOp))
    return Kernels(0) if is_none else eqn.op.kernels(*(a.aval for a in eqn.invars))


def _elements(eqn: JaxprEqn) -> int:
    return max(a.aval.size for a in (*eqn.invars, *eqn.outvars))


def _of_rows(eqn: JaxprEqn) -> bool:
    """Whether an equation reduces the last dimension of its operand alone, and a kernel holds that."""
    rule, shape = eqn_rule(eqn), eqn.invars[0].aval.shape
    reduced = [any(rule.factors[f].kind == REDUCTION for f in dim) for dim in rule.operands[0]]
    return len(eqn.invars) == 1 and reduced == [False] * (len(shape) - 1) + [True] and shape[-1] <= ROW
