"""Pauses Python's garbage collector while many long-lived objects are created.

The collector scans all live objects when many are new. Planning and lowering build large programs, so scans take up to
a third of their time. Little of what they create is cyclic (graphs for memory prediction); it waits for the first
collection afterwards.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Disable the collection of cyclic garbage in this context, in all threads; it stays disabled if it was before."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
