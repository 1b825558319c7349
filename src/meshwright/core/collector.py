"""Python's garbage collector, paused where much is built that lives on.

The collector walks over all that lives on whenever much of it is new. Planning and lowering build large programs that
live on: such walks take up to a third of the time. Little in it has cycles (graphs by which memory is predicted); that
waits for the first collection after the block.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """No collection of cyclic garbage in this block, in any thread; a collector that was off before stays off."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
