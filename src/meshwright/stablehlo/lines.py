"""The line of an operation in the text that it was read from."""

from __future__ import annotations

import re

from jaxlib.mlir import ir

#: an instruction of HLO text, which the module has as the name of a location, and the name that is used instead if the
#: instruction has metadata
_INSTRUCTION = re.compile(r"\s*(?:ROOT\s+)?%?([\w.-]+) = ")
_OP_NAME = re.compile(r'\bop_name="([^"]*)"')


def hlo_lines(text: str) -> dict[str, int]:
    """The lines of HLO text with the instruction of a name, if there is one such line."""
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        instruction = _INSTRUCTION.match(line)
        if instruction is not None:
            named = _OP_NAME.search(line, instruction.end())
            name = instruction[1] if named is None else named[1]
            lines[name] = 0 if name in lines else number
    return lines


def line_of(text: str, module: ir.Module, operation: ir.Operation) -> int:
    """The line of ``operation`` in ``text``, from which ``module`` was parsed; 0 if it is not found.

    If the text has locations, they are those of the program that it was made from. So the operations of the same name
    are counted in the module and in its text.
    """
    name, before = operation.name, 0

    def visit(other: ir.Operation) -> ir.WalkResult:
        nonlocal before
        if other == operation:
            return ir.WalkResult.INTERRUPT
        before += other.name == name
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    spelled = re.compile(rf'(?:(?:^|=|applies)\s*|")({re.escape(name)})\b')
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#loc"):
            continue
        here = len(spelled.findall(line))
        if here > before:
            return number
        before -= here
    return 0
