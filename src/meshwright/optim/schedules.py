"""Learning rate schedules: functions of the step number, which may be traced."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from meshwright.core.dtypes import default_float
from meshwright.errors import ArgumentError
from meshwright.numpy.arithmetic import add, clip, divide, maximum, multiply, power, subtract
from meshwright.numpy.creation import asarray
from meshwright.numpy.functions import astype, cos
from meshwright.numpy.logic import where

#: from the step number to the rate
Schedule = Callable[[Any], Any]


def _at(step: Any) -> Any:
    return astype(asarray(step), default_float())


def _positive(name: str, what: str, value: int) -> None:
    if value <= 0:
        raise ArgumentError(f"{name}: {what} must be positive, got {value}")


def constant(value: float) -> Schedule:
    """A constant rate.

    >>> constant(0.1)(7)
    0.1
    """
    return lambda step: value


def linear(start: float, end: float, steps: int, begin: int = 0) -> Schedule:
    """Linear interpolation from ``start`` to ``end`` over ``steps`` steps, from step ``begin`` on.

    Raises:
      ArgumentError: ``steps`` is not positive.

    >>> [linear(1.0, 0.0, 4)(s).item() for s in (0, 1, 9)]
    [1.0, 0.75, 0.0]
    """
    _positive("linear", "steps", steps)
    return lambda step: add(start, multiply(end - start, clip(divide(subtract(_at(step), begin), steps), 0, 1)))


def cosine_decay(start: float, steps: int, end: float = 0.0) -> Schedule:
    """Cosine decay from ``start`` to ``end`` (Loshchilov and Hutter 2017).

    Raises:
      ArgumentError: ``steps`` is not positive.

    >>> [round(cosine_decay(1.0, 4)(s).item(), 3) for s in (0, 1, 2, 9)]
    [1.0, 0.854, 0.5, 0.0]
    """
    _positive("cosine_decay", "steps", steps)

    def rate(step: Any) -> Any:
        part = clip(divide(_at(step), steps), 0, 1)
        return add(end, multiply((start - end) / 2, add(1, cos(multiply(math.pi, part)))))

    return rate


def warmup_cosine(peak: float, warmup: int, steps: int, end: float = 0.0, start: float = 0.0) -> Schedule:
    """Linear warmup from ``start`` to ``peak`` in ``warmup`` steps, then cosine decay to ``end`` at step ``steps``.

    Raises:
      ArgumentError: not ``0 < warmup < steps``.

    >>> [round(warmup_cosine(1.0, 2, 6)(s).item(), 3) for s in (0, 1, 2, 4, 6)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    if not 0 < warmup < steps:
        raise ArgumentError(f"warmup_cosine: 0 < warmup < steps must hold, got warmup={warmup}, steps={steps}")
    up, down = linear(start, peak, warmup), cosine_decay(peak, steps - warmup, end)
    return lambda step: where(_at(step) < warmup, up(step), down(maximum(subtract(_at(step), warmup), 0)))


def exponential_decay(start: float, steps: int, rate: float, staircase: bool = False, end: float = 0.0) -> Schedule:
    """Exponential decay: ``start * rate**(step / steps)``, at least ``end``; with ``staircase``, in discrete steps.

    Raises:
      ArgumentError: ``steps`` is not positive.

    >>> [exponential_decay(1.0, 2, 0.25)(s).item() for s in (0, 1, 2)]
    [1.0, 0.5, 0.25]
    """
    _positive("exponential_decay", "steps", steps)

    def value(step: Any) -> Any:
        periods = divide(_at(step), steps)
        return maximum(multiply(start, power(rate, periods // 1 if staircase else periods)), end)

    return value


def piecewise_constant(start: float, factors: Mapping[int, float]) -> Schedule:
    """A piecewise constant rate: ``start``, multiplied by each factor in ``factors`` from its step on.

    >>> [piecewise_constant(1.0, {2: 0.5, 4: 0.1})(s).item() for s in (1, 2, 3)]
    [1.0, 0.5, 0.5]
    """

    def value(step: Any) -> Any:
        rate: Any = np.asarray(start, default_float())
        for begin, factor in sorted(factors.items()):
            rate = where(_at(step) >= begin, multiply(rate, factor), rate)
        return asarray(rate)

    return value
