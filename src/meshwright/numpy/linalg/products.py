"""The products of the array API's ``linalg`` extension, where they differ from the main namespace."""

from __future__ import annotations

from typing import Any

from meshwright.errors import ShapeError
from meshwright.ir.tracing import typeof
from meshwright.numpy import linear, ranges
from meshwright.numpy.promotion import as_operand, aval_of
from meshwright.numpy.reductions import sum


def outer(x1: Any, x2: Any, /) -> Any:
    """All products of an element of one vector and an element of another: shape (n, m).

    Raises:
      ShapeError: operands are not vectors.

    >>> outer(np.array([1, 2]), np.array([3, 4])).tolist()
    [[3, 4], [6, 8]]
    """
    x, y = as_operand(x1, "outer"), as_operand(x2, "outer")
    if typeof(x).ndim != 1 or typeof(y).ndim != 1:
        raise ShapeError(
            f"linalg.outer: expected two vectors, got shapes {typeof(x).shape} and {typeof(y).shape}; flatten them, or "
            "use meshwright.numpy.outer"
        )
    return linear.outer(x, y)


def diagonal(x: Any, /, *, offset: int = 0) -> Any:
    """Diagonal ``offset`` of matrices, shape (..., m, n).

    Raises:
      ShapeError: fewer than two dimensions.

    >>> diagonal(np.array([[1, 2], [3, 4]]), offset=1).tolist()
    [2]
    """
    return ranges.diagonal(x, offset, -2, -1)


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    """Sums of diagonal ``offset`` of matrices, shape (..., m, n).

    Raises:
      ShapeError: fewer than two dimensions.

    >>> trace(np.array([[1, 2], [3, 4]])).item()
    5
    """
    return sum(diagonal(x, offset=offset), -1, dtype=dtype)


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """Cross products of vectors with three components along ``axis``; other dimensions broadcast.

    Raises:
      ShapeError: another number of components.

    >>> cross(np.array([1, 0, 0]), np.array([0, 1, 0])).tolist()
    [0, 0, 1]
    """
    sizes = [aval_of(x, "cross", i).shape for i, x in enumerate((x1, x2))]
    for size in sizes:
        if not -len(size) <= axis < len(size) or size[axis] != 3:
            raise ShapeError(f"cross: vectors need 3 components along axis {axis}, got shapes {sizes[0]}, {sizes[1]}")
    return linear.cross(x1, x2, axis=axis)
