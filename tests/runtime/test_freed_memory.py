"""Memory that a run frees is there for the next run."""

import resource
import statistics

import numpy as np

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.runtime import scratch


def test_runs_use_the_memory_that_runs_have_freed():
    """20 MiB of results and of what is computed on the way: 5,000 pages, which are not the system's every time."""
    x = mw.device_put(np.ones((1024, 1024), np.float32))
    assert new_pages(mw.jit(lambda x: (mnp.sin(x) @ mnp.cos(x), x + 1, x * 2)), x, 20) < 100


def test_runs_use_the_scratch_that_runs_have_freed():
    """40 MiB of it: 10,000 pages. Values that are large beside a block of it have one block."""

    @mw.jit
    def f(x):
        products = [(x[:, :2] + k) @ x[:2] for k in range(10)]
        total = sum(y[0, 0] for y in products)
        return sum(y @ (x[0] * total) for y in products)

    x = np.ones((1024, 1024), np.float32)
    stats = f.lower(x).compile().memory_analysis()
    assert stats.temp_size_in_bytes > 40 << 20
    assert new_pages(f, mw.device_put(x), 20) < 100
    assert scratch.in_blocks(mw.make_jaxpr(f)(x)) and not scratch.in_blocks(mw.make_jaxpr(f)(x[:256, :256]))
    assert not scratch.in_blocks(mw.make_jaxpr(f)(x), devices=8)


def new_pages(f, x, runs):
    """The median of some runs, after as many: a run in a thread that has had none takes all its pages."""
    taken = []
    for _ in range(2 * runs):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        mw.block_until_ready(f(x))
        taken.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return statistics.median(taken[runs:])
