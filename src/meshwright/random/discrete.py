"""Discrete distributions: Bernoulli, uniform integers and categorical."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from meshwright.core import dtypes
from meshwright.errors import ArgumentError, DrawnTypeError, DTypeError
from meshwright.ir.tracing import typeof
from meshwright.numpy.axes import normal_axis, normal_shape
from meshwright.numpy.creation import asarray
from meshwright.numpy.logic import where
from meshwright.numpy.manipulation import broadcast_to, moveaxis, reshape
from meshwright.numpy.out_sharding import placed
from meshwright.numpy.promotion import aval_of, broadcast_shapes, converted, inexact, scalar_like
from meshwright.numpy.reductions import argmax
from meshwright.numpy.sorting import argsort
from meshwright.ops.elementwise import table as ops
from meshwright.ops.elementwise.table import convert
from meshwright.random.continuous import gumbel, uniform
from meshwright.random.drawing import drawn
from meshwright.random.keys import random_bits, split
from meshwright.random.parameters import Shape, check_mode


@placed
@drawn
def bernoulli(key: Any, p: Any = 0.5, shape: Shape | None = None, mode: str = "low") -> Any:
    """Draw from the Bernoulli distribution: True with probability ``p``.

    Args:
      p: number or array. The result has its shape unless ``shape`` is given.
      mode: ``"low"``, or ``"high"`` to use two words of random bits per draw, for a finer resolution of probabilities
        than 1e-7.

    >>> bernoulli(PRNGKey(0), 0.5, (3,)).dtype.name
    'bool'
    """
    aval = aval_of(p, "random.bernoulli", 1)
    dtype = inexact(aval.dtype)
    sizes = aval.shape if shape is None else normal_shape(shape, "random.bernoulli")
    chance = np.asarray(p, dtype) if isinstance(p, (int, float)) else converted(p, dtype)
    if typeof(chance).shape not in ((), sizes):
        chance = broadcast_to(chance, sizes)
    if not check_mode(mode, "bernoulli"):
        return ops.lt(uniform(key, sizes, dtype), chance)
    first, second = uniform(key, (2, *sizes), dtype)
    finer = ops.mul(second, np.asarray(2.0 ** -ml_dtypes.finfo(dtype).nmant, dtype))
    return ops.lt(finer, ops.sub(chance, first))


@placed
@drawn
def randint(key: Any, shape: Shape, minval: Any, maxval: Any, dtype: Any = None) -> Any:
    """Draw uniformly distributed integers in ``[minval, maxval)``, with a negligible bias.

    Args:
      shape: the shape of the result.
      minval, maxval: integers or integer arrays that broadcast to ``shape``; also known floats that are whole numbers.
      dtype: an integer dtype, by default int32 (with ``enable_x64`` int64).

    Raises:
      DTypeError: the bounds or ``dtype`` are not integers.

    >>> bool((randint(PRNGKey(0), (9,), 2, 5) < 5).all())
    True
    """
    sizes = normal_shape(shape, "random.randint")
    target = dtypes.default_int() if dtype is None else dtypes.requested(dtype, "random.randint")
    if not dtypes.is_integer(target):
        raise DrawnTypeError(f"random.randint: dtype must be an integer type, got {target}")
    info = ml_dtypes.iinfo(target)
    # Two narrow words are not enough: the modulo's bias would be noticeable.
    drawn = dtypes.int32 if info.bits < 32 else target
    is_narrow = info.bits < 32
    low, _ = _bound(minval, int(info.min), int(info.max), drawn, sizes)
    high, beyond = _bound(maxval, int(info.min), int(info.max) + is_narrow, drawn, sizes)
    width = dtypes.bit_width(drawn)
    unsigned = np.dtype(f"uint{width}")
    first, second = (random_bits(k, width, sizes) for k in split(key))
    one = np.ones((), unsigned)
    span = convert(ops.sub(high, low), unsigned)
    if not is_narrow:  # the largest integer is only drawn if the bound is above it
        span = where(beyond, ops.add(span, one), span)
    span = where(ops.le(high, low), one, span)
    # Two words of bits make the modulo's bias negligible: (first * 2^width + second) mod span, step by step.
    half = ops.rem(np.asarray(2 ** (width // 2), unsigned), span)
    factor = ops.rem(ops.mul(half, half), span)
    offset = ops.add(ops.mul(ops.rem(first, span), factor), ops.rem(second, span))
    return convert(ops.add(low, convert(ops.rem(offset, span), drawn)), target)


def _whole(x: Any) -> Any:
    """Known numbers that are integers but for their type, as ``np.prod(())`` is, as integers."""
    if isinstance(x, (float, np.floating, np.ndarray)):
        values = np.asarray(x)
        wide = values.astype(np.float64) if values.dtype.kind == "f" else None
        if wide is not None and np.all((np.abs(wide) < 2.0**62) & (wide == np.trunc(wide))):
            return values.astype(np.int64) if values.ndim else int(values)
    return x


def _bound(x: Any, least: int, most: int, dtype: np.dtype, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """A bound, clamped to ``least`` and ``most``, as ``dtype``; and where it was above ``most``."""
    x = _whole(x)
    aval = aval_of(x, "random.randint", 2)
    if not dtypes.is_integer(aval.dtype):
        raise DTypeError(f"random.randint: bounds must be integers, got {aval}; convert them with .astype(int)")
    if isinstance(x, int):
        return np.asarray(min(max(x, least), most), dtype), np.asarray(x > most)
    if isinstance(x, (np.ndarray, np.generic)):  # of any dtype, also one that arrays here do not have
        own, beyond = ml_dtypes.iinfo(x.dtype), np.greater(x, most)
    else:
        own = ml_dtypes.iinfo(aval.dtype)
        beyond = ops.gt(x, scalar_like(most, x)) if own.max > most else np.zeros((), bool)
    x = converted(x.clip(max(least, int(own.min)), min(most, int(own.max))), dtype)
    return (x if typeof(x).shape == () else broadcast_to(x, shape)), beyond


@placed
@drawn
def categorical(
    key: Any, logits: Any, axis: int = -1, shape: Shape | None = None, replace: bool = True, mode: str | None = None
) -> Any:
    """Draw classes with probabilities ``softmax(logits)`` along ``axis``, as the maximum of logits plus Gumbel noise.

    Args:
      logits: unnormalised log probabilities, shape (..., classes, ...).
      axis: the dimension of classes.
      shape: the shape of the result, which ends with (or broadcasts with) the shape of ``logits`` without ``axis``.
      replace: if False, the draws along the leading dimensions of ``shape``, before that shape, are different classes.
      mode: the mode of the noise (see :func:`gumbel`). With ``"high"``, probabilities below 1e-7 are right too.

    Raises:
      ArgumentError: there are more draws than classes without ``replace``.

    >>> categorical(PRNGKey(0), np.log(np.array([[0.5, 0.5], [0.1, 0.9]]))).shape
    (2,)
    """
    logits = asarray(logits)
    if not dtypes.is_float(typeof(logits).dtype):
        logits = convert(logits, dtypes.default_float())
    sizes = typeof(logits).shape
    d = normal_axis(axis, len(sizes), "random.categorical")
    batch = sizes[:d] + sizes[d + 1 :]
    out_shape = batch if shape is None else normal_shape(shape, "random.categorical")
    broadcast_shapes(out_shape, batch, name="random.categorical")
    lead = len(out_shape) - len(batch)
    if not replace:
        return _without_replacement(key, logits, d, out_shape, lead, mode)
    place = lead + d
    full = list(out_shape[lead:])
    full.insert(d, sizes[d])
    noise = gumbel(key, (*out_shape[:lead], *full), typeof(logits).dtype, mode)
    spread = broadcast_to(logits, typeof(noise).shape)
    return argmax(ops.add(noise, spread), place)


def _without_replacement(key: Any, logits: Any, d: int, out_shape: tuple[int, ...], lead: int, mode: str | None) -> Any:
    """The classes with the largest noisy logits, in order (Gumbel top-k: Kool et al. 2019)."""
    shape, draws = typeof(logits).shape, math.prod(out_shape[:lead])
    if draws > shape[d] or out_shape[lead:] != shape[:d] + shape[d + 1 :]:
        raise ArgumentError(
            f"random.categorical: {draws} different classes for logits of shape {shape} along axis {d} cannot be drawn "
            f"into shape {out_shape}; without replace there are at most {shape[d]} draws, and shape ends with "
            f"{shape[:d] + shape[d + 1 :]}"
        )
    noisy = ops.add(logits, gumbel(key, shape, typeof(logits).dtype, mode))
    order = moveaxis(ops.convert(argsort(ops.neg(noisy), d), dtypes.int32), d, 0)
    return reshape(order[:draws], out_shape)
