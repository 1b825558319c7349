"""Where an axis came from: the annotation that made propagation split a value by it.

Propagation notes for every value and axis what brought the axis there: an annotation, or an equation along whose
factors it spread. Following these notes back ends at an annotation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import field
from functools import cached_property

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.core.source import UNKNOWN, SourceLocation
from meshwright.ir.jaxpr import Atom, JaxprEqn, Var
from meshwright.ir.names import called

#: equations that are gone back over, where propagation itself did not bring an axis to a value
_HORIZON = 256


@dataclass(frozen=True)
class Sort:
    """What annotations of repeated layers have in common: of what kind they are, the type of the value, its layout."""

    kind: str
    aval: ShapedArray
    dims: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Annotation:
    """A sharding that the user gave: to ``input`` or ``output`` number so-and-so, or as a ``constraint`` in between; or
    one that the planner gave to products that idle axes ``share`` along dimension ``number``."""

    kind: str
    number: int = 0
    source: SourceLocation = UNKNOWN
    sort: Sort | None = None

    def describe(self, names: Sequence[str] = ()) -> str:
        """In words; ``names`` are those of the inputs."""
        if self.kind == "constraint":
            return f"the with_sharding_constraint at {self.source}"
        if self.kind == "share":
            return f"the products at {self.source}, which devices would repeat and share along dimension {self.number}"
        return f"the sharding of {called(self.kind, self.number, names if self.kind == 'input' else ())}"


@dataclass
class Origins:
    """What brought each axis to each value, in the order in which that happened."""

    eqns: Sequence[JaxprEqn] = ()
    notes: dict[tuple[Var, str], tuple[int, Annotation | int]] = field(default_factory=dict)

    def note(self, var: Var, axes: Sequence[str], cause: Annotation | int) -> None:
        """``cause`` (an annotation, or the number of an equation) splits a value by these axes."""
        for axis in axes:
            self.notes.setdefault((var, axis), (len(self.notes), cause))

    def of(self, atom: Atom, axis: str) -> Annotation | None:
        """The annotation because of which a value, or what it is made of, is split by an axis; None if there is none.

        Where the axis is no longer on the value (it was contracted over), the equations before it are searched.
        """
        queue, seen = deque([atom]), {id(atom)}
        for _ in range(_HORIZON):
            if not queue:
                return None
            value = queue.popleft()
            if not isinstance(value, Var):
                continue
            if (value, axis) in self.notes:
                return self._follow(value, axis)
            maker = self._makers.get(value)
            fresh = [a for a in maker.invars if id(a) not in seen] if maker is not None else []
            queue.extend(fresh)
            seen.update(map(id, fresh))
        return None

    @cached_property
    def _makers(self) -> dict[Var, JaxprEqn]:
        return {v: e for e in self.eqns for v in e.outvars}

    def _follow(self, var: Var, axis: str) -> Annotation | None:
        stamp, cause = self.notes[var, axis]
        while not isinstance(cause, Annotation):
            eqn = self.eqns[cause]
            known = [
                self.notes[a, axis]
                for a in (*eqn.invars, *eqn.outvars)
                if isinstance(a, Var) and (a, axis) in self.notes
            ]
            earlier, cause = min(known, key=lambda entry: entry[0])
            if earlier >= stamp:
                return None
            stamp = earlier
        return cause
