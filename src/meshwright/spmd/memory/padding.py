"""Padded sizes of tiled buffers. The kernels that write and read a buffer determine its tiled dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.core.avals import ShapedArray
from meshwright.spmd.memory.buffers import Buffer
from meshwright.spmd.memory.graph import Node
from meshwright.spmd.memory.kernels import Kernel
from meshwright.spmd.memory.layouts import is_batched, laid_out, matrix_tiles, stacked_tiles
from meshwright.spmd.memory.priority import is_product
from meshwright.spmd.memory.stacks import used_in_parts
from meshwright.spmd.memory.tiles import alike, convolution_bytes, stacked_bytes, tiled, tiled_bytes

#: allocation granularity in bytes
_UNIT = 512


def pad(buffers: Sequence[Buffer], order: Sequence[Kernel]) -> None:
    """Round the sizes of buffers up to whole tiles, in place. The temporaries of bodies are rounded already."""
    nodes = (node for kernel in order for node in kernel.members if node.op == "convolution")
    convolved = {x.shape for node in nodes for x in (node, node.operands[0])}
    steps = {k: d for kernel in order for k, d in used_in_parts(kernel).items() if d is not None}
    loops = [kernel for kernel in order if kernel.root.op == "while"]
    stacked = {k.operands[i]: tiles for k in loops for i, tiles in stacked_tiles(k.root).items()}
    for buffer in buffers:
        step = None if buffer.kind == "argument" else steps.get(buffer.kernel)
        if buffer.nbytes == buffer.aval.nbytes:
            chosen = None if buffer.kind == "argument" else laid_out(buffer.kernel.root)
            stack = None if step is None or chosen is not None else stacked_bytes(buffer.aval, step)
            buffer.nbytes = _bytes(buffer, convolved) if stack is None else stack
            if buffer.kernel in stacked:
                buffer.nbytes = tiled(buffer.aval, *stacked[buffer.kernel])
        else:
            buffer.nbytes = -(-buffer.nbytes // _UNIT) * _UNIT


def _bytes(buffer: Buffer, convolved: set[tuple[int, ...]]) -> int:
    chosen = laid_out(buffer.kernel.root)
    if chosen is not None:
        return chosen
    if buffer.kernel.root.op == "custom_call" and buffer.aval.ndim > 1:
        return tiled(buffer.aval, *buffer.aval.shape[:-3:-1])
    if buffer.aval.shape in convolved:
        return convolution_bytes(buffer.aval)
    convolution = _unreshaped(buffer.kernel)
    if convolution.op == "convolution" and buffer.kind != "result" and convolution.avals[0].size == buffer.aval.size:
        return convolution_bytes(convolution.avals[0].update(dtype=buffer.aval.dtype))
    if _cut(buffer):
        return alike(buffer.aval, buffer.kernel.root.operands[0].avals[0])
    matrices = _matrices(buffer.kernel)
    if matrices is not None and matrices.size == buffer.aval.size:
        return tiled(matrices.update(dtype=buffer.aval.dtype), *matrix_tiles(matrices))
    return tiled_bytes(buffer.aval.update(shape=_shape(buffer)))


def _matrices(kernel: Kernel) -> ShapedArray | None:
    """The product, if a kernel multiplies several pairs of matrices."""
    if not is_product(kernel):
        return None
    return next((node.avals[0] for node in kernel.members if is_batched(node)), None)


def _cut(buffer: Buffer) -> bool:
    """Whether a buffer is a slice with the layout of the whole array.

    Results have the layout with the least padding.
    """
    node = buffer.kernel.root
    return node.op == "slice" and buffer.kind != "result" and node.operands[0] not in buffer.kernel.members


def _shape(buffer: Buffer) -> tuple[int, ...]:
    """The dimensions of a value. Tiles do not cross the dimensions that the program gives a product."""
    node = _unreshaped(buffer.kernel)
    if node.op == "matmul" and node.avals[0].size == buffer.aval.size:
        shape: tuple[int, ...] = node.attributes.get("shape", buffer.aval.shape)
        return shape
    return buffer.aval.shape


def _unreshaped(kernel: Kernel) -> Node:
    """What a kernel computes, before reshapes."""
    node = kernel.root
    while node.op == "reshape" and node.operands[0] in kernel.members:
        (node,) = node.operands
    return node
