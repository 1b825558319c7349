"""What loops read and write one part at a time: stacked weights, caches, and the results of steps.

Steps are not along the lanes of tiles, nor along their rows where there are other dimensions: a part is whole tiles.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.spmd.memory.graph import Node
from meshwright.spmd.memory.kernels import Kernel

#: what reads no more of its first operand than it gives, or writes no more of it than it is given
_PARTS = ("dynamic_slice", "dynamic_update_slice")


def in_parts(kernel: Kernel, source: Kernel) -> bool:
    """Whether a kernel is a loop that uses parts of a value only."""
    used = list(_uses(kernel, source))
    return bool(used) and all(node.op in _PARTS and node.operands[0] is x for x, node in used)


def step_dimension(kernel: Kernel, source: Kernel) -> int | None:
    """The dimension along which a loop uses one element at a time, of a value that it uses in parts."""
    if not in_parts(kernel, source):
        return None
    parts = [node.operands[1] if node.op == "dynamic_update_slice" else node for _, node in _uses(kernel, source)]
    whole = source.root.shape
    single = [d for d, n in enumerate(whole) if n > 1 and all(part.shape[d] == 1 for part in parts)]
    return single[0] if len(single) == 1 else None


def _uses(kernel: Kernel, source: Kernel) -> Iterator[tuple[Node, Node]]:
    """A loop's parameters that are a value, each with what reads it."""
    if kernel.root.op != "while":
        return
    body = kernel.root.regions[1]
    parameters = {x for x, operand in zip(body.parameters, kernel.operands) if operand is source}
    yield from ((x, node) for node in body.post_order() for x in node.operands if x in parameters)
