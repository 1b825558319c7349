"""Finds the index in HLO text that its tuple does not have: XLA's reader uses it unchecked, and may crash or hang."""

from __future__ import annotations

import re

from meshwright.core.words import counted

_COMMENT = re.compile(r"/\*.*?\*/")
#: an instruction up to its type
_INSTRUCTION = re.compile(r"\s*(?:ROOT\s+)?%?([\w.-]+) = (?=\()")
#: the operand, which may have its type before its name, and the index
_ELEMENT = re.compile(r"\bget-tuple-element\((.*?)%?([\w.-]+)\s*\), index=(-?\d+)")
_BRACKET = re.compile(r"[(){}\[\],]")


def bad_index(text: str) -> tuple[int, str]:
    """The line of the first index that is out of range, and what is wrong; line 0 if there is none."""
    members: dict[str, int] = {}  # of the tuples of one computation
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("}"):
            members.clear()
            continue
        if " = (" not in line and "get-tuple-element(" not in line:
            continue
        line = _COMMENT.sub("", line)
        tuple_ = _INSTRUCTION.match(line)
        if tuple_ is not None:
            members[tuple_[1]] = _members(line, tuple_.end())
        element = _ELEMENT.search(line)
        if element is None:
            continue
        type_, name, index = element.groups()
        count = _members(type_, 0) if type_.startswith("(") else members.get(name)
        if count is not None and not 0 <= int(index) < count:
            return number, f"index {index} of {name!r}, which has {counted(count, 'member')}"
    return 0, ""


def _members(line: str, start: int) -> int:
    """The number of members of the tuple type that starts with the parenthesis at ``start``."""
    depth, commas = 0, 0
    for bracket in _BRACKET.finditer(line, start):
        match bracket[0]:
            case ",":
                commas += depth == 1
            case "(" | "{" | "[":
                depth += 1
            case _:
                depth -= 1
        if not depth:
            inner = line[start + 1 : bracket.start()]
            return commas + 1 if inner.strip() else 0
    return commas + 1
