"""Tools for jaxpr rewrites: uses and producers of values, substitution, replacing equations, and an interpreter."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import is_not
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from meshwright.core import source
from meshwright.core.avals import ShapedArray
from meshwright.core.slots import Slot
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from meshwright.ir.op import Op
from meshwright.ir.state import extend_axis_env
from meshwright.ir.tracing import trace_to_jaxpr

T = TypeVar("T")


# --- who makes and uses a value -----------------------------------------------------------------------------
def uses_of(jaxpr: Jaxpr) -> dict[Var, list[JaxprEqn | None]]:
    """The equations that use each value, once per operand; None represents a use as a result of the jaxpr."""
    uses: dict[Var, list[JaxprEqn | None]] = {}
    for eqn in (*jaxpr.eqns, None):
        for atom in jaxpr.outvars if eqn is None else eqn.invars:
            if isinstance(atom, Var):
                uses.setdefault(atom, []).append(eqn)
    return uses


def use_counts(eqns: Iterable[JaxprEqn], outs: Iterable[Atom] = ()) -> Counter[Var]:
    """The number of uses of each value as an operand of ``eqns`` or in ``outs``."""
    counts = Counter(a for e in eqns for a in e.invars if isinstance(a, Var))
    counts.update(a for a in outs if isinstance(a, Var))
    return counts


def producers_of(jaxpr: Jaxpr) -> dict[Var, JaxprEqn]:
    """The equation that produces each value; parameters and constants have none."""
    return {v: e for e in jaxpr.eqns for v in e.outvars}


# --- substitution -------------------------------------------------------------------------------------------
def resolve(names: Mapping[Var, Atom], atom: Atom) -> Atom:
    """``atom`` after the substitutions ``names``, applied repeatedly."""
    while isinstance(atom, Var) and atom in names:
        atom = names[atom]
    return atom


def renamed(eqn: JaxprEqn, names: Mapping[Var, Atom]) -> JaxprEqn:
    """The equation with its operands substituted."""
    if not names or names.keys().isdisjoint(eqn.invars):
        return eqn
    return eqn.replace(invars=[resolve(names, a) for a in eqn.invars])


def rebuilt(jaxpr: Jaxpr, eqns: Sequence[JaxprEqn], names: Mapping[Var, Atom] = MappingProxyType({})) -> Jaxpr:
    """The jaxpr with other equations and its results substituted; the same object if nothing changes."""
    differs = len(eqns) != len(jaxpr.eqns) or any(map(is_not, eqns, jaxpr.eqns))
    if not differs and names.keys().isdisjoint(jaxpr.outvars):
        return jaxpr
    return jaxpr.replace(eqns=eqns, outvars=[resolve(names, a) for a in jaxpr.outvars])


# --- replacing equations ------------------------------------------------------------------------------------
#: the equation or equations that replace one; None: its first operand replaces its result
Replacement = JaxprEqn | Sequence[JaxprEqn] | None


def replaced(jaxpr: ClosedJaxpr, rule: Callable[[JaxprEqn], Replacement]) -> ClosedJaxpr:
    """The jaxpr with each equation replaced by the result of ``rule``; the same object if nothing changes.

    ``rule`` receives equations whose operands are already substituted.
    """
    names: dict[Var, Atom] = {}
    eqns: list[JaxprEqn] = []
    for old in jaxpr.eqns:
        eqn = renamed(old, names)
        new = rule(eqn)
        if new is None:
            names[eqn.outvars[0]] = eqn.invars[0]
        elif isinstance(new, JaxprEqn):
            eqns.append(new)
        else:
            eqns += new
    return jaxpr.replace(jaxpr=rebuilt(jaxpr.jaxpr, eqns, names))


def in_regions(eqn: JaxprEqn, apply: Callable[[ClosedJaxpr], ClosedJaxpr]) -> JaxprEqn:
    """The equation with ``apply`` applied to its regions; the same object if nothing changes."""
    regions = eqn.op.regions() if eqn.op.holds_jaxprs else ()
    after = [apply(r) for r in regions]
    same = all(new is old for new, old in zip(after, regions))
    return eqn if same else eqn.replace(op=eqn.op.with_regions(after))


def in_jaxprs(eqn: JaxprEqn, apply: Callable[[ClosedJaxpr], ClosedJaxpr]) -> JaxprEqn:
    """The equation with ``apply`` applied to every closed jaxpr of its op, both called functions and regions."""

    def applied(value: Any) -> Any:
        if isinstance(value, ClosedJaxpr):
            return apply(value)
        if isinstance(value, tuple):
            after = tuple(map(applied, value))
            return after if any(a is not b for a, b in zip(after, value)) else value
        return value

    if not eqn.op.holds_jaxprs:
        return eqn
    old = {f.name: getattr(eqn.op, f.name) for f in dataclasses.fields(eqn.op) if f.init}
    new = {name: after for name, value in old.items() if (after := applied(value)) is not value}
    return eqn.replace(op=dataclasses.replace(eqn.op, **new)) if new else eqn


def replaced_in_all(
    jaxpr: ClosedJaxpr, rule_in: Callable[[ClosedJaxpr], Callable[[JaxprEqn], Sequence[JaxprEqn]]]
) -> ClosedJaxpr:
    """:func:`replaced` applied to the jaxpr and every closed jaxpr nested in it. Shared inner jaxprs stay shared.

    ``rule_in`` returns the rule for a jaxpr. The rule returns the equations that replace one, or none to keep it.
    """
    done: dict[int, ClosedJaxpr] = {}

    def applied(inner: ClosedJaxpr) -> ClosedJaxpr:
        if id(inner) not in done:
            rule = rule_in(inner)
            done[id(inner)] = replaced(inner, lambda e: rule(e) or in_jaxprs(e, applied))
        return done[id(inner)]

    return applied(jaxpr)


#: the op that returns its operand
COPY: Slot[Op] = Slot("the op that returns its operand", "meshwright.ops.elementwise.table")


def written_out(
    eqn: JaxprEqn, fun: Callable[..., Sequence[Any]], axes: Mapping[str, int] = MappingProxyType({})
) -> list[JaxprEqn]:
    """The equations that replace ``eqn``: ``fun`` traced on its operands, with ``axes`` in scope."""
    with extend_axis_env(axes):
        jaxpr = trace_to_jaxpr(fun, [a.aval for a in eqn.invars]).jaxpr
    assert not jaxpr.constvars, "equations cannot have constant arrays of their own: call a function instead"
    names: dict[Var, Atom] = dict(zip(jaxpr.invars, eqn.invars))
    made = {v for new in jaxpr.eqns for v in new.outvars}
    results: dict[Atom, Var] = {}
    eqns = list(jaxpr.eqns)
    for atom, out in zip(jaxpr.outvars, eqn.outvars):
        if atom not in made or atom in results:  # an operand, a constant, or the same as another result
            eqns.append(eqn.replace(op=COPY.value, invars=[atom], outvars=[out]))
        results.setdefault(atom, out)
    names.update((v, out) for v, out in results.items() if isinstance(v, Var) and v in made)
    return [
        renamed(new, names).replace(outvars=[results.get(v, v) for v in new.outvars], source=eqn.source, note=eqn.note)
        for new in eqns
    ]


# --- interpreting -------------------------------------------------------------------------------------------
class Interpreter(Generic[T]):
    """Evaluates a jaxpr equation by equation. Subclasses choose what represents a value (``T``).

    The base class applies the ops under the current trace.
    """

    def run(self, jaxpr: ClosedJaxpr, args: Sequence[T]) -> list[T]:
        """The results for ``args``."""
        inner = jaxpr.jaxpr
        env: dict[Var, T] = dict(zip(inner.invars, args))
        for var, value in zip(inner.constvars, jaxpr.consts):
            env[var] = self.constant(value, var.aval)

        def read(atom: Atom) -> T:
            return self.constant(atom.val, atom.aval) if isinstance(atom, Literal) else env[atom]

        for eqn in inner.eqns:
            self.begin(eqn)
            env.update(zip(eqn.outvars, self.equation(eqn, [read(a) for a in eqn.invars])))
        return [read(a) for a in inner.outvars]

    def begin(self, eqn: JaxprEqn) -> None:
        """Hook that runs before the operands of an equation are read."""

    def constant(self, value: Any, aval: ShapedArray) -> T:
        """The representation of a literal or constant of the jaxpr."""
        result: T = value
        return result

    def equation(self, eqn: JaxprEqn, args: list[T]) -> Sequence[T]:
        """The results of one equation."""
        values: list[Any] = list(args)  # in the base class, T is a value that ops can be applied to
        with source.at(eqn.source):
            outs = eqn.op.bind(*values)
        return outs if eqn.op.multiple_results else [outs]
