"""Conversion of StableHLO modules to text, bytecode and HLO."""

from __future__ import annotations

import hashlib
from io import BytesIO
from typing import Any

from jaxlib import _jax
from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _stablehlo as stablehlo  # without the classes of all its ops

from meshwright.core.caches import Recent
from meshwright.errors import CompileError

#: digests of the texts that this process has written last, which it can parse without a child process
_OURS: Recent[bytes, bool] = Recent(256)


def _noted(text: str) -> str:
    _OURS.setdefault(_digest(text), True)
    return text


def is_ours(text: str) -> bool:
    """Whether ``text`` is among the last ones that this process has written."""
    return len(_OURS) > 0 and _OURS.get(_digest(text)) is not None


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=32).digest()


def module_text(module: ir.Module, debug_info: bool = False) -> str:
    """StableHLO text; with ``debug_info`` each op carries its name and source line."""
    return _noted(module.operation.get_asm(enable_debug_info=debug_info, large_elements_limit=None))


def module_bytecode(module: ir.Module) -> bytes:
    """MLIR bytecode of a module."""
    out = BytesIO()
    module.operation.write_bytecode(file=out)
    return out.getvalue()


def to_hlo(module: ir.Module, *, tuple_args: bool = False, tuple_result: bool = False) -> Any:
    """The ``XlaComputation`` of a module, with methods such as ``as_hlo_text()`` and ``program_shape()``.

    With ``tuple_args`` or ``tuple_result``, arguments or results are one tuple.

    Raises:
      CompileError: XLA cannot express it in HLO.
    """
    data = module_bytecode(module)
    try:
        return _jax.mlir.mlir_module_to_xla_computation(data, use_tuple_args=tuple_args, return_tuple=tuple_result)
    except RuntimeError as error:
        raise CompileError(f"XLA cannot write the program as HLO: {error}") from None


#: the numbers of devices in the first line of HLO text, which XLA's serialized form omits, and the MLIR attributes
DEVICE_COUNTS = {"replica_count": "mhlo.num_replicas", "num_partitions": "mhlo.num_partitions"}


def hlo_text(module: ir.Module) -> str:
    """The HLO text of a module, with all constants, so that it can be read again.

    The number of replicas is added to the first line. (That of partitions follows from shardings and groups.)
    """
    text, (name, attribute) = to_hlo(module).as_hlo_text(True), next(iter(DEVICE_COUNTS.items()))
    attributes = module.operation.attributes
    count = attributes[attribute].value if attribute in attributes else 1
    return _noted(text.replace("\n", f", {name}={count}\n", 1) if count > 1 else text)


def portable_artifact(module: ir.Module) -> bytes:
    """The module in StableHLO's portable form, for releases of the last twelve weeks and the next five years.

    Source: https://openxla.org/stablehlo/compatibility
    """
    twelve_weeks = stablehlo.StablehloCompatibilityRequirement.WEEK_12
    version = stablehlo.get_version_from_compatibility_requirement(twelve_weeks)
    return _jax.mlir.serialize_portable_artifact(module_bytecode(module), version)
