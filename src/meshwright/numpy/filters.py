"""Operations on neighbouring samples: convolution, interpolation, differences, integrals, phases, and window
functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, DTypeError, ShapeError
from meshwright.ir.tracing import typeof
from meshwright.numpy.arithmetic import abs, add, divide, multiply, remainder, subtract
from meshwright.numpy.axes import normal_axes, normal_axis, static_int
from meshwright.numpy.compiled import compiled
from meshwright.numpy.creation import arange, asarray, full
from meshwright.numpy.functions import conj, cos
from meshwright.numpy.indexing import take
from meshwright.numpy.joining import concatenate
from meshwright.numpy.logic import where
from meshwright.numpy.manipulation import flip, moveaxis, ravel, reshape
from meshwright.numpy.promotion import converted, inexact, operands, promote_all, promotes_freely, scalar_like
from meshwright.numpy.reductions import sum
from meshwright.numpy.searching import promoted, searchsorted
from meshwright.numpy.sorting import cumsum, diff
from meshwright.ops.elementwise import table as ops
from meshwright.ops.elementwise.table import convert, select
from meshwright.ops.products.conv import conv_general_dilated
from meshwright.ops.shape.slice_pad import slice_in_dim
from meshwright.ops.special.bessel import BesselI


# --- convolution --------------------------------------------------------------------------------------------
def _sliding(name: str, a: Any, v: Any, mode: str, precision: Any, preferred: Any) -> Any:
    """Sums of products of ``v`` with the slices of ``a`` that start at each position."""
    if mode not in ("full", "same", "valid"):
        raise ArgumentError(f"{name}: mode must be 'full', 'same' or 'valid', got {mode!r}")
    if typeof(a).ndim != 1 or typeof(v).ndim != 1 or 0 in (typeof(a).size, typeof(v).size):
        raise ShapeError(f"{name}: expected two vectors with elements, got shapes {typeof(a).shape}, {typeof(v).shape}")
    m = typeof(v).size
    low = {"full": m - 1, "same": m // 2, "valid": 0}[mode]
    high = {"full": m - 1, "same": m - 1 - low, "valid": 0}[mode]
    dtype = typeof(a).dtype
    exact = dtypes.default_int() if dtypes.is_bool(dtype) else dtype
    weak = preferred is None and typeof(a).weak_type and typeof(v).weak_type
    out = _conv(converted(a, exact), converted(v, exact), low, high, precision, preferred)
    return convert(out, typeof(out).dtype, weak)


@compiled(static_argnums=(2, 3, 4, 5))
def _conv(a: Any, v: Any, low: int, high: int, precision: Any, preferred: Any) -> Any:
    out = conv_general_dilated(
        a[None, None], v[None, None], (1,), [(low, high)], precision=precision, preferred_element_type=preferred
    )
    return out[0, 0]


def _inexact_pair(a: Any, v: Any) -> tuple[Any, Any]:
    """Two arrays in their common dtype, or the default float for integers and bools, as in JAX."""
    a, v = promoted(a, v)
    dtype, weak = inexact(typeof(a).dtype), typeof(a).weak_type
    return converted(a, dtype, weak), converted(v, dtype, weak)


def convolve(a: Any, v: Any, mode: str = "full", *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """The convolution of two vectors of sizes n and m: ``out[k] = sum(a[i] * v[k - i])``.

    Args:
      a, v: vectors; integers are converted to floats.
      mode: "full" (n + m - 1 elements), "same" (the larger of n and m) or "valid" (complete overlap only).

    Raises:
      ShapeError: not two vectors. ArgumentError: another mode.

    >>> convolve(np.array([1.0, 2.0, 3.0]), np.array([0.0, 1.0])).tolist()
    [0.0, 1.0, 2.0, 3.0]
    """
    a, v = _inexact_pair(a, v)
    if typeof(a).size < typeof(v).size:
        a, v = v, a
    return _sliding("convolve", a, flip(v), mode, precision, preferred_element_type)


def correlate(a: Any, v: Any, mode: str = "valid", *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """The correlation of two vectors: ``out[k] = sum(a[k + i] * conj(v[i]))``; modes as for :func:`convolve`.

    >>> correlate(np.array([1.0, 2.0, 3.0]), np.array([0.0, 1.0])).tolist()
    [2.0, 3.0]
    """
    a, v = _inexact_pair(a, v)
    v = conj(v)
    if typeof(a).ndim == 1 and typeof(v).ndim == 1 and typeof(a).size < typeof(v).size:
        return flip(_sliding("correlate", v, a, mode, precision, preferred_element_type))
    return _sliding("correlate", a, v, mode, precision, preferred_element_type)


# --- interpolation ------------------------------------------------------------------------------------------
def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    """Evaluate at ``x`` the piecewise linear function through the points ``(xp, fp)``.

    Args:
      x: array of any shape, which is also the result's.
      xp: vector, ascending (any order with ``period``). fp: vector of the same size.
      left, right: values outside the points (default: those of the first and last point), or "extrapolate" to extend
        the first or last line.
      period: the period of the function; ``left`` and ``right`` then do not matter.

    Raises:
      ShapeError: ``xp`` and ``fp`` are not vectors of the same size.

    >>> interp(np.array([0.5, 9.0]), np.array([0.0, 1.0]), np.array([10.0, 20.0])).tolist()
    [15.0, 20.0]
    """
    if np.ndim(xp) != 1 or np.shape(xp) != np.shape(fp) or np.size(xp) == 0:
        raise ShapeError(f"interp: xp and fp must be vectors of one size, got shapes {np.shape(xp)}, {np.shape(fp)}")
    (x, xp), fp = promoted(x, xp), asarray(fp)
    if dtypes.is_complex(typeof(x).dtype):
        raise DTypeError("interp: x and xp must be real; only fp may be complex")
    (x,), (xp,), (fp,) = (operands("interp", (v,), to_inexact=True) for v in (x, xp, fp))
    slopes = [v == "extrapolate" if isinstance(v, str) else False for v in (left, right)]
    if any(isinstance(v, str) and v != "extrapolate" for v in (left, right)):
        raise ArgumentError(f"interp: left and right are values or 'extrapolate', got {left!r} and {right!r}")
    if period is not None:
        period = abs(converted(asarray(period), typeof(x).dtype))
        x, xp = remainder(x, period), remainder(xp, period)
        order = xp.argsort()
        xp, fp = take(xp, order), take(fp, order)
        xp = concatenate([xp[-1:] - period, xp, xp[:1] + period])
        fp = concatenate([fp[-1:], fp, fp[:1]])
        left = right = None
        slopes = [False, False]
    ends = [
        fp[i] if v is None or isinstance(v, str) else converted(asarray(v), typeof(fp).dtype)
        for i, v in ((0, left), (-1, right))
    ]
    return _interpolated(x, xp, fp, *ends, *slopes)


@compiled(static_argnums=(5, 6))
def _interpolated(x: Any, xp: Any, fp: Any, left: Any, right: Any, goes_on_left: bool, goes_on_right: bool) -> Any:
    last = typeof(xp).size - 1
    right_of = searchsorted(xp, x, "right")
    after = ops.max_(ops.min_(right_of, scalar_like(last, right_of)), scalar_like(min(1, last), right_of))
    before = ops.max_(ops.sub(after, scalar_like(1, after)), scalar_like(0, after))
    x0, x1 = take(xp, before, mode="clip"), take(xp, after, mode="clip")
    f0, f1 = take(fp, before, mode="clip"), take(fp, after, mode="clip")
    width = subtract(x1, x0)
    flat = ops.eq(width, scalar_like(0, width))  # coinciding points: no slope, and no division by the distance
    slope = divide(subtract(x, x0), select(flat, scalar_like(1, width), width))
    inside = where(flat, f0, add(f0, multiply(slope, subtract(f1, f0))))
    if not goes_on_left:
        inside = where(ops.lt(x, take(xp, np.array(0))), left, inside)
    return inside if goes_on_right else where(ops.gt(x, take(xp, np.array(last))), right, inside)


# --- differences and integrals ------------------------------------------------------------------------------
def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    """Differences of neighbours in the flattened array, with optional values before and after them.

    >>> ediff1d(np.array([1, 4, 9]), to_end=0).tolist()
    [3, 5, 0]
    """
    if dtypes.is_bool(typeof(asarray(ary)).dtype):
        raise DTypeError("ediff1d: bools have no differences; convert them with .astype")
    x = diff(ravel(ary))
    ends = [[] if e is None else [converted(ravel(asarray(e)), typeof(x).dtype)] for e in (to_begin, to_end)]
    return concatenate([*ends[0], x, *ends[1]])


def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    """Integrate along ``axis`` by the trapezoidal rule, at positions ``x`` or with spacing ``dx``.

    >>> trapezoid(np.array([1.0, 2.0, 3.0])).item()
    4.0
    """
    if x is not None:
        y, x = promote_all([asarray(y), asarray(x)])
    (y,) = operands("trapezoid", (asarray(y),), to_inexact=True)
    d = normal_axis(axis, typeof(y).ndim, "trapezoid")
    y = moveaxis(y, d, -1)
    if x is not None:
        (x,) = operands("trapezoid", (x,), to_inexact=True)  # inexact, since differences may be negative
        dx = diff(x) if typeof(x).ndim == 1 else moveaxis(diff(x, axis=d), d, -1)
    return multiply(0.5, sum(multiply(add(y[..., 1:], y[..., :-1]), dx), -1))


def _along(x: Any, dim: int, start: int, stop: int) -> Any:
    return slice_in_dim(x, start, stop, 1, dim)


def _gradient(f: Any, spacing: Any, dim: int) -> Any:
    """Central differences along one dimension, one-sided at its ends."""
    n = typeof(f).shape[dim]
    if n < 2:
        raise ShapeError(f"gradient: dimension {dim} of shape {typeof(f).shape} has fewer than two elements")
    shape = [-1 if d == dim else 1 for d in range(typeof(f).ndim)]
    if np.ndim(spacing) == 1:
        positions, kind = asarray(spacing), typeof(f).dtype
        gaps = diff(converted(positions, kind if dtypes.is_complex(typeof(positions).dtype) else dtypes.real_of(kind)))
        if typeof(gaps).size != n - 1:
            raise ShapeError(
                f"gradient: {counted(typeof(gaps).size + 1, 'position')} for {counted(n, 'element')} along dimension "
                f"{dim}"
            )
        gaps = reshape(gaps, shape)
    else:
        gaps = spacing
    slopes = divide(diff(f, axis=dim), gaps)
    inner = _inner_gradient(f, gaps, dim)
    return concatenate([_along(slopes, dim, 0, 1), inner, _along(slopes, dim, n - 2, n - 1)], dim)


def _inner_gradient(f: Any, gaps: Any, dim: int) -> Any:
    """Central differences; ``gaps`` between elements are one number, or an array of them along ``dim``."""
    n = typeof(f).shape[dim]
    left, middle, right = (_along(f, dim, i, n - 2 + i) for i in range(3))
    if np.ndim(gaps) == 0:
        return divide(subtract(right, left), multiply(2.0, gaps))
    before, after = _along(gaps, dim, 0, n - 2), _along(gaps, dim, 1, n - 1)
    both = add(before, after)
    parts = (
        multiply(divide(-after, multiply(before, both)), left),
        multiply(divide(subtract(after, before), multiply(before, after)), middle),
        multiply(divide(before, multiply(after, both)), right),
    )
    return add(add(parts[0], parts[1]), parts[2])


@promotes_freely("f", "varargs", ranks=False)
def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int | None = None) -> Any:
    """Gradient along each axis by central differences (second order inside, first order at the ends).

    Args:
      varargs: the spacing, one for all axes or one per axis, each a number or a vector of positions.
      axis: one or several axes; default: all.

    Returns:
      An array, or a list of arrays for several axes.

    Raises:
      ArgumentError: ``edge_order`` is not 1, or the number of spacings is neither 1 nor that of axes.

    >>> gradient(np.array([1.0, 2.0, 4.0])).tolist()
    [1.0, 1.5, 2.0]
    """
    if edge_order not in (None, 1):
        raise ArgumentError(f"gradient: edge_order must be 1, got {edge_order}")
    x, *_ = promote_all([*map(asarray, (f, *varargs))])
    (x,) = operands("gradient", (x,), to_inexact=True)
    dims = normal_axes(axis, typeof(x).ndim, "gradient")
    spacings = list(varargs) * len(dims) if len(varargs) == 1 else list(varargs) or [1] * len(dims)
    if len(spacings) != len(dims):
        raise ArgumentError(f"gradient: {counted(len(spacings), 'spacing')} for {counted(len(dims), 'axis', 'axes')}")
    gradients = [_gradient(x, spacing, d) for d, spacing in zip(dims, spacings)]
    return gradients[0] if len(gradients) == 1 and not isinstance(axis, (tuple, list)) else gradients


def unwrap(p: Any, discont: Any = None, axis: int = -1, period: Any = 2 * np.pi) -> Any:
    """Phases without jumps of more than half a ``period`` along ``axis``.

    >>> np.round(np.asarray(unwrap(np.array([0.0, 3.0, -3.0])), float), 3).tolist()
    [0.0, 3.0, 3.283]
    """
    (p,) = operands("unwrap", (p,))
    exact = isinstance(period, (int, np.integer))
    if dtypes.is_bool(typeof(p).dtype) or not (exact or dtypes.is_inexact(typeof(p).dtype)):
        p = convert(p, dtypes.default_int() if exact else dtypes.default_float(), weak_type=True)
    target = typeof(p).dtype
    if dtypes.is_unsigned(target):  # differences are signed
        p = converted(p, dtypes.default_int())
    d = normal_axis(axis, typeof(p).ndim, "unwrap")
    jumps = diff(p, axis=d)
    half = divide(period, 2) if dtypes.is_inexact(typeof(jumps).dtype) else period // 2
    within = subtract(remainder(add(jumps, half), period), half)
    within = where((within == -half) & (jumps > 0), half, within)
    correction = where(abs(jumps) < (half if discont is None else discont), 0, subtract(within, jumps))
    n = typeof(p).shape[d]
    if n == 0:
        return convert(p, target, weak_type=typeof(p).weak_type)
    return converted(concatenate([_along(p, d, 0, 1), add(_along(p, d, 1, n), cumsum(correction, d))], d), target)


# --- windows ------------------------------------------------------------------------------------------------
def _window(name: str, formula: Any, what: str, example: str) -> Any:
    def window(M: int) -> Any:
        n = static_int(M, name, "M")
        if n <= 1:
            return full((max(n, 0),), 1, dtypes.default_float())
        return formula(arange(n, dtype=dtypes.default_float()), n)

    window.__name__ = window.__qualname__ = name
    window.__doc__ = f"The {what} window of ``M`` samples.\n\n>>> {example}\n"
    return window


bartlett = _window(
    "bartlett", lambda k, n: 1 - abs(2 * k / (n - 1) - 1), "triangular",
    "bartlett(3).tolist()\n[0.0, 1.0, 0.0]",
)  # fmt: skip
hanning = _window(
    "hanning", lambda k, n: 0.5 - 0.5 * cos(2 * np.pi * k / (n - 1)), "Hann",
    "np.round(hanning(3), 3).tolist()\n[0.0, 1.0, 0.0]",
)  # fmt: skip
hamming = _window(
    "hamming", lambda k, n: 0.54 - 0.46 * cos(2 * np.pi * k / (n - 1)), "Hamming",
    "np.round(np.asarray(hamming(3), float), 3).tolist()\n[0.08, 1.0, 0.08]",
)  # fmt: skip
blackman = _window(
    "blackman",
    lambda k, n: 0.42 - 0.5 * cos(2 * np.pi * k / (n - 1)) + 0.08 * cos(4 * np.pi * k / (n - 1)), "Blackman",
    "np.round(np.asarray(blackman(3), float), 3)[1].item()\n1.0",
)  # fmt: skip


def kaiser(M: int, beta: Any) -> Any:
    """The Kaiser window of ``M`` samples; ``beta`` trades main lobe width for side lobe height.

    >>> kaiser(3, 0.0).tolist()
    [1.0, 1.0, 1.0]
    """
    n = static_int(M, "kaiser", "M")
    if n <= 1:
        return full((max(n, 0),), 1, dtypes.default_float())
    k = arange(n, dtype=dtypes.default_float())
    half = (n - 1) / 2
    root = 1 - ((k - half) / half) ** 2
    return divide(i0(multiply(beta, where(root > 0, root, 0) ** 0.5)), i0(multiply(1.0, beta)))


@compiled
def _i0(x: Any) -> Any:
    return BesselI(0)(x)


def i0(x: Any) -> Any:
    """The modified Bessel function of the first kind and order 0.

    >>> i0(0.0).item()
    1.0
    """
    return _i0(*operands("i0", (x,), to_inexact=True))
