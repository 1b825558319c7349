"""Arranges the devices of a machine as a mesh, so that neighbours along an axis are connected.

An axis gets whole dimensions of the machine if some have its size, as many as possible. A single torus dimension is
then a ring. Several are traversed in a snake, forward along one row and back along the next, so that successive
positions are one hop apart. Otherwise devices are taken in row-major order, and axes and dimensions are cut at the same
positions. Virtual devices on one real device form a block.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np


def arranged(grid: np.ndarray, torus: int, shape: tuple[int, ...]) -> np.ndarray:
    """The devices of ``grid`` in an array of ``shape``.

    The dimensions of the grid from ``torus`` to the last but one are a torus; there is none if ``torus`` is 0.
    """
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
    """``devices`` in an array of ``shape``, arranged by their ``coords`` if these fill a grid.

    Virtual devices are arranged in blocks, one for each real device.
    """
    grid = _grid(devices)
    if grid is None:
        return _in_blocks(devices, shape)
    is_torus = getattr(devices[0], "platform", "") == "tpu"
    return arranged(grid, 1 if is_torus else 0, shape)


def _in_blocks(devices: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray:
    """The devices in a block of each real device, in their order; the first axes are cut into blocks as far as they go.

    In row-major order if real devices have different numbers of virtual ones.
    """
    array = np.empty(len(devices), object)
    array[:] = devices
    of_real: dict[Any, list[int]] = {}
    for number, device in enumerate(devices):
        of_real.setdefault(getattr(device, "hardware_id", 0), []).append(number)
    if len({len(numbers) for numbers in of_real.values()}) != 1:
        return array.reshape(shape)
    left, real = len(of_real), list[int]()
    for size in shape:
        real.append(math.gcd(size, left))
        left //= real[-1]
    blocks = array[list(of_real.values())].reshape(*real, *(size // n for size, n in zip(shape, real)))
    return blocks.transpose([d for i in range(len(shape)) for d in (i, len(shape) + i)]).reshape(shape)


def _grid(devices: Sequence[Any]) -> np.ndarray | None:
    """The devices by slice, coordinates and core; None if they do not fill a grid."""
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
    """``array`` with the ``len(sizes)`` dimensions from ``axis`` on merged into one; torus dimensions form a snake."""
    outer = math.prod(size for size, inside in zip(sizes, in_torus) if not inside)
    dims = [size for size, inside in zip(sizes, in_torus) if inside]
    before, after = array.shape[:axis], array.shape[axis + len(sizes) :]
    flat = array.reshape(*before, outer, math.prod(dims), *after)
    flat = flat.take(snake(dims), axis=axis + 1)
    return flat.reshape(*before, outer * math.prod(dims), *after)


def snake(sizes: Sequence[int]) -> list[int]:
    """The row-major numbers of a grid's positions, ordered so that successive ones are neighbours.

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

    Large axes choose first, and of equal ones the later. They prefer torus dimensions, as many as possible, to a
    network.
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
