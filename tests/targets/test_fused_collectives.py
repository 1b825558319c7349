"""TPUs write reduce-scatters and all-gathers as all-reduces in fusions: what is sent is counted as what they are."""

from meshwright.targets.hlo import parse_hlo
from meshwright.targets.matching import sent_bytes
from meshwright.targets.schedule import schedule_of

TEXT = """HloModule step, entry_computation_layout={(f32[64,8]{1,0})->f32[64,8]{1,0}}

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%scatter (whole: f32[64,8]) -> f32[8,8] {
  %whole = f32[64,8]{1,0} parameter(0)
  %all-reduce = f32[64,8]{1,0} all-reduce(%whole), replica_groups={}, to_apply=%add
  %first = s32[] constant(0)
  ROOT %tile = f32[8,8]{1,0} dynamic-slice(%all-reduce, %first, %first), dynamic_slice_sizes={8,8}
}

%gather (tile.1: f32[8,8]) -> bf16[64,8] {
  %tile.1 = f32[8,8]{1,0} parameter(0)
  %zero = f32[] constant(0)
  %zeros = f32[64,8]{1,0} broadcast(%zero), dimensions={}
  %second = s32[] constant(0)
  %placed = f32[64,8]{1,0} dynamic-update-slice(%zeros, %tile.1, %second, %second)
  ROOT %all-reduce.1 = bf16[64,8]{1,0} all-reduce(%placed), replica_groups={}, to_apply=%add
}

%plain (other: f32[64,8]) -> f32[64,8] {
  %other = f32[64,8]{1,0} parameter(0)
  ROOT %all-reduce.2 = f32[64,8]{1,0} all-reduce(%other), replica_groups={}, to_apply=%add
}

ENTRY %main (a: f32[64,8]) -> f32[64,8] {
  %a = f32[64,8]{1,0} parameter(0)
  %b = f32[8,8]{1,0} fusion(%a), kind=kCustom, calls=%scatter
  %c = bf16[64,8]{1,0} fusion(%b), kind=kCustom, calls=%gather
  ROOT %d = f32[64,8]{1,0} fusion(%a), kind=kCustom, calls=%plain
}
"""


def test_all_reduces_in_fusions_are_what_is_done_with_them():
    found = schedule_of(parse_hlo(TEXT), 8).collectives
    sent = [(c.kind, sent_bytes(c.kind, 8, sum(t.nbytes for t in c.operands))) for c in found]
    whole = 64 * 8 * 4
    assert sent == [
        ("reduce_scatter", whole * 7 // 8),
        ("all_gather", whole * 7 // 8 // 2),  # bfloat16 on the links
        ("all_reduce", 2 * whole * 7 // 8),
    ]
