"""Finds the collectives in a program."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.ir.jaxpr import Jaxpr, all_eqns, sub_jaxprs
from meshwright.ir.op import Op
from meshwright.ops.collective.base import Collective


def collectives_in(*jaxprs: Jaxpr) -> Iterator[Collective]:
    """The collectives of jaxprs, in program order, including those of inner jaxprs."""
    return (e.op for jaxpr in jaxprs for e in all_eqns(jaxpr) if isinstance(e.op, Collective))


def collectives_of(op: Op) -> Iterator[Collective]:
    """An op, if it is a collective, and those in its jaxprs."""
    if isinstance(op, Collective):
        yield op
    yield from collectives_in(*sub_jaxprs(op))
