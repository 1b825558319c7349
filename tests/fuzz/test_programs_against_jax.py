"""Random programs against JAX: values, types, derivatives, batches, meshes.

``MESHWRIGHT_FUZZ_PROGRAMS`` sets how many the slow test tries (``make fuzz``), from number ``MESHWRIGHT_FUZZ_FIRST``
on. A failing program is printed cut down, as Python; all of them are found before the test fails.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict

import numpy as np
import pytest
from fuzz_checks import CHECKS, OURS, check_values, failure, run
from fuzz_programs import Case, random_case, shrunk

import meshwright.numpy as mnp


def test_programs_are_what_their_number_says():
    for seed in (3, 104, 205):
        assert str(random_case(seed)) == str(random_case(seed)) and f"seed {seed}," in str(random_case(seed))


def planted(x):
    """Wrong for numbers above 1."""
    return mnp.where(x > 1, mnp.sin(x) + 1, mnp.sin(x))


def test_a_mistake_is_found_and_cut_down(monkeypatch):
    lines = (("v0", "x0 * 2"), ("v1", "np.sin(v0)"), ("v2", "np.sum(v1) + x1"), ("v3", "v2 * v0"))
    values = {"v0": np.array([1.0, 3.0, -4.0])}
    case = Case(
        {"x0": np.array([0.5, 1.5, -2.0]), "x1": np.array(1.0)}, lines, ("v0", "v1", "v2", "v3"), True, 0, values
    )
    assert all(not failure(case, check) for check in CHECKS)

    class Wrong:
        def __getattr__(self, name):
            return planted if name == "sin" else getattr(mnp, name)

    monkeypatch.setitem(OURS, "np", Wrong())
    small = shrunk(case, lambda c: bool(failure(c, check_values)))
    assert small.lines == (("v1", "np.sin(v0)"),) and list(small.inputs) == ["v0"]
    assert "v0 = np.array([1.0, 3.0, -4.0], 'float64')" in str(small)


def first_of_each_kind(first: int, count: int) -> list[str]:
    """What fails among so many programs: for each check and last line the first two."""
    kinds = defaultdict(list)
    for seed in range(first, first + count):
        found = run(seed)
        if found is not None:
            name, case, why = found
            last = case.lines[-1][1] if case.lines else ""
            kinds[name, re.sub(r"[xv]\d|\d+", "", last)].append(f"{name}: {why}\n{case}")
    return [text for texts in kinds.values() for text in texts[:2]]


@pytest.mark.slow
def test_many_programs():
    count, first = (int(os.environ.get(f"MESHWRIGHT_FUZZ_{k}", d)) for k, d in (("PROGRAMS", "500"), ("FIRST", "0")))
    found = first_of_each_kind(first, count)
    assert not found, f"{len(found)} kinds of programs fail:\n\n" + "\n\n".join(found)
