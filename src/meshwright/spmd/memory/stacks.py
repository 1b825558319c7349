"""Values that loops use one part at a time: stacked weights, caches, and the results of steps.

A part is always whole tiles. So the dimension of the steps is not along the lanes of tiles. It is not along their rows
either, if there are other dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.spmd.memory.graph import Graph, Node
from meshwright.spmd.memory.kernels import Kernel, Use
from meshwright.spmd.memory.priority import is_product

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


def filled(loop: Node) -> list[int]:
    """The numbers of the arrays that a loop fills with its results, from the first part to the last."""
    body = loop.regions[1]
    pairs = [(x, after) for x, after in zip(body.parameters, body.results)]
    return [
        i
        for i, (x, after) in enumerate(pairs)
        if after.op == "dynamic_update_slice" and after.operands[0] is x
        if all(at.op in ("parameter", "constant") for at in after.operands[2:])
    ]


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


def written_at_once(order: Sequence[Kernel]) -> dict[Kernel, int]:
    """The steps at which kernels write parts of arrays. Those that read the same values run as one, the last of them.

    What is computed elementwise for them is computed in the same kernel.
    """
    head: dict[Kernel, Kernel] = {}
    when = {kernel: step for step, kernel in enumerate(order) if kernel.root.op in PARTS[1:]}

    def first(kernel: Kernel) -> Kernel:
        while (other := head.setdefault(kernel, kernel)) is not kernel:
            kernel = other
        return kernel

    for kernel in when:
        for source in _sources(kernel):
            head[first(source)] = first(kernel)
    last: dict[Kernel, int] = {}
    for kernel, step in when.items():
        last[first(kernel)] = max(last.get(first(kernel), 0), step)
    return {kernel: last[first(kernel)] for kernel in when}


def _sources(update: Kernel) -> set[Kernel]:
    """The arrays that the elements of an update are computed from, also those that it repeats."""
    stack, part = (x.avals[0] for x in update.root.operands[:2])
    near = {k for k in update.inputs if 1 < k.root.avals[0].size <= part.size and k.root.avals[0].shape != stack.shape}
    if any(node.elementwise and node.op != "convert" for node in update.members):
        return near
    computed = (k for k in near if k.loop and len(k.root.shape) > 1 and all(map(_computes_again, k.users)))
    whole = (k for k in near if k.loop and k.root.avals[0].size == part.size)
    return (
        near
        | {x for k in computed for x, use in k.inputs.items() if use is Use.INPLACE}
        | {x for k in whole for x in k.inputs if x.root.avals[0].size > 1}
    )


def _computes_again(user: Kernel) -> bool:
    """Whether a kernel computes what it reads itself: an update, or a product."""
    return user.root.op in PARTS[1:] or is_product(user)


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
