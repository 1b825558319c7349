"""``jax.experimental.layout``: the memory layouts of arrays, as in ``Compiled.input_formats``. All are row-major."""

from __future__ import annotations

from typing import Any

from meshwright.core import pytree
from meshwright.errors import ShapeError
from meshwright.ir.tracing import typeof
from meshwright.sharding.format import Format
from meshwright.sharding.format import MemoryOrder as Layout

__all__ = ["Format", "Layout", "with_layout_constraint"]


def with_layout_constraint(x: Any, layouts: Any) -> Any:
    """Return the pytree ``x`` of arrays unchanged, after a check that ``layouts``, a tree prefix, are row-major.

    Raises:
      ShardingError: a layout is not row-major.
      ShapeError: a layout has another number of dimensions than its array.

    Example:
      >>> from meshwright.experimental.layout import Layout, with_layout_constraint
      >>> mw.jit(lambda x: with_layout_constraint(x.T, Layout((0, 1))) + 1)(mnp.ones((2, 3))).shape
      (3, 2)
    """
    orders = pytree.broadcast_prefix(layouts, x, "with_layout_constraint")
    for order, leaf in zip(orders, pytree.leaves(x)):
        order.check("with_layout_constraint")
        aval = typeof(leaf)
        if len(order.major_to_minor) != aval.ndim:
            raise ShapeError(f"with_layout_constraint: {order} is for other dimensions than those of {aval}")
    return x
