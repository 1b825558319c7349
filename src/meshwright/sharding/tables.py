"""Tables with one number a device, or a tile, as formulas of its number."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.core.records import dataclass


@dataclass(frozen=True)
class Run:
    """Entries that are an arithmetic sequence: from number ``start`` on, ``first``, ``first + step``, …"""

    start: int
    first: int
    step: int


@dataclass(frozen=True)
class Digit:
    """A digit of a number in a mixed radix, ``number // stride % span``, with its weight in an entry."""

    stride: int
    span: int
    weight: int


def runs(table: Sequence[int]) -> list[Run]:
    """The arithmetic sequences of which a table consists, each as long as can be.

    Example:
      >>> [(r.start, r.first, r.step) for r in runs([0, 4, 8, 8, 8])]
      [(0, 0, 4), (3, 8, 0)]
    """
    found: list[Run] = []
    start = 0
    while start < len(table):
        end, step = start + 1, table[start + 1] - table[start] if start + 1 < len(table) else 0
        while end < len(table) and table[end] - table[end - 1] == step:
            end += 1
        found.append(Run(start, table[start], step if end > start + 1 else 0))
        start = end
    return found


def digits(table: Sequence[int]) -> list[Digit] | None:
    """The digits of a number whose weighted sum is its entry, from the last on; None if there are none such.

    Example: the position along the first and last axis of a mesh ``(2, 3, 2)``
      >>> [(d.stride, d.span, d.weight) for d in digits([0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3])]
      [(1, 2, 1), (6, 2, 2)]
    """
    found: list[Digit] = []
    stride, rest = 1, len(table)
    while rest > 1:
        weight = table[stride]
        steps = next((j for j in range(rest) if table[j * stride] != j * weight), rest)
        span = next((k for k in range(steps, 1, -1) if rest % k == 0), rest)
        if weight:
            found.append(Digit(stride, span, weight))
        stride, rest = stride * span, rest // span
    entries = (sum(i // d.stride % d.span * d.weight for d in found) for i in range(len(table)))
    return found if all(n == m for n, m in zip(table, entries)) else None
