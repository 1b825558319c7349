"""What several scatters add to one array is reduced once, and rows are picked where the picking is split."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P

MESH, LINE = mw.AbstractMesh((2, 4), ("a", "d")), mw.AbstractMesh((4,), ("d",))
WHOLE = P()
RNG = np.random.default_rng(5)
REDUCING = {"all_reduce", "reduce_scatter"}


def f32(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def partitioned(f: Any, args: Any, specs: Any, out: Any = WHOLE, mesh: Any = MESH) -> Any:
    on = [NamedSharding(mesh, s) for s in specs]
    part = mw.jit(f, in_shardings=tuple(on), out_shardings=NamedSharding(mesh, out)).lower(*args).partition()
    part.verify(*args, finite=0.5)
    return part


def reductions(part: Any) -> list[Any]:
    return [c for c in part.collectives if c.kind in REDUCING]


def rows(count: int, size: int) -> np.ndarray:
    return RNG.integers(0, size, count).astype(np.int32)


SPECIAL = np.array([np.inf, -np.inf, np.nan, -0.0, 0.0], np.float32)
KINDS = ("add", "max", "min", "multiply")


@pytest.mark.parametrize("spec", [P("d"), P(("a", "d"))], ids=str)
@pytest.mark.parametrize("count", [16, 13])
@pytest.mark.parametrize("kind", KINDS)
def test_one_reduction(kind, count, spec):
    def f(x: Any, i: Any, j: Any, u: Any) -> Any:
        once = getattr(x.at[i], kind)(u)
        return getattr(once.at[j], kind)(u * 2)

    u = f32(count, 3)
    u[:5, 1] = SPECIAL
    part = partitioned(f, (f32(7, 3), rows(count, 7), rows(count, 9), u), (P(), spec, spec, spec))
    assert len(reductions(part)) == 1


def test_a_sum_that_is_used_before_more_is_added():
    def f(x: Any, i: Any, u: Any) -> Any:
        once = x.at[i].add(u)
        return once.at[i].add(once[i] ** 2)

    part = partitioned(f, (f32(7, 3), rows(16, 7), f32(16, 3)), (P(), P("d"), P("d")))
    assert len(reductions(part)) == 2


def test_sums_over_other_axes_are_not_added_to():
    def f(x: Any, i: Any, u: Any, j: Any, v: Any) -> Any:
        return x.at[i].add(u).at[j].add(v)

    args = (f32(7, 3), rows(16, 7), f32(16, 3), rows(6, 7), f32(6, 3))
    partitioned(f, args, (P(), P("d"), P("d"), P("a"), P("a")))


def test_kinds_that_differ_are_reduced_between():
    def f(x: Any, i: Any, u: Any) -> Any:
        return x.at[i].add(u).at[i].max(u)

    part = partitioned(f, (f32(7, 3), rows(16, 7), f32(16, 3)), (P(), P("d"), P("d")))
    assert len(reductions(part)) == 2


@pytest.mark.parametrize("split", [P(None, "d"), P(None, ("a", "d"))], ids=str)
@pytest.mark.parametrize("count", [16, 13])
@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_that_adds_rows_to_an_array_reduces_it_once(kind, count, split):
    def f(x: Any, i: Any, u: Any) -> Any:
        return lax.scan(lambda c, r: (getattr(c.at[r[0]], kind)(r[1]), None), x, (i, u))[0]

    u = f32(5, count)
    u[1, :5] = SPECIAL
    part = partitioned(f, (f32(20), RNG.integers(-3, 22, (5, count)), u), (P(), split, split))
    (one,) = reductions(part)
    assert one.count == 1


def test_a_loop_that_also_uses_what_it_adds_to_does_not():
    def f(x: Any, i: Any, u: Any) -> Any:
        return lax.scan(lambda c, r: (c.at[r[0]].add(r[1]), c.max()), x, (i, u))

    def g(x: Any, i: Any, u: Any) -> Any:
        return lax.while_loop(lambda c: c[0].sum() < 100, lambda c: (c[0].at[i].add(u), c[1] + 1), (x, 0))

    args = f32(20), RNG.integers(-3, 22, (5, 16)), f32(5, 16)
    partitioned(f, args, (P(), P(None, "d"), P(None, "d")))
    partitioned(g, (args[0], args[1][0], abs(args[2][0])), (P(), P("d"), P("d")))


def test_counts_in_nested_loops():
    def f(i: Any, u: Any) -> Any:
        def outer(c: Any, rows: Any) -> Any:
            return lax.fori_loop(0, 3, lambda t, c: c.at[rows[0][t]].add(rows[1][t]).at[rows[0][t]].add(1.0), c), None

        return lax.scan(outer, mnp.zeros(9), (i, u))[0]

    partitioned(f, (RNG.integers(0, 9, (4, 3, 13)), f32(4, 3, 13)), (P(None, None, "d"), P(None, None, "d")))


def forces(i: Any, j: Any, size: int) -> Any:
    """The forces of springs between rows ``i`` and ``j`` of positions."""

    def force(x: Any) -> Any:
        d = x[j] - x[i]
        f = d * (mnp.sqrt((d * d).sum(-1, keepdims=True) + 1e-3) - 0.1)
        return mnp.zeros((size, 3)).at[i].add(f).at[j].add(-f)

    return force


def test_springs_in_a_loop():
    size, springs = 64, 150
    force = forces(rows(springs, size), rows(springs, size), size)
    x = f32(size, 3)

    def run(x: Any) -> Any:
        return lax.scan(lambda x, _: (x + 0.01 * force(x), None), x, None, length=4)[0]

    part = partitioned(run, (x,), (P("d"),), P("d"), LINE)
    assert part.bytes_sent == 4 * 2 * x.nbytes * 3 // 4  # a gather and a scattered sum in each step

    gradient = partitioned(mw.grad(lambda x: (run(x) ** 2).sum()), (x,), (P("d"),), P("d"), LINE)
    # Differences of rows are kept for the backward pass, and used in the forward pass: they are not left as sums.
    assert not any(c.operand.shape == (springs, 3) for c in reductions(gradient))
    assert gradient.work.redundancy < 2


def test_what_a_loop_stacks_along_a_split_dimension_may_be_split_along_another_inside():
    """A solver of tridiagonal systems, one for each column: the rows, one after the other, hold a part of each system,
    and of coefficients that are the same for all of them."""

    def solve(b: Any) -> Any:
        def eliminate(carry: Any, row: Any) -> Any:
            factor, last = carry
            scale = 2.5 - factor
            now = 1 / scale, (row + last) / scale
            return now, now

        zero = mnp.zeros(b.shape[1])
        _, (factors, right) = lax.scan(eliminate, (mnp.zeros(()), zero), b)

        def substitute(last: Any, step: Any) -> Any:
            factor, row = step
            now = row + factor * last
            return now, now

        return lax.scan(substitute, zero, (factors, right), reverse=True)[1]

    b = f32(32, 48)
    part = partitioned(solve, (b,), (P("d"),), P("d"), LINE)
    assert [c.kind for c in part.collectives] == ["all_to_all", "all_to_all"]
    assert part.work.redundancy < 1.2
    both = partitioned(lambda b: solve(solve(b).T).T, (b,), (P("d"),), P("d"), LINE)
    assert [c.kind for c in both.collectives] == ["all_to_all", "all_to_all"]
