"""Programs that no device can run, or that mean nothing, are refused with an error that says why."""
# ruff: noqa: E501 -- lines of program texts

from __future__ import annotations

import pytest

import meshwright as mw
from meshwright.errors import ArgumentError, ImportProgramError


def program(body="return %x : tensor<8x4xf32>", x="", type_="tensor<8x4xf32>", attributes=""):
    return f"module attributes {{{attributes}}} {{\nfunc.func @main(%x: {type_} {{{x}}}) -> {type_} {{\n{body}\n}}}}"


def sharded(text):
    return program(x=f'mhlo.sharding = "{text}"')


CALL = "func.func @{}(%x: tensor<f32>) -> tensor<f32> {{ %0 = call @{}(%x) : (tensor<f32>) -> tensor<f32>\n return %0 : tensor<f32> }}\n"
HLO = "HloModule m\nENTRY e {{ x = {0} parameter(0)\n ROOT r = {0} add(x, x) }}"


def shardy(x, y):
    text = program(x='sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>')
    return text.replace("func.func", f'sdy.mesh @mesh = <["x"={x}, "y"={y}]>\nfunc.func', 1)


REFUSED = {
    "calls itself": (CALL.format("main", "main"), "calls 'main'.*expected no recursion"),
    "calls in a circle": (CALL.format("main", "f") + CALL.format("f", "main"), "call each other"),
    "a size of 2^80": (program(type_=f"tensor<{2**80}xf32>", body=f"return %x : tensor<{2**80}xf32>"), "invalid dimension"),
    "a size of 2^80 in HLO": (HLO.format(f"f32[{2**80}]"), "<text>:2:"),
    "a layout out of bounds": (HLO.format("f32[8,4]{5,7}"), "out-of-bounds"),
    "gigabytes that are left out": ("HloModule m\nENTRY e { ROOT x = f32[100000000000] constant({...}) }", "allocate|memory"),
    "10^12 tiles": (sharded("{devices=[1000000,1000000]<=[1000000000000]}"), "1000000000000 devices; expected at most"),
    "a tile of 10^12 replicas": (sharded("{devices=[7,1,1000000000000]<=[7000000000000] last_tile_dim_replicate}"), "at most"),
    "a sharding that is no proto": (sharded("\\08\\03\\1A\\01\\02\\22\\04\\00\\01\\FF"), "no text and no proto"),
    "an axis of 2^63 - 1": (shardy(2**63 - 1, 1), "expected at most 1048576"),
    "an axis of a large prime": (shardy(10**18 + 3, 1), "at most 1048576"),
    "axes of 2^64": (shardy(2**32, 2**32), "at most 1048576"),
    "2^31 partitions": (program(attributes="mhlo.num_partitions = 2147483647 : i32"), "num_partitions is 2147483647"),
    "no partitions": (program(attributes="mhlo.num_partitions = 0 : i32"), "num_partitions is 0"),
    "partitions as text": (program(attributes='mhlo.num_partitions = "four"'), "num_partitions is 'four'"),
    "the memory of no result": (program(x="tf.aliasing_output = 17 : i32"), "aliasing_output is 17, which is no result"),
    "the memory of a name": (program(x='tf.aliasing_output = "q"'), "aliasing_output is 'q'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    text, why = REFUSED[name]
    with pytest.raises(ImportProgramError, match=why):
        mw.load(text)


def test_paths_that_no_system_has():
    for path in ("HloModule \ud800", "a\0b"):
        with pytest.raises(ArgumentError, match="expected a path"):
            mw.load(path)


def test_large_values_are_read_and_not_made():
    huge = mw.load(
        "func.func @main() -> tensor<1000000000000xf32> {\n%0 = stablehlo.constant dense<1.0> : tensor<1000000000000xf32>\n"
        "return %0 : tensor<1000000000000xf32>\n}"
    )
    assert huge.out_avals[0].shape == (10**12,) and "1000000000000" in huge.as_text()
    size = f"tensor<{2**62}xf32>"
    with pytest.raises(ImportProgramError, match=r"has 18446744073709551616 bytes; .* which 64 bits count"):
        mw.load(program(f"%0 = stablehlo.tanh %x : {size}\nreturn %0 : {size}", type_=size))
