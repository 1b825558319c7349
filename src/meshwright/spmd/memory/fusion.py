"""Loop fusion: finds the values that are computed inside their users and never get a buffer.

The algorithm is XLA's ``InstructionFusion`` with the rules of its CPU compiler. Kernels are visited users first, and
each absorbs its operands, latest first, as long as that is allowed. A cheap operand with several users may be
duplicated into each of them. If that would read more memory, it is fused only if all of its users can absorb it.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence

from meshwright.spmd.memory.graph import Node
from meshwright.spmd.memory.kernels import Kernel, Use

#: the number of kernels that a dependence check visits; beyond that, a dependence is assumed
_HORIZON = 256
#: operations whose code is emitted at one place of one kernel only. They search for an element's place, or they loop.
#: (In ``FusionNodeIndexingEvaluation``, they invalidate a cache.)
_ONCE = ("concatenate", "dynamic_update_slice", "pad", "reduce", "reduce_window")
#: how often the code of any operation may be emitted in a kernel
_COPIES = 15


def fuse(kernels: Sequence[Kernel], kept: set[Kernel]) -> list[Kernel]:
    """Fuse in place; returns the kernels that are left, in post-order."""
    stay = _not_to_repeat(kernels, kept)
    gone: set[Kernel] = set()
    for kernel in reversed(kernels):
        if kernel in gone or not kernel.loop:
            continue
        code = _Code(kernel.root)
        queue = [(-k.number, k) for k in kernel.inputs]
        heapq.heapify(queue)
        seen = set(kernel.inputs)
        while queue:
            _, producer = heapq.heappop(queue)
            if producer in stay or not may_fuse(kernel, producer, kept):
                continue
            several = len(kernel.members) > 1 or kernel.root.op == "transpose"  # which is a transpose and a copy of it
            if several and code.too_long_with(producer, producer in kept):
                continue
            kernel.absorb(producer, producer in kept)
            code.add(producer.root)
            if not producer.users and producer not in kept:
                gone.add(producer)
            for k in producer.inputs:
                if k not in seen:
                    seen.add(k)
                    heapq.heappush(queue, (-k.number, k))
    return [k for k in kernels if k not in gone]


def may_fuse(consumer: Kernel, producer: Kernel, kept: set[Kernel]) -> bool:
    """Whether the producer may be fused into the consumer now."""
    if not (consumer.loop and producer.loop) or producer.root.op in ("parameter", "constant"):
        return False
    if producer.root.expensive:
        repeated = producer in kept or len(producer.users) > 1
        if repeated or consumer.inputs[producer] is Use.REUSED:
            return False
    if _major_reduction(producer.root) or _major_reduction(consumer.root):
        return False
    return consumer.root.op != "dynamic_update_slice" or not disturbs(consumer, producer.root)


def disturbs(update: Kernel, node: Node) -> bool:
    """Whether a node that an update computes for itself would keep it from writing over its first operand.

    That is what it is, or reads elsewhere, unless element by element. Source: XLA's ``ShouldFuseInPlaceOp``.
    """
    if node.op == "reshape":
        return False
    old = in_place_operand(update)
    if node.elementwise:
        return node is old and any(old in x.operands for x in update.members if x is not update.root)
    if node is old or old not in node.operands:
        return node is old
    return not (_is_what_changes(node, update.root) and _computes_elements(update, node))


def _computes_elements(update: Kernel, node: Node) -> bool:
    """Whether an update computes what it writes from a node element by element."""
    found, stack = {node}, [node]
    while stack:
        x = stack.pop()
        users = [y for y in update.members if x in y.operands and y is not update.root and y not in found]
        if not all(y.elementwise for y in users):
            return False
        found.update(users)
        stack += users
    return True


def _is_what_changes(node: Node, update: Node) -> bool:
    """Whether a node is the part of an array that an update replaces."""
    places = update.operands[2:]
    if node.op == "dynamic_slice":
        return node.operands[1:] == places
    if node.op != "slice" or "start_indices" not in node.attributes or node.shape != update.operands[1].shape:
        return False
    at = [x.attributes.get("value") for x in places]
    return list(node.attributes["start_indices"]) == at and set(node.attributes["strides"]) <= {1}


def in_place_operand(update: Kernel) -> Node:
    """The operand that an update writes over, before it is reshaped in the same kernel."""
    node = update.root.operands[0]
    while node.op == "reshape" and node in update.members:
        (node,) = node.operands
    return node


class _Code:
    """Counts how often the code of each operation is emitted in a kernel: once for each index it is evaluated at.

    Operations of the same shape, and transposes, evaluate their operands at their own index. Source: XLA's
    ``FusionNodeIndexingEvaluation``.
    """

    def __init__(self, root: Node) -> None:
        self._places: dict[Node, set[Node | None]] = defaultdict(set, {root: {None}})
        self._times: dict[Node | None, int] = {None: 1}
        self.add(root)

    def add(self, node: Node) -> None:
        """Add an operation to the kernel."""
        self._times[node] = self._written(node)
        for x in node.operands:
            same = node.op == "transpose" or x.shape == node.shape
            self._places[x] |= self._places[node] if same else {node}

    def too_long_with(self, producer: Kernel, kept: bool) -> bool:
        """Whether fusing ``producer`` would make the code too long; ``kept``: the value is also a result."""
        node = producer.root
        times = self._written(node)
        if node.op == "broadcast_in_dim":
            return False
        return times > _COPIES or (node.op in _ONCE and (times > 1 or _readers(producer) + kept > 1))

    def _written(self, node: Node) -> int:
        return sum(self._times[place] for place in self._places[node])


def _readers(producer: Kernel) -> int:
    """The number of operations that read a value, over all kernels."""
    return sum(producer.root in node.operands for kernel in producer.users for node in kernel.members)


def _major_reduction(node: Node) -> bool:
    """Whether a reduction keeps the last dimension; it loops over rows, which a loop over result elements cannot do."""
    return node.op == "reduce" and len(node.operands[0].shape) - 1 not in node.attributes["dimensions"]


def _not_to_repeat(kernels: Sequence[Kernel], kept: set[Kernel]) -> set[Kernel]:
    """The values that must not be duplicated: some user cannot absorb them, and fusion would read more memory."""
    stay: set[Kernel] = set()
    paths: dict[tuple[Kernel, Kernel], bool] = {}
    for producer in reversed(kernels):
        if not producer.loop or _reads_little(producer.root):
            continue
        users = sorted(producer.users, key=lambda k: k.number)
        if producer in kept or not all(_on_all_paths(k, producer, stay, kept, paths) for k in users):
            stay.add(producer)
    return stay


def _reads_little(node: Node) -> bool:
    """Whether a node has at most one operand of its rank, or operands with no more elements than the result together.

    Dimensions of size 1 do not count.
    """
    rank = _rank(node)
    large = [x for x in node.operands if x.op not in ("broadcast_in_dim", "iota") and _rank(x) >= rank]
    if len([x for x in large if not (x.op == "constant" and not x.shape)]) <= 1:
        return True
    return sum(x.avals[0].size for x in set(node.operands)) <= node.avals[0].size


def _rank(node: Node) -> int:
    return sum(n != 1 for n in node.shape)


def _on_all_paths(
    consumer: Kernel, producer: Kernel, stay: set[Kernel], kept: set[Kernel], known: dict[tuple[Kernel, Kernel], bool]
) -> bool:
    """Whether all paths from the producer to the consumer can be fused."""
    fusible = known.get((consumer, producer))
    if fusible is not None:
        return fusible
    fusible = True
    for middle in consumer.inputs:
        if middle is not producer and not (middle.number > producer.number and depends(middle, producer)):
            continue
        if middle in stay or not may_fuse(consumer, middle, kept):
            fusible = False
        elif middle is not producer:
            fusible = _on_all_paths(middle, producer, stay, kept, known)
        if not fusible:
            break
    known[consumer, producer] = fusible
    return fusible


def depends(kernel: Kernel, source: Kernel, horizon: int = _HORIZON) -> bool:
    """Whether ``kernel`` is computed from ``source``. Beyond ``horizon`` kernels it is assumed."""
    seen = {kernel}
    stack = [kernel]
    while stack:
        for k in stack.pop().inputs:
            if k is source:
                return True
            if k.number > source.number and k not in seen:
                if len(seen) > horizon:
                    return True
                seen.add(k)
                stack.append(k)
    return False
