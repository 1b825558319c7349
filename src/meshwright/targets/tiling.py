"""The memory of a TPU's arguments and results, which are tiled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from meshwright.core.avals import ShapedArray
from meshwright.spmd.memory.held import Memory
from meshwright.spmd.memory.tiles import tiled_bytes


def tiled_memory(memory: Memory, ins: Iterable[ShapedArray], outs: Iterable[ShapedArray]) -> Memory:
    """A prediction with the tiled sizes of arguments and results; results in donated buffers grow with them."""
    arguments, results = sum(map(tiled_bytes, ins)), sum(map(tiled_bytes, outs))
    share = memory.alias_bytes / memory.output_bytes if memory.output_bytes else 0.0
    return replace(memory, argument_bytes=arguments, output_bytes=results, alias_bytes=int(share * results))
