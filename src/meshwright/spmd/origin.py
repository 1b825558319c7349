"""Traces an axis of a value back to the annotation from which propagation took it.

For every value and axis, propagation records the cause: an annotation, or an equation along whose factors the axis
spread. Following these records backwards ends at an annotation.
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

#: how many values to search backwards where propagation itself did not bring an axis to a value
_HORIZON = 256


@dataclass(frozen=True)
class Sort:
    """What annotations of repeated layers have in common: their kind, the type of the value, and its layout."""

    kind: str
    aval: ShapedArray
    dims: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Annotation:
    """A sharding that the user gave, or that the planner gave to products or decompositions (``what``).

    ``kind`` is ``input`` or ``output``, with its ``number``; ``constraint``, within the program; or ``share``, where
    the planner splits these over idle axes along dimension ``number``.
    """

    kind: str
    number: int = 0
    source: SourceLocation = UNKNOWN
    sort: Sort | None = None
    #: the priority of each dimension, where the user gave any
    priorities: tuple[int, ...] = ()
    what: str = ""

    def priority_of(self, axis: str) -> int:
        """The priority with which it brings an axis; 0 is the first."""
        dims = self.sort.dims if self.sort is not None else ()
        return max((p for axes, p in zip(dims, self.priorities) if axis in axes), default=0)

    def describe(self, names: Sequence[str]) -> str:
        """The annotation in words; ``names`` are those of the inputs."""
        if self.kind == "constraint":
            return f"the with_sharding_constraint at {self.source}"
        if self.kind == "share":
            return (
                f"the {self.what} at {self.source}, which devices would repeat and share along dimension {self.number}"
            )
        return f"the sharding of {called(self.kind, self.number, names if self.kind == 'input' else ())}"


@dataclass
class Origins:
    """What brought each axis to each value, in order of time."""

    eqns: Sequence[JaxprEqn] = ()
    notes: dict[tuple[Var, str], tuple[int, Annotation | int]] = field(default_factory=dict)
    #: where following the notes ended, by the time of the first: later notes do not change it
    _followed: dict[int, Annotation | None] = field(default_factory=dict, init=False, repr=False)

    def note(self, var: Var, axes: Sequence[str], cause: Annotation | int) -> None:
        """Record that ``cause``, an annotation or the index of an equation, split a value by these axes."""
        for axis in axes:
            self.notes.setdefault((var, axis), (len(self.notes), cause))

    @property
    def sorts(self) -> set[Sort]:
        """The sorts of all annotations that brought an axis to a value."""
        causes = (cause for _, cause in self.notes.values() if isinstance(cause, Annotation))
        return {cause.sort for cause in causes if cause.sort is not None}

    def of(self, atom: Atom, axis: str) -> Annotation | None:
        """The annotation because of which a value, or one that it depends on, is split by an axis, or None.

        If the axis is no longer on the value (its dimension was contracted), the equations before it are searched.
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

    def rewritten(self, eqns: Sequence[JaxprEqn]) -> None:
        """Take in equations that replace some of the program's after propagation: of their values there are no notes,
        but of those that they are made of."""
        for eqn in eqns:
            for var in eqn.outvars:
                self._makers.setdefault(var, eqn)

    @cached_property
    def _makers(self) -> dict[Var, JaxprEqn]:
        return {v: e for e in self.eqns for v in e.outvars}

    def _follow(self, var: Var, axis: str) -> Annotation | None:
        stamp, cause = self.notes[var, axis]
        passed: list[int] = []
        found: Annotation | None = None
        while stamp not in self._followed:
            passed.append(stamp)
            if isinstance(cause, Annotation):
                found = cause
                break
            eqn = self.eqns[cause]
            known = [
                self.notes[a, axis]
                for a in (*eqn.invars, *eqn.outvars)
                if isinstance(a, Var) and (a, axis) in self.notes
            ]
            earlier, cause = min(known, key=lambda entry: entry[0])
            if earlier >= stamp:
                break
            stamp = earlier
        else:
            found = self._followed[stamp]
        self._followed.update(dict.fromkeys(passed, found))
        return found
