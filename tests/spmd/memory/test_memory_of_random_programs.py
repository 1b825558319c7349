"""The memory predicted of the partition fuzz's programs, beside what XLA gives them; ``benchmarks memory`` has more."""

import statistics
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "executable"))

from random_memory import measured


@pytest.mark.parametrize(
    ("scale", "drawn", "share"),
    [
        (32, 12, 0.8),
        pytest.param(32, 50, 0.9, marks=pytest.mark.slow),
        pytest.param(1, 50, 0.8, marks=pytest.mark.slow),
    ],
)
def test_most_random_programs_are_predicted(scale: int, drawn: int, share: float) -> None:
    """Of tiny programs a scalar more is a tenth of all: every buffer starts at a multiple of 64 bytes."""
    errors = [abs(predicted / compiled - 1) for _, predicted, compiled in measured([1], scale, drawn)]
    assert len(errors) > drawn / 2
    assert statistics.median(errors) < 0.01
    assert sum(error <= 0.15 for error in errors) >= share * len(errors)
