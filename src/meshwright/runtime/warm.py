"""Warm starts: programs whose executables are found in the disk cache without lowering them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshwright.core.records import dataclass
from meshwright.ir.fingerprint import fingerprint
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.lowering.lower import DeviceProgram, lower
from meshwright.runtime.executable import (
    Executable,
    Place,
    Results,
    compile_program,
    log_level,
    reals_of,
    without_forwarded,
)
from meshwright.runtime.pjrt import client as pjrt

_LOGGER = logging.getLogger("meshwright")


@dataclass(frozen=True)
class Known:
    """A program that has not been lowered yet.

    ``mark`` is the hash of everything that determines it, except for options and processes; None if it must be lowered.
    """

    name: str
    mark: bytes | None
    options: tuple[tuple[str, Any], ...]
    place: Place | None

    @staticmethod
    def of(source: tuple[Any, ...], options: tuple[tuple[str, Any], ...], place: Place | None) -> Known:
        """The program determined by ``source``, a tuple that starts with its name."""
        return Known(source[0], fingerprint(source) if pjrt.keeps_programs() else None, options, place)

    @property
    def reals(self) -> tuple[int, ...] | None:
        return None if self.place is None else reals_of(self.name, self.place.sharding)

    @property
    def title(self) -> str:
        """Identifies what is run, by mark, options and devices. Processes with equal titles run the same program."""
        return "" if self.mark is None else pjrt.note_name(self.mark, self.options, self.reals)

    def recalled(self, results: Results) -> tuple[Executable, Mapping[str, Any]] | None:
        """The executable and the facts noted about it; None if the disk cache does not have it."""
        if self.mark is None or (found := pjrt.recalled(self.mark, self.options, self.reals)) is None:
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

    def remember(self, executable: Executable, program: DeviceProgram, **facts: Any) -> None:
        """Note the executable in the disk cache, unless it has large constants or calls Python (not stored there)."""
        if self.mark is None or executable.constants or executable.waits or executable.loaded is None:
            return
        facts |= {"donated": list(executable.donated), "forwarded": list(executable.forwarded.items()),
                  "flops": executable.uncounted_flops}  # fmt: skip
        pjrt.remember(self.mark, without_forwarded(program)[0].as_text(), facts, self.options, self.reals)


def compile_lowered(
    name: str, source: Any, jaxpr: Callable[[], ClosedJaxpr], results: Results, donated: Mapping[int, int | None],
    arg_names: Sequence[str], options: tuple[tuple[str, Any], ...] = (), place: Place | None = None,
) -> Executable:  # fmt: skip
    """Lower ``jaxpr()`` and compile it as :func:`compile_program` does, unless the disk cache has the executable.

    ``source`` is a tree of everything that determines the program.
    """
    known = Known.of((name, source, donated, arg_names), options, place)
    if (found := known.recalled(results)) is not None:
        return found[0]
    program = lower(jaxpr(), name, donated=donated, arg_names=arg_names)
    executable = compile_program(program, results, False, options, place)
    known.remember(executable, program)
    return executable
