"""Decompositions of tall matrices whose rows are split, without gathering these.

Each device decomposes its own rows; the triangular factors are gathered, and decomposed again on every device (TSQR:
J. Demmel, L. Grigori, M. Hoemmen and J. Langou, "Communication-optimal parallel and sequential QR and LU
factorizations", 2012). The signs of Householder's reflections depend on the first rows of a matrix and on the inner
products of the others. So each device leaves as many rows as there are columns out of its own decomposition: the first
of all come first again, and the factors are those of the whole matrix up to rounding, signs included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.ir.contract import Localizer
from meshwright.ir.tracing import typeof
from meshwright.ops.linalg.matrices import matmul
from meshwright.ops.shape.slice_pad import concatenate, slice_in_dim
from meshwright.sharding.rule import WINDOW, ShardingRule, make_rule

#: the price of tiles that cannot be decomposed on their own
_NEVER = 1e18


@dataclass(frozen=True)
class _Gathered:
    """What is sent: two square matrices of each tile. Tiles must be even, and have the rows of two of them."""

    rows: int
    columns: int

    def __call__(self, tiles: int) -> float:
        if self.rows % tiles or self.rows < 2 * self.columns * tiles:
            return _NEVER
        return (tiles - 1) * 2 * self.columns * tiles / self.rows


@dataclass(frozen=True)
class _Again:
    """The work of a device in decompositions of its tile: that of its own rows, and that of all gathered ones."""

    rows: int
    columns: int

    def __call__(self, tiles: int) -> float:
        return 1 + 2 * self.columns * tiles**2 / self.rows


def is_tall(a: ShapedArray) -> bool:
    """Whether at least two tiles have twice as many rows as there are columns."""
    *_, m, n = a.shape
    return m >= 4 * n > 0


def rows_rule(a: ShapedArray, outs: tuple[ShapedArray, ...], with_rows: int, points: int) -> ShardingRule:
    """The rule of a decomposition of tall matrices ``a``; result number ``with_rows`` has their rows (-1: none has)."""
    *lead, m, n = a.shape
    names: list[str | None] = [f"b{d}" for d in range(len(lead))]
    results = [[*names, *([None] * (o.ndim - len(lead)))] for o in outs]
    if with_rows >= 0:
        results[with_rows][len(lead)] = "rows"
    sizes = {**dict(zip((f"b{d}" for d in range(len(lead))), lead)), "rows": m}
    return make_rule(
        [[*names, "rows", None]], results, sizes, {"rows": WINDOW}, passes={"rows": _Gathered(m, n)}, points=points,
        repeats={"rows": _Again(m, n)},
    )  # fmt: skip


def by_rows(ctx: Localizer, a: Any, qr: Callable[[Any], tuple[Any, Any]]) -> tuple[Any, Any]:
    """The QR decomposition of matrices whose rows are split: a device's rows of ``q``, and ``r``."""
    *_, n = typeof(a).shape
    d = typeof(a).ndim - 2
    axes = ctx.axes(0, d)
    assert not ctx.is_uneven(0, d) and typeof(a).shape[d] >= 2 * n  # others have a price that is too high
    head, rest = _parts(a, n, d)
    q, r = qr(rest)
    both, r = qr(ctx.all_gather(concatenate([head, r], d), axes, d))
    head, factor = _parts(ctx.all_slice(both, axes, d), n, d)
    return concatenate([head, matmul(q, factor)], d), r


def _parts(x: Any, at: int, dim: int) -> tuple[Any, Any]:
    return slice_in_dim(x, 0, at, axis=dim), slice_in_dim(x, at, typeof(x).shape[dim], axis=dim)
