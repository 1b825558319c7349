"""Collectives over groups of devices, as programs write them, against NumPy on the arrays of eight devices: groups that
are sub-grids of a mesh, in any order, and groups that are none."""
# ruff: noqa: E501 -- lines of program texts

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright.errors import ImportProgramError, ShardingError

N = 8
#: each device's array has shape (4, 8)
X = np.random.default_rng(5).normal(size=(N * 4, 8)).astype(np.float32)
PARTS = np.split(X, N)

Groups = Sequence[Sequence[int]]
PAIRS = [[0, 1], [2, 3], [4, 5], [6, 7]]
FAR = [[0, 4], [1, 5], [2, 6], [3, 7]]
TURNED = [[6, 2, 4, 0], [7, 3, 5, 1]]
ALL = [[0, 1, 2, 3, 4, 5, 6, 7]]
RING = [[3, 0, 6, 1], [7, 2, 5, 4]]
#: not all differ along the same axes
ODD = [[0, 1], [2, 4], [3, 6], [5, 7]]
FEW = [[1, 0], [5, 6]]


def text(operation: str, shape: str = "4x8", whole: str = "32x8", dtype: str = "f32") -> str:
    """A manual region along all eight devices, in which ``operation`` makes ``%r`` of ``%a``."""
    return f"""module attributes {{mhlo.num_partitions = 8 : i32}} {{
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main(%x: tensor<32x8x{dtype}>) -> tensor<{whole}x{dtype}> {{
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{{"x", "y"}}, {{}}]>] out_shardings=[<@mesh, [{{"x", "y"}}, {{}}]>] manual_axes={{"x", "y"}} (%a: tensor<4x8x{dtype}>) {{
      {operation}
      sdy.return %r : tensor<{shape}x{dtype}>
    }} : (tensor<32x8x{dtype}>) -> tensor<{whole}x{dtype}>
    return %0 : tensor<{whole}x{dtype}>
  }}
}}"""


def dense(rows: Groups) -> str:
    return f"dense<{[list(r) for r in rows]}> : tensor<{len(rows)}x{len(rows[0])}xi64>"


CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"


def all_reduce(groups: Groups, op: str = "add", dtype: str = "f32") -> str:
    return f"""%r = "stablehlo.all_reduce"(%a) <{{{CHANNEL}, replica_groups = {dense(groups)}, use_global_device_ids}}> ({{
      ^bb0(%p: tensor<{dtype}>, %q: tensor<{dtype}>):
        %s = stablehlo.{op} %p, %q : tensor<{dtype}>
        stablehlo.return %s : tensor<{dtype}>
      }}) : (tensor<4x8x{dtype}>) -> tensor<4x8x{dtype}>"""


def permute(pairs: Groups) -> str:
    return f"""%r = "stablehlo.collective_permute"(%a) <{{{CHANNEL}, source_target_pairs = {dense(pairs)}}}> : (tensor<4x8xf32>) -> tensor<4x8xf32>"""


def in_groups(groups: Groups, fun: Callable[[list[np.ndarray], int], np.ndarray]) -> np.ndarray:
    """``fun`` of the arrays of a device's group and its place there; zeros outside of groups."""
    shape = fun([PARTS[d] for d in groups[0]], 0).shape
    outs = [np.zeros(shape, np.float32)] * N
    for group in groups:
        for i, d in enumerate(group):
            outs[d] = fun([PARTS[m] for m in group], i)
    return np.concatenate(outs)


def run(program: str, x: np.ndarray = X) -> tuple[Any, Any]:
    """The partitioned program's result, the same as the whole program's, and the partitioned program."""
    loaded = mw.load(program)
    part = loaded.partition()
    (got,) = part.executable([x])
    np.testing.assert_allclose(np.asarray(got), np.asarray(loaded(x)), rtol=1e-6)
    return np.asarray(got), part


def axes(part: Any) -> list[tuple[str, ...]]:
    return [c.axes for c in part.collectives]


@pytest.mark.parametrize(
    ("groups", "along"),
    [
        (PAIRS, ("y:(2)2",)),
        (FAR, ("x",)),
        (TURNED, ("x", "y:(1)2")),
        (ALL, ("x", "y")),
        (RING, ("x", "y")),
        (ODD, ("x", "y")),
    ],
)
def test_all_reduce(groups: Groups, along: tuple[str, ...]) -> None:
    got, part = run(text(all_reduce(groups)))
    np.testing.assert_allclose(got, in_groups(groups, lambda xs, i: sum(xs)), rtol=1e-5, atol=1e-5)
    # In what is no sub-grid, each member sends to all others.
    steps = len(groups[0]) - 1 if groups in (RING, ODD) else 0
    expected = [("collective_permute", along)] * steps or [("all_reduce", along)]
    assert [(c.kind, c.axes) for c in part.collectives] == expected


@pytest.mark.parametrize(("op", "fun"), [("maximum", np.max), ("minimum", np.min), ("multiply", np.prod)])
def test_reductions(op: str, fun: Any) -> None:
    for groups in (PAIRS, ODD):
        got, _ = run(text(all_reduce(groups, op)))
        np.testing.assert_allclose(got, in_groups(groups, lambda xs, i: fun(xs, axis=0)), rtol=1e-5)


@pytest.mark.parametrize(("op", "fun"), [("and", np.bitwise_and), ("or", np.bitwise_or)])
def test_bitwise_reductions(op: str, fun: Any) -> None:
    x = np.random.default_rng(0).integers(0, 255, (32, 8)).astype(np.int32)
    got, _ = run(text(all_reduce(FAR, op, "i32"), dtype="i32"), x)
    parts = np.split(x, N)
    np.testing.assert_array_equal(got, np.concatenate([fun.reduce([parts[d % 4], parts[d % 4 + 4]]) for d in range(N)]))


@pytest.mark.parametrize("groups", [PAIRS, FAR, TURNED, RING, ODD, [RING[0] + RING[1]]])
def test_all_gather(groups: Groups) -> None:
    n = len(groups[0])
    body = f"""%r = "stablehlo.all_gather"(%a) <{{all_gather_dim = 1 : i64, {CHANNEL}, replica_groups = {dense(groups)}, use_global_device_ids}}> : (tensor<4x8xf32>) -> tensor<4x{8 * n}xf32>"""
    got, _ = run(text(body, f"4x{8 * n}", f"32x{8 * n}"))
    np.testing.assert_array_equal(got, in_groups(groups, lambda xs, i: np.concatenate(xs, 1)))


@pytest.mark.parametrize("groups", [PAIRS, TURNED, RING, ODD])
def test_reduce_scatter(groups: Groups) -> None:
    n = len(groups[0])
    body = all_reduce(groups).replace("all_reduce", "reduce_scatter").replace("<{", "<{scatter_dimension = 1 : i64, ")
    body = body.replace("-> tensor<4x8xf32>", f"-> tensor<4x{8 // n}xf32>")
    got, _ = run(text(body, f"4x{8 // n}", f"32x{8 // n}"))
    np.testing.assert_allclose(got, in_groups(groups, lambda xs, i: np.split(sum(xs), n, 1)[i]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("split", "concat"), [(1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("groups", [PAIRS, FAR, RING, ODD])
def test_all_to_all(groups: Groups, split: int, concat: int) -> None:
    n = len(groups[0])
    shape = [4, 8]
    shape[split] //= n
    shape[concat] *= n
    result = f"{shape[0]}x{shape[1]}"
    body = f"""%r = "stablehlo.all_to_all"(%a) <{{split_dimension = {split} : i64, concat_dimension = {concat} : i64, split_count = {n} : i64, {CHANNEL}, replica_groups = {dense(groups)}}}> : (tensor<4x8xf32>) -> tensor<{result}xf32>"""
    got, _ = run(text(body, result, f"{shape[0] * N}x{shape[1]}"))
    want = in_groups(groups, lambda xs, i: np.concatenate([np.split(x, n, split)[i] for x in xs], concat))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("pairs", "along"),
    [
        ([[0, 4], [1, 5], [2, 6], [3, 7]], ("x",)),
        ([[0, 1], [4, 5], [1, 2], [5, 6]], ("y",)),
        ([[0, 7], [3, 0]], ("x", "y")),
        ([[0, 1], [2, 3], [4, 5], [6, 7]], ("y:(2)2",)),
    ],
)
def test_collective_permute(pairs: Groups, along: tuple[str, ...]) -> None:
    got, part = run(text(permute(pairs)))
    source = {t: s for s, t in pairs}
    np.testing.assert_array_equal(
        got, np.concatenate([PARTS[source[d]] if d in source else 0 * PARTS[d] for d in range(N)])
    )
    assert axes(part) == [along]


@pytest.mark.parametrize("groups", [PAIRS, TURNED, RING, FEW])
def test_collective_broadcast(groups: Groups) -> None:
    body = f"""%r = "stablehlo.collective_broadcast"(%a) <{{{CHANNEL}, replica_groups = {dense(groups)}}}> : (tensor<4x8xf32>) -> tensor<4x8xf32>"""
    got, _ = run(text(body))
    np.testing.assert_allclose(got, in_groups(groups, lambda xs, i: xs[0]), rtol=1e-6)


NUMBER = """%n = stablehlo.partition_id : tensor<ui32>
      %f = stablehlo.convert %n : (tensor<ui32>) -> tensor<f32>
      %r = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<4x8xf32>"""


def test_device_numbers() -> None:
    got, _ = run(text(NUMBER))
    np.testing.assert_array_equal(got[:, 0], np.repeat(np.arange(N), 4))
    order = [3, 0, 6, 1, 7, 2, 5, 4]
    got, _ = run(text(NUMBER).replace('"y"=4]>', f'"y"=4], device_ids={order}>'))
    np.testing.assert_array_equal(got[:, 0], np.repeat(order, 4))
    got, _ = run(text(NUMBER.replace("partition_id", "replica_id")))
    np.testing.assert_array_equal(got, 0)


def test_groups_of_replicas_and_partitions() -> None:
    """Without a channel groups number replicas, of which there is one; without global numbers all partitions join."""
    alone = all_reduce([[0]]).replace(CHANNEL + ", ", "").replace(", use_global_device_ids", "")
    got, part = run(text(alone))
    np.testing.assert_array_equal(got, X)
    assert not part.collectives
    together = all_reduce([[0]]).replace(", use_global_device_ids", "")
    got, part = run(text(together))
    np.testing.assert_allclose(got, np.tile(sum(PARTS), (N, 1)), rtol=1e-5, atol=1e-5)
    assert axes(part) == [("x", "y")]


HLO = """HloModule region, num_partitions=8

add {
  p = f32[] parameter(0)
  q = f32[] parameter(1)
  ROOT s = f32[] add(p, q)
}

ENTRY main {
  x = f32[32,8] parameter(0), sharding={devices=[8,1]<=[8]}
  a = f32[4,8] custom-call(x), custom_call_target="SPMDFullToShardShape", sharding={manual}
  sum = f32[4,8] all-reduce(a), channel_id=1, replica_groups={{0,4},{1,5},{2,6},{3,7}}, use_global_device_ids=true, to_apply=add, sharding={manual}
  moved = f32[4,8] collective-permute(sum), channel_id=2, source_target_pairs={{0,1},{1,2},{4,5},{5,6}}, sharding={manual}
  number = u32[] partition-id(), sharding={manual}
  float = f32[] convert(number), sharding={manual}
  numbers = f32[4,8] broadcast(float), dimensions={}, sharding={manual}
  both = f32[4,8] add(moved, numbers), sharding={manual}
  ROOT y = f32[32,8] custom-call(both), custom_call_target="SPMDShardToFullShape", sharding={devices=[8,1]<=[8]}
}
"""


def test_hlo_text() -> None:
    """The groups of the sum make the mesh two axes, which one annotation alone would not."""
    program = mw.load(HLO)
    assert program.mesh.axis_sizes == (2, 4)
    got, part = run(HLO)
    sums = [PARTS[d % 4] + PARTS[d % 4 + 4] for d in range(N)]
    moved = [sums[d - 1] if d in (1, 2, 5, 6) else 0 * sums[d] for d in range(N)]
    np.testing.assert_allclose(got, np.concatenate([m + d for d, m in enumerate(moved)]), rtol=1e-5, atol=1e-5)
    assert axes(part) == [("x0",), ("x1",)]


# --- bad input ----------------------------------------------------------------------------------------------
def refused(program: str, match: str) -> None:
    with pytest.raises((ImportProgramError, ShardingError), match=match):
        mw.load(program).partition()


@pytest.mark.parametrize(
    ("program", "match"),
    [
        (text(all_reduce([[0, 1], [1, 2]])), r"<text>:5:12: replica id #1 seen more than once"),
        (text(all_reduce([[0, 9]])), r"<text>:5:12: replica id #1 not seen in replica groups"),
        (
            text(permute([[0, 9]])),
            r"<text>:5: stablehlo.collective_permute: .*name device 9; the program has devices 0 to 7",
        ),
        (text(all_reduce([[0, 1, 2], [3, 4, -1]])), r"<text>:5: stablehlo.all_reduce: .*differ in size"),
        (text(all_reduce([[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]])), r"<text>:5: .*name device 9; the program has"),
        (text(all_reduce(PAIRS, "subtract")), r"<text>:5: .*reduces by something else"),
        (text(all_reduce(PAIRS)).replace("num_partitions = 8", "num_replicas = 8"), r"<text>:5: .*already partitioned"),
        (
            HLO.replace("devices=[8,1]<=[8]", "devices=[4,1,2]<=[8] last_tile_dim_replicate"),
            r"manual_computation at .*operand 0 is .* is not",
        ),
    ],
)
def test_wrong_groups(program: str, match: str) -> None:
    refused(program, match)


def test_groups_along_automatic_axes() -> None:
    program = (
        text(all_reduce(PAIRS))
        .replace('[{"x", "y"}, {}]', '[{"x", ?}, {?}]')
        .replace('manual_axes={"x", "y"}', 'manual_axes={"x"}')
    )
    program = program.replace("tensor<4x8xf32>", "tensor<16x8xf32>")
    refused(program, r"device_collective at <text>:5: group \(0, 1\) goes along axes that are not manual here")
    along = (
        text(all_reduce(FAR))
        .replace('[{"x", "y"}, {}]', '[{"x", ?}, {?}]')
        .replace('manual_axes={"x", "y"}', 'manual_axes={"x"}')
    )
    got, part = run(along.replace("tensor<4x8xf32>", "tensor<16x8xf32>"))
    np.testing.assert_allclose(got, np.tile(X[:16] + X[16:], (2, 1)), rtol=1e-6)
    assert axes(part) == [("x",)]
    some = text(permute([[0, 4], [1, 5]])).replace('[{"x", "y"}, {}]', '[{"x", ?}, {?}]')
    some = some.replace('manual_axes={"x", "y"}', 'manual_axes={"x"}').replace("tensor<4x8xf32>", "tensor<16x8xf32>")
    refused(some, "each source_target_pair must be there for all positions along the axes that are not manual")


def test_values_meet_more_than_once_in_an_inline_region() -> None:
    sharded = 'mhlo.sharding = "{devices=[8,1]<=[8]}"'
    here, inside = "tensor<32x8xf32>", "tensor<4x8xf32>"
    program = mw.load(f"""module attributes {{mhlo.num_partitions = 8 : i32}} {{
      func.func @main(%x: {here} {{{sharded}}}, %y: {here} {{{sharded}}}) -> {here} {{
        %0 = stablehlo.custom_call @Sharding(%x) {{{sharded}}} : ({here}) -> {here}
        %1 = stablehlo.custom_call @Sharding(%y) {{{sharded}}} : ({here}) -> {here}
        %2 = stablehlo.custom_call @SPMDFullToShardShape(%0) {{mhlo.sharding = "{{manual}}"}} : ({here}) -> {inside}
        %3 = stablehlo.custom_call @SPMDFullToShardShape(%1) {{mhlo.sharding = "{{manual}}"}} : ({here}) -> {inside}
        %4 = stablehlo.subtract %2, %3 : {inside}
        %5 = stablehlo.multiply %4, %2 : {inside}
        %6 = stablehlo.add %5, %4 : {inside}
        %7 = stablehlo.custom_call @SPMDShardToFullShape(%6) {{{sharded}}} : ({inside}) -> {here}
        return %7 : {here}
      }}
    }}""")
    y = X[::-1].copy()
    np.testing.assert_allclose(program(X, y), (X - y) * X + (X - y), rtol=1e-6)
    part = program.partition()
    assert part.bytes_sent == 0
    part.verify(X, y)


@pytest.mark.parametrize(
    ("written", "groups"),
    [
        ("mesh['a'=8] {'a'}", ALL),
        ("mesh['a'=4,'b'=2] {'b'}", PAIRS),
        ("mesh['a'=2,'b'=4] {'a'}", FAR),
        ("mesh['a'=2,'b'=4] {'b':(2)2}", PAIRS),
        ("mesh['a'=2,'b'=4] {'b':(2)2,'a'}", [[0, 4, 1, 5], [2, 6, 3, 7]]),
    ],
)
def test_groups_along_axes_of_a_mesh(written: str, groups: Groups) -> None:
    """What XLA prints today."""
    rows = [list(r) for r in groups]
    shape = f"f32[4,{8 * len(rows[0])}]"
    loaded = mw.load(f"""HloModule m, num_partitions=8
ENTRY e {{
  x = f32[32,8] parameter(0), sharding={{devices=[8,1]<=[8]}}
  s = f32[32,8] custom-call(x), custom_call_target="Sharding", sharding={{devices=[8,1]<=[8]}}
  m = f32[4,8] custom-call(s), custom_call_target="SPMDFullToShardShape", sharding={{manual}}
  g = {shape} all-gather(m), channel_id=1, replica_groups={written}, dimensions={{1}}, use_global_device_ids=true
  l = {shape} custom-call(g), custom_call_target="Sharding", sharding={{manual}}
  ROOT f = f32[32,{8 * len(rows[0])}] custom-call(l), custom_call_target="SPMDShardToFullShape", sharding={{devices=[8,1]<=[8]}}
}}""")
    members = {d: row for row in rows for d in row}
    want = np.concatenate([np.concatenate([PARTS[e] for e in members[d]], 1) for d in range(N)])
    np.testing.assert_array_equal(loaded(X), want)
    loaded.partition().verify(X)


@pytest.mark.parametrize("groups", [FAR, [[4, 0], [5, 1], [6, 2], [7, 3]], ODD])
def test_an_all_to_all_of_hlo_has_an_operand_for_each_device(groups):
    """As XLA's partitioner writes it: operand i is for the i-th device of a group, result i comes from there."""
    listed = ",".join("{" + ",".join(map(str, g)) + "}" for g in groups)
    program = f"""HloModule exchanged, num_partitions=8

ENTRY %main (x: f32[32,8]) -> f32[32,8] {{
  %x = f32[32,8]{{1,0}} parameter(0)
  %s = f32[32,8]{{1,0}} custom-call(%x), custom_call_target="Sharding", sharding={{devices=[8,1]<=[8]}}
  %a = f32[4,8]{{1,0}} custom-call(%s), custom_call_target="SPMDFullToShardShape", sharding={{manual}}
  %b = f32[2,8]{{1,0}} slice(%a), slice={{[0:2], [0:8]}}, sharding={{manual}}
  %c = f32[2,8]{{1,0}} slice(%a), slice={{[2:4], [0:8]}}, sharding={{manual}}
  %t = (f32[2,8]{{1,0}}, f32[2,8]{{1,0}}) all-to-all(%b, %c), channel_id=1, replica_groups={{{listed}}}, sharding={{{{manual}}, {{manual}}}}
  %d = f32[2,8]{{1,0}} get-tuple-element(%t), index=0, sharding={{manual}}
  %e = f32[2,8]{{1,0}} get-tuple-element(%t), index=1, sharding={{manual}}
  %j = f32[4,8]{{1,0}} concatenate(%d, %e), dimensions={{0}}, sharding={{manual}}
  %m = f32[4,8]{{1,0}} custom-call(%j), custom_call_target="Sharding", sharding={{manual}}
  ROOT %r = f32[32,8]{{1,0}} custom-call(%m), custom_call_target="SPMDShardToFullShape", sharding={{devices=[8,1]<=[8]}}
}}
"""
    expected = in_groups(groups, lambda parts, i: np.concatenate([np.split(p, 2)[i] for p in parts]))
    part = mw.load(program).partition()
    np.testing.assert_array_equal(mw.load(program).partition(mw.make_mesh((8,), ("x",)))(X), expected)
    assert part.bytes_sent == 4 * 4 * 8 // 2 or groups is not FAR  # the others are along no axes
