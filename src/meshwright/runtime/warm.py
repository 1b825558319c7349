"""Warm starts: programs whose executables are found in the disk cache without lowering them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from meshwright.core.records import dataclass
from meshwright.ir.fingerprint import fingerprint
from meshwright.lowering.lower import DeviceProgram
from meshwright.runtime.compiling import Place, build_of, compile_program, log_level, without_forwarded
from meshwright.runtime.executable import Executable, Results
from meshwright.runtime.pjrt import compiler
from meshwright.runtime.pjrt.compiler import Build, Flags

_LOGGER = logging.getLogger("meshwright")


@dataclass(frozen=True)
class Known:
    """A program that has not been lowered yet.

    ``mark`` is the hash of everything that determines it, except for its build; None if it must be lowered.
    """

    name: str
    mark: bytes | None
    place: Place | None
    build: Build

    @staticmethod
    def of(source: tuple[Any, ...], flags: Flags, place: Place | None) -> Known:
        """The program determined by ``source``, a tuple that starts with its name."""
        mark = fingerprint(source) if compiler.keeps_programs() else None
        return Known(source[0], mark, place, build_of(source[0], place, flags))

    @property
    def title(self) -> str:
        """Identifies what is run, by mark, flags and devices. Processes with equal titles run the same program."""
        return "" if self.mark is None else compiler.note_name(self.mark, self.build)

    def recalled(self, results: Results) -> tuple[Executable, Mapping[str, Any]] | None:
        """The executable and the facts noted about it; None if the disk cache does not have it."""
        if self.mark is None or (found := compiler.recalled(self.mark, self.build)) is None:
            return None
        loaded, facts = found
        _LOGGER.log(log_level(), "Loaded %s from the compilation cache", self.name)
        executable = Executable(
            loaded,
            self.name,
            list(results.avals),
            list(results.shardings),
            results.committed,
            donated=facts["donated"],
            in_shardings=None if self.place is None else self.place.in_shardings,
            forwarded=dict(facts["forwarded"]),
            uncounted_flops=facts["flops"],
        )
        return executable, facts

    def compiled(self, program: DeviceProgram, results: Results) -> Executable:
        """Compile the lowered program."""
        return compile_program(program, results, self.place, self.build)

    def remember(self, executable: Executable, program: DeviceProgram, **facts: Any) -> None:
        """Note the executable in the disk cache, unless it has large constants or calls Python (not stored there)."""
        if self.mark is None or executable.constants or executable.waits or executable.loaded is None:
            return
        facts |= {"donated": list(executable.donated), "forwarded": list(executable.forwarded.items()),
                  "flops": executable.uncounted_flops}  # fmt: skip
        compiler.remember(self.mark, without_forwarded(program)[0].as_text(), facts, self.build)


def compile_lowered(
    source: tuple[Any, ...],
    lowered: Callable[[], DeviceProgram],
    results: Results,
    place: Place | None = None,
    flags: Flags = (),
) -> Executable:
    """Compile ``lowered()`` as :func:`compile_program` does, unless the disk cache has the executable.

    ``source`` is a tuple of everything that determines the program, starting with its name.
    """
    known = Known.of(source, flags, place)
    if (found := known.recalled(results)) is not None:
        return found[0]
    program = lowered()
    executable = known.compiled(program, results)
    known.remember(executable, program)
    return executable
