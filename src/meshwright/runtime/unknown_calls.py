"""Unknown custom calls of imported programs, which may crash XLA's compiler.

A program with such a call is first compiled in a child process, once per combination of operand types.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from meshwright.core.late import LateModule
from meshwright.errors import CompileError
from meshwright.ir.jaxpr import JaxprEqn, all_eqns
from meshwright.lowering.lower import DeviceProgram
from meshwright.runtime.pjrt import platforms

_CHILD: Any = LateModule("meshwright.runtime.pjrt.xla_partitioner")
_survived: set[object] = set()


@contextmanager
def unknown_calls(program: DeviceProgram, replicas: int) -> Iterator[None]:
    """A context to compile a program in: with unknown custom calls, it is compiled in a child process first, to see
    whether XLA survives.

    Raises:
      CompileError: it does not, or does not know the calls; names them.
    """
    calls = [e for e in all_eqns(program.jaxpr.jaxpr) if e.op.unknown_call]
    key = frozenset((e.op, *(x.aval for x in e.invars)) for e in calls)
    try:
        if not platforms.is_plugin() and not key <= _survived:
            _CHILD.survive(program.as_text(), replicas, "its compiler")
            _survived.update(key)
        yield
    except CompileError as error:
        if not calls:
            raise
        raise CompileError(
            f"XLA could not compile {program.name!r}, which calls {_named(calls)}, of which nothing is known here: "
            f"{str(error).removeprefix(f'XLA could not compile {program.name!r}: ')}; run it where this is known "
            "(part.compile(target) compiles for other hardware), or write what is called there as operations"
        ) from None


def _named(calls: list[JaxprEqn]) -> str:
    """The calls with their lines, as text."""
    return ", ".join(dict.fromkeys(f"{e.op.unknown_call} at {e.source}" for e in calls))
