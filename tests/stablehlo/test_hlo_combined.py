"""What compilers write in HLO that StableHLO lacks: combined and asynchronous collectives, copies that convert."""

from __future__ import annotations

import re

import numpy as np
import pytest
from jaxlib import _hlo

import meshwright as mw
from meshwright.errors import CompileError, ImportProgramError, ReplicationWarning

N = 4
RNG = np.random.default_rng(0)
A, B = (RNG.normal(size=s).astype(np.float32) for s in ((N, 8, 3), (N, 4)))
TYPES, PARTS = "f32[8,3]{1,0}, f32[4]{0}", "f32[2,3]{1,0}, f32[1]{0}"
PAIRS = "channel_id=1, source_target_pairs={{0,1},{1,2},{2,3},{3,0}}"
GROUPS = "channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true, dimensions={0}"
GATHERED = "f32[32,3]{1,0}, f32[16]{0}"


def module(types, body, computation=""):
    return f"""HloModule m, num_partitions={N}

%add (x: f32[], y: f32[]) -> f32[] {{
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}}
{computation}
ENTRY %main (a: f32[8,3], b: f32[4]) -> ({types}) {{
  %a = f32[8,3]{{1,0}} parameter(0)
  %b = f32[4]{{0}} parameter(1)
{body}
}}
"""


def moved(x):
    return np.roll(x, 1, 0)


def scattered(x):
    return x.sum(0).reshape(N, x.shape[1] // N, *x.shape[2:])


def gathered(x):
    return np.broadcast_to(x.reshape(-1, *x.shape[2:]), (N, N * x.shape[1], *x.shape[2:]))


SCATTER = f"""
%scatter (p: f32[8,3], q: f32[4]) -> ({PARTS}) {{
  %p = f32[8,3]{{1,0}} parameter(0)
  %q = f32[4]{{0}} parameter(1)
  ROOT %rs = ({PARTS}) reduce-scatter(f32[8,3]{{1,0}} %p, f32[4]{{0}} %q), {GROUPS}, to_apply=%add
}}
"""
PROGRAMS = {
    "scattered": (
        module(PARTS, f"  ROOT %r = ({PARTS}) reduce-scatter(%a, %b), {GROUPS}, to_apply=%add"),
        scattered, "reduce_scatter",
    ),
    "scattered, started": (
        module(PARTS, f"""\
  %s = (({TYPES}), ({PARTS}), u32[]) async-start(%a, %b), calls=%scatter, metadata={{op_name="a(b)"}}
  %v = (({TYPES}), ({PARTS}), u32[]) async-update(%s)
  ROOT %d = ({PARTS}) async-done(%v)""", SCATTER),
        scattered, "reduce_scatter",
    ),
    "moved": (
        module(TYPES, f"""\
  %r = (f32[8,3]{{1,0}}, /*index=1*/f32[4]{{0}}) collective-permute(%a, %b), {PAIRS}
  %x = f32[8,3]{{1,0}} get-tuple-element(%r), index=0
  %y = f32[4]{{0}} get-tuple-element(%r), index=1
  ROOT %t = ({TYPES}) tuple(%x, %y)"""),
        moved, "collective_permute",
    ),
    "moved, started": (
        module(TYPES, f"""\
  %s = (({TYPES}), ({TYPES})) collective-permute-start(%a, %b), {PAIRS}
  ROOT %s.1 = ({TYPES}) collective-permute-done((({TYPES}), ({TYPES})) %s)"""),
        moved, "collective_permute",
    ),
    "gathered, started": (
        module(GATHERED, f"""\
  %s = (({TYPES}), ({GATHERED})) all-gather-start(%a, %b), {GROUPS}
  %late = f32[8,3]{{1,0}} negate(%a), control-predecessors={{%s}}
  %d = ({GATHERED}) all-gather-done(%s)
  %x = f32[32,3]{{1,0}} get-tuple-element(%d), index=0
  %y = f32[16]{{0}} get-tuple-element(%d), index=1
  ROOT %t = ({GATHERED}) tuple(%x, %y)"""),
        gathered, "all_gather",
    ),
}  # fmt: skip


#: protos do not say for how many devices they are, nor do pairs of devices
FORMS = [(name, form) for name in PROGRAMS for form in ("text", "proto") if form == "text" or "moved" not in name]


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_combined_collectives_are_read(name, form):
    text, expected, kind = PROGRAMS[name]
    data = text if form == "text" else _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    program = mw.load(data)
    for got, x in zip(program(A, B), (A, B), strict=True):
        np.testing.assert_allclose(got, expected(x), rtol=1e-5)
    assert [c.kind for c in program.partition().collectives] == [kind, kind]


def test_numbers_that_order_collectives_go_through():
    """As in PyTorch/XLA, whose numbers have nothing to gather, and are in groups of one."""
    groups = "replica_groups={{0},{1},{2},{3}}, dimensions={0}"
    types = "f32[8,3]{1,0}, f32[]"
    body = f"""\
  %i = f32[] constant(3)
  %g = ({types}) all-gather(f32[8,3]{{1,0}} %a, f32[] %i), {groups}
  %u = f32[8,3]{{1,0}} get-tuple-element(({types}) %g), index=0
  %j = f32[] get-tuple-element(({types}) %g), index=1
  ROOT %r = ({types}) reduce-scatter(f32[8,3]{{1,0}} %u, f32[] %j), {groups}, to_apply=%add"""
    text = module(types, body).replace("num_partitions", "replica_count")
    whole, number = mw.load(text)(A, B)
    np.testing.assert_array_equal(whole, A)
    np.testing.assert_array_equal(number, np.full(N, 3))


TILED = """HloModule m

ENTRY %main (a: f32[8,128]) -> (bf16[8,128], f32[128,8]) {
  %a = f32[8,128]{1,0:T(8,128)} parameter(0)
  %s = (f32[8,128]{1,0:T(8,128)S(1)}, f32[8,128]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%a)
  %d = f32[8,128]{1,0:T(8,128)S(1)} copy-done(%s)
  %n = bf16[8,128]{1,0:T(8,128)(2,1)} copy(%d)
  %w = f32[8,128]{1,0:T(8,128)} add(%n, %a)
  %t = f32[128,8]{1,0:T(8,128)} transpose(%w), dimensions={1,0}
  %m = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} multiply(%a, %d)
  ROOT %r = (bf16[8,128]{1,0:T(8,128)(2,1)}, f32[128,8]{1,0:T(8,128)}) tuple(%m, %t)
}
"""


@pytest.mark.parametrize("form", ["text", "proto"])
def test_operations_of_tpus_may_convert(form):
    data = TILED if form == "text" else _hlo.hlo_module_from_text(TILED).as_serialized_hlo_module_proto()
    x = RNG.normal(size=(8, 128)).astype(np.float32)
    narrow, wide = mw.load(data)(x)
    np.testing.assert_array_equal(narrow, (x * x).astype(narrow.dtype))
    np.testing.assert_array_equal(wide, (x.astype(narrow.dtype).astype(np.float32) + x).T)


LAYOUTS = {
    (16, 256): "{1,0:T(8,128)}",
    (2, 8, 2, 128): "{3,1,2,0:T(8,128)}",
    (64, 64): "{0,1:T(8,128)(2,1)}",
    (4, 8, 128): "{2,1,0:T(8,128)S(1)}",
    (5, 3): "{1,0:T(8,128)}",
    (5, 1): "{1,0:T(8,128)}",
    (5, 3, 1): "{1,0,2:T(8,128)}",
    (3, 5): "{0,1:T(8,128)}",
    (32,): "{0:T(128)}",
    (8, 4): "{1,0:T(4,128)}",
    (1024,): "{0:T(1024)}",
    (2, 2048): "{1,0:T(2,128)}",
}


def offsets(dims, layout):
    """The place in memory of every element, by the definition of tiled layouts, and the number of places."""
    minor, _, tiles = layout.strip("{}").partition(":")
    order = [int(d) for d in minor.split(",")][::-1]
    index = [i.reshape(-1) for i in np.meshgrid(*map(np.arange, dims), indexing="ij")]
    index, sizes = [index[d] for d in order], [dims[d] for d in order]
    for tile in re.findall(r"\(([\d,]+)\)", tiles.split("S")[0]):
        tile = [int(n) for n in tile.split(",")]
        first = len(sizes) - len(tile)
        outer = [i // t for i, t in zip(index[first:], tile)]
        inner = [i % t for i, t in zip(index[first:], tile)]
        counts = [-(-n // t) for n, t in zip(sizes[first:], tile)]
        index, sizes = [*index[:first], *outer, *inner], [*sizes[:first], *counts, *tile]
    return np.ravel_multi_index(index, sizes), int(np.prod(sizes))


@pytest.mark.parametrize("given", LAYOUTS, ids=str)
def test_bitcasts_between_tiled_layouts_read_the_same_memory(given):
    x = np.arange(np.prod(given), dtype=np.float32).reshape(given) + 1
    held, size = offsets(given, LAYOUTS[given])
    memory = np.zeros(size, np.float32)
    memory[held] = x.reshape(-1)
    known = 0
    for made, layout in LAYOUTS.items():
        read, room = offsets(made, layout)
        if room != size:
            continue
        shape, result = (f"f32[{','.join(map(str, d))}]" for d in (given, made))
        text = f"""HloModule m

ENTRY %main (a: {shape}) -> {result} {{
  %a = {shape}{LAYOUTS[given]} parameter(0)
  ROOT %b = {result}{layout} bitcast(%a)
}}
"""
        want = memory[read].reshape(made)
        if want.all():
            np.testing.assert_array_equal(mw.load(text)(x), want)
            known += 1
        else:  # it reads padding, whose elements are not known
            with (
                pytest.warns(ReplicationWarning, match="BitcastOfPadding"),
                pytest.raises(CompileError, match="Padding"),
            ):
                mw.load(text)(x)
    assert known


def test_names_that_are_operations_or_computations_stay(recwarn):
    gathers = "replica_groups={{0,1,2,3}}, dimensions={0}, use_global_device_ids=true, channel_id="
    body = f"""  %all-gather-start = ((f32[8,3], f32[4]), (f32[32,3], f32[16])) all-gather-start(%a, %b), {gathers}1
  %all-gather-start.1 = (f32[4], f32[16]) all-gather-start(%b), {gathers}2
  %all-gather-done = (f32[32,3], f32[16]) all-gather-done(%all-gather-start)
  %all-gather-done.1 = f32[16] all-gather-done(%all-gather-start.1)
  %g = f32[32,3] get-tuple-element(%all-gather-done), index=0
  %kept = (f32[16], f32[16], u32[]) copy-start(%all-gather-done.1), metadata={{op_name="%kept"}}
  %other = f32[16] copy-done(%kept), metadata={{op_name="f(x) reduce-scatter(y), kept"}}
  %called = f32[16] call(%other), to_apply=%kept
  ROOT %t = (f32[32,3], f32[16]) tuple(%g, %called)"""
    functions = "".join(
        f"\n%{name} (p: f32[16]) -> f32[16] {{\n  %p = f32[16] parameter(0)\n  ROOT %n = f32[16] {op}(%p)\n}}\n"
        for name, op in (("kept", "negate"), ("other", "abs"))
    )
    first, second = mw.load(module(GATHERED, body, functions))(A, B)
    np.testing.assert_array_equal(first, gathered(A))
    np.testing.assert_array_equal(second, -gathered(B))


def test_computations_of_a_thread_have_names_of_their_own():
    text = """HloModule m

%s (p: f32[2]) -> (f32[2], f32[2]) {
  %p = f32[2] parameter(0)
  %s = (f32[2], f32[2], u32[]) copy-start(%p)
  %d = f32[2] copy-done(%s)
  ROOT %both = (f32[2], f32[2]) tuple(%d, %p)
}, execution_thread="other"

ENTRY %main (a: f32[2]) -> (f32[2], f32[2], f32[2]) {
  %a = f32[2] parameter(0)
  %s = f32[2] negate(%a)
  %begun = ((f32[2]), (f32[2], f32[2]), u32[]) async-start(%s), async_execution_thread="other", calls=%s, \
metadata={op_name="calls=%x, a},b( s" source_line=3}, backend_config={"a":{"b":"-done(%s) },"}}
  %d = (f32[2], f32[2]) async-done(%begun), metadata={op_name="x) async-done(%s)"}
  %one = f32[2] get-tuple-element(%d), index=0
  %two = f32[2] get-tuple-element(%d), index=1
  ROOT %t = (f32[2], f32[2], f32[2]) tuple(%one, %two, %s)
}
"""
    x = np.array([1, 2], np.float32)
    for got in mw.load(text)(x):
        np.testing.assert_array_equal(got, -x)


@pytest.mark.parametrize("operand", ["%a", "a", "f32[16,256]{1,0:T(8,128)S(1)} %a", "/*index=0*/%a"])
@pytest.mark.parametrize("type_", ["f32", "s32"])
def test_operands_may_have_types_and_comments(operand, type_):
    x = np.arange(16 * 256, dtype=np.float32).reshape(16, 256)
    text = f"""HloModule m

ENTRY %main (a: f32[16,256]) -> ({type_}[4096], bf16[16,256]) {{
  %a = f32[16,256]{{1,0:T(8,128)S(1)}} parameter(0)
  %b = {type_}[4096]{{0:T(1024)}} bitcast({operand})
  %c = bf16[16,256]{{1,0:T(8,128)(2,1)}} copy({operand}), metadata={{op_name="copy(a)"}}
  ROOT %t = ({type_}[4096]{{0:T(1024)}}, bf16[16,256]{{1,0:T(8,128)(2,1)}}) tuple(%b, %c)
}}
"""
    memory, rounded = mw.load(text)(x)
    want = x.reshape(2, 8, 2, 128).transpose(0, 2, 1, 3).reshape(-1)
    np.testing.assert_array_equal(memory, want.view(np.float32 if type_ == "f32" else np.int32))
    np.testing.assert_array_equal(rounded, x.astype(rounded.dtype))


def bitcast(kind, layout, result):
    return f"""HloModule m

ENTRY %main (a: {kind}[16,256]) -> {result.partition("{")[0]} {{
  %a = {kind}[16,256]{layout} parameter(0)
  ROOT %b = {result} bitcast(%a)
}}
"""


@pytest.mark.parametrize("kind", ["f8e4m3fn", "pred", "s8", "u16", "c64"])
def test_bitcasts_of_any_type_move_elements(kind):
    program = mw.load(bitcast(kind, "{1,0:T(8,128)}", f"{kind}[4096]{{0:T(1024)}}"))
    x = (np.arange(16 * 256) % 101).reshape(16, 256).astype(program.in_avals[0].dtype)
    want = x.reshape(2, 8, 2, 128).transpose(0, 2, 1, 3).reshape(-1)
    np.testing.assert_array_equal(np.asarray(program(x)), want)


@pytest.mark.parametrize(
    ("kind", "layout", "result"),
    [
        ("f32", "{1,0:T(*,128)}", "f32[4096]{0:T(1024)}"),  # a tile of dimensions that are one
        ("f32", "{1,0:D(D,C)T(8,128)}", "f32[4096]{0:T(1024)}"),  # sparse
        ("f32", "{1,0:T(8,128)}", "u8[16384]{0:T(1024)}"),  # of another width
    ],
)
def test_bitcasts_of_unknown_layouts_do_not_run(kind, layout, result):
    with (
        pytest.warns(ReplicationWarning, match="BitcastOfPadding"),
        pytest.raises(CompileError, match="Padding"),
    ):
        mw.load(bitcast(kind, layout, result))(np.ones((16, 256), kind.replace("f32", "float32")))


def test_collectives_of_tpus_that_convert():
    groups = "channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true"
    body = f"""  %r = bf16[8,3]{{1,0:T(8,128)(2,1)}} all-reduce(%a), {groups}, to_apply=%add
  %g = bf16[16]{{0:T(128)}} all-gather(%b), {groups}, dimensions={{0}}
  ROOT %t = (bf16[8,3]{{1,0:T(8,128)(2,1)}}, bf16[16]{{0:T(128)}}) tuple(%r, %g)"""
    text = module("bf16[8,3], bf16[16]", body)
    summed, together = mw.load(text.replace("= f32[8,3]{1,0} param", "= f32[8,3]{1,0:T(8,128)} param"))(A, B)
    np.testing.assert_allclose(np.asarray(summed, np.float32)[0], A.sum(0), rtol=1e-2)
    np.testing.assert_allclose(np.asarray(together, np.float32), gathered(B), rtol=1e-2)


@pytest.mark.parametrize("update", ["%s = (f32[4]) async-update(%s)", "%u = (f32[4]) async-update(%v)"])
def test_updates_of_themselves_are_refused(update):
    """They are rewritten in this process, where nothing ends what does not end."""
    body = f"""\
  {update}
  %v = (f32[4]) async-update(%u)
  ROOT %d = f32[4] async-done(%v)"""
    with pytest.raises(ImportProgramError):
        mw.load(module("f32[4]", body))
