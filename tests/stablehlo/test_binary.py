"""Binary programs are read in a process of their own, and what becomes of it is told."""

from __future__ import annotations

import numpy as np
import pytest

import meshwright as mw
from meshwright.errors import ImportProgramError
from meshwright.stablehlo import binary
from meshwright.stablehlo.hlo import module_bytecode


@pytest.fixture(scope="module")
def bytecode() -> bytes:
    x, w = np.ones((3, 2), np.float32), np.ones((2, 4), np.float32)
    return module_bytecode(mw.jit(lambda x, w: mw.numpy.tanh(x @ w)).lower(x, w).module)


def test_a_reader_that_dies_is_an_error(monkeypatch, bytecode):
    monkeypatch.setattr(binary, "_CHILD", "import os; os.abort()")
    with pytest.raises(ImportProgramError, match=r"weights\.mlirbc: the bytecode .* ended with SIGABRT; .* damaged"):
        binary.from_bytecode(bytecode, "weights.mlirbc")


def test_a_reader_that_cannot_start_says_why(monkeypatch, bytecode):
    monkeypatch.setattr(binary, "_CHILD", "import a_module_that_is_missing")
    with pytest.raises(ImportProgramError, match="a_module_that_is_missing"):
        binary.from_proto(bytecode, "p")


@pytest.mark.slow
def test_no_damaged_byte_ends_the_process(bytecode):
    refused = 0
    for position in range(len(bytecode)):
        damaged = bytearray(bytecode)
        damaged[position] = 0xFF
        try:
            mw.load(bytes(damaged))
        except ImportProgramError:
            refused += 1
    assert refused > len(bytecode) // 4
