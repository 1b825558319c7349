"""Temporary memory of programs on CPUs, allocated in blocks that the process reuses in the next run.

XLA allocates all temporary memory of a run as one block. If it is larger than what the C library retains
(:mod:`meshwright.runtime.pjrt.freed_memory`), the system maps new pages for every run and clears each of them. XLA can
split the block. This needs no more memory if no value is large compared to a block; larger values get blocks of their
own, which are not shared. Measured: a training step of ResNet-18 on 4 images needed 20,600 new pages per run, and up to
8 % of its time for them.
"""

from __future__ import annotations

from typing import Any

from meshwright.ir.jaxpr import ClosedJaxpr, all_eqns
from meshwright.runtime.pjrt import platforms

#: less than the C library's largest block, so that two of them fit into one of its heaps of 64 MiB
_BLOCK = 28 << 20
#: the most bytes of all values. Scratch, which the process keeps, is a tenth of that or less in training steps
_MOST = 4 << 30

Options = tuple[tuple[str, Any], ...]


def in_blocks(jaxpr: ClosedJaxpr, devices: int = 1) -> Options:
    """XLA's options for scratch memory in blocks, for ``devices`` virtual devices; none if it needs one block."""
    if platforms.is_plugin():
        return ()
    sizes = [v.aval.nbytes * devices for eqn in all_eqns(jaxpr.jaxpr) for v in eqn.outvars]
    is_divided = _BLOCK < sum(sizes) <= _MOST and max(sizes) <= _BLOCK // 2
    return (("xla_multiheap_size_constraint_per_heap", _BLOCK),) if is_divided else ()
