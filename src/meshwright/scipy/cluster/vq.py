"""Vector quantization."""

from __future__ import annotations

from typing import Any

from meshwright.core import dtypes
from meshwright.errors import ShapeError
from meshwright.numpy.linalg.operands import inexact_operands
from meshwright.numpy.reductions import argmin
from meshwright.numpy.reductions import min as min_of
from meshwright.numpy.reductions import sum as sum_of


def vq(obs: Any, code_book: Any, check_finite: bool = True) -> tuple[Any, Any]:
    """The index of the nearest code for each observation, and its distance.

    Args:
      obs: the observations, shape (m, n), or (m,) with a single feature.
      code_book: the codes, shape (k, n), or (k,).
      check_finite: has no effect.

    Returns:
      two arrays of shape (m,).

    Raises:
      ShapeError: the ranks or the numbers of features differ.

    >>> [x.tolist() for x in vq(np.array([[1.0, 1.0], [4.0, 5.0]]), np.array([[1.0, 0.0], [4.0, 5.0]]))]
    [[0, 1], [1.0, 0.0]]
    """
    obs, codes = inexact_operands("vq", obs, code_book)
    if obs.ndim != codes.ndim or obs.ndim not in (1, 2) or obs.shape[1:] != codes.shape[1:]:
        raise ShapeError(f"vq: obs of shape {obs.shape} and code_book of shape {codes.shape} must have equal features")
    if obs.ndim == 1:
        obs, codes = obs[:, None], codes[:, None]
    apart = obs[:, None, :] - codes[None, :, :]
    squares = sum_of(apart.real**2 + apart.imag**2 if dtypes.is_complex(apart.dtype) else apart**2, -1)
    return argmin(squares, 1), min_of(squares, 1) ** 0.5
