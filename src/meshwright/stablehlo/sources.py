"""Parses programs in all forms to MLIR modules.

The forms are StableHLO text, bytecode and portable artifacts, HLO text and serialized ``HloModuleProto``, and
serialized ``jax.export.Exported`` objects, which contain an artifact. They are distinguished by their first bytes. A
program is parsed in a child process (:mod:`meshwright.stablehlo.reader`), unless this process has written it.
Diagnostics of MLIR's and XLA's parsers become errors with file and line.
"""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from jaxlib import _hlo, _jax
from jaxlib.mlir import ir

from meshwright import ops
from meshwright.core.config import config
from meshwright.core.dtypes import wide_types
from meshwright.core.records import dataclass
from meshwright.errors import ImportProgramError, MeshwrightError
from meshwright.stablehlo.bytecode import check_names
from meshwright.stablehlo.context import new_context
from meshwright.stablehlo.hlo import is_ours, module_bytecode
from meshwright.stablehlo.hlo_async import completed
from meshwright.stablehlo.hlo_combined import separated
from meshwright.stablehlo.hlo_groups import with_listed_groups
from meshwright.stablehlo.hlo_header import PLACES, declare
from meshwright.stablehlo.hlo_older import as_written_now
from meshwright.stablehlo.hlo_shardings import bad_sharding
from meshwright.stablehlo.hlo_tuples import bad_index
from meshwright.stablehlo.hlo_types import of_one_type
from meshwright.stablehlo.lines import hlo_lines
from meshwright.stablehlo.parse import ModuleReader
from meshwright.stablehlo.parsed import ParsedProgram
from meshwright.stablehlo.reader import Crashed, Refused, read

# The modules of ops register their reading rules.
ops.register_all()
_RULES = (
    "read_structure", "read_manual", "read_custom_calls", "read_derived", "read_products", "read_random",
    "read_library_calls",
)  # fmt: skip
for _name in _RULES:
    importlib.import_module(f"meshwright.stablehlo.{_name}")

_BYTECODE = b"ML\xefR"
_KNOWN = "HLO text, serialized HloModuleProto, StableHLO text, bytecode or portable artifact"
_MLIR_POSITION = re.compile(r'loc\("([^"]*)":(\d+):(\d+)')
_MLIR_NAME = re.compile(r'loc\("([^"]*)"')
#: remedies for programs that cannot be parsed, by form
_REMEDIES = {
    "stablehlo": "correct the text there, or print the module again: all of it, ops of known dialects only",
    "hlo": "correct the text there, or print the module again, all of it",
    "bytecode": "write the module again, all of it, for a version of StableHLO that this one reads (an older target "
                "version), or as text",
    "proto": "give one of these forms (of an export with derivatives, exported.mlir_module_serialized); an "
             "HloModuleProto that is part of another message, as HloProto, has to be taken out of it",
}  # fmt: skip
#: the number of characters of a line shown before and after an error
_NEAR = 40
#: the number of lines of a text in which the one is searched for that ends XLA's reader
_MOST_SEARCHED = 10_000
_HLO_POSITION = re.compile(r"was parsing (\d+):(\d+): error: (.*)")


@dataclass(frozen=True)
class _Source:
    """A parsed module, the name of its file for errors, and its text if it was read from text: of StableHLO or HLO."""

    module: ir.Module
    file: str
    text: str = ""
    hlo: str = ""
    elided: int = 0


def parse_program(
    data: str | bytes, file: str = "<program>", per_device: bool = False,
    host_functions: Sequence[Callable[..., Any]] = (), entry: str = "",
) -> ParsedProgram:  # fmt: skip
    """Read a program in any of the forms.

    Args:
      data: the program.
      file: its name in errors and locations.
      per_device: whether it is already partitioned, and is the program of one device.
      host_functions: the Python functions that it calls, by number. They take NumPy arrays and return a tuple of them.
      entry: the function to read, by default ``main``, or the only public one.

    Raises:
      ImportProgramError: it cannot be read; says where.
    """
    source = _module(data, file)
    program = read_module(source.module, source.file, source.text, per_device, host_functions, source.hlo, entry)
    program.elided += source.elided
    return program


def stablehlo_of(data: str | bytes, file: str = "<program>") -> bytes:
    """The StableHLO module of a program in any of the forms, as bytecode.

    Raises:
      ImportProgramError: it cannot be parsed; says where.
    """
    module = _module(data, file).module
    for name in PLACES.values():
        if name in module.operation.attributes:
            del module.operation.attributes[name]
    return module_bytecode(module)


def read_module(
    module: ir.Module, file: str, text: str = "", per_device: bool = False,
    host_functions: Sequence[Callable[..., Any]] = (), hlo: str = "", entry: str = "",
) -> ParsedProgram:  # fmt: skip
    """:func:`parse_program` for a parsed module. With its ``text``, or the ``hlo`` that it was made from, errors have
    line numbers.

    Raises:
      ImportProgramError: it cannot be read; says where.
    """
    try:
        with wide_types():
            return ModuleReader(module, file, text, per_device, host_functions, hlo, entry).read()
    except MeshwrightError:
        raise
    except Exception as error:  # strings that are not UTF-8, function attributes of another kind, ...
        what = " ".join(str(error).split())
        raise ImportProgramError(f"{file}: cannot be read as it stands: {type(error).__name__}: {what}") from error


def _module(data: str | bytes, file: str) -> _Source:
    if isinstance(data, bytes):
        if data.startswith(_BYTECODE):
            return _Source(_read("bytecode", data, f"{file}: the bytecode cannot be read"), file)
        text = _as_text(data)
        if text is None and (module := _exported(data)) is not None:
            return _Source(_read("bytecode", module, f"{file}: the bytecode of the export cannot be read"), file)
        if text is None:
            return _Source(_of_proto(data, f"{file}: not a program in a known form ({_KNOWN})"), file)
        data = text
    if not data.strip():
        raise ImportProgramError(f"{file}: the program is empty; expected HLO or StableHLO")
    form = "hlo" if _first_word(data) == "HloModule" else "stablehlo"
    if is_ours(data):
        module = _own(form, data)
    else:
        line, wrong = bad_index(data) if form == "hlo" else (0, "")
        if line:
            raise ImportProgramError(f"{file}:{line}: {wrong}\n{_REMEDIES['hlo']}")
        module = _read(form, _as_bytes(data if form == "stablehlo" else _for_xla(data), file), file)
    if form == "stablehlo":
        return _Source(module, file, data)
    declare(module, data)
    return _Source(module, file, hlo=data, elided=data.count("constant({...})"))  # XLA silently reads these as zeros


def _exported(data: bytes) -> bytes | None:
    """The bytecode in a serialized ``jax.export.Exported``; None if there is none, or several (with derivatives).

    It is a vector in a FlatBuffer, with its length in the preceding 32 bits.
    """
    at = data.find(_BYTECODE, 4)
    if at < 0 or data.find(_BYTECODE, at + 1) >= 0:
        return None
    module = data[at : at + int.from_bytes(data[at - 4 : at], "little")]
    return module if len(module) > len(_BYTECODE) else None


def _own(form: str, text: str) -> ir.Module:
    """The module of a text that this process has written."""
    if form == "hlo":
        proto = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
        return ir.Module.parse(_jax.mlir.xla_computation_to_mlir_module(_hlo.XlaComputation(proto)), new_context())
    return ir.Module.parse(text, new_context())


def _of_proto(data: bytes, what: str) -> ir.Module:
    """The module of a serialized ``HloModuleProto``."""
    text = _asked("unsaid", data, what).decode()
    if not text:
        return _read("proto", data, what)
    module = _read("hlo", _for_xla(text).encode(), what)
    declare(module, text)
    return module


def _for_xla(text: str) -> str:
    """HLO text rewritten without the parts that XLA cannot convert to StableHLO."""
    return of_one_type(separated(completed(with_listed_groups(as_written_now(text)))))


def _read(form: str, data: bytes, what: str) -> ir.Module:
    """The module of a foreign program; ``what`` is the beginning of error messages."""
    module = _asked(form, data, what)
    if not _has_plain_names(module):
        _asked("names", module, what)
    return ir.Module.parse(module, new_context())


def _asked(form: str, data: bytes, what: str) -> bytes:
    """The child's answer for a foreign program, with errors of ours."""
    try:
        return read(form, data)
    except Refused as refused:
        text = data.decode() if form in ("stablehlo", "hlo") else ""
        complaints = [_complaint(p, m, what, text) for p, m in refused.complaints]
        remedy = _REMEDIES.get(form, _REMEDIES["proto"])
        raise ImportProgramError("\n".join([*complaints, remedy])) from None
    except Crashed as error:
        line = _crashing_line(data.decode()) if form == "hlo" else 0
        raise ImportProgramError(f"{what}:{line}: {error}" if line else f"{what}: {error}") from None
    except ImportProgramError as error:
        raise ImportProgramError(f"{what}: {error}") from None


def _crashing_line(text: str) -> int:
    """The line of HLO text at which XLA's reader ends its process; 0 if it does so after the last instruction.

    XLA does not say, so it is searched for: a part of the text that ends before that line is only refused.
    """
    lines = text.split("\n")
    low, high, end = 0, len(lines), time.monotonic() + config.load_seconds
    if high > _MOST_SEARCHED:
        return 0
    while high - low > 1:  # the first ``high`` lines end it, the first ``low`` do not
        if time.monotonic() > end:
            return 0
        middle = (low + high) // 2
        low, high = (low, middle) if _crashes("\n".join(lines[:middle])) else (middle, high)
    return high if any(map(str.strip, lines[high:])) else 0


def _crashes(text: str) -> bool:
    try:
        read("hlo", text.encode())
    except Crashed:
        return True
    except (Refused, ImportProgramError):
        return False
    return False


def _has_plain_names(bytecode: bytes) -> bool:
    try:
        check_names(bytecode)
    except UnicodeDecodeError:
        return False
    return True


def _complaint(place: str, message: str, what: str, text: str) -> str:
    """The text for an error of MLIR, which has a location, or of XLA."""
    match = _MLIR_POSITION.match(place)
    if match is not None and match[1] not in ("-", ""):
        return f"{what}: {message} (from {match[1]}:{match[2]})"
    if match is not None:
        line, column = match[2], match[3]
    elif match := _HLO_POSITION.search(message):
        line, column, message = match[1], match[2], match[3].removesuffix(":")
    else:
        number, message = _hlo_line(place, message, text)
        return f"{what}:{number}: {message.strip()}" if number else f"{what}: {message.strip()}"
    return f"{what}:{line}:{column}: {message}{_near(text, int(line), int(column))}"


def _hlo_line(place: str, message: str, text: str) -> tuple[int, str]:
    """The line of HLO text that XLA cannot convert, and why; line 0 if it is not found."""
    name = _MLIR_NAME.match(place)
    if name is not None:
        return hlo_lines(text).get(name[1], 0), message
    line, wrong = bad_sharding(text)
    return line, wrong or message


def _near(text: str, line: int, column: int) -> str:
    """The text near a position; lines and columns count from 1."""
    lines = text.split("\n")
    found = lines[line - 1][max(column - 1 - _NEAR, 0) : column - 1 + _NEAR].strip() if 0 < line <= len(lines) else ""
    return f", near {found!r}" if found else ""


def _as_bytes(text: str, file: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ImportProgramError(f"{file}: the text cannot be written as UTF-8: {error}") from None


def _as_text(data: bytes) -> str | None:
    """Bytes as text; None if they are not text."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _first_word(text: str) -> str:
    """The first word outside of comments."""
    for line in text.splitlines():
        line = line.strip()
        if line and not line.startswith("//"):
            return re.split(r"\W", line, maxsplit=1)[0]
    return ""
