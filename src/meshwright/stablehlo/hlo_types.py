"""Operations in HLO text that change the type of elements, as compilers for TPUs write them where that costs nothing.

StableHLO has operations on one type; what changes it is a conversion.
"""

from __future__ import annotations

import re

#: operations whose operands and results have one type of elements
_OF_ONE_TYPE = frozenset(
    "abs add and atan2 bitcast broadcast cbrt ceil concatenate copy cosine divide exponential "
    "exponential-minus-one floor log log-plus-one logistic maximum minimum multiply negate or pad power remainder "
    "reshape reverse round-nearest-afz round-nearest-even rsqrt sign sine slice sqrt subtract tan tanh transpose "
    "xor".split()
)  # fmt: skip
_MADE = re.compile(
    r"(?P<before>[ \t]*(?:ROOT )?)(?P<name>%?[\w.-]+) = (?P<type>\w+)(?P<shape>\[[\d,]*\])(?P<layout>\S*) "
    r"(?P<op>[\w-]+)\((?P<operands>[^()\n]*)\)"
)
_FLOATS = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2}


def of_one_type(text: str) -> str:
    """HLO text in which conversions are operations of their own. Line numbers do not change.

    >>> of_one_type("  %a = f32[2]{0:T(128)} parameter(0)\\n  %b = bf16[2] copy(%a)")
    '  %a = f32[2]{0:T(128)} parameter(0)\\n  %b.of = f32[2] copy(%a) %b = bf16[2] convert(%b.of)'
    """
    if ":T(" not in text:  # tiles, which only TPUs have
        return text
    types: dict[str, tuple[str, str]] = {}  # and shapes, of the values of one computation
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if line.startswith("}"):
            types.clear()
        elif made := _MADE.match(line):
            types[made["name"].lstrip("%")] = made["type"], made["shape"]
            if made["op"] in _OF_ONE_TYPE:
                lines[number] = _converted(line, made, types)
    return "\n".join(lines)


def _converted(line: str, made: re.Match[str], types: dict[str, tuple[str, str]]) -> str:
    operands = [o.split()[-1] for o in made["operands"].split(",") if o.strip()]
    known = [types.get(o.lstrip("%")) for o in operands]
    given = [k[0] for k in known if k is not None]
    if len(given) < len(known) or all(t == made["type"] for t in given) or not {made["type"], *given} <= _FLOATS.keys():
        return line
    widest, name = max(given, key=_FLOATS.__getitem__), made["name"]
    parts = []
    for n, (operand, (type_, shape)) in enumerate(zip(operands, known)):  # type: ignore[misc]
        if type_ != widest:
            operands[n] = f"{name}.of{n}"
            parts.append(f"{operands[n]} = {widest}{shape} convert({operand})")
    indent, root = made["before"].replace("ROOT ", ""), "ROOT " if "ROOT" in made["before"] else ""
    computed = f"{made['op']}({', '.join(operands)}){line[made.end() :]}"
    if widest == made["type"]:
        parts.append(f"{root}{name} = {widest}{made['shape']}{made['layout']} {computed}")
    else:
        parts.append(f"{name}.of = {widest}{made['shape']} {computed}")
        parts.append(f"{root}{name} = {made['type']}{made['shape']} convert({name}.of)")
    return indent + " ".join(parts)
