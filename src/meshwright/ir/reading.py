"""Import of foreign StableHLO operations as Meshwright ops: the inverse of ``emit``.

The file that defines an op also defines how its StableHLO form is read. A *reading rule* takes a :class:`Reader`, which
represents one operation of the foreign program, and binds Meshwright ops. The importer looks up rules here by operation
name. Operations without a rule are kept as :class:`meshwright.ops.imported.opaque.Opaque`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol

from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import ClosedJaxpr, JaxprEqn
from meshwright.ir.tracing import Tracer


class Unreadable(Exception):
    """A rule does not cover this form of its operation. Internal: the operation is then kept as an opaque op."""


class Region(NamedTuple):
    """A region as a jaxpr.

    ``captured`` are the values of the enclosing program that it uses; the jaxpr takes them before its block arguments.
    """

    jaxpr: ClosedJaxpr
    captured: Sequence[Any]


class Reader(Protocol):
    """One operation of a foreign program.

    ``attr`` returns Python values: ``bool``, ``int``, ``float``, ``str``, tuples, NumPy arrays, dtypes. Enums are
    strings (``"EQ"``), and dimension numbers are a dictionary by field name.
    """

    #: the operation's name including its dialect, such as ``stablehlo.add``
    name: str

    @property
    def operands(self) -> list[Any]:
        """The operands, as values of the current trace (a tuple for a tuple)."""
        ...

    @property
    def in_avals(self) -> list[ShapedArray]:
        """The types of the operands."""
        ...

    @property
    def out_avals(self) -> list[ShapedArray]:
        """The declared types of the results."""
        ...

    def attr(self, name: str, default: Any = ...) -> Any:
        """An attribute as a Python value; if it is missing, ``default``, or an error if no default is given."""
        ...

    def attrs(self) -> dict[str, Any]:
        """Every attribute as a Python value."""
        ...

    def region(self, number: int = 0) -> Region:
        """A region as a jaxpr that takes its block arguments."""
        ...

    def num_regions(self) -> int:
        """The number of regions."""
        ...

    def tokens(self) -> list[bool]:
        """For the operands and then the results: whether each is a token. Token values are represented by numbers."""
        ...

    def host_function(self, number: int | None) -> Callable[..., Any] | None:
        """The host function with this number that the program calls; None if unknown."""
        ...

    def producer_of(self, operand: int) -> JaxprEqn | None:
        """The equation that produces an operand; None for parameters and constants."""
        ...

    def reducer(self, number: int = 0) -> str:
        """The name of the single commutative op that a region applies to its two arguments; "" for any other region."""
        ...

    def fail(self, why: str) -> NoReturn:
        """Raise ``ImportProgramError`` with the operation's name and line."""
        ...


ReadRule = Callable[[Any], Any]

#: reading rules by operation name
READERS: dict[str, ReadRule] = {}


def reads(*names: str) -> Callable[[ReadRule], ReadRule]:
    """Decorator: register a reading rule for the operations ``names`` (for a custom call, ``"custom_call:Target"``).

    The rule returns the result, or a list of several, or raises :class:`Unreadable`.
    """

    def register(rule: ReadRule) -> ReadRule:
        for name in names:
            READERS[name] = rule
        return rule

    return register


_COMMUTATIVE = ("add", "mul", "max", "min", "and", "or", "xor")


def binary_op_name(jaxpr: ClosedJaxpr) -> str:
    """The name of the single commutative op that a jaxpr applies to its two arguments; "" for any other jaxpr."""
    inner = jaxpr.jaxpr
    if len(inner.eqns) != 1 or len(inner.invars) != 2 or len(inner.outvars) != 1:
        return ""
    (eqn,) = inner.eqns
    uses_both = list(eqn.invars) in (inner.invars, inner.invars[::-1])
    return eqn.op.name if uses_both and inner.outvars == list(eqn.outvars) and eqn.op.name in _COMMUTATIVE else ""


def scalar_of(value: Any) -> Any:
    """``value`` if it is a concrete scalar, else None (in a program that is being read)."""
    return None if isinstance(value, Tracer) or getattr(value, "shape", None) != () else value
