"""The scratch of programs on CPUs, in blocks that the process keeps for the next run.

XLA takes all scratch of a run as one block of memory. One that is larger than what the C library keeps
(:mod:`meshwright.runtime.pjrt.freed_memory`) is the system's: every run is given new pages, and waits for each to be
cleared. XLA can divide it, and does so without using more where no value is large beside a block: those that are larger
get one each, which no other value shares. Measured: a training step of ResNet-18 on 4 pictures took 20,600 new pages a
run, and up to 8 % of its time for them.
"""

from __future__ import annotations

from typing import Any

from meshwright.ir.jaxpr import ClosedJaxpr, all_eqns
from meshwright.runtime.pjrt import platforms

#: below the C library's largest block, and two of them, with what stands beside them, in one of its heaps of 64 MiB
_BLOCK = 28 << 20
#: the most bytes of all values, of which scratch is a part: a tenth or less, in steps that train; the process keeps it
_MOST = 4 << 30

Options = tuple[tuple[str, Any], ...]


def in_blocks(jaxpr: ClosedJaxpr, devices: int = 1) -> Options:
    """XLA's options for the scratch of what ``devices`` virtual devices run: none where one block will do, or must."""
    if platforms.is_plugin():
        return ()
    sizes = [v.aval.nbytes * devices for eqn in all_eqns(jaxpr.jaxpr) for v in eqn.outvars]
    is_divided = _BLOCK < sum(sizes) <= _MOST and max(sizes) <= _BLOCK // 2
    return (("xla_multiheap_size_constraint_per_heap", _BLOCK),) if is_divided else ()
