"""64-bit integers of loaded programs as words of 32: what is computed stays, and so does what words do not say."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
from meshwright import errors

U = np.array([0, 1, 77, 2**31, 2**32 - 9, 2**32 - 1], np.uint32)
S = np.array([0, 1, -1, -77, -(2**31), 2**31 - 1], np.int32)
u64, i64 = np.uint64, np.int64
WIDE = "(tensor<6xui32>) -> tensor<6xui64>"
LOW = "(tensor<6xui64>) -> tensor<6xui32>"
LONG, INT = "(tensor<6xi32>) -> tensor<6xi64>", "(tensor<6xi64>) -> tensor<6xi32>"


def load(body: str, result: str, takes: str = "%u: tensor<6xui32>, %s: tensor<6xi32>") -> mw.ImportedProgram:
    return mw.load(f"func.func @main({takes}) -> {result} {{\n{body}\n  return %r : {result} }}")


def op(name: str, dtype: str = "ui64", n: int = 6) -> str:
    """``%r64 = name(%a, %b)``."""
    return f"%r64 = stablehlo.{name} %a, %b : tensor<{n}x{dtype}>\n"


A = f"%a = stablehlo.convert %u : {WIDE}\n"
SA = f"%a = stablehlo.convert %s : {LONG}\n"
TO_U, TO_S = f"%r = stablehlo.convert %r64 : {LOW}", f"%r = stablehlo.convert %r64 : {INT}"


def by(value: int, dtype: str = "ui64") -> str:
    return f"%b = stablehlo.constant dense<{value}> : tensor<6x{dtype}>\n"


ROW = np.arange(6, dtype=np.uint32)
GOLDEN = 0x9E3779B97F4A7C15
#: the body, the type of its result, and what that is
SAID = {
    "counts": (
        """%i = stablehlo.iota dim = 0 : tensor<3x5xui64>
        %j = stablehlo.iota dim = 1 : tensor<3x5xui64>
        %n = stablehlo.constant dense<858993459> : tensor<3x5xui64>
        %k = stablehlo.multiply %i, %n : tensor<3x5xui64>
        %c = stablehlo.add %k, %j : tensor<3x5xui64>
        %d = stablehlo.constant dense<32> : tensor<3x5xui64>
        %h = stablehlo.shift_right_logical %c, %d : tensor<3x5xui64>
        %low = stablehlo.convert %c : (tensor<3x5xui64>) -> tensor<3x5xui32>
        %high = stablehlo.convert %h : (tensor<3x5xui64>) -> tensor<3x5xui32>
        %r = stablehlo.add %low, %high : tensor<3x5xui32>""",
        "tensor<3x5xui32>",
        lambda: np.arange(3, dtype=np.uint32)[:, None] * np.uint32(858993459) + np.arange(5, dtype=np.uint32),
    ),
    "lower words of products": (
        A + by(GOLDEN) + op("multiply") + TO_U, "tensor<6xui32>", lambda: (U * u64(GOLDEN)).astype(np.uint32),
    ),
    "lower words of signed ones": (
        SA + by(-3, "i64") + op("subtract", "i64") + TO_S, "tensor<6xi32>", lambda: (S - i64(-3)).astype(np.int32),
    ),
    "sums that doubles round": (
        "%i = stablehlo.iota dim = 0 : tensor<1xui64>\n%b = stablehlo.constant dense<3> : tensor<1xui64>\n"
        "%k = stablehlo.multiply %i, %b : tensor<1xui64>\n"
        f"%c = stablehlo.constant dense<{GOLDEN}> : tensor<1xui64>\n%d = stablehlo.add %k, %c : tensor<1xui64>\n"
        "%r = stablehlo.convert %d : (tensor<1xui64>) -> tensor<1xui32>",
        "tensor<1xui32>", lambda: np.full(1, GOLDEN & 0xFFFFFFFF, np.uint32),
    ),
    "upper words": (A + by(40) + op("shift_right_logical") + TO_U, "tensor<6xui32>", lambda: np.zeros(6, np.uint32)),
    "upper bits": (A + by(3) + op("shift_right_logical") + TO_U, "tensor<6xui32>", lambda: U >> 3),
    "out of the word": (A + by(33) + op("shift_left") + TO_U, "tensor<6xui32>", lambda: np.zeros(6, np.uint32)),
    "bits": (
        A + by(2**40 + 255) + "%c = stablehlo.and %a, %b : tensor<6xui64>\n%d = stablehlo.or %a, %c : tensor<6xui64>\n"
        "%r64 = stablehlo.xor %d, %b : tensor<6xui64>\n" + TO_U,
        "tensor<6xui32>", lambda: U ^ np.uint32(255),
    ),
    "order": (
        A + by(2**31) + "%r = stablehlo.compare GT, %a, %b : (tensor<6xui64>, tensor<6xui64>) -> tensor<6xi1>",
        "tensor<6xi1>", lambda: U > 2**31,
    ),
    "order of signed ones": (
        SA + by(-5, "i64") + "%r = stablehlo.compare LT, %a, %b : (tensor<6xi64>, tensor<6xi64>) -> tensor<6xi1>",
        "tensor<6xi1>", lambda: S < -5,
    ),
    "floats": (
        A + "%r = stablehlo.convert %a : (tensor<6xui64>) -> tensor<6xf32>", "tensor<6xf32>", lambda: U.astype("f4"),
    ),
    "floats of signed ones": (
        SA + "%r = stablehlo.convert %a : (tensor<6xi64>) -> tensor<6xf32>", "tensor<6xf32>", lambda: S.astype("f4"),
    ),
    "truth": (
        A + "%r = stablehlo.convert %a : (tensor<6xui64>) -> tensor<6xi1>", "tensor<6xi1>", lambda: U != 0,
    ),
    "narrower ones": (
        f"""%k = stablehlo.convert %s : (tensor<6xi32>) -> tensor<6xi8>
        %a = stablehlo.convert %k : (tensor<6xi8>) -> tensor<6xi64>
        %b = stablehlo.constant dense<1000> : tensor<6xi64>
        {op("multiply", "i64")}{TO_S}""",
        "tensor<6xi32>", lambda: S.astype(np.int8) * np.int32(1000),
    ),
    "moves": (
        A + """%b = stablehlo.reverse %a, dims = [0] : tensor<6xui64>
        %p = stablehlo.constant dense<[true, false, true, true, false, false]> : tensor<6xi1>
        %c = stablehlo.select %p, %a, %b : tensor<6xi1>, tensor<6xui64>
        %d = stablehlo.reshape %c : (tensor<6xui64>) -> tensor<2x3xui64>
        %e = stablehlo.transpose %d, dims = [1, 0] : (tensor<2x3xui64>) -> tensor<3x2xui64>
        %f = stablehlo.slice %e [0:2, 0:2] : (tensor<3x2xui64>) -> tensor<2x2xui64>
        %g = stablehlo.concatenate %e, %f, dim = 0 : (tensor<3x2xui64>, tensor<2x2xui64>) -> tensor<5x2xui64>
        %r = stablehlo.convert %g : (tensor<5x2xui64>) -> tensor<5x2xui32>""",
        "tensor<5x2xui32>",
        lambda: np.take(np.where([1, 0, 1, 1, 0, 0], U, U[::-1]).reshape(2, 3).T, [0, 1, 2, 0, 1], 0),
    ),
    "pairs": (
        """%p = stablehlo.reshape %u : (tensor<6xui32>) -> tensor<3x2xui32>
        %a = stablehlo.bitcast_convert %p : (tensor<3x2xui32>) -> tensor<3xui64>
        %r = stablehlo.bitcast_convert %a : (tensor<3xui64>) -> tensor<3x2xui32>""",
        "tensor<3x2xui32>", lambda: U.reshape(3, 2),
    ),
    "in loops and branches": (
        f"""%z = stablehlo.constant dense<0> : tensor<i32>
        %one = stablehlo.constant dense<1> : tensor<i32>
        %n = stablehlo.constant dense<3> : tensor<i32>
        %q:2 = stablehlo.while(%k = %z, %x = %u) : tensor<i32>, tensor<6xui32>
        cond {{
          %p = stablehlo.compare LT, %k, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %p : tensor<i1>
        }} do {{
          %i = stablehlo.iota dim = 0 : tensor<6xui64>
          %j = stablehlo.convert %i : {LOW}
          %odd = stablehlo.and %k, %one : tensor<i32>
          %y = "stablehlo.case"(%odd) ({{
            %w = stablehlo.convert %x : {WIDE}
            %v = stablehlo.multiply %w, %w : tensor<6xui64>
            %low = stablehlo.convert %v : {LOW}
            stablehlo.return %low : tensor<6xui32>
          }}, {{ stablehlo.return %x : tensor<6xui32> }}) : (tensor<i32>) -> tensor<6xui32>
          %next = stablehlo.add %y, %j : tensor<6xui32>
          %m = stablehlo.add %k, %one : tensor<i32>
          stablehlo.return %m, %next : tensor<i32>, tensor<6xui32>
        }}
        %r = stablehlo.add %q#1, %q#1 : tensor<6xui32>""",
        "tensor<6xui32>", lambda: 2 * ((U * U + 2 * ROW) ** 2 + ROW),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_words_say_what_64_bits_say(name):
    body, result, expected = SAID[name]
    program = load(body, result)
    assert not program.is_wide
    got = mw.jit(lambda u, s: program(u, s))(U, S)
    assert got.dtype == expected().dtype
    np.testing.assert_array_equal(got, expected())


U64 = "tensor<6xui64>"
SQUARE = A + f"%b = stablehlo.multiply %a, %a : {U64}\n"
BELOW = f"%r = stablehlo.compare LT, %a, %b : ({U64}, {U64}) -> tensor<6xi1>"
STAYS = {
    "results": (A.replace("%a", "%r"), U64),
    "upper words of products": (
        f"{SQUARE}%c = stablehlo.constant dense<32> : {U64}\n"
        f"%r64 = stablehlo.shift_right_logical %b, %c : {U64}\n{TO_U}",
        "tensor<6xui32>",
    ),
    "order of products": (SQUARE + BELOW, "tensor<6xi1>"),
    "order of what wraps": (SQUARE.replace("multiply", "subtract") + BELOW, "tensor<6xi1>"),
    "floats of products": (SQUARE + f"%r = stablehlo.convert %b : ({U64}) -> tensor<6xf32>", "tensor<6xf32>"),
    "upper words of what is negative": (SA + by(32, "i64") + op("shift_right_logical", "i64") + TO_S, "tensor<6xi32>"),
    "quotients": (A + by(7) + op("divide") + TO_U, "tensor<6xui32>"),
    "of floats": (
        f"%f = stablehlo.convert %u : (tensor<6xui32>) -> tensor<6xf32>\n"
        f"%r64 = stablehlo.convert %f : (tensor<6xf32>) -> {U64}\n{TO_U}",
        "tensor<6xui32>",
    ),
    "wide floats": (
        f"{A}%f = stablehlo.convert %a : ({U64}) -> tensor<6xf64>\n"
        "%r = stablehlo.convert %f : (tensor<6xf64>) -> tensor<6xf32>",
        "tensor<6xf32>",
    ),
    "halves of words": (A + f"%r = stablehlo.bitcast_convert %a : ({U64}) -> tensor<6x2xui32>", "tensor<6x2xui32>"),
    "sums of pairs": (
        """%p = stablehlo.reshape %u : (tensor<6xui32>) -> tensor<3x2xui32>
        %a = stablehlo.bitcast_convert %p : (tensor<3x2xui32>) -> tensor<3xui64>
        %b = stablehlo.add %a, %a : tensor<3xui64>
        %r = stablehlo.bitcast_convert %b : (tensor<3xui64>) -> tensor<3x2xui32>""",
        "tensor<3x2xui32>",
    ),
    "what loops carry": (
        A + f"""%q = stablehlo.while(%x = %a) : {U64}
        cond {{
          %t = stablehlo.constant dense<true> : tensor<i1>
          stablehlo.return %t : tensor<i1>
        }} do {{
          %y = stablehlo.add %x, %x : {U64}
          stablehlo.return %y : {U64}
        }}
        %r = stablehlo.convert %q : {LOW}""",
        "tensor<6xui32>",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STAYS)
def test_what_words_do_not_say_stays(name, refuses):
    program = load(*STAYS[name])
    assert program.is_wide
    with refuses(errors.ConcretizationTypeError, "64-bit values", "enable_x64"):
        mw.jit(lambda u, s: program(u, s)).trace(U, S)


def counts(*shape: int) -> mw.ImportedProgram:
    """Upper words of the numbers of elements."""
    of = lambda dtype: f"tensor<{'x'.join(map(str, shape))}x{dtype}>"  # noqa: E731
    body = f"""%i = stablehlo.iota dim = 0 : {of("ui64")}
        %j = stablehlo.iota dim = 1 : {of("ui64")}
        %n = stablehlo.constant dense<{shape[1]}> : {of("ui64")}
        %k = stablehlo.multiply %i, %n : {of("ui64")}
        %c = stablehlo.add %k, %j : {of("ui64")}
        %d = stablehlo.constant dense<32> : {of("ui64")}
        %h = stablehlo.shift_right_logical %c, %d : {of("ui64")}
        %r = stablehlo.convert %h : ({of("ui64")}) -> {of("ui32")}"""
    return load(body, of("ui32"), "")


@pytest.mark.parametrize(
    ("shape", "fits"),
    [((2**16, 2**16), True), ((2**16 + 1, 2**16), False), ((2**32, 1), True), ((1, 2**32 + 1), False), ((0, 5), True)],
)
def test_numbers_of_elements_that_32_bits_do_not_hold(shape, fits):
    assert counts(*shape).is_wide != fits
