"""Arrays of dtype float0, the derivatives with respect to integers and bools, at the boundary of programs.

Programs do not contain them: they are part of the structure of arguments and results.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.core import pytree
from meshwright.core.dtypes import float0
from meshwright.core.pytree_classes import register_pytree_node
from meshwright.core.records import dataclass


@dataclass(frozen=True)
class Float0:
    """Represents an array of ``float0`` in a structure; replaced by the array when the tree is unflattened."""

    shape: tuple[int, ...]


register_pytree_node(Float0, lambda x: ((), x.shape), lambda shape, _: np.zeros(shape, float0))


def is_float0(x: Any) -> bool:
    """Whether ``x`` is an array of ``float0``."""
    return isinstance(x, np.ndarray) and x.dtype == float0


def without_float0(tree: Any) -> Any:
    """``tree`` with arrays of ``float0`` moved into its structure."""
    if not any(map(is_float0, pytree.leaves(tree))):
        return tree
    return pytree.map(lambda x: Float0(x.shape) if is_float0(x) else x, tree)
