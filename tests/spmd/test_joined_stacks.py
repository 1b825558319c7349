"""Stacks of concatenations become concatenations with the array whose rows are stacked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P
from meshwright.ir.jaxpr import all_eqns
from meshwright.ir.passes import DEAD_CODE, INLINE, run_passes
from meshwright.ir.tracing import eval_jaxpr
from meshwright.ir.verify import verify
from meshwright.ops.shape.joined_stacks import joined_stacks

FACES, N = 4, 16
X = np.random.default_rng(0).normal(size=(FACES, N, N)).astype(np.float32)


def extended(x: Any, order: Any = range(FACES), axis: int = 0) -> Any:
    """Each face between edges of its neighbours, along both dimensions."""
    faces = []
    for f in order:
        middle = mnp.concatenate([x[f - 1, :, -1:], x[f], x[f - 3, :, :1]], 1)
        below, above = (mnp.concatenate([row[:1], row, row[-1:]])[None] for row in (x[f - 2, -1], x[f - 3, 0]))
        faces.append(mnp.concatenate([below, middle, above], 0))
    return mnp.stack(faces, axis)


def last(x: Any) -> Any:
    """Rows of the last dimension."""
    return mnp.stack([mnp.concatenate([x[..., n], x[:1, :, 0]], 0) for n in range(N)], 2)


def unequal(x: Any) -> Any:
    """Concatenations of the same size, at other places."""
    sides = [(x[f, :1], x[f]) for f in range(FACES)]
    return mnp.stack([mnp.concatenate(pair[:: 1 - 2 * (f % 2)]) for f, pair in enumerate(sides)])


def needed(x: Any) -> Any:
    """Concatenations that are needed by themselves."""
    rows = [mnp.concatenate([x[f], x[f, :1]]) for f in range(FACES)]
    return mnp.stack(rows), rows[1]


#: functions of f32[4, 16, 16], and whether the array is concatenated as it is
FUNCTIONS = {
    "faces": (extended, True),
    "in a loop": (lambda x: mw.lax.fori_loop(0, 3, lambda _, x: extended(x)[:, 1:-1, 1:-1] / 2, x), True),
    "last": (last, True),
    "another order": (lambda x: extended(x, [1, 0, 2, 3]), False),
    "some rows": (lambda x: extended(x, [0, 1, 2]), False),
    "another dimension": (lambda x: extended(x, axis=1), False),
    "unequal": (unequal, False),
    "needed": (needed, False),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name):
    f, joins = FUNCTIONS[name]
    jaxpr = run_passes(mw.make_jaxpr(f)(X), (INLINE, DEAD_CODE))
    rewritten = run_passes(joined_stacks(jaxpr), (DEAD_CODE,))
    verify(rewritten)
    assert (rewritten is jaxpr) != joins
    joined = [e for e in all_eqns(rewritten.jaxpr) if e.op.name == "concatenate"]
    assert any(X.shape in {a.aval.shape for a in e.invars} for e in joined) == joins
    for ours, theirs in zip(mw.tree.leaves(eval_jaxpr(rewritten, rewritten.consts, X)), mw.tree.leaves(f(X))):
        np.testing.assert_array_equal(ours, theirs)


def test_faces_move_once():
    """Edges alone are sent, and rows whose tiles differ; each face was moved to tiles of its own."""
    mesh = mw.AbstractMesh((2, 4), ("y", "x"))
    split = mw.NamedSharding(mesh, P(None, "y", "x"))
    part = mw.jit(extended, in_shardings=split).lower(X).partition()
    assert part.verify(X)
    assert len(part.collectives) < 30, part.explain()
