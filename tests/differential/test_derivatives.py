"""First and second derivatives of every function of the tables against JAX's, at the values that the calls have.

Elementwise functions are in ``tests/derivatives``, at more points.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import numpy as np
import pytest
from derivatives import DOUBLE, differences, moving
from elementwise import EXCEPTIONS, LIBRARIES
from elementwise import Otherwise as AtPoints
from outcomes import Call, Weak
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
    Otherwise("scipy.special.zeta", "refused", "by the exponent no formula is known"),
    Otherwise("random.randint", "refused", "bounds are integers"),
    Otherwise("random.dirichlet", "refused", "second derivatives of its draws by the parameters are not known"),
    Otherwise("numpy.sort", "", "descending order keeps the order of equal elements, as argsort does",
              lambda c: c.kwargs.get("descending", False)),
]  # fmt: skip
#: and at which points of distributions; those of elementwise functions ``elementwise`` has
DENSITIES = {
    **dict.fromkeys(("binom.pmf", "binom.logpmf"), AtPoints(
        "of certain numbers of successes has none", lambda x, n, p, loc=0: (n == 0) | (p == 0) | (p == 1))),
    **dict.fromkeys(("norm.ppf", "norm.isf"), AtPoints(
        "its slopes at 0 and 1 are infinite", lambda q, *_: (q == 0) | (q == 1))),
    **dict.fromkeys(("betabinom.pmf", "betabinom.logpmf"), AtPoints(
        "betaln counts equal arguments once, and of certain numbers has none",
        lambda k, n, a, b, loc=0: (n == 0) | (a == b) | (2 * (k - loc) == n) | (2 * (k - loc) == n + b - a))),
    **dict.fromkeys(("gamma.pdf", "gamma.logpdf", "chi2.pdf", "chi2.logpdf"), AtPoints(
        "at the end of the support infinite terms meet", lambda x, a, loc=0, scale=1: x == loc)),
    **dict.fromkeys(("beta.pdf", "beta.logpdf"), AtPoints(
        "at the ends of the support infinite terms meet",
        lambda x, a, b, loc=0, scale=1: (x == loc) | (x == loc + scale))),
    "vonmises.logpdf": AtPoints("has none by the concentration at 0", lambda x, kappa: kappa == 0),
    "vonmises.pdf": AtPoints("has none by the concentration at 0", lambda x, kappa: kappa == 0),
}  # fmt: skip
#: JAX rounds these counts, whose derivatives are 0 there: derivatives are by others
COUNTS = ("scipy.stats.betabinom.pmf", "scipy.stats.betabinom.logpmf")


def _singular(x: np.ndarray) -> bool:
    return bool((np.linalg.matrix_rank(x) < min(x.shape[-2:])).any())


def calls(name: str) -> list[Call]:
    """A few calls of a function with arguments that derivatives are by."""
    found = [c for c in TABLES[name].calls([DOUBLE]) if moving(c) and not c.made]
    found = [replace(c, args=(c.args[0].astype(np.float32), *c.args[1:])) for c in found] if name in COUNTS else found
    return found[:: max(1, -(-len(found) // MOST))]


def at_points(name: str, call: Call, order: int) -> np.ndarray:
    """Which elements of a derivative need not be JAX's."""
    library, _, own = name.rpartition(".")
    exception = EXCEPTIONS.get(own) if library in LIBRARIES else DENSITIES.get(name.removeprefix("scipy.stats."))
    if exception is None or order not in exception.orders():
        return np.zeros(1, bool)
    given = [a.value if isinstance(a, Weak) else a for a in call.args]
    points = np.broadcast_arrays(*(a for a in given if isinstance(a, (np.ndarray, np.generic, int, float))))
    with np.errstate(all="ignore"):
        return np.asarray(exception.where(*points)).ravel()


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
            for found in differences(
                ours, theirs, call, TABLES[name].loose, functools.partial(at_points, name), "stats" in name
            )
            if not excused(name, call, found)
        ]
    assert not wrong, "\n".join(wrong)
