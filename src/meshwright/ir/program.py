"""``Program``: the common form of everything that can be partitioned, compiled and run, traced or imported."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from typing import Any

from meshwright.core import pytree
from meshwright.core.avals import ShapedArray
from meshwright.core.dtypes import precision_of
from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import ClosedJaxpr, HoldsJaxpr
from meshwright.ir.names import Names
from meshwright.sharding import AbstractMesh, AnyMesh, Mesh, NamedSharding


@dataclass(frozen=True)
class Argument:
    """One array argument of a program: its user-visible name and its type.

    ``sharding`` is as written by the user or the imported program (None: unspecified). If ``donated``, its buffer may
    be reused; ``alias`` is the result that must reuse it, if that is specified.
    """

    name: str
    aval: ShapedArray
    sharding: Any = None
    donated: bool = False
    alias: int | None = None


@dataclass(frozen=True)
class Program(HoldsJaxpr):
    """A function of arrays with its shardings, donation and options.

    ``in_tree`` is the structure of ``(args, kwargs)``; if it is None, the arrays may come in any tree. ``place`` is the
    mesh or device that the program is for, if known. A *wide* program keeps 64-bit types without ``enable_x64``.
    """

    name: str
    jaxpr: ClosedJaxpr
    arguments: tuple[Argument, ...]
    out_shardings: tuple[Any, ...]
    in_tree: Any = None
    out_tree: Any = None
    place: Any = None
    is_wide: bool = False
    #: XLA's flags by name
    compiler_options: tuple[tuple[str, Any], ...] = ()
    #: whether unused arguments remain parameters
    keep_unused: bool = True
    #: if not, all arguments of the function; ``arguments`` are those at the positions ``kept``
    given: tuple[Argument, ...] | None = None
    kept: tuple[int, ...] | None = None
    #: how a call gives it the values of mutable references, and sets these
    references: Any = None

    @property
    def mesh(self) -> AnyMesh | None:
        """The mesh that the program is for, if any."""
        return self.place if isinstance(self.place, (Mesh, AbstractMesh)) else None

    @property
    def all_arguments(self) -> tuple[Argument, ...]:
        """All arguments of the function, unused ones too, in the order of ``in_tree``."""
        return self.arguments if self.given is None else self.given

    def picked(self, values: Sequence[Any]) -> Sequence[Any]:
        """The values for ``arguments``, given ``values`` for all arguments of the function."""
        return values if self.kept is None else [values[i] for i in self.kept]

    def spread(self, values: Sequence[Any], unused: Any = None) -> list[Any]:
        """The inverse of :meth:`picked`: ``values`` at their positions among all arguments, ``unused`` elsewhere."""
        if self.kept is None:
            return list(values)
        by_number = dict(zip(self.kept, values))
        return [by_number.get(i, unused) for i in range(len(self.all_arguments))]

    @property
    def names(self) -> list[str]:
        """The user's names of the arguments."""
        return [a.name for a in self.arguments]

    @cached_property
    def called(self) -> Names:
        """The user's names of arguments and results (``result['loss']``); "" for results identified by their number."""
        paths: Sequence[str] = ()
        if self.out_tree is not None:
            paths = pytree.paths(pytree.outline(self.out_tree))
        outs = [f"result{path}" if path not in ("", f"[{i}]") else "" for i, path in enumerate(paths)]
        return Names(self.names, outs)

    @property
    def donated(self) -> list[int]:
        """The positions of the donated arguments."""
        return [i for i, a in enumerate(self.arguments) if a.donated]

    @cached_property
    def aliases(self) -> dict[int, int]:
        """The result that reuses the buffer of each donated argument, by position.

        It is the specified result, or else the first free one of the same shape and dtype. Donated arguments without
        such a result are left out.
        """
        ins, outs = self.in_avals, self.out_avals
        aliases: dict[int, int] = {}
        for i in self.donated:
            alias = self.arguments[i].alias
            if alias is not None and _same_type(outs[alias], ins[i]):
                aliases[i] = alias
        free = [o for o in range(len(outs)) if o not in aliases.values()]
        for i in (i for i in self.donated if i not in aliases):
            target = next((o for o in free if _same_type(outs[o], ins[i])), None)
            if target is not None:
                free.remove(target)
                aliases[i] = target
        return aliases

    def in_place(self) -> Program:
        """The program whose results that reuse a donated argument's memory have that argument's sharding.

        Results with a sharding of their own keep it. Where donated arguments of one type lie in different ways, it is
        not known which of them a result replaces, and its sharding stays open.
        """
        places: dict[Any, set[Any]] = {}
        for i in self.donated:
            places.setdefault((self.in_avals[i].shape, self.in_avals[i].dtype), set()).add(self.arguments[i].sharding)
        outs = list(self.out_shardings)
        for i, o in self.aliases.items():
            (place, *others), aval = places[(self.in_avals[i].shape, self.in_avals[i].dtype)], self.out_avals[o]
            if outs[o] is None and not others and isinstance(place, NamedSharding) and aval.explicit is None:
                outs[o] = place
        return self if outs == list(self.out_shardings) else replace(self, out_shardings=tuple(outs))

    def precision(self) -> AbstractContextManager[Any]:
        """The context (64-bit types or not) in which the program is traced, compiled and run."""
        return precision_of(self.is_wide)

    def open_shardings(self) -> list[str]:
        """The inputs and outputs without a specified sharding, as ``"input 0"``, ``"output 1"``, …"""
        sides: Sequence[tuple[str, Sequence[Any]]] = (
            ("input", [a.sharding for a in self.arguments]),
            ("output", self.out_shardings),
        )
        return [f"{side} {i}" for side, shardings in sides for i, s in enumerate(shardings) if s is None]


def _same_type(a: ShapedArray, b: ShapedArray) -> bool:
    return (a.shape, a.dtype) == (b.shape, b.dtype)
