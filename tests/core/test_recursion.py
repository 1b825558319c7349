"""Calls of any depth, without Python's stack."""

from __future__ import annotations

import sys
from contextlib import contextmanager

import pytest

from meshwright.core.recursion import run

DEEP = 20 * sys.getrecursionlimit()


def sum_to(n):
    if n == 0:
        return 0
    return n + (yield sum_to(n - 1))


def test_results_come_back():
    assert run(sum_to(DEEP)) == DEEP * (DEEP + 1) // 2


def test_errors_pass_the_callers():
    passed = []

    @contextmanager
    def noted(name):
        try:
            yield
        finally:
            passed.append(name)

    def fails():
        raise KeyError("inner")
        yield

    def caller(name, inner):
        with noted(name):
            return (yield inner)

    with pytest.raises(KeyError, match="inner"):
        run(caller("outer", caller("middle", fails())))
    assert passed == ["middle", "outer"]

    def mends():
        try:
            yield caller("mended", fails())
        except KeyError:
            return (yield sum_to(3))

    assert run(mends()) == 6
