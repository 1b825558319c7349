"""Arrays without elements: every op of which a dimension is emptied, under shardings of all dimensions, the empty ones
too, is what it is on one device."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from samples import DISTINCT, Sample
from sharding_harness import MESH, failures, partitioned_cases, report

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding
from meshwright import PartitionSpec as P
from meshwright.core.avals import ShapedArray
from meshwright.errors import MeshwrightError
from meshwright.ir.op import Op
from meshwright.ir.tracing import typeof
from meshwright.runtime.eager import single_op_jaxpr


def results(op: Op, avals: list[ShapedArray]) -> list[ShapedArray]:
    outs = op.infer(*avals)
    return list(outs) if op.multiple_results else [outs]


def with_shapes(op: Op, before: list[ShapedArray], after: list[tuple[int, ...]]) -> Iterator[Op]:
    """The op, and the op with its parameters that are the shape of a result made to fit."""
    yield op
    changed = {
        field.name: new
        for field in dataclasses.fields(op)
        for old, new in zip((a.shape for a in before), after)
        if getattr(op, field.name, None) == old and old
    }
    if changed:
        yield dataclasses.replace(op, **changed)


def emptied(sample: Sample) -> Iterator[tuple[str, Op, list[np.ndarray]]]:
    """The sample with all dimensions of one factor, or all dimensions, empty; those that the op allows."""
    avals = [typeof(x) for x in sample.args]
    rule = sample.op.sharding_rule(*avals)
    choices: list[Any] = [[f] for f in range(len(rule.factors))]
    for factors in [*choices, list(range(len(rule.factors)))]:
        values = [
            x[tuple(slice(0) if set(fs) & set(factors) else slice(None) for fs in dims)]
            for x, dims in zip(sample.args, rule.operands)
        ]
        if all(x.shape == y.shape for x, y in zip(values, sample.args)):
            continue
        before = results(sample.op, avals)
        after = [
            tuple(0 if set(fs) & set(factors) else n for n, fs in zip(a.shape, dims))
            for a, dims in zip(before, rule.results)
        ]
        for op in with_shapes(sample.op, before, after):
            try:
                results(op, [typeof(x) for x in values])
            except MeshwrightError:
                continue
            yield f"factors {factors} empty", op, values
            break


@pytest.mark.parametrize("sample", [s for s in DISTINCT if any(x.ndim for x in s.args)], ids=lambda s: s.id)
def test_nothing_is_partitioned_as_something(sample: Sample) -> None:
    found: list[str] = []
    for label, op, values in emptied(sample):
        program = single_op_jaxpr(op, [typeof(x) for x in values])
        found += [f"{label}: {f}" for f in failures(program, values, partitioned_cases(program, 4, [MESH]))]
    report(found)


MESHES = [mw.AbstractMesh((n,), ("x",)) for n in (3, 4)]
X = np.arange(16, dtype=np.float32).reshape(8, 2)
NONE = np.zeros((0, 2), np.float32)


@pytest.mark.parametrize(
    "fun",
    [
        lambda x, e: x[5:5], lambda x, e: x[8::2], lambda x, e: x[3:3:2], lambda x, e: x[0:0:-1],
        lambda x, e: mw.lax.slice(x, (3, 0), (3, 2), (2, 1)), lambda x, e: mw.lax.slice(x, (8, 0), (8, 2), (3, 1)),
        lambda x, e: mnp.concatenate([e, e]), lambda x, e: mnp.concatenate([e, x, e]),
        lambda x, e: mnp.concatenate([x[:1:2], x[1:1:2]]), lambda x, e: mnp.stack([e, e], 1),
        lambda x, e: e.sum(0), lambda x, e: e.T @ e, lambda x, e: x @ e.T, lambda x, e: mnp.pad(e, ((2, 1), (0, 0))),
        lambda x, e: mnp.sort(e, 0), lambda x, e: mnp.cumsum(e, 0), lambda x, e: x[np.zeros(0, np.int32)],
        lambda x, e: mnp.roll(e, 1, 0), lambda x, e: e.reshape(2, 0), lambda x, e: e[::-1],
        lambda x, e: mnp.tile(e, (3, 1)), lambda x, e: mnp.where(e > 0, e, 0), lambda x, e: mnp.repeat(e, 2, 0),
        lambda x, e: x.at[5:5].set(1.0),
        lambda x, e: mw.lax.associative_scan(mnp.add, x), lambda x, e: mw.lax.associative_scan(mnp.add, x[:5]),
        lambda x, e: mw.lax.associative_scan(mnp.add, e), lambda x, e: mw.lax.scan(lambda c, y: (c + y, c), x[0], e),
        lambda x, e: mw.vmap(mnp.sum)(e), lambda x, e: mw.grad(lambda e: (e * 2).sum())(e),
        lambda x, e: mw.grad(lambda x: mnp.concatenate([x[4:4], x]).sum())(x),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mesh", MESHES, ids=lambda m: f"{m.size} devices")
def test_empty_parts_of_split_arrays(fun: Any, mesh: mw.AbstractMesh) -> None:
    rows = NamedSharding(mesh, P("x"))
    part = mw.jit(fun, in_shardings=(rows, rows)).lower(X, NONE).partition()
    part.verify(X, NONE)
    assert not part.collectives or any(x.size for x in part.out_avals), "nothing is sent for nothing"
    part.as_text("hlo")
