"""Random permutations and choices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from meshwright.core import dtypes
from meshwright.core.words import counted
from meshwright.errors import ArgumentError
from meshwright.ir.tracing import typeof
from meshwright.numpy.axes import normal_axis, normal_shape, static_int
from meshwright.numpy.creation import arange, asarray
from meshwright.numpy.indexing import take
from meshwright.numpy.manipulation import reshape
from meshwright.numpy.out_sharding import placed
from meshwright.numpy.promotion import converted, inexact, scalar_like
from meshwright.numpy.searching import searchsorted
from meshwright.numpy.sorting import argsort, cumsum
from meshwright.ops.elementwise import table as ops
from meshwright.ops.sort.sorting import sort
from meshwright.random.continuous import gumbel, uniform
from meshwright.random.discrete import randint
from meshwright.random.drawing import drawn
from meshwright.random.keys import random_bits, split
from meshwright.random.parameters import check_mode


def _shuffled(key: Any, x: Any, axis: int) -> Any:
    """``x`` sorted by random words, repeatedly, so that equal words do not matter."""
    shape = typeof(x).shape
    rounds = math.ceil(3 * math.log(max(1, math.prod(shape))) / math.log(2**32 - 1))
    for _ in range(rounds):
        key, subkey = split(key)
        x = sort((random_bits(subkey, 32, shape), x), axis)[1]
    return x


@placed
@drawn
def permutation(key: Any, x: int | Any, axis: int = 0, independent: bool = False) -> Any:
    """A random permutation of ``x`` along ``axis``, or of ``arange(x)`` for an integer.

    Args:
      independent: permute every vector along ``axis`` independently.

    >>> sorted(permutation(PRNGKey(0), 4).tolist())
    [0, 1, 2, 3]
    """
    x = asarray(x)
    if not typeof(x).ndim:
        return _shuffled(key, arange(static_int(x, "random.permutation", "x")), 0)
    d = normal_axis(axis, typeof(x).ndim, "random.permutation")
    if independent or typeof(x).ndim == 1:
        return _shuffled(key, x, d)
    return take(x, _shuffled(key, arange(typeof(x).shape[d]), 0), d, mode="promise_in_bounds")


shuffle = permutation


@drawn
def choice(
    key: Any, a: int | Any, shape: Sequence[int] = (), replace: bool = True, p: Any = None, axis: int = 0,
    mode: str | None = None,
) -> Any:  # fmt: skip
    """Draw random elements of ``a`` along ``axis``, or of ``arange(a)`` for an integer.

    Args:
      shape: the shape of the draws, which replaces ``axis`` in the result.
      replace: whether an element may be drawn more than once.
      p: the probability of each element, by default equal.
      mode: ``"low"`` or ``"high"``, the mode of the noise for draws without replacement (see :func:`gumbel`).

    Raises:
      ArgumentError: there are no elements, fewer than draws without ``replace``, or ``p`` has another size.

    >>> choice(PRNGKey(0), 5, (3,), replace=False).shape
    (3,)
    """
    sizes = normal_shape(shape, "random.choice")
    check_mode(mode, "choice")
    given = asarray(a)
    pool = given if typeof(given).ndim else None
    d = 0 if pool is None else normal_axis(axis, typeof(pool).ndim, "random.choice")
    n = static_int(a, "random.choice", "a") if pool is None else typeof(pool).shape[d]
    draws = math.prod(sizes)
    if draws and n <= 0:
        raise ArgumentError("random.choice: a has no elements to choose from")
    if not replace and draws > n:
        raise ArgumentError(f"random.choice: {counted(draws, 'element')} cannot be drawn from {n} without replace=True")
    if p is None:
        if not replace:
            source = arange(n) if pool is None else pool
            drawn = permutation(key, source, d)
            return reshape(drawn[(slice(None),) * d + (slice(0, draws),)], _result(drawn, d, sizes))
        index = randint(key, sizes, 0, n)
    else:
        index = _weighted(key, asarray(p), n, sizes, replace, mode)
    return index if pool is None else take(pool, index, d, mode="promise_in_bounds")


def _result(x: Any, d: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    shape = typeof(x).shape
    return (*shape[:d], *sizes, *shape[d + 1 :])


def _weighted(key: Any, p: Any, n: int, sizes: tuple[int, ...], replace: bool, mode: str | None) -> Any:
    if typeof(p).shape != (n,):
        raise ArgumentError(f"random.choice: p must have shape ({n},), got {typeof(p).shape}")
    p = converted(p, inexact(typeof(p).dtype))
    if replace:
        total = cumsum(p)
        top = total[-1]
        u = uniform(key, sizes, typeof(p).dtype)
        return converted(searchsorted(total, ops.mul(ops.sub(scalar_like(1, u), u), top)), dtypes.default_int())
    # Draws without replacement are the largest of log p plus Gumbel noise, in order.
    noisy = ops.add(gumbel(key, (n,), typeof(p).dtype, mode), ops.log(p))
    return reshape(argsort(ops.neg(noisy))[: math.prod(sizes)], sizes)
