"""Collectives that exchange tiles of equal size between devices: all-to-all and permutations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

from meshwright.core.avals import ShapedArray
from meshwright.core.records import dataclass
from meshwright.errors import ArgumentError, ShapeError
from meshwright.ir.contract import ArrayLike, Emitted
from meshwright.ir.op import BatchAxis, BatchedResults, Builder, Cotangents
from meshwright.ir.tracing import typeof
from meshwright.ops.collective.base import (
    MovesTiles,
    batched,
    check_split,
)
from meshwright.ops.collective.tiles import AllGather, AllSlice
from meshwright.ops.elementwise.table import scalar_like
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim
from meshwright.ops.shape.rearrange import above, expand_dims, move_dim, reshape, squeeze
from meshwright.ops.shape.slice_pad import concatenate, slice_in_dim


@dataclass(frozen=True)
class AllToAll(MovesTiles):
    """Send tile ``j`` along ``split_dimension`` to device ``j``; received tiles are joined along
    ``concat_dimension``."""

    split_dimension: int
    concat_dimension: int
    name: ClassVar[str] = "all_to_all"
    takes_keys: ClassVar[bool] = True
    kind: ClassVar[str] = "all_to_all"

    def moved_dims(self) -> tuple[int, ...]:
        return (self.split_dimension, self.concat_dimension)

    def infer(self, x: ShapedArray) -> ShapedArray:
        s, c = self.split_dimension, self.concat_dimension
        check_split(self, x, s)
        if not 0 <= c < x.ndim:
            raise ShapeError(f"all_to_all: concat dimension {c} does not exist in shape {x.shape}")
        shape = list(x.shape)
        shape[s] //= self.group_size
        shape[c] *= self.group_size
        return x.update(shape=tuple(shape))

    def transpose(self, ct: Any, x: Any) -> Cotangents:
        return [AllToAll(self.axes, self.sizes, self.concat_dimension, self.split_dimension).bind(ct)]

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        (x,), (dim,) = args, dims
        s, c = above(self.split_dimension, dim), above(self.concat_dimension, dim)  # type: ignore[arg-type]
        return AllToAll(self.axes, self.sizes, s, c).bind(x), dim

    def batch_named(self, axis: BatchAxis, x: Any, dim: int | None) -> tuple[Any, int | None]:
        s, c = self.split_dimension, self.concat_dimension
        k = len(self.axes)
        i = self.axes.index(axis.name)
        x, dim = batched(x, dim, axis.size)
        if s == c:
            raise ArgumentError("all_to_all: split and concat dimension are the same; that moves nothing along it")
        x = move_dim(x, dim, 0)
        # Split the split dimension into one dimension per axis, so that the axes can be processed one by one.
        shape = typeof(x).shape
        x = reshape(x, (*shape[: s + 1], *self.sizes, shape[s + 1] // self.group_size, *shape[s + 2 :]))
        c += k if c > s else 0
        for j in reversed(range(k)):
            if j == i:
                # [source, …, target, …, C] -> [target, …, 1, …, source·C]
                x = move_dim(x, s + j + 1, 0)  # target first, then source
                x = move_dim(x, 1, c + 1 if c < s + j else c)  # source in front of the concat dimension
                shape = typeof(x).shape
                at = c + 1 if c < s + j else c
                x = reshape(x, (*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]))
                x = expand_dims(x, [s + j + 1])
            else:
                x = AllToAll((self.axes[j],), (self.sizes[j],), s + j + 1, c + 1).bind(x)
        return squeeze(x, range(s + 1, s + k + 1)), 0

    def emit(self, b: Builder, x: Emitted) -> Emitted | Sequence[Emitted]:
        return b.op(
            "stablehlo.all_to_all", [x], b.out_avals,
            split_dimension=self.split_dimension, concat_dimension=self.concat_dimension,
            split_count=self.group_size, replica_groups=b.replica_groups(self.axes),
        )[0]  # fmt: skip


@lru_cache(maxsize=256)
def _check_permutation(perm: tuple[tuple[int, int], ...], n: int) -> None:
    sources, targets = ({pair[i] for pair in perm} for i in (0, 1))
    if min(len(sources), len(targets)) < len(perm):
        raise ArgumentError(f"ppermute: each source and each target may occur once in perm {perm}")
    if perm and not 0 <= min(sources | targets) <= max(sources | targets) < n:
        raise ArgumentError(f"ppermute: perm {perm} names positions outside 0..{n - 1}")


@dataclass(frozen=True)
class Ppermute(MovesTiles):
    """Permute along ``axes`` by ``(source, target)`` pairs ``perm``; devices that receive nothing get zeros."""

    perm: tuple[tuple[int, int], ...]
    name: ClassVar[str] = "ppermute"
    takes_keys: ClassVar[bool] = True
    kind: ClassVar[str] = "collective_permute"

    def infer(self, x: ShapedArray) -> ShapedArray:
        _check_permutation(self.perm, self.group_size)
        return x

    def transpose(self, ct: Any, x: Any) -> Cotangents:
        return [Ppermute(self.axes, self.sizes, tuple((t, s) for s, t in self.perm)).bind(ct)]

    def batch(self, axis: BatchAxis, args: Sequence[ArrayLike], dims: Sequence[int | None]) -> BatchedResults:
        return self.bind(*args), dims[0]

    def batch_named(self, axis: BatchAxis, x: Any, dim: int | None) -> tuple[Any, int | None]:
        x, dim = batched(x, dim, axis.size)
        if len(self.axes) == 1:
            return _permute_rows(x, dim, axis.size, self.perm), dim
        # With several axes, the others are gathered (a reshape if they are virtual), permuted together and split again.
        i = self.axes.index(axis.name)
        x = move_dim(x, dim, 0)
        x = expand_dims(x, [*range(i), *range(i + 1, len(self.axes))])
        for j, (name, size) in enumerate(zip(self.axes, self.sizes)):
            if j != i:
                x = AllGather((name,), (size,), j).bind(x)
        k, shape = len(self.axes), typeof(x).shape
        x = _permute_rows(reshape(x, (self.group_size, *shape[k:])), 0, self.group_size, self.perm)
        x = reshape(x, shape)
        for j, (name, size) in enumerate(zip(self.axes, self.sizes)):
            if j != i:
                x = AllSlice((name,), (size,), j).bind(x)
        return squeeze(x, [j for j in range(k) if j != i]), 0

    def emit(self, b: Builder, x: Emitted) -> Emitted | Sequence[Emitted]:
        pairs = b.source_target_pairs(self.axes, self.perm)
        return b.op("stablehlo.collective_permute", [x], b.out_avals, source_target_pairs=pairs)[0]


def _permute_rows(x: Any, dim: int, n: int, perm: Sequence[tuple[int, int]]) -> Any:
    """Row ``t`` becomes row ``source(t)``, or zeros; runs of consecutive sources are slices."""
    source = {t: s for s, t in perm}
    if all(source.get(t) == t for t in range(n)):
        return x
    pieces, t = [], 0
    while t < n:
        end = t + 1
        if t in source:
            while end < n and source.get(end) == source[t] + end - t:
                end += 1
            pieces.append(slice_in_dim(x, source[t], source[t] + end - t, axis=dim))
        else:
            while end < n and end not in source:
                end += 1
            shape = typeof(x).shape
            zero = scalar_like(0, x)
            pieces.append(broadcast_in_dim(zero, (*shape[:dim], end - t, *shape[dim + 1 :]), ()))
        t = end
    return concatenate(pieces, dim)
