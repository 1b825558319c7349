"""Calls of programs that are made for one type of arguments: what is given, against what they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.api.shardings import brought, common_place
from meshwright.core import pytree
from meshwright.core.avals import ShapedArray
from meshwright.core.float0 import without_float0
from meshwright.errors import ArgumentError, ArgumentTypeError, ShapeError
from meshwright.ir.tracing import typeof
from meshwright.runtime.array import Array
from meshwright.sharding import Sharding


@dataclass(frozen=True)
class Taken:
    """What a program takes: the structure of ``(args, kwargs)``, and name, type and sharding of each array.

    ``made`` says what became of the program (``compiled``), ``place`` is a sharding over the devices that it is for.
    """

    name: str
    made: str
    in_tree: Any
    arguments: Sequence[tuple[str, ShapedArray, Sharding | None]]
    place: Sharding

    def leaves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The arrays of a call.

        Raises:
          ArgumentError: arguments of another structure. ArgumentTypeError: something that is no array.
          ShapeError: an array of another type. MeshError: an array that was placed on other devices.
        """
        flat, treedef = pytree.flatten(without_float0((tuple(args), dict(kwargs))))
        if treedef != self.in_tree:
            raise ArgumentError(
                f"{self.name!r} was {self.made} for arguments {_call_text(self.in_tree)}, got {_call_text(treedef)}; "
                f"it has to be {self.made} again for other arguments"
            )
        for x, (name, want, sharding) in zip(flat, self.arguments):
            self._check(x, name, want, sharding)
        return flat

    def _check(self, x: Any, name: str, want: ShapedArray, sharding: Sharding | None) -> None:
        try:
            got = typeof(x)
        except ArgumentTypeError as error:
            raise ArgumentTypeError(f"{self.name!r}: argument {name}: {error}") from None
        if (got.shape, got.dtype) != (want.shape, want.dtype):
            raise ShapeError(
                f"{self.name!r} was {self.made} for argument {name} of type {want}, got {got}; it has to be "
                f"{self.made} again for the new type"
            )
        if type(x) is Array and x.committed and x.sharding is not sharding:
            placed = [(f"argument {name}", brought(x)), (f"the {self.made} program", self.place)]
            common_place(placed, self.name)


def _call_text(in_tree: Any) -> str:
    """The structure of a call's arguments, as ``(*, [*, *])`` and ``{'name': *}``."""
    args, kwargs = in_tree.children()
    return pytree.show(args) + (f" and {pytree.show(kwargs)}" if kwargs.num_leaves else "")
