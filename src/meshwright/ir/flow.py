"""Minimum cuts of flow networks, found by maximum flow (Dinic 1970)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable


class Network:
    """A directed graph with edge capacities. Nodes are created when an edge first uses them."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._edges: list[list[int]] = []  # outgoing edges of each node; the reverse of edge e is e ^ 1
        self._to: list[int] = []
        self._left: list[float] = []  # residual capacity of each edge

    def _node(self, name: Hashable) -> int:
        number = self._numbers.setdefault(name, len(self._numbers))
        if number == len(self._edges):
            self._edges.append([])
        return number

    def edge(self, a: Hashable, b: Hashable, capacity: float) -> None:
        """Add an edge from ``a`` to ``b``, unless its capacity is zero."""
        if capacity:
            for start, end, left in ((a, b, capacity), (b, a, 0)):
                self._edges[self._node(start)].append(len(self._to))
                self._to.append(self._node(end))
                self._left.append(left)

    def behind(self, source: Hashable, sink: Hashable) -> set[Hashable]:
        """The sink's side of the minimum cut that is closest to the sink, i.e. has the fewest nodes on this side.

        No path from source to sink may consist of edges of infinite capacity only.
        """
        start, end = self._node(source), self._node(sink)
        while (levels := self._levels(start, end))[end] >= 0:
            self._fill(start, end, levels)
        found, queue = {end}, deque([end])
        while queue:
            for e in self._edges[queue.popleft()]:
                if self._left[e ^ 1] > 0 and self._to[e] not in found:
                    found.add(self._to[e])
                    queue.append(self._to[e])
        return {name for name, number in self._numbers.items() if number in found}

    def _levels(self, start: int, end: int) -> list[int]:
        """The BFS distance of each node from ``start`` in the residual graph; -1 if not reached before ``end``."""
        levels = [-1] * len(self._edges)
        levels[start] = 0
        queue = deque([start])
        while queue and levels[end] < 0:
            a = queue.popleft()
            for e in self._edges[a]:
                b = self._to[e]
                if levels[b] < 0 and self._left[e] > 0:
                    levels[b] = levels[a] + 1
                    queue.append(b)
        return levels

    def _fill(self, start: int, end: int, levels: list[int]) -> None:
        """Augment by a blocking flow along shortest paths."""
        tried = [0] * len(self._edges)  # per node, how many of its edges are exhausted in this phase
        way: list[int] = []
        node = start
        while True:
            if node == end:
                least = min(self._left[e] for e in way)
                assert least < math.inf, "what begins a network may not be what ends it"
                for e in way:
                    self._left[e] -= least
                    self._left[e ^ 1] += least
                full = next(n for n, e in enumerate(way) if not self._left[e])
                del way[full:]
                node = self._to[way[-1]] if way else start
            elif tried[node] < len(self._edges[node]):
                e = self._edges[node][tried[node]]
                if self._left[e] > 0 and levels[self._to[e]] == levels[node] + 1:
                    way.append(e)
                    node = self._to[e]
                else:
                    tried[node] += 1
            elif way:
                e = way.pop()
                node = self._to[e ^ 1]
                tried[node] += 1
            else:
                return
