# ruff: noqa: E501
"""Calls of every function of ``meshwright.random`` with one key: the numbers are JAX's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from arguments import FLOATS, few, plain
from kinds import ONE_OF_EACH, Kind
from outcomes import Call, Of, Weak, call

SYNONYMS: dict[str, str] = {}
#: keys themselves, whose parts are compared in tests/random
ELSEWHERE = "PRNGKey clone fold_in key key_data key_dtype key_impl split wrap_key_data"
KEY = Of(lambda m: m.random.key(3), "key")
TYPES = (*(d.name for d in FLOATS), "int32", "uint8", "bool", "complex64")


def drawn(
    *parameters: Sequence[Any], shapes: Sequence[Any] = ((4,),), types: Sequence[str] = TYPES, loose: float = 2
) -> Kind:
    """With a dtype and a shape, and parameters that are numbers, arrays, and out of their range."""
    plainly = [p[0] for p in parameters]

    def by_dtype(d: np.dtype) -> Iterator[Call]:
        if d.name in types:
            yield from (call(KEY, *plainly, shape=s, dtype=d.name) for s in ((2, 3), (), (0, 2)))
        if parameters and d in ONE_OF_EACH and d.kind != "c":
            with np.errstate(invalid="ignore"):
                arrays = [np.asarray([p[0], p[0], p[-1]]).astype(d) for p in parameters]
            yield from (call(KEY, *arrays), call(KEY, *arrays, shape=(2, 3)), call(KEY, *arrays, shape=(2,)))

    return Kind(by_dtype, tuple(call(KEY, *p, shape=s) for p in product(*parameters) for s in shapes), loose=loose)


#: in range, at its ends, and outside
POSITIVE = (1.5, 0.1, 20.0, 0.0, -1.0, float("inf"), float("nan"))
SCALE = (1.5, 0.0, -2.0)
CHANCE = (0.3, 0.0, 1.0, 1.5, -0.5, float("nan"))
PLACE = (0.5, -2.0, float("inf"))
_PLAIN = Kind(
    lambda d: [call(KEY, s, d.name) for s in ((2, 3), (), (0, 2))],
    (call(KEY), call(KEY, (3,)), call(KEY, 3), call(KEY, (-1,)), call(KEY, (2,), float), call(KEY, (2,), int), call(Of(lambda m: m.random.PRNGKey(0), "PRNGKey(0)"), (3,)), call(Of(lambda m: m.random.key(1, impl="rbg"), "rbg"), (3,))),
    loose=2,
)  # fmt: skip


def _uniform(d: np.dtype) -> Iterator[Call]:
    yield from (
        call(KEY, (2, 3), d.name),
        call(KEY, (4,), d.name, -2, 3),
        call(KEY, (0,), d.name),
        call(KEY, (3,), d.name, 1.0, 1.0),
    )
    yield from (call(KEY, (3,), minval=plain(d, 3), maxval=9), call(KEY, (2,), d.name, 3, -1))


def _randint(d: np.dtype) -> Iterator[Call]:
    yield from (
        call(KEY, (5,), 0, 7, d.name),
        call(KEY, (2, 3), -3, 100, d.name),
        call(KEY, (3,), 5, 5, d.name),
        call(KEY, (3,), 5, 2, d.name),
    )
    yield from (
        call(KEY, (3,), -(10**6), 10**6, d.name),
        call(KEY, (3,), plain(d, 3), 50),
        call(KEY, (0,), 0, 2, d.name),
    )


def _permuted(d: np.dtype) -> Iterator[Call]:
    x = plain(d, 5, 2)
    yield from (
        call(KEY, x),
        call(KEY, x, 1),
        call(KEY, x, axis=1, independent=True),
        call(KEY, x[:0]),
        call(KEY, plain(d)),
    )


def _chosen(d: np.dtype) -> Iterator[Call]:
    x, p = plain(d, 5), np.array([0.1, 0.0, 0.4, 0.2, 0.3], np.float32)
    yield from (
        call(KEY, x, (3,)),
        call(KEY, x, (3,), replace=False),
        call(KEY, x, (4,), p=p),
        call(KEY, x, (3,), replace=False, p=p),
    )
    yield from (
        call(KEY, plain(d, 3, 2), (2,), axis=1),
        call(KEY, x, (6,), replace=False),
        call(KEY, x),
        call(KEY, x[:0], (2,)),
    )


def _categorical(d: np.dtype) -> Iterator[Call]:
    x = plain(d, 3, 4)
    yield from (
        call(KEY, x),
        call(KEY, x, axis=0),
        call(KEY, x, shape=(2, 3)),
        call(KEY, few(d)),
        call(KEY, x, replace=False, shape=(2, 3)),
    )
    yield from (call(KEY, x, mode="high"), call(KEY, x, shape=(2,)))


def _normals(d: np.dtype) -> Iterator[Call]:
    mean, cov = plain(d, 2), (np.eye(2) * 3 + 1).astype(d)
    yield from (call(KEY, mean, cov, method=m) for m in ("cholesky", "eigh", "svd"))
    yield from (
        call(KEY, mean, cov, shape=(3,)),
        call(KEY, plain(d, 3, 2), cov),
        call(KEY, mean, np.stack([cov] * 3)),
        call(KEY, mean, np.zeros_like(cov)),
        call(KEY, mean, cov[:1]),
    )


TABLE: dict[str, Kind] = {
    "ball": Kind(lambda d: [call(KEY, 3, dtype=d.name)], (call(KEY, 2), call(KEY, 3, 1, (2,)), call(KEY, 2, 3.5, (2,)), call(KEY, 0), call(KEY, 2, np.inf)), loose=8),
    "bernoulli": Kind(lambda d: [call(KEY, few(d)), call(KEY, few(d), mode="high")], (*(call(KEY, p, (4,)) for p in CHANCE), call(KEY), call(KEY, 0.5, (2,), mode="other"))),
    "beta": drawn(POSITIVE[:5], POSITIVE[:5], loose=16),
    "binomial": drawn((10.0, 0.0, -1.0, 1000.0, float("nan")), CHANCE, loose=2),
    "bits": Kind(lambda d: [call(KEY, (2, 3), d.name), call(KEY, (0,), d.name)], (call(KEY), call(KEY, (5,)))),
    "categorical": Kind(_categorical),
    "chisquare": drawn(POSITIVE, loose=16),
    "choice": Kind(_chosen, (call(KEY, 5, (3,)), call(KEY, 5, (2, 2), replace=False), call(KEY, 0), call(KEY, 3, (0,)), call(KEY, 5, (3,), mode="high"))),
    "dirichlet": Kind(lambda d: [call(KEY, abs(plain(d, 3))), call(KEY, abs(plain(d, 2, 3))), call(KEY, abs(plain(d, 3)), (2,)), call(KEY, plain(d, 3)), call(KEY, np.ones(3, np.float32), dtype=d.name)], (call(KEY, 2.0),), loose=16),
    "double_sided_maxwell": drawn(PLACE, SCALE, loose=8),
    "f": drawn(POSITIVE[:5], POSITIVE[:5], loose=16),
    **dict.fromkeys(("gamma", "loggamma"), drawn(POSITIVE, loose=16)),
    "generalized_normal": drawn(POSITIVE[:5], loose=16),
    "geometric": drawn(CHANCE),
    "lognormal": drawn(SCALE, loose=4),
    "multinomial": Kind(lambda d: [call(KEY, 5, abs(plain(d, 3)) / 8), call(KEY, np.array([3, 4], d), np.full((2, 2), 0.5, np.float32))], (call(KEY, 10, np.array([0.2, 0.3, 0.5], np.float32)), call(KEY, 7, np.array([0.2, 0.8], np.float32), shape=(2, 2)), call(KEY, 3, np.array([0.2, 0.8], np.float32), dtype="int32"))),
    "multivariate_normal": Kind(_normals, loose=64),
    "orthogonal": Kind(lambda d: [call(KEY, 3, dtype=d.name)], (call(KEY, 2), call(KEY, 3, (2,)), call(KEY, 3, m=2), call(KEY, 2, m=3), call(KEY, 0)), loose=64),
    "pareto": drawn(POSITIVE, loose=8),
    "permutation": Kind(_permuted, (call(KEY, 5), call(KEY, 0), call(KEY, -1), call(KEY, 2.5))),
    "poisson": Kind(lambda d: [call(KEY, abs(plain(d, 4))), call(KEY, few(d)), call(KEY, 3.0, (4,), d.name)], tuple(call(KEY, p, (4,)) for p in (0.0, 0.5, 30.0, -1.0, float("nan"), float("inf")))),
    "randint": Kind(_randint, (call(KEY, (2,), 0, 2.5), call(KEY, (), 0, 9), call(KEY, (3,), 0, 2**31), call(KEY, (3,), 0, Weak(9)))),
    "rayleigh": drawn(SCALE, loose=4),
    "t": drawn(POSITIVE, loose=16),
    "triangular": Kind(lambda d: [call(KEY, 0.0, 1.0, 3.0, (3,), d.name), call(KEY, plain(d, 3), 4.0, 9.0)], (call(KEY, 0.0, 0.0, 1.0, (3,)), call(KEY, 0.0, 2.0, 1.0, (3,)), call(KEY, 1.0, 1.0, 1.0, (2,))), loose=4),
    "truncated_normal": Kind(lambda d: [call(KEY, -1.0, 2.0, (4,), d.name), call(KEY, plain(d, 3), 20.0)], (call(KEY, 2.0, -1.0, (3,)), call(KEY, -np.inf, np.inf, (3,)), call(KEY, 1.0, 1.0, (2,)), call(KEY, 9.0, 10.0, (3,))), loose=16),
    "uniform": Kind(_uniform, _PLAIN.others, loose=2),
    "wald": drawn(POSITIVE[:5], loose=16),
    "weibull_min": drawn(SCALE, POSITIVE[:5], loose=8),
    **dict.fromkeys(("cauchy", "exponential", "gumbel", "laplace", "logistic", "maxwell", "normal", "rademacher"), _PLAIN),
}  # fmt: skip
