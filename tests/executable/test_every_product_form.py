"""Products and convolutions with each of their dimensions split, and what is decomposed into other operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from op_forms import Form, T, check_form, floats, form, ints

Dims = tuple[int, ...]

HALO, SUM = ["collective_permute"], ["all_reduce"]


# --- convolution --------------------------------------------------------------------------------------------
def conv(
    lhs: Dims, rhs: Dims, out: Dims, window: str = "", groups: tuple[int, int] = (1, 1),
    numbers: str = "[b, f, 0]x[o, i, 0]->[b, f, 0]",
) -> tuple[str, str]:  # fmt: skip
    text = f"""
  %r = stablehlo.convolution(%x, %k) dim_numbers = {numbers}, window = {{{window}}}
      {{feature_group_count = {groups[0]} : i64, batch_group_count = {groups[1]} : i64}}
      : ({T(*lhs)}, {T(*rhs)}) -> {T(*out)}"""
    return text, f"%r : {T(*out)}"


def convolutions() -> Iterator[Form]:
    def one(name: str, split: dict[str, int], lhs: Dims, rhs: Dims, *args: Any, sends: Any = (), **kwargs: Any) -> Form:
        most = 1.0 if sends == HALO else 2.0 * bool(sends)
        text = conv(lhs, rhs, *args, **kwargs)
        return form(name, split, *text, sends=sends, most=most, x=floats(*lhs), k=floats(*rhs))

    x, k = (2, 3, 40), (5, 3, 3)
    yield one("conv, batch", {"x": 0}, (9, 3, 8), k, (9, 5, 6))
    yield one("conv, space", {"x": 2}, x, k, (2, 5, 40), "pad = [[1, 1]]", sends=HALO)
    yield one("conv, space with strides", {"x": 2}, x, k, (2, 5, 20), "stride = [2], pad = [[1, 1]]", sends=HALO)
    yield one("conv, transposed", {"x": 2}, x, k, (2, 5, 79), "pad = [[1, 1]], lhs_dilate = [2]", sends=HALO)
    yield one("conv with gaps", {"x": 2}, x, k, (2, 5, 40), "pad = [[2, 2]], rhs_dilate = [2]", sends=HALO)
    yield one("conv, output features", {"k": 0}, (2, 3, 8), (9, 3, 3), (2, 9, 6))
    yield one("conv, input features", {"x": 1, "k": 1}, (2, 40, 8), (2, 40, 3), (2, 2, 6), sends=SUM)
    yield one("conv, feature groups", {"x": 1, "k": 0}, (2, 60, 5), (60, 1, 3), (2, 60, 3), groups=(60, 1))
    yield one("conv, batch groups", {"x": 0, "k": 0}, (60, 3, 5), (60, 3, 3), (1, 60, 3), groups=(1, 60))
    back = "[f, b, 0]x[i, o, 0]->[b, f, 0]"
    yield one("conv, backward filter, batch", {"x": 0, "k": 0}, (40, 3, 8), (40, 5, 6), (3, 5, 3),
              numbers=back, sends=SUM)  # fmt: skip
    yield one("conv, backward filter, space", {"x": 2, "k": 2}, (2, 3, 80), (2, 5, 80), (3, 5, 3), "pad = [[1, 1]]",
              numbers=back, sends=[*HALO, *SUM])  # fmt: skip


@pytest.mark.parametrize("f", list(convolutions()), ids=str)
def test_convolutions(f: Form) -> None:
    check_form(f)


# --- products -----------------------------------------------------------------------------------------------
RAGGED = "#chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [{k}], " \
         "lhs_ragged_dimensions = [{m}]{g}>"  # fmt: skip


def ragged(m: int, rhs: Dims, out: Dims) -> tuple[str, str]:
    numbers = RAGGED.format(k=len(rhs) - 2, m=m, g=", rhs_group_dimensions = [0]" if len(rhs) == 3 else "")
    text = f"""
  %r = "chlo.ragged_dot"(%x, %k, %s) {{ragged_dot_dimension_numbers = {numbers}}}
      : ({T(12, 20)}, {T(*rhs)}, {T(4 if m else rhs[0], e="i32")}) -> {T(*out)}"""
    return text, f"%r : {T(*out)}"


def reference_ragged(x: np.ndarray, k: np.ndarray, s: np.ndarray) -> np.ndarray:
    ends = np.cumsum(s)
    if k.ndim == 3:
        out = np.zeros((x.shape[0], k.shape[2]), np.float32)
        for g, (a, b) in enumerate(zip(ends - s, ends)):
            out[a:b] = x[a:b] @ k[g]
        return out
    return np.stack([x[:, a:b] @ k[a:b] for a, b in zip(ends - s, ends)])


def products() -> Iterator[Form]:
    x, k, s = floats(12, 20), floats(9, 20, 2), np.array([1, 0, 3, 0, 2, 2, 1, 0, 2], np.int32)
    want = [reference_ragged(x, k, s)]  # XLA's host does not know the op
    for name, split, sends in (
        ("rows", {"x": 0}, []), ("terms", {"x": 1, "k": 1}, SUM), ("groups", {"k": 0, "s": 0}, [*SUM, "all_gather"]),
    ):  # fmt: skip
        # where groups begin, all of their sizes say
        yield form(f"ragged_dot, {name}", split, *ragged(0, (9, 20, 2), (12, 2)), sends=sends, most=1.0 * bool(sends),
                   gathers="s" in split, want=want, x=x, k=k, s=s)  # fmt: skip
    k, s = floats(20, 7), np.array([5, 0, 12, 3], np.int32)
    yield form("ragged_dot, ragged terms, rows", {"x": 0}, *ragged(1, (20, 7), (4, 12, 7)),
               want=[reference_ragged(x, k, s)], x=x, k=k, s=s)  # fmt: skip
    a, b = floats(9, 4, 3), floats(9, 3, 20)
    text = '%r = "stablehlo.einsum"(%a, %b) {einsum_config = "bij,bjk->kbi"} : '
    text += f"({T(9, 4, 3)}, {T(9, 3, 20)}) -> {T(20, 9, 4)}"
    want = [np.einsum("bij,bjk->kbi", a, b)]
    yield form("einsum", {"a": 0, "b": 0}, text, f"%r : {T(20, 9, 4)}", want=want, a=a, b=b)
    text = f'%r = "stablehlo.unary_einsum"(%a) {{einsum_config = "bij->jb"}} : ({T(9, 4, 3)}) -> {T(3, 9)}'
    yield form("unary_einsum", {"a": 0}, text, f"%r : {T(3, 9)}", want=[np.einsum("bij->jb", a)], a=a)


@pytest.mark.parametrize("f", list(products()), ids=str)
def test_products(f: Form) -> None:
    check_form(f)


# --- batch normalisation ------------------------------------------------------------------------------------
NORMS = {
    "training": ("%r:3", "%x, %s, %o", [(12, 9), (9,), (9,)], [(12, 9), (9,), (9,)]),
    "inference": ("%r:1", "%x, %s, %o, %m, %v", [(12, 9), (9,), (9,), (9,), (9,)], [(12, 9)]),
    "grad": ("%r:3", "%x, %s, %o, %v, %g", [(12, 9), (9,), (9,), (9,), (12, 9)], [(12, 9), (9,), (9,)]),
}


def norms() -> Iterator[Form]:
    args = {n: floats(9) for n in "som"} | {n: floats(12, 9) for n in "xg"} | {"v": np.abs(floats(9)) + 1}
    for name, (left, operands, ins, outs) in NORMS.items():
        types = ", ".join(T(*s) for s in outs)
        text = f"""
  {left} = "stablehlo.batch_norm_{name}"({operands}) {{epsilon = 0.1 : f32, feature_index = 1 : i64}}
      : ({", ".join(T(*s) for s in ins)}) -> ({types})"""
        returns = ", ".join(f"%r#{i}" for i in range(len(outs))) + f" : {types}"
        sums = {"sends": [] if name == "inference" else SUM, "most": 2.0}
        yield form(f"batch_norm_{name}, batch", {"x": 0, "g": 0}, text, returns, **sums, **args)
        yield form(f"batch_norm_{name}, features", {"x": 1, "g": 1}, text, returns, **args)


@pytest.mark.parametrize("f", list(norms()), ids=str)
def test_batch_normalisation(f: Form) -> None:
    check_form(f)


def test_integers_stay_exact() -> None:
    """A product of integers, its terms split."""
    x, y = ints(4, 9), ints(9, 3)
    out = T(4, 3, e="i32")
    text = f"%r = stablehlo.dot %x, %y : ({T(4, 9, e='i32')}, {T(9, 3, e='i32')}) -> {out}"
    check_form(form("dot", {"x": 1, "y": 0}, text, f"%r : {out}", sends=SUM, most=2.0, x=x, y=y))
