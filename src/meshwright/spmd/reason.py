"""Why a collective is there, as data and as a sentence."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.sharding.rule import ShardingRule


@dataclass(frozen=True)
class Reason:
    """The op that needed it, which operand, the two layouts that met, and what made the value.

    With a ``rule``, the op itself exchanges data across the parts of a split dimension.
    """

    op: str
    number: int | None = None
    before: str = ""
    after: str = ""
    made_by: str = ""
    rule: ShardingRule | None = None

    def __str__(self) -> str:
        made = f"the value made by {self.made_by}" if not self.made_by.startswith(("input", "a ")) else self.made_by
        if self.rule is not None:
            return f"{self.op} works across the parts of a split dimension ({self.rule})"
        if self.op == "output":
            return f"output {self.number} ({made}) is {self.before} and has to be {self.after}"
        if self.op == "sharding_constraint":
            return f"with_sharding_constraint wants {made} as {self.after}, it is {self.before}"
        return f"{self.op} needs operand {self.number} ({made}) as {self.after}, it is {self.before}"
