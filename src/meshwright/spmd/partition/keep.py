"""A wish for an output of a region: whatever layout it has, partial sums included."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KeepPartial:
    """Leave partial sums as they are; ``repeats`` of them are added up or stacked before they are completed."""

    repeats: int = 1
