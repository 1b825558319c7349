"""The common base of control-flow ops, which hold jaxprs that run once, several times or not at all.

Semantics and derivative rules of ``cond``, ``while`` and ``scan`` are those of JAX; splitting a ``cond`` follows
Autodidax. Bodies close over nothing: outside values are operands. :meth:`RegionOp.ties` describes, as data, how
operands and results of the op correspond to parameters and results of its bodies, so that propagation goes through
bodies without knowing the ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, Jaxpr, Var
from meshwright.ops.control.call import CallOp

OPERAND, RESULT, PARAMETER, OUTPUT = "operand", "result", "parameter", "output"


@dataclass(frozen=True)
class End:
    """An operand or result of a control op, or a parameter or output of one of its bodies. If ``stacked``, it has a
    leading dimension, one index per run of the body, that others tied to it lack."""

    side: str
    index: int
    body: int = 0
    stacked: bool = False


#: values with the same dimensions, which should have the same layout
Tie = tuple[End, ...]
#: from a jaxpr, arguments and a state to the results of its equations and the new state
Run = Callable[[ClosedJaxpr, Sequence[Any], list[Any]], tuple[list[Any], list[Any]]]


@dataclass(frozen=True)
class RegionOp(CallOp):
    """Base class of ops with bodies."""

    #: whether operand 0 selects one body, which runs once; otherwise all run in turn, :meth:`trips` times
    chooses: ClassVar[bool] = False
    #: whether :meth:`threaded` is implemented
    threads: ClassVar[bool] = False

    def threaded(
        self, args: Sequence[Any], state: list[Any], run: Run, join: Callable[[Sequence[Any]], list[Any]]
    ) -> tuple[list[Any], list[Any]]:
        """Apply the op with a state that is passed through its bodies; returns the results and the final state.

        ``run(jaxpr, args, state)`` evaluates a body's equations and returns results and the new state. ``join``
        combines the states of several devices, which are stacked.
        """
        raise NotImplementedError

    def ties(self) -> Iterator[Tie]:
        """Which operands, parameters, outputs and results correspond; values flow to the last of each tie."""
        return iter(())

    def trips(self, operands: Sequence[Atom]) -> int | None:
        """How often the bodies run, if that is known."""
        return 1

    @property
    def devices(self) -> int:
        """The number of devices that each run a part of the op."""
        return 1


def split(values: Sequence[Any], *sizes: int) -> list[list[Any]]:
    """Split ``values`` into consecutive parts; the last part is the remainder."""
    parts, at = [], 0
    for size in sizes:
        parts.append(list(values[at : at + size]))
        at += size
    return [*parts, list(values[at:])]


def arranged(jaxpr: ClosedJaxpr, invars: Sequence[Var], outvars: Sequence[Any] | None = None) -> ClosedJaxpr:
    """The same equations with other parameters (permuted or extended) and results."""
    inner = jaxpr.jaxpr
    outs = inner.outvars if outvars is None else outvars
    return ClosedJaxpr(inner.replace(invars=invars, outvars=outs), jaxpr.consts)


def depends(jaxpr: Jaxpr, flags: Sequence[bool]) -> list[bool]:
    """Whether each result depends on a flagged parameter."""
    dependent = {v for v, flag in zip(jaxpr.invars, flags) if flag}
    for eqn in jaxpr.eqns:
        if any(a in dependent for a in eqn.invars if isinstance(a, Var)):
            dependent.update(eqn.outvars)
    return [isinstance(a, Var) and a in dependent for a in jaxpr.outvars]


def pick(values: Sequence[Any], flags: Sequence[bool]) -> list[Any]:
    """The flagged values."""
    return [x for x, flag in zip(values, flags) if flag]


def omit(values: Sequence[Any], flags: Sequence[bool]) -> list[Any]:
    """The values that are not flagged."""
    return [x for x, flag in zip(values, flags) if not flag]


def merge(flags: Sequence[bool], yes: Sequence[Any], no: Sequence[Any]) -> list[Any]:
    """The inverse of :func:`pick` and :func:`omit`."""
    first, second = iter(yes), iter(no)
    return [next(first) if flag else next(second) for flag in flags]
