"""What is read of a module: its entry function and what its attributes say."""

from __future__ import annotations

from dataclasses import field

from meshwright.core.records import dataclass
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.program import Argument
from meshwright.ops.imported.sharding_annotation import Annotation
from meshwright.stablehlo.read_shardings import MeshDeclaration


@dataclass
class ParsedProgram:
    """A module as read: its entry function and what its attributes say."""

    name: str
    jaxpr: ClosedJaxpr
    arguments: tuple[Argument, ...]
    result_shardings: tuple[Annotation | None, ...]
    num_partitions: int | None
    meshes: dict[str, MeshDeclaration]
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    #: how many constants have no values in the text, and were read as zeros
    elided: int = 0
    #: whether it was partitioned already: dimension 0 of what it takes and gives is the device
    is_stacked: bool = False
