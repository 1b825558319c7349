"""How ops of other people's programs become ours: the inverse of ``emit``.

An op's file says, beside the op, how its StableHLO form is read: a *reading rule* takes a :class:`Reader`, which stands
for one operation of the foreign program, and binds our ops. The driver that walks the program finds rules by name here
and knows no op itself; what has no rule is kept as it is (:class:`meshwright.ops.imported.opaque.Opaque`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol

from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn
from meshwright.ir.tracing import Tracer


class Unreadable(Exception):
    """A rule does not cover this form of its op (never seen by users: the op is then kept as it is)."""


class Region(NamedTuple):
    """A region as a jaxpr. ``captured`` are the values of the surrounding program that it uses: operands before those
    of its own."""

    jaxpr: ClosedJaxpr
    captured: Sequence[Any]


class Reader(Protocol):
    """One operation of a foreign program.

    ``attr`` gives Python values: ``bool``, ``int``, ``float``, ``str``, tuples, NumPy arrays, dtypes. An enum is its
    word (``"EQ"``), dimension numbers are a dictionary by field name.
    """

    #: the operation's name, with its dialect: ``stablehlo.add``
    name: str

    @property
    def operands(self) -> list[Any]:
        """The operands, as values of the current trace (a tuple for a tuple)."""
        ...

    @property
    def in_avals(self) -> list[ShapedArray]:
        """Avals of the operands."""
        ...

    @property
    def out_avals(self) -> list[ShapedArray]:
        """Declared avals of the results."""
        ...

    def attr(self, name: str, default: Any = ...) -> Any:
        """An attribute as a Python value, or ``default``; without one, a missing attribute is an error."""
        ...

    def attrs(self) -> dict[str, Any]:
        """Every attribute as a Python value."""
        ...

    def region(self, number: int = 0) -> Region:
        """A region as a jaxpr on its block arguments."""
        ...

    def num_regions(self) -> int:
        """How many regions there are."""
        ...

    def tokens(self) -> list[bool]:
        """Which operands and results, one after the other, are tokens; as values they are numbers."""
        ...

    def host_function(self, number: int | None) -> Callable[..., Any] | None:
        """A Python function that the program calls, by its number; None if it is not known."""
        ...

    def producer_of(self, operand: int) -> JaxprEqn | None:
        """The equation that made an operand; None for parameters and constants."""
        ...

    def reducer(self, number: int = 0) -> str:
        """The name of the one commutative op that a region applies to its two arguments; "" if it is something else."""
        ...

    def fail(self, why: str) -> NoReturn:
        """Raise ``ImportProgramError`` with the operation's name and line."""
        ...


ReadRule = Callable[[Any], Any]

#: reading rules by operation name
READERS: dict[str, ReadRule] = {}


def reads(*names: str) -> Callable[[ReadRule], ReadRule]:
    """Decorator: this function reads the operations called ``names`` (of a custom call: ``"custom_call:Target"``).

    It returns the result, a list of several, or raises :class:`Unreadable`.
    """

    def register(rule: ReadRule) -> ReadRule:
        for name in names:
            READERS[name] = rule
        return rule

    return register


_COMMUTATIVE = ("add", "mul", "max", "min", "and", "or", "xor")


def binary_op_name(jaxpr: ClosedJaxpr) -> str:
    """The name of the commutative op that a jaxpr of two scalars applies to them; "" if it does something else."""
    inner = jaxpr.jaxpr
    if len(inner.eqns) != 1 or len(inner.invars) != 2 or len(inner.outvars) != 1:
        return ""
    (eqn,) = inner.eqns
    uses_both = list(eqn.invars) in (inner.invars, inner.invars[::-1])
    return eqn.op.name if uses_both and inner.outvars == list(eqn.outvars) and eqn.op.name in _COMMUTATIVE else ""


def scalar_of(value: Any) -> Any:
    """The concrete scalar that ``value`` is in a program that is being read, or None."""
    return None if isinstance(value, Tracer) or getattr(value, "shape", None) != () else value
