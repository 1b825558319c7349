"""Gradient clipping."""

from __future__ import annotations

from typing import Any

from meshwright.core import pytree
from meshwright.errors import ArgumentError
from meshwright.ir.tracing import typeof
from meshwright.numpy.arithmetic import add, clip, divide, maximum, multiply, sqrt
from meshwright.numpy.functions import astype
from meshwright.numpy.promotion import promotes_freely
from meshwright.numpy.reductions import sum
from meshwright.ops.elementwise.table import abs_, square


@promotes_freely()
def global_norm(tree: Any) -> Any:
    """The Euclidean norm of all leaves together; 0 without leaves.

    >>> global_norm({"a": np.float32(3.0), "b": np.float32(4.0)}).item()
    5.0
    """
    total: Any = 0.0
    for x in pytree.leaves(tree):
        total = add(total, sum(square(abs_(x))))
    return sqrt(total)


@promotes_freely()
def clip_by_global_norm(grads: Any, limit: float) -> Any:
    """Scale gradients down so that their :func:`global_norm` is at most ``limit`` (Pascanu et al. 2013).

    >>> float(clip_by_global_norm({"a": np.float32(4.0)}, 1.0)["a"])
    1.0
    """
    norm = global_norm(grads)
    factor = divide(limit, maximum(norm, limit))
    return pytree.map(lambda g: astype(multiply(g, factor), typeof(g).dtype), grads)


def clip_by_value(grads: Any, limit: float) -> Any:
    """Clip each element of the gradients to ``[-limit, limit]``.

    Raises:
      ArgumentError: the limit is negative.

    >>> clip_by_value({"a": np.array([4.0, -0.5, -3.0])}, 1.0)["a"].tolist()
    [1.0, -0.5, -1.0]
    """
    if isinstance(limit, (int, float)) and limit < 0:
        raise ArgumentError(f"clip_by_value: limit must not be negative, got {limit}")
    return pytree.map(lambda g: astype(clip(g, -limit, limit), typeof(g).dtype), grads)
