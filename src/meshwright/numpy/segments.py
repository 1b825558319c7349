"""Segment reductions: combine the rows of an array that have the same segment number."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.api.placement import made_as
from meshwright.core import dtypes
from meshwright.errors import ArgumentError, DTypeError, ShapeError
from meshwright.ir.tracing import typeof
from meshwright.numpy.creation import arange, asarray, full
from meshwright.numpy.scalar_types import iinfo
from meshwright.numpy.searching import concrete
from meshwright.ops.reduce.reductions import reduce_max, reduce_min, reduce_prod
from meshwright.ops.shape.broadcast_reduce import reduce_sum

_ARGUMENTS = """

    Args:
      data: rows, along the first dimension, or one row for all numbers.
      segment_ids: an integer for each row; rows whose number is not in ``[0, num_segments)`` are left out. Where it has
        several dimensions, ``data`` is broadcast to its shape, followed by that of a row.
      num_segments: rows of the result; without it ``max(segment_ids) + 1``, which must then be known while tracing.
      indices_are_sorted, unique_indices: promises about ``segment_ids``.
      bucket_size: rows that are combined on their own before the results are, which rounds sums of many rows less.
      mode: what becomes of numbers out of range, as in ``x.at``; ``"drop"`` if not given.

    Returns:
      An array of shape ``(num_segments, *data.shape[1:])``.

    Raises:
      ShapeError: ``data`` does not broadcast to the shape of ``segment_ids``, followed by ``data.shape[1:]``.
      DTypeError: ``segment_ids`` are not integers.
      ArgumentError: ``num_segments`` is negative, or ``bucket_size`` not positive.
      ConcretizationTypeError: ``num_segments`` is not given and ``segment_ids`` is traced."""


def _segment(name: str, method: str, joined: Any, start: Any, what: str, example: str) -> Any:
    def function(
        data: Any,
        segment_ids: Any,
        num_segments: int | None = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        bucket_size: int | None = None,
        mode: Any = None,
        out_sharding: Any = None,
    ) -> Any:
        x, ids = asarray(data), asarray(segment_ids)
        shape, lead = typeof(x).shape, typeof(ids).shape
        rest = shape[1:]
        if not lead or not _fit(shape, (*lead, *rest)):
            raise ShapeError(f"{name}: segment_ids of shape {lead} do not number the rows of data of shape {shape}")
        if not dtypes.is_integer(typeof(ids).dtype):
            raise DTypeError(f"{name}: segment_ids must be integers, got {typeof(ids)}; convert them with .astype(int)")
        if bucket_size is not None and bucket_size < 1:
            raise ArgumentError(f"{name}: bucket_size must be at least 1, got {bucket_size}")
        count = _count(name, ids, num_segments)
        dtype = typeof(x).dtype
        how = {"indices_are_sorted": indices_are_sorted, "unique_indices": unique_indices, "mode": mode}

        def combined() -> Any:
            # Negative numbers are out of range; they do not count from the end.
            out = full((count, *rest), start(dtype), dtype)
            if bucket_size is None:
                return getattr(out.at[ids], method)(x, wrap_negative_indices=False, **how)
            buckets = arange(lead[0]) // bucket_size
            out = full((-(-lead[0] // bucket_size), *out.shape), start(dtype), dtype)
            at = out.at[buckets.reshape(-1, *[1] * (len(lead) - 1)), ids]
            return joined(getattr(at, method)(x, wrap_negative_indices=False, **how), [0])

        return made_as(out_sharding, combined)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{what}{_ARGUMENTS}\n\n    Example:\n      {example}\n    "
    return function


def _fit(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether an array of a shape broadcasts to another."""
    own = shape[max(len(shape) - len(wanted), 0) :]
    spare = shape[: len(shape) - len(own)]
    return all(s == 1 for s in spare) and all(a in (1, b) for a, b in zip(own[::-1], wanted[::-1]))


def _count(name: str, ids: Any, num_segments: int | None) -> int:
    if num_segments is None:
        numbers = concrete(ids, name, "give num_segments")
        return max(int(numbers.max()), -1) + 1 if numbers.size else 0
    count = int(num_segments)
    if count < 0:
        raise ArgumentError(f"{name}: num_segments must not be negative, got {num_segments}")
    return count


def _least(dtype: np.dtype) -> Any:
    return False if dtypes.is_bool(dtype) else -np.inf if dtypes.is_inexact(dtype) else iinfo(dtype).min


def _greatest(dtype: np.dtype) -> Any:
    return True if dtypes.is_bool(dtype) else np.inf if dtypes.is_inexact(dtype) else iinfo(dtype).max


segment_sum = _segment(
    "segment_sum", "add", reduce_sum, lambda dtype: 0, "The sum of each segment; 0 for one without rows.",
    ">>> mw.ops.segment_sum(jnp.array([1, 2, 5, 7]), jnp.array([0, 2, 0, 9]), 3).tolist()\n      [6, 0, 2]",
)  # fmt: skip
segment_prod = _segment(
    "segment_prod", "multiply", reduce_prod, lambda dtype: 1, "The product of each segment; 1 for one without rows.",
    ">>> mw.ops.segment_prod(jnp.array([2, 3, 5]), jnp.array([0, 2, 0]), 3).tolist()\n      [10, 1, 3]",
)  # fmt: skip
segment_max = _segment(
    "segment_max", "max", reduce_max, _least,
    "The greatest row of each segment; the least number for one without rows.",
    ">>> mw.ops.segment_max(jnp.array([2.0, 3.0, 5.0]), jnp.array([0, 2, 0]), 3).tolist()\n      [5.0, -inf, 3.0]",
)  # fmt: skip
segment_min = _segment(
    "segment_min", "min", reduce_min, _greatest,
    "The least row of each segment; the greatest number for one without rows.",
    ">>> mw.ops.segment_min(jnp.array([2.0, 3.0, 5.0]), jnp.array([0, 2, 0]), 3).tolist()\n      [2.0, inf, 3.0]",
)  # fmt: skip
