"""What users call the inputs and outputs of a program, in reports."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.core.records import dataclass


def called(kind: str, number: int, names: Sequence[str] = ()) -> str:
    """``input 1 (params['w'])``: an argument or result of a program in reports; ``names`` are the user's."""
    name = names[number] if number < len(names) else ""
    return f"{kind} {number} ({name})" if name else f"{kind} {number}"


@dataclass(frozen=True)
class Names:
    """The user's names of inputs and outputs; "" where a number says it all."""

    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()

    def of(self, kind: str, number: int) -> str:
        """An ``"input"`` or ``"output"``, as reports call it."""
        return called(kind, number, self.inputs if kind == "input" else self.outputs)


#: of programs of which nothing is known
NUMBERS = Names()
