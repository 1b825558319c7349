"""Removes unused results of loops and conditionals, and operands that are then unused.

XLA does this before buffer assignment. A result that is the same operand in every branch is replaced by that operand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from meshwright.spmd.memory.graph import Graph, Node, captured, post_order

#: conditionals, of which one branch runs; and calls that are compiled separately, which always run
CHOICES = ("call", "case", "if")


def prune(graph: Graph) -> None:
    """Remove unused results and operands in place."""
    needed: dict[Node, set[int]] = {node: {0} for node in (*graph.results, *graph.effects)}
    for node in reversed(graph.post_order()):
        used = needed.get(node)
        if used is None:
            continue
        if node.regions and "used" not in node.attributes:
            (_carry_less if node.op == "while" else _keep)(node, used)
        for operand in node.operands:
            index = node.attributes["index"] if node.op == "get" else 0
            needed.setdefault(operand, set()).add(index)


def hold_less(graph: Graph) -> None:
    """Let barriers hold back only what is used after them, in place, in bodies too."""
    taken: dict[Node, list[Node]] = defaultdict(list)
    for node in graph.post_order():
        for region in node.regions:
            hold_less(region)
        if node.op == "get" and node.operands[0].op == "optimization_barrier":
            taken[node.operands[0]].append(node)
    for barrier, nodes in taken.items():
        used = sorted({node.attributes["index"] for node in nodes})
        for node in nodes:
            node.attributes = {"index": used.index(node.attributes["index"])}
        barrier.operands = tuple(barrier.operands[i] for i in used)
        barrier.avals = tuple(barrier.avals[i] for i in used)


def _keep(choice: Node, used: set[int]) -> None:
    """Keep only the results ``used``; the others keep their numbers but have no value."""
    places = sorted(used)
    choice.attributes = {**choice.attributes, "used": {i: place for place, i in enumerate(places)}}
    own = choice.operands[: len(choice.operands) - len(captured(choice.regions))]
    choice.regions = tuple(_narrowed(g, [g.results[i] for i in places]) for g in choice.regions)
    choice.operands = (*own, *captured(choice.regions))


def _narrowed(region: Graph, results: Sequence[Node]) -> Graph:
    """A branch with only ``results``, and the parameters that these need."""
    prune(Graph(region.parameters, tuple(results), region.effects))
    inside = set(post_order((*results, *region.effects), lambda node: node.operands))
    return Graph(tuple(p for p in region.parameters if p in inside), tuple(results), region.effects)


def _carry_less(loop: Node, used: set[int]) -> None:
    """Reduce a loop's carry to what is used after it or read by its condition, and what these depend on."""
    condition, body = loop.regions
    kept = used | _read(condition, (*condition.results, *condition.effects)) | _read(body, body.effects)
    while more := _read(body, [body.results[i] for i in kept]) - kept:
        kept |= more
    places = sorted(kept)
    loop.attributes = {**loop.attributes, "used": {i: place for place, i in enumerate(places)}}
    loop.operands = tuple(loop.operands[i] for i in places)
    loop.regions = (
        Graph(tuple(condition.parameters[i] for i in places), condition.results, condition.effects),
        Graph(tuple(body.parameters[i] for i in places), tuple(body.results[i] for i in places), body.effects),
    )
    for region in loop.regions:
        prune(region)


def _read(graph: Graph, results: Sequence[Node]) -> set[int]:
    """The numbers of the parameters that ``results`` depend on."""
    inside = set(post_order(results, lambda node: node.operands))
    return {i for i, parameter in enumerate(graph.parameters) if parameter in inside}


def through(choice: Node, i: int) -> Node | None:
    """The operand that every branch returns as result ``i``, if there is one."""
    ends = {handed(g.results[i]).attributes.get("outside") for g in choice.regions}
    return ends.pop() if len(ends) == 1 else None


def handed(node: Node) -> Node:
    """``node``, or the operand that it equals if every branch of a conditional returns that operand unchanged."""
    choice, i = (node.operands[0], node.attributes["index"]) if node.op == "get" else (node, 0)
    source = through(choice, choice.attributes["used"][i]) if choice.op in ("case", "if") else None
    return node if source is None else handed(source)
