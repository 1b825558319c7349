"""Errors and reports on HLO text name its line, though XLA's parser keeps none."""

from __future__ import annotations

import re

import pytest

import meshwright as mw
from meshwright.errors import ImportProgramError

TEXT = """HloModule m, num_partitions=8

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b)
}

ENTRY main {
  x = f32[8,6] parameter(0), sharding={devices=[4,2]<=[8]}
  y = f32[8,6] tanh(x)
  z = BODY
  ROOT out = f32[8,6] negate(y)
}
"""
TOO_FEW = "sharding {devices=[4,1]<=[4]} names 4 devices but the program runs on 8"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("f32[<=8,6] set-dimension-size(y, n), dimensions={0}", "makes a dynamic shape"),
        ("u64[2] rng-get-and-update-state(), delta=1", "talks to the host"),
        ("f32[8,6] sine(y), sharding={devices=[8]<=[8]}", "is for 1 dimension, the value is f32[8,6]"),
        ("f32[8,6] sine(y), sharding={devices=[4,1]<=[4]}", TOO_FEW),
        ('f32[8,6] sine(y), sharding={devices=[4,1]<=[4]}, metadata={op_name="f/sin"}', TOO_FEW),
        ('f32[8,6] sine(y), sharding={devices=[4,1]<=[4]}, metadata={op_name="f/sin" source_file="f.py" source_line=3}',
         "(from f.py:3 (f/sin)): num_partitions: " + TOO_FEW),
        ("f32[8,6] sine(y), sharding={devices=[4,2]<=[7]}", "have 8 tiles but 7 devices are given"),
        ("f32[8,6] sine(y), sharding={{replicated},{replicated}}", "has 2 elements, the value has 1"),
        ("(f32[8,6], f32[8,6]) custom-call(y), custom_call_target=\"f\", sharding={{replicated}}",
         "has 1 element, the value has 2"),
        ("f32[8,7] reshape(y)", "Check failed"),  # XLA ends its process
        ("f32[8,5] sine(y)", "requires compatible types for all operands and results"),
        ("f32[8,9] dot(y, y), lhs_contracting_dims={1}, rhs_contracting_dims={1}", "inferred shape '[8, 8]'"),
        ('f32[8,6] custom-call(y), custom_call_target="Sharding", backend_config="unspecified_dims=[2]", '
         "sharding={devices=[4,2]<=[8]}", "has unspecified_dims [2], the value has 2 dimensions"),
    ],
)  # fmt: skip
def test_errors_name_the_line(body: str, error: str) -> None:
    line = 1 + TEXT.split("\n").index("  z = BODY")
    text = TEXT.replace("BODY", body)
    if "(y, n)" in body:
        text, line = text.replace("  y =", "  n = s32[] parameter(1)\n  y ="), line + 1
    with pytest.raises(ImportProgramError, match=re.escape(error)) as found:
        mw.load(text)
    assert str(found.value).startswith(f"<text>:{line}: ")


def test_arguments_are_named() -> None:
    text = TEXT.replace("  z = BODY\n", "").replace("devices=[4,2]<=[8]", "devices=[8]<=[8]")
    with pytest.raises(ImportProgramError, match=r"^<text>:10: .*argument 0 \(x\): sharding .* is for 1 dimension"):
        mw.load(text)


def test_collectives_name_the_line() -> None:
    """Where a name occurs twice, as in the bodies of reductions, no line is named rather than a wrong one."""
    sum_ = "f32[] constant(0)\n  s = f32[8] reduce(y, z), dimensions={1}, to_apply=add"
    text = TEXT.replace("BODY", sum_).replace("f32[8,6] negate(y)", "f32[8] tanh(s)")
    (complete,) = mw.load(text).partition().collectives
    assert str(complete.source) == "<text>:14 (out)"
    (complete,) = mw.load(text.replace("ROOT out", "ROOT r")).partition().collectives
    assert str(complete.source) == "<text> (r.1)"
