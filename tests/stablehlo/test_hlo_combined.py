"""What compilers write in HLO that StableHLO lacks: combined and asynchronous collectives, copies that convert."""

from __future__ import annotations

import re

import numpy as np
import pytest
from jaxlib import _hlo

import meshwright as mw
from meshwright.errors import CompileError, ReplicationWarning

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
    (16, 256): "{1,0:T(8,128)}", (2, 8, 2, 128): "{3,1,2,0:T(8,128)}", (64, 64): "{0,1:T(8,128)(2,1)}",
    (4, 8, 128): "{2,1,0:T(8,128)S(1)}", (5, 3): "{1,0:T(8,128)}", (5, 1): "{1,0:T(8,128)}",
    (5, 3, 1): "{1,0,2:T(8,128)}", (3, 5): "{0,1:T(8,128)}", (32,): "{0:T(128)}", (8, 4): "{1,0:T(4,128)}",
    (1024,): "{0:T(1024)}", (2, 2048): "{1,0:T(2,128)}",
}  # fmt: skip


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
