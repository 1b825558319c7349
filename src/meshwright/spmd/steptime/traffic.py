"""The memory traffic of equations, assuming that compilers fuse elementwise ops.

A value is written to memory if it is a result of the program, has several readers, or has a reader that is not fused
with its producer (a product, a collective, a loop). A group of fused equations reads a value once; products read their
operands every time. Reshapes and transposes move nothing. Slices and in-place updates move only the part concerned.
"""

from __future__ import annotations

from meshwright.ir.jaxpr import Atom, Jaxpr, JaxprEqn, Literal, Var
from meshwright.ir.op import Op
from meshwright.ops.collective.base import Collective
from meshwright.ops.control.regions import RegionOp
from meshwright.sharding.rule import PARALLEL, REDUCTION
from meshwright.spmd.rules import eqn_rule
from meshwright.spmd.work import kernel_cost


def traffic(jaxpr: Jaxpr) -> list[float]:
    """The bytes that a device reads and writes for each equation. Equations with regions count as 0."""
    return Traffic(jaxpr).bytes_moved()


class Traffic:
    def __init__(self, jaxpr: Jaxpr) -> None:
        self.eqns = jaxpr.eqns
        self.results = set(jaxpr.outvars)
        self.same: dict[Var, Atom] = {}  # results of reshapes, mapped to their operands
        self.readers: dict[Atom, list[int]] = {}
        self.fuses = [fuses(eqn) for eqn in self.eqns]
        self.is_loop = [kind == LOOP for kind in self.fuses]

    def bytes_moved(self) -> list[float]:
        for number, eqn in enumerate(self.eqns):
            if eqn.op.is_view:
                self.same.update((v, self.root(a)) for v, a in zip(eqn.outvars, eqn.invars))
                continue
            for atom in {self.root(a) for a in eqn.invars}:
                self.readers.setdefault(atom, []).append(number)
        self.results = {self.root(a) for a in self.results}
        self.fuse()
        producers = {v: n for n, eqn in enumerate(self.eqns) for v in eqn.outvars}
        self.fused_away = {v for v, n in producers.items() if self.is_loop[n] and not self.is_written(v, self.eqns[n])}
        self.made = self.needed()
        read_once: set[Atom] = set()
        return [self.of(number, eqn, read_once) for number, eqn in enumerate(self.eqns)]

    def fuse(self) -> None:
        """Update :attr:`fuses` for a compiler that fuses more. The base does nothing."""

    def sweeps(self, eqn: JaxprEqn) -> float:
        """The number of times an equation reads its operands and writes its results."""
        return eqn_rule(eqn).sweeps

    def root(self, atom: Atom) -> Atom:
        return self.same.get(atom, atom) if isinstance(atom, Var) else atom

    def is_written(self, var: Var, eqn: JaxprEqn) -> bool:
        readers = self.readers.get(var, [])
        if var in self.results or any(not self.fuses[n] for n in readers):
            return True
        return len(readers) > 1 and any(isinstance(a, Var) for a in eqn.invars)

    def needed(self) -> dict[Var, int]:
        """The bytes of each value that are computed: for a fused value, only the part that its readers select."""
        needed: dict[Var, int] = {}
        for eqn in reversed(self.eqns):
            for var in eqn.outvars:
                users = [self.eqns[n] for n in self.readers.get(var, ())] if var in self.fused_away else []
                all_of_it = var.aval.nbytes
                if users and all(map(_picks, users)):
                    needed[var] = min(all_of_it, sum(needed[v] for user in users for v in user.outvars))
                else:
                    needed[var] = all_of_it
        return needed

    def of(self, number: int, eqn: JaxprEqn, read_once: set[Atom]) -> float:
        op = eqn.op
        if op.is_view or isinstance(op, RegionOp) or _sends(op):
            return 0
        if isinstance(op, Collective) and not self.fused_away.issuperset(eqn.outvars):
            return 0  # a device's own tile may be read where it is
        if (kernel := kernel_cost(op)) is not None and kernel.nbytes is not None:
            return kernel.nbytes
        if op.update_operand is not None:
            return 2 * eqn.invars[op.update_operand].aval.nbytes
        written = sum(v.aval.nbytes for v in eqn.outvars if v not in self.fused_away)
        picked = sum(map(self.made.__getitem__, eqn.outvars)) if _picks(eqn) else None
        read = 0
        for atom in {self.root(a): None for a in eqn.invars}:
            if isinstance(atom, Literal) or atom in self.fused_away or (self.fuses[number] and atom in read_once):
                continue
            if self.fuses[number]:
                read_once.add(atom)
            read += atom.aval.nbytes if picked is None else min(picked, atom.aval.nbytes)
        return (written + read) * self.sweeps(eqn)


def _sends(op: Op) -> bool:
    """Whether devices communicate. A device's own tile of what all have is a slice like any other."""
    return isinstance(op, Collective) and bool(op.kind)


def _picks(eqn: JaxprEqn) -> bool:
    """Whether an equation reads only the elements that its results contain."""
    return not eqn.op.computes or _moves(eqn)


def _moves(eqn: JaxprEqn) -> bool:
    """Whether each result element is an operand element."""
    return eqn.op.moves_only or eqn.op.moved is not None


LOOP, REDUCES = "loop", "reduces"


def fuses(eqn: JaxprEqn) -> str | None:
    """How an equation is fused with the producers of its operands: as a loop, as a reduction, or not at all (None).

    A fused reduction writes its results to memory.
    """
    op = eqn.op
    if _sends(op) or op.holds_jaxprs or op.has_effects or op.update_operand is not None:
        return None
    if kernel_cost(op) is not None:
        return None
    if _moves(eqn) or op.draws:
        return LOOP
    rule = eqn_rule(eqn)
    kinds = {f.kind for f in rule.factors if f.size > 1}
    if rule.is_product:
        return None
    if kinds <= {PARALLEL}:
        return LOOP
    return REDUCES if kinds <= {PARALLEL, REDUCTION} and len(eqn.outvars) == 1 else None
