"""``jax.lib.xla_extension``, also ``xla_client._xla``: XLA's classes, and HLO text as a module and as a graph.

Now: ``jit(f).lower(*args).as_text("hlo")``, and ``compiler_ir("hlo").as_hlo_dot_graph()``.
"""

from __future__ import annotations

from typing import Any

from meshwright.runtime.array import Array
from meshwright.runtime.pjrt.backend import XLA_CLASSES, Buffer, LoadedExecutable, graph_of, module_of

#: now: ``meshwright.Array``
DeviceArray = ArrayImpl = Array
CompileOptions = XLA_CLASSES["CompileOptions"]
DeviceAssignment = XLA_CLASSES["DeviceAssignment"]
HloSharding = XLA_CLASSES["HloSharding"]
OpSharding = XLA_CLASSES["OpSharding"]
PrimitiveType = XLA_CLASSES["PrimitiveType"]
ProgramShape = XLA_CLASSES["ProgramShape"]
Shape = XLA_CLASSES["Shape"]
XlaComputation = XLA_CLASSES["XlaComputation"]

__all__ = [
    "ArrayImpl", "Buffer", "CompileOptions", "DeviceArray", "DeviceAssignment", "HloSharding", "LoadedExecutable",
    "OpSharding", "PrimitiveType", "ProgramShape", "Shape", "XlaComputation", "hlo_module_from_text",
    "hlo_module_to_dot_graph",
]  # fmt: skip


def hlo_module_from_text(text: str) -> Any:
    """Parse HLO text to a module with ``name``, ``to_string()`` and ``as_serialized_hlo_module_proto()``.

    Raises:
      ImportProgramError: the text is not HLO.

    Example:
      >>> text = mw.xla_computation(lambda x: x + 1)(2.0).as_hlo_text()
      >>> mw.lib.xla_extension.hlo_module_from_text(text).name
      'xla_computation_lambda'
    """
    return module_of(text)


def hlo_module_to_dot_graph(module: Any) -> str:
    """The graph of a module in the DOT language."""
    return graph_of(module)
