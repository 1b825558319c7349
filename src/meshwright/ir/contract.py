"""Types that the rules of ops work with: values, kernel costs, and the protocol of the localizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from meshwright.core.avals import ShapedArray
from meshwright.sharding import AbstractMesh, Layout
from meshwright.sharding.row_map import RowMap
from meshwright.sharding.rule import ShardingRule
from meshwright.sharding.window import Shown, Window


class Value(Protocol):
    """A value that ops can be applied to: a Meshwright array, a NumPy array or a tracer."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...

    @property
    def ndim(self) -> int: ...


#: a value, or a Python number
ArrayLike = Value | complex


class Emitted:
    """A value of the program that is being emitted. Created by the backend and opaque to ops."""


class Kernels(NamedTuple):
    """The GPU kernels of one op, for cost estimates.

    ``starts``: number of kernels, run one after the other. ``sweeps``: how often they read all operands and write all
    results. ``inside``: bytes read and written in on-chip memory. ``operations``: operations of the vector units, if
    they are more than the op's arithmetic.
    """

    starts: int = 1
    sweeps: float = 1.0
    inside: int = 0
    operations: int = 0


class StatedCost(NamedTuple):
    """What a call of a kernel costs, as its author says: operations, and bytes to and from memory."""

    operations: int
    nbytes: int


#: a function that builds a region of an operation that is being emitted
Region = Callable[[Any], None]


class LocalSizes(Protocol):
    """The sizes that ``Op.localized`` needs to adapt an op's parameters to local shapes."""

    @property
    def out_local_shapes(self) -> tuple[tuple[int, ...], ...]: ...


class Localizer(LocalSizes, Protocol):
    """The context of ``Op.localize``: one equation, its layouts, and the collectives that it may need.

    Axes are atomic axes of the mesh, and positions along them int32 scalars. ``x`` and the results are values of this
    device. :class:`meshwright.spmd.localize.context.LocalContext` documents each method.
    """

    @property
    def mesh(self) -> AbstractMesh: ...
    @property
    def rule(self) -> ShardingRule: ...
    @property
    def in_avals(self) -> tuple[ShapedArray, ...]: ...
    @property
    def out_avals(self) -> tuple[ShapedArray, ...]: ...
    @property
    def in_layouts(self) -> tuple[Layout, ...]: ...
    @property
    def out_layouts(self) -> tuple[Layout, ...]: ...
    @property
    def in_local_shapes(self) -> tuple[tuple[int, ...], ...]: ...

    # --- how values are split -------------------------------------------------------------------------------
    def axes(self, operand: int, dim: int) -> tuple[str, ...]: ...
    def result_axes(self, result: int, dim: int) -> tuple[str, ...]: ...
    def is_split(self, operand: int, dim: int) -> bool: ...
    def is_split_result(self, result: int, dim: int) -> bool: ...
    def num_tiles(self, operand: int, dim: int) -> int: ...
    def is_uneven(self, operand: int, dim: int) -> bool: ...

    # --- positions ------------------------------------------------------------------------------------------
    def tile_index(self, axes: Sequence[str]) -> ArrayLike: ...
    def add_tile_offset(self, x: ArrayLike, dim: int) -> ArrayLike: ...
    def counts_rows(self, operand: int, dim: int) -> bool: ...
    def number_rows(self, x: ArrayLike, operand: int, dim: int) -> ArrayLike: ...
    def lookup(self, table: Sequence[int], axes: Sequence[str]) -> ArrayLike: ...

    # --- this device's part ---------------------------------------------------------------------------------
    def default(self, op: Any, *operands: ArrayLike) -> ArrayLike: ...
    def mask(self, x: ArrayLike, operand: int, dim: int, fill: ArrayLike) -> ArrayLike: ...
    def only_on(self, x: ArrayLike, axes: Sequence[str], tile: int) -> ArrayLike: ...
    def place_row(self, x: ArrayLike, dim: int, position: int, fill: ArrayLike) -> ArrayLike: ...
    def cut(
        self, x: ArrayLike, operand: int, dim: int, starts: Sequence[int], length: int, fill: ArrayLike | None = None
    ) -> ArrayLike: ...

    # --- exchanges ------------------------------------------------------------------------------------------
    def all_gather(self, x: ArrayLike, axes: Sequence[str], dim: int) -> ArrayLike: ...
    def all_slice(self, x: ArrayLike, axes: Sequence[str], dim: int) -> ArrayLike: ...
    def all_to_all(self, x: ArrayLike, axes: Sequence[str], split: int, concat: int) -> ArrayLike: ...
    def all_reduce(self, x: ArrayLike, axes: Sequence[str], kind: str) -> ArrayLike: ...
    def permute(self, x: ArrayLike, axes: Sequence[str], perm: Sequence[tuple[int, int]]) -> ArrayLike: ...
    def fetch_shown(self, x: ArrayLike, operand: int, dim: int, shown: Shown) -> ArrayLike: ...
    def fetch_window(
        self,
        x: ArrayLike,
        operand: int,
        dim: int,
        window: Window,
        fill: ArrayLike | None = None,
        *,
        cyclic: bool = False,
    ) -> ArrayLike: ...
    def move_rows(self, xs: Sequence[ArrayLike], dim: int, axes: Sequence[str], m: RowMap) -> Iterator[ArrayLike]: ...
