"""Operations that move elements along their split dimension, look things up in it, or write to places of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from op_forms import Form, T, check_form, floats, form, ints

HALO = {"sends": ["collective_permute"]}
X = floats(12, 6)
ALONG = {"x": 0}


# --- moving -------------------------------------------------------------------------------------------------
def moving() -> Iterator[Form]:
    t = T(12, 6)

    def one(name: str, text: str, out: str, **kwargs: object) -> Form:
        value = "%v = stablehlo.constant dense<9.0> : tensor<f32>\n"
        return form(name, ALONG, value + text, f"%r : {out}", x=X, **kwargs)

    def pad(low: int, high: int, interior: int) -> tuple[str, str]:
        out = T(low + high + 12 + 11 * interior, 6)
        return f"%r = stablehlo.pad %x, %v, low = [{low}, 0], high = [{high}, 0], interior = [{interior}, 0] " \
               f": ({t}, tensor<f32>) -> {out}", out  # fmt: skip

    yield one("pad", *pad(2, 1, 0), most=1.0, **HALO)
    yield one("pad between", *pad(0, 0, 2), most=1.0, **HALO)
    yield one("pad between and around", *pad(3, 1, 1), most=1.0, **HALO)
    yield one("pad by less than nothing", *pad(-2, -3, 0), most=1.0, **HALO)
    out = T(6, 6)
    yield one("slice with strides", f"%r = stablehlo.slice %x [1:12:2, 0:6] : ({t}) -> {out}", out, most=1.0, **HALO)
    out = T(7, 6)
    yield one("slice of a few rows", f"%r = stablehlo.slice %x [2:9, 0:6] : ({t}) -> {out}", out, most=1.0, **HALO)
    yield one("reverse", f"%r = stablehlo.reverse %x, dims = [0] : {t}", t, most=1.0, **HALO)
    yield one("transpose", f"%r = stablehlo.transpose %x, dims = [1, 0] : ({t}) -> {T(6, 12)}", T(6, 12))
    yield one("broadcast", f"%r = stablehlo.broadcast_in_dim %x, dims = [0, 2] : ({t}) -> {T(12, 4, 6)}", T(12, 4, 6))
    out = T(12, 12)
    yield one("concatenate beside", f"%r = stablehlo.concatenate %x, %x, dim = 1 : ({t}, {t}) -> {out}", out)
    yield one("iota", f"%i = stablehlo.iota dim = 0 : {t}\n%r = stablehlo.add %x, %i : {t}", t)
    both = {"x": X, "y": floats(7, 6)}
    joined = f"%r = stablehlo.concatenate %x, %y, dim = 0 : ({t}, {T(7, 6)}) -> {T(19, 6)}"
    yield form("concatenate along", {"x": 0, "y": 0}, joined, f"%r : {T(19, 6)}", most=1.0, **HALO, **both)


def reshapes() -> Iterator[Form]:
    def one(name: str, shape: tuple[int, ...], out: tuple[int, ...], split: int = 0, **kwargs: object) -> Form:
        text = f"%r = stablehlo.reshape %x : ({T(*shape)}) -> {T(*out)}"
        return form(name, {"x": split}, text, f"%r : {T(*out)}", x=floats(*shape), **kwargs)

    yield one("reshape that splits, its major part divisible", (60, 4), (60, 2, 2))
    yield one("reshape that merges behind", (60, 2, 2), (60, 4))
    yield one("reshape that splits evenly", (120,), (60, 2))
    yield one("reshape that merges evenly", (60, 2), (120,))
    yield one("reshape that splits unevenly", (77,), (7, 11), sends=["collective_permute"], most=1.0)
    yield one("reshape that merges unevenly", (7, 11), (77,), sends=["collective_permute"], most=1.0)


@pytest.mark.parametrize("f", [*moving(), *reshapes()], ids=str)
def test_moving(f: Form) -> None:
    check_form(f)


# --- dynamic slices -----------------------------------------------------------------------------------------
def dynamic() -> Iterator[Form]:
    t, i = T(12, 6), "tensor<i32>"

    def one(name: str, text: str, out: str, split: dict[str, int] = ALONG, **kwargs: object) -> Form:
        zero = "%z = stablehlo.constant dense<0> : tensor<i32>\n"
        return form(name, split, zero + text, f"%r : {out}", x=X, **kwargs)

    for start in (0, 4, 11):
        at, rows, columns = np.int32(start), T(3, 6), T(12, 2)
        text = f"%r = stablehlo.dynamic_slice %x, %i, %z, sizes = [3, 6] : ({t}, {i}, {i}) -> {rows}"
        yield one(f"dynamic_slice along, at {start}", text, rows, sends=["all_to_all"], most=1.0, i=at)
        text = f"%r = stablehlo.dynamic_slice %x, %z, %i, sizes = [12, 2] : ({t}, {i}, {i}) -> {columns}"
        yield one(f"dynamic_slice beside, at {start}", text, columns, i=at)
        text = f"%r = stablehlo.dynamic_update_slice %x, %u, %i, %z : ({t}, {rows}, {i}, {i}) -> {t}"
        yield one(f"dynamic_update_slice along, at {start}", text, t, u=floats(3, 6), i=at)
        text = f"%r = stablehlo.dynamic_update_slice %x, %u, %z, %i : ({t}, {columns}, {i}, {i}) -> {t}"
        yield one(f"dynamic_update_slice beside, at {start}", text, t, {"x": 0, "u": 0}, u=floats(12, 2), i=at)


@pytest.mark.parametrize("f", list(dynamic()), ids=str)
def test_dynamic_slices(f: Form) -> None:
    check_form(f)


# --- gather and scatter -------------------------------------------------------------------------------------
ROWS = "offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1"
#: dimension numbers, operand, indices, slice sizes, result; what is split; what is sent
INDEXED = {
    "operand pass-through": (ROWS, (9, 14), (5, 1), (1, 14), (5, 14), {"x": 1, "u": 1}, []),
    "index pass-through": (ROWS, (9, 3), (14, 1), (1, 3), (14, 3), {"i": 0, "u": 0}, []),
    "trivially sliced": (ROWS, (13, 3), (5, 1), (1, 3), (5, 3), {"x": 0}, ["all_reduce", "all_to_all"]),
    "windows of several rows": ("offset_dims = [1, 2], start_index_map = [0], index_vector_dim = 1",
                                (43, 3), (5, 1), (2, 3), (5, 2, 3), {"x": 0}, ["all_reduce", "all_to_all"]),
    "batching": ("offset_dims = [1], collapsed_slice_dims = [1], operand_batching_dims = [0], "
                 "start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 1",
                 (14, 6, 3), (14, 1), (1, 1, 3), (14, 3), {"x": 0, "i": 0, "u": 0}, []),
}  # fmt: skip


def positions(name: str, shape: tuple[int, ...]) -> np.ndarray:
    return ints(*shape, low=0, high=6 if name == "batching" else 9)


def gathers() -> Iterator[Form]:
    for name, (numbers, operand, index, sizes, out, split, sends) in INDEXED.items():
        text = f"""
  %r = "stablehlo.gather"(%x, %i) {{dimension_numbers = #stablehlo.gather<{numbers}>,
      slice_sizes = array<i64: {", ".join(map(str, sizes))}>}}
      : ({T(*operand)}, {T(*index, e="i32")}) -> {T(*out)}"""
        args = {"x": floats(*operand), "i": positions(name, index)}
        split = {k: d for k, d in split.items() if k in args}
        yield form(f"gather, {name}", split, text, f"%r : {T(*out)}", sends=sends, most=3.0 * bool(sends), **args)


#: bodies of scatters; a sum of parts may be completed behind it
BODIES = {
    "add": "%s = stablehlo.add %a, %b : tensor<f32>\nstablehlo.return %s : tensor<f32>",
    "a body of its own": "%p = stablehlo.abs %a : tensor<f32>\n%s = stablehlo.maximum %p, %b : tensor<f32>\n"
    "stablehlo.return %s : tensor<f32>",
}


def scatters() -> Iterator[Form]:
    for name, (numbers, operand, index, _, out, split, _) in INDEXED.items():
        for old, new in (
            ("offset_dims", "update_window_dims"),
            ("collapsed_slice_dims", "inserted_window_dims"),
            ("start_index_map", "scatter_dims_to_operand_dims"),
            ("start_indices_batching_dims", "scatter_indices_batching_dims"),
            ("operand_batching_dims", "input_batching_dims"),
        ):
            numbers = numbers.replace(old, new)
        for what, body in BODIES.items():
            text = f"""
  %r = "stablehlo.scatter"(%x, %i, %u) ({{
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    {body}
  }}) {{scatter_dimension_numbers = #stablehlo.scatter<{numbers}>}}
      : ({T(*operand)}, {T(*index, e="i32")}, {T(*out)}) -> {T(*operand)}"""
            if name == "index pass-through" and what != "add":
                continue  # more updates than rows: some meet, in an order that is not defined
            i = positions(name, index)
            if what != "add":
                i = np.arange(i.size, dtype=np.int32).reshape(i.shape) % (6 if name == "batching" else operand[0])
            sends = ["all_reduce"] if name == "index pass-through" else []
            yield form(f"scatter by {what}, {name}", split, text, f"%r : {T(*operand)}", sends=sends,
                       most=3.0 * bool(sends), x=floats(*operand), i=i, u=floats(*out))  # fmt: skip


@pytest.mark.parametrize("f", [*gathers(), *scatters()], ids=str)
def test_indexed(f: Form) -> None:
    check_form(f)
