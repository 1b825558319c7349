"""The memory that kernels need while they run, besides what they read and write.

On GPUs, XLA gives cuBLAS a workspace for every matrix product. TPUs have neither complex numbers nor LAPACK. There XLA
writes Fourier transforms and decompositions as loops of products. This module counts their intermediate arrays.
Operands and results are not included: they are nodes of the graph. The rules were derived from the vector memory of
programs that libtpu 0.0.42 compiled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.core import dtypes
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

#: bytes of an element's number
_NUMBER = 4
#: the longest transform that is one product
_WHOLE = 128
#: arrays of real numbers that are alive in a Fourier transform: products of sums (three of them instead of four) take
#: an operand, the sum and a product, and give two or three; transforms in two stages combine three
_ONE_STAGE, _TWO_STAGES = 5, 6


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
    inside = _inside(root) if root.op != "fft" else _transform(kernel)
    if not inside:
        return 0
    given = sum(tiled_bytes(k.root.avals[0]) for k in kernel.operands if k.root.op != "parameter")
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


def _transform(kernel: Kernel) -> int:
    """The most bytes that are live in a Fourier transform. It transforms one dimension after the other."""
    node = kernel.root
    longest = max(node.operands[0].avals[0], node.avals[0], key=lambda aval: aval.size)
    x = longest.update(dtype=dtypes.real_of(longest.dtype))
    readers = (reader for user in kernel.users for reader in user.members if node in reader.operands)
    arrays = _TWO_STAGES - all(reader.op == "real" for reader in readers)
    return max(_along(x, d, arrays) for d in range(x.ndim - len(node.attributes["fft_length"]), x.ndim))


def _along(x: ShapedArray, d: int, arrays: int) -> int:
    """The bytes of ``arrays`` arrays while a dimension is transformed, in one stage for each of two factors."""
    n = x.shape[d]
    factor = min(n & -n, _WHOLE)
    shape = (*x.shape[:d], *x.shape[d + 1 :], factor, n // factor)
    return (_ONE_STAGE if factor == n else arrays) * tiled_bytes(x.update(shape=shape))


def _blocks(matrices: ShapedArray) -> ShapedArray:
    """A block of columns of each matrix."""
    shape = (*matrices.shape[:-1], min(BLOCK, matrices.shape[-1]))
    return matrices.update(shape=shape)


def _matrices(aval: ShapedArray) -> int:
    """The bytes of an array that is tiled along the dimensions of matrices."""
    return ordered_bytes(aval, matrix_order(aval))
