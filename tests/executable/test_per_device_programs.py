"""Programs that are partitioned already: what XLA's partitioner, a per-replica interface or we ourselves wrote for one
device is loaded as the program of all, with stacked arguments and results."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from jaxlib import _hlo

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding
from meshwright import PartitionSpec as P
from meshwright.api.compare import xla_figures
from meshwright.errors import ArgumentError, ImportProgramError
from meshwright.runtime.pjrt.xla_partitioner import xla_partition
from meshwright.stablehlo.hlo import module_bytecode

N = 8
X = np.random.default_rng(7).normal(size=(N, 4, 8)).astype(np.float32)
COUNTS = [(8, 1), (1, 8), (2, 4), (4, 2)]
STRATEGIES = ("cross_replica", "cross_partition", "cross_replica_and_partition", "flattened_ids")
CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, "


def module(body: str, shape: str = "4x8", replicas: int = N, partitions: int = 1, declared: bool = True) -> str:
    counts = f"mhlo.num_replicas = {replicas} : i32, mhlo.num_partitions = {partitions} : i32" if declared else ""
    return f"""module attributes {{{counts}}} {{
  func.func @main(%a: tensor<4x8xf32>) -> tensor<{shape}xf32> {{
    {body}
    return %r : tensor<{shape}xf32>
  }}
}}"""


def dense(rows: Any) -> str:
    return f"dense<{[list(r) for r in rows]}> : tensor<{len(rows)}x{len(rows[0])}xi64>"


def all_reduce(rows: Any, strategy: str = "cross_replica") -> str:
    channel = "" if strategy == "cross_replica" else CHANNEL
    flat = ", use_global_device_ids" if strategy == "flattened_ids" else ""
    return f"""%r = "stablehlo.all_reduce"(%a) <{{{channel}replica_groups = {dense(rows)}{flat}}}> ({{
      ^bb0(%p: tensor<f32>, %q: tensor<f32>):
        %s = stablehlo.add %p, %q : tensor<f32>
        stablehlo.return %s : tensor<f32>
      }}) : (tensor<4x8xf32>) -> tensor<4x8xf32>"""


def all_to_all(rows: Any, strategy: str) -> str:
    channel = "" if strategy == "cross_replica" else CHANNEL
    n = len(rows[0])
    return f"""%r = "stablehlo.all_to_all"(%a) <{{{channel}split_dimension = 1 : i64, concat_dimension = 0 : i64,
      split_count = {n} : i64, replica_groups = {dense(rows)}}}> : (tensor<4x8xf32>) -> tensor<{4 * n}x{8 // n}xf32>"""


def permute(pairs: Any, strategy: str) -> str:
    channel = "" if strategy == "cross_replica" else CHANNEL
    return f"""%r = "stablehlo.collective_permute"(%a) <{{{channel}source_target_pairs = {dense(pairs)}}}>
      : (tensor<4x8xf32>) -> tensor<4x8xf32>"""


def processes(rows: Any, strategy: str, replicas: int, partitions: int) -> list[list[int]]:
    """The groups of devices, as StableHLO's specification writes them: devices are (replica, partition)."""
    if strategy == "cross_replica":
        groups = [[(r, p) for r in row] for p in range(partitions) for row in rows]
    elif strategy == "cross_partition":
        groups = [[(r, p) for p in row] for r in range(replicas) for row in rows]
    elif strategy == "cross_replica_and_partition":
        groups = [[(r, p) for r in row for p in range(partitions)] for row in rows]
    else:
        groups = [[divmod(i, partitions) for i in row] for row in rows]
    return [[r * partitions + p for r, p in group] for group in groups]


def numbered(strategy: str, replicas: int, partitions: int) -> int:
    """How many numbers there are in a table of groups."""
    return {"cross_partition": partitions, "flattened_ids": N}.get(strategy, replicas)


def rows_of(n: int) -> list[Any]:
    pairs = [[[n - 2 - i, n - 1 - i] for i in range(0, n, 2)]] if n > 1 else []
    return [[list(range(n))], [[i] for i in range(n)], *pairs]


def run(text: Any, *args: Any) -> tuple[Any, Any]:
    """What the program gives; partitioned, it gives the same."""
    program = mw.load(text)
    assert program.is_stacked and "stacked" in repr(program) and program.num_partitions == N
    part = program.partition()
    part.verify(*args)
    return program(*args), part


# --- whom collectives are with ------------------------------------------------------------------------------
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_sums(strategy: str, counts: tuple[int, int]) -> None:
    if strategy == "cross_partition":  # which is no way to add
        return
    for rows in rows_of(numbered(strategy, *counts)):
        groups = processes(rows, strategy, *counts)
        if all(len(g) == 1 for g in groups):  # nothing is sent, and the program is one of each device
            continue
        got, _ = run(module(all_reduce(rows, strategy), "4x8", *counts), X)
        for group in groups:
            for device in group:
                np.testing.assert_allclose(np.asarray(got)[device], X[group].sum(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("strategy", ["cross_replica", "cross_partition"])
@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_exchanges_and_messages(strategy: str, counts: tuple[int, int]) -> None:
    n = numbered(strategy, *counts)
    if n == 1:
        return
    rows = [list(range(n))[::-1]]
    got, _ = run(module(all_to_all(rows, strategy), f"{4 * n}x{8 // n}", *counts), X)
    for group in processes(rows, strategy, *counts):
        for place, device in enumerate(group):
            parts = [np.split(X[d], n, 1)[place] for d in group]
            np.testing.assert_array_equal(np.asarray(got)[device], np.concatenate(parts, 0))
    pairs = [(i, (i + 1) % n) for i in range(n - 1)]
    got, _ = run(module(permute(pairs, strategy), "4x8", *counts), X)
    want = np.zeros_like(X)
    for source, target in processes(pairs, strategy, *counts):
        want[target] = X[source]
    np.testing.assert_array_equal(np.asarray(got), want)


@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_numbers(counts: tuple[int, int]) -> None:
    """Devices know the number of their replica, and of their partition in it."""
    body = """%i = "stablehlo.replica_id"() : () -> tensor<ui32>
    %j = "stablehlo.partition_id"() : () -> tensor<ui32>
    %m = stablehlo.constant dense<100> : tensor<ui32>
    %k = stablehlo.multiply %i, %m : tensor<ui32>
    %n = stablehlo.add %k, %j : tensor<ui32>
    %f = stablehlo.convert %n : (tensor<ui32>) -> tensor<f32>
    %r = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<4x8xf32>"""
    got, part = run(module(body, "4x8", *counts), X)
    want = [100 * r + p for r, p in itertools.product(*map(range, counts))]
    np.testing.assert_array_equal(np.asarray(got)[:, 0, 0], want)
    assert part.bytes_sent == 0


def test_counts_that_are_not_declared_are_those_of_the_groups() -> None:
    rows = [[0, 2, 4, 6], [1, 3, 5, 7]]
    for strategy in ("cross_replica", "flattened_ids"):
        got, part = run(module(all_reduce(rows, strategy), declared=False), X)
        np.testing.assert_allclose(np.asarray(got)[3], X[1::2].sum(0), rtol=1e-5, atol=1e-5)
        assert [(c.kind, c.group_size) for c in part.collectives] == [("all_reduce", 4)]


def test_the_head_of_hlo_says_how_many() -> None:
    text = """HloModule m, {counts}

add {{ a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }}

ENTRY e {{ a = f32[4,8] parameter(0)
  s = f32[4,8] all-reduce(a), replica_groups={{{{0,1}},{{2,3}}}}, to_apply=add
  i = u32[] {number}()
  f = f32[] convert(i)
  b = f32[4,8] broadcast(f), dimensions={{}}
  ROOT r = f32[4,8] add(s, b) }}
"""
    got, _ = run(text.format(counts="replica_count=4, num_partitions=2", number="partition-id"), X)
    sums = X.reshape(2, 2, 2, 4, 8).sum(1, keepdims=True)
    want = np.broadcast_to(sums, (2, 2, 2, 4, 8)).reshape(N, 4, 8) + np.arange(N).reshape(N, 1, 1) % 2
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5, atol=1e-5)


def test_what_is_started_and_waited_for() -> None:
    text = """HloModule m, num_partitions=8

add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }

scatter { p = f32[4,8] parameter(0)
  ROOT q = f32[4,1] reduce-scatter(p), channel_id=3, replica_groups=[1,8]<=[8], dimensions={1}, to_apply=add,
    use_global_device_ids=true }

ENTRY e { a = f32[4,8] parameter(0)
  s = f32[4,8] all-reduce-start(a), channel_id=1, replica_groups={{0,4},{1,5},{2,6},{3,7}}, to_apply=add,
    use_global_device_ids=true
  c = (f32[4,8], f32[4,8], u32[], u32[]) collective-permute-start(a), channel_id=2, source_target_pairs={{0,1},{1,0}}
  t = ((f32[4,8]), f32[4,1]) async-start(a), calls=scatter
  v = ((f32[4,8]), f32[4,1]) async-update(t), metadata={op_name="not-update(a)"}
  v.2 = ((f32[4,8]), f32[4,1]) async-update(((f32[4,8]), f32[4,1]) %v)
  d = f32[4,8] all-reduce-done(s)
  m = f32[4,8] collective-permute-done(c)
  u = f32[4,1] async-done(v.2), metadata={op_name="a b-update(v.2)"}
  n = ((f32[4,8]), f32[4,8]) negate-start(d)
  o = f32[4,8] negate-done(n)
  w = f32[4,8] subtract(m, o)
  ROOT r = f32[4,9] concatenate(w, u), dimensions={1}
}
"""
    got, part = run(text, X)
    pairs = X[:4] + X[4:]
    moved = np.concatenate([X[[1, 0]], np.zeros_like(X[2:])])
    tiles = X.sum(0).T[:, :, None]
    want = np.concatenate([np.concatenate([pairs, pairs]) + moved, tiles], 2)
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5, atol=1e-5)
    assert sorted(c.kind for c in part.collectives) == ["all_reduce", "collective_permute", "reduce_scatter"]


@pytest.mark.parametrize(("name", "dtype"), [("i1", "bool"), ("ui4", "uint4"), ("f8E4M3FN", "float8_e4m3fn")])
@pytest.mark.parametrize("rows", [4, 0])
def test_narrow_and_empty_arrays(name: str, dtype: str, rows: int) -> None:
    text = module(all_reduce([list(range(N))]), f"{rows}x8").replace("4x8xf32", f"{rows}x8xf32").replace("f32", name)
    text = text.replace("stablehlo.add", "stablehlo.or") if name == "i1" else text
    got, _ = run(text, mnp.ones((N, rows, 8), dtype))
    assert (got.shape, str(got.dtype)) == ((N, rows, 8), dtype)
    assert (np.asarray(got).astype(int) == (1 if name == "i1" else N)).all()


def test_every_transformation_sees_through_it() -> None:
    f = mw.load(module(all_reduce([[0, 1], [2, 3], [4, 5], [6, 7]])))
    want = np.asarray(f(X))
    np.testing.assert_allclose(mw.jvp(f, (X,), (2 * X,))[1], 2 * want, rtol=1e-5)
    np.testing.assert_allclose(mw.linearize(f, X)[1](X), want, rtol=1e-5)
    np.testing.assert_allclose(mw.vmap(f)(np.stack([X, 2 * X])), np.stack([want, 2 * want]), rtol=1e-5)
    gradient = mw.vmap(mw.grad(lambda x: mw.checkpoint(f)(x).sum()))(np.stack([X, X]))
    np.testing.assert_array_equal(gradient, np.full((2, *X.shape), 2, np.float32))
    twice, _ = mw.lax.scan(lambda x, _: (f(x), None), mnp.asarray(X), None, length=2)
    np.testing.assert_allclose(twice, 2 * want, rtol=1e-5)


# --- whole programs -----------------------------------------------------------------------------------------
MESH = mw.AbstractMesh((4, 2), ("d", "m"))
SPECS = (P("d"), P(None, "m"), P("m"))
SHAPES = ((16, 24), (24, 32), (32, 16))


def step(x, w1, w2):
    def loss(w1, w2):
        y = mw.nn.softmax(mnp.tanh(x @ w1) @ w2)
        return (mnp.sort(y, axis=0) ** 2).mean(), y[::-1]

    (value, y), grads = mw.value_and_grad(loss, (0, 1), has_aux=True)(w1, w2)
    return value, y, *grads


def stacked(value: np.ndarray, sharding: NamedSharding) -> np.ndarray:
    """The parts of an array, in the order of the devices."""
    indices = sharding.devices_indices_map(value.shape)
    return np.stack([value[i] for i in indices.values()])


@pytest.fixture(scope="module")
def lowered() -> Any:
    shardings = [NamedSharding(MESH, s) for s in SPECS]
    args = [mw.ShapeDtypeStruct(s, np.float32, sharding=on) for s, on in zip(SHAPES, shardings)]
    whole = NamedSharding(MESH, P())
    return mw.jit(step, out_shardings=(whole, NamedSharding(MESH, P("m", "d")), *shardings[1:])).lower(*args)


def check(text: Any, lowered: Any) -> Any:
    rng = np.random.default_rng(1)
    values = [rng.normal(size=s).astype(np.float32) for s in SHAPES]
    outs = [np.asarray(y) for y in mw.tree.leaves(mw.jit(step)(*values))]
    part = lowered.partition()
    args = [stacked(v, s) for v, s in zip(values, mw.tree.leaves(part.in_shardings))]
    got, of_theirs = run(text, *args)
    for y, want, sharding in zip(got, outs, mw.tree.leaves(part.out_shardings)):
        np.testing.assert_allclose(np.asarray(y), stacked(want, sharding), rtol=2e-5, atol=1e-6)
    return of_theirs


@pytest.mark.parametrize("form", ["stablehlo", "hlo"])
def test_our_own(lowered: Any, form: str) -> None:
    part = lowered.partition()
    text = part.as_text(form)
    assert ("replica_count=8" if form == "hlo" else "mhlo.num_replicas = 8") in text.partition("\n")[0]
    again = check(text, lowered)
    assert again.bytes_sent <= part.bytes_sent


@pytest.fixture(scope="module")
def of_xla(lowered: Any) -> Any:
    return xla_partition(module_bytecode(lowered.compiler_ir()), N, [False] * 4)


@pytest.mark.parametrize("stage", ["text", "compiled"])
def test_that_of_xlas_partitioner(lowered: Any, of_xla: Any, stage: str) -> None:
    """Partitioned, and optimized: with fusions, layouts, and groups of devices over meshes."""
    part = check(getattr(of_xla, stage), lowered)
    lines = {c.source.line for c in part.collectives}
    assert lines and 0 not in lines, "collectives know the lines of the program"


@pytest.mark.parametrize(
    ("groups", "rows"),
    [
        ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}", [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a'}", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("mesh['a'=2,'b'=4] {'b':(1)2}", [[0, 2], [1, 3], [4, 6], [5, 7]]),
    ],
)
@pytest.mark.parametrize("form", ["text", "proto"])
def test_groups_over_a_mesh(groups: str, rows: list[list[int]], form: str) -> None:
    text: Any = f"""HloModule m, num_partitions=8

add {{ a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }}

ENTRY e {{ a = f32[4,8] parameter(0)
  ROOT r = f32[4,8] all-reduce(a), channel_id=1, replica_groups={groups}, use_global_device_ids=true, to_apply=add
}}
"""
    source = text if form == "text" else _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    got, part = run(source, X)
    for row in rows:
        np.testing.assert_allclose(np.asarray(got)[row[0]], X[row].sum(0), rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(np.asarray(got)[row], np.broadcast_to(np.asarray(got)[row[0]], (len(row), 4, 8)))
    assert [c.kind for c in part.collectives] == ["all_reduce"]


def test_what_values_were_split_by_is_no_matter() -> None:
    """Compilers leave it on parameters and copies of these."""
    text = """HloModule m, num_partitions=8

ENTRY e { a = f32[4,8] parameter(0), sharding={devices=[8,1]<=[8]}
  c = f32[4,8] copy(a), sharding={devices=[8,1]<=[8]}
  ROOT r = f32[32,8] all-gather(c), channel_id=1, replica_groups=[1,8]<=[8], dimensions={0}, use_global_device_ids=true
}
"""
    got, _ = run(text, X)
    np.testing.assert_array_equal(np.asarray(got), np.broadcast_to(X.reshape(32, 8), (N, 32, 8)))


@pytest.mark.parametrize("partitions", [8, 1])
def test_what_a_compiler_is_done_with_is_of_one_partition(partitions: int) -> None:
    """Without collectives nothing but its first line shows it; what its parameters were split by stays on them."""
    text = f"""HloModule m, is_scheduled=true, num_partitions={partitions}

ENTRY e {{ a = f32[4,8] parameter(0), sharding={{devices=[{partitions},1]<=[{partitions}]}}
  ROOT r = f32[4,8] negate(a)
}}
"""
    program = mw.load(text)
    assert program.is_stacked == (partitions > 1)
    x = X if program.is_stacked else X[0]
    np.testing.assert_array_equal(np.asarray(program(x)), -x)


@pytest.mark.parametrize("split_by", ["{devices=[4,2]<=[8]}", "{replicated}", "{devices=[99999999]<=[99999999]}"])
def test_what_xlas_partitioner_notes(split_by: str) -> None:
    """Its serialized programs have no first line."""
    text = f"""module attributes {{mhlo.spmd_output_sharding = "{{{split_by}, {{replicated}}}}"}} {{
  func.func @main(%a: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {{
    %0 = stablehlo.negate %a : tensor<4x8xf32>
    return %0, %a : tensor<4x8xf32>, tensor<4x8xf32>
  }}
}}"""
    program = mw.load(text)
    assert program.is_stacked == (split_by == "{devices=[4,2]<=[8]}")
    x = X if program.is_stacked else X[0]
    np.testing.assert_array_equal(np.asarray(program(x)[0]), -x)


def test_it_can_be_part_of_a_program() -> None:
    program = mw.load(module(all_reduce([list(range(N))])))
    slope = mw.grad(lambda x: (program(x)[0] ** 2).sum())(mnp.asarray(X))
    want = np.broadcast_to(2 * X.sum(0), X.shape)
    np.testing.assert_allclose(np.asarray(slope), want, rtol=1e-5, atol=1e-5)


# --- what is neither ----------------------------------------------------------------------------------------
REGION = """%w = stablehlo.custom_call @Sharding(%a) {mhlo.sharding = "{devices=[8,1]<=[8]}"}
      : (tensor<4x8xf32>) -> tensor<4x8xf32>
    """


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (
            module(all_reduce([[0, 1]]), replicas=1),
            r"<text>:3: .*name replica 1; the program has",
        ),
        (module(all_reduce([[0, 9]], "flattened_ids"), declared=False), "replica id #1 not seen"),
        (module(REGION + all_reduce([[0, 1]]), replicas=2), r"<text>:5: .*already partitioned"),
        (
            module(all_reduce([[0, 1]]), replicas=2, partitions=4).replace(
                "%a: tensor<4x8xf32>", '%a: tensor<4x8xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"}'
            ),
            r"<text>:3: .*already partitioned",
        ),
        (module(permute([[0, 9]], "cross_replica")), "name replica 9; the program has replicas 0 to 7"),
        # There may be more than those that get anything.
        (module(permute([[0, 1]], "cross_replica"), declared=False), "does not say for how many devices; write mhlo"),
    ],
)
def test_refused(text: str, match: str) -> None:
    with pytest.raises(ImportProgramError, match=match):
        mw.load(text)


def test_there_is_nothing_to_compare(tmp_path: Any) -> None:
    file = tmp_path / "program.mlir"
    file.write_text(module(all_reduce([list(range(N))])))
    with pytest.raises(ArgumentError, match="is partitioned already, so XLA has nothing to partition"):
        xla_figures(file)
