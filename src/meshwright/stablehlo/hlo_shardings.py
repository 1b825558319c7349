"""Finds the sharding in HLO text for which XLA refuses the text, since XLA does not say where it stands."""

from __future__ import annotations

import re

from meshwright.core.words import counted
from meshwright.errors import ShardingError
from meshwright.sharding import HloSharding
from meshwright.sharding.hlo_parse import parse_annotation

_SHARDING = re.compile(r"\bsharding=(?=\{)")
#: what stands before the operation: the types of an instruction's value
_TYPES = re.compile(r"\s*(?:ROOT\s+)?%?[\w.-]+ = (.*?)\s*[a-z][\w-]*\(")
_TYPE = re.compile(r"\b[a-z]\w*\[")


def bad_sharding(text: str) -> tuple[int, str]:
    """The line of the first sharding that cannot be read or does not fit its value, and what is wrong; line 0 if there
    is none."""
    for number, line in enumerate(text.splitlines(), 1):
        found = _SHARDING.search(line)
        if found is None:
            continue
        try:
            sharding = parse_annotation(_braces(line[found.end() :]))
        except ShardingError as error:
            return number, str(error)
        types = _TYPES.match(line)
        count = len(_TYPE.findall(types[1])) if types is not None else 0
        if isinstance(sharding, HloSharding) and sharding.kind == "tuple" and len(sharding.elements) != max(count, 1):
            given = counted(len(sharding.elements), "element")
            return number, f"sharding {sharding} has {given}, the value has {count}; give one for each"
    return 0, ""


def _braces(text: str) -> str:
    """The text up to the brace that closes the first one."""
    depth = 0
    for match in re.finditer(r'"(?:[^"\\]|\\.)*"|[{}]', text):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if not depth:
            return text[: match.end()]
    return text
