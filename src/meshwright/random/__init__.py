"""Random numbers: pure functions of a key, with the same keys, bits and values as ``jax.random``.

All functions that draw take a key first. ``shape`` is the shape of the result; if parameters may be arrays, it is by
default the shape that they broadcast to. ``dtype`` is by default the default float (or integer) dtype.
"""

from meshwright.core.absent import absent as _absent
from meshwright.random.continuous import (
    cauchy,
    exponential,
    gumbel,
    laplace,
    logistic,
    normal,
    rademacher,
    truncated_normal,
    uniform,
)
from meshwright.random.counts import binomial, multinomial, poisson
from meshwright.random.derived import (
    double_sided_maxwell,
    geometric,
    lognormal,
    maxwell,
    pareto,
    rayleigh,
    triangular,
    wald,
    weibull_min,
)
from meshwright.random.discrete import bernoulli, categorical, randint
from meshwright.random.gamma import ball, beta, chisquare, dirichlet, f, gamma, generalized_normal, loggamma, t
from meshwright.random.keys import (
    PRNGKey,
    bits,
    clone,
    fold_in,
    key,
    key_data,
    key_dtype,
    key_impl,
    split,
    wrap_key_data,
)
from meshwright.random.matrices import multivariate_normal, orthogonal
from meshwright.random.shuffling import choice, permutation, shuffle

__all__ = [
    "PRNGKey",
    "ball",
    "bernoulli",
    "beta",
    "binomial",
    "bits",
    "categorical",
    "cauchy",
    "chisquare",
    "choice",
    "clone",
    "dirichlet",
    "double_sided_maxwell",
    "exponential",
    "f",
    "fold_in",
    "gamma",
    "generalized_normal",
    "geometric",
    "gumbel",
    "key",
    "key_data",
    "key_dtype",
    "key_impl",
    "laplace",
    "loggamma",
    "logistic",
    "lognormal",
    "maxwell",
    "multinomial",
    "multivariate_normal",
    "normal",
    "orthogonal",
    "pareto",
    "permutation",
    "poisson",
    "rademacher",
    "randint",
    "rayleigh",
    "shuffle",
    "split",
    "t",
    "triangular",
    "truncated_normal",
    "uniform",
    "wald",
    "weibull_min",
    "wrap_key_data",
]

__getattr__ = _absent("random")
