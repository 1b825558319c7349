"""The rewriting kit: who makes and uses a value, substitution, replacing equations, one interpreter to derive from."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from meshwright.core import source
from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from meshwright.ir.state import extend_axis_env
from meshwright.ir.tracing import trace_to_jaxpr

T = TypeVar("T")


# --- who makes and uses a value -----------------------------------------------------------------------------
def uses_of(jaxpr: Jaxpr) -> dict[Var, list[JaxprEqn | None]]:
    """The equations that use each value, once for each operand; None stands for the results of the jaxpr."""
    uses: dict[Var, list[JaxprEqn | None]] = {}
    for eqn in (*jaxpr.eqns, None):
        for atom in jaxpr.outvars if eqn is None else eqn.invars:
            if isinstance(atom, Var):
                uses.setdefault(atom, []).append(eqn)
    return uses


def use_counts(eqns: Iterable[JaxprEqn], outs: Iterable[Atom] = ()) -> Counter[Var]:
    """How often each value is an operand of the equations, or one of ``outs``."""
    counts = Counter(a for e in eqns for a in e.invars if isinstance(a, Var))
    counts.update(a for a in outs if isinstance(a, Var))
    return counts


def producers_of(jaxpr: Jaxpr) -> dict[Var, JaxprEqn]:
    """The equation that makes each value; parameters and constants have none."""
    return {v: e for e in jaxpr.eqns for v in e.outvars}


# --- substitution -------------------------------------------------------------------------------------------
def resolve(names: Mapping[Var, Atom], atom: Atom) -> Atom:
    """What ``atom`` is called after the substitutions ``names``."""
    while isinstance(atom, Var) and atom in names:
        atom = names[atom]
    return atom


def renamed(eqn: JaxprEqn, names: Mapping[Var, Atom]) -> JaxprEqn:
    """The equation with its operands substituted."""
    if not names or names.keys().isdisjoint(eqn.invars):
        return eqn
    return eqn.replace(invars=[resolve(names, a) for a in eqn.invars])


def rebuilt(jaxpr: Jaxpr, eqns: Sequence[JaxprEqn], names: Mapping[Var, Atom]) -> Jaxpr:
    """The jaxpr with other equations and its results substituted."""
    return jaxpr.replace(eqns=eqns, outvars=[resolve(names, a) for a in jaxpr.outvars])


# --- replacing equations ------------------------------------------------------------------------------------
#: an equation, or several, in place of one; None: its result is its operand
Replacement = JaxprEqn | Sequence[JaxprEqn] | None


def replaced(jaxpr: ClosedJaxpr, rule: Callable[[JaxprEqn], Replacement]) -> ClosedJaxpr:
    """The jaxpr with what ``rule`` makes of each equation, whose operands have their new names by then; the same object
    if that is nothing new."""
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
    if len(eqns) == len(jaxpr.eqns) and all(a is b for a, b in zip(eqns, jaxpr.eqns)):
        return jaxpr
    return jaxpr.replace(jaxpr=rebuilt(jaxpr.jaxpr, eqns, names))


def in_regions(eqn: JaxprEqn, apply: Callable[[ClosedJaxpr], ClosedJaxpr]) -> JaxprEqn:
    """The equation with ``apply`` done to its regions, if it has any; the same object if that changes none."""
    regions = eqn.op.regions() if eqn.op.holds_jaxprs else ()
    after = [apply(r) for r in regions]
    same = all(new is old for new, old in zip(after, regions))
    return eqn if same else eqn.replace(op=eqn.op.with_regions(after))


def in_jaxprs(eqn: JaxprEqn, apply: Callable[[ClosedJaxpr], ClosedJaxpr]) -> JaxprEqn:
    """The equation with ``apply`` done to every closed jaxpr of its op, called functions and regions alike."""

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
    """:func:`replaced` here and in every jaxpr that ops hold; a function that is called twice stays one. ``rule_in``
    gives a jaxpr's rule: the equations in place of one, none where it stays."""
    done: dict[int, ClosedJaxpr] = {}

    def applied(inner: ClosedJaxpr) -> ClosedJaxpr:
        if id(inner) not in done:
            rule = rule_in(inner)
            done[id(inner)] = replaced(inner, lambda e: rule(e) or in_jaxprs(e, applied))
        return done[id(inner)]

    return applied(jaxpr)


def written_out(
    eqn: JaxprEqn, fun: Callable[..., Sequence[Any]], axes: Mapping[str, int] = MappingProxyType({})
) -> list[JaxprEqn]:
    """The equations of ``fun``, a function of the operands to new results, in place of one; ``axes`` are in scope."""
    with extend_axis_env(axes):
        jaxpr = trace_to_jaxpr(fun, [a.aval for a in eqn.invars]).jaxpr
    names: dict[Var, Atom] = dict(zip(jaxpr.invars, eqn.invars))
    results = dict(zip(jaxpr.outvars, eqn.outvars))
    return [
        renamed(new, names).replace(outvars=[results.get(v, v) for v in new.outvars], source=eqn.source, note=eqn.note)
        for new in jaxpr.eqns
    ]


# --- interpreting -------------------------------------------------------------------------------------------
class Interpreter(Generic[T]):
    """Goes over the equations of a jaxpr; what its values stand for is the subclass's choice.

    By itself it applies the ops under the current trace.
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
        """What is done before the operands of an equation are read."""

    def constant(self, value: Any, aval: ShapedArray) -> T:
        """What a literal or a constant of the jaxpr stands for."""
        result: T = value
        return result

    def equation(self, eqn: JaxprEqn, args: list[T]) -> Sequence[T]:
        """The results of one equation."""
        values: list[Any] = list(args)  # with the rules that this class has, these are what ops are applied to
        with source.at(eqn.source):
            outs = eqn.op.bind(*values)
        return outs if eqn.op.multiple_results else [outs]
