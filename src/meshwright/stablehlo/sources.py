"""Programs in whatever form they come, as MLIR modules: StableHLO text, bytecode and portable artifacts, HLO text and
serialized ``HloModuleProto``.

Each form is told by its first bytes. Diagnostics of MLIR's and XLA's parsers become errors with file and line.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from dataclasses import dataclass
from typing import Any

from jaxlib import _hlo, _jax
from jaxlib.mlir import ir

from meshwright import ops
from meshwright.core.dtypes import wide_types
from meshwright.errors import ImportProgramError
from meshwright.stablehlo import binary
from meshwright.stablehlo.bytecode import check_names
from meshwright.stablehlo.context import new_context
from meshwright.stablehlo.parse import ModuleReader, ParsedProgram

# Every op's file declares its reading rules.
for _found in pkgutil.iter_modules(ops.__path__):
    importlib.import_module(f"{ops.__name__}.{_found.name}")
for _name in ("read_structure", "read_manual", "read_custom_calls", "read_derived", "read_products", "read_random"):
    importlib.import_module(f"meshwright.stablehlo.{_name}")

_BYTECODE = b"ML\xefR"
_MLIR_POSITION = re.compile(r'loc\("([^"]*)":(\d+):(\d+)')
_HLO_POSITION = re.compile(r"was parsing (\d+):(\d+): error: (.*)")


@dataclass(frozen=True)
class _Source:
    """A parsed module, the name that errors give its file, and its own text if it was read from text."""

    module: ir.Module
    file: str
    text: str = ""
    elided: int = 0


def parse_program(data: str | bytes, file: str = "<program>") -> ParsedProgram:
    """A program in any of the forms; ``file`` is its name in errors and locations.

    Raises:
      ImportProgramError: it cannot be read; says where.
    """
    source = _module(data, file)
    try:
        with wide_types():
            program = ModuleReader(source.module, source.file, source.text).read()
    except (UnicodeError, RuntimeError) as error:  # strings that are no text
        raise ImportProgramError(f"{file}: the program is damaged: {error}") from None
    program.elided += source.elided
    return program


def _module(data: str | bytes, file: str) -> _Source:
    if isinstance(data, bytes):
        if data.startswith(_BYTECODE):
            return _Source(_from_bytecode(data, file), file)
        text = _as_text(data)
        if text is None:
            return _Source(_parse_mlir(binary.from_proto(data, file), file), file)
        data = text
    if not data.strip():
        raise ImportProgramError(f"{file}: the program is empty; expected HLO or StableHLO")
    if _first_word(data) == "HloModule":
        return _from_hlo_text(data, file)
    return _Source(_parse_mlir(data, file), file, data)


def _as_text(data: bytes) -> str | None:
    """Bytes as text; None if they are no text."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _first_word(text: str) -> str:
    """The first word that is in no comment."""
    for line in text.splitlines():
        line = line.strip()
        if line and not line.startswith("//"):
            return re.split(r"\W", line, maxsplit=1)[0]
    return ""


# --- MLIR ---------------------------------------------------------------------------------------------------
def _parse_mlir(data: str | bytes, file: str) -> ir.Module:
    try:
        return ir.Module.parse(data, new_context())
    except ir.MLIRError as error:
        raise ImportProgramError("\n".join(_diagnostic(d, file) for d in error.error_diagnostics[:3])) from None


def _diagnostic(diagnostic: Any, file: str) -> str:
    where = _MLIR_POSITION.match(str(diagnostic.location))
    if where is None:
        return f"{file}: {diagnostic.message}"
    name, line, column = where.groups()
    if name in ("-", ""):
        return f"{file}:{line}:{column}: {diagnostic.message}"
    return f"{file}: {diagnostic.message} (from {name}:{line})"


def _from_bytecode(data: bytes, file: str) -> ir.Module:
    """A module from bytecode, portable artifacts in the StableHLO of this release."""
    data = binary.from_bytecode(data, file)
    try:
        check_names(data)
    except ValueError as error:
        raise ImportProgramError(f"{file}: the bytecode cannot be read: {error}") from None
    return _parse_mlir(data, file)


# --- HLO ----------------------------------------------------------------------------------------------------
def _from_hlo_text(text: str, file: str) -> _Source:
    try:
        parsed = _hlo.hlo_module_from_text(text)
    except Exception as error:
        _reraise_unless_xla(error)
        found = _HLO_POSITION.search(str(error))
        where = f"{file}:{found[1]}:{found[2]}: {found[3]}" if found else f"{file}: {error}"
        raise ImportProgramError(where) from None
    computation = _hlo.XlaComputation(parsed.as_serialized_hlo_module_proto())
    module = _parse_mlir(_jax.mlir.xla_computation_to_mlir_module(computation), file)
    return _Source(module, file, elided=text.count("constant({...})"))  # which XLA reads as zeros, silently


def _reraise_unless_xla(error: Exception) -> None:
    known = type(error).__name__ in ("XlaRuntimeError", "JaxRuntimeError", "MLIRError")
    if not known and not isinstance(error, ValueError):
        raise error
