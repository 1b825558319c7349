"""Reductions in library calls, and the operations fused with them.

XLA's CPU compiler uses a library (YNNPACK) for matrix products, convolutions and large reductions. It fuses elementwise
operations with a reduction: those on its operand, up to a matrix product that feeds them. If the result is broadcast
over the operand's shape, as in a softmax, those that follow are fused too. Values with other users are not fused, not
even a broadcast scalar.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.core import dtypes
from meshwright.spmd.memory.graph import Node
from meshwright.spmd.memory.kernels import Kernel

_KNOWN = frozenset("add subtract multiply divide negate exponential maximum minimum abs power sqrt rsqrt tanh".split())
_TAKEN = _KNOWN | {"broadcast_in_dim", "matmul"}
_REDUCERS = ("stablehlo.add", "stablehlo.maximum", "stablehlo.minimum")
#: number of elements below which a reduction is a loop instead of a library call
_SMALLEST = 4096


def fuse_reductions(kernels: list[Kernel], kept: set[Kernel]) -> None:
    """Turn every large reduction into a library call."""
    for kernel in kernels:
        root = kernel.root
        if root.op == "reduce" and not kernel.library and reduces(root.operands, root.attributes.get("reducer")):
            _grow(kernel, kept)


def reduces(operands: Sequence[Node], reducer: str | None) -> bool:
    """Whether the library computes a reduction."""
    x = operands[0].avals[0]
    return len(operands) == 2 and reducer in _REDUCERS and x.dtype == dtypes.float32 and x.size >= _SMALLEST


def _grow(reduction: Kernel, kept: set[Kernel]) -> None:
    region = {reduction: None}
    tip = reduction
    if reduction not in kept:
        for kernel in _spread(reduction, kept):
            region[kernel] = None
            tip = kernel
    grown = True
    while grown:
        inputs = [k for k in dict.fromkeys(i for r in region for i in r.inputs) if k not in region and k not in kept]
        taken = [k for k in inputs if _computes(k) and all(u in region for u in k.users)]
        region.update(dict.fromkeys(taken))
        grown = bool(taken)
    _merge(tip, region)


def _spread(reduction: Kernel, kept: set[Kernel]) -> Iterator[Kernel]:
    """The operations after the reduction that are fused with it, starting with a broadcast of its result."""
    kernel, shape = reduction, None
    while len(kernel.users) == 1 and kernel not in kept:
        (user,) = kernel.users
        fits = user.root.op == "broadcast_in_dim" if kernel is reduction else user.root.op in _KNOWN
        shape = shape or user.root.shape
        if not fits or user.root.shape != shape or user.library:
            return
        yield user
        kernel = user


def _computes(kernel: Kernel) -> bool:
    return kernel.root.op == "reduce" if kernel.library else kernel.root.op in _TAKEN


def _merge(tip: Kernel, region: dict[Kernel, None]) -> None:
    """One kernel for a region whose only result is the tip's."""
    tip.library = True
    while inner := [k for k in tip.inputs if k in region]:
        for kernel in inner:
            tip.absorb(kernel)
