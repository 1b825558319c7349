"""What each node of a graph is computed from, for questions about many pairs of nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Ancestors(Generic[T]):
    """Which of the nodes ``of`` each node is computed from, as bit sets.

    ``order`` is all nodes in post-order, and ``inputs`` are those that a node reads.
    """

    def __init__(self, order: Iterable[T], inputs: Callable[[T], Iterable[T]], of: Iterable[T]) -> None:
        self._bits = {node: 1 << number for number, node in enumerate(of)}
        self._known: dict[T, int] = {}
        for node in order:
            found = 0
            for source in inputs(node):
                found |= self._known[source] | self._bits.get(source, 0)
            self._known[node] = found

    def apart(self, group: Sequence[T], other: Sequence[T]) -> bool:
        """Whether neither group is computed from the other one."""
        mine, theirs = self._members(group), self._members(other)
        return not any(self._known[x] & theirs for x in group) and not any(self._known[x] & mine for x in other)

    def follows(self, node: T, group: Sequence[T]) -> bool:
        """Whether a node is computed from one of a group."""
        return bool(self._known[node] & self._members(group))

    def join(self, whole: Sequence[T]) -> None:
        """Make one of several nodes. What is computed from one of them is now computed from all of them."""
        members, before = self._members(whole), 0
        for node in whole:
            before |= self._known[node]
        for node, known in self._known.items():
            if known & members:
                self._known[node] = known | members | before
        self._known.update(dict.fromkeys(whole, before))

    def _members(self, group: Iterable[T]) -> int:
        members = 0
        for node in group:
            members |= self._bits[node]
        return members
