"""The order in which functions are read: callees before callers, by depth-first search without recursion."""

from __future__ import annotations

from jaxlib.mlir import ir

from meshwright.errors import ImportProgramError


def in_call_order(entry: str, functions: dict[str, ir.Operation]) -> list[str]:
    """The functions that ``entry`` calls, directly or not, callees first; ``entry`` is the last.

    Raises:
      ImportProgramError: functions are recursive, or one is missing.
    """
    callees = {name: _callees(f) for name, f in functions.items()} if len(functions) > 1 else {entry: []}
    order: list[str] = []
    state: dict[str, int] = {}
    stack = [(entry, iter(callees[entry]))]
    state[entry] = 1
    while stack:
        name, rest = stack[-1]
        callee = next(rest, None)
        if callee is None:
            stack.pop()
            state[name] = 2
            order.append(name)
        elif callee not in callees:
            raise ImportProgramError(f"function {name!r} calls {callee!r}, which the module does not have")
        elif state.get(callee) == 1:
            raise ImportProgramError(f"functions {name!r} and {callee!r} call each other; expected no recursion")
        elif callee not in state:
            state[callee] = 1
            stack.append((callee, iter(callees[callee])))
    return order


def _callees(function: ir.Operation) -> list[str]:
    callees: dict[str, None] = {}

    def visit(operation: ir.Operation) -> ir.WalkResult:
        for attribute in ("callee", "called_computation", "decomposition"):
            if attribute in operation.attributes:
                callees[operation.attributes[attribute].value] = None
        if "called_computations" in operation.attributes:
            callees.update((symbol.value, None) for symbol in operation.attributes["called_computations"])
        return ir.WalkResult.ADVANCE

    function.walk(visit)
    return list(callees)
