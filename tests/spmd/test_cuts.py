"""Gathers of what several equations use, at the cheapest cut before those that need it whole."""

import warnings

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding as Sharding
from meshwright import P
from meshwright.spmd.passes import cuts

MESH = mw.AbstractMesh((8,), ("x",))
X = mw.ShapeDtypeStruct((16, 24, 64), np.float32)
#: what a gather of such a value sends
ALL = 16 * 24 * 64 * 4 * 7 // 8


SPLIT = P(None, None, "x")


def partitioned(function, *args, spec=SPLIT, mesh=MESH):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = mw.jit(
            function, in_shardings=tuple(Sharding(mesh, spec) for _ in args), out_shardings=Sharding(mesh, P())
        )
        return run.lower(*args).partition(mesh)


def proven(part):
    part.verify()
    return part


def sent(part):
    return [(c.kind, c.bytes_sent) for c in part.collectives]


PROGRAMS = {
    "two uses": lambda x: mnp.cos(x) + mnp.sin(x),
    "uses of uses": lambda x: mnp.cos(-x) * mnp.sin(x) + mnp.tanh(x) * x,
    "a gradient": mw.grad(lambda x: mnp.sum(mnp.sin(x)) + mnp.sum(mnp.sin(-x) * x)),
    "with a slice": mw.grad(lambda x: mnp.sum(mnp.sin(x)) + mnp.sum(mnp.sin(mnp.roll(x, 1, 0)))),
    "with what is whole": lambda x: mnp.cos(x) + mnp.sin(x) * mnp.arange(64.0),
    "transposed": lambda x: mnp.cos(x).T + mnp.sin(x).T,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_joined_is_gathered_once(name):
    part = proven(partitioned(PROGRAMS[name], X))
    assert sent(part) == [("all_gather", ALL)]
    assert part.work.redundancy < 1.05


def test_what_must_be_whole_is_gathered():
    part = proven(partitioned(lambda x: (mnp.cos(x) + mnp.sort(x, 2), x), X))
    assert sum(b for _, b in sent(part)) <= 2 * ALL


def test_narrower_values_are_gathered():
    part = proven(partitioned(lambda x: (x.sum(0) + x.max(0), x.min(0) * x.sum(0)), X))
    assert sum(b for _, b in sent(part)) == 2 * ALL // 16


def test_nothing_is_gathered_oftener():
    """Two results of one gathered value: gathering both would send twice as much."""
    part = proven(partitioned(lambda x: (mnp.cos(x), mnp.sin(x)), X))
    assert sum(b for _, b in sent(part)) == ALL


def test_two_axes():
    mesh = mw.AbstractMesh((4, 2), ("x", "y"))
    for spec in (P("x", None, "y"), P(None, None, ("x", "y")), P("y", "x")):
        part = proven(partitioned(PROGRAMS["uses of uses"], X, spec=spec, mesh=mesh))
        assert sum(b for _, b in sent(part)) <= ALL
        assert part.work.redundancy < 2.1


# --- what devices would repeat ------------------------------------------------------------------------------
def test_what_is_repeated_has_a_price():
    """The maximum and the sum of a softmax are of tiles, which two small all-reduces complete; gathering what it is of
    would cost one, but every device would compute all of it."""
    rows = mw.ShapeDtypeStruct((512, 1024), np.float32)
    part = proven(partitioned(lambda x: mw.nn.softmax(x, -1), rows, spec=P(None, "x")))
    assert sent(part) == [("all_reduce", 512 * 4 * 7 // 4)] * 2 + [("all_gather", 512 * 1024 * 4 * 7 // 8)]
    assert part.work.redundancy < 1.01


def test_repeating_little_is_cheaper_than_a_sum():
    few = mw.ShapeDtypeStruct((64, 8), np.float32)
    part = proven(partitioned(lambda x: mw.nn.softmax(x, -1), few, spec=P(None, "x")))
    assert sum(s for _, s in sent(part)) < 64 * 8 * 4 * 7 // 8 + 2 * 64 * 4 * 7 // 4


def random_graph(seed):
    """A layered graph with prices; what begins, and what must be whole."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 8))
    users = {i: [j for j in range(i + 1, n) if rng.random() < 0.45] for i in range(n)}
    begins = [i for i in range(n) if not any(i in users[j] for j in range(i))]
    whole = {i for i in range(n) if not users[i] or rng.random() < 0.2}
    prices, repeated = ([int(p) for p in rng.integers(low, 9, n)] for low in (1, 0))
    return n, users, begins, whole, prices, [0 if i in begins else r * (seed % 3) for i, r in enumerate(repeated)]


class Graph:
    """What a cut is asked of."""

    def __init__(self, n, users, begins, whole, prices, repeated):
        start = type("Start", (), {"local": None})()
        later = type("Later", (), {"local": 1})()
        self.tiled = {i: start if i in begins else later for i in range(n)}
        self.of = {i: [j for j in range(n) if i in users[j]] for i in range(n)}
        self.whole, self.prices, self.repeats = whole, prices, repeated

    def operands(self, i):
        return self.of[i]

    def price(self, i):
        return self.prices[i]

    def repeated(self, i):
        return self.repeats[i]


def computed_whole(cut, users, whole):
    """The values that are computed of whole operands: those that are needed whole, and are not gathered."""
    found = set(whole) - cut
    for i in reversed(range(len(users))):
        if i not in cut and any(j in found for j in users[i]):
            found.add(i)
    return found


def are_made_of_tiles(cut, users, whole):
    """Whether nothing that is gathered is made of what is only computed whole."""
    left, seen = set(cut), set()
    while left:
        j = left.pop()
        seen.add(j)
        left |= {i for i in users if j in users[i]} - seen
    return not seen & computed_whole(cut, users, whole)


def separates(cut, users, begins, whole):
    """Whether no way leads from what begins to what must be whole."""
    left, seen = [b for b in begins if b not in cut], set()
    while left:
        i = left.pop()
        if i in whole:
            return False
        seen.add(i)
        left += [j for j in users[i] if j not in cut and j not in seen]
    return True


@pytest.mark.parametrize("seed", range(90))
def test_the_cut_is_minimal(seed):
    n, users, begins, whole, prices, repeated = random_graph(seed)

    def price(cut):
        return sum(prices[i] for i in cut) + sum(repeated[i] for i in computed_whole(cut, users, whole))

    def is_one(cut):
        return separates(cut, users, begins, whole) and are_made_of_tiles(cut, users, whole)

    cut = cuts._cut(Graph(n, users, begins, whole, prices, repeated))
    assert is_one(cut)
    assert price(cut) == min(price(c) for bits in range(2**n) if is_one(c := {i for i in range(n) if bits >> i & 1}))


@pytest.mark.parametrize("rows", [24, 20])
def test_what_was_split_before_a_constraint_is_not_split_again(rows):
    """Rows that the devices do not divide are gathered and cut by more ops than rows that they divide."""

    def step(x):
        return mnp.tanh(mw.lax.with_sharding_constraint(x * 2, Sharding(MESH, P(None))))

    by_rows = Sharding(MESH, P("x"))
    x = mw.ShapeDtypeStruct((rows,), np.float32)
    part = mw.jit(step, in_shardings=(by_rows,), out_shardings=by_rows).lower(x).partition(MESH)
    assert part.collectives == []
    part.verify()
