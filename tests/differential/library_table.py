"""Calls of functions of ``meshwright.nn`` and ``meshwright.scipy``, by their names in the package."""

# ruff: noqa: E501
from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
from arguments import BOOL, FLOATS, INTEGERS, few, plain, tied
from kinds import UNARY, Kind, on
from outcomes import call

TABLE: dict[str, Kind] = {}
REAL_KINDS = [*INTEGERS, *FLOATS]


def rows(names: str, kind: Kind) -> None:
    for name in names.split():
        assert name not in TABLE, name
        TABLE[name] = kind


_NUMBERS = Kind(UNARY.by_dtype, UNARY.others, REAL_KINDS, 4)
rows(
    "nn.celu nn.elu nn.gelu nn.hard_sigmoid nn.hard_silu nn.hard_tanh nn.identity nn.leaky_relu nn.log1mexp nn.log_sigmoid "
    "nn.mish nn.relu nn.relu6 nn.selu nn.sigmoid nn.silu nn.soft_sign nn.softplus nn.sparse_plus nn.sparse_sigmoid "
    "nn.squareplus nn.tanh",
    _NUMBERS,
)
rows("nn.glu", on((2, 4), dtypes=FLOATS)(lambda x: [call(x), call(x, axis=0)]))
_MASK = plain(BOOL, 3, 4)
rows(
    "nn.softmax nn.log_softmax nn.standardize",
    on((3, 4), dtypes=REAL_KINDS, loose=4)(
        lambda x: [call(x), call(x, axis=0), call(x, axis=(0, 1)), call(x, where=_MASK)]
    ),
)


def _sums(x):  # type: ignore[no-untyped-def]
    return [call(x), call(x, axis=0), call(x, axis=1, keepdims=True), call(x, where=_MASK)]


rows(
    "nn.logsumexp",
    on((3, 4), dtypes=REAL_KINDS, loose=4)(
        lambda x: [
            *_sums(x),
            call(x, b=x),
            call(x, axis=1, b=x, return_sign=True),
            call(few(x.dtype)),
        ],
        others=[call(2), call(0.5)],
    ),
)
rows("nn.logmeanexp", on((3, 4), dtypes=REAL_KINDS, loose=4)(_sums))
rows("nn.one_hot", on((4,), dtypes=INTEGERS)(lambda x: [call(x, 3), call(x, 3, axis=0), call(x, 3, dtype="int8")]))
rows(
    "scipy.special.logsumexp",
    on((3, 4), dtypes=REAL_KINDS, loose=4)(
        lambda x: [*_sums(x), call(x, axis=1, b=x, return_sign=True), call(x, axis=1, where=_MASK, keepdims=True)]
    ),
)
_F32 = [np.dtype("float32"), np.dtype("float64"), np.dtype("int32")]
rows(
    "scipy.linalg.toeplitz",
    on((3,), (2, 3))(lambda x, y: [call(x), call(x, x), call(y), call(y, x), call(y, y), call(x, y)]),
)
rows("scipy.linalg.hankel", on((3,), (2, 3))(lambda x, y: [call(x), call(x, x), call(y), call(y, x), call(y, y)]))


@on((3, 3), (3,), (3, 2), dtypes=_F32, loose=64)
def _systems(a, b, c):  # type: ignore[no-untyped-def]
    definite = (a @ a.T + 9 * np.eye(3)).astype(a.dtype)
    yield from (call(definite, b), call(definite, c), call(np.tril(definite), b, lower=True, assume_a="pos"))
    yield from (call(np.triu(definite), c, assume_a="pos"), call(definite, c, assume_a="sym"))


rows("scipy.linalg.solve", _systems)


@on((3, 2), (2,), dtypes=_F32, loose=16)
def _normals(x, m):  # type: ignore[no-untyped-def]
    unit = np.eye(2, dtype=x.dtype)
    yield from (call(x, m, unit), call(x, m, np.array(2, x.dtype)), call(x, np.array(1, x.dtype), np.array(2, x.dtype)))
    yield from (call(x, x[:, None], unit), call(x, m, np.stack([unit] * 3)), call(x[0, 0], 0.0, 2.0))


rows("scipy.stats.multivariate_normal.logpdf scipy.stats.multivariate_normal.pdf", _normals)
_COUNTS = np.arange(6, dtype=np.float32)
rows(
    "scipy.special.comb",
    Kind(lambda d: [], (call(_COUNTS[:, None], _COUNTS), call(_COUNTS[1:, None], _COUNTS, repetition=True))),
)
for name in (
    "entr",
    "expit",
    "erf",
    "gammaln",
    "digamma",
    "i0e",
    "i1e",
    "log_ndtr",
    "logit",
    "ndtr",
    "ndtri",
    "gammasgn",
    "erfinv",
    "exp1",
    "expi",
    "spence",
    "factorial",
):
    TABLE[f"scipy.special.{name}"] = Kind(lambda d: [call(few(d))], (), FLOATS, 64)
for name in ("xlogy", "xlog1py", "rel_entr", "kl_div", "betaln", "zeta", "boxcox", "gammainc", "gammaincc"):
    TABLE[f"scipy.special.{name}"] = Kind(lambda d: [call(few(d)[:, None], few(d))], (), FLOATS, 64)


# --- statistics ---------------------------------------------------------------------------------------------
#: values of ``scipy.stats`` functions' parameters by name, in and out of their range
_PARAMETERS = {
    "x": (0.0, -0.0, 0.25, 1.0, 2.0, -1.5, 7.0, np.inf, -np.inf, np.nan),
    "q": (0.0, 0.25, 0.5, 1.0, -0.5, 1.5, np.nan),
    "k": (0.0, 1.0, 2.0, 3.0, -1.0, 0.5, 9.0, np.nan),
    "loc": (0.0, 1.0),
    "scale": (1.0, 2.0, 0.0, -1.0),
    "p": (0.3, 0.0, 1.0, -0.5, 1.5, np.nan),
    "n": (4.0, 0.0, -1.0, 2.5),
    "a": (0.5, 2.0, 0.0, -1.0),
    "b": (1.5, 3.0, 0.0, -1.0),
}
_OTHERWISE = (1.5, 0.5, 0.0, -1.0, np.nan)
#: of functions of vectors, or of no parameters
_APART = "dirichlet multinomial multivariate_normal gaussian_kde"


def _density(parameters: list[str]) -> Kind:
    grid = np.meshgrid(*[_PARAMETERS.get(p, _OTHERWISE) for p in parameters], indexing="ij")
    needed = [i for i, p in enumerate(parameters) if p not in ("loc", "scale")]

    def by_dtype(d: np.dtype) -> list[Any]:
        if d.kind in "iu":
            return [call(*(np.array([0, 1, 2, 5], d) for _ in needed))]
        least = [np.ascontiguousarray(grid[i][(..., *[0] * (len(parameters) - len(needed)))]).ravel() for i in needed]
        return [call(*(g.ravel().astype(d) for g in grid)), call(*(v.astype(d) for v in least))]

    return Kind(by_dtype, (call(*(0.5 for _ in needed)),), [*FLOATS, np.dtype("int32"), np.dtype("uint8")], 256)


def _densities() -> Iterator[tuple[str, Kind]]:
    ours, theirs = (importlib.import_module(f"{package}.scipy.stats") for package in ("meshwright", "jax"))
    for name in dir(theirs):
        module, found = getattr(theirs, name), getattr(ours, name, None)
        if name in _APART.split() or not isinstance(module, ModuleType) or name[0] == "_":
            continue
        for function in dir(module):
            if function[0] != "_" and hasattr(found, function):
                parameters = list(inspect.signature(getattr(module, function)).parameters)
                yield f"scipy.stats.{name}.{function}", _density(parameters)


TABLE.update(_densities())
_SIMPLEX = np.array([0.2, 0.3, 0.5], np.float32)
rows(
    "scipy.stats.dirichlet.logpdf scipy.stats.dirichlet.pdf",
    on((3,), dtypes=FLOATS, loose=64)(
        lambda a: [
            call(_SIMPLEX.astype(a.dtype), abs(a)),
            call(_SIMPLEX.astype(a.dtype), a),
            call(_SIMPLEX.astype(a.dtype) * 2, abs(a)),
            call(np.array([0, 0.5, 0.5], a.dtype), abs(a)),
        ]
    ),
)
rows(
    "scipy.stats.multinomial.logpmf scipy.stats.multinomial.pmf",
    on((3,), dtypes=REAL_KINDS, loose=64)(
        lambda x: [
            call(abs(x), 6, _SIMPLEX),
            call(abs(x), 5, _SIMPLEX),
            call(np.array([0, 0, 2], x.dtype), 2, np.array([0.5, 0.5, 0.0], np.float32)),
        ]
    ),
)
rows(
    "scipy.stats.mode",
    on((3, 4), values=tied, dtypes=REAL_KINDS)(
        lambda x: [call(x), call(x, axis=1, keepdims=True), call(x, axis=None), call(x[:0])]
    ),
)
rows(
    "scipy.stats.rankdata",
    on((3, 4), values=tied, dtypes=REAL_KINDS)(
        lambda x: [
            call(x),
            call(x, axis=1),
            *(call(x, m) for m in ("min", "max", "dense", "ordinal", "no")),
            call(x[:0]),
        ]
    ),
)
rows(
    "scipy.stats.sem",
    on((3, 4), dtypes=REAL_KINDS, loose=8)(
        lambda x: [call(x), call(x, axis=1, ddof=0), call(x, axis=None), call(x, keepdims=True), call(x[:1])]
    ),
)

# --- sums of rows with one number ---------------------------------------------------------------------------
_ROW_NUMBERS = [np.array([2, 0, 1, 0], t) for t in ("int8", "uint8", "uint16", "uint32", "int32")]
_ROW_NUMBERS += [np.array([1, -1, 5, 1], "int8"), np.array([-3, -1, -1, -2], "int32")]
rows(
    "ops.segment_sum ops.segment_prod ops.segment_max ops.segment_min",
    on((4, 2), (0,))(
        lambda x, none: [
            *(call(x, i) for i in _ROW_NUMBERS[:-1]),
            *(call(x[:, 0], i, 4) for i in _ROW_NUMBERS),
            *(call(none, i[:0], 2) for i in _ROW_NUMBERS),
            call(x, np.array([0, 0, 1, 3], "uint8"), 3, indices_are_sorted=True),
            call(x, _ROW_NUMBERS[0], 3, bucket_size=3),
        ]
    ),
)

# --- special functions --------------------------------------------------------------------------------------
for name in ("dawsn", "erfc", "erfcx", "gamma", "i0", "i1", "sici", "fresnel", "loggamma"):
    TABLE[f"scipy.special.{name}"] = Kind(lambda d: [call(few(d))], (call(2), call(0.5)), FLOATS, 64)
for name in ("beta", "boxcox1p", "owens_t", "poch"):
    TABLE[f"scipy.special.{name}"] = Kind(lambda d: [call(few(d)[:, None], few(d))], (call(2, 3.5),), FLOATS, 256)
_ORDERS = np.array([0, 1, 2, 3, 5], np.int32)
TABLE["scipy.special.expn"] = Kind(lambda d: [call(_ORDERS[:, None], few(d))], (call(2, 0.5),), FLOATS, 64)
TABLE["scipy.special.polygamma"] = Kind(lambda d: [call(_ORDERS[:, None], few(d))], (call(2, 0.5),), FLOATS, 256)
TABLE["scipy.special.multigammaln"] = Kind(lambda d: [call(few(d), 2), call(few(d), 1)], (call(3.5, 2),), FLOATS, 64)
TABLE["scipy.special.betainc"] = Kind(
    lambda d: [call(few(d)[:, None, None], few(d)[:, None], np.array([0, 0.3, 1, -1, np.nan], d))], (), FLOATS, 256
)
TABLE["scipy.special.bernoulli"] = Kind(lambda d: [], tuple(call(n) for n in (0, 1, 2, 3, 9, 12)), loose=4)
rows(
    "scipy.special.softmax scipy.special.log_softmax",
    on((3, 4), dtypes=REAL_KINDS, loose=4)(lambda x: [call(x), call(x, axis=0), call(few(x.dtype))]),
)
