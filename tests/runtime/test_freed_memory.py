"""Memory that a run frees is there for the next run."""

import resource

import numpy as np

import meshwright as mw
import meshwright.numpy as mnp


def test_runs_use_the_memory_that_runs_have_freed():
    """20 MiB of results and of what is computed on the way: 5,000 pages, which are not the system's every time."""
    f = mw.jit(lambda x: (mnp.sin(x) @ mnp.cos(x), x + 1, x * 2))
    x = mw.device_put(np.ones((1024, 1024), np.float32))

    def new_pages(runs):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(runs):
            mw.block_until_ready(f(x))
        return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / runs

    new_pages(10)  # the first ones
    assert new_pages(10) < 2000
