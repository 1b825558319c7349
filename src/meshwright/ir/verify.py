"""The jaxpr verifier. The result of every pass must satisfy it."""

from __future__ import annotations

from typing import Any

from meshwright.core.words import counted
from meshwright.errors import MeshwrightError, VerifierError
from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, sub_jaxprs
from meshwright.ir.state import STATE, scope


def verify(jaxpr: Jaxpr | ClosedJaxpr, what: str = "jaxpr", seen: set[Any] | None = None) -> None:
    """Check scoping, single assignment, and that the declared result types of every equation match its op's.

    Equations in ``seen`` are not type-checked again; those that are checked here are added to it.

    Raises:
      VerifierError: names the offending equation.
    """
    _verify(jaxpr, what, set() if seen is None else seen)


def _verify(jaxpr: Jaxpr | ClosedJaxpr, what: str, seen: set[Any]) -> None:
    """Check a jaxpr unless it is in ``seen`` together with the axes in scope."""
    key = jaxpr, scope()
    if key in seen:
        return
    seen.add(key)
    if isinstance(jaxpr, ClosedJaxpr):
        if len(jaxpr.consts) != len(jaxpr.jaxpr.constvars):
            raise VerifierError(
                f"{what}: {len(jaxpr.consts)} constants for {len(jaxpr.jaxpr.constvars)} constant variables"
            )
        jaxpr = jaxpr.jaxpr
    defined: dict[Var, int] = {}
    for var in (*jaxpr.constvars, *jaxpr.invars):
        if var in defined:
            raise VerifierError(f"{what}: variable {var!r} is a parameter twice")
        defined[var] = -1
    around = key[1]
    for number, eqn in enumerate(jaxpr.eqns):
        _verify_scope(eqn, number, defined, what)
        if (eqn, around) not in seen:
            _verify_types(eqn, number, what, seen, around)
            seen.add((eqn, around))
    for atom in jaxpr.outvars:
        if isinstance(atom, Var) and atom not in defined:
            raise VerifierError(f"{what}: result {atom!r} is not defined")


def _where(what: str, number: int, eqn: JaxprEqn) -> str:
    return f"{what}: equation {number} ({eqn.op.name}, from {eqn.source})"


def _verify_scope(eqn: JaxprEqn, number: int, defined: dict[Var, int], what: str) -> None:
    for atom in eqn.invars:
        if isinstance(atom, Var) and atom not in defined:
            raise VerifierError(f"{_where(what, number, eqn)}: operand {atom!r} is not defined before it is used")
    for var in eqn.outvars:
        if var in defined:
            raise VerifierError(f"{_where(what, number, eqn)}: variable {var!r} is assigned twice")
        defined[var] = number


def _verify_types(eqn: JaxprEqn, number: int, what: str, seen: set[Any], around: Any) -> None:

    def where() -> str:
        return _where(what, number, eqn)

    for atom in eqn.invars:
        if isinstance(atom, Literal) and atom.aval.shape != ():
            raise VerifierError(f"{where()}: literal of shape {atom.aval.shape}; only scalars are literals")
    # Programs repeat a few forms of equations thousands of times.
    form = (
        None if eqn.op.holds_jaxprs else (eqn.op, *(a.aval for a in eqn.invars), *(v.aval for v in eqn.outvars), around)
    )
    if form is not None and form in seen:
        return
    infer = eqn.op.typed if STATE.checked else eqn.op.infer
    try:
        eqn.op.check_keys([a.aval for a in eqn.invars])
        out = infer(*(a.aval for a in eqn.invars))
    except (MeshwrightError, TypeError) as error:  # TypeError: wrong number of operands
        raise VerifierError(f"{where()}: {error}") from error
    avals = list(out) if eqn.op.multiple_results else [out]
    if len(avals) != len(eqn.outvars):
        raise VerifierError(f"{where()}: {counted(len(eqn.outvars), 'result')}, the op has {len(avals)}")
    for var, aval in zip(eqn.outvars, avals):
        if (var.aval.shape, var.aval.dtype, var.aval.vma) != (aval.shape, aval.dtype, aval.vma):
            raise VerifierError(f"{where()}: result is declared {var.aval}, the op gives {aval}")
    with eqn.op.scope():
        for inner in sub_jaxprs(eqn.op):
            _verify(inner, f"{where()} in {inner.debug_name or 'inner jaxpr'}", seen)
    if form is not None:
        seen.add(form)
