"""Unknown custom calls of imported programs, which may crash XLA's compiler.

A program with such a call is first compiled in a child process, once per combination of operand types.
"""

from __future__ import annotations

from typing import Any

from meshwright.core.late import LateModule
from meshwright.errors import CompileError
from meshwright.ir.jaxpr import JaxprEqn, all_eqns
from meshwright.lowering.lower import DeviceProgram
from meshwright.runtime.pjrt import platforms

_CHILD: Any = LateModule("meshwright.runtime.pjrt.xla_partitioner")
_survived: set[object] = set()


def try_unknown_calls(program: DeviceProgram, replicas: int) -> None:
    """Compile a program with unknown custom calls in a child process first, to see whether XLA survives.

    Raises:
      CompileError: it does not; names the calls.
    """
    calls = [e for e in all_eqns(program.jaxpr.jaxpr) if e.op.unknown_call]
    key = frozenset((e.op, *(x.aval for x in e.invars)) for e in calls)
    if platforms.is_plugin() or key <= _survived:
        return
    try:
        _CHILD.survive(program.as_text(), replicas, "its compiler")
    except CompileError as error:
        raise CompileError(
            f"XLA could not compile {program.name!r}, which calls {_named(calls)}, of which nothing is known: {error}; "
            "write what is called there as operations"
        ) from None
    _survived.update(key)


def _named(calls: list[JaxprEqn]) -> str:
    """The calls with their lines, as text."""
    return ", ".join(dict.fromkeys(f"{e.op.unknown_call} at {e.source}" for e in calls))
