"""The memory that kernels need while they run, besides what they read and write.

On GPUs, XLA gives cuBLAS a workspace for every matrix product. TPUs have neither complex numbers nor LAPACK. There XLA
writes Fourier transforms and decompositions as loops of products. This module counts their intermediate arrays.
Operands and results are not included: they are nodes of the graph. The rules were derived from the vector memory of
programs that libtpu 0.0.42 compiled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.core.avals import ShapedArray
from meshwright.spmd.memory.buffers import Buffer
from meshwright.spmd.memory.compilers import Compiler
from meshwright.spmd.memory.fixed_orders import is_by_blocks, matrix_order
from meshwright.spmd.memory.graph import Node
from meshwright.spmd.memory.kernels import Kernel
from meshwright.spmd.memory.layouts import node_bytes
from meshwright.spmd.memory.order_rules import ordered_bytes
from meshwright.spmd.memory.priority import is_product
from meshwright.spmd.memory.tiles import tiled_bytes
from meshwright.spmd.memory.tpu_forms import BLOCK
from meshwright.spmd.memory.transforms import transform_bytes

#: bytes of an element's number
_NUMBER = 4


def workspaces(order: Sequence[Kernel], compiler: Compiler) -> Iterator[Buffer]:
    """The workspaces of kernels that run in this order."""
    for step, kernel in enumerate(order):
        if nbytes := _bytes(kernel, compiler):
            yield Buffer(kernel.root.avals[0], nbytes, kernel, step, step, inner=True)


def _bytes(kernel: Kernel, compiler: Compiler) -> int:
    if compiler.workspace:
        return _of_libraries(kernel, compiler.workspace)
    if not compiler.tiles:
        return 0
    root = kernel.root
    inside = _inside(root) if root.op != "fft" else transform_bytes(kernel)
    if not inside:
        return 0
    given = sum(node_bytes(k.root, 0) for k in kernel.operands if k.root.op != "parameter")
    results = sum(node_bytes(root, i) for i in range(len(root.avals)))
    return max(inside - given - results, 0)


def _of_libraries(kernel: Kernel, product: int) -> int:
    """The workspace of a product by cuBLAS, or of a stable sort of several arrays.

    A stable sort numbers the elements, to decide between equal ones. The numbers take the place of a result that
    nothing uses, since XLA removes such a result. A sort of one array counts no numbers: the model has another array of
    the same size, which XLA writes over.
    """
    root = kernel.root
    if is_product(kernel) and any(node.op == "matmul" for node in kernel.members):
        return product
    if root.op != "sort" or len(root.avals) == 1 or not root.attributes.get("is_stable"):
        return 0
    used = {0, *(user.root.attributes["index"] for user in kernel.users)}
    return root.avals[0].size * _NUMBER if len(used) == len(root.avals) else 0


def _inside(node: Node) -> int:
    """The most bytes that are live in an operation that is written as a loop. Operands and results are included."""
    whole = node.operands[0].avals[0] if node.operands else None
    target = str(node.attributes.get("call_target_name", "")).strip('"')
    if whole is None or whole.ndim < 1:
        return 0
    if node.op == "cholesky" and whole.shape[-1] > BLOCK:
        # what is left to do, the factor before and after a block of columns, and this block's
        return 3 * tiled_bytes(whole) + 2 * _matrices(_blocks(whole))
    if node.op == "triangular_solve":
        # the matrix with its blocks along the diagonal apart, their inverses, and solutions before and after a block
        size = _matrices if is_by_blocks(node) else tiled_bytes
        return tiled_bytes(whole) + size(_blocks(whole)) + 2 * size(node.avals[0])
    if target == "LuDecomposition" and min(whole.shape[-2:]) > BLOCK:
        # the matrix before and after a block of columns, the rows below it in their new order, and the next block
        below = whole.update(shape=(*whole.shape[:-2], whole.shape[-2] - BLOCK, whole.shape[-1]))
        return 2 * tiled_bytes(whole) + tiled_bytes(below) + tiled_bytes(_blocks(below))
    if target == "Eigh":
        # Jacobi's rotations go over quarters of the matrix and of its vectors
        half = (*whole.shape[:-2], -(-whole.shape[-2] // 2), -(-whole.shape[-1] // 2))
        return 8 * tiled_bytes(whole.update(shape=half))
    return 0


def _blocks(matrices: ShapedArray) -> ShapedArray:
    """A block of columns of each matrix."""
    shape = (*matrices.shape[:-1], min(BLOCK, matrices.shape[-1]))
    return matrices.update(shape=shape)


def _matrices(aval: ShapedArray) -> int:
    """The bytes of an array that is tiled along the dimensions of matrices."""
    return ordered_bytes(aval, matrix_order(aval))
