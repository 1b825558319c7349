"""Padded sizes of tiled buffers."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.spmd.memory.buffers import Buffer
from meshwright.spmd.memory.kernels import Kernel
from meshwright.spmd.memory.layouts import node_bytes

#: allocation granularity in bytes
_UNIT = 512


def pad(buffers: Sequence[Buffer]) -> None:
    """Round the sizes of buffers up to whole tiles, in place. The temporaries of bodies are rounded already."""
    for buffer in buffers:
        root = buffer.kernel.root
        if buffer.nbytes == buffer.aval.nbytes and buffer.aval in root.avals:
            buffer.nbytes = node_bytes(root, root.avals.index(buffer.aval))
        else:
            buffer.nbytes = -(-buffer.nbytes // _UNIT) * _UNIT


def padded(kernel: Kernel) -> int:
    """The bytes of a kernel's results."""
    return sum(node_bytes(kernel.root, i) for i in range(len(kernel.root.avals)))
