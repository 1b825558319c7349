"""float32 values that TPUs store as bfloat16: those that only matrix products read.

A float32 product rounds its operands to bfloat16, unless a precision is requested. XLA moves this conversion to the op
that writes the operand, past ops that only move data, collectives included.
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
    """Convert loop invariants that only products read to bfloat16, in the body: XLA hoists such conversions."""
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
