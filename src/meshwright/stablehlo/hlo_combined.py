"""Separates collectives of several operands in HLO text that StableHLO has for one.

XLA combines small collectives. PyTorch/XLA orders all of its collectives by a number that each takes and returns as
another operand, which has no dimension to scatter or to gather, and so, as it must be, a group of its own.
"""

from __future__ import annotations

import re

#: the collectives that have one operand in StableHLO
_OF_ONE = "reduce-scatter", "collective-permute", "collective-broadcast"
#: a collective with a tuple of arrays as its type
_COMBINED = re.compile(
    r"^(?P<indent>[ \t]*)(?P<root>ROOT )?(?P<name>%?[\w.-]+) = \((?P<types>[^\"\n]*?)\) "
    rf"(?P<op>{'|'.join(_OF_ONE)}|all-gather)\((?P<operands>[^\"\n]*?)\), (?P<rest>[^\n]*)$",
    re.MULTILINE,
)
_COMMENT = re.compile(r"/\*.*?\*/")
#: groups of one device each
_ALONE = re.compile(r"replica_groups=(?:\{(?:\{\d+\},?)+\}|\[\d+,1\]<=)")
_NUMBER = re.compile(r"\w+\[\](?:\{\})?$")


def is_combined(text: str) -> bool:
    """Whether HLO text has such a collective."""
    return any(_is_unsaid(found) for found in _COMBINED.finditer(text))


def separated(text: str) -> str:
    """HLO text with a collective for each operand, and a tuple of their results. Line numbers do not change.

    >>> separated("  %r = (f32[2], f32[3]) reduce-scatter(%a, %b), dimensions={0}")
    '  %r.of0 = f32[2] reduce-scatter(%a), dimensions={0} %r.of1 = f32[3] reduce-scatter(%b), dimensions={0} \
%r = (f32[2], f32[3]) tuple(%r.of0, %r.of1)'
    """
    return _COMBINED.sub(lambda found: _parts(found) if _is_unsaid(found) else found[0], text)


def _is_unsaid(found: re.Match[str]) -> bool:
    return found["op"] in _OF_ONE or any(map(_NUMBER.match, listed(found["types"])[0]))


def _parts(found: re.Match[str]) -> str:
    types, name, alone = listed(found["types"])[0], found["name"], _ALONE.search(found["rest"])
    parts = []
    for n, (type_, operand) in enumerate(zip(types, listed(found["operands"])[0])):
        moved = f"{found['op']}({operand}), {found['rest']}"
        parts.append(f"{name}.of{n} = {type_} {f'copy({operand})' if alone and _NUMBER.match(type_) else moved}")
    members = ", ".join(f"{name}.of{n}" for n in range(len(types)))
    whole = f"{found['root'] or ''}{name} = ({', '.join(types)}) tuple({members})"
    return found["indent"] + " ".join([*parts, whole])


def listed(text: str) -> tuple[list[str], int]:
    """The entries of a list, which may contain brackets, up to the bracket that closes it; and where what follows
    begins."""
    entries, depth, length = [""], 0, len(text)
    for at, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            length = at + 1
            break
        if character == "," and not depth:
            entries.append("")
        else:
            entries[-1] += character
    return [_COMMENT.sub("", entry).strip() for entry in entries], length
