"""The comparison with XLA's partitioner: what ``make fuzz`` runs for hundreds of programs, for a few."""

import pytest
from against_xla import Compared, compared, found_in
from random_memory import drawn_programs

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P
from meshwright.ops.products.dot import DotGeneral
from meshwright.sharding.rule import replicated_rule

MESH = mw.AbstractMesh((4, 2), ("x", "y"))
NONE = {"time": 1e-3, "bytes": 1e6, "work": 1e7, "peak": 1e6}


def product(size=256):
    place = [mw.NamedSharding(MESH, s) for s in (P("x", "y"), P("y"), P("x"))]
    run = mw.jit(lambda a, b: mnp.tanh(a @ b), in_shardings=tuple(place[:2]), out_shardings=place[2])
    return run.lower(*[mw.ShapeDtypeStruct((size, size), mnp.float32)] * 2)


def test_all_figures_of_a_product_are_xlas():
    found = compared(product(), MESH)
    assert found.ours.keys() == found.theirs.keys() == NONE.keys()
    assert found.worse() == []
    assert all(value > 0 for value in (*found.ours.values(), *found.theirs.values()))


def test_a_worse_partition_is_found(monkeypatch):
    """Operands of products that nothing can split are gathered: more is sent and held."""

    def whole(self, *avals):
        return replicated_rule([a.shape for a in avals], [self.infer(*avals).shape])

    monkeypatch.setattr(DotGeneral, "sharding_rule", whole)
    found = compared(product(384), MESH)  # rules are remembered
    assert {"bytes", "peak", "time"} <= set(found.worse())
    assert all(word in str(found) for word in ("work: ", "bytes: ", "time: ", "peak: ", "stablehlo.dot_general"))


@pytest.mark.parametrize("changed,worse,trade", [
    ({}, [], False),
    ({"bytes": 1.04e6}, [], False),  # by less than 5 %
    ({"bytes": 1.1e6}, ["bytes"], False),
    ({"bytes": 1.1e6, "time": 0.8e-3}, ["bytes"], True),
    ({"peak": 2e6, "time": 0.8e-3}, ["peak"], False),
    ({"time": 1.1e-3, "bytes": 1}, ["time"], False),
])  # fmt: skip
def test_what_is_worse(changed, worse, trade):
    found = Compared("", NONE | changed, NONE)
    assert (found.worse(), found.worse() != [] and found.is_trade()) == (worse, trade)


def test_numbers_are_programs():
    first, again = (drawn_programs(7, 32, 2, [((8,), ("x",))], free=False)[-1] for _ in range(2))
    assert first[0].as_text("stablehlo") == again[0].as_text("stablehlo") and first[2] == again[2]


@pytest.mark.parametrize("number", [1, 2])
def test_random_programs(number):
    found = found_in(number)
    assert not found or found.startswith("[meant"), found
