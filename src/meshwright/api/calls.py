"""Calls of programs that are made for one type of arguments: what is given, against what they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.api.shardings import brought, common_place
from meshwright.core import pytree
from meshwright.core.avals import ShapedArray
from meshwright.core.float0 import without_float0
from meshwright.errors import ArgumentError, ArgumentTypeError, MeshError, MeshwrightError, ShapeError
from meshwright.ir.program import Program
from meshwright.ir.tracing import typeof
from meshwright.runtime.array import Array
from meshwright.sharding import Sharding


@dataclass(frozen=True)
class Taken:
    """What a program takes.

    ``made`` says what became of the program (``compiled``), ``shardings`` are those of its arguments (None: any),
    ``place`` is a sharding over the devices that it is for (None: arrays may come from anywhere).
    """

    program: Program
    made: str
    shardings: Sequence[Sharding | None]
    place: Sharding | None

    def leaves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The arrays of a call. An error names every argument that is wrong.

        Raises:
          ArgumentError: arguments of another structure. ArgumentTypeError: something that is no array.
          ShapeError: an array of another type. MeshError: an array that was placed on other devices.
        """
        flat = self._flat(args, kwargs)
        given = zip(flat, self.program.arguments, self.shardings)
        wrong = [e for x, a, s in given if (e := self._mistake(x, a.name, a.aval, s)) is not None]
        if len(wrong) == 1:
            raise wrong[0]
        if wrong:
            listed = "".join(f"\n  {error}" for error in wrong)
            raise type(wrong[0])(f"{self.program.name!r}: {len(wrong)} arguments are wrong:{listed}")
        return flat

    def _flat(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        name, in_tree = self.program.name, self.program.in_tree
        flat, treedef = pytree.flatten(without_float0((tuple(args), dict(kwargs))))
        if in_tree is None:
            if len(flat) != len(self.program.arguments):
                raise ArgumentError(f"{name!r} takes {len(self.program.arguments)} arrays, got {len(flat)}")
        elif treedef != in_tree:
            raise ArgumentError(
                f"{name!r} was {self.made} for arguments {_call_text(in_tree)}, got {_call_text(treedef)}; "
                f"it has to be {self.made} again for other arguments"
            )
        return flat

    def _mistake(self, x: Any, name: str, want: ShapedArray, sharding: Sharding | None) -> MeshwrightError | None:
        """What is wrong with an argument."""
        program = self.program.name
        try:
            got = typeof(x)
        except ArgumentTypeError as error:
            return ArgumentTypeError(f"{program!r}: argument {name}: {error}")
        if (got.shape, got.dtype) != (want.shape, want.dtype):
            return ShapeError(
                f"{program!r} was {self.made} for argument {name} of type {want}, got {got}; it has to be "
                f"{self.made} again for the new type"
            )
        if type(x) is Array and x.committed and self.place is not None and x.sharding is not sharding:
            try:
                common_place([(f"argument {name}", brought(x)), (f"the {self.made} program", self.place)], program)
            except MeshError as error:
                return error
        return None


def _call_text(in_tree: Any) -> str:
    """The structure of a call's arguments, as ``(*, [*, *])`` and ``{'name': *}``."""
    args, kwargs = in_tree.children()
    return pytree.show(args) + (f" and {pytree.show(kwargs)}" if kwargs.num_leaves else "")
