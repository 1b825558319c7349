"""Operands of linear algebra: one inexact dtype that LAPACK supports; leading dimensions broadcast."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core.words import counted
from meshwright.errors import ShapeError
from meshwright.ir.tracing import typeof
from meshwright.numpy.promotion import as_operand, broadcast_shapes, converted, inexact
from meshwright.ops.linalg.lapack import require_lapack_dtype
from meshwright.ops.linalg.matrices import require_matrix, require_square
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim


def inexact_operands(name: str, *args: Any, kernels: bool = True) -> list[Any]:
    """Arguments in their common float or complex dtype, which LAPACK must support if ``kernels``; shapes are unchanged.

    Raises:
      ArgumentTypeError, DTypeError: not arrays, or a dtype without kernels.
    """
    arrays = [as_operand(x, name) for x in args]
    dtype, weak = dtypes.promote((typeof(x).dtype, typeof(x).weak_type) for x in arrays)
    arrays = [converted(x, inexact(dtype), weak) for x in arrays]
    if kernels:
        require_lapack_dtype(name, typeof(arrays[0]))
    return arrays


def matrix(name: str, a: Any, kernels: bool = True) -> Any:
    """One argument that is a batch of matrices.

    Raises:
      ShapeError: fewer than two dimensions. DTypeError: a dtype without kernels.
    """
    (x,) = inexact_operands(name, a, kernels=kernels)
    require_matrix(name, typeof(x))
    return x


def square(name: str, a: Any) -> Any:
    """One argument that is a batch of square matrices.

    Raises:
      ShapeError: other shapes. DTypeError: a dtype without kernels.
    """
    (x,) = inexact_operands(name, a)
    require_square(name, typeof(x))
    return x


def same_lead(name: str, x: Any, y: Any) -> tuple[Any, Any]:
    """Two batches of matrices with their leading dimensions broadcast.

    Raises:
      ShapeError: they do not broadcast.
    """
    lead = broadcast_shapes(typeof(x).shape[:-2], typeof(y).shape[:-2], name=name)
    return with_lead(x, lead), with_lead(y, lead)


def with_lead(x: Any, lead: tuple[int, ...]) -> Any:
    """Matrices broadcast to the leading dimensions ``lead``."""
    shape = (*lead, *typeof(x).shape[-2:])
    ndim = typeof(x).ndim
    return broadcast_in_dim(x, shape, range(len(shape) - ndim, len(shape)))


def epsilon(x: Any) -> float:
    """The distance from 1 to the next larger float of the dtype."""
    return float(np.finfo(typeof(x).dtype).eps)


def fitting(name: str, n: int, b: Any, rows: int) -> None:
    """Raise unless a right-hand side has as many rows as the matrices.

    Raises:
      ShapeError: the numbers differ; names both.
    """
    if n != rows:
        raise ShapeError(
            f"{name}: the matrices have {counted(n, 'row')} and b has shape {typeof(b).shape} with {rows}; expected "
            f"shape (..., {n}, k), or ({n},) for one vector"
        )
