"""User-visible names of a program's inputs and outputs, for reports."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.core.records import dataclass


def called(kind: str, number: int, names: Sequence[str] = ()) -> str:
    """The label of an input or output in reports, such as ``input 1 (params['w'])``; ``names`` are the user's names."""
    name = names[number] if number < len(names) else ""
    return f"{kind} {number} ({name})" if name else f"{kind} {number}"


@dataclass(frozen=True)
class Names:
    """The user's names of inputs and outputs; "" for one that is identified by its number alone."""

    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()

    def of(self, kind: str, number: int) -> str:
        """The label of an ``"input"`` or ``"output"`` in reports."""
        return called(kind, number, self.inputs if kind == "input" else self.outputs)


#: for programs without known names: numbers alone
NUMBERS = Names()
