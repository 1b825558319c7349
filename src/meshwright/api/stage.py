"""The interface shared by all stages of a program: trees, and properties of arguments and results."""

from __future__ import annotations

from typing import Any

from meshwright.api.shape_dtype import ShapeDtypeStruct
from meshwright.core import pytree
from meshwright.core.avals import ShapedArray, Typed
from meshwright.core.records import dataclass
from meshwright.core.words import counted
from meshwright.ir.program import Program


@dataclass(frozen=True)
class ArgInfo(Typed):
    """The type of an argument, and whether it is donated."""

    aval: ShapedArray
    donated: bool


class Stage:
    """A stage of a program."""

    program: Program

    def _types(self) -> str:
        """``'f', (f32[8,4]) -> (f32[]), 8 devices``: the name, and the types of arguments and results."""
        jaxpr, mesh = self.program.jaxpr, self.program.mesh
        ins, outs = (", ".join(map(str, avals)) for avals in (jaxpr.in_avals, jaxpr.out_avals))
        where = "" if mesh is None else f", {counted(mesh.size, 'device')}"
        return f"{self.program.name!r}, ({ins}) -> ({outs}){where}"

    @property
    def donated(self) -> list[int]:
        """The numbers of the arguments whose memory may be reused."""
        return self.program.donated

    @property
    def in_avals(self) -> list[ShapedArray]:
        return self.program.in_avals

    @property
    def out_avals(self) -> list[ShapedArray]:
        return self.program.out_avals

    @property
    def in_tree(self) -> Any:
        """The structure of ``(args, kwargs)``; positional arrays for a program that takes arrays in any tree."""
        if self.program.in_tree is None:
            return pytree.structure(((0,) * len(self.program.arguments), {}))
        return self.program.in_tree

    @property
    def out_tree(self) -> Any:
        """The structure of the output."""
        return self.program.out_tree

    @property
    def args_info(self) -> Any:
        """``(args, kwargs)`` with an :class:`ArgInfo` for each array."""
        return pytree.unflatten(self.in_tree, [ArgInfo(a.aval, a.donated) for a in self.program.all_arguments])

    @property
    def out_info(self) -> Any:
        """The output with a ``ShapeDtypeStruct`` for each array."""
        outs = zip(self.program.jaxpr.out_avals, self.program.out_shardings)
        return pytree.unflatten(self.out_tree, [ShapeDtypeStruct.of(a, s) for a, s in outs])

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        """The numbers of the donated arrays."""
        return tuple(i for i, a in enumerate(self.program.all_arguments) if a.donated)
