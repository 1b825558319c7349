"""Calls of functions of ``meshwright.nn`` and ``meshwright.scipy``, by their names in the package."""

# ruff: noqa: E501
from __future__ import annotations

import numpy as np
from arguments import BOOL, FLOATS, INTEGERS, few, plain
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
rows(
    "nn.logsumexp",
    on((3, 4), dtypes=REAL_KINDS, loose=4)(
        lambda x: [
            call(x),
            call(x, axis=0),
            call(x, axis=1, keepdims=True),
            call(x, where=_MASK),
            call(x, b=x),
            call(x, axis=1, b=x, return_sign=True),
            call(few(x.dtype)),
        ],
        others=[call(2), call(0.5)],
    ),
)
rows(
    "nn.logmeanexp",
    on((3, 4), dtypes=REAL_KINDS, loose=4)(
        lambda x: [call(x), call(x, axis=0), call(x, axis=1, keepdims=True), call(x, where=_MASK)]
    ),
)
rows("nn.one_hot", on((4,), dtypes=INTEGERS)(lambda x: [call(x, 3), call(x, 3, axis=0), call(x, 3, dtype="int8")]))
rows(
    "scipy.special.logsumexp",
    on((3, 4), dtypes=REAL_KINDS, loose=4)(
        lambda x: [
            call(x),
            call(x, axis=0),
            call(x, where=_MASK),
            call(x, axis=1, b=x, return_sign=True),
            call(x, axis=1, where=_MASK, keepdims=True),
        ]
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
