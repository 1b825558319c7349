"""Elementwise operations, random bits, structure; what is refused; and that no operation of StableHLO or CHLO is
forgotten."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from jaxlib.mlir.dialects import _chlo_ops_gen, _stablehlo_ops_gen
from op_forms import Form, T, check_form, floats, form, ints

import meshwright as mw
from meshwright.core.config import config
from meshwright.errors import ImportProgramError
from meshwright.ir.reading import READERS

# --- elementwise --------------------------------------------------------------------------------------------
POSITIVE, UNIT = np.abs(floats(9, 4)) + 1.5, (floats(9, 4) / 8).astype(np.float32)
UNARY = {
    "stablehlo": {"abs cbrt ceil cosine exponential exponential_minus_one floor is_finite log log_plus_one logistic "
                  "negate round_nearest_afz round_nearest_even rsqrt sign sine sqrt tan tanh": POSITIVE,
                  "not popcnt count_leading_zeros": ints(9, 4)},
    "chlo": {"asin acos atan sinh cosh asinh atanh erf erfc erf_inv tan bessel_i1e": UNIT, "acosh lgamma digamma "
             "square conj is_inf is_pos_inf is_neg_inf": POSITIVE},
}  # fmt: skip
BINARY = {
    "stablehlo": {"add atan2 divide maximum minimum multiply power remainder subtract": (POSITIVE, UNIT + 1),
                  "and or xor shift_left shift_right_arithmetic shift_right_logical": (ints(9, 4), ints(9, 4, low=0))},
    "chlo": {"next_after": (POSITIVE, UNIT), "polygamma zeta": (np.floor(POSITIVE) + 1, POSITIVE),
             "broadcast_add broadcast_multiply broadcast_power": (POSITIVE, UNIT)},
}  # fmt: skip
BOOLS = ("is_finite", "is_inf", "is_pos_inf", "is_neg_inf")


def elementwise() -> Iterator[Form]:
    for table, names in ((UNARY, ("x",)), (BINARY, ("x", "y"))):
        for dialect, rows in table.items():
            for ops, values in rows.items():
                arrays = dict(zip(names, values if isinstance(values, tuple) else (values,)))
                kind = "i32" if arrays["x"].dtype == np.int32 else "f32"
                t = T(9, 4, e=kind)
                for op in ops.split():
                    out = T(9, 4, e="i1") if op in BOOLS else t
                    operands = ", ".join(f"%{n}" for n in names)
                    text = f'%r = "{dialect}.{op}"({operands}) : ({", ".join([t] * len(names))}) -> {out}'
                    # Some of CHLO's functions are long series: XLA's and ours differ in the last digits.
                    yield form(f"{dialect}.{op}", dict.fromkeys(names, 0), text, f"%r : {out}", tol=1e-4, **arrays)
    t, b = T(9, 4), T(9, 4, e="i1")
    x, y = {"x": floats(9, 4), "y": floats(9, 4)}, {"x": 0, "y": 0}
    text = f"%r = stablehlo.compare GE, %x, %y, TOTALORDER : ({t}, {t}) -> {b}"
    yield form("compare by total order", y, text, f"%r : {b}", **x)
    text = f"%p = stablehlo.compare GE, %x, %y : ({t}, {t}) -> {b}\n%r = stablehlo.select %p, %x, %y : {b}, {t}"
    yield form("select", y, text, f"%r : {t}", **x)
    yield form("clamp", y, f"%r = stablehlo.clamp %x, %y, %x : {t}", f"%r : {t}", **x)
    yield form("reduce_precision", y, f"%r = stablehlo.reduce_precision %x, format = e5m2 : {t}", f"%r : {t}", **x)
    text = f"%c = stablehlo.complex %x, %y : {T(9, 4, e='complex<f32>')}\n" \
           f"%a = stablehlo.real %c : ({T(9, 4, e='complex<f32>')}) -> {t}\n" \
           f"%b = stablehlo.imag %c : ({T(9, 4, e='complex<f32>')}) -> {t}"  # fmt: skip
    yield form("complex numbers", y, text, f"%a, %b : {t}, {t}", **x)
    half = T(9, 4, e="bf16")
    text = f"%h = stablehlo.convert %x : ({t}) -> {half}\n%r = stablehlo.convert %h : ({half}) -> {t}"
    yield form("convert", y, text, f"%r : {t}", **x)
    bytes_ = T(9, 4, 4, e="i8")
    text = f"%h = stablehlo.bitcast_convert %x : ({t}) -> {bytes_}\n"
    text += f"%r = stablehlo.bitcast_convert %h : ({bytes_}) -> {t}"
    yield form("bitcast_convert to another width", y, text, f"%h, %r : {bytes_}, {t}", **x)


@pytest.mark.parametrize("f", list(elementwise()), ids=str)
def test_elementwise(f: Form) -> None:
    check_form(f, [4, 5])


# --- random bits --------------------------------------------------------------------------------------------
def generator(algorithm: str, shape: tuple[int, ...], bits: int, words: int) -> Form:
    """Bits added to something split: the layout that they are made in."""
    out, state, wide = T(*shape, e=f"ui{bits}"), T(words, e="ui64"), T(*shape, e="ui64")
    text = f"""
  %b:2 = stablehlo.rng_bit_generator %s, algorithm = {algorithm} : ({state}) -> ({state}, {out})
  %w = stablehlo.convert %b#1 : ({out}) -> {wide}
  %r = stablehlo.add %w, %x : {wide}"""
    s = np.array([0x0123456789ABCDEF, 2**64 - 7, 2**64 - 1][:words], np.uint64)  # counters overflow
    name = f"{algorithm} {shape} of {bits} bits, {words} words of state"
    return form(name, {"x": 0}, text, f"%r, %b#0 : {wide}, {state}", x=np.zeros(shape, np.uint64), s=s)


GENERATORS = [
    generator(algorithm, shape, bits, words)
    for algorithm, shape, bits, words in (
        ("THREE_FRY", (10, 7), 32, 2), ("THREE_FRY", (9, 4), 32, 2), ("THREE_FRY", (9, 13), 32, 2),
        ("THREE_FRY", (9, 3), 64, 2), ("THREE_FRY", (11,), 8, 2), ("PHILOX", (9, 3), 32, 2), ("PHILOX", (9, 3), 64, 3),
        ("PHILOX", (21,), 16, 3), ("DEFAULT", (10, 2), 32, 2),
    )
]  # fmt: skip


@pytest.mark.parametrize("f", GENERATORS, ids=str)
def test_random_bits_are_made_where_they_are_used(f: Form) -> None:
    with config.override("enable_x64", True):
        check_form(f)


DRAWS: dict[str, tuple[str, Any, Any, Callable[[np.ndarray], Any]]] = {
    "UNIFORM": ("f32", 2.0, 5.0, lambda x: (x.min() >= 2, x.max() < 5, abs(x.mean() - 3.5) < 0.05)),
    "NORMAL": ("f32", 1.0, 3.0, lambda x: (abs(x.mean() - 1) < 0.15, abs(x.std() - 3) < 0.15)),
    "INTEGERS": ("i32", -2, 5, lambda x: (set(np.unique(x)) == set(range(-2, 5)),)),
}


@pytest.mark.parametrize("distribution", DRAWS)
def test_draws_without_a_key(distribution: str) -> None:
    """The same ones however the program is partitioned, other ones for each draw, and the program says so."""
    kind, low, high, holds = DRAWS[distribution]
    name = "UNIFORM" if distribution == "INTEGERS" else distribution
    t = T(100, 41, e=kind)
    draw = f"stablehlo.rng %a, %b, %n, distribution = {name} : (tensor<{kind}>, tensor<{kind}>, tensor<2xi64>) -> {t}"
    text = f"""
  %n = stablehlo.constant dense<[100, 41]> : tensor<2xi64>
  %r = {draw}
  %q = {draw}
  %s = stablehlo.add %r, %x : {t}"""
    dtype = np.float32 if kind == "f32" else np.int32
    a, b, x = dtype(low), dtype(high), np.zeros((100, 41), dtype)
    f = form(distribution, {"x": 0}, text, f"%s, %q : {t}, {t}", a=a, b=b, x=x)
    program = mw.load(f.text)
    first, second = (np.asarray(y) for y in program(a, b, x))
    assert all(holds(first)) and not np.array_equal(first, second)
    assert any("the same numbers" in note for note in program.parsed.notes)
    check_form(form(distribution, {"x": 0}, text, f"%s, %q : {t}, {t}", want=[first, second], a=a, b=b, x=x))


# --- structure ----------------------------------------------------------------------------------------------
def structure() -> Iterator[Form]:
    t, x = T(9, 4), {"x": floats(9, 4)}
    text = f"""
  %0:2 = stablehlo.optimization_barrier %x, %x : {t}, {t}
  %1 = stablehlo.tuple %0#0, %x : tuple<{t}, {t}>
  %2 = stablehlo.get_tuple_element %1[0] : (tuple<{t}, {t}>) -> {t}
  %3 = stablehlo.create_token : !stablehlo.token
  %4 = stablehlo.after_all %3, %3 : !stablehlo.token
  %5 = stablehlo.get_dimension_size %x, dim = 0 : ({t}) -> tensor<i32>"""
    yield form("barriers, tuples, tokens, sizes", {"x": 0}, text, f"%2, %5 : {t}, tensor<i32>",
               want=[x["x"], np.int32(9)], **x)  # fmt: skip
    text = f"%r = stablehlo.custom_call @mhlo.erf(%x) {{mhlo.attributes = {{}}}} : ({t}) -> {t}"
    want = [np.vectorize(math.erf)(x["x"]).astype(np.float32)]
    yield form("a custom call named after an op", {"x": 0}, text, f"%r : {t}", want=want, tol=1e-5, **x)
    text = f"""
  %r:2 = "chlo.scan"(%x, %c) ({{
  ^bb0(%a: {T(9)}, %b: {T(9)}):
    %s = stablehlo.add %a, %b : {T(9)}
    %d = stablehlo.multiply %a, %b : {T(9)}
    stablehlo.return %d, %s : {T(9)}, {T(9)}
  }}) {{dimension = 1 : i64, is_reverse = true, operandSegmentSizes = array<i32: 1, 1>,
      resultSegmentSizes = array<i32: 1, 1>}} : ({t}, {T(9)}) -> ({t}, {T(9)})"""
    sums = np.cumsum(np.concatenate([x["x"], np.full((9, 1), 2, np.float32)], 1)[:, ::-1], 1)[:, ::-1]
    yield form("scan", {"x": 0}, text, f"%r#0, %r#1 : {t}, {T(9)}", want=[x["x"] * sums[:, 1:], sums[:, 0]],
               c=np.full(9, 2, np.float32), **x)  # fmt: skip
    i = np.array([[1], [4], [0], [3], [2]], np.int32)
    text = f"""
  %n = stablehlo.constant dense<[9, 1]> : tensor<2xi32>
  %r = "stablehlo.dynamic_gather"(%x, %i, %n) {{dimension_numbers = #stablehlo.gather<offset_dims = [0],
      collapsed_slice_dims = [1], start_index_map = [1], index_vector_dim = 1>}}
      : ({t}, tensor<5x1xi32>, tensor<2xi32>) -> {T(9, 5)}"""
    want = [x["x"][:, np.clip(i[:, 0], 0, 3)]]
    yield form("dynamic_gather of known sizes", {"x": 0}, text, f"%r : {T(9, 5)}", want=want, i=i, **x)
    x, k = floats(2, 3, 40), floats(5, 3, 3)
    text = f"""
  %p = stablehlo.constant dense<[[1, 1]]> : tensor<1x2xi32>
  %r = "stablehlo.dynamic_conv"(%x, %k, %p) {{dimension_numbers = #stablehlo.conv<[b, f, 0]x[o, i, 0]->[b, f, 0]>,
      feature_group_count = 1 : i64, batch_group_count = 1 : i64}}
      : ({T(2, 3, 40)}, {T(5, 3, 3)}, tensor<1x2xi32>) -> {T(2, 5, 40)}"""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1)))
    want = [sum(np.einsum("bis,oi->bos", padded[:, :, j : j + 40], k[:, :, j]) for j in range(3))]
    yield form("dynamic_conv of known padding", {"x": 2}, text, f"%r : {T(2, 5, 40)}", want=want,
               sends=["collective_permute"], most=1.0, x=x, k=k)  # fmt: skip


@pytest.mark.parametrize("f", list(structure()), ids=str)
def test_structure(f: Form) -> None:
    check_form(f)


# --- what is refused ----------------------------------------------------------------------------------------
TOKEN = "%t = stablehlo.create_token : !stablehlo.token\n"
REFUSED = {
    "stablehlo.infeed": (TOKEN + '%r:2 = "stablehlo.infeed"(%t) : (!stablehlo.token) -> (tensor<3xf32>, '
                         '!stablehlo.token)', 3, "talks to the host"),
    "stablehlo.outfeed": (TOKEN + '%r = "stablehlo.outfeed"(%x, %t) {outfeed_config = ""} : (tensor<3xf32>, '
                          '!stablehlo.token) -> !stablehlo.token', 3, "talks to the host"),
    "stablehlo.send": (TOKEN + '%r = "stablehlo.send"(%x, %t) {channel_handle = #stablehlo.channel_handle<handle = 1, '
                       'type = 2>, is_host_transfer = true} : (tensor<3xf32>, !stablehlo.token) -> !stablehlo.token',
                       3, "talks to the host"),
    "stablehlo.recv": (TOKEN + '%r:2 = "stablehlo.recv"(%t) {channel_handle = #stablehlo.channel_handle<handle = 1, '
                       'type = 3>, is_host_transfer = true} : (!stablehlo.token) -> (tensor<3xf32>, '
                       '!stablehlo.token)', 3, "talks to the host"),
    "stablehlo.set_dimension_size": (
        "%n = stablehlo.constant dense<2> : tensor<i32>\n"
        "%r = stablehlo.set_dimension_size %x, %n, dim = 0 : (tensor<3xf32>, tensor<i32>) "
        "-> tensor<?xf32, #stablehlo.bounds<3>>", 3, "dynamic shape"),
    "stablehlo.real_dynamic_slice": (
        "%n = stablehlo.constant dense<2> : tensor<1xi32>\n"
        '%r = "stablehlo.real_dynamic_slice"(%x, %i, %n, %n) : (tensor<3xf32>, tensor<1xi32>, tensor<1xi32>, '
        "tensor<1xi32>) -> tensor<1xf32>", 3, "operand 1 is computed"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_meaning_is_refused(name: str, refuses: Any) -> None:
    """With the operation and its line."""
    body, line, why = REFUSED[name]
    head = "func.func @main(%x: tensor<3xf32>, %i: tensor<1xi32>, %s: tensor<f32>) -> tensor<3xf32> {"
    text = f"{head}\n{body}\nreturn %x : tensor<3xf32>\n}}"
    with refuses(ImportProgramError, f":{line}: {name}", why):
        mw.load(text)


# --- every operation ----------------------------------------------------------------------------------------
#: operations that never stand alone in a program
_INSIDE = {"stablehlo.return", "chlo._asin_acos_kernel"}


def operations() -> Iterator[str]:
    for module in (_stablehlo_ops_gen, _chlo_ops_gen):
        for member in vars(module).values():
            name = getattr(member, "OPERATION_NAME", None)
            if name is not None:
                yield name


def test_no_operation_is_forgotten() -> None:
    names = set(operations()) - _INSIDE
    assert len(names) > 150
    assert names <= READERS.keys()
