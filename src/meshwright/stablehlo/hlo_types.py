"""HLO text as compilers for TPUs write it: tiled layouts, and operations that change the type of elements.

StableHLO has no tiles, and operations on one type; what changes it is a conversion.
"""

from __future__ import annotations

import re
from typing import Any

from meshwright.stablehlo.hlo_combined import listed
from meshwright.stablehlo.hlo_tiles import moves, unknown

#: operations with one type of elements, and which of their operands have it
_OF_ONE_TYPE: dict[str, Any] = dict.fromkeys(
    "abs add all-gather all-reduce all-to-all and atan2 bitcast broadcast cbrt ceil collective-permute "
    "concatenate copy cosine divide exponential exponential-minus-one floor log log-plus-one logistic maximum "
    "minimum multiply negate or pad power reduce reduce-scatter reduce-window remainder reshape reverse "
    "round-nearest-afz round-nearest-even rsqrt sign sine slice sqrt subtract tan tanh transpose xor".split(),
    slice(None),
) | {"select": slice(1, 3), "dynamic-slice": slice(1), "dynamic-update-slice": slice(2)}  # fmt: skip
_MADE = re.compile(
    r"(?P<before>[ \t]*(?:ROOT )?)(?P<name>%?[\w.-]+) = (?P<type>\w+)\[(?P<dims>[\d,]*)\](?P<layout>\S*) "
    r"(?P<op>[\w-]+)\("
)
#: the type of an operand, which older programs state before its name
_STATED = re.compile(r"(?P<type>\w+)\[(?P<dims>[\d,]*)\](?P<layout>\S*) \S+$")
#: the widths of types, between those of the same width a bitcast keeps the bits
_BITS = {
    **dict.fromkeys(("s8", "u8"), 8), **dict.fromkeys(("f16", "bf16", "s16", "u16"), 16),
    **dict.fromkeys(("f32", "s32", "u32"), 32), **dict.fromkeys(("f64", "s64", "u64", "c64"), 64),
}  # fmt: skip
#: a layout with tiles or a memory space
_TILED = re.compile(r"(?<=\])\{([\d,]*):[^}\s]*\}")
_FLOATS = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2}


def of_one_type(text: str) -> str:
    """HLO text without tiles, in which conversions are operations of their own. Line numbers do not change.

    >>> of_one_type("  %a = f32[2]{0:T(128)} parameter(0)\\n  %b = bf16[2] copy(%a)")
    '  %a = f32[2]{0} parameter(0)\\n  %b.of = f32[2] copy(%a) %b = bf16[2] convert(%b.of)'
    """
    if ":T(" not in text:  # which only TPUs have
        return text
    made_by: dict[str, re.Match[str]] = {}  # the instructions of one computation
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if line.startswith("}"):
            made_by.clear()
        elif made := _MADE.match(line):
            made_by[made["name"].lstrip("%")] = made
            if made["op"] in _OF_ONE_TYPE:
                lines[number] = _converted(line, made, made_by)
    return _TILED.sub(lambda layout: f"{{{layout[1]}}}" if layout[1] else "", "\n".join(lines))


def _converted(line: str, made: re.Match[str], made_by: dict[str, re.Match[str]]) -> str:
    stated, length = listed(line[made.end() :])
    operands = [o.split()[-1] for o in stated if o]
    which: range = range(len(operands))[_OF_ONE_TYPE[made["op"]]]
    found = ((_STATED.match(stated[n]) or made_by.get(operands[n].lstrip("%"))) for n in which)
    known = [m for m in found if m is not None]
    given, rest = {m["type"] for m in known}, line[made.end() + length :]
    keeps = given == {made["type"]} or not {made["type"], *given} <= _FLOATS.keys()
    indent, root = made["before"].replace("ROOT ", ""), "ROOT " if "ROOT" in made["before"] else ""
    if made["op"] == "bitcast" and (keeps or not known):
        moved = _moved(made, operands, known[0] if known else None)
        return indent + " ".join([*moved[:-1], root + moved[-1]]) + rest
    if keeps or not known or len(known) < len(which):
        return line
    widest, name = max(given, key=_FLOATS.__getitem__), made["name"]
    parts = []
    for n, operand in zip(which, known):
        if operand["type"] != widest:
            parts.append(f"{name}.of{n} = {widest}[{operand['dims']}] convert({operands[n]})")
            operands[n] = f"{name}.of{n}"
    computed = f"{made['op']}({', '.join(operands)}){rest}"
    if widest == made["type"]:
        parts.append(f"{root}{name} = {widest}[{made['dims']}]{made['layout']} {computed}")
    else:
        parts.append(f"{name}.of = {widest}[{made['dims']}] {computed}")
        parts.append(f"{root}{name} = {made['type']}[{made['dims']}] convert({name}.of)")
    return indent + " ".join(parts)


def _moved(made: re.Match[str], operands: list[str], given: re.Match[str] | None) -> list[str]:
    """The instructions of a bitcast of what ``given`` makes."""
    name, type_ = made["name"], made["type"]
    same = given is not None and given["type"] == type_
    if given is None or not (same or _BITS.get(given["type"], 0) == _BITS.get(type_)):
        return [unknown(name, ", ".join(operands), type_, _sizes(made["dims"]))]
    ends = ((_sizes(m["dims"]), m["layout"]) for m in (given, made))
    if same:
        return moves(name, operands[0], type_, *ends)
    bits = f"{name}.bits = {type_}[{given['dims']}] bitcast-convert({operands[0]})"
    return [bits, *moves(name, f"{name}.bits", type_, *ends)]


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(",") if n)
