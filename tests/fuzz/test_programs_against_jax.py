"""Random programs against JAX: values, types, derivatives, batches, meshes.

``make fuzz`` tries 20,000 (``tests/long_runs.py``). A failing program is printed cut down, as Python.
"""

from __future__ import annotations

import jax
import numpy as np
from fuzz_checks import CHECKS, OURS, check_values, failure, found_in
from fuzz_programs import Case, random_case, shrunk
from walk import typed

import meshwright.numpy as mnp


def test_programs_are_what_their_number_says():
    for seed in (3, 104, 205):
        assert str(random_case(seed)) == str(random_case(seed)) and f"seed {seed}," in str(random_case(seed))


def planted(x):
    """Wrong for numbers above 1."""
    return mnp.where(x > 1, mnp.sin(x) + 1, mnp.sin(x))


def test_a_mistake_is_found_and_cut_down(monkeypatch):
    lines = (("v0", "x0 * 2"), ("v1", "np.sin(v0)"), ("v2", "np.sum(v1) + x1"), ("v3", "v2 * v0"))
    with jax.enable_x64(True):
        values = {"v0": typed(np.array([1.0, 3.0, -4.0]))}
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


def test_some_programs():
    found = [text for seed in range(4000, 4012) if (text := found_in(seed)) and "[meant" not in text]
    assert not found, "\n\n".join(found)
