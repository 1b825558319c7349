"""``jax.flatten_util``: conversion of a pytree of arrays to one vector, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.core import pytree as trees
from meshwright.core.avals import ShapedArray
from meshwright.errors import DTypeError, ShapeError
from meshwright.ir.tracing import typeof
from meshwright.numpy import concatenate, ravel, real, reshape, result_type, zeros

__all__ = ["ravel_pytree"]


def ravel_pytree(pytree: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Concatenate the leaves of a pytree to one vector; also returns the inverse function.

    Leaves of different dtypes are promoted to one; the inverse converts them back.

    Returns:
      ``(flat, unravel)``: an array of shape ``(total number of elements,)``, and a function from such an array to a
      pytree.

    Raises:
      ShapeError, DTypeError: (by ``unravel``) the vector has another length or dtype.

    Example:
      >>> flat, unravel = mw.flatten_util.ravel_pytree({"w": jnp.ones((2, 2)), "b": jnp.array([3.0, 5.0])})
      >>> flat.tolist()
      [3.0, 5.0, 1.0, 1.0, 1.0, 1.0]
      >>> unravel(2 * flat)["w"].tolist()
      [[2.0, 2.0], [2.0, 2.0]]
    """
    leaves, treedef = trees.flatten(pytree)
    if not leaves:
        return zeros(0), lambda flat: trees.unflatten(treedef, [])
    avals = [typeof(x) for x in leaves]
    dtype = result_type(*leaves)
    flat = concatenate([ravel(x).astype(dtype) if a.dtype != dtype else ravel(x) for x, a in zip(leaves, avals)])
    ends = np.cumsum([a.size for a in avals]).tolist()

    def unravel(flat: Any) -> Any:
        aval = typeof(flat)
        if aval.shape != (ends[-1],):
            raise ShapeError(f"unravel: expected a vector of shape {(ends[-1],)}, got {aval.shape}")
        if aval.dtype != dtype:
            raise DTypeError(f"unravel: expected dtype {dtype}, got {aval.dtype}; convert it with .astype")
        return trees.unflatten(treedef, [_part(flat, a, end) for a, end in zip(avals, ends)])

    return flat, unravel


def _part(flat: Any, aval: ShapedArray, end: int) -> Any:
    part = reshape(flat[end - aval.size : end], aval.shape)
    if dtypes.is_complex(part.dtype) and not dtypes.is_complex(aval.dtype):
        part = real(part)  # promoted by other leaves; no warning
    return part.astype(aval.dtype)
