"""Rows that a mask picks, among all rows (``selections.py`` says when)."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright import lax
from meshwright import numpy as mnp
from meshwright.interop.torch.registry import register
from meshwright.ops.elementwise.table import convert
from meshwright.transforms.custom_jvp import custom_jvp


def _flat(x: Any, mask: Any, lead: int) -> Any:
    """``x`` with the dimensions of the mask, which follow ``lead`` others, as one."""
    return x.reshape(*x.shape[:lead], mask.size, *x.shape[lead + mask.ndim :])


def _along(mask: Any, x: Any, dim: int) -> Any:
    """The flattened mask as one for the rows of ``x`` along ``dim``."""
    return mask.reshape(mask.size, *(1,) * (x.ndim - dim - 1))


@register("meshwright.picked")
def picked(x: Any, mask: Any, lead: int) -> Any:
    """All rows; in place of those that the mask does not pick, the first one that it does."""
    rows = _flat(x, mask, lead)
    if not mask.size:
        return rows
    first = lax.stop_gradient(lax.dynamic_index_in_dim(rows, mnp.argmax(mask.ravel()), lead))
    return mnp.where(_along(mask, rows, lead), rows, first)


@register("meshwright.put_picked")
def put_picked(x: Any, mask: Any, lead: int, rows: Any, accumulate: bool) -> Any:
    """``x`` with rows written, or added, where the mask is true."""
    old = _flat(x, mask, lead)
    rows = rows.astype(x.dtype)
    return mnp.where(_along(mask, old, lead), old + rows if accumulate else rows, old).reshape(x.shape)


@register("meshwright.filled")
def filled(x: Any, mask: Any, dim: int, value: Any) -> Any:
    """``x`` with a number in the rows along ``dim`` that the mask does not pick."""
    return mnp.where(_along(mask, x, dim), x, mnp.asarray(value, x.dtype))


@register("meshwright.moved_by_picked")
def moved_by_picked(x: Any, mask: Any) -> Any:
    """``x``, given to an op of rows: where there are none, nothing that is computed of them has a derivative by it."""
    return _moved(x, mnp.any(mask))


@custom_jvp
def _moved(x: Any, is_any: Any) -> Any:
    return x


@_moved.defjvp
def _moved_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    return _moved(*primals), mnp.where(primals[1], tangents[0], 0)


@register("meshwright.count_picked")
def count_picked(mask: Any) -> Any:
    """How many rows a mask picks, as a number."""
    return convert(mnp.sum(mask, dtype=np.int32), np.dtype(np.int32), weak_type=True)
