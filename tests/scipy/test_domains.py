"""Every function of every distribution against SciPy's, also where parameters or values are outside of its domain."""

from __future__ import annotations

import importlib
import inspect
from itertools import product

import numpy as np
import pytest
import scipy.stats

import meshwright as mw
from meshwright.scipy import stats

DISTRIBUTIONS = (
    "bernoulli beta betabinom binom cauchy chi2 expon gamma gennorm geom gumbel_l gumbel_r laplace logistic nbinom "
    "norm pareto poisson t truncnorm uniform vonmises wrapcauchy"
).split()
FUNCTIONS = ("cdf", "isf", "logcdf", "logpdf", "logpmf", "logsf", "pdf", "pmf", "ppf", "sf")
CASES = [
    (d, f)
    for d in DISTRIBUTIONS
    for f in FUNCTIONS
    if hasattr(importlib.import_module(f"meshwright.scipy.stats.{d}"), f)
]
VALUES = [-np.inf, -2.0, 0.0, 0.25, 1.0, 3.0, np.inf, np.nan]
PARAMETERS = {"loc": [0.0, np.nan], "scale": [2.0, 0.0, -1.0], "n": [3.0, -1.0, 2.5], "p": [0.5, 0.0, 1.0, -0.5, 1.5]}
OTHERS = [1.5, 0.0, -1.0, 0.5, np.nan]


@pytest.mark.parametrize(("name", "function"), CASES)
def test_values_in_and_outside_of_the_domain(name: str, function: str) -> None:
    ours, theirs = getattr(getattr(stats, name), function), getattr(getattr(scipy.stats, name), function)
    if (name, function) == ("bernoulli", "ppf"):
        pytest.skip("SciPy has -1, no value of the distribution, for the probability 0; ours and JAX's have 0")
    names = list(inspect.signature(ours).parameters)[1:]
    grid = list(product(VALUES, *(PARAMETERS.get(n, OTHERS) for n in names)))
    columns = [np.array(c) for c in zip(*grid)]
    with mw.enable_x64(True), np.errstate(all="ignore"):
        got, want = np.asarray(ours(*columns)), theirs(*columns)
    close = np.isclose(got, want, 1e-6, 1e-9, equal_nan=True)
    wrong = [(g, float(a), float(b)) for g, a, b, c in zip(grid, got, want, close) if not c]
    assert not wrong, f"{len(wrong)} of {len(grid)} differ; (x, {', '.join(names)}), ours, SciPy's: {wrong[:6]}"
