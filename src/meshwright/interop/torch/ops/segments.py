"""Rows reduced over segments of a dimension, whose lengths are arrays."""

from __future__ import annotations

import math
from typing import Any

from meshwright import numpy as mnp
from meshwright.errors import RuleError
from meshwright.interop.torch.ops.scattering import scatter_reduce
from meshwright.interop.torch.promotion import cast
from meshwright.interop.torch.registry import register

#: what segments without rows are, and how rows are combined
_KINDS = {
    "sum": (0.0, "sum", mnp.add),
    "mean": (0.0, "sum", mnp.add),
    "prod": (1.0, "prod", mnp.multiply),
    **dict.fromkeys(("max", "amax"), (-math.inf, "amax", mnp.maximum)),
    **dict.fromkeys(("min", "amin"), (math.inf, "amin", mnp.minimum)),
}


@register("aten.segment_reduce")
def segment_reduce(
    data: Any, reduce: str, lengths: Any = None, offsets: Any = None, axis: int = 0, unsafe: bool = False,
    initial: Any = None,
) -> Any:  # fmt: skip
    """Rows that no segment has count in none. NaN where torch raises an error: for lengths that are negative, or more
    rows than there are; also where it is told not to look (``unsafe``)."""
    given = lengths if offsets is None else offsets
    if given is None:
        raise RuleError("expected lengths or offsets")
    axis %= data.ndim
    edges = _edges(lengths) if offsets is None else offsets
    size, rest = data.shape[axis], data.shape[axis + 1 :]
    first, last = edges[..., :-1], edges[..., 1:]
    row = mnp.arange(size)
    # The number of the segment of each row; one past the last for rows of none.
    segment = mnp.sum(row[:, None] >= last[..., None, :], -1) + mnp.where(row >= first[..., :1], 0, first.shape[-1])
    segment = mnp.minimum(segment, first.shape[-1])
    index = mnp.broadcast_to(segment.reshape(*segment.shape, *(1,) * len(rest)), data.shape)
    start, how, combine = _KINDS[reduce]
    empty = mnp.full((*data.shape[:axis], first.shape[-1] + 1, *rest), start, data.dtype)
    out = scatter_reduce(empty, axis, index, data, how)[(slice(None),) * axis + (slice(0, -1),)]
    count = (last - first).reshape(*first.shape, *(1,) * len(rest))
    if initial is not None:
        out = combine(out, cast(initial, data.dtype))
    if reduce == "mean":
        nothing = math.nan if initial is None else initial
        out = mnp.where(count == 0, nothing, out / cast(mnp.maximum(count, 1), data.dtype))
    fits = mnp.all((first <= last) & (first >= 0) & (last <= size), -1).reshape(*first.shape[:-1], 1, *(1,) * len(rest))
    return mnp.where(fits, out, math.nan)


def _edges(lengths: Any) -> Any:
    """Where segments begin, and where the last ends."""
    none = mnp.zeros((*lengths.shape[:-1], 1), lengths.dtype)
    return mnp.concatenate([none, mnp.cumsum(lengths, -1)], -1).astype(lengths.dtype)
