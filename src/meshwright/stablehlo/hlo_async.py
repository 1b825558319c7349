"""Asynchronous operations in HLO text that XLA cannot convert to StableHLO, as operations that complete at once.

These are updates, which have no effect on values, copies, and operations with several results, to which XLA combines
small collectives. (Others are converted, and read as if they completed where they start.)
"""

from __future__ import annotations

import re

_NAME = r"%?([\w.-]+)"
#: an update operation; text in quotation marks is not one
_UPDATE = re.compile(rf'[ \t]*{_NAME} = [^"\n]*\w-update\((?:[^"\n]*\s)?{_NAME}\s*\)')
#: the end of an operation with a tuple of results, or of a copy
_DONE = re.compile(
    rf'[ \t]*(ROOT )?{_NAME} = (\([^"\n]*\)(?= )|[^"\n(][^"\n]*(?= copy-)) ([\w-]+)-done\((?:[^"\n]*\s)?{_NAME}\s*\)'
)
_START = re.compile(rf'([ \t]*)(?:ROOT )?(%?){_NAME} = [^"\n]*\s([\w-]+)-start\((.*)')
#: what only the start of a copy has
_PREFETCHED = re.compile(r", cross_program_prefetch_index=\d+")
_STRING = r'"(?:[^"\\\n]|\\.)*"'
#: the name of an instruction where it is used; what is skipped are texts, names of computations, and operations
_USED = re.compile(
    rf"{_STRING}|\w+_computations=\{{[^}}\n]*\}}|(?:calls|to_apply|body|condition|\w+_computation|select|scatter)=%?[\w.-]+"
    r"|(?<![\w.-])(?P<name>[\w.-]+)(?![\w.-]|\()"
)
_CALLS = re.compile(rf"{_STRING}|\bcalls=(%?[\w.-]+)")
_METADATA = re.compile(rf", metadata=\{{(?:{_STRING}|[^\"}}])*\}}")


def completed(text: str) -> str:
    """HLO text in which updates, and pairs of a start and an end with several results or of a copy, are gone. Line
    numbers do not change.

    >>> completed("  %v = (f32[2]) async-update(%t)\\n  %d = f32[2] async-done(%v)")
    '\\n  %d = f32[2] async-done(%t)'
    >>> completed("  %s = ((u8[1], u8[2]), (u8[2], u8[4])) all-gather-start(%a, %b)\\n  %d = (u8[2], u8[4]) \
all-gather-done(%s)")
    '  %d = (u8[2], u8[4]) all-gather(%a, %b)\\n'
    """
    if "-update(" not in text and "-done(" not in text:
        return text
    computations = re.split(r"(?m)^(?=\})", text)  # a thread of its own may be named after the bracket
    return "".join("\n".join(_completed(part.split("\n"))) for part in computations)


def is_joined(text: str) -> bool:
    """Whether HLO text has the end of a copy, or of an operation with several results."""
    return any("-done(" in line and _DONE.match(line) for line in text.split("\n"))


def _completed(lines: list[str]) -> list[str]:
    """The lines of one computation."""
    begun: dict[str, tuple[int, re.Match[str]]] = {}
    #: names of values that are gone, and of those in their place
    instead: dict[str, str] = {}
    for number, line in enumerate(lines):
        if "-start(" in line and (start := _START.match(line)):
            begun[start[3]] = number, start
        elif "-update(" in line and (update := _UPDATE.match(line)):
            instead[update[1]] = instead.get(update[2], update[2])
            lines[number] = ""
        elif "-done(" in line and (done := _DONE.match(line)):
            root, name, type_, kind, waited_for = done.groups()
            waited_for = instead.get(waited_for, waited_for)
            if waited_for in begun and begun[waited_for][1][4] == kind:
                at, start = begun[waited_for]
                operation = _called(start[5]) if kind == "async" else f"{kind}({_PREFETCHED.sub('', start[5])}"
                lines[at] = f"{start[1]}{root or ''}{start[2]}{name} = {type_} {operation}"
                lines[number] = ""
                instead[waited_for] = name
    if not instead:
        return lines
    instead = {name: instead.get(other, other) for name, other in instead.items()}  # of updates of starts that are gone

    def renamed(used: re.Match[str]) -> str:
        return used[0] if used["name"] is None else instead.get(used["name"], used["name"])

    return [line if line.endswith("{") else _USED.sub(renamed, line) for line in lines]


def _called(rest: str) -> str:
    """A call of the computation that an asynchronous operation wraps, from its operands and attributes."""
    target = next((found[1] for found in _CALLS.finditer(rest) if found[1]), "")
    metadata = _METADATA.search(rest)
    return f"call({rest[: _closing(rest)]}), to_apply={target}{metadata[0] if metadata else ''}"


def _closing(text: str) -> int:
    """The place of the parenthesis that closes one before ``text``."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth < 0:
            return place
    return len(text)
