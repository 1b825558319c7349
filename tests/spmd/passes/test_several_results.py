"""Ops whose results come as a list stay where they are, be it a list of one."""

from __future__ import annotations

from local_programs import array, optimize, same, trace

from meshwright import lax

INPUTS = [array(6, 4, over="xy")]


def test_a_sort_of_gathered_rows():
    before = trace(lambda a: lax.sort(lax.all_gather(a, "y", axis=0, tiled=True), dimension=1)[:2], INPUTS)
    after, _ = optimize(before, INPUTS)
    same(before, after, INPUTS)
