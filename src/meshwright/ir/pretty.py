"""Prints jaxprs in JAX's classic text form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from meshwright.core.weak import once_for_each
from meshwright.ir import jaxpr as jaxpr_module
from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, sub_jaxprs
from meshwright.ir.rewrite import use_counts

#: the longest equation with parameters, and the longest jaxpr, that are on one line
_WIDTH, _JAXPR_WIDTH = 110, 80
#: in texts with more equations, a jaxpr that several equations hold is printed once
_MOST_EQUATIONS = 20_000


def _names() -> Iterator[str]:
    """``a`` … ``z``, ``ba``, ``bb``, … as in JAX."""
    number = 0
    while True:
        name, n = "", number
        while True:
            name = chr(ord("a") + n % 26) + name
            n //= 26
            if n == 0:
                break
        yield name
        number += 1


class _Printer:
    def __init__(self, show_source: bool) -> None:
        self.fresh = _names()
        self.names: dict[Var, str] = {}
        self.show_source = show_source
        #: where the text of the current equation begins
        self.column = 0
        #: the numbers of jaxprs printed so far, if each is to be printed once
        self.shown: dict[Jaxpr, int] | None = None

    def name(self, var: Var) -> str:
        if var not in self.names:
            self.names[var] = next(self.fresh)
        return self.names[var]

    def typed(self, var: Var) -> str:
        return f"{self.name(var)}:{var.aval}"

    def atom(self, atom: Any) -> str:
        return f"{_literal(atom)}:{atom.aval}" if isinstance(atom, Literal) else self.name(atom)

    def whole(self, jaxpr: Jaxpr) -> list[str]:
        if _equations(jaxpr) > _MOST_EQUATIONS:
            self.shown = {}
        return self.jaxpr(jaxpr, 0, 0)

    def jaxpr(self, jaxpr: Jaxpr, indent: int, before: int) -> list[str]:
        """The lines of a jaxpr whose equations are indented by ``indent``, after ``before`` other letters."""
        if self.shown is not None and jaxpr in self.shown:
            return [f"{{ as {jaxpr.debug_name or 'before'} #{self.shown[jaxpr]} }}"]
        lines = self.lines(jaxpr, indent, before)
        if self.shown is not None:
            number = self.shown[jaxpr] = len(self.shown)
            lines[-1] += f" #{number}"
        return lines

    def lines(self, jaxpr: Jaxpr, indent: int, before: int) -> list[str]:
        pad = " " * indent
        consts = " ".join(self.typed(v) for v in jaxpr.constvars)
        args = " ".join(self.typed(v) for v in jaxpr.invars)
        uses = use_counts(jaxpr.eqns, jaxpr.outvars)
        lines = [f"{{ lambda {consts + ' ' if consts else ''}; {args}. let" if args else f"{{ lambda {consts}; . let"]
        column, self.column = self.column, self.column + indent + 4
        eqns = [self.eqn(eqn, uses) for eqn in jaxpr.eqns]
        self.column = column
        outs = ", ".join(map(self.atom, jaxpr.outvars)) + ("," if len(jaxpr.outvars) == 1 else "")
        if len(eqns) < _JAXPR_WIDTH and not self.show_source and all(len(rows) == 1 for rows in eqns):
            line = f"{lines[0]} {'; '.join(rows[0] for rows in eqns)} in ({outs}) }}"
            if column + before + len(line) <= _JAXPR_WIDTH:
                return [line]
        lines += [pad + "    " + row for rows in eqns for row in rows]
        lines.append(f"{pad}  in ({outs}) }}")
        return lines

    def eqn(self, eqn: JaxprEqn, uses: Counter[Var]) -> list[str]:
        # Operands are named before results.
        operands = "".join(" " + self.atom(a) for a in eqn.invars)
        results = " ".join(self.typed(v) if uses[v] else f"_:{v.aval}" for v in eqn.outvars)
        params = sorted(eqn.op.params.items(), key=lambda p: (p[0] != "name", p))
        shown = {k: v for k, v in params if k not in eqn.op.hidden_params}
        head = f"{results} = " if results else ""
        tail = f"  # {eqn.source}" if self.show_source else ""
        if eqn.note is not None and self.show_source:
            tail += f": {eqn.note}"
        if not any(isinstance(v, (Jaxpr, ClosedJaxpr)) or _holds_jaxpr(v) for v in shown.values()):
            inside = "[" + " ".join(f"{k}={_param(v)}" for k, v in shown.items()) + "]" if shown else ""
            line = f"{head}{eqn.op.name}{inside}{operands}"
            if len(line) <= _WIDTH or not shown:
                return [line + tail]
            rows = [f"  {k}={_param(v)}" for k, v in shown.items()]
            return [f"{head}{eqn.op.name}[", *rows, f"]{operands}{tail}"]
        lines = [f"{head}{eqn.op.name}["]
        for key, value in shown.items():
            lines += self.param(key, value)
        return [*lines, f"]{operands}{tail}"]

    def param(self, key: str, value: Any) -> list[str]:
        if isinstance(value, ClosedJaxpr):
            value = value.jaxpr
        if isinstance(value, Jaxpr):
            first, *rest = self.jaxpr(value, 2, len(key) + 3)
            return [f"  {key}={first}", *rest]
        if _holds_jaxpr(value):
            lines = [f"  {key}=("]
            for item in value:
                first, *rest = self.jaxpr(item.jaxpr if isinstance(item, ClosedJaxpr) else item, 4, 4)
                lines += ["    " + first, *rest]
            return [*lines, "  )"]
        return [f"  {key}={_param(value)}"]


@once_for_each
def _equations(jaxpr: Jaxpr) -> int:
    """The number of equations in the text if inner jaxprs are printed at each use."""
    return sum(1 + sum(map(_equations, sub_jaxprs(e.op))) for e in jaxpr.eqns)


def _holds_jaxpr(value: Any) -> bool:
    return isinstance(value, tuple) and any(isinstance(v, (Jaxpr, ClosedJaxpr)) for v in value)


def _literal(literal: Literal) -> str:
    value = np.asarray(literal.val, literal.aval.dtype)[()]
    return str(value.item() if hasattr(value, "item") else value)


def _param(value: Any) -> str:
    if isinstance(value, np.dtype):
        return str(value.name)
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    return str(value)


def format_jaxpr(jaxpr: Jaxpr | ClosedJaxpr, source: bool = False) -> str:
    """The text of a jaxpr; with ``source``, each equation is followed by its source line and note."""
    inner = jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
    return "\n".join(_Printer(source).whole(inner))


jaxpr_module.PRINTER = format_jaxpr
