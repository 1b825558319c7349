"""First and second derivatives of every function of the tables against JAX's, at the values that the calls have.

Elementwise functions are in ``tests/derivatives``, at more points.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
import pytest
from derivatives import DOUBLE, differences, moving
from outcomes import Call
from tables import TABLES, function_of

import meshwright as mw

#: of the functions, every which one an ordinary run asks, and how many calls of each
SHARE, MOST = 20, 3


@dataclass(frozen=True)
class Otherwise:
    """Where JAX is not followed: in what is ``found``, for which calls, and why."""

    names: str
    found: str
    reason: str
    when: Callable[[Call], bool] = lambda call: True


OTHERWISE = [
    Otherwise("numpy.modf", "tangent", "the fraction of infinity is 0, and constant"),
    Otherwise("lax.cumlogsumexp", "", "logaddexp takes infinities for 0"),
    Otherwise("lax.scatter_max lax.scatter_min", "", "outside no element is chosen"),
    Otherwise("scipy.linalg.solve", "", "the triangle that is named alone is read",
              lambda c: c.kwargs.get("assume_a") == "pos"),
    Otherwise("lax.linalg.cholesky lax.linalg.eigh", "", "without averaging the lower triangle alone is read",
              lambda c: not c.kwargs.get("symmetrize_input", True)),
    Otherwise("lax.broadcast_in_dim", "refused", "broadcast_dimensions are increasing, as JAX documents"),
    Otherwise("numpy.linalg.inv numpy.linalg.lstsq", "", "of singular matrices there is none",
              lambda c: _singular(c.args[0])),
    Otherwise("scipy.stats.beta.logpdf scipy.stats.beta.pdf", "second", "at ends of the support infinite terms meet"),
    Otherwise("scipy.special.zeta", "refused", "by the exponent no formula is known"),
    Otherwise("numpy.sort", "", "descending order keeps the order of equal elements, as argsort does",
              lambda c: c.kwargs.get("descending", False)),
]  # fmt: skip


def _singular(x: np.ndarray) -> bool:
    return bool((np.linalg.matrix_rank(x) < min(x.shape[-2:])).any())


def calls(name: str) -> list[Call]:
    """A few calls of a function with arguments that derivatives are by."""
    found = [c for c in TABLES[name].calls([DOUBLE]) if moving(c) and not c.made]
    return found[:: max(1, -(-len(found) // MOST))]


def excused(name: str, call: Call, found: str) -> bool:
    return any(name in o.names.split() and found.startswith(o.found) and o.when(call) for o in OTHERWISE)


def _cases() -> list[object]:
    often = [n for n in TABLES if zlib.crc32(n.encode()) % SHARE == 0]
    return [pytest.param(n, marks=() if n in often else pytest.mark.slow) for n in TABLES if calls(n)]


@pytest.mark.parametrize("name", _cases())
def test_derivatives(name: str) -> None:
    with mw.enable_x64(True), jax.enable_x64(True):
        ours, theirs = function_of(mw, name), function_of(jax, name)
        wrong = [
            f"{name}({call}): {found}"
            for call in calls(name)
            for found in differences(ours, theirs, call, TABLES[name].loose, name.startswith("scipy.stats."))
            if not excused(name, call, found)
        ]
    assert not wrong, "\n".join(wrong)
