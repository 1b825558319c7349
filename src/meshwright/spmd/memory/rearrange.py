"""Reshapes and transposes come after the elementwise operations of what they move.

Then these compute in the order in memory of their operands, and fewer arrays are moved. Source: XLA's ``ReshapeMover``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshwright.spmd.memory.graph import Graph, Node
from meshwright.spmd.memory.simplify import keeps_order

_MOVES = ("reshape", "transpose")


def move_late(graph: Graph) -> None:
    """Move reshapes and transposes, in place, behind elementwise operations all of whose arrays are moved alike.

    Not those that something else reads as well.
    """
    while _Pass(graph).run():
        pass


class _Pass:
    """One walk over a graph, operands first."""

    def __init__(self, graph: Graph) -> None:
        self._order = graph.post_order()
        self._kept = {*graph.results, *graph.effects}
        self._users: dict[Node, dict[Node, None]] = {node: {} for node in self._order}
        #: numbers that are repeated in other shapes than before
        self._repeated: dict[Any, Node] = {}
        for node in self._order:
            for x in node.operands:
                self._users[x][node] = None

    def run(self) -> bool:
        """Whether anything was moved."""
        changed = False
        for node in self._order:
            for member in self._together(node):
                self._exchange(member)
                changed = True
        return changed

    def _together(self, node: Node) -> list[Node]:
        """The operations before whose moves ``node``'s is done, with all that read the same; none if one cannot be."""
        found, stack = {node: None}, [node]
        while stack:
            one = stack.pop()
            if not one.elementwise or _move_of(one) is None:
                return []
            for x in _moved(one):
                if x in self._kept:
                    return []
                more = [user for user in self._users[x] if user not in found]
                found.update(dict.fromkeys(more))
                stack += more
        return list(found)

    def _exchange(self, node: Node) -> None:
        """Turn an operation into the move of an operation on what was moved."""
        move = _move_of(node)
        assert move is not None
        shape = move.operands[0].shape
        operands = tuple(self._before(x, node, shape) for x in node.operands)
        aval = node.avals[0].update(shape=shape)
        inner = Node(node.op, operands, (aval,), node.attributes, node.source, special=node.special, made=node.made)
        for x in node.operands:
            self._users[x].pop(node, None)
        for x in operands:
            self._users[x][inner] = None
        node.op, node.operands, node.attributes, node.special = move.op, (inner,), move.attributes, False
        self._users[inner] = {node: None}
        for user in list(self._users[node]):
            if user.op == node.op:
                self._join(user, node)

    def _before(self, x: Node, node: Node, shape: tuple[int, ...]) -> Node:
        """An operand before it is moved."""
        if x.op in _MOVES and x.shape == node.shape:
            return x.operands[0]
        if not x.shape:
            return x
        aval = x.avals[0].update(shape=shape)
        key = x.operands[0], aval
        if key not in self._repeated:
            again = self._repeated[key] = Node(x.op, x.operands, (aval,), x.attributes, x.source, made=x.made)
            self._users[again] = {}
            self._users[x.operands[0]][again] = None
        return self._repeated[key]

    def _join(self, node: Node, x: Node) -> None:
        """Make one of two moves, or none, if they cancel."""
        (source,) = x.operands
        if node.op == "transpose":
            inner = x.attributes["permutation"]
            order = tuple(inner[d] for d in node.attributes["permutation"])
            if keeps_order(source.shape, order):
                node.op, node.attributes = "reshape", {}
            else:
                node.attributes = {"permutation": order}
        node.operands = (source,)
        del self._users[x][node]
        if node.op == "reshape" and source.shape == node.shape and node not in self._kept:
            for user in self._users[node]:
                user.read({node: source})
                self._users[source][user] = None
            self._users[node] = {}
        else:
            self._users[source][node] = None
        if not self._users[x] and x not in self._kept:
            self._users[source].pop(x, None)


def _move_of(node: Node) -> Node | None:
    """The reshape or transpose of every array that an operation reads, where what else it reads is one number."""
    move = None
    for x in node.operands:
        if x.op in _MOVES and x.shape == node.shape:
            if move is not None and _key(x) != _key(move):
                return None
            move = x
        elif not _is_number(x, node):
            return None
    return move


def _moved(node: Node) -> Iterator[Node]:
    return (x for x in node.operands if x.op in _MOVES and x.shape == node.shape)


def _key(move: Node) -> Any:
    return move.op, move.operands[0].shape, move.attributes.get("permutation")


def _is_number(x: Node, user: Node) -> bool:
    """Whether an operand is one number, whatever its shape."""
    if not x.shape:
        return bool(user.shape) or x.op == "constant"
    return x.op == "broadcast_in_dim" and not x.operands[0].shape
