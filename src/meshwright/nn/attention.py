"""Attention (Vaswani et al. 2017), with masks, biases and grouped heads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.expected import as_integers
from meshwright.core.precision import DotAlgorithmPreset
from meshwright.errors import ArgumentError, DTypeError, ShapeError
from meshwright.ir.tracing import typeof
from meshwright.nn.normalization import logsumexp, softmax
from meshwright.numpy.arithmetic import add
from meshwright.numpy.creation import asarray
from meshwright.numpy.logic import where
from meshwright.numpy.manipulation import moveaxis
from meshwright.numpy.promotion import aval_of, converted, result_type, scalar_like
from meshwright.ops.elementwise import table as ops
from meshwright.ops.products.dot import dot_general
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, iota
from meshwright.ops.shape.rearrange import expand_dims, reshape, transpose

_WINDOW = "dot_product_attention: local_window_size"


def causal_mask(queries: int, keys: int) -> Any:
    """``bool[queries, keys]``: whether each key is at or before the position of each query; both count from 0.

    >>> causal_mask(2, 2).tolist()
    [[True, False], [True, True]]
    """
    return ops.ge(iota(dtypes.int32, (queries, keys), 0), iota(dtypes.int32, (queries, keys), 1))


def _check(query: Any, key: Any, value: Any) -> None:
    q, k, v = (aval_of(x, "dot_product_attention", i).shape for i, x in enumerate((query, key, value)))
    fits = len(q) == len(k) == len(v) == 4 and q[0] == k[0] and q[3] == k[3] and k[:3] == v[:3]
    if not fits or not k[2] or q[2] % k[2]:
        raise ShapeError(
            f"dot_product_attention: query {q}, key {k}, value {v} must have shapes (batch, queries, heads, width), "
            "(batch, keys, key heads, width) and (batch, keys, key heads, any); heads must be a multiple of key heads"
        )


def dot_product_attention(
    query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, *, scale: float | None = None,
    is_causal: bool = False, query_seq_lengths: Any = None, key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None, implementation: str | None = None,
    return_residual: bool = False,
) -> Any:  # fmt: skip
    """``softmax(query key^T * scale + bias) value`` for each head.

    Args:
      query: shape (batch, queries, heads, width); leading dimensions of all arrays may be omitted.
      key: shape (batch, keys, key heads, width); each key head serves ``heads / key heads`` neighbouring heads.
      value: shape (batch, keys, key heads, value width).
      bias: broadcasts to (batch, heads, queries, keys), added to the logits.
      mask: bools that broadcast to the same shape; False excludes a key.
      scale: default: 1 / sqrt(width).
      is_causal: queries see only keys at or before their position.
      query_seq_lengths: integers of shape (batch,): how many queries there are; the others give zeros.
      key_value_seq_lengths: integers of shape (batch,): how many keys there are; the others take no part.
      local_window_size: queries see keys up to this many positions before and after theirs (or (before, after)).
      implementation: "xla", the one there is.
      return_residual: return also the logarithm of the sum of exponentials, shape (batch, queries, heads); where no key
        takes part it is 0.7 times the least number of the logits' dtype. It counts as constant in derivatives.

    Returns:
      An array of shape (batch, queries, heads, value width), of the promoted dtype; softmax is computed in float32 or
      wider.

    Raises:
      ShapeError: shapes do not fit. DTypeError: integer operands. ArgumentError: a mask of numbers, a negative window,
        or an unknown implementation.

    >>> x = np.ones((2, 5, 4, 8), "float32")
    >>> dot_product_attention(x, x, x, is_causal=True).shape
    (2, 5, 4, 8)
    """
    if implementation not in (None, "xla"):
        raise ArgumentError(f"dot_product_attention: implementation must be 'xla' or None, got {implementation!r}")
    query, key, value = (asarray(x) for x in (query, key, value))
    shape = typeof(query).shape
    query, key, value, bias, mask = (_with_batch(x) for x in (query, key, value, bias, mask))
    _check(query, key, value)
    dtype = result_type(query, key, value)
    if not dtypes.is_inexact(dtype):
        raise DTypeError(f"dot_product_attention: expected floats, got {dtype}; convert them with .astype(float)")
    query, key, value = (converted(x, dtype) for x in (query, key, value))
    b, t, h, w = typeof(query).shape
    s, kh = typeof(key).shape[1:3]
    factor = 1 / math.sqrt(w) if scale is None else scale
    wide = dtypes.float32 if dtypes.bit_width(dtype) < 32 else dtype
    logits = _scores(query, key, h // kh, wide)
    logits = ops.mul(logits, scalar_like(factor, logits))
    if bias is not None:
        logits = add(logits, bias)
    least = np.asarray(0.7 * float(np.finfo(typeof(logits).dtype).min), typeof(logits).dtype)
    if mask is not None:
        logits = where(_bools(mask), logits, least)
    if is_causal:
        logits = where(causal_mask(t, s), logits, least)
    if local_window_size is not None:
        logits = where(_window_mask(t, s, local_window_size), logits, least)
    if key_value_seq_lengths is not None:
        inside = _inside(key_value_seq_lengths, b, s, "key_value_seq_lengths")
        logits = where(expand_dims(inside, (1, 2)), logits, least)
    is_query = None if query_seq_lengths is None else _inside(query_seq_lengths, b, t, "query_seq_lengths")
    if is_query is not None and return_residual:
        logits = where(expand_dims(is_query, (1, 3)), logits, least)
    weights = converted(softmax(logits), dtype)
    out = _mix(weights, value, h // kh)
    if is_query is not None:
        out = where(expand_dims(is_query, (2, 3)), out, scalar_like(0, out))
    out = reshape(out, (*shape[:-1], typeof(out).shape[-1]))
    if not return_residual:
        return out
    total = ops.stop_gradient(moveaxis(logsumexp(logits, -1), 1, 2))
    return out, reshape(converted(total, dtype), shape[:-1])


def _with_batch(x: Any) -> Any:
    """An array with leading dimensions of size 1 added up to four dimensions; None is returned as it is."""
    x = x if x is None else asarray(x)
    return x if x is None else expand_dims(x, tuple(range(4 - typeof(x).ndim)))


def _bools(mask: Any) -> Any:
    """The mask; refuses numbers, which may be meant as a bias."""
    if not dtypes.is_bool(typeof(mask).dtype):
        raise ArgumentError(
            f"dot_product_attention: mask must be bools, got {typeof(mask)}; numbers to add are a bias="
        )
    return mask


def _inside(lengths: Any, batch: int, size: int, what: str) -> Any:
    """``bool[batch, size]``: whether each position is less than the length."""
    lengths = asarray(lengths)
    aval = typeof(lengths)
    if aval.shape != (batch,) or not dtypes.is_integer(aval.dtype):
        raise ShapeError(f"dot_product_attention: {what} must be integers of shape ({batch},), got {aval}")
    return ops.lt(iota(aval.dtype, (batch, size), 1), broadcast_in_dim(lengths, (batch, size), (0,)))


def _window_mask(queries: int, keys: int, window: int | tuple[int, int]) -> Any:
    """``bool[queries, keys]``: whether each key is in the window of each query."""
    sizes = (window, window) if isinstance(window, int) else as_integers(_WINDOW, window)
    if len(sizes) != 2:
        raise ArgumentError(f"{_WINDOW} must be one integer or (before, after), got {window}")
    before, after = sizes
    if before < 0 or after < 0:
        raise ArgumentError(f"{_WINDOW} must not be negative, got {window}")
    distance = ops.sub(iota(dtypes.int32, (queries, keys), 1), iota(dtypes.int32, (queries, keys), 0))
    return ops.and_(ops.ge(distance, np.int32(-before)), ops.le(distance, np.int32(after)))


def _scores(query: Any, key: Any, group: int, dtype: np.dtype) -> Any:
    """Products of queries and keys (batch, heads, queries, keys), added up and kept in ``dtype``.

    The algorithm says that the products of the derivative are of bfloat16 too, which GPUs would else compute in TF32,
    from cotangents of twice the size (JAX does the same).
    """
    b, t, h, w = typeof(query).shape
    narrow = dtypes.bfloat16 == typeof(query).dtype == typeof(key).dtype
    precision = DotAlgorithmPreset.BF16_BF16_F32 if narrow else None
    if group == 1:
        return dot_general(query, key, (((3,), (3,)), ((0, 2), (0, 2))), precision, dtype)
    kh = h // group
    grouped = reshape(query, (b, t, kh, group, w))
    out = dot_general(grouped, key, (((4,), (3,)), ((0, 2), (0, 2))), precision, dtype)
    out = transpose(out, (0, 1, 3, 2, 4))  # from b, kh, t, group, s
    return reshape(out, (b, h, t, typeof(key).shape[1]))


def _mix(weights: Any, value: Any, group: int) -> Any:
    """Average of values with weights (batch, heads, queries, keys)."""
    b, h, t, s = typeof(weights).shape
    if group == 1:
        out = dot_general(weights, value, (((3,), (1,)), ((0, 1), (0, 2))))
        return transpose(out, (0, 2, 1, 3))
    kh = h // group
    grouped = reshape(weights, (b, kh, group, t, s))
    out = dot_general(grouped, value, (((4,), (1,)), ((0, 1), (0, 2))))  # b, kh, group, t, v
    return reshape(transpose(out, (0, 3, 1, 2, 4)), (b, t, h, typeof(value).shape[3]))
