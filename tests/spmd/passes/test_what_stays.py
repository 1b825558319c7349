"""What does not fit stays where it is: ops whose results come as a list, be it a list of one, and uneven tiles."""

from __future__ import annotations

import numpy as np
from local_programs import array, optimize, same, trace

import meshwright as mw
from meshwright import lax

INPUTS = [array(6, 4, over="xy")]


def test_a_sort_of_gathered_rows():
    before = trace(lambda a: lax.sort(lax.all_gather(a, "y", axis=0, tiled=True), dimension=1)[:2], INPUTS)
    after, _ = optimize(before, INPUTS)
    same(before, after, INPUTS)


def test_a_convolution_whose_kernel_is_no_multiple_of_the_devices():
    mesh = mw.AbstractMesh((2,), ("x",))
    kernel = np.array([-1.0, 0.0, 1.0], np.float32).reshape(3, 1, 1)
    sharding = mw.NamedSharding(mesh, mw.PartitionSpec(None, "x"))
    part = (
        mw.jit(lambda x: mw.nn.conv(x, kernel), in_shardings=sharding).lower(np.ones((1, 2, 1), np.float32)).partition()
    )
    part.verify(np.array([2.0, 5.0], np.float32).reshape(1, 2, 1))
