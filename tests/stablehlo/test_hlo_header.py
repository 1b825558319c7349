"""What the first line of HLO text says of a program: donations, also of members of tuples, and what stays whole."""

from __future__ import annotations

import pytest
from jaxlib import _hlo

import meshwright as mw
from meshwright import PartitionSpec as P
from meshwright.errors import ImportProgramError

NESTED = """HloModule m, {header}

ENTRY main {{
  x = f32[8,6] parameter(0), metadata={{op_name="s"}}
  w = (f32[6,4], (f32[8,4], f32[8])) parameter(1), metadata={{op_name="s"}}
  w0 = f32[6,4] get-tuple-element(w), index=0
  w1 = (f32[8,4], f32[8]) get-tuple-element(w), index=1
  d = f32[8,4] dot(x, w0), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT t = (f32[8,4], (f32[8,4], f32[8])) tuple(d, w1)
}}
"""
FLAT = """HloModule m, {header}num_partitions=8

ENTRY main {{
  x = f32[8,6] parameter(0), sharding={{devices=[4,2]<=[8]}}
  w = f32[6,4] parameter(1)
  d = f32[8,4] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT t = (f32[8,4], f32[8,4]) tuple(d, d)
}}
"""


def as_proto(text: str) -> bytes:
    return _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()


@pytest.mark.parametrize("form", [str, as_proto])
@pytest.mark.parametrize(
    ("header", "donated", "aliases"),
    [
        ("buffer_donor={ (0, {}) }", [0], {}),
        ("buffer_donor={ (1, {0}), (1, {1,1}) }", [1, 3], {}),
        ("input_output_alias={ {1,0}: (1, {1,0}, may-alias), {1,1}: (1, {1,1}) }", [2, 3], {2: 1, 3: 2}),
    ],
)
def test_donations(form, header, donated, aliases):
    program = mw.load(form(NESTED.format(header=header)))
    assert program.donated == donated
    assert {i: p.alias for i, p in enumerate(program.parameters) if p.alias is not None} == aliases
    assert [p.name for p in program.parameters] == ["s", "s.0", "s.1.0", "s.1.1"]


def test_what_propagation_must_not_reach_stays_whole():
    def specs(header: str) -> list[P]:
        part = mw.load(FLAT.format(header=header)).partition()
        return [s.spec for s in (*part.in_shardings, *part.out_shardings)]

    x, rows, columns, whole = P("x0", "x1"), P("x0"), P("x1"), P(None, None)
    parameters, output = (f"allow_spmd_sharding_propagation_to_{side}=" for side in ("parameters", "output"))
    assert specs("") == specs(f"{parameters}{{}}, ") == [x, columns, rows, rows]
    assert specs(f"{parameters}{{false,true}}, {output}{{true}}, ") == [x, columns, rows, rows]
    assert specs(f"{parameters}{{true,false}}, {output}{{true,false}}, ") == [x, whole, rows, whole]
    assert specs(f"{output}{{false}}, ") == [x, columns, whole, whole]


@pytest.mark.parametrize("number", [-4, 0, 2**40])
def test_numbers_of_devices_that_no_program_has_are_refused(number):
    with pytest.raises(ImportProgramError, match=r"mhlo\.num_partitions is .*; expected a number of 1 to"):
        mw.load(FLAT.format(header="").replace("num_partitions=8", f"num_partitions={number}"))


ELEMENT = """HloModule m
f {{
  t = (f32[2], (f32[2]{{0}}, s32[])) parameter(0)
  ROOT r = f32[2] get-tuple-element(t), index=0
}}

ENTRY main {{
  x = f32[2] parameter(0)
  n = () tuple()
  t = (f32[2]{{0:T(128)}}, /*index=1*/(f32[2], f32[3,4]), f32[2]) parameter(1)
  ROOT %r = f32[2] get-tuple-element({operand}), index={index}
}}
"""


@pytest.mark.parametrize("operand", ["t", "(f32[2]{0:T(128)}, (f32[2], /*index=1*/f32[3,4]), f32[2]{0}) %t"])
def test_members_that_tuples_do_not_have_are_refused(operand):
    assert mw.load(ELEMENT.format(operand=operand, index=2)).out_avals[0].shape == (2,)
    for index in (3, -1, 10**9):
        with pytest.raises(ImportProgramError, match=rf"<text>:11: index {index} of 't', which has 3 members\n"):
            mw.load(ELEMENT.format(operand=operand, index=index))
    with pytest.raises(ImportProgramError, match="<text>:11: index 0 of 'n', which has 0 members"):
        mw.load(ELEMENT.format(operand="n", index=0))
