# ruff: noqa: E501
"""Calls of every function of ``meshwright.numpy``."""

from __future__ import annotations

import numpy as np
from arguments import (
    ALL,
    BOOL,
    COMPLEX,
    FLOATS,
    INTEGERS,
    NUMPY_SCALARS,
    PYTHON_SCALARS,
    REAL,
    few,
    plain,
    special,
    tied,
)
from kinds import (
    BINARY,
    BINARY_ALIKE,
    BINARY_OF_DTYPES,
    CUMULATIVE,
    DTYPE,
    INITIAL,
    POSITION,
    REDUCTION,
    UNARY,
    WHERE,
    Kind,
    on,
    reduction,
)
from outcomes import Weak, call

TABLE: dict[str, Kind] = {}
#: functions that are tested elsewhere: of functions, files, printing, and of NumPy arrays alone
ELSEWHERE = (
    "apply_along_axis apply_over_axes array_repr array_str broadcast_shapes einsum_path finfo from_dlpack frombuffer fromfile "
    "fromfunction fromiter frompyfunc fromstring get_printoptions iinfo iterable load mask_indices printoptions save savez "
    "set_printoptions vectorize"
)
#: other names of functions of the table
SYNONYMS = {
    "absolute": "abs", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan",
    "arctanh": "atanh", "bitwise_invert": "bitwise_not", "invert": "bitwise_not", "conjugate": "conj", "deg2rad": "radians",
    "rad2deg": "degrees", "amax": "max", "amin": "min", "around": "round", "concat": "concatenate", "atan2": "arctan2",
    "true_divide": "divide", "pow": "power", "mod": "remainder", "bitwise_left_shift": "left_shift",
    "bitwise_right_shift": "right_shift",
}  # fmt: skip


def rows(names: str, kind: Kind) -> None:
    """Give each of these functions the calls of ``kind``; a function may have several."""
    for name in names.split():
        assert name not in TABLE, name
        TABLE[name] = kind


def _without_the_least(c):  # type: ignore[no-untyped-def]
    """A call without the integer that has no magnitude, for whose divisors JAX searches without end."""

    def changed(x):  # type: ignore[no-untyped-def]
        signed = isinstance(x, np.ndarray) and x.dtype.kind == "i"
        return np.where(x == np.iinfo(x.dtype).min, 6, x).astype(x.dtype) if signed else x

    return call(*map(changed, c.args))


def both(*kinds: Kind) -> Kind:
    return Kind(
        lambda d: [c for k in kinds if d in k.dtypes for c in k.by_dtype(d)], sum((k.others for k in kinds), ())
    )


rows(
    "abs angle acos acosh asin asinh atan atanh bitwise_count "
    "bitwise_not cbrt ceil conj cos cosh degrees exp exp2 expm1 fabs floor "
    "frexp i0 imag iscomplex isfinite isinf isnan isneginf isposinf isreal log log10 log1p log2 logical_not "
    "modf negative positive radians real reciprocal rint sign signbit sin sinc sinh spacing sqrt square tan tanh "
    "trunc iscomplexobj isrealobj ndim shape size copy atleast_1d atleast_2d atleast_3d ravel array asarray "
    "isscalar zeros_like ones_like empty_like nonzero flatnonzero argwhere unwrap sort_complex diagflat ediff1d",
    UNARY,
)  # fmt: skip
rows(
    "subtract multiply maximum minimum remainder fmod floor_divide float_power not_equal less_equal greater "
    "greater_equal arctan2 bitwise_or bitwise_xor left_shift right_shift logical_or logical_xor",
    BINARY,
)
rows("add divide power equal less bitwise_and logical_and", BINARY_OF_DTYPES)  # fmt: skip
rows(
    "copysign divmod fmax fmin heaviside hypot ldexp logaddexp logaddexp2 nextafter isclose", BINARY_ALIKE
)  # fmt: skip
rows("gcd lcm", Kind(lambda d: map(_without_the_least, BINARY_ALIKE.by_dtype(d)), BINARY_ALIKE.others))
rows("sum prod", reduction(WHERE, INITIAL, DTYPE))
rows("nansum nanprod", reduction(DTYPE))
rows("max min nanmax nanmin", reduction(INITIAL))
rows("mean nanmean", reduction(WHERE, DTYPE))
rows("var std nanvar nanstd", reduction(WHERE, DTYPE))
rows("all any", reduction(WHERE))
rows("ptp median nanmedian", REDUCTION)
rows("count_nonzero average", REDUCTION)
rows("argmax argmin nanargmax nanargmin", POSITION)


def _with_dtype(kind: Kind) -> Kind:
    return both(kind, Kind(DTYPE))


rows("cumsum cumprod nancumsum nancumprod", _with_dtype(CUMULATIVE))
rows(
    "cumulative_sum cumulative_prod",
    _with_dtype(
        on((3, 4))(lambda x: [call(x, axis=1), call(x, axis=0, include_initial=True), call(x[0]), call(x[:0], axis=0)])
    ),
)


@on((3, 4), values=tied)
def _sorted(x):  # type: ignore[no-untyped-def]
    yield from (call(x), call(x, axis=0), call(x, axis=None), call(x, descending=True), call(x, axis=0, stable=False))
    yield from (call(special(x.dtype)), call(special(x.dtype)[::-1].copy(), descending=True), call(x[:0], axis=0))


rows("sort argsort", _sorted)
rows("partition", on((7,))(lambda x: [call(x, 0), call(x, 6), call(x[:1], 0)]))
rows("argpartition", on((7,))(lambda x: [call(x[:1], 0)]))
rows("lexsort", on((4,), (4,), values=tied)(lambda x, y: [call((x, y)), call((y,)), call(np.stack([x, y]))]))


def _searched(d):  # type: ignore[no-untyped-def]
    values = np.sort(few(d)) if d.kind != "c" else few(d)
    for side in ("left", "right"):
        yield call(values, few(d), side=side)
    yield call(np.sort(plain(d, 3)), 2)
    yield call(plain(d, 4), plain(d, 3, seed=1), sorter=np.argsort(plain(d, 4)))
    yield call(plain(d, 0), plain(d, 3))


rows("searchsorted", Kind(_searched))
rows(
    "digitize",
    on((4,))(
        lambda x: [call(x, np.array([0.0, 1.0, 2.0], np.float32)), call(x, np.array([2, 1], np.int32), right=True)]
    ),
)

SETS = Kind(lambda d: [call(few(d)), call(np.concatenate([few(d), few(d)])), call(plain(d, 0)), call(tied(d, 2, 3))])
rows("unique_values", SETS)
rows("unique_all unique_counts unique_inverse", SETS)
rows(
    "unique",
    both(
        SETS,
        Kind(
            lambda d: [
                call(np.concatenate([few(d), few(d)]), return_index=True, return_inverse=True, return_counts=True),
                call(np.concatenate([few(d), few(d)]), equal_nan=False, return_counts=True),
                call(tied(d, 3, 2), axis=0, return_index=True),
                call(tied(d, 8), size=5, fill_value=1),
                call(tied(d, 8), size=5, return_counts=True),
            ]
        ),
    ),
)
_TWO_SETS = Kind(
    lambda d: [
        call(few(d), few(d)), call(few(d), few(d)[::2].copy()), call(plain(d, 4), plain(d, 3, seed=1)),
        call(plain(d, 0), plain(d, 3)), call(plain(d, 3), plain("int8", 2)), call(plain(d, 3), plain("float32", 4)),
    ]
)  # fmt: skip
_UNIQUE = Kind(lambda d: [call(few(d), few(d)[1::2].copy(), assume_unique=True)])
rows("union1d", both(_TWO_SETS, Kind(lambda d: [call(tied(d, 4), tied(d, 5), size=6, fill_value=1)])))
rows("setdiff1d", both(_TWO_SETS, _UNIQUE, Kind(lambda d: [call(tied(d, 8), plain(d, 2), size=6, fill_value=1)])))
_FILLED = Kind(
    lambda d: [call(tied(d, 8), plain(d, n), size=6, fill_value=v) for n in (2, 0) for v in (1, 2.5, np.int8(3))]
)
rows("setxor1d", both(_TWO_SETS, _UNIQUE, _FILLED))
rows(
    "intersect1d",
    both(_TWO_SETS, _UNIQUE, _FILLED, Kind(lambda d: [call(tied(d, 8), tied(d, 5), return_indices=True)])),
)
rows("isin", both(_TWO_SETS, _UNIQUE, Kind(lambda d: [call(few(d), few(d)[:3].copy(), invert=True)])))

# --- shapes -------------------------------------------------------------------------------------------------
rows(
    "append",
    on((2, 3), (1, 3))(lambda x, y: [call(x, y), call(x, y, axis=0), call(x, 1), call(x, 2.5), call(x, np.int8(1))]),
)
rows("array_split", on((5, 2))(lambda x: [call(x, 3), call(x, [1, 3]), call(x.T, 2, axis=1)]))
rows("split", on((6, 2))(lambda x: [call(x, 3), call(x, [1, 3]), call(x, 2, axis=1)]))
rows("hsplit", on((6, 2))(lambda x: [call(x, 2), call(x[:, 0], 2)]))
rows("vsplit", on((6, 2))(lambda x: [call(x, 2)]))
rows("dsplit", on((2, 3, 4))(lambda x: [call(x, 2)]))
rows(
    "array_equal array_equiv",
    on((2, 3))(lambda x: [call(x, x), call(x, x[:1]), call(x, 1), call(few(x.dtype), few(x.dtype))]),
)
rows("allclose", on((2, 3))(lambda x: [call(x, x), call(x, x + x), call(few(x.dtype), few(x.dtype), equal_nan=True)]))
rows(
    "astype",
    Kind(lambda d: [call(special(d), t) for t in ("bool", "int8", "uint8", "int32", "float16", "bfloat16", "float32", "complex64")],
         (call(Weak(2), "int32"), call(Weak(1.5), float), call(Weak(1.5), int))),
)  # fmt: skip
rows(
    "broadcast_to",
    on((1, 3))(
        lambda x: [call(x, (2, 3)), call(x, (4, 0, 3)), call(x, (2, 2))],
    ),
)
rows("broadcast_arrays", on((1, 3), (2, 1))(lambda x, y: [call(x, y), call(x, 2.0), call(x, 1)]))
rows("choose", on((3,), (3,))(lambda x, y: [call(np.array([0, 1, 1]), [x, y]), call(np.array([0, 3, -1]), [x, y], mode="wrap"),
                                          call(np.array([0, 3, -1]), [x, y], mode="clip"), call(x, [x, y], mode="clip")],
                              others=[call(np.array([0, 1]), [1, 2.5]), call(np.array([0, 1]), [True, 2]), call(0, [])]))  # fmt: skip
rows("clip", Kind(lambda d: [
    call(few(d), 0, 2), call(few(d), -1.5, None), call(few(d), None, 1), call(few(d), plain(d, 1), None), call(few(d), 2, 0),
    call(few(d), np.float32(-1), np.float32(2)), call(few(d), np.array(float("nan"), np.float32)), call(few(d), 0, 2 + 1j),
    call(few(d), True, 3), call(few(d), few(d)[::-1].copy(), few(d)), call(few(d)),
], tuple(call(x, 0, 1) for x in [2, 0.5, True, Weak(3), np.int8(3)])))  # fmt: skip
rows(
    "column_stack hstack vstack dstack",
    on((3,), (3,))(
        lambda x, y: [call((x, y)), call((x, plain("float32", 3))), call([x, 1.0 * np.arange(3)]), call([y[:0]])]
    ),
)
rows("concatenate", on((2, 3), (1, 3))(lambda x, y: [
    call((x, y)), call((x, x), axis=1), call([x, y], axis=None), call((x, plain("float16", 1, 3))), call([x]), call((x, y), dtype="float32"),
], others=[call([np.float32(1), 2.0])]))  # fmt: skip
rows("stack", on((3,), (3,))(lambda x, y: [call((x, y)), call((x, y), axis=-1), call([x, plain("int8", 3)]), call([y], dtype="float32")],
     others=[call([1.0, 2.0]), call([1, np.float32(2)]), call([np.int8(1), 2])]))  # fmt: skip
rows(
    "compress",
    on((3, 4))(lambda x: [call(np.array([True, False, True]), x, axis=0), call(np.array([True, False, True]), x)]),
)
rows("extract", on((3,))(lambda x: [call(np.array([True, False, True]), x)]))
rows("corrcoef", on((3, 4), loose=16)(lambda x: [call(x), call(x, rowvar=False), call(x[0])]))
rows(
    "cov",
    on((3, 4), loose=16)(
        lambda x: [
            call(x),
            call(x, ddof=0),
            call(x[0], x[1]),
            call(x, bias=True),
            call(x, fweights=np.array([1, 2, 1, 3])),
        ]
    ),
)
rows("cross", on((2, 3), (2, 3))(lambda x, y: [call(x, y), call(x, plain("float32", 2, 3)), call(x[:, :2], y[:, :2])]))
rows(
    "delete",
    on((5, 2))(
        lambda x: [call(x, 1), call(x, [0, 3], axis=0), call(x, slice(0, 2), axis=0), call(x, np.array([0, 0]), axis=0)]
    ),
)
rows("diag", on((3, 4))(lambda x: [call(x), call(x, 1), call(x[0]), call(x[0], -1)]))
rows("diagonal trace", on((3, 4))(lambda x: [call(x), call(x, 1), call(x, -5), call(x[None], axis1=1, axis2=2)]))
rows(
    "diff",
    on((3, 4))(
        lambda x: [
            call(x),
            call(x, 2),
            call(x, axis=0),
            call(x, prepend=0, axis=0),
            call(x, append=2),
            call(x, 5),
            call(x, 0),
        ]
    ),
)
rows(
    "gradient",
    on((4, 3))(lambda x: [call(x), call(x, axis=0), call(x, 2), call(x[0], np.array([0.0, 1.0, 3.0], np.float32))]),
)
rows(
    "trapezoid",
    on((3, 4))(lambda x: [call(x), call(x, dx=2), call(x, axis=0), call(x, np.arange(4.0)), call(x, plain("int8", 4))]),
)
_PRODUCT = Kind(lambda d: [
    call(plain(d, 2, 3), plain(d, 3, 4, seed=1)), call(plain(d, 3), plain(d, 3, seed=1)), call(plain(d, 2, 3), plain("float32", 3, 2)),
    call(plain(d, 2, 0), plain(d, 0, 3)), call(plain(d, 2, 3), plain("int8", 3, 2)),
], loose=4)  # fmt: skip
_TYPED = Kind(lambda d: [call(plain(d, 2, 3), plain(d, 3, 4), preferred_element_type=t) for t in ("float32", "int32")])
_SCALED = on((2,))(
    lambda x: [
        call(x, 2),
        call(2.0, x),
        call(x, x[0], preferred_element_type="complex128" if x.dtype.kind == "c" else "float32"),
    ]
)
rows("dot matmul", both(_PRODUCT, _TYPED, _SCALED))
_VECTORS = (lambda d: call(plain(d, 2, 3), plain(d, 2, 3, seed=1)), lambda d: call(plain(d, 3), plain("float32", 3)))
rows("inner", both(_SCALED, Kind(lambda d: [*(c(d) for c in _VECTORS), call(plain(d, 0), plain(d, 0))], loose=4)))
rows("vdot", Kind(lambda d: [*(c(d) for c in _VECTORS), call(plain(d, 0), plain(d, 0))], loose=4))
rows("vecdot", Kind(lambda d: [*(c(d) for c in _VECTORS), call(plain(d, 2, 3), plain(d, 2, 3), axis=0)], loose=4))
rows("matvec", on((2, 3), (3,), loose=4)(lambda x, y: [call(x, y), call(x, plain("float32", 3))]))
rows("vecmat", on((3,), (3, 2), loose=4)(lambda x, y: [call(x, y), call(x, plain("float32", 3, 2))]))
rows("outer kron", on((2,), (3,))(lambda x, y: [call(x, y), call(x, plain("float32", 3)), call(x, 2), call(y, 0.5)]))
rows(
    "tensordot",
    on((2, 3), (3, 2), loose=4)(lambda x, y: [call(x, y, 1), call(x, y), call(x, y, 0), call(x, y, ([0], [1]))]),
)
rows(
    "einsum",
    on((2, 3), (3, 2), loose=4)(
        lambda x, y: [
            call("ij,jk->ik", x, y),
            call("ij->ji", x),
            call("ij->", x),
            call("ij,jk", x, plain("float32", 3, 2)),
            call("i,->i", x[0], 2),
            call("ij->i", x, preferred_element_type="float16"),
        ]
    ),
)
rows("convolve correlate", Kind(lambda d: [call(plain(d, 4), plain(d, 3), mode=m) for m in ("full", "same", "valid")]
     + [call(plain(d, 4), plain("float32", 3)), call(plain(d, 2), plain("int8", 3)), call(plain(d, 2), plain("int32", 3))], loose=4))  # fmt: skip
rows("expand_dims", on((2, 3))(lambda x: [call(x, 0), call(x, (0, -1))], others=[call(2.0, 0)]))
rows(
    "fill_diagonal",
    on((3, 3))(
        lambda x: [
            call(x, 2, inplace=False),
            call(x, 1.5, inplace=False),
            call(x, x[0], inplace=False),
            call(x, 1, wrap=True, inplace=False),
        ]
    ),
)
rows("flip", on((2, 3))(lambda x: [call(x), call(x, 0), call(x, (0, 1))]))
rows("fliplr flipud rot90 transpose matrix_transpose", on((2, 3))(lambda x: [call(x)]))
rows("full", Kind(lambda d: [call((2, 3), plain(d)), call((2,), 3, dtype=d.name), call((2,), float("nan"), dtype=d.name), call(3, plain(d, 3))],
     tuple(call(2, v) for v in [*PYTHON_SCALARS, *NUMPY_SCALARS, Weak(2)])))  # fmt: skip
rows("full_like", Kind(lambda d: [call(plain(d, 2, 3), 3), call(plain(d, 2), -2.5), call(plain(d, 2), 1, dtype="float32"), call(plain(d, 2), 1, shape=(3,)), call(plain(d, 2), plain("float32", 2))],
     (call(2, 3), call(0.5, 2), call(Weak(2), 0.5))))  # fmt: skip
_COUNTED = on((6,))(
    lambda x: [call(x), call(x, bins=3), call(x, bins=np.array([-1.0, 0.0, 2.0])), call(x, range=(0, 2))]
)
rows(
    "histogram",
    both(
        _COUNTED,
        on((6,))(
            lambda x: [call(x, weights=plain("float32", 6)), call(x, weights=plain("int8", 6)), call(x, density=True)]
        ),
    ),
)
rows("histogram_bin_edges", _COUNTED)
rows("histogram2d", on((6,), (6,))(lambda x, y: [call(x, y, bins=3), call(x, y, bins=2, weights=plain("float32", 6))]))
rows("histogramdd", on((6, 2))(lambda x: [call(x, bins=3)]))
rows(
    "bincount",
    on((5,), dtypes=[BOOL, *INTEGERS])(
        lambda x: [
            call(x),
            call(np.minimum(x, 0).astype(x.dtype)),
            call(x, length=4),
            call(x, minlength=9),
            call(abs(x), weights=plain("float32", 5)),
            call(abs(x), weights=plain("int8", 5)),
            call(x[:0]),
        ]
    ),
)
rows(
    "insert",
    on((4, 2))(
        lambda x: [call(x, 1, 3), call(x, 1, 2.5, axis=0), call(x, [0, 2], 1, axis=0), call(x, slice(0, 2), 2, axis=0)]
    ),
)
rows("interp", on((4,))(lambda x: [call(x, np.array([0.0, 1.0, 2.0], np.float32), plain(x.dtype, 3)), call(x, np.array([0, 1, 2]), np.array([5, 6, 8]), left=-1, right=9),
     call(few(x.dtype), np.array([0.0, 1.0, 2.0], np.float32), np.array([5.0, 6.0, 8.0], np.float32)), call(x, np.array([0, 1, 2]), np.array([5, 6, 8]), period=3)]))  # fmt: skip
rows("linspace", Kind(lambda d: [call(plain(d, 2), plain(d, 2, seed=1), 4), call(plain(d), 5, 3, endpoint=False), call(0, 3, 4, dtype=d.name), call(plain(d), 2, 3, retstep=True), call(plain(d), 2, 1), call(plain(d), 2, 0)],
     (call(0, 1, 5), call(0.5, 2), call(1, 10, 4, dtype=int), call(-1, 3, 5, dtype="int8"), call(0, 1j, 3), call(Weak(0), 2.0, 3))))  # fmt: skip
rows(
    "logspace geomspace",
    Kind(
        lambda d: [
            call(abs(plain(d, 2)), abs(plain(d, 2)) + abs(plain(d, 2)), 3) if d != BOOL else call(1, 2, 3),
            call(1, 2, 3, dtype=d.name),
        ],
        (call(1, 3, 4), call(1.0, 2.0, 3, endpoint=False), call(1, 1000, 4, dtype=int)),
    ),
)
rows("arange", Kind(lambda d: [call(4, dtype=d.name), call(2, 7, 3, dtype=d.name), call(5, 1, -2, dtype=d.name)], (
    call(4), call(2, 5), call(0, 1, 0.3), call(3.5), call(5, 0, -1), call(np.int8(3)), call(np.float32(3)), call(1, np.int16(4)), call(3, 1), call(np.uint8(2), 5), call(2.0, 5),
)))  # fmt: skip
rows(
    "ones zeros empty",
    Kind(
        lambda d: [call((2, 3), d.name), call(3, dtype=d.name)],
        (
            call(2),
            call((0, 2)),
            call([2, 3]),
            call(np.int32(2)),
            call(2, int),
            call(2, float),
            call(2, complex),
            call(2, bool),
        ),
    ),
)
rows("eye", Kind(lambda d: [call(2, 3, dtype=d.name), call(3, k=1, dtype=d.name)], (call(3), call(2, 4, -1))))
rows("identity tri", Kind(lambda d: [call(3, dtype=d.name)], (call(2), call(0))))
rows(
    "ix_",
    on((2,), (3,))(
        lambda x, y: [call(x, y)],
    ),
)
rows(
    "meshgrid",
    on((2,), (3,))(lambda x, y: [call(x, y), call(x, y, indexing="ij"), call(x, y, sparse=True), call(x, 2.0)]),
)
rows("moveaxis swapaxes", on((2, 3, 4))(lambda x: [call(x, 0, 2), call(x, -1, 0)]))
rows("rollaxis", on((2, 3, 4))(lambda x: [call(x, 2), call(x, 1, 3)]))
rows("permute_dims", on((2, 3, 4))(lambda x: [call(x, (2, 0, 1))]))
rows("nan_to_num", both(UNARY, Kind(lambda d: [call(special(d), nan=3.5, posinf=2, neginf=-1)])))
rows("packbits", on((3, 9))(lambda x: [call(x), call(x, axis=1), call(x, bitorder="little", axis=0)]))
rows("unpackbits", on((3, 2))(lambda x: [call(x), call(x, axis=1, count=5), call(x, bitorder="little", axis=0)]))
rows("pad", on((2, 3))(lambda x: [call(x, 1), call(x, ((1, 2), (0, 1)), constant_values=2), call(x, 1, constant_values=1.5), *(call(x, ((1, 1), (2, 0)), mode=m) for m in
     ("edge", "reflect", "symmetric", "wrap", "linear_ramp", "maximum", "mean", "median", "minimum", "empty"))]))  # fmt: skip
rows(
    "percentile nanpercentile",
    Kind(
        lambda d: [
            call(tied(d, 3, 4), 30),
            call(plain(d, 3, 4), 50, axis=0),
            call(plain(d, 3, 4), np.array([0.0, 25, 100], np.float32), axis=1),
            *(call(plain(d, 5), 40, method=m) for m in ("lower", "higher", "nearest", "midpoint")),
        ],
        loose=8,
    ),
)
rows(
    "quantile nanquantile",
    Kind(
        lambda d: [
            call(tied(d, 3, 4), 0.3),
            call(plain(d, 3, 4), 0.5, axis=0, keepdims=True),
            call(plain(d, 3, 4), np.array([0.0, 0.25, 1], np.float32), axis=1),
            call(plain(d, 4), np.array([0.5, np.nan, 2.0], np.float32)),
        ],
        loose=8,
    ),
)
rows(
    "piecewise",
    on((4,))(
        lambda x: [
            call(x, [x > x[0], x <= x[0]] if x.dtype.kind != "c" else [x == x], [1, 2] if x.dtype.kind != "c" else [1])
        ]
    ),
)
rows(
    "place",
    on((4,))(
        lambda x: [
            call(x, plain(BOOL, 4), plain(x.dtype, 2), inplace=False),
            call(x, plain(BOOL, 4), [1], inplace=False),
        ]
    ),
)
rows(
    "put",
    on((4,))(
        lambda x: [
            call(x, np.array([0, 2]), 3, inplace=False),
            call(x, np.array([5, -1]), plain(x.dtype, 2), mode="wrap", inplace=False),
            call(x, np.array([9, -1]), 2.5, mode="clip", inplace=False),
        ]
    ),
)
rows(
    "put_along_axis",
    on((3, 4))(
        lambda x: [
            call(x, np.array([[0], [1], [3]]), 2, 1, inplace=False),
            call(x, np.array([[0, 0, 1, 2]]), 1.5, 0, inplace=False),
        ]
    ),
)
rows(
    "take_along_axis",
    on((3, 4))(
        lambda x: [
            call(x, np.array([[0], [1], [3]]), 1),
            call(x, np.array([[0], [-1], [9]]), 1),
            call(x, np.array([0, 5]), None, mode="clip"),
        ]
    ),
)
rows(
    "take",
    on((3, 4))(
        lambda x: [
            call(x, 1),
            call(x, np.array([0, -1, 20])),
            call(x, np.array([0, -1, 5]), axis=0),
            call(x, np.array([5, -7]), axis=1, mode="wrap"),
            call(x, np.array([5, -7]), axis=1, mode="clip"),
            call(x, np.array([5]), mode="fill", fill_value=2),
        ]
    ),
)
rows(
    "polyadd polysub polymul",
    on((3,), (2,))(lambda x, y: [call(x, y), call(x, plain("float32", 2)), call(y, x), call(x, plain("int8", 2))]),
)
rows("polydiv", on((3,), (2,), dtypes=[*FLOATS, *COMPLEX], loose=8)(lambda x, y: [call(x, y)]))
rows("polyder polyint", on((3,))(lambda x: [call(x), call(x, 2), call(x, 0)]))
rows(
    "polyval",
    on((3,), (4,), loose=4)(lambda x, y: [call(x, y), call(x, 2), call(x, plain("float32", 2)), call(x[:0], y)]),
)
rows(
    "polyfit",
    on((5,), loose=200, dtypes=[d for d in REAL if d.kind != "b"])(
        lambda x: [call(np.arange(5.0, dtype=np.float32), x, 1)]
    ),
)
rows("poly", on((3,), loose=8)(lambda x: [call(x), call(x[:0])]))
rows("vander", on((3,))(lambda x: [call(x), call(x, 2), call(x, increasing=True), call(x, 0)]))
rows(
    "repeat",
    on((2, 3))(
        lambda x: [
            call(x, 2),
            call(x, 2, axis=0),
            call(x, np.array([1, 0, 2]), axis=1),
            call(x, np.array([1, 2]), axis=0, total_repeat_length=4),
            call(x, np.array([2, 0]), axis=0, total_repeat_length=5),
            call(x, 0, total_repeat_length=2),
        ]
    ),
)
rows("tile", on((2, 3))(lambda x: [call(x, 2), call(x, (2, 1, 2)), call(x, 0)]))
rows(
    "reshape",
    on((2, 3))(
        lambda x: [call(x, (3, 2)), call(x, -1), call(x, (6, 1), order="F")],
        others=[call(2.0, (1,)), call(Weak(2), (1, 1))],
    ),
)
rows("resize", on((2, 3))(lambda x: [call(x, (3, 3)), call(x, 4), call(x, (0,))]))
rows("roll", on((2, 3))(lambda x: [call(x, 1), call(x, -4, axis=1), call(x, (1, 2), axis=(0, 1))]))
rows("round", both(UNARY, Kind(lambda d: [call(special(d), 1), call(special(d), -1)])))
rows(
    "select",
    on((3,), (3,))(
        lambda x, y: [
            call([plain(BOOL, 3), ~plain(BOOL, 3)], [x, y]),
            call([plain(BOOL, 3)], [x], 2),
            call([plain(BOOL, 3)], [x], 1.5),
            call([plain(BOOL, 3)], [x], np.int8(1)),
        ]
    ),
)
rows("where", both(on((3,), (3,))(lambda x, y: [call(plain(BOOL, 3), x, y), call(x, 1, y), call(plain(BOOL, 3), x, 2.5), call(plain(BOOL, 3), 1j, x), call(plain(BOOL, 3), x, plain("float32", 3)), call(x)]),
     Kind(lambda d: [], (call(True, 1, 2.5), call(plain(BOOL, 3), 1, 2), call(True, Weak(1), 2), call(plain(BOOL, 2), np.float32(1), 2)))))  # fmt: skip
rows("squeeze", on((1, 3, 1))(lambda x: [call(x), call(x, 0)]))
rows("unstack", on((2, 3))(lambda x: [call(x), call(x, axis=1)]))
rows("tril triu", on((3, 4))(lambda x: [call(x), call(x, 1), call(x, -9)]))
rows("trim_zeros", on((4,))(lambda x: [call(np.concatenate([x[:0], np.zeros(2, x.dtype), x])), call(x[:0])]))
rows("unravel_index", on((3,), dtypes=INTEGERS)(lambda x: [call(abs(x), (2, 3)), call(x, (2, 3))]))
rows(
    "ravel_multi_index",
    on((3,), dtypes=INTEGERS)(
        lambda x: [
            call((abs(x) % 2, abs(x) % 3), (2, 3)),
            call((abs(x), abs(x)), (2, 3), mode="wrap"),
            call((abs(x), abs(x)), (2, 3), mode="clip"),
        ]
    ),
)
rows("block", on((2, 2), (2, 1))(lambda x, y: [call([[x, y], [y, x]]), call([x, y]), call(x)]))
rows("indices", Kind(lambda d: [call((2, 3), dtype=d.name)], (call((2, 3)), call((2, 3), sparse=True))))
rows("bartlett blackman hamming hanning", Kind(lambda d: [], (call(5), call(4), call(1), call(0))))
rows("kaiser", Kind(lambda d: [], (call(5, 2.0), call(1, 0), call(0, 1), call(4, 3))))
rows("diag_indices", Kind(lambda d: [], (call(3), call(2, 3))))
rows("tril_indices triu_indices", Kind(lambda d: [], (call(3), call(3, 1), call(3, -1, 2))))
rows("diag_indices_from", on((3, 3))(lambda x: [call(x)]))
rows("tril_indices_from triu_indices_from", on((3, 2))(lambda x: [call(x), call(x, 1)]))
rows("promote_types can_cast", Kind(lambda d: [call(d, e) for e in ALL], (call("int8", "float16"),)))
rows("result_type", Kind(lambda d: [call(d, e) for e in ALL] + [call(plain(d, 2), n) for n in [*PYTHON_SCALARS, *NUMPY_SCALARS]],
     (call(1, 2.0), call(1), call(True, 1j), call(np.float32(1), 2), call(int), call(float, "int8"), call(Weak(1), "float16"))))  # fmt: skip
rows(
    "roots",
    on((3,), loose=64, dtypes=[d for d in ALL if d.name not in ("float16", "bfloat16")])(
        lambda x: [call(x, strip_zeros=False)]
    ),
)
rows("isdtype issubdtype", Kind(lambda d: [call(d, e) for e in (np.integer, np.floating, np.inexact, np.number)]))
