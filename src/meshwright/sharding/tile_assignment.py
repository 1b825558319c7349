"""Tile assignments: which device holds which tile, in the notation of HLO text.

A tile assignment is an array of device numbers. V1 lists them: ``[2,2]0,2,1,3``. V2 derives them from 0, 1, 2, ... by
reshape, transpose and reshape: ``[2,2]<=[2,2]T(1,0)``. V2 has one canonical form, which is printed: no dimensions of
size 1, and no adjacent dimensions that could be merged.

Source: GSPMD; HLO text as XLA prints it.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from meshwright.core.records import dataclass


@dataclass(frozen=True)
class IotaOrder:
    """The numbers 0, 1, 2, ... reshaped to ``reshape`` and transposed by ``transpose``."""

    reshape: tuple[int, ...]
    transpose: tuple[int, ...]

    @staticmethod
    def canonical(reshape: tuple[int, ...], transpose: tuple[int, ...]) -> IotaOrder:
        """The canonical (shortest) form of an order."""
        runs: list[list[int]] = []  # runs of dimensions that stay adjacent
        for dim in transpose:
            if reshape[dim] == 1:
                continue
            if runs and not any(reshape[between] > 1 for between in range(runs[-1][-1] + 1, dim)):
                if dim > runs[-1][-1]:
                    runs[-1].append(dim)
                    continue
            runs.append([dim])
        if not runs:
            return IotaOrder((math.prod(reshape),), (0,))
        sizes = {run[0]: math.prod(reshape[dim] for dim in run) for run in runs}
        firsts = sorted(sizes)
        return IotaOrder(tuple(sizes[first] for first in firsts), tuple(firsts.index(run[0]) for run in runs))

    @property
    def size(self) -> int:
        return math.prod(self.reshape)

    def numbers(self) -> np.ndarray:
        return np.arange(self.size).reshape(self.reshape).transpose(self.transpose).reshape(-1)

    def __str__(self) -> str:
        text = f"<=[{_commas(self.reshape)}]"
        return text if len(self.reshape) == 1 else f"{text}T({_commas(self.transpose)})"

    def regrouped(self, dims: tuple[int, ...], order: tuple[int, ...], rising: int | None = None) -> IotaOrder | None:
        """The order of the array, in shape ``dims``, after transposing it by ``order``; None if that is not an iota.

        Before that, it is sorted along the dimension ``rising``.
        """
        pieces = self._pieces(dims)
        if pieces is None:
            return None
        if rising is not None:
            pieces[rising].sort()
        digits = sorted({digit for group in pieces for digit in group})
        reshape = tuple(size for _, _, size in digits)
        transpose = tuple(digits.index(digit) for dim in order for digit in pieces[dim])
        return IotaOrder.canonical(reshape, transpose)

    def _pieces(self, dims: tuple[int, ...]) -> list[list[tuple[int, int, int]]] | None:
        """The digits of device numbers that each of ``dims`` consists of, as (dimension, pre-size, size)."""
        todo = [(dim, 1, self.reshape[dim]) for dim in self.transpose][::-1]  # the most significant last
        groups: list[list[tuple[int, int, int]]] = []
        for remaining in dims:
            group = []
            while remaining > 1:
                dim, pre, size = todo.pop()
                if remaining % size == 0:
                    group.append((dim, pre, size))
                    remaining //= size
                elif size % remaining == 0:
                    group.append((dim, pre, remaining))
                    todo.append((dim, pre * remaining, size // remaining))
                    remaining = 1
                else:
                    return None
            groups.append(group)
        return groups


@dataclass(frozen=True)
class TileAssignment:
    """Device numbers in an array of shape ``dims``: in iota order, or listed."""

    dims: tuple[int, ...]
    order: IotaOrder | tuple[int, ...]

    @property
    def num_devices(self) -> int:
        return self.order.size if isinstance(self.order, IotaOrder) else len(self.order)

    @cached_property
    def devices(self) -> np.ndarray:
        """The device numbers, in shape ``dims``."""
        numbers = self.order.numbers() if isinstance(self.order, IotaOrder) else np.array(self.order)
        return numbers.reshape(self.dims)

    def sorted_along(self, dim: int) -> TileAssignment:
        """The assignment with devices sorted along ``dim``; an iota is left as it is if that would not be one."""
        if isinstance(self.order, IotaOrder):
            iota = self.order.regrouped(self.dims, tuple(range(len(self.dims))), dim)
            return TileAssignment(self.dims, iota) if iota is not None else self
        return TileAssignment(self.dims, tuple(np.sort(self.devices, axis=dim).reshape(-1).tolist()))

    def reshaped(self, dims: tuple[int, ...]) -> TileAssignment:
        return TileAssignment(dims, self.order)

    def transposed(self, order: tuple[int, ...]) -> TileAssignment:
        """The array with its dimensions permuted; listed only if it is not an iota order."""
        dims = tuple(self.dims[dim] for dim in order)
        if isinstance(self.order, IotaOrder):
            iota = self.order.regrouped(self.dims, order)
            if iota is not None:
                return TileAssignment(dims, iota)
        return TileAssignment(dims, tuple(self.devices.transpose(order).reshape(-1).tolist()))

    def __str__(self) -> str:
        order = str(self.order) if isinstance(self.order, IotaOrder) else _commas(self.order)
        return f"devices=[{_commas(self.dims)}]{order}"


def _commas(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))
