"""Intervals of numbers: known ranges of values, and the ranges that ops need their operands to be in."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

from meshwright.core.records import dataclass

INF = math.inf


@dataclass(frozen=True)
class Interval:
    """A set of numbers within ``[low, high]``.

    The other fields apply to requested ranges: ``weak``, values outside do no harm; ``whole``, the values should be
    integers whatever the dtype; ``definite``, matrices should be symmetric positive definite; ``columns``, a separate
    request for each index of the last dimension.
    """

    low: float = -INF
    high: float = INF
    weak: bool = False
    whole: bool = False
    definite: bool = False
    columns: tuple[Interval, ...] = ()

    @property
    def says_nothing(self) -> bool:
        return self.low == -INF and self.high == INF and not self.definite and not self.columns

    def holds(self, other: Interval) -> bool:
        """Whether this interval contains ``other``."""
        return self.low <= other.low and other.high <= self.high

    def hull(self, other: Interval) -> Interval:
        """The smallest interval that contains both."""
        return Interval(min(self.low, other.low), max(self.high, other.high))

    def meet(self, other: Interval) -> Interval:
        """The requested range for a value with two users.

        A strong request wins over a weak one. Requests of equal strength are intersected. If the intersection is empty
        (or a mere point), the hull is used for weak requests, and the request with the larger upper bound for strong.
        """
        if self.weak != other.weak:
            return other if self.weak else self
        low, high = max(self.low, other.low), min(self.high, other.high)
        if low > high or (low == high and self.low < self.high and other.low < other.high):
            larger = max(self, other, key=lambda wish: wish.high)
            return self.hull(other)._also(self, other) if self.weak else larger
        return Interval(low, high, self.weak)._also(self, other)

    def _also(self, *wishes: Interval) -> Interval:
        columns = [w.columns for w in wishes if w.columns]
        if len(columns) > 1:
            columns = [tuple(a if b == ANYWHERE else b if a == ANYWHERE else a.meet(b) for a, b in zip(*columns))]
        return replace(
            self, weak=all(w.weak for w in wishes), whole=any(w.whole for w in wishes),
            definite=any(w.definite for w in wishes), columns=columns[0] if columns else (),
        )  # fmt: skip

    def without_columns(self) -> Interval:
        """This interval without ``columns``, for values with another last dimension."""
        return replace(self, columns=()) if self.columns else self

    def between(self, low: float, high: float) -> Interval:
        """This interval with other bounds, and without ``definite`` and ``columns``."""
        return replace(self, low=low, high=high, definite=False, columns=())

    # --- arithmetic -----------------------------------------------------------------------------------------
    def __neg__(self) -> Interval:
        return self.between(-self.high, -self.low)

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high)

    def __mul__(self, other: Interval) -> Interval:
        ends = [_times(a, b) for a in (self.low, self.high) for b in (other.low, other.high)]
        return Interval(min(ends), max(ends))


def _times(a: float, b: float) -> float:
    return 0 if a == 0 or b == 0 else a * b  # not 0.0: bounds that are integers stay so, and are exact


def hull(*ranges: Interval) -> Interval:
    """The smallest interval that contains all."""
    return functools.reduce(Interval.hull, ranges)


def common_bits(a: Interval, b: Interval) -> Interval:
    """Where the bits are that integers of both intervals have in common."""
    highs = [x.high for x in (a, b) if x.low >= 0]
    return Interval(0, min(highs)) if highs else ANYWHERE


ANYWHERE = Interval()
NON_NEGATIVE = Interval(low=0)
#: approximates an open bound at zero; leaves out the smallest float32 numbers
POSITIVE = Interval(low=1e-30)
UNIT = Interval(-1, 1)
BITS = Interval(0, 1)
