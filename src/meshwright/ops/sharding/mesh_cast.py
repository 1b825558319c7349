"""``mesh_cast``: the same value for a mesh with other axis types, at the borders of ``auto_axes``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.core.slots import Slot
from meshwright.ir.contract import ArrayLike
from meshwright.ir.op import BatchAxis, BatchedResults, Cotangents
from meshwright.ops.sharding.constraint import with_type
from meshwright.ops.sharding.propagation_marks import PropagationMark
from meshwright.sharding import AbstractMesh, AxisType
from meshwright.sharding.typed import type_over

#: casts an array to a mesh with other axis types
CAST_ARRAY: Slot[Callable[[AbstractMesh, Any], Any]] = Slot("the cast of arrays", "meshwright.api.placement")


@dataclass(frozen=True)
class MeshCast(PropagationMark):
    """The operand, with only the explicit axes of ``mesh`` kept in its type."""

    mesh: AbstractMesh
    name: ClassVar[str] = "mesh_cast"
    takes_keys: ClassVar[bool] = True
    in_python: ClassVar[bool] = True

    def perform(self, x: Any) -> Any:
        """The same array over the other mesh."""
        return CAST_ARRAY.value(self.mesh, x)

    def infer(self, x: ShapedArray) -> ShapedArray:
        if x.explicit is None:
            return x
        kept = set(self.mesh.of_type(AxisType.Explicit))
        entries = [tuple(a for a in x.explicit.spec.axes(d) if a in kept) for d in range(x.ndim)]
        return x.update(explicit=type_over(self.mesh, entries, x.explicit.unreduced & kept, x.explicit.reduced & kept))

    def typed(self, x: ShapedArray) -> ShapedArray:
        return self.infer(x)

    def transpose(self, ct: Any, x: Any) -> Cotangents:
        ct_aval = x.aval.cotangent()
        free = self.mesh.update_axis_types(dict.fromkeys(self.mesh.axis_names, AxisType.Auto))
        mesh = free if ct_aval.explicit is None else ct_aval.explicit.mesh
        return [with_type(MeshCast(mesh).bind(ct), ct_aval)]

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        return self.bind(*args), dims[0]
