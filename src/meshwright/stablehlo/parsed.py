"""The result of reading a module."""

from __future__ import annotations

from dataclasses import field

from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.program import Argument
from meshwright.ops.imported.sharding_annotation import Annotation
from meshwright.stablehlo.read_shardings import MeshDeclaration


@dataclass
class ParsedProgram:
    """A module as read: the jaxpr of its entry function, and the contents of its attributes."""

    name: str
    jaxpr: ClosedJaxpr
    arguments: tuple[Argument, ...]
    result_shardings: tuple[Annotation | None, ...]
    num_partitions: int | None
    meshes: dict[str, MeshDeclaration]
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    #: the number of constants whose values the text omits, and which were read as zeros
    elided: int = 0
    #: whether it was already partitioned; dimension 0 of its arguments and results is then the device
    is_stacked: bool = False
