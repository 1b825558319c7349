"""``numpy_rank_promotion="raise"`` and ``numpy_dtype_promotion="strict"``: about operands that a user gives, and only
about those, as in ``jax``."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp

X = np.arange(1, 10, dtype="float32").reshape(3, 3)
V = np.arange(1, 5, dtype="float32")
I = np.arange(12, dtype="int32").reshape(3, 4)

#: calls whose own arithmetic mixes ranks or dtypes, though their operands do not
OWN = {
    "packbits": lambda p, n: n.packbits(I > 3, axis=1),
    "unpackbits": lambda p, n: n.unpackbits(n.asarray(I, "uint8"), axis=0),
    "vander": lambda p, n: n.vander(V),
    "linspace": lambda p, n: n.linspace(V, 2 * V, 3),
    "logspace": lambda p, n: n.logspace(V, 2 * V, 3),
    "geomspace": lambda p, n: n.geomspace(V, 2 * V, 3),
    "matrix_rank": lambda p, n: n.linalg.matrix_rank(X),
    "slogdet": lambda p, n: n.linalg.slogdet(X),
    "cov": lambda p, n: n.cov(X),
    "corrcoef": lambda p, n: n.corrcoef(X),
    "gradient": lambda p, n: n.gradient(X),
    "unravel_index": lambda p, n: n.unravel_index(I, (3, 5)),
    "array_equiv": lambda p, n: n.array_equiv(X, X),
    "hard_tanh": lambda p, n: p.nn.hard_tanh(X),
    "leaky_relu": lambda p, n: p.nn.leaky_relu(X),
    "softplus": lambda p, n: p.nn.softplus(X),
    "logmeanexp": lambda p, n: p.nn.logmeanexp(X, axis=0),
    "var": lambda p, n: n.var(X, axis=0),
    "std of integers": lambda p, n: n.std(I, axis=1),
    "median": lambda p, n: n.median(X, axis=1),
    "percentile": lambda p, n: n.percentile(X, 30.0, axis=0),
    "percentile of integers": lambda p, n: n.percentile(I, 30.0, axis=0),
    "polydiv": lambda p, n: n.polydiv(V, V[:2]),
    "softmax": lambda p, n: p.nn.softmax(X, axis=0),
    "argsort": lambda p, n: n.argsort(I, axis=0),
    "norm": lambda p, n: n.linalg.norm(X, axis=1),
    "svd": lambda p, n: n.linalg.svd(X),
    "solve": lambda p, n: n.linalg.solve(X, X),
    "normal": lambda p, n: p.random.normal(p.random.PRNGKey(0), (3, 2)),
}

#: calls of operands that differ, which both refuse
MIXED = {
    "numpy_rank_promotion": {
        "add": lambda p, n: n.add(X, X[0]),
        "operator": lambda p, n: n.asarray(X) * X[0],
        "maximum": lambda p, n: n.maximum(X, X[0]),
    },
    "numpy_dtype_promotion": {
        "add": lambda p, n: n.add(V, I[0]),
        "operator": lambda p, n: n.asarray(V) * I[0],
        "where": lambda p, n: n.where(V > 1, V, I[0]),
        "concatenate": lambda p, n: n.concatenate([V, I[0]]),
        "stack": lambda p, n: n.stack([V, I[0]]),
        "matmul": lambda p, n: n.matmul(V, I[0]),
        "arctan2": lambda p, n: n.arctan2(V, I[0]),
    },
}
STRICT = {"numpy_rank_promotion": "raise", "numpy_dtype_promotion": "strict"}


@pytest.mark.parametrize("name", OWN)
def test_what_the_library_mixes_is_its_own(name):
    for setting, value in STRICT.items():
        with getattr(mw, setting)(value):
            mw.eval_shape(lambda: OWN[name](mw, mnp))


@pytest.mark.parametrize("setting, name", [(s, n) for s, calls in MIXED.items() for n in calls])
def test_what_a_user_mixes_is_refused(setting, name):
    for package, numpy in ((jax, jnp), (mw, mnp)):
        with getattr(package, setting)(STRICT[setting]), pytest.raises((TypeError, ValueError), match="promotion"):
            MIXED[setting][name](package, numpy)


def test_settings_come_back():
    with mw.numpy_rank_promotion("raise"):
        mnp.vander(V)
        with pytest.raises(ValueError, match="different ranks"):
            mnp.add(X, X[0])
