"""Rules fall into parts only where nothing of one part bears on the results of another."""

import sys
from pathlib import Path

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding
from meshwright import PartitionSpec as P
from meshwright.ir.tracing import typeof
from meshwright.sharding.rule import REDUCTION, make_rule

sys.path.append(str(Path(__file__).parents[1] / "registry"))
from samples import SAMPLES

MESH = mw.make_mesh((4,), ("x",))


def test_a_sum_over_a_factor_that_nothing_else_has_concerns_every_result():
    rule = make_rule([["k"], ["i"]], [["i"]], {"k": 8, "i": 6}, {"k": REDUCTION})
    assert len(rule.parts) == 1
    assert len(make_rule([["k"], ["i"]], [["k"], ["i"]], {"k": 8, "i": 6}).parts) == 2


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.id)
def test_parts_of_every_op(sample):
    rule = sample.op.sharding_rule(*(typeof(x) for x in sample.args))
    parts = rule.parts
    assert sorted(o for p in parts for o in p.operands) == list(range(len(rule.operands)))
    assert sorted(r for p in parts for r in p.results) == list(range(len(rule.results)))
    if len(parts) > 1:
        assert all(f.kind != REDUCTION for f in rule.factors)


@pytest.mark.parametrize("indices", [np.array([3, 0, 9]), np.array([[3], [11]])])
@pytest.mark.parametrize("then", [lambda y: y * y, mnp.sin, lambda y: y < 5, lambda y: mnp.stack([y, y])])
def test_rows_taken_from_a_split_table_are_whole_where_they_are_used(indices, then):
    table = np.arange(12, dtype=np.float32)
    f = mw.jit(lambda t, i: then(t[i]), in_shardings=(NamedSharding(MESH, P("x")), None))
    np.testing.assert_allclose(f(table, indices), np.asarray(then(mnp.asarray(table[indices]))), rtol=1e-6)
