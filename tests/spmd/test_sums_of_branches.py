"""Sums that branches leave are completed behind them, with the sums that they are added to."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P
from meshwright import lax

MESH = mw.AbstractMesh((8,), ("x",))


def array(*shape: int, axis: str | None = None, at: int = 0, dtype: Any = np.float32) -> Any:
    spec = P(*[axis if d == at else None for d in range(len(shape))])
    return mw.ShapeDtypeStruct(shape, dtype, sharding=mw.NamedSharding(MESH, spec))


ARGS = (
    array(dtype=np.int32), array(16, 32, axis="x", at=1), array(32, 8, axis="x"), array(32, 8, axis="x"),
    array(16, 8),
)  # fmt: skip
#: an all-reduce of the result
ONE = ("all_reduce", 2 * 7 * 16 * 8 * 4 // 8)


def sent(f: Any) -> list[tuple[str, int]]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        part = mw.jit(f, out_shardings=mw.NamedSharding(MESH, P())).lower(*ARGS).partition()
    part.verify()
    return [(c.kind, c.bytes_sent) for c in part.collectives]


def chosen(n: Any, x: Any, w: Any, v: Any) -> Any:
    return lax.cond(n > 0, lambda x: x @ w, lambda x: (2 * x) @ v, x)


def accumulated(n: Any, x: Any, w: Any, v: Any, b: Any) -> Any:
    return lax.fori_loop(0, 6, lambda i, acc: acc + chosen(n + i, x, w, v), mnp.zeros((16, 8)))


@pytest.mark.parametrize(
    "f",
    [
        lambda n, x, w, v, b: chosen(n, x, w, v),
        lambda n, x, w, v, b: chosen(n, x, w, v) + x @ v,
        lambda n, x, w, v, b: lax.cond(n > 0, lambda: x @ w, lambda: mnp.zeros((16, 8))) + x @ v,
        lambda n, x, w, v, b: lax.cond(n > 0, lambda: x @ w, lambda: b) + x @ v,
        lambda n, x, w, v, b: lax.switch(n, [lambda: x @ w, lambda: x @ v, lambda: x @ w - x @ v]) + x @ v,
        lambda n, x, w, v, b: chosen(n, x, w, v) - chosen(2 - n, x, v, w),
        lambda n, x, w, v, b: lax.cond(n > 0, lambda: chosen(n - 2, x, w, v), lambda: x @ w) + x @ w,
        accumulated,
    ],
    ids=["alone", "added", "or zeros", "or whole", "switch", "two", "nested", "in a loop"],
)
def test_one_sum(f: Any) -> None:
    assert sent(f) == [ONE]


def test_a_branch_without_a_sum_sends_nothing_for_that_of_the_other() -> None:
    """Behind the branches every run would add up."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f = lambda n, x, w, v, b: lax.cond(n > 0, lambda: x @ w, lambda: b)  # noqa: E731
        part = mw.jit(f, out_shardings=mw.NamedSharding(MESH, P())).lower(*ARGS).partition()
    assert not any(e.op.name == "psum" for e in part.jaxpr.eqns)
    assert [(c.kind, c.bytes_sent) for c in part.collectives] == [ONE]


def test_results_of_control_flow_that_nobody_uses_are_not_computed() -> None:
    def both(n: Any, x: Any, w: Any, v: Any, b: Any) -> Any:
        return lax.cond(n > 0, lambda: (mnp.sin(b), x @ w), lambda: (b, x @ v))[0]

    assert sent(both) == []
    part = mw.jit(both).lower(*ARGS).partition()
    assert "dot_general" not in str(part.jaxpr)


def test_a_branch_gets_what_an_operand_would_be_cut_out_of():
    """The result is in tiles, and so is the operand in the other branch; the product needs all of its columns."""
    split = mw.NamedSharding(MESH, P(None, "x"))
    args = array(dtype=np.int32), array(16, 32), array(32, 32, axis="x", at=1)
    run = mw.jit(lambda n, x, w: lax.cond(n > 0, lambda x: x @ w, mnp.tanh, x), out_shardings=split)
    part = run.lower(*args).partition()
    part.verify()
    assert not part.collectives
    assert part.work.redundancy < 1.01
