"""Gamma variates and distributions computed from them; differentiable with respect to their parameters."""

from __future__ import annotations

from functools import partial
from typing import Any

from meshwright.api.control_flow import scan
from meshwright.errors import ArgumentError
from meshwright.ir.tracing import typeof
from meshwright.numpy.creation import asarray
from meshwright.numpy.functions import exp
from meshwright.numpy.indexing import take
from meshwright.numpy.joining import stack
from meshwright.numpy.manipulation import reshape
from meshwright.numpy.out_sharding import placed
from meshwright.numpy.promotion import aval_of, converted, promotes_freely, scalar_like
from meshwright.numpy.reductions import max
from meshwright.ops.elementwise import table as ops
from meshwright.ops.random.gamma import Source, gamma_sample, gamma_slope, random_gamma
from meshwright.random.continuous import exponential, normal, rademacher
from meshwright.random.drawing import drawn
from meshwright.random.generators import GENERATORS, Generator
from meshwright.random.keys import key_data, key_impl, split
from meshwright.random.parameters import Shape, draw_shape, float_dtype, parameter
from meshwright.transforms.custom_jvp import custom_jvp


def _draw(key: Any, a: Any, sizes: tuple[int, ...], dtype: Any, log_space: bool) -> Any:
    impl, words = key_impl(key), key_data(split(key, sizes))
    alpha = parameter(a, dtype, sizes)
    if impl == "threefry2x32":
        first, second = (take(words, i, -1, mode="promise_in_bounds") for i in (0, 1))
        return random_gamma(first, second, alpha, log_space)
    flat = reshape(words, (-1, typeof(words).shape[-1])), reshape(alpha, (-1,))
    return reshape(_one_by_one(impl, log_space, *flat), sizes)


@partial(custom_jvp, nondiff_argnums=(0, 1))
def _one_by_one(impl: str, log_space: bool, keys: Any, alpha: Any) -> Any:
    """Samples for keys ``uint32[n, words]`` and ``alpha[n]``, one by one, as XLA's generator takes a single key."""
    source = _source(GENERATORS[impl])

    def step(_: Any, given: Any) -> Any:
        key, a = given
        return None, gamma_sample(source, log_space, list(key), a)

    return scan(step, None, (keys, alpha))[1]


@_one_by_one.defjvp
def _(impl: str, log_space: bool, primals: Any, tangents: Any) -> Any:
    y = _one_by_one(impl, log_space, *primals)
    return y, tangents[1] * gamma_slope(log_space, primals[1], y)


def _source(generator: Generator) -> Source:
    """The functions of a generator for a single sample, with keys as lists of scalars."""
    return Source(
        lambda key, num: [list(k) for k in generator.split(stack(key), (num,))],
        lambda key, width: generator.bits(stack(key), width, ()),
    )


@placed
@drawn
def gamma(key: Any, a: Any, shape: Shape | None = None, dtype: Any = None) -> Any:
    """Draw from the gamma distribution with shape parameter ``a``, scale 1: density ``x**(a - 1) exp(-x) / Gamma(a)``.

    Args:
      a: positive number or array. The result has its shape unless ``shape`` is given.

    Raises:
      DTypeError: ``dtype`` is not a float dtype.
      ShapeError: ``a`` does not broadcast to ``shape``.

    >>> gamma(PRNGKey(0), 2.0, (3,)).shape
    (3,)
    """
    return _draw(key, a, draw_shape("gamma", shape, a), float_dtype(dtype, "gamma"), False)


@placed
@drawn
def loggamma(key: Any, a: Any, shape: Shape | None = None, dtype: Any = None) -> Any:
    """The logarithm of :func:`gamma` for the same key, without underflow for small ``a``.

    >>> loggamma(PRNGKey(0), 1e-3, (3,)).shape
    (3,)
    """
    return _draw(key, a, draw_shape("loggamma", shape, a), float_dtype(dtype, "loggamma"), True)


@placed
@drawn
@promotes_freely("a", "b", ranks=False)
def beta(key: Any, a: Any, b: Any, shape: Shape | None = None, dtype: Any = None) -> Any:
    """Draw from the beta distribution: density proportional to ``x**(a - 1) * (1 - x)**(b - 1)`` in [0, 1].

    Args:
      a, b: positive numbers or arrays. The result has the shape that they broadcast to unless ``shape`` is given.

    >>> beta(PRNGKey(0), 2.0, 3.0, (3,)).shape
    (3,)
    """
    target, sizes = float_dtype(dtype, "beta"), draw_shape("beta", shape, a, b)
    log_a, log_b = (_draw(k, p, sizes, target, True) for k, p in zip(split(key), (a, b)))
    top = ops.max_(log_a, log_b)
    part_a, part_b = ops.exp(ops.sub(log_a, top)), ops.exp(ops.sub(log_b, top))
    return ops.div(part_a, ops.add(part_a, part_b))


@placed
@drawn
def dirichlet(key: Any, alpha: Any, shape: Shape | None = None, dtype: Any = None) -> Any:
    """Draw from the Dirichlet distribution: probabilities with a density proportional to ``prod(x**(alpha - 1))``.

    Args:
      alpha: shape (..., classes), positive.
      shape: the shape of the result without classes, which ends with (or broadcasts with) that of ``alpha`` without
        classes.

    Raises:
      ArgumentError: ``alpha`` is a scalar.

    >>> dirichlet(PRNGKey(0), np.ones(3), (4,)).shape
    (4, 3)
    """
    target = float_dtype(dtype, "dirichlet")
    full = aval_of(alpha, "random.dirichlet", 1).shape
    if not full:
        raise ArgumentError("random.dirichlet: alpha must have a dimension of classes, got a scalar; pass an array")
    sizes = full[:-1] if shape is None else draw_shape("dirichlet", (*shape, full[-1]), alpha)[:-1]
    logs = _draw(key, alpha, (*sizes, full[-1]), target, True)
    # The shift cancels, in the derivative too.
    parts = exp(logs - ops.stop_gradient(max(logs, -1, keepdims=True)))
    return parts / parts.sum(-1, keepdims=True)


@placed
@drawn
def chisquare(key: Any, df: Any, shape: Shape | None = None, dtype: Any = None) -> Any:
    """Draw from the chi-squared distribution with ``df`` degrees of freedom: the sum of ``df`` squared normals.

    >>> chisquare(PRNGKey(0), 3.0, (3,)).shape
    (3,)
    """
    target, sizes = float_dtype(dtype, "chisquare"), draw_shape("chisquare", shape, df)
    df = converted(asarray(df), target)
    logs = _draw(key, ops.div(df, scalar_like(2, df)), sizes, target, True)
    return ops.mul(ops.exp(logs), scalar_like(2, logs))


@placed
@drawn
def f(key: Any, dfnum: Any, dfden: Any, shape: Shape | None = None, dtype: Any = None) -> Any:
    """Draw from the F distribution: the ratio of two chi-squared variates, each divided by its degrees of freedom.

    >>> f(PRNGKey(0), 3.0, 5.0, (3,)).shape
    (3,)
    """
    target, sizes = float_dtype(dtype, "f"), draw_shape("f", shape, dfnum, dfden)
    key_den, key_num = split(key)
    top, bottom = (
        ops.div(chisquare(k, df, sizes, target), parameter(df, target, sizes))
        for k, df in ((key_num, dfnum), (key_den, dfden))
    )
    return ops.div(top, bottom)


@placed
@drawn
def t(key: Any, df: Any, shape: Shape | None = None, dtype: Any = None) -> Any:
    """Draw from Student's t distribution with ``df`` degrees of freedom.

    >>> t(PRNGKey(0), 3.0, (3,)).shape
    (3,)
    """
    target, sizes = float_dtype(dtype, "t"), draw_shape("t", shape, df)
    key_n, key_g = split(key)
    df = converted(asarray(df), target)
    half = ops.div(df, scalar_like(2, df))
    drawn = _draw(key_g, half, sizes, target, False)
    return ops.mul(normal(key_n, sizes, target), ops.sqrt(ops.div(parameter(half, target, sizes), drawn)))


@placed
@drawn
def generalized_normal(key: Any, p: Any, shape: Shape = (), dtype: Any = None) -> Any:
    """Draw from the generalized normal distribution: density proportional to ``exp(-abs(x)**p)``.

    Args:
      p: a positive number.

    >>> generalized_normal(PRNGKey(0), 1.5, (3,)).shape
    (3,)
    """
    target, sizes = float_dtype(dtype, "generalized_normal"), draw_shape("generalized_normal", shape, p)
    key_size, key_sign = split(key)
    drawn = _draw(key_size, 1 / p, sizes, target, False)
    size = ops.pow_(drawn, parameter(1 / p, target, sizes))
    return ops.mul(rademacher(key_sign, sizes, target), size)


@placed
@drawn
def ball(key: Any, d: int, p: float = 2, shape: Shape = (), dtype: Any = None) -> Any:
    """Draw uniformly distributed points of the unit ball ``sum(abs(x)**p) <= 1`` in ``d`` dimensions.

    Returns:
      an array of shape (*shape, d).

    >>> ball(PRNGKey(0), 2, shape=(3,)).shape
    (3, 2)
    """
    target = float_dtype(dtype, "ball")
    sizes = draw_shape("ball", shape)
    key_g, key_e = split(key)
    g = generalized_normal(key_g, p, (*sizes, d), target)
    total = ops.add((abs(g) ** p).sum(-1), exponential(key_e, sizes, target))
    return g / (total ** (1 / p))[..., None]
