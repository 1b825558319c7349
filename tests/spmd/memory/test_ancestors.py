"""Ancestors in bit sets are those that a walk finds, also after nodes have been joined."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshwright.spmd.memory.ancestors import Ancestors


def reaches(graph, node, others):
    return any(x in others or reaches(graph, x, others) for x in graph[node])


@given(st.data())
def test_as_a_walk_finds_them(data):
    n = data.draw(st.integers(2, 9))
    graph = {i: data.draw(st.sets(st.integers(0, i - 1))) if i else set() for i in range(n)}
    ancestors = Ancestors(range(n), graph.__getitem__, range(n))
    for _ in range(3):
        first, second = (data.draw(st.integers(0, n - 1)) for _ in range(2))
        assert ancestors.follows(first, [second]) == reaches(graph, first, {second})
        apart = not reaches(graph, first, {second}) and not reaches(graph, second, {first})
        assert ancestors.apart([first], [second]) == (apart or first == second)
        if apart and first != second:
            ancestors.join([first, second])
            graph[first] = graph[second] = graph[first] | graph[second]
            for node, inputs in graph.items():  # who reads one reads both
                if inputs & {first, second} and node not in (first, second):
                    graph[node] = inputs | {first, second}
