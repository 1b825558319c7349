"""Every operation with its dimension split: right for even and uneven tiles, without sending more than it has to."""

from __future__ import annotations

import numpy as np
import pytest
from op_forms import Form, check_form, form

RNG = np.random.default_rng(31)


def floats(*shape: int) -> np.ndarray:
    return RNG.permutation(np.arange(np.prod(shape)) / 7 - 3).reshape(shape).astype(np.float32)


def ints(*shape: int, low: int = -9, high: int = 9) -> np.ndarray:
    return RNG.integers(low, high, shape).astype(np.int32)


# --- regions of their own -----------------------------------------------------------------------------------
PAIRS = """
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %i = stablehlo.constant dense<-1> : tensor<i32>
  %r:2 = stablehlo.reduce(%x init: %z), (%n init: %i) across dimensions = [DIM]
      : (tensor<8x6xf32>, tensor<8x6xi32>, tensor<f32>, tensor<i32>) -> (tensor<OUTxf32>, tensor<OUTxi32>)
    reducer(%a: tensor<f32>, %b: tensor<f32>) (%c: tensor<i32>, %d: tensor<i32>) {
      %aa = stablehlo.abs %a : tensor<f32>
      %bb = stablehlo.abs %b : tensor<f32>
      %p = stablehlo.compare GE, %aa, %bb : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %v = stablehlo.select %p, %a, %b : tensor<i1>, tensor<f32>
      %w = stablehlo.select %p, %c, %d : tensor<i1>, tensor<i32>
      stablehlo.return %v, %w : tensor<f32>, tensor<i32>
    }"""


def pairs(dim: int) -> tuple[str, str]:
    out = 6 if dim == 0 else 8
    return PAIRS.replace("DIM", str(dim)).replace("OUT", str(out)), f"%r#0, %r#1 : tensor<{out}xf32>, tensor<{out}xi32>"


REGIONS = [
    form("reduce of pairs, a reduced dimension", {"x": 0, "n": 0}, *pairs(0), sends=["all_gather"], most=0.51,
         x=floats(8, 6), n=ints(8, 6)),
    form("reduce of pairs, a kept dimension", {"x": 0, "n": 0}, *pairs(1), x=floats(8, 6), n=ints(8, 6)),
]  # fmt: skip


@pytest.mark.parametrize("f", REGIONS, ids=str)
def test_regions(f: Form) -> None:
    check_form(f)
