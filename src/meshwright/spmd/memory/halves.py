"""float32 values that TPUs store as bfloat16: those that only matrix products read.

A float32 product rounds its operands to bfloat16, unless a precision is requested. XLA moves this conversion to the op
that writes the operand, past ops that only move data, collectives included.
"""

from __future__ import annotations

from collections import defaultdict

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
    nodes = graph.post_order()
    users: dict[Node, list[Node]] = defaultdict(list)
    for node in nodes:
        for operand in node.operands:
            users[operand].append(node)
    kept = {*graph.results, *graph.effects}
    rounded: set[Node] = set()
    for node in reversed(nodes):
        if node not in kept and users[node] and all(_rounds(user, rounded) for user in users[node]):
            rounded.add(node)
    for node in rounded:
        if node.op not in _STAYS and len(node.avals) == 1 and node.avals[0].dtype == dtypes.float32:
            node.avals = (node.avals[0].update(dtype=dtypes.bfloat16),)
            node.attributes = {**node.attributes, "halved": True}


def _rounds(user: Node, rounded: set[Node]) -> bool:
    """Whether an operation rounds its operands to bfloat16, or may take operands that are rounded."""
    if user.op in _PRODUCTS:
        return user.operands[0].avals[0].dtype == dtypes.float32 and "HIGH" not in str(user.attributes)
    return user.op in _MOVES and user in rounded
