"""Input pipelines at the edges of a program: batches are brought to the mesh while it computes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from meshwright.api.assembling import make_array_from_process_local_data
from meshwright.api.shardings import flat_shardings
from meshwright.core import pytree
from meshwright.core.background import Background
from meshwright.core.config import config
from meshwright.errors import ArgumentError, ArgumentTypeError
from meshwright.runtime.array import Array

__all__ = ["prefetch_to_mesh"]

_END = object()


def prefetch_to_mesh(iterator: Iterable[Any], sharding: Any, *, size: int = 2) -> Iterator[Any]:
    """The batches of ``iterator`` as arrays with ``sharding``, in order; up to ``size`` are brought there in advance.

    A thread takes batches, trees of NumPy arrays (of ``grain``, or any iterable), and copies them to the devices while
    the program computes. With several processes each gives its part of a batch, as
    :func:`make_array_from_process_local_data` takes it. What the iterable raises is raised here, in its turn; closing
    the iterator that is returned, or letting it go, ends the thread.

    Args:
      sharding: one for all arrays, or a tree prefix of shardings.

    Raises:
      ArgumentError: ``size`` is not positive. ArgumentTypeError: ``iterator`` is no iterable.

    Example:
      >>> split = mw.NamedSharding(mw.make_mesh((4,), ("x",)), P("x"))
      >>> batches = ({"x": np.full((8, 2), i)} for i in range(3))
      >>> [int(batch["x"].sum()) for batch in mw.data.prefetch_to_mesh(batches, split)]
      [0, 16, 32]
    """
    if size < 1:
        raise ArgumentError(f"prefetch_to_mesh: size must be positive, got {size}")
    if not isinstance(iterator, Iterable):
        raise ArgumentTypeError(f"prefetch_to_mesh: expected an iterable of batches, got {type(iterator).__name__}")
    return _prefetched(iterator, sharding, size)


def _prefetched(batches: Iterable[Any], sharding: Any, size: int) -> Iterator[Any]:
    ready: queue.Queue[Any] = queue.Queue(size)
    options = dict(vars(config))  # of this thread, such as a ``with enable_x64()``

    def work(stop: threading.Event) -> None:
        vars(config).update(options)
        try:
            for batch in batches:
                if not _give(ready, (_placed(batch, sharding), None), stop):
                    return
            _give(ready, (_END, None), stop)
        except BaseException as error:
            _give(ready, (_END, error), stop)

    thread = Background(work, "meshwright-prefetch")
    try:
        while True:
            value, error = ready.get()
            if error is not None:
                raise error
            if value is _END:
                return
            yield value
    finally:
        thread.stop.set()


def _give(ready: queue.Queue[Any], item: Any, stop: threading.Event) -> bool:
    """Put an item into the queue when there is room; whether anybody is still waiting for it."""
    while not stop.is_set():
        try:
            ready.put(item, timeout=0.1)
            return True
        except queue.Full:
            continue
    return False


def _placed(batch: Any, sharding: Any) -> Any:
    shardings = flat_shardings(sharding, batch, "prefetch_to_mesh")
    leaves = [
        x if type(x) is Array or s is None else make_array_from_process_local_data(s, np.asarray(x))
        for x, s in zip(pytree.leaves(batch), shardings)
    ]
    return pytree.unflatten(pytree.structure(batch), leaves)
