"""What passes through a memory on the chip, and exists twice meanwhile.

XLA for TPUs copies arguments into vector memory some time before kernels read them, and writes results there first;
what it says to be alive at once counts both places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from meshwright.spmd.memory.buffers import Buffer
from meshwright.spmd.memory.kernels import Kernel
from meshwright.spmd.memory.tiles import tiled_bytes

#: kernels ahead of its reader that an argument is copied, where there is room
_AHEAD = 128


def alive_at_once(
    spans: Sequence[tuple[int, int, int]], order: Sequence[Kernel], parameters: Sequence[Kernel],
    results: Sequence[Buffer], room: int,
) -> int:  # fmt: skip
    """Most bytes of temporaries, ``(bytes, start, end)``, and copies at a time; copies take what is left of ``room``.

    Arguments of which two do not fit are read where they are.
    """
    steps = len(order) + 2
    changes, copies = np.zeros(steps + 1), np.zeros(steps)
    for nbytes, start, end in spans:
        changes[max(start, 0)] += nbytes
        changes[min(end + 1, steps)] -= nbytes
    temporaries = np.cumsum(changes)[:steps]
    at = {kernel: step for step, kernel in enumerate(order)}
    for kernel in parameters:
        nbytes = tiled_bytes(kernel.root.avals[0])
        if 2 * nbytes <= room:
            copies[_when_copied(kernel, at, steps)] += nbytes
    for buffer in results:
        copies[max(buffer.start, 0) : buffer.start + 2] += min(buffer.nbytes, room)
    return int(max(temporaries + np.minimum(copies, np.maximum(room - temporaries, 0))))


def _when_copied(parameter: Kernel, at: dict[Kernel, int], steps: int) -> np.ndarray:
    copied = np.zeros(steps, bool)
    for step in _read_at(parameter, at):
        copied[max(0, step - _AHEAD) : step + 1] = True
    return copied


def _read_at(kernel: Kernel, at: dict[Kernel, int]) -> Iterator[int]:
    for user in kernel.users:
        if user in at:
            yield from _read_at(user, at) if user.view else (at[user],)
