"""Parser for scheduled HLO text, as printed by XLA's compilers.

HLO text is the only form of a compiled program that all of XLA's backends provide. The parser reads names, opcodes,
types, operands, called computations, source lines, and the JSON that backends attach (``backend_config``).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import field
from functools import cached_property
from typing import Any

from meshwright.core.records import dataclass
from meshwright.core.source import UNKNOWN, SourceLocation
from meshwright.errors import ImportProgramError

#: bits of an element
_BITS = {"pred": 8, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "f16": 16, "bf16": 16, "s32": 32,
         "u32": 32, "f32": 32, "s64": 64, "u64": 64, "f64": 64, "c64": 64, "c128": 128}  # fmt: skip
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\](?:\{[\d,]*(?::[^}]*?S\((\d+)\))?)?")
_NAME = re.compile(r"%([\w.\-]+)")
_HEAD = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r"\s*([\w\-]+)\(")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|(?:true|false)_computation|(?:branch|called)_computations)"
    r"=(\{[^}]*\}|%[\w.\-]+)"
)
_OP_NAME = re.compile(r'\bop_name="([^"]*)"')
_FRAME = re.compile(r"\bstack_frame_id=(\d+)")
_FILE = re.compile(r'\bsource_file="([^"]*)"(?: source_line=(\d+))?')
_CONFIG = re.compile(r"\bbackend_config=(?=\{)")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_TABLE = re.compile(r"^(\d+) (?:\"(.*)\"|\{(.*)\})$")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"?(\d+)')


@dataclass(frozen=True)
class ArrayType:
    """An array in an instruction's type; ``space`` is its memory space, 0 for the device's main memory."""

    dtype: str
    shape: tuple[int, ...]
    space: int = 0

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return -(-self.size * _BITS.get(self.dtype, 8 if self.dtype.startswith("f8") else 32) // 8)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Instruction:
    """One instruction; ``rest`` is the text after its operands."""

    name: str
    opcode: str
    type_text: str
    operands: tuple[str, ...]
    rest: str
    is_root: bool = False
    #: the text in the brackets of an instruction without operands: the value of a constant
    inside: str = ""

    @property
    def value(self) -> int | None:
        """The value of a scalar integer constant; None for other instructions."""
        is_integer = self.opcode == "constant" and self.inside.lstrip("-").isdecimal()
        return int(self.inside) if is_integer else None

    @cached_property
    def types(self) -> tuple[ArrayType, ...]:
        """The arrays of the result type."""
        arrays = _ARRAY.findall(self.type_text)
        return tuple(ArrayType(t, tuple(map(int, d.split(","))) if d else (), int(s or 0)) for t, d, s in arrays)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The backend's configuration; empty if it is not JSON (for custom calls it may be MLIR attributes)."""
        match = _CONFIG.search(self.rest)
        try:
            return json.JSONDecoder(strict=False).raw_decode(self.rest, match.end())[0] if match else {}
        except json.JSONDecodeError:
            return {}

    @cached_property
    def called(self) -> tuple[str, ...]:
        """The names of the computations that it calls."""
        return tuple(name for text in _CALLED.findall(self.rest) for name in _NAME.findall(text))

    @property
    def op_name(self) -> str:
        match = _OP_NAME.search(self.rest)
        return match[1] if match else ""

    @property
    def trips(self) -> int | None:
        """The trip count of a loop, if XLA knows it."""
        match = _TRIPS.search(self.rest)
        return int(match[1]) if match else None

    def attribute(self, name: str) -> str:
        """The text of an attribute up to the next; empty if there is none."""
        start = self.rest.find(f" {name}=")
        if start < 0:
            return ""
        start += len(name) + 2
        return self.rest[start : _end(self.rest, start)]


@dataclass
class HloProgram:
    """The computations of a module, each a list of instructions in execution order."""

    computations: dict[str, list[Instruction]] = field(default_factory=dict)
    entry: str = ""
    #: by the number of the frame: file, line and column
    frames: dict[int, tuple[str, int, int]] = field(default_factory=dict)

    def source(self, instruction: Instruction) -> SourceLocation:
        """The line of the user's program that an instruction comes from."""
        frame = _FRAME.search(instruction.rest)
        place = self.frames.get(int(frame[1])) if frame else None
        if place is None:
            written = _FILE.search(instruction.rest)
            place = (written[1], int(written[2] or 0), 0) if written else None
        return UNKNOWN if place is None else SourceLocation.at(place[0], place[1], "")

    def root(self, computation: str) -> Instruction:
        return next(i for i in reversed(self.computations[computation]) if i.is_root)


def parse_hlo(text: str) -> HloProgram:
    """Parse the text of a compiled module.

    Raises:
      ImportProgramError: ``text`` is not HLO text.
    """
    program = HloProgram()
    tables: dict[str, dict[int, str]] = {}
    table: dict[int, str] = {}
    current: list[Instruction] | None = None
    for line in text.splitlines():
        if current is not None and line.startswith("  "):
            current.append(_instruction(line))
        elif (head := _COMPUTATION.match(line)) is not None:
            current = program.computations[head[2]] = []
            program.entry = head[2] if head[1] else program.entry
        elif (row := _TABLE.match(line)) is not None:
            table[int(row[1])] = row[2] if row[2] is not None else row[3]
        elif line and line.isalnum():
            table = tables[line] = {}
    if not program.entry:
        raise ImportProgramError("the text of the compiled program has no ENTRY computation; expected HLO text")
    program.frames = dict(_frames(tables))
    return program


def _frames(tables: dict[str, dict[int, str]]) -> Iterator[tuple[int, tuple[str, int, int]]]:
    def numbers(text: str) -> dict[str, int]:
        return {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", text)}

    files = tables.get("FileNames", {})
    places = {k: numbers(v) for k, v in tables.get("FileLocations", {}).items()}
    for frame, text in tables.get("StackFrames", {}).items():
        place = places.get(numbers(text).get("file_location_id", 0), {})
        yield frame, (files.get(place.get("file_name_id", 0), ""), place.get("line", 0), place.get("column", 0))


def _instruction(line: str) -> Instruction:
    head = _HEAD.match(line)
    if head is None:
        raise ImportProgramError(f"a line of the compiled program that is no instruction: {line[:120]}")
    start = head.end()
    after = _closing(line, start) + 1 if line[start] == "(" else line.index(" ", start)
    opcode = _OPCODE.match(line, after)
    if opcode is None:
        raise ImportProgramError(f"an instruction of the compiled program without an opcode: {line[:120]}")
    end = _closing(line, opcode.end() - 1)
    operands = tuple(_NAME.findall(line, opcode.end(), end))
    inside = "" if operands else line[opcode.end() : end]
    return Instruction(head[2], opcode[1], line[start:after], operands, line[end + 1 :], head[1] is not None, inside)


def _closing(text: str, start: int) -> int:
    """The position of the bracket that closes the one at ``start``."""
    depth = 0
    for match in re.compile(r"[()]").finditer(text, start):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    raise ImportProgramError(f"a bracket of the compiled program is not closed: {text[:120]}")


def _end(text: str, start: int) -> int:
    """Where an attribute's value ends: at the next comma outside of brackets."""
    depth = 0
    for match in re.compile(r"[()\[\]{}]|, ").finditer(text, start):
        if match[0] == ", ":
            if depth == 0:
                return match.start()
        else:
            depth += 1 if match[0] in "([{" else -1
    return len(text)
