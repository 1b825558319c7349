"""The reason for a collective, as data and as a sentence."""

from __future__ import annotations

from dataclasses import field

from meshwright.core.records import dataclass
from meshwright.core.source import UNKNOWN, SourceLocation
from meshwright.ir.jaxpr import Atom, JaxprEqn
from meshwright.sharding import AbstractMesh, Layout
from meshwright.sharding.rule import ShardingRule

#: plural nouns for the terms of partial values, by reduction
_KINDS = {"sum": "sums", "masked": "masked sums", "prod": "products", "max": "maxima", "min": "minima"}


@dataclass(frozen=True)
class Reason:
    """Why a value was resharded: the op and operand that needed it, both layouts, and the value's origin.

    With a ``rule``, the op itself exchanges data between the tiles of a split dimension.
    """

    op: str
    number: int | None = None
    before: Layout | None = None
    after: Layout | None = None
    made_by: str = ""
    made_at: SourceLocation = UNKNOWN
    mesh: AbstractMesh | None = None
    rule: ShardingRule | None = None
    #: the user's name of the program's result, if it is needed as one
    output: str = ""
    #: the value and the equation that needed it, in the program before partitioning
    value: Atom | None = field(default=None, compare=False, repr=False)
    user: JaxprEqn | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        if self.rule is not None:
            return f"{self.op} works across the parts of a split dimension ({self.rule})"
        if self.before is None or self.after is None or self.mesh is None:
            return self.op
        return f"{self._value()} {self._states(self.before, self.after, self.mesh)}"

    def _value(self) -> str:
        if self.made_by.startswith(("input", "a ")):
            return self.made_by
        return f"the result of {self.made_by}" + (f" at {self.made_at}" if self.made_at.file else "")

    def _needs(self) -> str:
        if self.op in ("output", "result"):
            what = self.output or f"{self.op} {self.number}"
            return f"{what} has to be" if self.op == "output" else f"{what} of the loop or branch has to be"
        if self.op == "sharding_constraint":
            return "with_sharding_constraint wants it"
        if self.op == "sharding_group":
            return "its sharding group wants it"
        return f"{self.op} needs operand {self.number}"

    def _states(self, before: Layout, after: Layout, mesh: AbstractMesh) -> str:
        done = tuple(a for a in before.partial if a not in after.partial)
        if not done:
            return f"is laid out as {before.format(mesh)} and {self._needs()} as {after.format(mesh)}"
        kinds = _KINDS.get(before.reduction, "parts")
        partial = f"is in partial {kinds} over {', '.join(mesh.coalesce(done))}"
        if before.dims == after.dims:
            return f"{partial} and {self._needs()} whole"
        return f"{partial}, laid out as {Layout(before.dims).format(mesh)}, and {self._needs()} as {after.format(mesh)}"


#: the reason for a collective (None if the user wrote it) and the line that needed it
Part = tuple[Reason | None, SourceLocation]


@dataclass(frozen=True)
class Merged:
    """Why a collective that replaces several is there: the reason for each and the line that needed it."""

    parts: tuple[Part, ...]

    def __str__(self) -> str:
        (first, _), *others = self.parts
        also = [f"; also, at {where}, because {_text(reason)}" for reason, where in others]
        return _text(first) + "".join(also)


def _text(reason: Reason | None) -> str:
    return str(reason) if reason is not None else "it is written in the program"


def reasons_of(note: Reason | Merged | None) -> tuple[Reason, ...]:
    """The reasons in a note, without collectives that the user wrote."""
    if isinstance(note, Merged):
        return tuple(reason for reason, _ in note.parts if reason is not None)
    return () if note is None else (note,)
