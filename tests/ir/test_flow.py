"""Minimum cuts, against SciPy's flows and by trying all of them."""

import math

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_flow

from meshwright.ir.flow import Network


def random_edges(seed, n):
    rng = np.random.default_rng(seed)
    pairs = [(a, b) for a in range(n) for b in range(n) if a != b and rng.random() < 0.4]
    return {pair: int(rng.integers(0, 10)) for pair in pairs}


def network(edges):
    made = Network()
    for (a, b), capacity in edges.items():
        made.edge(a, b, capacity)
    return made


def across(edges, behind):
    return sum(c for (a, b), c in edges.items() if a not in behind and b in behind)


@pytest.mark.parametrize("seed", range(40))
def test_the_last_of_the_minimum_cuts(seed):
    n = 3 + seed % 6
    edges = random_edges(seed, n)
    behind = network(edges).behind(0, n - 1)
    assert 0 not in behind and n - 1 in behind
    subsets = ({i for i in range(n) if bits >> i & 1} for bits in range(2**n))
    cuts = [s for s in subsets if 0 not in s and n - 1 in s]
    least = min(across(edges, s) for s in cuts)
    assert across(edges, behind) == least
    assert len(behind) == min(len(s) for s in cuts if across(edges, s) == least)


@pytest.mark.parametrize("seed", range(5))
def test_large_networks_as_scipy(seed):
    rng, n = np.random.default_rng(seed), 300
    edges = {(int(a), int(b)): int(rng.integers(1, 1000)) for a, b in rng.integers(0, n, (2000, 2)) if a != b}
    graph = csr_matrix(([*edges.values()], tuple(zip(*edges))), shape=(n, n), dtype=np.int32)
    assert across(edges, network(edges).behind(0, n - 1)) == maximum_flow(graph, 0, n - 1).flow_value


def test_infinite_edges_are_never_cut():
    edges = {("s", 1): math.inf, (1, 2): 5, (2, "t"): math.inf, (1, 3): 3, (3, "t"): 2, ("s", 3): 7, (3, 2): math.inf}
    behind = network(edges).behind("s", "t")
    assert behind == {2, 3, "t"} and across(edges, behind) == 15


def test_large_numbers_are_exact():
    edges = {("s", "a"): 2**70 + 1, ("a", "t"): 2**70, ("s", "t"): 1}
    assert network(edges).behind("s", "t") == {"t"}
