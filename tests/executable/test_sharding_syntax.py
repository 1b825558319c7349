"""Every form of GSPMD's and Shardy's annotations: read, partitioned, run against the unpartitioned program, with the
effect that the form is to have."""
# ruff: noqa: E501 -- lines of program texts

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright import PartitionSpec as P
from meshwright.errors import ImportProgramError, MeshError, ShardingError
from meshwright.ops.collective.all_reduce import AllReduce

MESH = 'sdy.mesh @mesh = <["x"=2, "y"=4]>'


def check(text: str, **options: Any) -> Any:
    """The partitioned program, after it was compared with the unpartitioned one."""
    program = mw.load(text)
    part = program.partition(**options)
    part.verify()
    return part


def specs(part: Any) -> tuple[list[P], list[P]]:
    """The specs of arguments and results, with an entry for each dimension."""
    pairs = [(part.in_shardings, part.in_avals), (part.out_shardings, part.out_avals)]
    ins, outs = ([P(*s.spec, *[None] * (a.ndim - len(s.spec))) for s, a in zip(*pair)] for pair in pairs)
    return ins, outs


def kinds(part: Any) -> list[str]:
    return [c.kind for c in part.collectives]


def gspmd(sharding: str, n: int = 8) -> str:
    """``tanh(x) @ w`` with ``sharding`` on the product."""
    return f"""module attributes {{mhlo.num_partitions = {n} : i32}} {{
  func.func @main(%x: tensor<8x6xf32>, %w: tensor<6x4xf32>) -> tensor<8x4xf32> {{
    %0 = stablehlo.tanh %x : tensor<8x6xf32>
    %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] : (tensor<8x6xf32>, tensor<6x4xf32>) -> tensor<8x4xf32>
    %2 = stablehlo.custom_call @Sharding(%1) {{mhlo.sharding = "{sharding}"}} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %3 = stablehlo.sine %2 : tensor<8x4xf32>
    return %3 : tensor<8x4xf32>
  }}
}}"""


# --- GSPMD: tile assignments --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("sharding", "local", "devices"),
    [
        ("{devices=[4,2]<=[8]}", (2, 2), None),
        ("{devices=[4,2]<=[2,4]T(1,0)}", (2, 2), None),
        ("{devices=[2,2,2]<=[2,2,2]T(2,0,1) last_tile_dim_replicate}", (4, 2), None),
        ("{devices=[4,2]0,1,2,3,4,5,6,7}", (2, 2), None),
        ("{devices=[4,2]3,0,6,1,7,2,5,4}", (2, 2), (3, 0, 6, 1, 7, 2, 5, 4)),
        ("{devices=[2,1,4]0,3,1,2,5,4,7,6 last_tile_dim_replicate}", (4, 4), None),
        ("{devices=[8,1]7,6,5,4,3,2,1,0}", (1, 4), (7, 6, 5, 4, 3, 2, 1, 0)),
        ("{devices=[2,2,2]<=[8] last_tile_dims={replicated}}", (4, 2), None),
        ("{replicated}", (8, 4), None),
        ("{maximal device=5}", (8, 4), None),
    ],
)
def test_tile_assignments(sharding: str, local: tuple[int, ...], devices: tuple[int, ...] | None) -> None:
    program = mw.load(gspmd(sharding))
    part = check(gspmd(sharding), **({} if program.mesh is not None else {"num_devices": 8}))
    (result,) = part.jaxpr.out_avals
    assert result.shape == local
    if devices is not None:
        assert program.mesh.flat_ids == devices


def test_unknown_says_nothing() -> None:
    assert mw.load(gspmd("{unknown}")).annotations == []
    part = check(gspmd("{unknown}"), num_devices=8)
    assert specs(part) == ([P(None, None), P(None, None)], [P(None, None)])


def test_unreduced_stays_a_sum() -> None:
    """The product stays a sum of terms over the annotated devices until the sine needs it whole."""
    text = gspmd("{devices=[1,1,2,4]<=[8] last_tile_dims={unreduced, replicated}}").replace(
        "%x: tensor<8x6xf32>", '%x: tensor<8x6xf32> {mhlo.sharding = "{devices=[1,2,4]<=[8] last_tile_dim_replicate}"}'
    )
    part = check(text)
    (sum_,) = part.collectives
    assert (sum_.kind, sum_.group_size) == ("all_reduce", 2) and "sin needs" in sum_.reason
    # Annotated as replicated instead, it is the annotation that makes the sum.
    (sum_,) = check(
        text.replace("{devices=[1,1,2,4]<=[8] last_tile_dims={unreduced, replicated}}", "{replicated}")
    ).collectives
    assert "wants it" in sum_.reason


def test_unspecified_dimensions_are_free() -> None:
    """Dimension 1 takes the split of ``w``'s columns."""
    text = gspmd("{devices=[4,1,2]<=[8] last_tile_dim_replicate}").replace(
        "%w: tensor<6x4xf32>",
        '%w: tensor<6x4xf32> {mhlo.sharding = "{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate}"}',
    )
    fixed = check(text)
    assert fixed.jaxpr.out_avals[0].shape == (2, 4)
    free = check(
        text.replace(
            '{mhlo.sharding = "{devices=[4,1,2]',
            '{backend_config = "unspecified_dims=[1]", mhlo.sharding = "{devices=[4,1,2]',
        )
    )
    assert free.jaxpr.out_avals[0].shape == (2, 2) and kinds(free) == []
    everything = text.replace(
        '{mhlo.sharding = "{devices=[4,1,2]',
        '{backend_config = "unspecified_dims=[0,1]", mhlo.sharding = "{devices=[4,1,2]',
    )
    assert check(everything).jaxpr.out_avals[0].shape == (2, 2)


GROUPED = """module attributes {mhlo.num_partitions = 8 : i32} {
  func.func @main(%x: tensor<8x6xf32> {mhlo.sharding = "{devices=[4,2]<=[8]}"}, %y: tensor<8x6xf32>)
      -> (tensor<8x6xf32>, tensor<8x6xf32>) {
    %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{unknown KIND 7}"} : (tensor<8x6xf32>) -> tensor<8x6xf32>
    %1 = stablehlo.custom_call @Sharding(%y) {mhlo.sharding = "{unknown KIND 7}"} : (tensor<8x6xf32>) -> tensor<8x6xf32>
    %2 = stablehlo.sine %0 : tensor<8x6xf32>
    %3 = stablehlo.cosine %1 : tensor<8x6xf32>
    return %2, %3 : tensor<8x6xf32>, tensor<8x6xf32>
  }
}"""


@pytest.mark.parametrize("kind", ["shard_as", "shard_like"])
def test_groups_are_sharded_alike(kind: str) -> None:
    part = check(GROUPED.replace("KIND", kind))
    ins, outs = specs(part)
    assert ins[0] == ins[1] == outs[0] == outs[1] == P("x0", "x1")


@pytest.mark.parametrize("kind", ["shard_as", "shard_like"])
def test_a_group_against_another_annotation(kind: str) -> None:
    """``shard_as`` moves the other value, ``shard_like`` gives way to what it says itself."""
    other = "{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate KIND 7}"
    text = GROUPED.replace('(%y) {mhlo.sharding = "{unknown KIND 7}"}', f'(%y) {{mhlo.sharding = "{other}"}}')
    _, outs = specs(check(text.replace("KIND", kind)))
    assert outs == [P("x0", "x1"), P("x0", "x1") if kind == "shard_as" else P("x1", None)]


def test_groups_of_parameters() -> None:
    text = GROUPED.replace('"{devices=[4,2]<=[8]}"', '"{devices=[4,2]<=[8] shard_as 3}"').replace(
        "%y: tensor<8x6xf32>)", '%y: tensor<8x6xf32> {mhlo.sharding = "{unknown shard_as 3}"})'
    )
    text = text.replace("KIND 7", "shard_like 1", 1).replace("KIND 7", "shard_like 2")
    assert specs(check(text))[0] == [P("x0", "x1")] * 2


WHILE = """HloModule loop, num_partitions=8

cond {
  state = (s32[], f32[8,6]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  n = s32[] constant(3)
  ROOT less = pred[] compare(i, n), direction=LT
}

body {
  state = (s32[], f32[8,6]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  x = f32[8,6] get-tuple-element(state), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  turned = f32[8,6] sine(x), sharding={devices=[1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate}
  flipped = f32[8,6] reverse(turned), dimensions={0}
  ROOT out = (s32[], f32[8,6]) tuple(next, flipped)
}

ENTRY main {
  x = f32[8,6] parameter(0), sharding={devices=[4,1,2]<=[8] last_tile_dim_replicate}
  zero = s32[] constant(0)
  start = (s32[], f32[8,6]) tuple(zero, x), sharding={{replicated}, {devices=[4,1,2]<=[8] last_tile_dim_replicate}}
  loop = (s32[], f32[8,6]) while(start), condition=cond, body=body, sharding={{replicated}, {devices=[2,2,2]<=[8] last_tile_dim_replicate}}
  ROOT y = f32[8,6] get-tuple-element(loop), index=1
}
"""


def test_annotations_of_hlo_instructions_in_a_loop() -> None:
    """Tuples of shardings on tuples and loops, and an annotation in the loop's body."""
    program = mw.load(WHILE)
    assert program.mesh.axis_sizes == (2, 2, 2)
    part = check(WHILE)
    assert part.jaxpr.in_avals[0].shape == (2, 6)
    (loop,) = (e for e in part.jaxpr.jaxpr.eqns if e.op.name == "scan")
    (sine,) = (e for e in loop.op.jaxpr.jaxpr.eqns if e.op.name == "sin")
    assert sine.outvars[0].aval.shape[1] == 3
    assert part.jaxpr.out_avals[0].shape == (4, 3)


INSTRUCTIONS = """HloModule kinds, num_partitions=4

ENTRY main {
  x = f32[8,6] parameter(0), sharding={devices=[4,1]<=[4]}
  w = f32[6,4] parameter(1)
  dot = f32[8,4] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, sharding={devices=[2,2]<=[4]}
  turned = f32[4,8] transpose(dot), dimensions={1,0}, sharding={devices=[1,4]<=[4]}
  joined = f32[32] reshape(turned), sharding={devices=[2,2]<=[4] last_tile_dim_replicate}
  order = s32[32] iota(), iota_dimension=0, sharding={devices=[4]<=[4]}
  two = (f32[32], s32[32]) sort(joined, order), dimensions={0}, to_apply=less, sharding={{devices=[4]<=[4]}, {replicated}}
  sorted = f32[32] get-tuple-element(two), index=0
  places = s32[32] get-tuple-element(two), index=1
  ROOT out = (f32[32], s32[32]) tuple(sorted, places)
}
"""


def test_annotations_of_hlo_instructions_of_any_kind() -> None:
    less = """less {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  c = s32[] parameter(2)
  d = s32[] parameter(3)
  ROOT l = pred[] compare(a, b), direction=LT
}

"""
    text = INSTRUCTIONS.replace("ENTRY", less + "ENTRY")
    program = mw.load(text)
    assert [str(a) for a in program.annotations] == [
        "{devices=[4,1]<=[4]}", "{devices=[2,2]<=[4]}", "{devices=[1,4]<=[4]}",
        "{devices=[2,2]<=[4] last_tile_dim_replicate}", "{devices=[4]<=[4]}", "{replicated}",
    ]  # fmt: skip
    part = check(text)
    (dot,) = (e for e in part.jaxpr.jaxpr.eqns if e.op.name == "dot_general")
    assert dot.outvars[0].aval.shape in ((4, 2), (2, 4))
    assert [s.spec for s in part.out_shardings] == [P(("x0", "x1")), P(None)]


# --- Shardy -------------------------------------------------------------------------------------------------
def shardy(body: str, x: str = "", y: str = "", mesh: str = MESH, out: str = "") -> str:
    """A program of ``x`` and ``y``, which gives ``%r``."""
    attribute = {
        k: f" {{sdy.sharding = #sdy.sharding<@mesh, {v}>}}" if v else "" for k, v in (("x", x), ("y", y), ("out", out))
    }
    return f"""module {{
  {mesh}
  func.func @main(%x: tensor<8x16xf32>{attribute["x"]}, %y: tensor<8x16xf32>{attribute["y"]}) -> (tensor<8x16xf32>{attribute["out"]}) {{
    {body}
    return %r : tensor<8x16xf32>
  }}
}}"""


ADD = "%r = stablehlo.add %x, %y : tensor<8x16xf32>"


def test_closed_dimensions_stay_open_ones_are_split_further() -> None:
    assert specs(check(shardy(ADD, x='[{"x"}, {}]', y='[{}, {"y"}]')))[0] == [P("x", None), P(None, "y")]
    assert specs(check(shardy(ADD, x='[{"x"}, {?}]', y='[{?}, {"y"}]')))[0] == [P("x", "y"), P("x", "y")]
    both = specs(check(shardy(ADD, x='[{"x", ?}, {}]', y='[{"x", "y"}, {}]')))
    assert both[0] == [P(("x", "y"), None), P(("x", "y"), None)]


def test_open_results() -> None:
    assert specs(check(shardy(ADD, x='[{"x"}, {"y"}]', out="[{?}, {}]")))[1] == [P("x", None)]
    assert specs(check(shardy(ADD, x='[{"x"}, {"y"}]', out="[{?}, {?}]")))[1] == [P("x", "y")]


def test_sub_axes() -> None:
    part = check(shardy(ADD, x='[{"y":(1)2}, {"x", "y":(2)2}]'))
    assert part.jaxpr.in_avals[0].shape == (4, 4) and kinds(part) == []
    merged = """%0 = stablehlo.reshape %x : (tensor<8x16xf32>) -> tensor<128xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{"y"}]> : tensor<128xf32>
    %2 = stablehlo.sine %1 : tensor<128xf32>
    %r = stablehlo.reshape %2 : (tensor<128xf32>) -> tensor<8x16xf32>"""
    part = check(shardy(merged, x='[{"y":(1)2}, {}]', mesh='sdy.mesh @mesh = <["x"=2, "y"=4]>'))
    (sine,) = (e for e in part.jaxpr.jaxpr.eqns if e.op.name == "sin")
    assert sine.outvars[0].aval.size == 32


def test_explicitly_replicated_axes_do_not_split() -> None:
    free = specs(check(shardy(ADD, x='[{"x"}, {"y"}]', y="[{?}, {?}]")))[0][1]
    assert free == P("x", "y")
    kept = specs(check(shardy(ADD, x='[{"x"}, {"y"}]', y='[{?}, {?}], replicated={"y"}')))[0][1]
    assert kept == P("x", None)


PRIORITIES = """%0 = sdy.propagation_barrier %y allowed_direction=BACKWARD : tensor<8x16xf32>
    %r = stablehlo.multiply %x, %0 : tensor<8x16xf32>"""


def test_priorities_decide_who_spreads_first() -> None:
    """Of two annotations that want the middle value split by the same axis in different dimensions, the first wins."""
    body = """%0 = stablehlo.sine %x : tensor<8x16xf32>
    %1 = stablehlo.cosine %y : tensor<8x16xf32>
    %r = stablehlo.add %0, %1 : tensor<8x16xf32>"""

    def middle(x: str, y: str) -> Any:
        program = check(shardy(body, x=x, y=y))
        found = program.part.propagation
        (add,) = (e for e in program.part.source.jaxpr.eqns if e.op.name == "add")
        return list(found.layout(add.outvars[0]).dims)

    rows, columns = [("x",), ()], [(), ("x",)]
    assert middle('[{"x"}p0, {?}]', '[{?}, {"x"}p1]') == rows
    assert middle('[{"x"}p1, {?}]', '[{?}, {"x"}p0]') == columns
    assert middle('[{"x"}p2, {?}p1]', '[{?}, {"x"}p1]') == columns


def test_a_waiting_axis_is_kept_free() -> None:
    """``x`` splits dimension 1 of the first operand in the second round, so it does not split its dimension 0 before."""
    part = check(shardy(ADD, x='[{?}, {"x"}p1]', y='[{"x"}, {?}]'))
    assert specs(part)[0] == [P(None, "x"), P("x", None)]


@pytest.mark.parametrize(
    ("direction", "other"),
    [("NONE", P(None, None)), ("FORWARD", P(None, None)), ("BACKWARD", P("x", None))],
)
def test_barriers_let_axes_through_one_way(direction: str, other: P) -> None:
    body = f"""%0 = sdy.propagation_barrier %y allowed_direction={direction} : tensor<8x16xf32>
    %r = stablehlo.add %x, %0 : tensor<8x16xf32>"""
    assert specs(check(shardy(body, x='[{"x"}, {}]')))[0][1] == other


def test_barriers_forwards() -> None:
    body = """%0 = sdy.propagation_barrier %x allowed_direction={d} : tensor<8x16xf32>
    %r = stablehlo.add %0, %y : tensor<8x16xf32>"""
    found = [specs(check(shardy(body.format(d=d), x='[{"x"}, {}]')))[0][1] for d in ("FORWARD", "BACKWARD")]
    assert found == [P("x", None), P(None, None)]


def test_groups() -> None:
    body = """%0 = stablehlo.sine %x : tensor<8x16xf32>
    sdy.sharding_group %0 group_id=4 : tensor<8x16xf32>
    sdy.sharding_group %y group_id=4 : tensor<8x16xf32>
    %1 = stablehlo.reverse %y, dims = [0, 1] : tensor<8x16xf32>
    %2 = stablehlo.reverse %0, dims = [0] : tensor<8x16xf32>
    %r = stablehlo.add %1, %2 : tensor<8x16xf32>"""
    assert specs(check(shardy(body, x='[{}, {"y"}]')))[0][1] == P(None, "y")


def test_unreduced_axes() -> None:
    body = """%0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [1] : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x8xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{}, {}], unreduced={"y"}> : tensor<8x8xf32>
    %2 = stablehlo.sine %1 : tensor<8x8xf32>
    %r = stablehlo.concatenate %2, %2, dim = 1 : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x16xf32>"""
    (late,) = check(shardy(body, x='[{}, {"y"}]', y='[{}, {"y"}]')).collectives
    assert late.kind == "all_reduce" and "sin needs operand 0 whole" in late.reason
    (soon,) = check(shardy(body.replace(', unreduced={"y"}', ""), x='[{}, {"y"}]', y='[{}, {"y"}]')).collectives
    assert soon.kind == "all_reduce" and "with_sharding_constraint wants it whole" in soon.reason


def test_unreduced_parameters_and_results_are_whole_values() -> None:
    part = check(shardy(ADD, x='[{"x"}, {}], unreduced={"y"}', out='[{"x"}, {}], unreduced={"y"}'))
    assert specs(part) == ([P("x", None), P("x", None)], [P("x", None)])


CONSTRAINTS = {
    "sharding_constraint": '%0 = sdy.sharding_constraint %x <@mesh, [{"y"}, {"x"}]> : tensor<8x16xf32>',
    "reshard": '%0 = sdy.reshard %x <@mesh, [{"y"}, {"x"}]> : tensor<8x16xf32>',
    "an inlined mesh": '%0 = sdy.sharding_constraint %x <mesh<["x"=2, "y"=4]>, [{"y"}, {"x"}]> : tensor<8x16xf32>',
    "all_slice": '%0 = sdy.all_slice [{"y"}, {"x"}] %x out_sharding=<@mesh, [{"y"}, {"x"}]> : tensor<8x16xf32>',
    "an attribute": '%0 = stablehlo.abs %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y"}, {"x"}]>]>} : tensor<8x16xf32>',
    "named_computation": """%0 = sdy.named_computation<"f">(%x) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"y"}, {"x"}]>] (%a: tensor<8x16xf32>) {
      %1 = stablehlo.abs %a : tensor<8x16xf32>
      sdy.return %1 : tensor<8x16xf32>
    } : (tensor<8x16xf32>) -> tensor<8x16xf32>""",
    "a constant": """%a = sdy.constant {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y"}, {"x"}]>]>} dense<2.0> : tensor<8x16xf32>
    %0 = stablehlo.add %a, %a : tensor<8x16xf32>""",
    "data_flow_edge": """%a = stablehlo.abs %x : tensor<8x16xf32>
    %0 = sdy.data_flow_edge %a sharding=<@mesh, [{"y"}, {"x"}]> : tensor<8x16xf32>""",
}  # fmt: skip


@pytest.mark.parametrize("form", CONSTRAINTS)
def test_forms_of_constraints(form: str) -> None:
    part = check(shardy(f"{CONSTRAINTS[form]}\n    %r = stablehlo.sine %0 : tensor<8x16xf32>"))
    assert specs(part)[1] == [P("y", "x")]


def test_collectives_of_shardy_are_reshards() -> None:
    body = """%0 = sdy.all_to_all [{"y"}: 0->1] %x out_sharding=<@mesh, [{"x"}, {"y"}]> : tensor<8x16xf32>
    %1 = sdy.all_gather [{"x"}, {}] %0 out_sharding=<@mesh, [{}, {"y"}]> : tensor<8x16xf32>
    %2 = sdy.all_slice [{"x"}, {}] %1 out_sharding=<@mesh, [{"x"}, {"y"}]> : tensor<8x16xf32>
    %r = stablehlo.sine %2 : tensor<8x16xf32>"""
    part = check(shardy(body, x='[{"x", "y"}, {}]'))
    # What is gathered is cut again at once, so it is not gathered.
    assert kinds(part) == ["all_to_all"] and specs(part)[1] == [P("x", "y")]


def test_shardy_all_reduce_of_an_unreduced_value() -> None:
    body = """%0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}], unreduced={"y"}>]>} : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x8xf32>
    %1 = sdy.all_reduce {"y"} %0 out_sharding=<@mesh, [{}, {}]> : tensor<8x8xf32>
    %2 = stablehlo.sine %1 : tensor<8x8xf32>
    %r = stablehlo.concatenate %2, %2, dim = 1 : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x16xf32>"""
    part = check(shardy(body, x='[{}, {"y"}]', y='[{}, {"y"}]'))
    assert [e.op.axes for e in part.jaxpr.jaxpr.eqns if isinstance(e.op, AllReduce)] == [("y",)]


def test_meshes_with_devices_in_another_order() -> None:
    mesh = 'sdy.mesh @mesh = <["x"=2, "y"=4], device_ids=[7, 1, 3, 0, 2, 4, 6, 5]>'
    program = mw.load(shardy(ADD, x='[{"x"}, {"y"}]', mesh=mesh))
    assert program.mesh.flat_ids == (7, 1, 3, 0, 2, 4, 6, 5)
    part = program.partition()
    part.verify()
    assert part.in_shardings[0].devices[0].id == 7


def test_a_mesh_of_one_device_means_there() -> None:
    """Shardy's maximal sharding: on one device; here all hold it."""
    mesh = MESH + "\n  sdy.mesh @one = <[], device_ids=[3]>"
    body = "%0 = sdy.sharding_constraint %x <@one, []> : tensor<8x16xf32>\n    %r = stablehlo.add %0, %y : tensor<8x16xf32>"
    part = check(shardy(body, y='[{"x"}, {}]', mesh=mesh))
    assert specs(part)[0][1] == P("x", None)


def test_shardings_of_functions_that_are_called() -> None:
    step = """func.func private @step(%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x", ?}]>})
      -> (tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}) {
    %0 = stablehlo.cosine %a : tensor<8x16xf32>
    return %0 : tensor<8x16xf32>
  }
  """
    part = check(shardy("%r = call @step(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32>", mesh=f"{MESH}\n  {step}"))
    assert specs(part) == ([P(None, "x"), P(None, None)], [P("y", None)])


def test_annotations_in_control_flow_bodies() -> None:
    body = """%i = stablehlo.constant dense<0> : tensor<i32>
    %n = stablehlo.constant dense<3> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %w:2 = stablehlo.while(%c = %i, %a = %x) : tensor<i32>, tensor<8x16xf32>
    cond {
      %p = stablehlo.compare LT, %c, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %d = stablehlo.add %c, %one : tensor<i32>
      %s = func.call @step(%a) : (tensor<8x16xf32>) -> tensor<8x16xf32>
      stablehlo.return %d, %s : tensor<i32>, tensor<8x16xf32>
    }
    %pred = stablehlo.compare LT, %w#0, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %r = "stablehlo.if"(%pred) ({
      %t = sdy.sharding_constraint %w#1 <@mesh, [{}, {"x"}]> : tensor<8x16xf32>
      %u = stablehlo.sine %t : tensor<8x16xf32>
      stablehlo.return %u : tensor<8x16xf32>
    }, {
      stablehlo.return %y : tensor<8x16xf32>
    }) : (tensor<i1>) -> tensor<8x16xf32>"""
    step = """func.func private @step(%a: tensor<8x16xf32>) -> tensor<8x16xf32> {
    %0 = sdy.sharding_constraint %a <@mesh, [{"y"}, {}]> : tensor<8x16xf32>
    %1 = stablehlo.cosine %0 : tensor<8x16xf32>
    return %1 : tensor<8x16xf32>
  }
  """
    part = check(shardy(body).replace("func.func @main", step + "func.func @main"))
    (loop,) = (e for e in part.jaxpr.jaxpr.eqns if e.op.name in ("while", "scan"))
    (cosine,) = (e for r in loop.op.regions() for e in r.jaxpr.eqns if e.op.name == "cos")
    assert cosine.outvars[0].aval.shape[0] == 2
    (branch,) = (e for e in part.jaxpr.jaxpr.eqns if e.op.name == "cond")
    (sine,) = (e for r in branch.op.regions() for e in r.jaxpr.eqns if e.op.name == "sin")
    assert sine.outvars[0].aval.shape[1] == 8


# --- bad input ----------------------------------------------------------------------------------------------
def at_line(text: str, start: str) -> int:
    return next(n for n, line in enumerate(text.split("\n"), 1) if line.strip().startswith(start))


@pytest.mark.parametrize(
    ("sharding", "why"),
    [
        ("{devices=[2,2]<=[4]}", "names 4 devices but the program runs on 8"),
        ("{devices=[2,2,2]<=[8]}", "is for 3 dimensions, the value is f32"),
        ("{devices=[8]<=[8]}", "is for 1 dimension, the value is f32"),
        ("{devices=[4,2]0,1,2,3,4,5,6,8}", "device 8 is listed; expected 0 to 7"),
        ("{devices=[4,2]0,1,2,3,4,5,6,6}", "a device is listed twice"),
        ("{devices=[4,2]<=[6]}", "have 8 tiles but 6 devices are given"),
        ("{devices=[4,2]<=[2,4]T(1,1)}", "is no permutation"),
        ("{devices=[4,2]<=[8] last_tile_dims={wrong}}", "expected replicated, manual or unreduced"),
        ("{maximal device=8}", "names a device out of range; the program has devices 0 to 7"),
        ("{{replicated}, {replicated}}", "has 2 elements, the value has 1"),
        ("{devices=[4,2]<=[8]", "expected"),
    ],
)
def test_shardings_that_do_not_fit_are_refused_with_their_line(sharding: str, why: str) -> None:
    text = gspmd(sharding)
    with pytest.raises(ImportProgramError) as caught:
        mw.load(text)
    message = str(caught.value)
    assert message.startswith(f"<text>:{at_line(text, '%2')}: stablehlo.custom_call") and why in message


@pytest.mark.parametrize(
    ("sharding", "why"),
    [
        ("{devices=[2,2]<=[4]}", "argument 0: num_partitions: sharding .* names 4 devices"),
        ("{devices=[2,2,2]<=[8]}", "argument 0: sharding .* is for 3 dimensions"),
        ("{maximal device=9}", "argument 0: .* device out of range"),
    ],
)
def test_parameters_that_do_not_fit(sharding: str, why: str) -> None:
    text = gspmd("{replicated}").replace("%x: tensor<8x6xf32>", f'%x: tensor<8x6xf32> {{mhlo.sharding = "{sharding}"}}')
    with pytest.raises(ImportProgramError, match=f"<text>:2: func.func: {why}"):
        mw.load(text)


def test_meshes_that_do_not_fit_the_number_of_partitions() -> None:
    text = shardy(ADD, x='[{"x"}, {}]').replace("module {", "module attributes {mhlo.num_partitions = 4 : i32} {")
    with pytest.raises(ImportProgramError, match=r"<text>:3: .*num_partitions = 4; use a mesh of 4 devices"):
        mw.load(text)
    two = MESH + '\n  sdy.mesh @other = <["a"=8]>'
    body = '%0 = sdy.sharding_constraint %y <@other, [{"a"}, {}]> : tensor<8x16xf32>\n    %r = stablehlo.add %x, %0 : tensor<8x16xf32>'
    # Other meshes over as many devices are no hindrance: devices decide.
    mw.load(shardy(body, x='[{"x"}, {}]', mesh=two)).partition().verify()
    turned = MESH + '\n  sdy.mesh @other = <["x"=2, "y"=4], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>'
    body = body.replace('[{"a"}, {}]', '[{"x"}, {"y"}]')
    mw.load(shardy(body, x='[{"x"}, {}]', mesh=turned)).partition().verify()
    with pytest.raises(MeshError, match=r"for 8 devices, .* has 6"):
        mw.load(shardy(ADD, x='[{"x"}, {}]')).partition(mw.AbstractMesh((6,), ("x",)))
    renamed = mw.load(shardy(ADD, x='[{"x"}, {}]')).partition(mw.AbstractMesh((8,), ("z",)))
    assert renamed.in_shardings[0].spec == mw.PartitionSpec("z:(1)2", None)


MANUAL = """module attributes {mhlo.num_partitions = 4 : i32} {
  func.func @main(%x: tensor<8x6xf32>) -> tensor<8x6xf32> {
    %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{devices=[4,1]<=[4]}"} : (tensor<8x6xf32>) -> tensor<8x6xf32>
    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : (tensor<8x6xf32>) -> tensor<2x6xf32>
    %2 = stablehlo.sine %1 : tensor<2x6xf32>
    %3 = stablehlo.custom_call @SPMDShardToFullShape(%2) {mhlo.sharding = "{devices=[4,1]<=[4]}"} : (tensor<2x6xf32>) -> tensor<8x6xf32>
    return %3 : tensor<8x6xf32>
  }
}"""


def test_manual_regions_that_do_not_fit() -> None:
    check(MANUAL)
    unsaid = MANUAL.replace('FullToShardShape(%0) {mhlo.sharding = "{manual}"}', "FullToShardShape(%0) {}")
    inside = MANUAL.replace("tensor<8x6xf32> {\n    %0", "tensor<2x6xf32> {\n    %0").replace(
        "return %3 : tensor<8x6xf32>", "return %2 : tensor<2x6xf32>"
    )
    cases = [
        (MANUAL.replace("FullToShardShape(%0)", "FullToShardShape(%x)"), "at <text>:4 has no sharding; annotate it"),
        (unsaid, "<text>:4: .*has no mhlo.sharding"),
        (MANUAL.replace("2x6", "4x6"), r"manual_computation at <text>:6: shard_map: operand 0 is .* is not f32\[4,6\]"),
        (inside, "returns a value of a manual region"),
        (MANUAL.replace("[4,1]<=[4]", "[2,1]<=[2]"), "names 2 devices"),
        (gspmd("{manual}"), "is manual, but the value is in no region"),
        (gspmd("{devices=[2,1,4]<=[8] last_tile_dims={manual}}"), "is manual, but the value is in no region"),
    ]
    for text, match in cases:
        with pytest.raises((ImportProgramError, ShardingError), match=match):
            mw.load(text).partition()


def test_a_region_may_not_need_its_own_results() -> None:
    text = MANUAL.replace(
        "    return %3",
        """    %4 = stablehlo.custom_call @Sharding(%3) {mhlo.sharding = "{devices=[4,1]<=[4]}"} : (tensor<8x6xf32>) -> tensor<8x6xf32>
    %5 = stablehlo.custom_call @SPMDFullToShardShape(%4) {mhlo.sharding = "{manual}"} : (tensor<8x6xf32>) -> tensor<2x6xf32>
    %6 = stablehlo.add %5, %2 : tensor<2x6xf32>
    %7 = stablehlo.custom_call @SPMDShardToFullShape(%6) {mhlo.sharding = "{devices=[4,1]<=[4]}"} : (tensor<2x6xf32>) -> tensor<8x6xf32>
    return %7""",
    )
    with pytest.raises(ImportProgramError, match="needs a value that is computed from its own results"):
        mw.load(text)


def test_an_annotation_by_manual_axes_inside_of_a_region() -> None:
    text = MANUAL.replace(
        "    %2 = stablehlo.sine %1",
        '    %9 = stablehlo.custom_call @Sharding(%1) {mhlo.sharding = "{devices=[2,2]<=[4]}"} : (tensor<2x6xf32>) -> tensor<2x6xf32>\n    %2 = stablehlo.sine %9',
    )
    with pytest.raises(
        ImportProgramError, match=r"sharding_annotation at <text>:5: .*splits by .*, which is manual there"
    ):
        mw.load(text).partition()


def test_regions_on_other_meshes() -> None:
    """A program of device numbers goes on any mesh whose axes can say them; its regions too."""
    part = check(MANUAL, mesh=mw.AbstractMesh((2, 2), ("a", "b")))
    assert specs(part) == ([P(("a", "b"), None)], [P(("a", "b"), None)])


# --- parts of axes whose sizes have several prime factors ----------------------------------------------------------
PARTS = """module @m {
  sdy.mesh @mesh = <["x"=6]>
  func.func public @main(%a: tensor<12x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{FIRST}, {SECOND}]>})
      -> (tensor<12x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
    %0 = stablehlo.tanh %a : tensor<12x6xf32>
    return %0 : tensor<12x6xf32>
  }
}"""


@pytest.mark.parametrize(("first", "second", "cuts"), [
    ('"x":(1)3', '"x":(3)2', (3, 2)), ('"x":(1)2', '"x":(2)3', (2, 3)), ('"x":(3)2', "", (2, 1)), ("", '"x":(1)3', (1, 3)),
])  # fmt: skip
def test_axes_are_cut_in_the_order_of_their_parts(first, second, cuts):
    program = mw.load(PARTS.replace("FIRST", first).replace("SECOND", second))
    x = np.arange(72, dtype=np.float32).reshape(12, 6)
    for mesh in (None, mw.AbstractMesh((6,), ("x",)), mw.AbstractMesh((2, 3), ("a", "b"))):
        part = program.partition(mesh)
        assert part.verify(x)
        held = set(map(str, part.in_shardings[0].devices_indices_map((12, 6)).values()))
        assert len(held) == cuts[0] * cuts[1]
    on = program.in_shardings[0].devices_indices_map((12, 6))
    strides = {'"x":(1)3': 2, '"x":(1)2': 3, '"x":(3)2': 1, '"x":(2)3': 1, "": 6}
    for device, (rows, columns) in enumerate(on.values()):
        at = device // strides[first] % cuts[0], device // strides[second] % cuts[1]
        assert (rows.start or 0, columns.start or 0) == (at[0] * 12 // cuts[0], at[1] * 6 // cuts[1])


def test_parts_without_a_common_order_are_refused(refuses):
    text = PARTS.replace("FIRST", '"x":(1)3').replace("SECOND", "").replace('[{"x"}, {}]', '[{"x":(1)2}, {}]')
    with refuses(ShardingError, "is not a part of axis 'x' of size 6", "split the axis in the mesh itself"):
        mw.load(text).partition()


def test_edges_of_functions() -> None:
    text = f"""{MESH}
  func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {{
    %0 = call @f(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %1 = sdy.func_data_flow_edge %0 {{sharding = #sdy.sharding<@mesh, [{{"y"}}, {{"x"}}]>}} : tensor<8x16xf32>
    return %1 : tensor<8x16xf32>
  }}
  func.func private @f(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {{
    %0 = sdy.func_data_flow_edge %x : tensor<8x16xf32>
    %1 = stablehlo.sine %0 : tensor<8x16xf32>
    return %1 : tensor<8x16xf32>
  }}"""
    assert specs(check(text))[1] == [P("y", "x")]


def region(body: str, kind: str = "f32", manual: str = "[{?}, {?}]", after: str = "") -> str:
    """A manual region along y with ``%b`` made of ``%a``, and its result used ``after``."""
    return f"""{MESH}
  func.func @main(%x: tensor<8x16x{kind}>) -> tensor<8x16x{kind}> {{
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, {manual}>] out_shardings=[<@mesh, {manual}>] manual_axes={{"y"}} (%a: tensor<8x{4 if "y" in manual else 16}x{kind}>) {{
      {body}
    }} : (tensor<8x16x{kind}>) -> tensor<8x16x{kind}>
    %r = stablehlo.sine %0 {after} : tensor<8x16x{kind}>
    return %r : tensor<8x16x{kind}>
  }}"""


def test_what_follows_a_region_does_not_split_it_over_its_own_axes() -> None:
    body = """%b = stablehlo.add %a, %a : tensor<8x16xf32>
      sdy.return %b : tensor<8x16xf32>"""
    part = check(region(body, after='{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x", "y"}, {}]>]>}'))
    assert part.collectives == [] and specs(part)[1] == [P(("x", "y"), None)]


def test_operations_that_are_kept_run_for_each_device_of_a_region() -> None:
    """LAPACK has no kernels for half precision."""
    body = """%m = stablehlo.constant dense<0.25> : tensor<8x8xf16>
      %b = "stablehlo.triangular_solve"(%m, %a) {left_side = true, lower = true, unit_diagonal = true, transpose_a = #stablehlo<transpose NO_TRANSPOSE>} : (tensor<8x8xf16>, tensor<8x4xf16>) -> tensor<8x4xf16>
      sdy.return %b : tensor<8x4xf16>"""
    program = mw.load(region(body, "f16", '[{?}, {"y", ?}]'))
    x = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float16)
    assert [e.op.name for e in program.partition().jaxpr.jaxpr.eqns].count("opaque") == 1
    solved = np.linalg.solve(np.tril(np.full((8, 8), 0.25), -1) + np.eye(8), x.astype(float))
    np.testing.assert_allclose(np.asarray(program(x)).astype(float), np.sin(solved), atol=1e-2)
    program.partition().verify(x)
