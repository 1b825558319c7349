"""Operations of products in compiled modules, against what the products are."""

from __future__ import annotations

import pytest

from meshwright.targets.flops import product_operations
from meshwright.targets.hlo import parse_hlo

HEAD = "HloModule m, is_scheduled=true\n\n"


def count(line: str, *parameters: str) -> int:
    """Operations of a program whose last instruction is ``line``, of parameters ``%a``, ``%b`` of these types."""
    inside = "".join(f"  %{n} = {t} parameter({i})\n" for i, (n, t) in enumerate(zip("ab", parameters)))
    return product_operations(
        parse_hlo(f"{HEAD}ENTRY %main (a: f32[], b: f32[]) -> f32[] {{\n{inside}  ROOT {line}\n}}\n")
    )


CASES = {
    # 3 × 4 × 6 multiply-adds
    "dot": ("%r = f32[3,6]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
            ("f32[3,4]{1,0}", "f32[4,6]{1,0}"), 2 * 3 * 4 * 6),
    "dot, batched": ("%r = f32[5,3,6]{2,1,0} dot(%a, %b), lhs_batch_dims={0}, lhs_contracting_dims={2}, "
                     "rhs_batch_dims={0}, rhs_contracting_dims={1}",
                     ("f32[5,3,4]{2,1,0}", "f32[5,4,6]{2,1,0}"), 2 * 5 * 3 * 4 * 6),
    "a convolution as TPUs write dot": ("%r = f32[3,6]{1,0} convolution(%a, %b), dim_labels=bf_io->bf",
                                        ("f32[3,4]{1,0}", "f32[4,6]{1,0}"), 2 * 3 * 4 * 6),
    "a batch as a dilated dimension": (
        "%r = f32[5,3,6]{2,1,0} convolution(%a, %b), window={size=5 stride=4 lhs_dilate=5}, dim_labels=0bf_0io->0bf",
        ("f32[5,3,4]{2,1,0}", "f32[5,4,6]{2,1,0}"), 2 * 5 * 3 * 4 * 6),
    "padding is no work": ("%r = f32[2,8,8,6]{3,2,1,0} convolution(%a, %b), window={size=3x3 pad=1_1x1_1}, "
                           "dim_labels=b01f_01io->b01f", ("f32[2,8,8,4]{3,2,1,0}", "f32[3,3,4,6]{3,2,1,0}"),
                           2 * 2 * 22 * 22 * 4 * 6),
    "groups": ("%r = f32[2,6,6,8]{3,2,1,0} convolution(%a, %b), window={size=3x3}, dim_labels=b01f_01io->b01f, "
               "feature_group_count=4", ("f32[2,8,8,4]{3,2,1,0}", "f32[3,3,1,8]{3,2,1,0}"), 2 * 2 * 36 * 9 * 8),
    "a library's product": (
        '%r = (f32[3,6]{1,0}, s8[64]{0}) custom-call(%a, %b), custom_call_target="__cublas$lt$matmul", backend_config='
        '{"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["0"]}}}',
        ("f32[4,3]{1,0}", "f32[4,6]{1,0}"), 2 * 3 * 4 * 6),
    "a library's gradient of a kernel": (
        '%r = (f32[3,3,4,6]{3,2,1,0}, u8[0]{0}) custom-call(%a, %b), window={size=3x3 pad=1_1x1_1}, '
        'dim_labels=b01f_01io->b01f, custom_call_target="__cudnn$convBackwardFilter"',
        ("f32[2,8,8,4]{3,2,1,0}", "f32[2,8,8,6]{3,2,1,0}"), 2 * 2 * 22 * 22 * 4 * 6),
    "nothing": ("%r = f32[3]{0} add(%a, %b)", ("f32[3]{0}", "f32[3]{0}"), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_operations_of_a_product(name):
    line, parameters, expected = CASES[name]
    assert count(line, *parameters) == expected


def test_loops_and_branches():
    text = (
        HEAD
        + """%body (p: f32[3,3]) -> f32[3,3] {
  %p = f32[3,3]{1,0} parameter(0)
  ROOT %d = f32[3,3]{1,0} dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%test (p: f32[3,3]) -> pred[] {
  %p = f32[3,3]{1,0} parameter(0)
  ROOT %c = pred[] constant(true)
}

%other (p: f32[3,3]) -> f32[3,3] {
  ROOT %p = f32[3,3]{1,0} parameter(0)
}

ENTRY %main (a: f32[3,3], i: s32[], b: pred[]) -> f32[3,3] {
  %a = f32[3,3]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %w = f32[3,3]{1,0} while(%a), condition=%test, body=%body, backend_config={"known_trip_count":{"n":"7"}}
  %f = f32[3,3]{1,0} fusion(%w), kind=kLoop, calls=%body
  %b = pred[] parameter(2)
  %s = f32[3,3]{1,0} conditional(%b, %f, %f), true_computation=%other, false_computation=%body
  ROOT %r = f32[3,3]{1,0} conditional(%i, %s, %s), branch_computations={%body, %other}
}
"""
    )
    assert product_operations(parse_hlo(text)) == (7 + 1 + 1 + 1) * 2 * 27
