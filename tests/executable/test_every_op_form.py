"""Every operation with its dimension split: right for even and uneven tiles, without sending more than it has to."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from op_forms import RNG, Form, T, check_form, floats, form, ints

F, I, B = T(), T(e="i32"), T(e="i1")

#: of two (value, number) pairs, the one farther from zero
FARTHER = f"""
    %aa = stablehlo.abs %a : {F}
    %bb = stablehlo.abs %b : {F}
    %p = stablehlo.compare GE, %aa, %bb : ({F}, {F}) -> {B}
    %v = stablehlo.select %p, %a, %b : {B}, {F}
    %w = stablehlo.select %p, %c, %d : {B}, {I}
    stablehlo.return %v, %w : {F}, {I}"""
#: log(exp(a) + exp(b))
LOG_SUM = f"""
    %ea = stablehlo.exponential %a : {F}
    %eb = stablehlo.exponential %b : {F}
    %es = stablehlo.add %ea, %eb : {F}
    %l = stablehlo.log %es : {F}
    stablehlo.return %l : {F}"""
#: the one farther from zero
FARTHER_ONE = f"""
    %aa = stablehlo.abs %a : {F}
    %bb = stablehlo.abs %b : {F}
    %p = stablehlo.compare GT, %aa, %bb : ({F}, {F}) -> {B}
    %v = stablehlo.select %p, %a, %b : {B}, {F}
    stablehlo.return %v : {F}"""
BY_SIZE = f"""
    %aa = stablehlo.abs %a : {F}
    %bb = stablehlo.abs %b : {F}
    %p = stablehlo.compare LT, %aa, %bb : ({F}, {F}) -> {B}
    stablehlo.return %p : {B}"""


# --- functions of scalars -----------------------------------------------------------------------------------
def regions() -> Iterator[Form]:
    yield from reductions()
    yield from windows()
    body = f"""
  %r = "stablehlo.map"(%x, %y) ({{
  ^bb0(%a: {F}, %b: {F}):
    %p = stablehlo.compare LT, %a, %b : ({F}, {F}) -> {B}
    %v = "stablehlo.if"(%p) ({{
      %m = stablehlo.multiply %a, %b : {F}
      stablehlo.return %m : {F}
    }}, {{
      stablehlo.return %b : {F}
    }}) : ({B}) -> {F}
    stablehlo.return %v : {F}
  }}) {{dimensions = array<i64: 0, 1>}} : ({T(9, 4)}, {T(9, 4)}) -> {T(9, 4)}"""
    yield form("map", {"x": 0, "y": 0}, body, f"%r : {T(9, 4)}", x=floats(9, 4), y=floats(9, 4))


def reductions() -> Iterator[Form]:
    for dim, rest, sends, most in ((0, 6, ["all_gather"], 0.6), (1, 9, [], 0.0)):
        body = f"""
  %z = stablehlo.constant dense<0.0> : {F}
  %i = stablehlo.constant dense<-1> : {I}
  %r:2 = stablehlo.reduce(%x init: %z), (%n init: %i) across dimensions = [{dim}]
      : ({T(9, 6)}, {T(9, 6, e="i32")}, {F}, {I}) -> ({T(rest)}, {T(rest, e="i32")})
    reducer(%a: {F}, %b: {F}) (%c: {I}, %d: {I}) {{{FARTHER}
    }}"""
        returns = f"%r#0, %r#1 : {T(rest)}, {T(rest, e='i32')}"
        args = {"x": floats(9, 6), "n": ints(9, 6)}
        yield form(f"reduce of pairs over {dim}", {"x": 0, "n": 0}, body, returns, sends=sends, most=most, **args)
    body = f"""
  %z = stablehlo.constant dense<1.5> : {F}
  %i = stablehlo.constant dense<4> : {I}
  %r:2 = stablehlo.reduce(%x init: %z), (%n init: %i) across dimensions = [0]
      : ({T(9, 6)}, {T(9, 6, e="i32")}, {F}, {I}) -> ({T(6)}, {T(6, e="i32")})
    reducer(%a: {F}, %b: {F}) (%c: {I}, %d: {I}) {{
      %s = stablehlo.add %a, %b : {F}
      %m = stablehlo.maximum %c, %d : {I}
      stablehlo.return %s, %m : {F}, {I}
    }}"""
    returns = f"%r#0, %r#1 : {T(6)}, {T(6, e='i32')}"
    yield form("reduce that is a sum and a maximum", {"x": 0, "n": 0}, body, returns, sends=["all_reduce"], most=0.7,
               x=floats(9, 6), n=ints(9, 6))  # fmt: skip
    body = f"""
  %r = stablehlo.reduce(%x init: %z) across dimensions = [0] : ({T(11, 3)}, {F}) -> {T(3)}
    reducer(%a: {F}, %b: {F}) {{{LOG_SUM}
    }}"""
    args = {"x": floats(11, 3), "z": np.float32(1.5)}
    yield form("reduce with an initial value that counts", {"x": 0}, body, f"%r : {T(3)}", sends=["all_gather"],
               most=0.6, **args)  # fmt: skip


def reduce_window(region: str, sizes: str, out: str, extra: str) -> str:
    return f"""
  %r = "stablehlo.reduce_window"(%x, %z) ({{
  ^bb0(%a: {F}, %b: {F}):{region}
  }}) {{window_dimensions = array<i64: {sizes}>, {extra}}} : ({T(20, 3)}, {F}) -> {out}"""


ADD = f"""
    %s = stablehlo.add %a, %b : {F}
    stablehlo.return %s : {F}"""


def windows() -> Iterator[Form]:
    # StableHLO pads with the initial value; so that its results are defined, that is the body's identity.
    for name, region, start in (("log-sum-exp", LOG_SUM, -np.inf), ("sum", ADD, 0)):
        args = {"x": floats(20, 3), "z": np.float32(start)}
        for way, pad in (("", "[[19, 0], [0, 0]]"), (" in reverse", "[[0, 19], [0, 0]]")):
            body = reduce_window(region, "20, 1", T(20, 3), f"padding = dense<{pad}> : tensor<2x2xi64>")
            yield form(f"cumulative {name}{way}", {"x": 0}, body, f"%r : {T(20, 3)}", sends=["all_gather"], most=0.3,
                       **args)  # fmt: skip
        extra = "padding = dense<[[2, 2], [0, 0]]> : tensor<2x2xi64>, window_dilations = array<i64: 2, 1>"
        body = reduce_window(region, "3, 1", T(20, 3), extra)
        yield form(f"windows with gaps, {name}", {"x": 0}, body, f"%r : {T(20, 3)}", sends=["collective_permute"],
                   most=0.5, **args)  # fmt: skip
    body = f"""
  %z = stablehlo.constant dense<0xFF800000> : {F}
  %i = stablehlo.constant dense<0> : {I}
  %r:2 = "stablehlo.reduce_window"(%x, %n, %z, %i) ({{
  ^bb0(%a: {F}, %c: {I}, %b: {F}, %d: {I}):
    %m = stablehlo.maximum %a, %b : {F}
    %s = stablehlo.add %c, %d : {I}
    stablehlo.return %m, %s : {F}, {I}
  }}) {{window_dimensions = array<i64: 20, 1>, padding = dense<[[19, 0], [0, 0]]> : tensor<2x2xi64>}}
      : ({T(20, 3)}, {T(20, 3, e="i32")}, {F}, {I}) -> ({T(20, 3)}, {T(20, 3, e="i32")})"""
    returns = f"%r#0, %r#1 : {T(20, 3)}, {T(20, 3, e='i32')}"
    yield form("cumulative maximum and sum in one", {"x": 0, "n": 0}, body, returns, sends=["all_gather"], most=0.3,
               x=floats(20, 3), n=ints(20, 3))  # fmt: skip
    choice = f"""
    %p = stablehlo.compare GE, %a, %b : ({F}, {F}) -> {B}
    stablehlo.return %p : {B}"""
    for name, first in (("of their own", BY_SIZE.replace("LT", "GE")), ("of pooling", choice)):
        body = f"""
  %z = stablehlo.constant dense<0.0> : {F}
  %r = "stablehlo.select_and_scatter"(%x, %y, %z) ({{
  ^bb0(%a: {F}, %b: {F}):{first}
  }}, {{
  ^bb0(%a: {F}, %b: {F}):{ADD}
  }}) {{window_dimensions = array<i64: 1, 2>, window_strides = array<i64: 1, 2>}}
      : ({T(9, 20)}, {T(9, 10)}, {F}) -> {T(9, 20)}"""
        args = {"x": floats(9, 20), "y": floats(9, 10)}
        yield form(f"select_and_scatter by regions {name}, beside", {"x": 0, "y": 0}, body, f"%r : {T(9, 20)}", **args)
    yield form("select_and_scatter by regions of pooling, along", {"x": 1, "y": 1}, body, f"%r : {T(9, 20)}",
               sends=["collective_permute"], most=0.5, **args)  # fmt: skip
    # A strict comparison selects the last of equal elements.
    args = {"x": RNG.integers(0, 2, (9, 20)).astype(np.float32), "y": floats(8, 9)}
    body = body.replace("compare GE", "compare GT").replace(T(9, 10), T(8, 9))
    body = body.replace("dimensions = array<i64: 1, 2>", "dimensions = array<i64: 2, 3>")
    yield form("select_and_scatter of the last of equal ones", {"x": 0}, body, f"%r : {T(9, 20)}",
               sends=["collective_permute"], most=1.0, **args)  # fmt: skip


@pytest.mark.parametrize("f", list(regions()), ids=str)
def test_functions_of_scalars(f: Form) -> None:
    check_form(f)


# --- order --------------------------------------------------------------------------------------------------
def sort(shape: tuple[int, ...], dim: int, region: str, count: int = 1) -> tuple[str, str]:
    types = [T(*shape), T(*shape, e="i32")][:count]
    names = ", ".join(["%x", "%n"][:count])
    args = ", ".join(f"{v}: {t}" for v, t in (("%a", F), ("%b", F), ("%c", I), ("%d", I))[: 2 * count])
    ts = ", ".join(types)
    body = f"""
  %r:{count} = "stablehlo.sort"({names}) ({{
  ^bb0({args}):{region}
  }}) {{dimension = {dim} : i64, is_stable = true}} : ({ts}) -> ({ts})"""
    return body, ", ".join(f"%r#{i}" for i in range(count)) + " : " + ts


PLAIN = f"\n%p = stablehlo.compare LT, %a, %b : ({F}, {F}) -> {B}\nstablehlo.return %p : {B}"


def top_k(text: str, k: int = 3, dim: int = 1) -> tuple[str, str]:
    shape = (2, k) if dim else (k, 2)
    types = f"{T(*shape)}, {T(*shape, e='i32')}"
    return text + f" : ({T(*((2, 40) if dim else (40, 2)))}) -> ({types})", f"%r#0, %r#1 : {types}"


def orders() -> Iterator[Form]:
    for name, region in (("values", PLAIN), ("a comparator", BY_SIZE)):
        yield form(f"sort along the split dimension by {name}, another is free", {"x": 0, "n": 0},
                   *sort((45, 40), 0, region, 2), sends=["all_to_all"], most=1.0, x=floats(45, 40),
                   n=ints(45, 40))  # fmt: skip
        yield form(f"sort by {name}, another dimension split", {"x": 1, "n": 1}, *sort((5, 9), 0, region, 2),
                   x=floats(5, 9), n=ints(5, 9))  # fmt: skip
    falling = PLAIN.replace("LT", "GT")
    yield form("sort of values that puts large ones first", {"x": 0}, *sort((45, 40), 0, falling), sends=["all_to_all"],
               most=0.71, x=floats(45, 40))  # fmt: skip
    yield form("sort by values that puts large ones first", {"x": 1, "n": 1}, *sort((5, 9), 0, falling, 2),
               x=floats(5, 9), n=ints(5, 9))  # fmt: skip
    x, split = floats(2, 40), {"x": 1}
    once = {"sends": ["all_gather"], "most": 0.9}
    text, returns = top_k("%r:2 = chlo.top_k(%x, k = 3)")
    text = text.replace("(tensor<2x40xf32>)", "tensor<2x40xf32>")
    yield form("top_k along the split dimension", split, text, returns, x=x, **once)
    smallest = "%r:2 = stablehlo.custom_call @mhlo.topk(%x) {mhlo.attributes = {k = 3 : i64, largest = false}}"
    want = np.sort(x, 1)[:, :3], np.argsort(x, 1).astype(np.int32)[:, :3]  # XLA's host does not know the call
    yield form("top_k of the smallest, as a custom call", split, *top_k(smallest), want=want, x=x, **once)
    pairs = f"""
  %z = stablehlo.constant dense<0xFF800000> : {F}
  %zero = stablehlo.constant dense<0> : {I}
  %n = stablehlo.iota dim = 1 : {T(2, 40, e="i32")}
  %r:2 = stablehlo.reduce(%x init: %z), (%n init: %zero) across dimensions = [1]
      : ({T(2, 40)}, {T(2, 40, e="i32")}, {F}, {I}) -> ({T(2)}, {T(2, e="i32")})
    reducer(%a: {F}, %b: {F}) (%c: {I}, %d: {I}) {{
      %gt = stablehlo.compare GT, %a, %b : ({F}, {F}) -> {B}
      %nan = stablehlo.compare NE, %a, %a : ({F}, {F}) -> {B}
      %p = stablehlo.or %gt, %nan : {B}
      %e = stablehlo.compare EQ, %a, %b : ({F}, {F}) -> {B}
      %l = stablehlo.compare LT, %c, %d : ({I}, {I}) -> {B}
      %f = stablehlo.and %e, %l : {B}
      %q = stablehlo.or %p, %f : {B}
      %v = stablehlo.select %p, %a, %b : {B}, {F}
      %w = stablehlo.select %q, %c, %d : {B}, {I}
      stablehlo.return %v, %w : {F}, {I}
    }}"""
    yield form("argmax along the split dimension", split, pairs, f"%r#0, %r#1 : {T(2)}, {T(2, e='i32')}",
               sends=["all_reduce"], most=0.9, x=x)  # fmt: skip


@pytest.mark.parametrize("f", list(orders()), ids=str)
def test_order(f: Form) -> None:
    check_form(f)


@pytest.mark.parametrize("devices", [8, 7])
def test_a_vector_is_sorted_by_columns(devices: int) -> None:
    """No other dimension can be split: to deal tiles twice and merge their borders beats gathering it, in bytes and in
    memory.

    Of a sort that need not be stable: a stable one has positions travel along, for zeros of both signs.
    """
    x = RNG.integers(-40, 40, 1000).astype(np.float32)
    x[[3, 999]] = np.inf, -np.inf
    text, returns = sort((1000,), 0, PLAIN)
    text = text.replace("is_stable = true", "is_stable = false")
    f = form("sort", {"x": 0}, text, returns, sends=["all_to_all", "collective_permute"], most=1.01, x=x)
    check_form(f, [devices])


@pytest.mark.parametrize("region", [PLAIN, BY_SIZE])
def test_pairs_are_sorted_by_a_network(region: str) -> None:
    """Positions travel along, so that equal elements stay in order: here all but a few are equal to others."""
    x, n = RNG.integers(-40, 40, 1001).astype(np.float32), np.arange(1001, dtype=np.int32)
    text, returns = sort((1001,), 0, region, 2)
    check_form(form("sort", {"x": 0, "n": 0}, text, returns, sends=["collective_permute"], most=1.01, x=x, n=n), [16])
