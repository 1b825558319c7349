"""``meshwright.lax``: the ops and collectives, without the array library's broadcasting and promotion."""

from __future__ import annotations

from typing import Any as _Any

from meshwright.api.control_flow import associative_scan, cond, fori_loop, scan, switch, while_loop
from meshwright.api.control_flow import map_ as map
from meshwright.api.placement import with_sharding_constraint
from meshwright.core.absent import absent as _absent
from meshwright.core.dot_algorithms import DotAlgorithm
from meshwright.core.late import LateModule as _LateModule
from meshwright.core.precision import DotAlgorithmPreset, Precision, PrecisionLike
from meshwright.lax import linalg
from meshwright.lax.convolution import (
    conv_general_dilated_local,
    conv_general_dilated_patches,
    conv_general_permutations,
    conv_general_shape_tuple,
    conv_shape_tuple,
    conv_transpose_shape_tuple,
    reduce_window_shape_tuple,
)
from meshwright.lax.functions import (
    RoundingMethod,
    axis_size,
    bitcast_convert_type,
    composite,
    conj,
    convert_element_type,
    dtype,
    mul,
    optimization_barrier,
    pbroadcast,
    platform_dependent,
    pshuffle,
    pswapaxes,
    reciprocal,
    reduce_precision,
    round,
    scatter_apply,
    select_n,
    shape_as_value,
)
from meshwright.lax.products import batch_matmul, conv_general_dilated, dot, dot_general, pdot
from meshwright.lax.ragged import RaggedDotDimensionNumbers, ragged_dot, ragged_dot_general
from meshwright.lax.random_bits import RandomAlgorithm, rng_bit_generator, rng_uniform
from meshwright.lax.reductions import approx_max_k, approx_min_k, reduce, reduce_sum, sort_key_val
from meshwright.lax.results import gives_arrays as _gives_arrays
from meshwright.lax.scaled import scaled_dot
from meshwright.lax.shapes import (
    broadcast,
    broadcast_in_dim,
    broadcast_like,
    broadcast_shapes,
    broadcast_to_rank,
    broadcasted_iota,
    collapse,
    empty,
    full,
    full_like,
    index_in_dim,
    index_take,
    iota,
    reshape,
    split,
    stack,
    tile,
    unstack,
)
from meshwright.ops import op_primitives as _op_primitives
from meshwright.ops.collective.named_axis import (
    all_gather,
    all_gather_invariant,
    all_to_all,
    axis_index,
    pcast,
    pmax,
    pmean,
    pmin,
    ppermute,
    psum,
    psum_scatter,
    pvary,
    ragged_all_to_all,
)
from meshwright.ops.elementwise.chlo import mulhi
from meshwright.ops.elementwise.clamp import clamp
from meshwright.ops.elementwise.table import abs_ as abs
from meshwright.ops.elementwise.table import (
    acos,
    acosh,
    add,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    cbrt,
    ceil,
    clz,
    cos,
    cosh,
    digamma,
    div,
    eq,
    erf,
    erf_inv,
    erfc,
    exp,
    exp2,
    expm1,
    floor,
    ge,
    gt,
    imag,
    integer_pow,
    is_finite,
    le,
    lgamma,
    log,
    log1p,
    logistic,
    lt,
    ne,
    neg,
    nextafter,
    polygamma,
    population_count,
    real,
    rem,
    rsqrt,
    select,
    shift_left,
    shift_right_arithmetic,
    shift_right_logical,
    sign,
    sin,
    sinh,
    sqrt,
    square,
    sub,
    tan,
    tanh,
    zeta,
)  # fmt: skip
from meshwright.ops.elementwise.table import and_ as bitwise_and
from meshwright.ops.elementwise.table import complex_ as complex
from meshwright.ops.elementwise.table import max_ as max
from meshwright.ops.elementwise.table import min_ as min
from meshwright.ops.elementwise.table import not_ as bitwise_not
from meshwright.ops.elementwise.table import or_ as bitwise_or
from meshwright.ops.elementwise.table import pow_ as pow
from meshwright.ops.elementwise.table import xor as bitwise_xor
from meshwright.ops.indexing.dynamic_slice import (
    dynamic_index_in_dim,
    dynamic_slice,
    dynamic_slice_in_dim,
    dynamic_update_index_in_dim,
    dynamic_update_slice,
    dynamic_update_slice_in_dim,
)
from meshwright.ops.indexing.gather_scatter import (
    GatherDimensionNumbers,
    GatherScatterMode,
    ScatterDimensionNumbers,
    gather,
    scatter,
    scatter_add,
    scatter_max,
    scatter_min,
    scatter_mul,
    scatter_sub,
)
from meshwright.ops.linalg.fft import FftType, fft
from meshwright.ops.products.conv import (
    ConvDimensionNumbers,
    ConvGeneralDilatedDimensionNumbers,
    conv,
    conv_dimension_numbers,
    conv_transpose,
    conv_with_general_padding,
    padtype_to_pads,
)
from meshwright.ops.products.dot import DotDimensionNumbers
from meshwright.ops.reduce.cumulative import cumlogsumexp, cummax, cummin, cumprod, cumsum
from meshwright.ops.reduce.reductions import (
    argmax,
    argmin,
    reduce_and,
    reduce_max,
    reduce_min,
    reduce_or,
    reduce_prod,
    reduce_xor,
)
from meshwright.ops.shape.rearrange import expand_dims, rev, squeeze, transpose
from meshwright.ops.shape.slice_pad import concatenate, pad, slice_in_dim
from meshwright.ops.shape.slice_pad import slice_ as slice
from meshwright.ops.sort.sorting import sort
from meshwright.ops.sort.top_k import top_k
from meshwright.ops.special.bessel import bessel_i0e, bessel_i1e
from meshwright.ops.special.incomplete_beta import betainc
from meshwright.ops.special.incomplete_gamma import igamma, igamma_grad_a, igammac, random_gamma_grad
from meshwright.ops.window.reductions import reduce_window
from meshwright.transforms.autodiff import stop_gradient
from meshwright.transforms.implicit import custom_linear_solve, custom_root

#: functions that may return their argument unchanged
for _name in (
    "associative_scan", "broadcast", "broadcast_in_dim", "broadcast_like", "broadcast_to_rank", "collapse",
    "concatenate", "convert_element_type", "expand_dims", "index_in_dim", "pad", "reduce", "reduce_and", "reduce_max",
    "reduce_min", "reduce_or", "reduce_prod", "reduce_sum", "reduce_xor", "reshape", "rev", "slice", "slice_in_dim",
    "split", "squeeze", "stack", "stop_gradient", "tile", "transpose", "unstack",
):  # fmt: skip
    globals()[_name] = _gives_arrays(_name, globals()[_name])
del _name

del _op_primitives  # imported since it fills a slot
_primitives = _LateModule("meshwright.lax.primitives")
_missing = _absent("lax")


def __getattr__(name: str) -> _Any:
    return (_primitives.named(name) if name.endswith("_p") else None) or _missing(name)
