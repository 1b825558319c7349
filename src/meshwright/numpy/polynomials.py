"""Polynomials as vectors of coefficients, highest power first (``numpy.poly*``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, ShapeError
from meshwright.ir.tracing import typeof
from meshwright.numpy.arithmetic import add, divide, multiply, subtract
from meshwright.numpy.axes import static_int
from meshwright.numpy.creation import arange, asarray, ones, zeros
from meshwright.numpy.filters import convolve
from meshwright.numpy.indexing import take
from meshwright.numpy.joining import concatenate
from meshwright.numpy.linalg.decompositions import eigvals
from meshwright.numpy.linalg.norms import vector_norm
from meshwright.numpy.linalg.operands import inexact_operands
from meshwright.numpy.linalg.solving import inv, lstsq
from meshwright.numpy.linear import dot
from meshwright.numpy.logic import where as choose_by
from meshwright.numpy.manipulation import atleast_1d, broadcast_to, reshape, roll
from meshwright.numpy.promotion import broadcast_shapes, operands, promote_all, promotes_freely, scalar_like, spread
from meshwright.numpy.ranges import eye, vander
from meshwright.numpy.searching import concrete
from meshwright.numpy.sorting import argsort, cumsum
from meshwright.ops.elementwise.table import convert
from meshwright.ops.shape.slice_pad import pad


def polyval(p: Any, x: Any, *, unroll: int = 16) -> Any:
    """Evaluate the polynomial at every element of ``x``, by Horner's rule.

    Further dimensions of ``p`` are those of several polynomials, and broadcast with ``x``. The loop is fully unrolled;
    ``unroll`` has no effect.

    Raises:
      ShapeError: they do not broadcast.

    >>> polyval(np.array([2.0, 0.0, 1.0]), 3.0).item()
    19.0
    """
    p, x = atleast_1d(asarray(p)), asarray(x)
    count, *rest = typeof(p).shape
    x = operands("polyval", (x, p.ravel()[:1].reshape(()) if typeof(p).size else zeros((), typeof(p).dtype)))[0]
    value = spread(zeros((), typeof(x).dtype), broadcast_shapes(typeof(x).shape, tuple(rest)))
    for i in range(count):
        value = add(multiply(value, x), p[i])
    return value


def _aligned(a1: Any, a2: Any) -> tuple[Any, Any]:
    """Two vectors, the shorter one padded with leading zeros; along further dimensions, it is broadcast to the other.

    Raises:
      ShapeError: it does not broadcast.
    """
    pair = promote_all([atleast_1d(asarray(a1)), atleast_1d(asarray(a2))])
    n = max(typeof(x).shape[0] for x in pair)
    longer = pair[0] if typeof(pair[0]).shape[0] == n else pair[1]

    def lengthened(x: Any) -> Any:
        own, wanted = typeof(x).shape, (typeof(x).shape[0], *typeof(longer).shape[1:])
        full = x if own == wanted else broadcast_to(x, wanted)
        return pad(full, scalar_like(0, x), [(n - own[0], 0, 0), *[(0, 0, 0)] * (len(wanted) - 1)])

    return lengthened(pair[0]), lengthened(pair[1])


def polyadd(a1: Any, a2: Any) -> Any:
    """The sum of two polynomials.

    >>> polyadd(np.array([1, 2]), np.array([1, 0, 0])).tolist()
    [1, 1, 2]
    """
    return add(*_aligned(a1, a2))


def polysub(a1: Any, a2: Any) -> Any:
    """The difference of two polynomials.

    >>> polysub(np.array([1, 2]), np.array([1, 0, 0])).tolist()
    [-1, 1, 2]
    """
    return subtract(*_aligned(a1, a2))


def polymul(a1: Any, a2: Any, *, trim_leading_zeros: bool = False) -> Any:
    """The product of two polynomials; ``trim_leading_zeros`` first removes those of concrete operands.

    >>> polymul(np.array([1.0, 2.0]), np.array([1.0, -2.0])).tolist()
    [1.0, 0.0, -4.0]
    """
    factors = [atleast_1d(asarray(a)) for a in (a1, a2)]
    return convolve(*(map(_without_leading_zeros, factors) if trim_leading_zeros else factors))


def _without_leading_zeros(p: Any) -> Any:
    """A concrete polynomial without leading zeros; keeps at least one coefficient."""
    value = np.asarray(p)
    positions = np.flatnonzero(value)
    return p[int(positions[0]) if len(positions) else value.size - 1 :]


@promotes_freely("u", "v")
def polydiv(u: Any, v: Any, *, trim_leading_zeros: bool = False) -> tuple[Any, Any]:
    """``(quotient, remainder)`` of two polynomials. The remainder keeps leading zeros, unless it is concrete and
    ``trim_leading_zeros`` is set.

    Raises:
      ArgumentError: ``v`` has no coefficients. ShapeError: an operand is no vector.

    >>> [p.tolist() for p in polydiv(np.array([1.0, 0.0, -4.0]), np.array([1.0, 2.0]))]
    [[1.0, -2.0], [0.0, 0.0, 0.0]]
    """
    rest, v = (asarray(a) for a in (atleast_1d(asarray(u)), atleast_1d(asarray(v))))
    if typeof(rest).ndim > 1 or typeof(v).ndim > 1:
        raise ShapeError(
            f"polydiv: expected vectors of coefficients, got shapes {typeof(rest).shape} and {typeof(v).shape}"
        )
    n, m = typeof(rest).size, typeof(v).size
    if m == 0:
        raise ArgumentError("polydiv: the divisor has no coefficients")
    promoted, other = map(typeof, operands("polydiv", (rest[:1], v[:1]), to_inexact=True))
    rest = convert(rest, promoted.dtype, promoted.weak_type and other.weak_type)
    quotient = []
    for i in range(n - m + 1):
        factor = convert(divide(rest[i : i + 1], v[0]), promoted.dtype)
        quotient.append(factor)
        rest = rest.at[i : i + m].add(multiply(-1, multiply(factor, v)))
    return concatenate(quotient or [zeros((1,), promoted.dtype)]), _without_leading_zeros(
        rest
    ) if trim_leading_zeros else rest


def polyder(p: Any, m: int = 1) -> Any:
    """The ``m``-th derivative of a polynomial.

    >>> polyder(np.array([1.0, 2.0, 3.0])).tolist()
    [2.0, 2.0]
    """
    (p,) = operands("polyder", (atleast_1d(asarray(p)),), to_inexact=True)
    order = static_int(m, "polyder", "m")
    if order < 0:
        raise ArgumentError(f"polyder: the order must not be negative, got {order}")
    for _ in range(order):
        n = typeof(p).size
        p = multiply(p[:-1], np.arange(n - 1, 0, -1).astype(typeof(p).dtype))
    return p


def polyint(p: Any, m: int = 1, k: Any = None) -> Any:
    """The ``m``-th antiderivative of a polynomial, with constants ``k`` (one, or one for each integration; 0 without).

    >>> polyint(np.array([2.0, 2.0]), k=3.0).tolist()
    [1.0, 2.0, 3.0]
    """
    p, constants = promote_all([atleast_1d(asarray(p)), atleast_1d(asarray(0 if k is None else k))])
    (p,) = operands("polyint", (p,), to_inexact=True)
    order = static_int(m, "polyint", "m")
    constants = asarray(constants, typeof(p).dtype)
    if order < 0 or typeof(constants).size not in (1, order):
        raise ArgumentError(
            f"polyint: order {order} takes one constant or {order}, got shape {typeof(constants).shape}"
        )
    for i in range(order):
        n = typeof(p).size
        integral = divide(p, np.arange(n, 0, -1).astype(typeof(p).dtype))
        which = i if typeof(constants).size == order else 0
        p = concatenate([integral, constants[which : which + 1]])
    return p


def poly(seq_of_zeros: Any) -> Any:
    """The monic polynomial with these zeros, or the characteristic polynomial of a square matrix.

    The latter has complex coefficients, since its zeros are eigenvalues.

    Raises:
      ArgumentError: neither a vector nor a square matrix.

    >>> poly(np.array([2.0, -2.0])).tolist()
    [1.0, 0.0, -4.0]
    """
    (z,) = operands("poly", (atleast_1d(asarray(seq_of_zeros)),), to_inexact=True)
    shape = typeof(z).shape
    if len(shape) == 2 and shape[0] == shape[1]:
        z = eigvals(z)
    elif len(shape) != 1:
        raise ArgumentError(f"poly: expected a vector of zeros or a square matrix, got shape {shape}")
    if typeof(z).size == 0:
        return ones((), typeof(z).dtype)
    p = ones((1,), typeof(z).dtype)
    none = zeros((1,), typeof(z).dtype)
    for i in range(typeof(z).size):
        p = subtract(concatenate([p, none]), multiply(concatenate([none, p]), z[i]))
    return p


@promotes_freely("x", "y", ranks=False)
def polyfit(
    x: Any, y: Any, deg: int, rcond: Any = None, full: bool = False, w: Any = None, cov: bool | str = False
) -> Any:  # fmt: skip
    """Least squares fit of a polynomial of degree ``deg`` to points.

    Args:
      x: vector of n positions. y: n values, or shape (n, k) for k fits.
      rcond: singular values below this fraction of the largest count as 0 (default: n epsilons).
      full: return ``(polynomial, residuals, rank, singular values, rcond)``.
      w: a weight for each residual.
      cov: return ``(polynomial, covariances of its coefficients)``, scaled by the residuals unless it is
        ``"unscaled"``.

    Raises:
      ArgumentError: ``deg`` is negative, or ``cov`` with as many coefficients as points.
      ShapeError: shapes other than these.

    >>> np.round(polyfit(np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0, 5.0]), 1), 3).tolist()
    [2.0, 1.0]
    """
    degree = static_int(deg, "polyfit", "deg")
    if degree < 0:
        raise ArgumentError(f"polyfit: deg must not be negative, got {degree}")
    at, values, *weights = inexact_operands("polyfit", x, y, *(() if w is None else (w,)))
    n = typeof(at).size
    fits = typeof(values).ndim in (1, 2) and typeof(values).shape[0] == n and all(v.shape == (n,) for v in weights)
    if typeof(at).ndim != 1 or not fits:
        raise ShapeError(
            "polyfit: expected x of shape (n,), y of shape (n,) or (n, k) and w of shape (n,), got "
            f"{', '.join(str(typeof(v).shape) for v in (at, values, *weights))}"
        )
    powers = vander(at, degree + 1)
    for weight in weights:
        powers = multiply(powers, reshape(weight, (n, 1)))
        values = multiply(values, reshape(weight, (n,) + (1,) * (typeof(values).ndim - 1)))
    # Normalize the columns, so that ``rcond`` does not discard powers because of their magnitude.
    lengths = vector_norm(powers, axis=0)
    tolerance = n * float(np.finfo(typeof(lengths).dtype).eps) if rcond is None else rcond
    scaled = divide(powers, reshape(lengths, (1, degree + 1)))
    coefficients, residuals, rank, sizes = lstsq(scaled, values, tolerance)
    coefficients = divide(coefficients, reshape(lengths, (degree + 1,) + (1,) * (typeof(values).ndim - 1)))
    if full:
        return coefficients, residuals, rank, sizes, asarray(tolerance)
    return (coefficients, _covariance(scaled, lengths, residuals, typeof(values).ndim, cov)) if cov else coefficients


def _covariance(scaled: Any, lengths: Any, residuals: Any, ndim: int, cov: bool | str) -> Any:
    """The covariances of the coefficients of a fit, from its normalized columns of powers."""
    n, count = typeof(scaled).shape
    base = divide(inv(dot(scaled.T, scaled)), multiply(lengths[:, None], lengths[None, :]))
    if cov == "unscaled":
        return base if ndim == 1 else base[:, :, None]
    if n <= count:
        raise ArgumentError(
            f"polyfit: covariances of {counted(count, 'coefficient')} need more points than {n}; cov='unscaled'"
        )
    factor = divide(residuals, n - count)
    return multiply(base, factor[0]) if ndim == 1 else multiply(base[:, :, None], factor[None, None, :])


def roots(p: Any, *, strip_zeros: bool = True) -> Any:
    """The zeros of a polynomial: eigenvalues of its companion matrix.

    Args:
      p: vector of n coefficients, the highest power first.
      strip_zeros: remove leading zeros, whose number must be known. If false, ``p`` may be traced, and there is a NaN
        at the end for each leading zero.

    Returns:
      Complex zeros, shape (degree,).

    Raises:
      ArgumentError: not a vector. ConcretizationTypeError: a traced ``p`` with ``strip_zeros``.

    >>> sorted(roots(np.array([1.0, 0.0, -4.0])).real.round(3).tolist())
    [-2.0, 2.0]
    """
    (c,) = operands("roots", (atleast_1d(asarray(p)),), to_inexact=True)
    if typeof(c).ndim != 1:
        raise ArgumentError(f"roots: expected a vector of coefficients, got shape {typeof(c).shape}")
    trailing = 0
    if strip_zeros:
        places = np.flatnonzero(concrete(c, "roots", "pass strip_zeros=False"))
        first, last = (places[0], places[-1] + 1) if places.size else (typeof(c).size, typeof(c).size)
        trailing = 0 if not places.size else typeof(c).size - last
        c = c[first:last]
    none = zeros((int(trailing),), dtypes.complex_of(typeof(c).dtype))
    if typeof(c).size < 2:
        return none
    return concatenate([_roots_of(c) if strip_zeros else _roots_and_none(c), none])


def _roots_of(c: Any) -> Any:
    """The eigenvalues of the companion matrix of coefficients that begin with one other than 0."""
    below = eye(typeof(c).size - 1, k=-1, dtype=typeof(c).dtype)
    return eigvals(below.at[0, :].set(divide(-c[1:], c[0])))


def _roots_and_none(c: Any) -> Any:
    """The roots, then a NaN for each leading zero.

    With its leading zeros at the end, the polynomial has as many further roots, which are 0.
    """
    n = typeof(c).size
    leading = (cumsum(c != 0) == 0).sum()
    found = _roots_of(roll(choose_by(leading == n, ones((n,), typeof(c).dtype), c), -leading))
    found = take(found, argsort(found == 0, stable=True))
    return choose_by(arange(n - 1) < n - 1 - leading, found, scalar_like(complex(np.nan, np.nan), found))
