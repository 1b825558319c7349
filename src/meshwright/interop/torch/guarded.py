"""Checks of values in a forward (``assert (x > 0).all()``, ``if labels.max() >= n: raise ...``) while it is exported.

A program has no values to stop at. Where the branch that a value decides about does nothing but raise, or warn, the
export goes the other way, and the user is told that the check is left out. Whether it does is read from the code of the
function that asks for the value.
"""

from __future__ import annotations

import dis
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from types import CodeType, FrameType

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from meshwright.core.source import warn
from meshwright.errors import ImportProgramError, ValueCheckWarning
from meshwright.interop.torch.sources import is_library, is_ours

#: what torch raises where Python asks for a value that a program does not have
NO_VALUE = GuardOnDataDependentSymNode, DataDependentOutputException
#: where values were asked for in vain, in this thread
_IN_VAIN: ContextVar[tuple[str, ...]] = ContextVar("asked in vain", default=())
#: the lines of checks that the export that runs in this thread has left out; None if none runs
_LEFT_OUT: ContextVar[dict[str, None] | None] = ContextVar("checks left out", default=None)


@contextmanager
def checks_told(name: str) -> Iterator[None]:
    """Within, checks are left out, of which the user is warned at the end."""
    asked = torch.SymBool.__bool__

    def answered(self: torch.SymBool) -> bool:
        try:
            return asked(self)
        except GuardOnDataDependentSymNode:
            answer = answer_that_raises_nothing()
            if answer is None:
                note_in_vain()
                raise
            return answer

    lines: dict[str, None] = {}
    before = _LEFT_OUT.set(lines)
    torch.SymBool.__bool__ = answered  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.SymBool.__bool__ = asked  # type: ignore[method-assign]
        _LEFT_OUT.reset(before)
    if lines:
        more = f" and {len(lines) - 5} more" if len(lines) > 5 else ""
        warn(
            f"from_torch: {name} raises errors, or warns, depending on values, at {', '.join([*lines][:5])}{more}; the "
            "function made of it does not check them: check what it is given before the call",
            ValueCheckWarning,
        )


def note_in_vain() -> None:
    """Note that a value was asked for that a program does not have, of which torch raises an error."""
    frame = _asking()
    if frame is not None:
        code = frame.f_code
        _IN_VAIN.set((*_IN_VAIN.get(), f"{os.path.basename(code.co_filename)}:{frame.f_lineno} ({code.co_name})"))


@contextmanager
def caught_errors_refused(name: str) -> Iterator[None]:
    """Refuse a forward that goes on where it has asked for a value in vain: it has caught the error that the export
    raised, which is none that the module raises outside.

    Raises:
      ImportProgramError: it does.
    """
    before = _IN_VAIN.set(())
    try:
        yield
        lines = _IN_VAIN.get()
    finally:
        _IN_VAIN.reset(before)
    if lines:
        raise ImportProgramError(
            f"from_torch: {name} asks for a value at {lines[0]}, which a program does not have, and catches the error "
            "that torch's export raises there (try ... except), so that the program would be that of an error which "
            "the module does not have\nA program is the same for all values: leave out the try, and compute both ways "
            "and choose (torch.where), or use a mask"
        )


def answer_that_raises_nothing() -> bool | None:
    """What a tensor that Python asks whether it is true has to say for nothing to be raised, and no warning given; None
    if neither answer leads to one, or both do."""
    lines, frame = _LEFT_OUT.get(), _asking()
    if frame is None or lines is None:
        return None
    answer = _answer(frame.f_code, frame.f_lasti)
    if answer is None or _is_caught(frame):
        return None
    code = frame.f_code
    lines[f"{os.path.basename(code.co_filename)}:{frame.f_lineno} ({code.co_name})"] = None
    return answer


def _asking() -> FrameType | None:
    """The innermost frame that is neither ours nor torch's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (is_ours(frame.f_code.co_filename) or is_library(frame.f_code.co_filename)):
        frame = frame.f_back
    return frame


# --- what code does -----------------------------------------------------------------------------------------
@lru_cache(64)
def _instructions(code: CodeType) -> tuple[list[dis.Instruction], dict[int, int]]:
    """The instructions of a function, and their numbers by their places."""
    instructions = list(dis.get_instructions(code))
    return instructions, {instruction.offset: n for n, instruction in enumerate(instructions)}


def _answer(code: CodeType, place: int) -> bool | None:
    instructions, numbers = _instructions(code)
    number = numbers.get(place)
    if number is None:
        return None
    if instructions[number].opname == "TO_BOOL":
        number += 1
    jump = instructions[number]
    if "JUMP" not in jump.opname or not jump.opname.endswith(("IF_TRUE", "IF_FALSE")):
        return None
    there, here = numbers[jump.argval], number + 1
    for by_jump, by_going_on in (
        (_only_raises(code, there), _only_raises(code, here)),
        (_only_warns(code, there), _only_warns(code, here)),
        (_only_raises(code, there, here), _only_raises(code, here, there)),
    ):
        if by_jump != by_going_on:
            return jump.opname.endswith("IF_TRUE") != by_jump
    return None


#: what is no part of a test
_STATEMENTS = ("STORE_", "DELETE_", "POP_TOP", "IMPORT_")


def _only_raises(code: CodeType, number: int, end: int | None = None, seen: Sequence[int] = ()) -> bool:
    """Whether all ways on from an instruction end in an error, or at ``end`` after nothing but further tests."""
    instructions, numbers = _instructions(code)
    while number < len(instructions) and number not in seen:
        if number == end or (end is not None and _returned_alike(instructions, number, end)):
            return True
        instruction = instructions[number]
        seen = (*seen, number)
        if instruction.opname == "RAISE_VARARGS":
            return True
        if end is not None and instruction.opname.startswith(_STATEMENTS):
            end = None
        if instruction.opname.startswith(("RETURN", "YIELD", "RERAISE", "FOR_ITER", "SEND")):
            return False
        if "JUMP" in instruction.opname:
            target = numbers[instruction.argval]
            if "IF" in instruction.opname and not _only_raises(code, target, end, seen):
                return False
            number = number + 1 if "IF" in instruction.opname else target
        else:
            number += 1
    return False


#: what the instructions do that make the arguments of a call of names, constants and text
_ARGUMENTS = (
    "LOAD_", "BUILD_", "FORMAT_", "CONVERT_", "PUSH_NULL", "PRECALL", "KW_NAMES", "POP_TOP", "NOP", "EXTENDED_",
)  # fmt: skip


def _only_warns(code: CodeType, number: int) -> bool:
    """Whether an instruction begins the body of an ``if`` that calls functions that warn (``warnings.warn``, by their
    names), and does nothing else."""
    instructions, numbers = _instructions(code)
    test = instructions[number - 1]
    if "JUMP" not in test.opname or "IF" not in test.opname:
        return False
    end = numbers[test.argval]
    last = next((n for n in (1, 2) if _returned_alike(instructions, end - n, end) == n), 0)
    body = instructions[number : end - last]
    calls = [i for i in body if i.opname.startswith("CALL")]
    names = [str(i.argval) for i in body if i.opname.startswith("LOAD_") and i.opname != "LOAD_CONST"]
    warns = [n for n in names if "warn" in n and n.islower() and n != "warnings"]
    is_plain = all(i.opname.startswith((*_ARGUMENTS, "CALL")) for i in body)
    return is_plain and 0 < len(calls) == len(warns) and body[-1].opname == "POP_TOP"


def _returned_alike(instructions: Sequence[dis.Instruction], some: int, other: int) -> int:
    """How many instructions at two places return the same constant, which compilers write twice at the end of a
    function; 0 if others are there."""
    for n in (1, 2):
        first, second = ([(i.opname, i.argval) for i in instructions[k : k + n]] for k in (some, other))
        if first == second and first[0][0] in ("LOAD_CONST", "RETURN_CONST") and first[-1][0].startswith("RETURN"):
            return n
    return 0


def _is_caught(frame: FrameType | None) -> bool:
    """Whether an error that is raised in a frame is handled there, or by the calls that led to it."""
    while frame is not None and not is_ours(frame.f_code.co_filename):
        if not is_library(frame.f_code.co_filename) and _handles(frame.f_code, frame.f_lasti):
            return True
        frame = frame.f_back
    return False


def _handles(code: CodeType, place: int) -> bool:
    """Whether errors at a place in a function are caught there (``except``, not ``with`` or ``finally``)."""
    instructions, numbers = _instructions(code)
    for entry in dis.Bytecode(code).exception_entries:  # type: ignore[attr-defined]
        if not entry.start <= place < entry.end:
            continue
        for instruction in instructions[numbers[entry.target] :]:
            if instruction.opname in ("CHECK_EXC_MATCH", "POP_EXCEPT"):
                return True
            if instruction.opname in ("RERAISE", "WITH_EXCEPT_START"):
                break
    return False
