"""Structural equality of jaxprs, so that a program that is traced again is not compiled again."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any

import numpy as np

from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr, Literal, Var
from meshwright.ir.op import Op


def structure(jaxpr: ClosedJaxpr | Jaxpr) -> Hashable:
    """A hashable key that is equal for jaxprs that are equal up to renaming of variables.

    Constants are compared by ``id``, so whoever keeps the key must also keep the jaxpr alive.
    """
    consts = jaxpr.consts if isinstance(jaxpr, ClosedJaxpr) else []
    inner = jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
    numbers: dict[Var, int] = {}

    def number(var: Var) -> Hashable:
        return numbers.setdefault(var, len(numbers)), var.aval

    def atom(a: Var | Literal) -> Hashable:
        return _literal(a) if isinstance(a, Literal) else numbers[a]

    first = tuple(map(number, (*inner.constvars, *inner.invars)))
    eqns = [
        (_of_op(e.op), tuple(map(atom, e.invars)), tuple(number(v) for v in e.outvars), _key(e.note))
        for e in inner.eqns
    ]
    return tuple(map(id, consts)), first, tuple(eqns), tuple(map(atom, inner.outvars))


def _literal(literal: Literal) -> Hashable:
    # Compared by bits: 0.0 differs from -0.0, and a NaN equals itself.
    return literal.aval, type(literal.val), np.asarray(literal.val).tobytes()


def _of_op(op: Op) -> Hashable:
    if not op.holds_jaxprs:
        return op
    return type(op), tuple(_key(getattr(op, f.name)) for f in dataclasses.fields(op))


def _key(value: Any) -> Hashable:
    if isinstance(value, (Jaxpr, ClosedJaxpr)):
        return structure(value)
    return tuple(map(_key, value)) if isinstance(value, tuple) else value
