"""The array library: NumPy's functions with JAX's type promotion, for arrays and tracers."""

import sys as _sys

import numpy as _np

from meshwright.core.absent import absent as _absent
from meshwright.core.late import made_importable as _made_importable
from meshwright.ir.tracing import ArrayMethods as ndarray
from meshwright.numpy import fft, linalg
from meshwright.numpy import methods as _methods
from meshwright.numpy.applying import apply_along_axis, apply_over_axes, fromfunction, vectorize
from meshwright.numpy.arithmetic import (
    abs,
    absolute,
    arctan2,
    atan2,
    cbrt,
    ceil,
    clip,
    copysign,
    divide,
    divmod,
    fabs,
    fix,
    float_power,
    floor,
    floor_divide,
    fmax,
    fmin,
    fmod,
    heaviside,
    hypot,
    mod,
    modf,
    nextafter,
    positive,
    pow,
    power,
    reciprocal,
    remainder,
    sign,
    signbit,
    sqrt,
    square,
    true_divide,
    trunc,
)
from meshwright.numpy.creation import copy_of as copy
from meshwright.numpy.creation import (
    empty_like,
    from_dlpack,
    frombuffer,
)
from meshwright.numpy.einsum import einsum, einsum_path
from meshwright.numpy.files import (
    array_repr,
    array_str,
    fromfile,
    fromiter,
    fromstring,
    get_printoptions,
    isscalar,
    iterable,
    load,
    printoptions,
    save,
    savez,
    set_printoptions,
)
from meshwright.numpy.filters import (
    bartlett,
    blackman,
    convolve,
    correlate,
    ediff1d,
    gradient,
    hamming,
    hanning,
    i0,
    interp,
    kaiser,
    trapezoid,
    unwrap,
)
from meshwright.numpy.functions import (
    acos,
    acosh,
    angle,
    arccos,
    arccosh,
    arcsin,
    arcsinh,
    arctan,
    arctanh,
    asin,
    asinh,
    astype,
    atan,
    atanh,
    conj,
    conjugate,
    cos,
    cosh,
    deg2rad,
    degrees,
    exp,
    exp2,
    expm1,
    imag,
    iscomplex,
    iscomplexobj,
    isreal,
    isrealobj,
    log,
    log1p,
    log2,
    log10,
    nan_to_num,
    rad2deg,
    radians,
    real,
    sin,
    sinc,
    sinh,
    tan,
    tanh,
)
from meshwright.numpy.histograms import histogram, histogram2d, histogram_bin_edges, histogramdd
from meshwright.numpy.indexing import take, take_along_axis
from meshwright.numpy.inspection import __array_namespace_info__
from meshwright.numpy.integers import frexp, gcd, lcm, ldexp, packbits, spacing, unpackbits
from meshwright.numpy.joining import (
    append,
    array_split,
    column_stack,
    concat,
    concatenate,
    dsplit,
    dstack,
    hsplit,
    hstack,
    row_stack,
    split,
    stack,
    unstack,
    vsplit,
    vstack,
)
from meshwright.numpy.linear import (
    cross,
    dot,
    inner,
    kron,
    matmul,
    matvec,
    outer,
    tensordot,
    trace,
    vdot,
    vecdot,
    vecmat,
)
from meshwright.numpy.logic import (
    bitwise_count,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_not,
    bitwise_right_shift,
    equal,
    greater,
    greater_equal,
    invert,
    isclose,
    isfinite,
    isinf,
    isnan,
    isneginf,
    isposinf,
    left_shift,
    less,
    less_equal,
    logical_not,
    not_equal,
    right_shift,
)
from meshwright.numpy.logic import select_by as select
from meshwright.numpy.manipulation import (
    atleast_1d,
    atleast_2d,
    atleast_3d,
    broadcast_arrays,
    expand_dims,
    flip,
    fliplr,
    flipud,
    matrix_transpose,
    moveaxis,
    ndim,
    permute_dims,
    roll,
    rollaxis,
    rot90,
    shape,
    size,
    squeeze,
    swapaxes,
    tile,
    transpose,
    trim_zeros,
)
from meshwright.numpy.nan_reductions import (
    nanargmax,
    nanargmin,
    nanmax,
    nanmean,
    nanmin,
    nanprod,
    nanstd,
    nansum,
    nanvar,
)
from meshwright.numpy.out_sharding import (
    arange,
    array,
    asarray,
    bincount,
    broadcast_to,
    empty,
    full,
    full_like,
    ones,
    ones_like,
    ravel,
    repeat,
    reshape,
    zeros,
    zeros_like,
)
from meshwright.numpy.padding import pad
from meshwright.numpy.polynomials import (
    poly,
    polyadd,
    polyder,
    polydiv,
    polyfit,
    polyint,
    polymul,
    polysub,
    polyval,
    roots,
)
from meshwright.numpy.positions import (
    c_,
    diag_indices,
    diag_indices_from,
    ix_,
    mask_indices,
    mgrid,
    ogrid,
    r_,
    ravel_multi_index,
    tril_indices,
    tril_indices_from,
    triu_indices,
    triu_indices_from,
    unravel_index,
)
from meshwright.numpy.promotion import broadcast_shapes, result_type
from meshwright.numpy.ranges import (
    diag,
    diagflat,
    diagonal,
    eye,
    geomspace,
    identity,
    indices,
    linspace,
    logspace,
    meshgrid,
    tri,
    tril,
    triu,
    vander,
)
from meshwright.numpy.reductions import (
    all,
    amax,
    amin,
    any,
    argmax,
    argmin,
    average,
    count_nonzero,
    max,
    mean,
    min,
    prod,
    ptp,
    std,
    sum,
    var,
)
from meshwright.numpy.rewriting import (
    block,
    choose,
    compress,
    delete,
    extract,
    fill_diagonal,
    insert,
    piecewise,
    place,
    put,
    put_along_axis,
    resize,
)
from meshwright.numpy.rounding import around, rint, round
from meshwright.numpy.scalar_types import BY_NAME as _BY_NAME
from meshwright.numpy.scalar_types import can_cast, finfo, iinfo, isdtype, issubdtype, promote_types
from meshwright.numpy.searching import argwhere, digitize, flatnonzero, nonzero, searchsorted, where
from meshwright.numpy.sets import (
    intersect1d,
    isin,
    setdiff1d,
    setxor1d,
    union1d,
    unique,
    unique_all,
    unique_counts,
    unique_inverse,
    unique_values,
)
from meshwright.numpy.sorting import (
    argpartition,
    argsort,
    cumprod,
    cumsum,
    cumulative_prod,
    cumulative_sum,
    diff,
    lexsort,
    nancumprod,
    nancumsum,
    partition,
    sort,
    sort_complex,
    top_k,
)
from meshwright.numpy.stages import give_stages as _give_stages
from meshwright.numpy.statistics import (
    allclose,
    array_equal,
    array_equiv,
    corrcoef,
    cov,
    median,
    nanmedian,
    nanpercentile,
    nanquantile,
    percentile,
    quantile,
)
from meshwright.numpy.ufuncs import (
    add,
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    frompyfunc,
    logaddexp,
    logaddexp2,
    logical_and,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    multiply,
    negative,
    subtract,
    ufunc,
)

globals().update(_BY_NAME)
bool = _BY_NAME["bool_"]
#: 32 bits wide unless x64 is enabled, like all wide types
int_, uint, float_, complex_ = (_BY_NAME[_n] for _n in ("int64", "uint64", "float64", "complex128"))
single, double, csingle, cdouble = (_BY_NAME[_n] for _n in ("float32", "float64", "complex64", "complex128"))

pi, e, euler_gamma = _np.pi, _np.e, _np.euler_gamma
inf, nan, newaxis = _np.inf, _np.nan, None
dtype = _np.dtype
generic, number, integer, signedinteger = _np.generic, _np.number, _np.integer, _np.signedinteger
unsignedinteger, inexact, floating, complexfloating = (
    _np.unsignedinteger,
    _np.inexact,
    _np.floating,
    _np.complexfloating,
)
character, flexible, object_ = _np.character, _np.flexible, _np.object_
ComplexWarning = _np.exceptions.ComplexWarning
index_exp, s_ = _np.index_exp, _np.s_
__array_api_version__ = "2024.12"

_methods.add_methods(
    {"sort": sort, "argsort": argsort, "argpartition": argpartition, "cumsum": cumsum, "cumprod": cumprod,
     "nonzero": nonzero, "searchsorted": searchsorted, "choose": choose,
     "compress": lambda self, condition, axis=None, **options: compress(condition, self, axis, **options)}
)  # fmt: skip
_methods.NAMESPACE.fill(_sys.modules[__name__])

__getattr__ = _absent("numpy")

_give_stages(globals())
_give_stages(vars(linalg))

_made_importable(globals())
