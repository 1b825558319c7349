"""The intermediate representation: jaxprs, as in JAX.

A ``Jaxpr`` is a list of equations in A-normal form over typed variables. The partitioned per-device program is an
ordinary ``Jaxpr`` too, whose collectives name mesh axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from meshwright.core.avals import OnlyTyped, ShapedArray, Typed
from meshwright.core.slots import Slot
from meshwright.core.source import UNKNOWN, SourceLocation
from meshwright.core.weak import once_for_each

if TYPE_CHECKING:
    from meshwright.ir.op import Op


#: the primitive of an op, for interpreters of jaxprs
PRIMITIVE_OF: Slot[Callable[[Op], Any]] = Slot("the primitives of ops", "meshwright.ops.op_primitives")


class Var(OnlyTyped):
    """A variable: an aval, compared by identity. Names are assigned when a jaxpr is printed."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Var(id={id(self)}):{self.aval}"


class Literal(Typed):
    """A scalar constant written into an equation."""

    __slots__ = ("aval", "val")

    def __init__(self, val: Any, aval: ShapedArray) -> None:
        self.val = val
        self.aval = aval

    def __repr__(self) -> str:
        val = self.val.item() if hasattr(self.val, "item") else self.val
        return str(val) if not isinstance(val, float) or str(val) != "-0.0" else "-0.0"


Atom = Var | Literal


class JaxprEqn:
    """``outvars = op invars``, with the user's source location. ``note`` explains an equation that a pass inserted."""

    __slots__ = ("invars", "note", "op", "outvars", "source")

    def __init__(
        self,
        op: Op,
        invars: Sequence[Atom],
        outvars: Sequence[Var],
        source: SourceLocation = UNKNOWN,
        note: Any = None,
    ) -> None:
        self.op = op
        self.invars = invars
        self.outvars = outvars
        self.source = source
        self.note = note

    @property
    def primitive(self) -> Any:
        """What is applied, without parameters: ``eqn.primitive.bind(*operands, **eqn.params)`` applies it again."""
        own = getattr(self.op, "primitive", None)
        return PRIMITIVE_OF.value(self.op) if own is None else own

    @property
    def params(self) -> dict[str, Any]:
        return self.op.params

    @property
    def effects(self) -> frozenset[str]:
        """The name of the op if it has effects besides its results."""
        return frozenset((self.op.name,) if self.op.has_effects else ())

    @property
    def source_info(self) -> SourceLocation:
        """The user's location, under JAX's name."""
        return self.source

    def replace(self, **changes: Any) -> JaxprEqn:
        """A copy with some members changed."""
        members = {name: changes.get(name, getattr(self, name)) for name in self.__slots__}
        return JaxprEqn(**members)

    def __repr__(self) -> str:
        from_ = " ".join(map(str, self.invars))
        return f"{' '.join(map(repr, self.outvars))} = {self.op} {from_}"


class Jaxpr:
    """``{ lambda constvars ; invars. let eqns in outvars }``."""

    __slots__ = ("__weakref__", "constvars", "debug_name", "eqns", "invars", "outvars")

    def __init__(
        self,
        constvars: Sequence[Var],
        invars: Sequence[Var],
        outvars: Sequence[Atom],
        eqns: Sequence[JaxprEqn],
        debug_name: str = "",
    ) -> None:
        self.constvars = list(constvars)
        self.invars = list(invars)
        self.outvars = list(outvars)
        self.eqns = list(eqns)
        self.debug_name = debug_name

    @property
    def in_avals(self) -> list[ShapedArray]:
        return [v.aval for v in self.invars]

    @property
    def out_avals(self) -> list[ShapedArray]:
        return [v.aval for v in self.outvars]

    @property
    def effects(self) -> frozenset[str]:
        """The names of the ops that have effects besides their results."""
        return frozenset(e.op.name for e in self.eqns if e.op.has_effects)

    def replace(self, **changes: Any) -> Jaxpr:
        """A copy with some members changed."""
        names = ("constvars", "invars", "outvars", "eqns", "debug_name")
        return Jaxpr(**{n: changes.get(n, getattr(self, n)) for n in names})

    def __str__(self) -> str:
        return PRINTER(self)

    __repr__ = __str__

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


class HoldsJaxpr:
    """Base of classes that have the input and output types of their ``jaxpr``."""

    __slots__ = ()
    jaxpr: Jaxpr | ClosedJaxpr

    @property
    def in_avals(self) -> list[ShapedArray]:
        return self.jaxpr.in_avals

    @property
    def out_avals(self) -> list[ShapedArray]:
        return self.jaxpr.out_avals


class ClosedJaxpr(HoldsJaxpr):
    """A jaxpr with values for its ``constvars``."""

    __slots__ = ("__weakref__", "consts", "jaxpr")
    jaxpr: Jaxpr

    def __init__(self, jaxpr: Jaxpr, consts: Sequence[Any] = ()) -> None:
        self.jaxpr = jaxpr
        self.consts = list(consts)

    @property
    def eqns(self) -> list[JaxprEqn]:
        return self.jaxpr.eqns

    @property
    def literals(self) -> list[Any]:
        """Another name of ``consts``, which interpreters written for JAX use."""
        return self.consts

    @property
    def effects(self) -> frozenset[str]:
        """The names of the ops that have effects besides their results."""
        return self.jaxpr.effects

    def replace(self, **changes: Any) -> ClosedJaxpr:
        """A copy with ``jaxpr`` or ``consts`` changed; the same object if they are those that it has."""
        jaxpr, consts = changes.get("jaxpr", self.jaxpr), changes.get("consts", self.consts)
        return self if jaxpr is self.jaxpr and consts is self.consts else ClosedJaxpr(jaxpr, consts)

    def __str__(self) -> str:
        return PRINTER(self.jaxpr)

    __repr__ = __str__

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


def sub_jaxprs(op: Op) -> Iterator[Jaxpr]:
    """The jaxprs among an op's parameters."""
    if not op.holds_jaxprs:
        return
    for value in op.params.values():
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, Jaxpr):
                yield item


def all_eqns(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Every equation once, those of an inner jaxpr after the first equation that holds it.

    A jaxpr that several equations hold is visited once; the number of call paths to it may be exponential.
    """
    seen = {jaxpr}
    pending = [iter(jaxpr.eqns)]
    while pending:
        for eqn in pending[-1]:
            yield eqn
            if eqn.op.holds_jaxprs:
                inner = [j for j in dict.fromkeys(sub_jaxprs(eqn.op)) if j not in seen]
                seen.update(inner)
                pending += [iter(j.eqns) for j in reversed(inner)]
                break
        else:
            pending.pop()


@once_for_each
def has_effects(jaxpr: Jaxpr) -> bool:
    """Whether an equation has an effect besides its results."""
    return any(e.op.has_effects for e in jaxpr.eqns)


@once_for_each
def nesting(jaxpr: Jaxpr) -> int:
    """The nesting depth of jaxprs in ``jaxpr``; 0 if it holds none."""
    inner = (nesting(j) for e in jaxpr.eqns if e.op.holds_jaxprs for j in sub_jaxprs(e.op))
    return max(inner, default=-1) + 1


def _no_printer(jaxpr: Jaxpr) -> str:
    return f"<Jaxpr with {len(jaxpr.eqns)} eqns>"


#: set by ``ir.pretty``, which imports this module
PRINTER: Callable[[Jaxpr], str] = _no_printer
