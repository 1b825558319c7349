"""MLIR contexts with all dialects of programs. It imports only ``jaxlib``, as child processes run this file too."""

from __future__ import annotations

from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _chlo, _jax_mlir_ext, _mlirHlo, _sdy, _stablehlo


def new_context() -> ir.Context:
    """A new context. A context keeps all constants that it has ever seen, so each program is read in its own."""
    context = ir.Context()
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    for dialect in (_stablehlo, _chlo, _sdy):
        dialect.register_dialect(context)
    _mlirHlo.register_mhlo_dialect(context)
    # Compilers put attributes of their own on programs; operations of other dialects are refused where they are read.
    context.allow_unregistered_dialects = True
    context.enable_multithreading(False)
    return context
