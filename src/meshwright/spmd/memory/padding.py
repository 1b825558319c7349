"""Padded sizes of tiled buffers."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.spmd.memory.buffers import Buffer
from meshwright.spmd.memory.kernels import Kernel
from meshwright.spmd.memory.layouts import node_bytes
from meshwright.spmd.memory.priority import is_product

#: allocation granularity in bytes
_UNIT = 512


def pad(buffers: Sequence[Buffer]) -> None:
    """Round the sizes of buffers up to whole tiles, in place. The temporaries of bodies are rounded already."""
    for buffer in buffers:
        root = buffer.kernel.root
        if buffer.kind == "constant":
            buffer.nbytes = constant_bytes(buffer.kernel)
        elif not buffer.inner and buffer.nbytes == buffer.aval.nbytes and buffer.aval in root.avals:
            buffer.nbytes = node_bytes(root, root.avals.index(buffer.aval))
        else:
            buffer.nbytes = -(-buffer.nbytes // _UNIT) * _UNIT


def constant_bytes(kernel: Kernel) -> int:
    """The bytes of an array of constants.

    Of complex numbers, a product reads the real parts, the imaginary parts, and their sums. Parts that are one number
    take no memory.
    """
    parts: int = kernel.root.attributes.get("parts", 2)
    summed = kernel.root.avals[0].dtype.kind == "c" and parts > 1 and any(map(is_product, kernel.users))
    return padded(kernel) * (parts + summed) // 2


def padded(kernel: Kernel) -> int:
    """The bytes of a kernel's results."""
    return sum(node_bytes(kernel.root, i) for i in range(len(kernel.root.avals)))
