"""Constants of any form keep their values; those that a text leaves out are zeros, with a warning."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
from jaxlib.mlir import ir

import meshwright as mw
from meshwright.errors import ElidedConstantWarning
from meshwright.stablehlo.context import new_context

VALUES = np.linspace(-2, 3, 24, dtype=np.float32).reshape(4, 6)
TEXT = """func.func public @main() -> tensor<4x6xf32> {
  %0 = stablehlo.constant VALUE : tensor<4x6xf32>
  return %0 : tensor<4x6xf32>
}"""


@pytest.fixture
def module_with_blob():
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(TEXT.replace("VALUE", "dense<0.>"))
        constant = module.body.operations[0].regions[0].blocks[0].operations[0]
        constant.attributes["value"] = ir.DenseResourceElementsAttr.get_from_buffer(
            memoryview(VALUES), "weights", ir.RankedTensorType.get(VALUES.shape, ir.F32Type.get())
        )
        yield module


def test_blobs_behind_a_text(module_with_blob):
    text = module_with_blob.operation.get_asm()
    assert "dense_resource<weights>" in text
    np.testing.assert_array_equal(np.asarray(mw.load(text)()), VALUES)


def test_blobs_in_bytecode(module_with_blob):
    out = BytesIO()
    module_with_blob.operation.write_bytecode(out)
    np.testing.assert_array_equal(np.asarray(mw.load(out.getvalue())()), VALUES)


def test_a_blob_that_is_missing(refuses):
    with refuses(mw.errors.ImportProgramError, "weights", "<text>:2"):
        mw.load(TEXT.replace("VALUE", "dense_resource<weights>"))


def test_hlo_text_of_ours_keeps_large_constants():
    lowered = mw.jit(lambda x: x * VALUES).lower(VALUES)
    again = mw.load(lowered.as_text("hlo"))
    np.testing.assert_array_equal(np.asarray(again(VALUES)), VALUES * VALUES)


def test_values_left_out_are_zeros_and_said_to_be():
    with pytest.warns(ElidedConstantWarning, match="1 constants are left out"):
        program = mw.load(TEXT.replace("VALUE", "dense_resource<__elided__>"))
    np.testing.assert_array_equal(np.asarray(program()), np.zeros((4, 6)))
    elided = mw.jit(lambda x: x * VALUES).lower(VALUES).compiler_ir("hlo").as_hlo_text()
    assert "{...}" in elided
    with pytest.warns(ElidedConstantWarning, match="print_large_constants"):
        mw.load(elided)
