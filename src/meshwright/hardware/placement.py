"""Devices of a machine arranged as a mesh, so that neighbours along an axis are connected.

An axis gets whole dimensions of the machine where there are some of its size, as many as fit: one of a torus is a ring
then, and several are gone through in a snake, row after row and back, so that one position to the next is one hop.
Otherwise devices are taken row by row, and axes and dimensions are cut in the same places.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np


def arranged(grid: np.ndarray, torus: int, shape: tuple[int, ...]) -> np.ndarray:
    """The devices of ``grid`` in an array of ``shape``. From dimension ``torus`` on, but for the last, the grid is a
    torus; 0: it is none."""
    levels = [d for d, size in enumerate(grid.shape) if size > 1]
    inside = set(range(torus, grid.ndim - 1)) if torus else set()
    chosen = _whole_levels(shape, {d: grid.shape[d] for d in levels}, inside)
    if chosen is None:
        return grid.reshape(shape)
    order = [d for axis in chosen for d in axis]
    rest = [d for d in range(grid.ndim) if d not in order]
    array = grid.transpose(*order, *rest).reshape([grid.shape[d] for d in order])
    for axis, dims in enumerate(chosen):
        array = _joined(array, axis, [grid.shape[d] for d in dims], [d in inside for d in dims])
    return array


def placed(devices: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray:
    """``devices`` in an array of ``shape``: by their ``coords`` if they have some and fill a grid, else as they are
    given."""
    array = np.empty(len(devices), object)
    array[:] = devices
    grid = _grid(devices)
    if grid is None:
        return array.reshape(shape)
    is_torus = getattr(devices[0], "platform", "") == "tpu"
    return arranged(grid, 1 if is_torus else 0, shape)


def _grid(devices: Sequence[Any]) -> np.ndarray | None:
    """The devices by slice, coordinates and core; None if they are not all the places of a grid."""
    if not all(hasattr(d, "coords") for d in devices):
        return None
    places = [(getattr(d, "slice_index", 0), *d.coords, getattr(d, "core_on_chip", 0)) for d in devices]
    if len({len(p) for p in places}) != 1 or len(set(places)) != len(places):
        return None
    steps = [sorted(set(numbers)) for numbers in zip(*places)]
    if math.prod(map(len, steps)) != len(devices):
        return None
    grid = np.empty([len(s) for s in steps], object)
    for device, place in zip(devices, places):
        grid[tuple(s.index(n) for s, n in zip(steps, place))] = device
    return grid


def _joined(array: np.ndarray, axis: int, sizes: list[int], in_torus: list[bool]) -> np.ndarray:
    """The dimensions from ``axis`` on, as many as ``sizes``, as one; those of a torus in a snake."""
    outer = math.prod(size for size, inside in zip(sizes, in_torus) if not inside)
    dims = [size for size, inside in zip(sizes, in_torus) if inside]
    before, after = array.shape[:axis], array.shape[axis + len(sizes) :]
    flat = array.reshape(*before, outer, math.prod(dims), *after)
    flat = flat.take(snake(dims), axis=axis + 1)
    return flat.reshape(*before, outer * math.prod(dims), *after)


def snake(sizes: Sequence[int]) -> list[int]:
    """Row-major numbers of a grid's places in an order in which each is a neighbour of the one before.

    >>> snake([2, 3])
    [0, 1, 2, 5, 4, 3]
    """
    numbers = [0]
    for size in reversed(sizes):
        block = len(numbers)
        numbers = [k * block + n for k in range(size) for n in (numbers if k % 2 == 0 else numbers[::-1])]
    return numbers


def _whole_levels(shape: Sequence[int], sizes: dict[int, int], torus: set[int]) -> list[tuple[int, ...]] | None:
    """Whole dimensions for each axis, from far to near; None if they do not fit.

    Large axes choose first, later ones before earlier ones: dimensions of a torus, many of them, before a network.
    """
    by_axis: list[tuple[int, ...]] = [()] * len(shape)

    def fill(axes: list[int], left: dict[int, int]) -> bool:
        if not axes:
            return True
        axis, *rest = axes
        for chosen in _subsets(left, torus):
            if math.prod(left[d] for d in chosen) == shape[axis]:
                by_axis[axis] = chosen
                if fill(rest, {d: n for d, n in left.items() if d not in chosen}):
                    return True
        return False

    order = sorted(range(len(shape)), key=lambda i: (-shape[i], -i))
    return by_axis if fill(order, dict(sizes)) else None


def _subsets(left: dict[int, int], torus: set[int]) -> list[tuple[int, ...]]:
    subsets = [c for n in range(len(left) + 1) for c in itertools.combinations(left, n)]
    return sorted(subsets, key=lambda c: (sum(d not in torus for d in c), -len(c)))
