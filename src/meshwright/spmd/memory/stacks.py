"""Values that loops use one part at a time: stacked weights, caches, and the results of steps.

A part is always whole tiles. So the dimension of the steps is not along the lanes of tiles. It is not along their rows
either, if there are other dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.spmd.memory.graph import Graph, Node
from meshwright.spmd.memory.kernels import Kernel

#: what reads no more of its first operand than it gives, or writes no more of it than it is given
PARTS = ("dynamic_slice", "dynamic_update_slice")


def used_in_parts(kernel: Kernel) -> set[Kernel]:
    """The inputs that a loop uses in parts only. For other kernels there are none."""
    if kernel.root.op != "while":
        return set()
    body = kernel.root.regions[1]
    readers = _readers(body.parameters, body.post_order())
    inputs = list(zip(body.parameters, kernel.operands))
    read = {source for x, source in inputs if readers[x]}
    return read - {source for x, source in inputs for node in readers[x] if not _is_part(node, x)}


def step_dimensions(body: Graph) -> dict[Node, int]:
    """The parameters of a body that it uses in parts only, with the dimension along which a part has one element."""
    found = {}
    for x, nodes in _readers(body.parameters, body.post_order()).items():
        if nodes and all(_is_part(node, x) for node in nodes) and (d := _step_dimension(x, nodes)) is not None:
            found[x] = d
    return found


def whole_readers(body: Graph) -> set[Node]:
    """The parameters of a body that some operation reads as a whole."""
    readers = _readers(body.parameters, body.post_order())
    return {x for x, nodes in readers.items() if not all(_is_part(node, x) for node in nodes)}


def _is_part(node: Node, x: Node) -> bool:
    return node.op in PARTS and node.operands[0] is x


def _readers(parameters: Sequence[Node], nodes: Sequence[Node]) -> dict[Node, list[Node]]:
    readers: dict[Node, list[Node]] = {x: [] for x in parameters}
    for node in nodes:
        for x in node.operands:
            if x in readers:
                readers[x].append(node)
    return readers


def _step_dimension(x: Node, nodes: Sequence[Node]) -> int | None:
    """The dimension of which all readers take one element; None if there is not exactly one."""
    parts = [node.operands[1] if node.op == "dynamic_update_slice" else node for node in nodes]
    if any(len(part.shape) != len(x.shape) for part in parts):
        return None
    single = [d for d, n in enumerate(x.shape) if n > 1 and all(part.shape[d] == 1 for part in parts)]
    return single[0] if len(single) == 1 else None
