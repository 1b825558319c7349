"""Continuous distributions, from uniform numbers by the inverse of the distribution function, as in JAX."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from meshwright.core import dtypes
from meshwright.ir.tracing import typeof
from meshwright.numpy.axes import normal_shape
from meshwright.numpy.creation import asarray
from meshwright.numpy.logic import where
from meshwright.numpy.manipulation import broadcast_to
from meshwright.numpy.out_sharding import placed
from meshwright.numpy.promotion import aval_of, broadcast_shapes, converted
from meshwright.ops.elementwise import table as ops
from meshwright.ops.random.floats import bits_needed, normal_of, scaled, unit_of
from meshwright.random.drawing import drawn
from meshwright.random.keys import random_bits, split
from meshwright.random.parameters import Shape, check_mode, float_dtype


@placed
@drawn
def uniform(key: Any, shape: Shape = (), dtype: Any = None, minval: Any = 0.0, maxval: Any = 1.0) -> Any:
    """Draw from the uniform distribution on ``[minval, maxval)``.

    Args:
      key: a key.
      shape: the shape of the result.
      dtype: a float dtype, by default float32 (with ``enable_x64`` float64).
      minval, maxval: numbers or arrays that broadcast to ``shape``.

    Raises:
      DTypeError: ``dtype`` is not a float dtype.
      ShapeError: the bounds do not broadcast to ``shape``.

    >>> uniform(PRNGKey(0), (2, 3)).shape
    (2, 3)
    """
    target, sizes = float_dtype(dtype, "uniform"), normal_shape(shape, "random.uniform")
    unit = unit_of(random_bits(key, bits_needed(target), sizes), target)
    if type(minval) is float and type(maxval) is float and minval == 0 and maxval == 1:
        return ops.max_(unit, np.zeros((), target))
    low, high = _bound(minval, sizes, target), _bound(maxval, sizes, target)
    return scaled(unit, low, high)


def _bound(x: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    aval = aval_of(x, "random.uniform")
    if aval.shape == ():
        return np.asarray(x, dtype) if isinstance(x, (int, float, np.generic, np.ndarray)) else converted(x, dtype)
    return broadcast_to(converted(x, dtype), shape)


@placed
@drawn
def normal(key: Any, shape: Shape = (), dtype: Any = None) -> Any:
    """Draw from the standard normal distribution; complex numbers have variance 1/2 in each part.

    >>> normal(PRNGKey(0), (2, 3)).shape
    (2, 3)
    """
    if dtype is not None and dtypes.is_complex(dtypes.as_dtype(dtype)):
        target = dtypes.requested(dtype, "random.normal")
        parts = split(key)
        re, im = (normal(k, shape, dtypes.real_of(target)) for k in parts)
        return ops.mul(ops.complex_(re, im), np.asarray(np.sqrt(0.5), target))
    target = float_dtype(dtype, "normal")
    return normal_of(random_bits(key, bits_needed(target), normal_shape(shape, "random.normal")), target)


@placed
@drawn
def truncated_normal(
    key: Any, lower: Any = -2.0, upper: Any = 2.0, shape: Shape | None = None, dtype: Any = None
) -> Any:
    """Draw from the standard normal distribution, truncated to numbers between ``lower`` and ``upper``.

    Args:
      lower, upper: numbers or arrays. The result has the shape that they broadcast to unless ``shape`` is given.

    >>> truncated_normal(PRNGKey(0), -1.0, 1.0, (3,)).shape
    (3,)
    """
    target = float_dtype(dtype, "truncated_normal")
    lower, upper = (converted(asarray(v), target) for v in (lower, upper))
    joint = broadcast_shapes(typeof(lower).shape, typeof(upper).shape, name="random.truncated_normal")
    sizes = joint if shape is None else normal_shape(shape, "random.truncated_normal")
    root = np.array(np.sqrt(2), target)
    low, high = (ops.erf(ops.div(v, root)) for v in (lower, upper))
    out = ops.mul(root, ops.erf_inv(uniform(key, sizes, target, low, high)))
    first = ops.nextafter(ops.stop_gradient(lower), np.array(np.inf, target))
    last = ops.nextafter(ops.stop_gradient(upper), np.array(-np.inf, target))
    fit = [v if typeof(v).shape == () else broadcast_to(v, sizes) for v in (first, last)]
    return ops.min_(ops.max_(out, fit[0]), fit[1])


@placed
@drawn
def gumbel(key: Any, shape: Shape = (), dtype: Any = None, mode: str | None = None) -> Any:
    """Draw from the standard Gumbel distribution: ``-log(-log(u))`` for uniform ``u``.

    Args:
      mode: ``"low"`` (the default), or ``"high"`` to use two words of random bits per number, which allows larger
        numbers.

    >>> gumbel(PRNGKey(0), (3,)).shape
    (3,)
    """
    target = float_dtype(dtype, "gumbel")
    tiny = np.asarray(ml_dtypes.finfo(target).tiny, target)
    if check_mode(mode, "gumbel"):
        sizes = normal_shape(shape, "random.gumbel")
        first, second = uniform(key, (2, *sizes), target)
        finer = ops.mul(np.asarray(2.0 ** -ml_dtypes.finfo(target).nmant, target), second)
        half = np.asarray(0.5, target)
        u = where(ops.ge(first, half), first, ops.add(ops.add(first, finer), tiny))
        return ops.neg(ops.log(ops.neg(ops.log1p(ops.neg(u)))))
    return ops.neg(ops.log(ops.neg(ops.log(uniform(key, shape, target, tiny, np.ones((), target))))))


@placed
@drawn
def exponential(key: Any, shape: Shape = (), dtype: Any = None) -> Any:
    """Draw from the exponential distribution with rate 1.

    >>> exponential(PRNGKey(0), (3,)).shape
    (3,)
    """
    return ops.neg(ops.log1p(ops.neg(uniform(key, shape, float_dtype(dtype, "exponential")))))


@placed
@drawn
def laplace(key: Any, shape: Shape = (), dtype: Any = None) -> Any:
    """Draw from the Laplace distribution with mean 0 and scale 1.

    >>> laplace(PRNGKey(0), (3,)).shape
    (3,)
    """
    target = float_dtype(dtype, "laplace")
    low = np.asarray(-1 + ml_dtypes.finfo(target).epsneg, target)
    u = uniform(key, shape, target, low, np.ones((), target))
    return ops.mul(ops.sign(u), ops.log1p(ops.neg(ops.abs_(u))))


@placed
@drawn
def logistic(key: Any, shape: Shape = (), dtype: Any = None) -> Any:
    """Draw from the standard logistic distribution: ``log(u / (1 - u))`` for uniform ``u``.

    >>> logistic(PRNGKey(0), (3,)).shape
    (3,)
    """
    target = float_dtype(dtype, "logistic")
    tiny = np.asarray(ml_dtypes.finfo(target).tiny, target)
    u = uniform(key, shape, target, tiny, np.ones((), target))
    return ops.sub(ops.log(u), ops.log1p(ops.neg(u)))


@placed
@drawn
def cauchy(key: Any, shape: Shape = (), dtype: Any = None) -> Any:
    """Draw from the standard Cauchy distribution: ``tan(pi (u - 1/2))`` for uniform ``u``.

    >>> cauchy(PRNGKey(0), (3,)).shape
    (3,)
    """
    target = float_dtype(dtype, "cauchy")
    u = uniform(key, shape, target, np.asarray(ml_dtypes.finfo(target).eps, target), np.ones((), target))
    return ops.tan(ops.mul(np.asarray(np.pi, target), ops.sub(u, np.asarray(0.5, target))))


@placed
@drawn
def rademacher(key: Any, shape: Shape = (), dtype: Any = None) -> Any:
    """Draw -1 or 1 with equal probability; by default as int32. In an unsigned ``dtype``, -1 wraps around.

    >>> rademacher(PRNGKey(0), (3,)).shape
    (3,)
    """
    target = dtypes.default_int() if dtype is None else dtypes.requested(dtype, "random.rademacher")
    positive = ops.lt(uniform(key, shape, dtypes.default_float()), np.asarray(0.5, dtypes.default_float()))
    return where(positive, np.ones((), target), np.asarray(-1).astype(target))
