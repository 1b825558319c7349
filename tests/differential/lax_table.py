# ruff: noqa: E501
"""Calls of every function of ``meshwright.lax`` that ``jax.lax`` has, too."""

from __future__ import annotations

from typing import Any

import numpy as np
from arguments import BOOL, COMPLEX, FLOATS, INTEGERS, few, plain, special, tied
from kinds import BINARY_ALIKE, ONE_OF_EACH, UNARY, Kind, on
from outcomes import Of, Weak, call

TABLE: dict[str, Kind] = {}
#: functions that are tested elsewhere: of functions, collectives, control flow, shapes without values, randomness
ELSEWHERE = (
    "DotDimensionNumbers all_gather all_to_all axis_index axis_size composite cond conv_dimension_numbers "
    "conv_general_permutations conv_general_shape_tuple conv_shape_tuple conv_transpose_shape_tuple custom_linear_solve "
    "custom_root fori_loop map optimization_barrier padtype_to_pads pbroadcast pcast platform_dependent pmax pmean pmin "
    "ppermute pshuffle psum psum_scatter pswapaxes scan switch while_loop with_sharding_constraint shape_as_value "
    "reduce_window_shape_tuple rng_uniform broadcast_like ragged_all_to_all ragged_dot_general scaled_dot"
)
SYNONYMS: dict[str, str] = {}


def rows(names: str, kind: Kind) -> None:
    """Give each of these functions the calls of ``kind``."""
    for name in names.split():
        assert name not in TABLE, name
        TABLE[name] = kind


def of(path: str) -> Of:
    """A function of the library that is called."""

    def find(package: Any) -> Any:
        for part in path.split("."):
            package = getattr(package, part)
        return package

    return Of(find, path)


rows(
    "abs acos acosh asin asinh atan atanh bitwise_not cbrt ceil clz conj cos cosh erf erfc exp exp2 expm1 floor imag "
    "is_finite log log1p logistic neg population_count real reciprocal round rsqrt sign sin sinh sqrt square "
    "stop_gradient tan tanh",
    UNARY,
)
rows("bessel_i0e bessel_i1e digamma erf_inv lgamma", Kind(UNARY.by_dtype, UNARY.others, loose=16))
rows(
    "add atan2 bitwise_and bitwise_or bitwise_xor complex div eq ge gt le lt max min mul ne nextafter pow rem sub "
    "shift_left shift_right_arithmetic shift_right_logical mulhi",
    BINARY_ALIKE,
)
rows(
    "igamma igammac igamma_grad_a polygamma zeta random_gamma_grad",
    Kind(lambda d: [call(few(d)[:, None], few(d)), call(plain(d, 3), 2.0)], loose=64),
)
rows(
    "betainc",
    on((3,), (3,), loose=64)(
        lambda a, b: [
            call(abs(a), abs(b), (abs(a) / 8).astype(a.dtype)),
            call(a, b, b),
            call(few(a.dtype), few(a.dtype)[::-1].copy(), few(a.dtype)),
        ]
    ),
)
rows("clamp", Kind(lambda d: [call(plain(d)[()] * 0, few(d), plain(d)[()]), call(few(d), few(d)[::-1].copy(), few(d)), call(0, few(d), 1), call(plain(d, 3), plain(d, 3, seed=1), 2)], (call(0.0, 3.0, 2.0), call(Weak(0), Weak(3), Weak(2)))))  # fmt: skip
rows(
    "integer_pow",
    Kind(lambda d: [call(special(d), n) for n in (0, 1, 2, 3, -1, -2)], (call(2, 3), call(0.5, -1), call(Weak(2), 2))),
)
rows(
    "select",
    on((3,), (3,))(
        lambda x, y: [call(plain(BOOL, 3), x, y), call(np.bool_(True), x, y), call(plain(BOOL, 3), x, y[:1])]
    ),
)
rows(
    "select_n",
    on((3,), (3,))(
        lambda x, y: [
            call(plain(BOOL, 3), x, y),
            call(np.array([0, 2, 1], np.int32), x, y, x),
            call(np.array([0, 1, 1], np.int32), x, y),
            call(np.array(1, np.int32), x, y),
            call(np.array([True, False, True]), x, 2.0),
        ]
    ),
)
rows(
    "reduce_precision",
    Kind(lambda d: [call(special(d), 5, 10), call(special(d), 8, 3), call(special(d), 4, 3), call(special(d), 11, 52)]),
)
rows("convert_element_type", Kind(lambda d: [call(special(d), t) for t in ("bool", "int8", "uint8", "int32", "uint32", "int64", "float16", "bfloat16", "float32", "complex64")],
     (call(Weak(2), "int32"), call(Weak(1.5), float), call(2, float), call(1.5, int), call(True, complex))))  # fmt: skip
rows(
    "bitcast_convert_type",
    Kind(
        lambda d: (
            [call(few(d), t) for t in ("int8", "uint8", "int16", "int32", "uint32", "float16", "float32")]
            + [call(plain(d, 2, 4), "int32"), call(plain(d, 2, 2), "int32")]
        )
    ),
)

# --- shapes -------------------------------------------------------------------------------------------------
rows("broadcast", on((2, 3))(lambda x: [call(x, (2,)), call(x, ()), call(x, (0, 2))], others=[call(2.0, (3,))]))
rows(
    "broadcast_in_dim",
    on((1, 3))(
        lambda x: [call(x, (2, 3), (0, 1)), call(x, (1, 3, 2), (0, 1)), call(x, (3, 1), (1, 0))],
        others=[call(2, (3,), ())],
    ),
)
rows("broadcast_shapes", Kind(lambda d: [], (call((2, 1), (1, 3)), call((2,), (3,)), call((), (0, 2)), call())))
rows("broadcast_to_rank", on((2, 3))(lambda x: [call(x, 3), call(x, 2), call(x, 1)]))
rows("iota", Kind(lambda d: [call(d.name, 4), call(d.name, 0)], (call(int, 3), call(float, 3))))
rows("broadcasted_iota", Kind(lambda d: [call(d.name, (2, 3), 1), call(d.name, (2, 0), 0), call(d.name, (2,), -1)]))
rows("collapse", on((2, 3, 2))(lambda x: [call(x, 0), call(x, 1, 3), call(x, 0, -1), call(x, -2)]))
rows(
    "concatenate",
    on((2, 3), (1, 3))(
        lambda x, y: [
            call([x, y], 0),
            call((x, x), 1),
            call([x], -1),
            call([x, y[:0]], 0),
            call([x, plain("float32", 2, 3)], 0),
        ]
    ),
)
rows("stack", on((2, 3), (2, 3))(lambda x, y: [call([x, y]), call([x, y], 1), call([x], -1)]))
rows("unstack", on((2, 3))(lambda x: [call(x), call(x, 1)]))
rows("dtype", Kind(lambda d: [call(plain(d, 2)), call(d.name)], (call(2), call(0.5), call(True), call(1j))))
rows("empty", Kind(lambda d: [call((2, 0), d.name), call((), d.name)]))
rows(
    "full",
    Kind(
        lambda d: [call((2,), 3, d.name), call((2, 0), plain(d)), call((), 2, dtype=d.name)],
        (call((2,), 1), call((2,), 0.5), call(3, True), call((2,), Weak(2)), call((1,), np.int8(1))),
    ),
)
rows(
    "full_like",
    Kind(
        lambda d: [call(plain(d, 2), 3), call(plain(d, 2), 1.5, shape=(3,)), call(plain(d, 2), 2, dtype="float32")],
        (call(2, 3), call(Weak(2), 0.5), call(0.5, 2, shape=(2,))),
    ),
)
rows("expand_dims", on((2, 3))(lambda x: [call(x, (0,)), call(x, (0, -1)), call(x, (5,))], others=[call(2.0, (0,))]))
rows("squeeze", on((1, 3, 1))(lambda x: [call(x, (0,)), call(x, (0, -1)), call(x, (1,)), call(x, ())]))
rows(
    "reshape",
    on((2, 3))(
        lambda x: [call(x, (3, 2)), call(x, (6,)), call(x, (6,), (1, 0)), call(x, (4,)), call(x, (3, -1))],
        others=[call(2.0, (1,)), call(Weak(2), (1, 1))],
    ),
)
rows("rev", on((2, 3))(lambda x: [call(x, (0,)), call(x, (0, 1)), call(x, ()), call(x, (2,))]))
rows("transpose", on((2, 3, 4))(lambda x: [call(x, (2, 0, 1)), call(x, (0, 1))]))
rows("tile", on((2, 3))(lambda x: [call(x, (2, 1)), call(x, (0, 2)), call(x, (2,))]))
rows("split", on((6, 2))(lambda x: [call(x, (1, 5)), call(x, (3, 3), 0), call(x, (1, 1), axis=1), call(x, (1, 2))]))
rows(
    "slice",
    on((4, 5))(
        lambda x: [
            call(x, (1, 0), (3, 5)),
            call(x, (0, 1), (4, 5), (2, 3)),
            call(x, (2, 2), (2, 2)),
            call(x, (0, 0), (5, 5)),
            call(x, (3, 0), (2, 5)),
        ]
    ),
)
rows(
    "slice_in_dim",
    on((4, 5))(
        lambda x: [call(x, 1, 3), call(x, -2, None, axis=1), call(x, 0, 5, 2, 1), call(x, None, -1), call(x, 1, 9)]
    ),
)
rows(
    "index_in_dim",
    on((4, 5))(lambda x: [call(x, 1), call(x, -1, 1), call(x, 0, keepdims=False), call(x, 4), call(x, -5)]),
)
rows(
    "index_take",
    on((4, 5))(
        lambda x: [call(x, (np.array([0, 3, -1, 9]),), (0,)), call(x, (np.array([1, 2]), np.array([0, -1])), (0, 1))]
    ),
)
_STARTS = [(1, 2), (-1, 0), (9, -9), (0, 5)]
rows(
    "dynamic_slice",
    on((4, 5))(
        lambda x: [
            *(call(x, s, (2, 3)) for s in _STARTS),
            call(x, (np.uint8(255), np.int8(-1)), (2, 3)),
            call(x, np.array([1, 1], np.int32), (1, 0)),
            call(x, (0, 0), (5, 1)),
        ]
    ),
)
rows(
    "dynamic_slice_in_dim",
    on((4, 5))(lambda x: [call(x, 1, 2), call(x, -1, 2, axis=1), call(x, np.uint32(9), 3), call(x, -9, 2)]),
)
rows(
    "dynamic_index_in_dim",
    on((4, 5))(lambda x: [call(x, 1), call(x, -1, 1), call(x, 9, keepdims=False), call(x, np.int8(-3))]),
)
rows(
    "dynamic_update_slice",
    on((4, 5), (2, 3))(
        lambda x, y: [
            *(call(x, y, s) for s in _STARTS),
            call(x, y[:0], (1, 1)),
            call(x, plain("float32", 2, 3), (0, 0)),
            call(x, plain("float32", 5, 1), (0, 0)),
        ]
    ),
)
rows(
    "dynamic_update_slice_in_dim",
    on((4, 5), (2, 5))(lambda x, y: [call(x, y, 1, 0), call(x, y, -1, 0), call(x, y, 9, axis=0)]),
)
rows(
    "dynamic_update_index_in_dim",
    on((4, 5), (5,))(
        lambda x, y: [
            call(x, y, 1, 0),
            call(x, y, -1, 0),
            call(x, y[:4], 9, axis=1),
            call(x, y[0], 1, 0),
            call(x, y[None], 2, 0),
            call(x, 1, 1, 0),
        ]
    ),
)
rows(
    "pad",
    on((2, 3))(
        lambda x: [
            call(x, x[0, 0], ((1, 2, 0), (0, 1, 2))),
            call(x, x[0, 1], ((-1, 0, 0), (0, -2, 1))),
            call(x, x[1, 0], ((-1, -1, 0), (0, 0, 0))),
            call(x, 0, ((1, 0, 0), (0, 0, 0))),
            call(x, x[0, 0], ((-3, 0, 0), (0, 0, 0))),
        ]
    ),
)

# --- reductions ---------------------------------------------------------------------------------------------
rows(
    "argmax argmin",
    Kind(
        lambda d: [
            call(tied(d, 3, 4), 0, "int32"),
            call(tied(d, 3, 4), 1, "uint8"),
            call(special(d), 0, "int32"),
            call(special(d)[::-1].copy(), -1, "int32"),
            call(plain(d, 0, 3), 0, "int32"),
            call(plain(d, 2, 3), 2, "int32"),
            call(plain(d, 2, 3), 0, "float32"),
        ]
    ),
)
_SUMS = Kind(
    lambda d: [
        call(tied(d, 3, 4), (1,)),
        call(plain(d, 3, 4), (0, 1)),
        call(plain(d, 0, 3), (0,)),
        call(plain(d, 3, 4), ()),
        call(plain(d, 3, 4), (-1,)),
        call(plain(d, 3), (0, 0)),
        call(plain(d, 3), (1,)),
    ],
    loose=4,
)
rows("reduce_sum reduce_prod reduce_max reduce_min reduce_and reduce_or reduce_xor", _SUMS)
rows(
    "cumsum cumprod cummax cummin cumlogsumexp",
    Kind(
        lambda d: [
            call(tied(d, 3, 4), 1),
            call(plain(d, 3, 4), 0, reverse=True),
            call(plain(d, 0, 3), 0),
            call(plain(d, 3, 4), -1),
            call(special(d)),
            call(plain(d, 3), 1),
        ],
        loose=4,
    ),
)
_BODIES = [of(f"lax.{n}") for n in ("add", "mul", "max", "min", "bitwise_and", "bitwise_or", "bitwise_xor")]


def _reduced(d: np.dtype) -> Any:
    for body in _BODIES:
        yield call(plain(d, 3, 4), plain(d), body, (1,))
    yield from (call(tied(d, 3, 4), 0, of("lax.add"), (0, 1)), call(plain(d, 0, 3), plain(d), of("lax.max"), (0,)))
    yield (
        call(plain(d, 3, 4), plain(d), Of(lambda m: lambda a, b: b, "last"), (0,))
        if d in ONE_OF_EACH
        else call(plain(d, 3), plain(d), of("lax.add"), ())
    )


rows("reduce", Kind(_reduced, loose=4))


def _windows(d: np.dtype) -> Any:
    x, one = plain(d, 4, 5), plain(d)
    for body in _BODIES[:4]:
        yield call(x, one, body, (2, 2), (1, 2), "VALID")
    yield call(x, 0, of("lax.add"), (2, 3), (2, 1), "SAME")
    yield call(tied(d, 4, 5), one, of("lax.max"), (2, 2), (1, 1), ((1, 0), (2, 1)), (1, 2), (2, 1))
    yield call(x, one, of("lax.add"), (9, 1), (1, 1), "VALID")


rows("reduce_window", Kind(_windows, loose=4))
rows(
    "sort",
    Kind(
        lambda d: [
            call(tied(d, 3, 4)),
            call(tied(d, 3, 4), dimension=0),
            call(special(d)),
            call(special(d)[::-1].copy(), is_stable=False),
            call(plain(d, 0, 3)),
            call((tied(d, 6), plain("int32", 6))),
            call((tied(d, 6), plain("int32", 6)), num_keys=2),
            call((tied("int8", 6), tied(d, 6)), num_keys=1),
            call(plain(d)),
        ]
    ),
)
rows(
    "sort_key_val",
    Kind(
        lambda d: [
            call(tied(d, 6), plain("int32", 6)),
            call(special(d), special(d)[::-1].copy()),
            call(tied(d, 3, 2), plain("int8", 3, 2), 0),
        ]
    ),
)
rows(
    "top_k",
    Kind(
        lambda d: [
            call(tied(d, 3, 4), 2),
            call(special(d), 3),
            call(plain(d, 3, 4), 0),
            call(plain(d, 3), 4),
            call(plain(d, 3, 4), 2, axis=0),
        ]
    ),
)
rows(
    "approx_max_k approx_min_k",
    on((3, 8), dtypes=FLOATS)(lambda x: [call(x, 2), call(x, 1, reduction_dimension=0), call(x, 3, recall_target=1.0)]),
)

# --- products -----------------------------------------------------------------------------------------------
_TYPES = ("float32", "int32", "complex64")
rows("dot", Kind(lambda d: [call(plain(d, 2, 3), plain(d, 3, 2)), call(plain(d, 3), plain(d, 3)), call(plain(d, 3), plain(d, 3, 2)), call(plain(d, 2, 0), plain(d, 0, 3)), call(plain(d, 2, 3), plain(d, 2, 3)), call(plain(d, 2, 3), plain("float32", 3, 2)), *(call(plain(d, 2, 3), plain(d, 3, 2), preferred_element_type=t) for t in _TYPES)], loose=4))  # fmt: skip
rows("batch_matmul", on((2, 2, 3), (2, 3, 2), loose=4)(lambda x, y: [call(x, y), call(x[0], y[0]), call(x, y[:1])]))
_DIMENSIONS = ((((2,), (1,)), ((0,), (0,))), (((0, 2), (0, 1)), ((), ())), (((), ()), ((), ())))
rows("dot_general", on((2, 2, 3), (2, 3, 2), loose=4)(lambda x, y: [*(call(x, y, n) for n in _DIMENSIONS), call(x, y, _DIMENSIONS[0], preferred_element_type="float32"), call(x, plain("int8", 2, 3, 2), _DIMENSIONS[0]), call(x, y, (((1,), (1,)), ((0,), (0,))))]))  # fmt: skip
rows(
    "ragged_dot",
    on((5, 3), (2, 3, 2), loose=4)(
        lambda x, y: [call(x, y, np.array(s, np.int32)) for s in ((2, 3), (0, 5), (1, 1), (4, 9))]
    ),
)
_IMAGES = on((1, 2, 5, 6), (3, 2, 2, 3), dtypes=[*INTEGERS, *FLOATS, *COMPLEX], loose=8)
rows(
    "conv",
    _IMAGES(
        lambda x, k: [
            call(x, k, (1, 1), "SAME"),
            call(x, k, (2, 1), "VALID"),
            call(x, k, (1, 1), "SAME_LOWER"),
            call(x, k[:, :1], (1, 1), "SAME"),
            call(x, plain("float32", 3, 2, 2, 3), (1, 1), "SAME"),
            call(x, k, (1, 1), "SAME", preferred_element_type="float32"),
        ]
    ),
)
rows(
    "conv_with_general_padding",
    _IMAGES(
        lambda x, k: [
            call(x, k, (1, 2), ((1, 0), (2, 1)), (1, 1), (1, 1)),
            call(x, k, (1, 1), ((0, 0), (0, 0)), (2, 1), (1, 2)),
            call(x, k, (1, 1), ((-1, 0), (0, 0)), None, None),
        ]
    ),
)
rows("conv_general_dilated", _IMAGES(lambda x, k: [call(x, k, (1, 1), "SAME"), call(x, k, (1, 2), ((0, 1), (1, 0)), (1, 2), (2, 1)), call(plain(x.dtype, 1, 4, 5, 6), plain(x.dtype, 4, 2, 2, 3), (1, 1), "VALID", feature_group_count=2), call(plain(x.dtype, 2, 2, 5, 6), plain(x.dtype, 4, 2, 2, 3), (1, 1), "VALID", batch_group_count=2), call(plain(x.dtype, 1, 5, 2), plain(x.dtype, 2, 2, 3), (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))]))  # fmt: skip
rows("conv_transpose", on((1, 5, 2), (3, 2, 3), dtypes=[*INTEGERS, *FLOATS, *COMPLEX], loose=8)(lambda x, k: [call(x, k, (2,), "SAME", dimension_numbers=("NHC", "HIO", "NHC")), call(x, k, (1,), "VALID", dimension_numbers=("NHC", "HIO", "NHC")), call(x, plain(x.dtype, 3, 3, 2), (2,), "SAME", dimension_numbers=("NHC", "HIO", "NHC"), transpose_kernel=True), call(x, k, (3,), ((1, 2),), (2,), dimension_numbers=("NHC", "HIO", "NHC"))]))  # fmt: skip
rows(
    "conv_general_dilated_patches",
    on((1, 2, 5, 6), dtypes=[*INTEGERS, *FLOATS], loose=4)(
        lambda x: [call(x, (2, 3), (1, 1), "SAME"), call(x, (2, 2), (2, 1), "VALID")]
    ),
)
rows(
    "conv_general_dilated_local",
    on((1, 2, 4), (3, 4, 3), dtypes=FLOATS, loose=4)(
        lambda x, k: [call(x, k, (1,), "VALID", (2,), dimension_numbers=("NCH", "OIH", "NCH"))]
    ),
)

# --- gather and scatter -------------------------------------------------------------------------------------
_INDICES = np.array([[0], [3], [9], [-1]], np.int32)


def _gathered(x: np.ndarray) -> Any:
    numbers = Of(
        lambda m: m.lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,)),
        "rows",
    )
    for mode in ("clip", "fill", None):
        yield call(x, _INDICES, numbers, (1, 3), mode=mode)
    yield call(x, _INDICES.astype(np.uint8), numbers, (1, 2), mode="fill", fill_value=1)


rows("gather", on((4, 3))(_gathered))


def _scattered(x: np.ndarray, u: np.ndarray) -> Any:
    numbers = Of(
        lambda m: m.lax.ScatterDimensionNumbers(
            update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
        ),
        "rows",
    )
    for mode in ("clip", "drop", None):
        yield call(x, _INDICES, u, numbers, mode=mode)
    yield call(x, np.array([[1], [1], [1], [0]], np.int32), np.tile(u[:1], (4, 1)), numbers)


rows("scatter scatter_add scatter_max scatter_min scatter_mul scatter_sub", on((4, 3), (4, 3))(_scattered))
rows(
    "scatter_apply",
    on((4, 3))(
        lambda x: [
            call(
                x,
                _INDICES[[0, 1, 3]],
                of("lax.neg"),
                Of(
                    lambda m: m.lax.ScatterDimensionNumbers(
                        update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
                    ),
                    "rows",
                ),
                update_shape=(3, 3),
                mode="drop",
            )
        ]
    ),
)

# --- others -------------------------------------------------------------------------------------------------
_FFT = [np.dtype("float32"), np.dtype("float64"), *COMPLEX]
rows(
    "fft",
    Kind(
        lambda d: (
            [
                call(plain(d, 2, 4), k, n)
                for k, n in (
                    ("FFT", (4,)),
                    ("IFFT", (4,)),
                    ("RFFT", (4,)),
                    ("IRFFT", (6,)),
                    ("IRFFT", (5,)),
                    ("FFT", (2, 4)),
                    ("FFT", (3,)),
                    ("RFFT", (2, 4)),
                )
            ]
            + [call(plain(d, 0, 4), "FFT", (4,))]
        ),
        loose=8,
    ),
)
rows(
    "associative_scan",
    Kind(
        lambda d: [
            call(of("lax.add"), plain(d, 5)),
            call(of("lax.max"), tied(d, 3, 4), axis=1),
            call(of("lax.mul"), plain(d, 5), reverse=True),
            call(of("lax.add"), plain(d, 0)),
            call(of("lax.add"), plain(d, 1)),
        ],
        loose=8,
    ),
)
rows(
    "rng_bit_generator",
    Kind(
        lambda d: [],
        tuple(
            call(np.arange(4, dtype=np.uint32), s, t)
            for s in ((3,), (2, 0))
            for t in ("uint8", "uint16", "uint32", "uint64")
        ),
    ),
)
