"""Continuous distributions computed from uniform, exponential and normal variates, as in JAX."""

from __future__ import annotations

from typing import Any

from meshwright.core import dtypes
from meshwright.errors import DrawnTypeError
from meshwright.numpy.logic import where
from meshwright.numpy.out_sharding import placed
from meshwright.numpy.promotion import aval_of, inexact, scalar_like
from meshwright.ops.elementwise import table as ops
from meshwright.ops.shape.broadcast_reduce import reduce_sum
from meshwright.random.continuous import exponential, normal, rademacher, uniform
from meshwright.random.drawing import drawn
from meshwright.random.keys import split
from meshwright.random.parameters import Shape, draw_shape, float_dtype, parameter


@placed
@drawn
def pareto(key: Any, b: Any, shape: Shape | None = None, dtype: Any = None) -> Any:
    """Draw from the Pareto distribution with scale 1: density ``b / x**(b + 1)`` for ``x >= 1``.

    Args:
      b: positive number or array. The result has its shape unless ``shape`` is given.

    >>> pareto(PRNGKey(0), 3.0, (3,)).shape
    (3,)
    """
    target, sizes = float_dtype(dtype, "pareto"), draw_shape("pareto", shape, b)
    return ops.exp(ops.div(exponential(key, sizes, target), parameter(b, target, sizes)))


@placed
@drawn
def rayleigh(key: Any, scale: Any, shape: Shape | None = None, dtype: Any = None) -> Any:
    """Draw from the Rayleigh distribution: the length of a vector of two normals of standard deviation ``scale``.

    >>> rayleigh(PRNGKey(0), 2.0, (3,)).shape
    (3,)
    """
    target, sizes = float_dtype(dtype, "rayleigh"), draw_shape("rayleigh", shape, scale)
    logs = ops.log(uniform(key, sizes, target))
    return ops.mul(parameter(scale, target, sizes), ops.sqrt(ops.mul(logs, scalar_like(-2, logs))))


@drawn
def weibull_min(key: Any, scale: Any, concentration: Any, shape: Shape = (), dtype: Any = None) -> Any:
    """Draw from the Weibull distribution: ``P(x > t) = exp(-(t / scale)**concentration)``.

    >>> weibull_min(PRNGKey(0), 1.0, 2.0, (3,)).shape
    (3,)
    """
    target, sizes = float_dtype(dtype, "weibull_min"), draw_shape("weibull_min", shape or None, scale, concentration)
    u = uniform(key, sizes, target)
    power = ops.div(scalar_like(1, u), parameter(concentration, target, sizes))
    return ops.mul(ops.pow_(ops.neg(ops.log1p(ops.neg(u))), power), parameter(scale, target, sizes))


@placed
@drawn
def maxwell(key: Any, shape: Shape = (), dtype: Any = None) -> Any:
    """Draw from the Maxwell distribution: the length of a vector of three standard normals.

    >>> maxwell(PRNGKey(0), (3,)).shape
    (3,)
    """
    target, sizes = float_dtype(dtype, "maxwell"), draw_shape("maxwell", shape)
    vectors = normal(key, (*sizes, 3), target)
    return ops.sqrt(reduce_sum(ops.mul(vectors, vectors), (len(sizes),)))


@drawn
def double_sided_maxwell(key: Any, loc: Any, scale: Any, shape: Shape = (), dtype: Any = None) -> Any:
    """Draw from the Maxwell distribution with a random sign, times ``scale``, plus ``loc``.

    Args:
      loc, scale: numbers or arrays.
      shape: the leading dimensions of the result, before the shape that ``loc`` and ``scale`` broadcast to. If empty,
        the latter shape is used twice.

    >>> double_sided_maxwell(PRNGKey(0), 1.0, 2.0, (3,)).shape
    (3,)
    """
    target, joint = float_dtype(dtype, "double_sided_maxwell"), draw_shape("double_sided_maxwell", None, loc, scale)
    sizes = (*(draw_shape("double_sided_maxwell", shape) or joint), *joint)
    key_size, key_sign = split(key)
    drawn = ops.mul(rademacher(key_sign, sizes, target), maxwell(key_size, sizes, target))
    return ops.add(ops.mul(drawn, parameter(scale, target, sizes)), parameter(loc, target, sizes))


@placed
@drawn
def wald(key: Any, mean: Any, shape: Shape | None = None, dtype: Any = None) -> Any:
    """Draw from the Wald (inverse Gaussian) distribution with the given mean and scale 1.

    Source: Michael, Schucany and Haas 1976, "Generating random variates using transformations with multiple roots".

    >>> wald(PRNGKey(0), 2.0, (3,)).shape
    (3,)
    """
    target, sizes = float_dtype(dtype, "wald"), draw_shape("wald", shape, mean)
    key_n, key_u = split(key)
    m = parameter(mean, target, sizes)
    y, z = normal(key_n, sizes, target) ** 2, uniform(key_u, sizes, target)
    squared = m**2
    root = ops.sqrt(4 * m * y + squared * y**2)
    x = m + squared * y / 2 - m / 2 * root
    return where(z <= m / (m + x), x, squared / x)


@placed
@drawn
def triangular(key: Any, left: Any, mode: Any, right: Any, shape: Shape | None = None, dtype: Any = None) -> Any:
    """Draw from the triangular distribution: linear density from 0 at ``left`` to ``mode``, and to 0 at ``right``.

    >>> triangular(PRNGKey(0), 0.0, 1.0, 3.0, (3,)).shape
    (3,)
    """
    target, sizes = float_dtype(dtype, "triangular"), draw_shape("triangular", shape, left, mode, right)
    low, peak, high = (parameter(v, target, sizes) for v in (left, mode, right))
    u = uniform(key, sizes, target)
    rising = low + ops.sqrt(u * (high - low) * (peak - low))
    falling = high - ops.sqrt((1 - u) * (high - low) * (high - peak))
    return where(u < (peak - low) / (high - low), rising, falling)


@placed
@drawn
def lognormal(key: Any, sigma: Any = 1.0, shape: Shape | None = None, dtype: Any = None) -> Any:
    """Draw from the log-normal distribution: ``exp`` of a normal with mean 0 and standard deviation ``sigma``.

    >>> lognormal(PRNGKey(0), 0.5, (3,)).shape
    (3,)
    """
    sizes = draw_shape("lognormal", shape, sigma)
    drawn = normal(key, sizes, dtype)
    return ops.exp(ops.mul(drawn, parameter(sigma, drawn.dtype, sizes)))


@placed
@drawn
def geometric(key: Any, p: Any, shape: Shape | None = None, dtype: Any = None) -> Any:
    """Draw from the geometric distribution: the number of trials, at least 1, until the first success.

    Args:
      p: the probability of success, a number or array. The result has its shape unless ``shape`` is given.
      dtype: an integer dtype.

    Raises:
      DrawnTypeError: ``dtype`` is not an integer dtype.

    >>> geometric(PRNGKey(0), 0.5, (3,)).shape
    (3,)
    """
    target = dtypes.default_int() if dtype is None else dtypes.requested(dtype, "random.geometric")
    if not dtypes.is_integer(target):
        raise DrawnTypeError(f"random.geometric: dtype must be an integer type, got {target}; convert the result")
    drawn = inexact(aval_of(p, "random.geometric", 1).dtype)
    sizes = draw_shape("geometric", shape, p)
    u = uniform(key, sizes, drawn)
    u = where(u == 0, 1, u)
    tries = ops.floor(ops.div(ops.log(u), ops.log1p(ops.neg(parameter(p, drawn, sizes)))))
    return ops.convert(ops.add(tries, scalar_like(1, tries)), target)
