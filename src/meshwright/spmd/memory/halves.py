"""float32 values that TPUs store as bfloat16: those that only matrix products read.

A float32 product rounds its operands to bfloat16, unless a precision is requested. XLA moves this conversion to the op
that writes the operand. The conversion moves past ops that only move data, such as collectives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from meshwright.core import dtypes
from meshwright.spmd.memory.graph import Graph, Node

_PRODUCTS = ("matmul", "convolution")
#: operations that the conversion moves past
_MOVES = frozenset(
    """all_gather all_to_all collective_permute concatenate copy dynamic_slice gather pad relayout reorder reshape
    reverse slice transpose""".split()
)
#: what stays as it is given, or is computed in 32 bits
_STAYS = frozenset("all_reduce constant convert custom_call get parameter reduce_scatter scatter while case if".split())


def halve(graph: Graph) -> None:
    """Change float32 values that only products read to bfloat16, in place."""
    for node in _rounded(graph, _users(graph)):
        if node.op not in _STAYS and len(node.avals) == 1 and node.avals[0].dtype == dtypes.float32:
            node.avals = (node.avals[0].update(dtype=dtypes.bfloat16),)
            node.attributes = {**node.attributes, "halved": True}


def halve_invariants(graph: Graph) -> None:
    """Convert loop invariants that only products read to bfloat16, in the body. XLA hoists such conversions."""
    for node in graph.post_order():
        for region in node.regions:
            halve_invariants(region)
        if node.op == "while":
            _convert_invariants(node.regions[1])


def _convert_invariants(body: Graph) -> None:
    users = _users(body)
    rounded = _rounded(body, users)
    for x, after in zip(body.parameters, body.results):
        if x is after and x.avals[0].dtype == dtypes.float32 and _only_rounded(users[x], rounded):
            half = Node("convert", (x,), (x.avals[0].update(dtype=dtypes.bfloat16),), {}, x.source)
            for user in users[x]:
                user.operands = tuple(half if operand is x else operand for operand in user.operands)


def halve_stacks(graph: Graph) -> None:
    """Let loops stack values in bfloat16 if only products read them later, in place.

    The conversion moves into the loop.
    """
    nodes = [node for node in graph.post_order() if node.regions]
    loops = [node for node in nodes if node.op == "while"]
    for region in (region for node in nodes for region in node.regions):
        halve_stacks(region)
    if not loops:
        return
    users = _users(graph)
    rounded = _rounded(graph, users)
    kept = {*graph.results, *graph.effects}
    for node in loops:
        taken = [user for user in users[node] if user.op == "get"]
        for i in _stacked(node):
            values = [user for user in taken if user.attributes["index"] == i]
            readers = [user for value in values for user in users[value] if not _passes(user, value)]
            if readers and not kept & {*values} and all(_halves(user) or _rounds(user, rounded) for user in readers):
                _stack_halves(node, i, values, readers)


def _stacked(loop: Node) -> list[int]:
    """The float32 arrays that are empty at first, and of which a loop only writes parts."""
    condition, body = loop.regions
    users, outer = _users(body), _users(condition)
    found = zip(body.parameters, body.results, condition.parameters, loop.operands)
    return [
        i
        for i, (x, after, seen, start) in enumerate(found)
        if after.op == "dynamic_update_slice" and after.operands[0] is x and users[x] == [after] and not users[after]
        if x.avals[0].dtype == dtypes.float32 and not outer[seen] and start.is_splat()
        if body.results.count(after) == 1
    ]


def _stack_halves(loop: Node, i: int, values: Sequence[Node], readers: Sequence[Node]) -> None:
    condition, body = loop.regions
    half = body.parameters[i].avals[0].update(dtype=dtypes.bfloat16)
    written = body.results[i]
    part = written.operands[1]
    rounded = Node("convert", (part,), (part.avals[0].update(dtype=dtypes.bfloat16),), {}, part.source)
    written.operands = (written.operands[0], rounded, *written.operands[2:])
    start = loop.operands[i]
    empty = Node(start.op, start.operands, (half,), start.attributes, start.source)
    loop.operands = (*loop.operands[:i], empty, *loop.operands[i + 1 :])
    loop.avals = (*loop.avals[:i], half, *loop.avals[i + 1 :])
    for node in (body.parameters[i], condition.parameters[i], written, *values):
        node.avals = (half,)
    for node in filter(_halves, readers):
        node.op, node.attributes = "reshape", {}


def _passes(loop: Node, value: Node) -> bool:
    """Whether a loop carries a value without using it. That is so if its body reads the converted value."""
    if loop.op != "while":
        return False
    condition, body = loop.regions
    used = {x for region in (condition, body) for node in region.post_order() for x in node.operands}
    places = [i for i, x in enumerate(loop.operands) if x is value]
    idle = ((condition.parameters[i], body.parameters[i], body.results[i]) for i in places)
    return all(seen not in used and x not in used and x is after for seen, x, after in idle)


def _halves(node: Node) -> bool:
    return node.op == "convert" and node.avals[0].dtype == dtypes.bfloat16


def _users(graph: Graph) -> dict[Node, list[Node]]:
    users: dict[Node, list[Node]] = defaultdict(list)
    for node in graph.post_order():
        for operand in node.operands:
            users[operand].append(node)
    return users


def _rounded(graph: Graph, users: Mapping[Node, list[Node]]) -> set[Node]:
    """The values that only products read, which round them."""
    kept = {*graph.results, *graph.effects}
    rounded: set[Node] = set()
    for node in reversed(graph.post_order()):
        if node not in kept and _only_rounded(users.get(node, ()), rounded):
            rounded.add(node)
    return rounded


def _only_rounded(users: Sequence[Node], rounded: set[Node]) -> bool:
    return bool(users) and all(_rounds(user, rounded) for user in users)


def _rounds(user: Node, rounded: set[Node]) -> bool:
    """Whether an operation rounds its operands to bfloat16, or may take operands that are rounded."""
    if user.op in _PRODUCTS:
        if len(user.shape) < max(len(x.shape) for x in user.operands):
            return False  # with a vector, it is multiplied and summed elementwise
        return user.operands[0].avals[0].dtype == dtypes.float32 and "HIGH" not in str(user.attributes)
    return user.op in _MOVES and user in rounded
