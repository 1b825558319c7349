"""Removes reshapes and transposes that are undone after elementwise computations.

The derivative of a function of a reshaped array reshapes its result back. Elementwise ops in between do not depend on
the shape: computed on the original array, no reshape is needed, and nothing is communicated along a split dimension,
whose tiles may not be tiles of the reshaped array. This applies only to values that nothing else needs in the
intermediate shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Var, all_eqns
from meshwright.ir.op import Op
from meshwright.ir.rewrite import in_regions, producers_of, replaced
from meshwright.ops.elementwise.base import Elementwise
from meshwright.ops.shape.broadcast_reduce import BroadcastInDim
from meshwright.ops.shape.rearrange import Reshape, Squeeze, Transpose

#: the maximum number of values between reshapes that are examined per equation of a program, and of passes over it: the
#: time could grow quadratically, so beyond it the program is left unchanged
_MOST = 32

#: consecutive reshapes and transposes, each with the shape of its operand
Steps = tuple[tuple[Op, tuple[int, ...]], ...]


class _Reshaped(NamedTuple):
    """A value that has the elements of ``root``, in the shape at the start of ``steps``, after applying these."""

    root: Atom
    steps: Steps


def undone(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program without reshapes and transposes that are undone after elementwise equations."""
    if sum(_reshapes(e) is not None for e in all_eqns(closed.jaxpr)) < 2:
        return closed
    closed = replaced(closed, lambda e: in_regions(e, undone))
    return closed.replace(jaxpr=_Shapes(closed.jaxpr).rewritten())


def _reshapes(eqn: JaxprEqn) -> Op | None:
    """The reshape or transpose that an equation is equivalent to, if any."""
    if type(eqn.op) in (Reshape, Transpose):
        return eqn.op
    op: Any = eqn.op
    adds = isinstance(op, BroadcastInDim) and eqn.invars[0].aval.size == eqn.outvars[0].aval.size
    if isinstance(op, Squeeze) or (adds and sorted(op.broadcast_dimensions) == [*op.broadcast_dimensions]):
        return Reshape(eqn.outvars[0].aval.shape)
    return None


def _then(steps: Steps, op: Op, shape: tuple[int, ...]) -> Steps:
    """Append a step applied to an array of ``shape``; consecutive steps of the same kind are combined, or cancel."""
    last, before = steps[-1] if steps else (None, shape)
    if isinstance(op, Reshape) and isinstance(last, Reshape):
        return steps[:-1] if op.new_sizes == before else (*steps[:-1], (op, before))
    if isinstance(op, Transpose) and isinstance(last, Transpose):
        both = tuple(last.permutation[d] for d in op.permutation)
        return steps[:-1] if both == tuple(range(len(both))) else (*steps[:-1], (Transpose(both), before))
    return (*steps, (op, shape))


@dataclass(eq=False)
class _Shapes:
    """Rewrites a jaxpr so that values are computed in their original shapes."""

    jaxpr: Jaxpr

    def rewritten(self) -> Jaxpr:
        """The jaxpr with values between reshapes that undo each other computed without these."""
        self.makers = producers_of(self.jaxpr)
        self.forms: dict[Var, _Reshaped] = {}
        undone = [eqn for eqn in self.jaxpr.eqns if self._is_undone(eqn)]
        live: set[Atom] = set()
        between, left = {}, _MOST * len(self.jaxpr.eqns)
        for eqn in undone:
            between[id(eqn)] = found, given = self._between(eqn)
            left -= len(found) + len(given)
            if left < 0:
                return self.jaxpr
        # Values that are also needed in their own shape would be computed twice.
        for _ in range(_MOST):
            live = self._live({id(e): between[id(e)][1] for e in undone})
            kept = [e for e in undone if live.isdisjoint(between[id(e)][0]) and not live.isdisjoint(e.outvars)]
            if len(kept) == len(undone):
                break
            undone = kept
        else:
            return self.jaxpr
        if not undone:
            return self.jaxpr
        chosen = {id(e) for e in undone}
        again = {v for e in undone for v in between[id(e)][0]}
        self.names: dict[Atom, Atom] = {}
        self.eqns: list[JaxprEqn] = []
        for eqn in self.jaxpr.eqns:
            if id(eqn) in chosen:
                root = self._form(eqn.invars[0]).root
                self.names[eqn.outvars[0]] = self.names.get(root, root)
            elif eqn.outvars and eqn.outvars[0] in again:
                self._compute(eqn)
            elif eqn.op.has_effects or not live.isdisjoint(eqn.outvars):
                self.eqns.append(eqn.replace(invars=[self.names.get(a, a) for a in eqn.invars]))
        return self.jaxpr.replace(eqns=self.eqns, outvars=[self.names.get(a, a) for a in self.jaxpr.outvars])

    def _form(self, atom: Atom) -> _Reshaped:
        return self.forms.get(atom, _Reshaped(atom, ())) if isinstance(atom, Var) else _Reshaped(atom, ())

    def _is_undone(self, eqn: JaxprEqn) -> bool:
        """Record the form of an equation's result; returns whether it has the original shape again."""
        op = _reshapes(eqn)
        if op is not None and not self._repeats(eqn.outvars[0]):
            root, steps = self._form(eqn.invars[0])
            after = _then(steps, op, eqn.invars[0].aval.shape)
            if steps and not after:
                return True
            self.forms[eqn.outvars[0]] = _Reshaped(root, after)
        elif isinstance(eqn.op, Elementwise) and len(eqn.outvars) == 1:
            forms = [self._form(a) for a in eqn.invars if not self._repeats(a)]
            if forms and forms[0].steps and all(f.steps == forms[0].steps for f in forms):
                self.forms[eqn.outvars[0]] = _Reshaped(eqn.outvars[0], forms[0].steps)
        return False

    def _repeats(self, atom: Atom) -> bool:
        """Whether a value is a scalar or a broadcast scalar."""
        maker = self.makers.get(atom) if isinstance(atom, Var) else None
        return not atom.aval.shape or (
            maker is not None and isinstance(maker.op, BroadcastInDim) and not maker.invars[0].aval.shape
        )

    def _is_computed(self, root: Atom) -> bool:
        """Whether a root is an elementwise result of reshaped operands."""
        return isinstance(root, Var) and bool(self._form(root).steps)

    def _between(self, eqn: JaxprEqn) -> tuple[set[Atom], set[Atom]]:
        """The values computed elementwise before the reshape that undoes the others, and the values from which they are
        computed."""
        found: set[Atom] = set()
        given: set[Atom] = set()
        left = [self._form(eqn.invars[0]).root]
        while left:
            root = left.pop()
            if not self._is_computed(root):
                given.add(root)
            elif root not in found:
                found.add(root)
                for atom in self.makers[root].invars:  # type: ignore[index]
                    if self._repeats(atom):
                        given.update(self.makers[atom].invars if atom.aval.shape else (atom,))  # type: ignore[index]
                    else:
                        left.append(self._form(atom).root)
        return found, given

    def _live(self, undone: Mapping[int, set[Atom]]) -> set[Atom]:
        """The values that are needed if the results of the equations ``undone`` are computed from the given values."""
        live: set[Atom] = set(self.jaxpr.outvars)
        for eqn in reversed(self.jaxpr.eqns):
            if eqn.op.has_effects or not live.isdisjoint(eqn.outvars):
                live.update(undone.get(id(eqn), eqn.invars))
        return live

    def _compute(self, eqn: JaxprEqn) -> None:
        """Add an elementwise equation in the original shape; nothing needs its result in another."""
        (out,) = eqn.outvars
        shape = self._form(out).steps[0][1]
        roots = [self._form(a).root for a in eqn.invars]
        invars = [
            self._one_number(a, shape) if self._repeats(a) else self.names.get(r, r) for a, r in zip(eqn.invars, roots)
        ]
        self.names[out] = new = Var(out.aval.update(shape=shape))
        self.eqns.append(eqn.replace(invars=invars, outvars=[new]))

    def _one_number(self, atom: Atom, shape: tuple[int, ...]) -> Atom:
        """A broadcast scalar in another shape."""
        if not atom.aval.shape:
            return self.names.get(atom, atom)
        eqn = self.makers[atom]  # type: ignore[index]
        new = Var(atom.aval.update(shape=shape))
        number = [self.names.get(a, a) for a in eqn.invars]
        self.eqns.append(eqn.replace(op=BroadcastInDim(shape, ()), invars=number, outvars=[new]))
        return new
