"""Keeps the memory of freed buffers in the process, for reuse in the next run.

XLA's CPU client allocates every result and all temporary memory of a run with ``malloc``. On a virtual mesh, these are
as large as the global arrays. Above thresholds that start at 128 KiB, glibc returns the memory to the system after the
run, and the next run has to wait until new pages are mapped and cleared. Measured: a step on 8 devices with 2 MiB of
parameters needed 300 to 540 new pages per run, which took 0.8 to 2.7 ms of system time out of 8 ms.
"""

from __future__ import annotations

import ctypes
import os
import sys

# parameters of mallopt(3), by their numbers in malloc.h
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
#: the largest block that glibc may keep after it is freed, the most that it allows; larger ones are always returned
_LARGEST_BLOCK = 32 << 20
#: the most free memory at the end of the main thread's heap that is kept
_KEPT = 128 << 20
#: The same of another thread's, which consists of heaps of 64 MiB and keeps as much as is padded, whatever the
#: threshold. A heap that is not used is returned only if the one before it has as much room: two are never returned.
_KEPT_BY_THREADS = 60 << 20
_USERS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def keep() -> None:
    """Let this process keep up to 128 MiB of freed memory, unless its environment sets glibc's thresholds."""
    if sys.platform != "linux" or any(name in os.environ for name in _USERS):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # not in other C libraries
        mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)
        mallopt(_TRIM_THRESHOLD, _KEPT)
        mallopt(_TOP_PAD, _KEPT_BY_THREADS)
