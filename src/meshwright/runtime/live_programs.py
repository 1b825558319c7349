"""The compiled programs of this process, and the origins of their ops, for profiles.

XLA's profiler reports names of ops of optimized modules. The module's text maps them to source locations, in tables of
files, functions and stack frames.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from meshwright.core.weak import WeakKeys
from meshwright.runtime.pjrt.profiling import numbered

#: all live programs
PROGRAMS: WeakKeys[Any, None] = WeakKeys()

_FRAME = re.compile(r"^(\d+) \{file_location_id=(\d+)", re.M)
_LOCATION = re.compile(r"^(\d+) \{file_name_id=(\d+) function_name_id=\d+ line=(\d+)", re.M)
_FILES = re.compile(r"^FileNames\n((?:\d+ \".*\"\n)*)", re.M)
_FILE = re.compile(r'^(\d+) "(.*)"$', re.M)
_OP = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (?:\(.*?\)|\S+) ([\w\-]+)\(.*$", re.M)
_NAME, _STACK = re.compile(r'op_name="([^"]*)"'), re.compile(r"stack_frame_id=(\d+)")


def note(program: Any) -> None:
    """Register a program for as long as it lives."""
    PROGRAMS[program] = None


def ops_of(text: str) -> dict[str, dict[str, str]]:
    """For every op of an optimized module, its ``kind``, and its ``name`` and ``line`` in the user's program."""
    listed = _FILES.search(text)
    files = dict(_FILE.findall(listed[1])) if listed else {}
    lines = {number: f"{files.get(file, '?')}:{line}" for number, file, line in _LOCATION.findall(text)}
    frames = {number: lines.get(location, "") for number, location in _FRAME.findall(text)}
    ops = {}
    for match in _OP.finditer(text):
        name, stack = _NAME.search(match[0]), _STACK.search(match[0])
        ops[match[1]] = {
            "kind": match[2],
            "name": name[1] if name else "",
            "line": frames.get(stack[1], "") if stack else "",
        }
    return ops


def described(modules: Iterable[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """The ops of live programs with these names and numbers (:func:`.pjrt.profiling.numbered`), as :func:`ops_of`.

    Each also has the number of virtual ``devices`` whose results it computes. Where no live program has the number, all
    those of the name are taken, and if several have an op, only the fields on which they agree are filled in.
    """
    wanted = {module: module.rpartition("(")[0] or module for module in modules}
    names, by_name, by_number = set(wanted.values()), dict[str, list[Any]](), dict[str, list[Any]]()
    for program in [p for p in PROGRAMS if p.loaded is not None]:
        module = program.loaded.hlo_modules()[0]
        if module.name in names:
            by_name.setdefault(module.name, []).append(program)
            by_number.setdefault(numbered(module), []).append(program)  # once for each: it serializes the module
    found = {module: by_number.get(module) or by_name.get(name) for module, name in wanted.items()}
    return {module: _agreed(programs) for module, programs in found.items() if programs}


def _agreed(programs: Iterable[Any]) -> dict[str, dict[str, Any]]:
    """What programs agree on of their ops."""
    agreed: dict[str, dict[str, Any]] = {}
    for program in programs:
        devices = max((s.num_devices for s in program.out_shardings), default=1) if program.is_virtual else 1
        for op, description in ops_of(program.loaded.hlo_modules()[0].to_string()).items():
            new = {**description, "devices": devices}
            agreed[op] = {k: v if new[k] == v else "" for k, v in agreed.get(op, new).items()}
    return agreed
