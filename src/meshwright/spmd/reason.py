"""Why a collective is there, as data and as a sentence."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from meshwright.core.source import SourceLocation
from meshwright.sharding.rule import ShardingRule


@dataclass(frozen=True)
class Reason:
    """The equation that needed it, the operand, and the two layouts that met."""

    op: str
    source: SourceLocation
    number: int | None = None
    before: str = ""
    after: str = ""
    made_by: str = ""
    rule: str = ""

    def operand(self, number: int) -> Reason:
        """For the operand with this number."""
        return dataclasses.replace(self, number=number)

    def between(self, before: str, after: str, made_by: str) -> Reason:
        """With the layouts and what made the value."""
        return dataclasses.replace(self, before=before, after=after, made_by=made_by)

    def inside(self, rule: ShardingRule) -> Reason:
        """For what an op's own localization exchanges."""
        return dataclasses.replace(self, rule=str(rule))

    def __str__(self) -> str:
        made = f"the value made by {self.made_by}" if not self.made_by.startswith(("input", "a ")) else self.made_by
        if self.rule:
            return f"{self.op} works across the parts of a split dimension ({self.rule})"
        if self.op == "output":
            return f"output {self.number} ({made}) is {self.before} and has to be {self.after}"
        if self.op == "sharding_constraint":
            return f"with_sharding_constraint wants {made} as {self.after}, it is {self.before}"
        return f"{self.op} needs operand {self.number} ({made}) as {self.after}, it is {self.before}"
