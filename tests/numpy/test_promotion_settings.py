"""``numpy_rank_promotion="raise"`` and ``numpy_dtype_promotion="strict"``: about operands that a user gives, and only
about those, as in ``jax``."""

from __future__ import annotations

import operator
import warnings

import jax
import jax.image
import jax.numpy as jnp
import jax.ops
import jax.scipy.linalg
import jax.scipy.signal
import jax.scipy.stats.multinomial
import jax.scipy.stats.norm
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp

X = np.arange(1, 10, dtype="float32").reshape(3, 3)
V = np.arange(1, 5, dtype="float32")
I = np.arange(12, dtype="int32").reshape(3, 4)
KEY = np.array([0, 7], "uint32")

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

C = X.astype("complex64")
#: calls with operands of several ranks and dtypes: ``jax`` says which it refuses
MIXED = {
    "numpy.add": [(X, X[0]), (V, I[0]), (V, 1), (I, 1.0), (V, True)],
    "numpy.maximum": [(X, X[0]), (V, I[0])],
    "numpy.arctan2": [(V, I[0])],
    "numpy.heaviside": [(X, X[0])],
    "numpy.where": [(X > 1, X, X[0]), (X[0] > 1, X, X), (X > 1, 1.0, X[0]), (V > 1, V, I[0]), (V > 1, V, 0)],
    "numpy.clip": [(X, X[0]), (V, I[0]), (V, 0, 1)],
    "numpy.concatenate": [([V, I[0]],)],
    "numpy.stack": [([V, I[0]],)],
    "numpy.matmul": [(V, I[0]), (X, X[0])],
    "numpy.vecdot": [(X, X[0]), (X, X)],
    "numpy.linspace": [(X, X[0], 3), (V, I[0], 3), (0, V, 3), (0.0, I, 3)],
    "numpy.logspace": [(X, X[0], 3), (V, I[0], 3), (V, V, 3, True, I[0, 0])],
    "numpy.geomspace": [(X, X[0], 3), (V[0], I[0, 1], 3), (V[0], V[1], 3)],
    "numpy.percentile": [(X, X[0]), (X, I[0]), (X, 30)],
    "numpy.quantile": [(X, X[0] / 10)],
    "numpy.array_equiv": [(X, X[0]), (V, I[0])],
    "numpy.allclose": [(X, X[0]), (V, I[0])],
    "numpy.polydiv": [(V, I[0, 1:]), (V, V[:2])],
    "numpy.polyfit": [(V, I[0], 1), (X[0], X, 1)],
    "numpy.polymul": [(V, I[0])],
    "numpy.cov": [(X, X[0]), (V, I[0]), (X, X)],
    "numpy.corrcoef": [(X, X[0]), (V, I[0]), (X, X)],
    "numpy.gradient": [(X, X[0]), (X, 2), (V, I[0]), (V, 2.0)],
    "numpy.linalg.matrix_rank": [(X, I[0, 0]), (X, 0.1)],
    "numpy.linalg.solve": [(X, X[0]), (X, I[0, :3])],
    "numpy.fft.fftfreq": [(8, np.int32(2)), (8, 0.5)],
    "nn.elu": [(X, X[0]), (V, I[0]), (V, 0.5)],
    "nn.celu": [(X, X[0]), (V, I[0]), (V, 0.5)],
    "nn.leaky_relu": [(X, X[0]), (V, I[0]), (V, 0.5)],
    "nn.squareplus": [(X, X[0]), (V, I[0]), (V, 0.5)],
    "nn.standardize": [(X, -1, X[0], X[0]), (X, -1, X, X)],
    "random.multivariate_normal": [(KEY, X[0], X), (KEY, I[0, :3], X)],
    "random.beta": [(KEY, X, X[0]), (KEY, V, I[0])],
    "scipy.special.xlogy": [(X, X[0]), (V, I[0])],
    "scipy.special.multigammaln": [(I, 2), (V, 2)],
    "scipy.stats.norm.logpdf": [(X, X[0]), (V, I[0]), (I,), (V, 1)],
    "scipy.stats.multinomial.logpmf": [(I[0], 3, V)],
    "scipy.linalg.funm": [(X, lambda x: x)],
    "scipy.linalg.qr_multiply": [(X, I[:, :3]), (I[:, :3], I[:, :3])],
    "scipy.signal.convolve": [(C, C), (V, I[0])],
    "scipy.signal.csd": [(X, X)],
    "scipy.signal.welch": [(X,)],
    "scipy.signal.stft": [(X,)],
    "scipy.signal.istft": [(C,)],
    "image.resize": [(X, (2, 2), "cubic"), (I, (2, 2), "linear")],
    "ops.segment_sum": [(X, I[0, :3], 3)],
}
#: methods of arrays, as expressions of an array ``a``
METHODS = {
    "operator": lambda a: a * X[0],
    "operator of dtypes": lambda a: a * I[:, :3],
    "at.set": lambda a: a.at[0].set(X[0]),
    "at.set of dtypes": lambda a: a.at[0].set(I[0, :3]),
    "at.set of a number": lambda a: a.at[0].set(1),
    "at.add": lambda a: a.at[:].add(X[0]),
    "at.add of dtypes": lambda a: a.at[0].add(I[0, :3]),
}
STRICT = {"numpy_rank_promotion": "raise", "numpy_dtype_promotion": "strict"}


@pytest.mark.parametrize("name", OWN)
def test_what_the_library_mixes_is_its_own(name):
    for setting, value in STRICT.items():
        with getattr(mw, setting)(value):
            mw.eval_shape(lambda: OWN[name](mw, mnp))


def refused(package, setting, f) -> bool:
    """Whether ``f`` is refused on account of ``setting``."""
    try:
        with getattr(package, setting)(STRICT[setting]):
            package.eval_shape(f)
    except (TypeError, ValueError) as error:
        if "promotion" not in str(error):
            raise
        return True
    return False


@pytest.mark.parametrize("setting", STRICT)
@pytest.mark.parametrize("name", MIXED)
def test_what_a_user_mixes_is_refused_where_jax_refuses_it(setting, name):
    ours, theirs = (operator.attrgetter(name)(package) for package in (mw, jax))
    for args in MIXED[name]:
        want = refused(jax, setting, lambda: theirs(*args))  # noqa: B023
        assert refused(mw, setting, lambda: ours(*args)) == want, f"{args}: jax {'refuses' if want else 'takes'} it"  # noqa: B023


@pytest.mark.parametrize("setting", STRICT)
@pytest.mark.parametrize("name", METHODS)
def test_methods_refuse_what_those_of_jax_do(setting, name):
    want = refused(jax, setting, lambda: METHODS[name](jnp.asarray(X)))
    assert refused(mw, setting, lambda: METHODS[name](mnp.asarray(X))) == want


def test_a_warning_tells_of_ranks_given_to_a_function_that_mixes_its_own():
    with mw.numpy_rank_promotion("warn"):
        with pytest.warns(mw.errors.RankPromotionWarning, match=r"linspace.*\(3, 3\) and \(3,\)"):
            mnp.linspace(X, X[0], 3)
        with warnings.catch_warnings(action="error"):
            mnp.linspace(X, X, 3)


def test_settings_come_back():
    with mw.numpy_rank_promotion("raise"):
        mnp.vander(V)
        with pytest.raises(ValueError, match="different ranks"):
            mnp.add(X, X[0])
