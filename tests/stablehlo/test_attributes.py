"""Attributes of Python values. They are cached, and True equals 1."""

from __future__ import annotations

import pytest

from meshwright.stablehlo.context import attribute


@pytest.mark.parametrize("of_bools_first", [True, False])
def test_bools_are_no_numbers(of_bools_first):
    values = [(True, False, True, of_bools_first), (1, 0, 1, int(of_bools_first))]
    texts = {str(attribute(value)) for value in (values if of_bools_first else values[::-1])}
    last = str(of_bools_first).lower()
    assert texts == {f"array<i1: true, false, true, {last}>", f"array<i64: 1, 0, 1, {int(of_bools_first)}>"}
    assert str(attribute(True)) == "true" and str(attribute(1)) == "1 : i64"
    assert str(attribute(())) == "array<i64>"
