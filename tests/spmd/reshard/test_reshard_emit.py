"""Emitted reshards are the identity: plans between all pairs of layouts, run on the virtual mesh.

What lies in the padding is made garbage first. Partial values are given as terms that differ between devices.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright.core.avals import ShapedArray
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.state import extend_axis_env, set_trace
from meshwright.ir.tracing import JaxprTrace, eval_jaxpr, trace_to_jaxpr, typeof
from meshwright.ir.verify import verify
from meshwright.lowering.batched import virtual_program
from meshwright.ops.elementwise.table import add, convert, eq, lt, mul, select, sub
from meshwright.ops.shape.broadcast_reduce import broadcast_in_dim, iota
from meshwright.runtime.array import default_sharding
from meshwright.runtime.compiling import compile_jaxpr
from meshwright.sharding import AbstractMesh, Layout
from meshwright.spmd.partition.result import Partition
from meshwright.spmd.propagate import Propagation
from meshwright.spmd.reshard.emit import emit_step, tile_index
from meshwright.spmd.reshard.plan import plan_reshard
from meshwright.spmd.reshard.steps import Exchange, Overlap

MESHES = {
    "4x2": AbstractMesh((4, 2), ("x", "y")),
    "2x2x2": AbstractMesh((2, 2, 2), ("x", "y", "z")),
    "6": AbstractMesh((6,), ("x",)),
}
GARBAGE = 1_000_003
LARGE = 1 << 24  # bytes of an element that plans are for: bytes decide, not the number of collectives


def layouts(rank: int, mesh: AbstractMesh, most: int = 3) -> list[Layout]:
    """Every layout of up to ``most`` atoms, in every order."""
    found = []
    for n in range(min(most, len(mesh.atoms)) + 1):
        for atoms in itertools.permutations(mesh.atoms, n):
            for cuts in itertools.combinations_with_replacement(range(n + 1), rank - 1):
                edges = [0, *cuts, n]
                found.append(Layout(tuple(atoms[a:b] for a, b in itertools.pairwise(edges))))
    return list(dict.fromkeys(found))


def with_partials(options: Sequence[Layout], mesh: AbstractMesh) -> Iterator[Layout]:
    """Each layout, partial over one unused atom or all of them."""
    for layout in options:
        free = tuple(a for a in mesh.atoms if a not in layout.axes_used)
        for axes in dict.fromkeys((free, free[-1:])):
            for kind in ("sum", "max") if axes else ():
                yield layout.with_partial(axes, kind, mesh)


def _garbage(x: Any, shape: Sequence[int], layout: Layout, mesh: AbstractMesh) -> Any:
    for d, axes in enumerate(layout.dims):
        rows = typeof(x).shape[d]
        if shape[d] != rows * mesh.sizes(axes):
            first = mul(tile_index(axes, mesh), np.int32(rows))
            inside = lt(add(iota(np.int32, (rows,), 0), first), np.int32(shape[d]))
            inside = broadcast_in_dim(inside, typeof(x).shape, (d,))
            x = select(inside, x, broadcast_in_dim(np.array(GARBAGE, np.int32), typeof(x).shape, ()))
    return x


def _term(x: Any, layout: Layout, mesh: AbstractMesh) -> Any:
    """This device's term of a partial value that is ``x``."""
    if not layout.partial:
        return x
    index, n = tile_index(layout.partial, mesh), mesh.sizes(layout.partial)
    if layout.reduction == "max":
        return sub(x, select(eq(index, np.int32(n - 1)), np.int32(0), np.int32(5)))
    first = np.int32(1 - sum(range(2, n + 1)))
    return mul(x, convert(select(eq(index, np.int32(0)), first, add(index, np.int32(1))), np.dtype(np.int32)))


def _emit(x: Any, shape: tuple[int, ...], src: Layout, dst: Layout, mesh: AbstractMesh) -> Any:
    before = src
    plan = plan_reshard(shape, LARGE, src, dst, mesh)
    for (step, after), padded in zip(plan.steps, plan.shapes):
        x = emit_step(x, step, padded, after, mesh)
        assert typeof(x).shape == after.local_shape(padded, mesh), (
            f"{src} -> {dst}: {step} made {typeof(x)} for {after}"
        )
        before = after
    assert before == dst
    return x


def program(shape: tuple[int, ...], src: Layout, dst: Layout, mesh: AbstractMesh) -> ClosedJaxpr:
    """The reshard between whole arrays; a partial target is combined by a plan of its own."""
    aval = ShapedArray(shape, np.dtype(np.int32))
    trace = JaxprTrace()
    with extend_axis_env({**mesh.shape, **{a: mesh.axis_size(a) for a in mesh.atoms}}), set_trace(trace):
        x = trace.new_arg(aval.update(shape=src.local_shape(shape, mesh)))
        y = _garbage(_term(x, src, mesh), shape, src, mesh)
        y = _emit(y, shape, src, dst, mesh)
        y = _emit(y, shape, dst, dst.drop_partial(), mesh)
    local = trace.finish([y])
    verify(local)
    identity = trace_to_jaxpr(lambda v: [v], [aval])
    part = Partition(local, mesh, [src.drop_partial()], [dst.drop_partial()], identity, Propagation(mesh))
    whole = virtual_program(part)
    verify(whole)
    return whole


def check(shape: tuple[int, ...], pairs: Sequence[tuple[Layout, Layout]], mesh: AbstractMesh) -> None:
    """Run all pairs, many in one compilation."""
    x = np.random.default_rng(0).permutation(int(np.prod(shape))).reshape(shape).astype(np.int32)
    wrong = []
    for i in range(0, len(pairs), 300):
        some = pairs[i : i + 300]
        programs = [program(shape, src, dst, mesh) for src, dst in some]
        aval = ShapedArray(shape, np.dtype(np.int32))
        every = trace_to_jaxpr(lambda v, ps=programs: [eval_jaxpr(p, p.consts, v)[0] for p in ps], [aval])
        outs = compile_jaxpr(every, "reshards", [default_sharding()] * len(some))([x])
        wrong += [f"{s} -> {d}" for (s, d), y in zip(some, outs) if not np.array_equal(np.asarray(y), x)]
    assert not wrong, f"{len(wrong)} of {len(pairs)} reshards of {shape} change the array: {wrong[:5]}"


def chosen(pairs: Sequence[tuple[Layout, Layout]], limit: int) -> list[tuple[Layout, Layout]]:
    """``limit`` of the pairs, the same in every run."""
    if len(pairs) <= limit:
        return list(pairs)
    return [pairs[i] for i in sorted(np.random.default_rng(1).choice(len(pairs), limit, replace=False))]


CASES = [
    ("4x2", (8, 16)), ("4x2", (5, 3)), ("4x2", (8, 4, 2)), ("4x2", (3, 7, 2)), ("4x2", (1, 6)),
    ("2x2x2", (8, 8)), ("2x2x2", (7, 5)), ("2x2x2", (5, 2, 6)), ("6", (6, 12)), ("6", (5, 9)), ("6", (4, 7, 3)),
]  # fmt: skip
IDS = [f"{m}-{'x'.join(map(str, s))}" for m, s in CASES]


@pytest.mark.parametrize(("mesh", "shape"), CASES, ids=IDS)
def test_some_pairs(mesh: str, shape: tuple[int, ...]) -> None:
    options = layouts(len(shape), MESHES[mesh])
    check(shape, chosen(list(itertools.product(options, repeat=2)), 6), MESHES[mesh])


@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "shape"), CASES, ids=IDS)
def test_all_pairs(mesh: str, shape: tuple[int, ...]) -> None:
    options = layouts(len(shape), MESHES[mesh])
    check(shape, chosen(list(itertools.product(options, repeat=2)), 6000), MESHES[mesh])


@pytest.mark.parametrize(("mesh", "shape"), CASES, ids=IDS)
def test_partial_sources_and_targets(mesh: str, shape: tuple[int, ...]) -> None:
    options = layouts(len(shape), MESHES[mesh], 2)
    partial = list(with_partials(options, MESHES[mesh]))
    pairs = [*itertools.product(partial, options), *itertools.product(partial, partial)]
    check(shape, chosen(pairs, 16), MESHES[mesh])


def test_one_row_is_its_own_first_tile() -> None:
    mesh = MESHES["4x2"]
    aval = ShapedArray((1, 6), np.dtype(np.int32))
    split = Layout((mesh.atoms_of("x"), ()))
    with extend_axis_env(mesh.shape), set_trace(JaxprTrace()) as trace:
        x = trace.new_arg(aval)
        assert _emit(x, aval.shape, Layout(((), ())), split, mesh) is x


def test_what_is_received_is_passed_on() -> None:
    """Six of eight devices hold rows, and four will hold the same columns."""
    mesh, shape = MESHES["4x2"], (31, 17, 29)
    split = ("y", *mesh.atoms_of("x"))
    src, dst = Layout(((), split, ())), Layout(((), (), ("y",)))
    (step,) = (step for step, _ in plan_reshard(shape, LARGE, src, dst, mesh).steps)
    assert isinstance(step, Overlap) and any(any(turn.relays) for turn in step.plan(mesh).rounds)
    check(shape, [(src, dst)], mesh)


def test_what_is_passed_on_may_be_larger_than_the_tile_before() -> None:
    """A row of each device's tile is joined to columns of 5."""
    mesh, shape = MESHES["4x2"], (5, 17)
    x = mesh.atoms_of("x")
    src, dst = Layout((("y", *x), ())), Layout(((), x))
    (step,) = (step for step, _ in plan_reshard(shape, LARGE, src, dst, mesh).steps if isinstance(step, Overlap))
    old = step.before.rows(mesh)
    assert any(rows > old[0] or columns > old[1] for rows, columns in (turn.chunk for turn in step.plan(mesh).rounds))
    check(shape, [(src, dst)], mesh)


@pytest.mark.parametrize("shape", [(8, 8, 8), (8, 16, 8)], ids=str)
def test_exchanges(shape: tuple[int, ...]) -> None:
    """Several dimensions at once, in one all-to-all and in rounds: pairs whose plan has an exchange."""
    mesh = MESHES["2x2x2"]
    found: dict[bool, list[tuple[Layout, Layout]]] = {True: [], False: []}
    for src, dst in chosen(list(itertools.product(layouts(3, mesh), repeat=2)), 500):
        steps = [s for s, _ in plan_reshard(shape, LARGE, src, dst, mesh).steps if isinstance(s, Exchange)]
        if steps:
            found[steps[0].rounds > 1].append((src, dst))
    assert found[True] and found[False]
    for pairs in found.values():
        check(shape, chosen(pairs, 5), mesh)


@pytest.mark.filterwarnings("ignore::meshwright.errors.PaddingWarning")
def test_parts_of_tiles_on_the_way_are_not_taken_for_tiles() -> None:
    """Of two tiles of 3 rows, devices first get halves; they begin at other rows than the four tiles asked for next."""
    mesh = mw.make_mesh((2, 2), ("x", "y"))
    src, parts, tiles = (mw.NamedSharding(mesh, mw.P(axes)) for axes in (("x", "y"), "y", ("y", "x")))

    def f(x):
        return mw.with_sharding_constraint(x, parts) * 2, mw.with_sharding_constraint(x, tiles) * 3

    x = np.arange(5 << 17, dtype=np.float32).reshape(5, 1 << 17)
    for times, found in zip((2, 3), mw.jit(f, in_shardings=src, out_shardings=(parts, tiles))(x)):
        assert np.array_equal(found, x * times)
