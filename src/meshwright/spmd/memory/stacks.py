"""Values that loops use one part at a time: stacked weights, caches, and the results of steps.

A part is always whole tiles. So the dimension of the steps is not along the lanes of tiles. It is not along their rows
either, if there are other dimensions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from meshwright.spmd.memory.graph import Graph, Node
from meshwright.spmd.memory.kernels import Kernel

#: what reads no more of its first operand than it gives, or writes no more of it than it is given
_PARTS = ("dynamic_slice", "dynamic_update_slice")


def used_in_parts(kernel: Kernel) -> dict[Kernel, int | None]:
    """The inputs that a loop uses in parts only. For other kernels it is empty.

    The value is the dimension along which the loop uses one element at a time, or None if there is not exactly one.
    """
    if kernel.root.op != "while":
        return {}
    readers = _readers(kernel.root.regions[1].parameters, kernel.root.regions[1].post_order())
    uses: dict[Kernel, list[tuple[Node, Node]]] = defaultdict(list)
    for x, source in zip(kernel.root.regions[1].parameters, kernel.operands):
        uses[source] += [(x, node) for node in readers[x]]
    return {
        source: _step_dimension(source.root.shape, pairs)
        for source, pairs in uses.items()
        if pairs and all(node.op in _PARTS and node.operands[0] is x for x, node in pairs)
    }


def whole_readers(body: Graph) -> set[Node]:
    """The parameters of a body that some operation reads as a whole."""
    readers = _readers(body.parameters, body.post_order())
    return {
        x for x, nodes in readers.items() if any(node.op not in _PARTS or node.operands[0] is not x for node in nodes)
    }


def _readers(parameters: Sequence[Node], nodes: Sequence[Node]) -> dict[Node, list[Node]]:
    readers: dict[Node, list[Node]] = {x: [] for x in parameters}
    for node in nodes:
        for x in node.operands:
            if x in readers:
                readers[x].append(node)
    return readers


def _step_dimension(whole: tuple[int, ...], uses: Sequence[tuple[Node, Node]]) -> int | None:
    """The dimension of which all readers take one element; None too if parameters or parts are other views."""
    parts = [node.operands[1] if node.op == "dynamic_update_slice" else node for _, node in uses]
    if any(x.shape != whole for x, _ in uses) or any(len(part.shape) != len(whole) for part in parts):
        return None
    single = [d for d, n in enumerate(whole) if n > 1 and all(part.shape[d] == 1 for part in parts)]
    return single[0] if len(single) == 1 else None
