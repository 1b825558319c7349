"""Tables as formulas: each entry is that of the formula, and those without one are found out."""

import numpy as np
import pytest

import meshwright as mw
from meshwright.lowering.target import Target
from meshwright.sharding.tables import digits, runs


def entry_of_runs(found, i):
    run = next(r for r in reversed(found) if r.start <= i)
    return run.first + (i - run.start) * run.step


def entry_of_digits(found, i):
    return sum(i // d.stride % d.span * d.weight for d in found)


@pytest.mark.parametrize(
    "table, most",
    [([7], 1), ([0, 4, 8, 8, 8], 2), ([5, 0, 0, 0], 2), ([3, 1, 4, 1, 5, 9, 2, 6], 4), ([0, 0, 0, 1], 2), ([2, 2], 1)],
)
def test_runs(table, most):
    found = runs(table)
    assert [entry_of_runs(found, i) for i in range(len(table))] == table
    assert len(found) <= most


@pytest.mark.parametrize("sizes", [(2, 3, 2), (8,), (4, 6), (5, 3), (1, 4), (2, 2, 2, 2)], ids=str)
def test_positions_along_axes_are_digits(sizes):
    names = tuple("abcd"[: len(sizes)])
    target = Target.all_real(mw.AbstractMesh(sizes, names))
    for axes in (names, names[:1], names[-1:], names[::-1], names[::2]):
        groups = target.grid(axes)
        table = np.zeros(groups.size, int)
        table[groups] = np.arange(groups.shape[1])
        found = digits(table.tolist())
        assert found is not None
        assert [entry_of_digits(found, i) for i in range(table.size)] == table.tolist()
        assert len(found) <= len(axes)


@pytest.mark.parametrize("table", [[0, 1, 3, 2], [1, 0], [0, 1, 2, 3, 5, 4], [1, 1]])
def test_tables_without_digits(table):
    assert digits(table) is None
