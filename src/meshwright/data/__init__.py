"""Input pipelines: batches are copied to the mesh while it computes."""

from __future__ import annotations

import copy
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import ref

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


def prefetch_to_mesh(iterator: Iterable[Any], sharding: Any, *, size: int = 2) -> Prefetched:
    """Iterate over the batches of ``iterator`` as arrays with ``sharding``, with up to ``size`` of them copied in
    advance.

    A thread reads batches, trees of NumPy arrays (from ``grain``, or any iterable), and copies them to the devices
    while the program computes. With several processes, each supplies its part of a batch, as for
    :func:`make_array_from_process_local_data`. Exceptions of the iterable are raised here, in order. Closing the
    returned iterator, or dropping it, ends the thread.

    The thread runs ahead of the program, and with it the state of ``iterator``, if it has one. Checkpoints should store
    ``get_state()`` of the returned iterator, from which the next batch follows.

    Args:
      sharding: one for all arrays, or a tree prefix of shardings.

    Raises:
      ArgumentError: ``size`` is not positive. ArgumentTypeError: ``iterator`` is not iterable.

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
    return Prefetched(iterator, sharding, size)


class Prefetched(Iterator[Any]):
    """Batches that a thread prefetches, from the first ``next()`` until all are consumed or ``close()`` is called."""

    def __init__(self, batches: Iterable[Any], sharding: Any, size: int) -> None:
        self._batches, self._sharding = batches, sharding
        self._ready: queue.Queue[Any] = queue.Queue(size)
        self._source: Any = None
        self._thread: Background | None = None
        self._starting = threading.Lock()
        self._is_over, self._state = False, None

    def __next__(self) -> Any:
        self._start()
        value, state, error = self._taken()
        if value is _END:
            self.close()
            raise StopIteration if error is None else error
        self._state = state
        return value

    def _taken(self) -> tuple[Any, Any, BaseException | None]:
        """The next item, or the end, also if another thread closes this."""
        while not self._is_over:
            with suppress(queue.Empty):
                return self._ready.get(timeout=0.1)
        return _END, None, None

    def get_state(self) -> Any:
        """The state of the iterable, if it has ``get_state()``, after the batch that was returned last. ``set_state()``
        on another such iterable continues with the next batch.

        Raises:
          ArgumentTypeError: the iterable has no state.
        """
        self._start()
        if not hasattr(self._source, "get_state"):
            raise ArgumentTypeError(
                f"prefetch_to_mesh: get_state() takes an iterator that has it, got {type(self._source).__name__}"
            )
        return self._state

    def close(self) -> None:
        """Stop prefetching."""
        self._is_over = True
        if self._thread is not None:
            self._thread.stop.set()

    def _start(self) -> None:
        with self._starting:  # several threads may share the batches
            if self._thread is None and not self._is_over:
                self._source = iter(self._batches)
                self._state = _state(self._source)
                options = dict(vars(config))  # the creating thread's, such as from ``with enable_x64()``
                work = partial(_work, self._source, self._sharding, self._ready, options, ref(self))
                self._thread = Background(work, "meshwright-prefetch")


def _state(source: Any) -> Any:
    """A copy of an iterator's state; None if it has none."""
    return copy.deepcopy(source.get_state()) if hasattr(source, "get_state") else None


def _work(
    source: Iterator[Any], sharding: Any, ready: queue.Queue[Any], options: dict[str, Any], owner: ref[Prefetched],
    stop: threading.Event,
) -> None:  # fmt: skip
    """Prefetch batches until ``stop`` is set, or the ``owner`` of the queue is garbage-collected."""
    vars(config).update(options)
    wanted = lambda: not stop.is_set() and owner() is not None  # noqa: E731
    try:
        for batch in source:
            state = _state(source)
            if not _give(ready, (_placed(batch, sharding), state, None), wanted):
                return
        _give(ready, (_END, None, None), wanted)
    except BaseException as error:
        _give(ready, (_END, None, error), wanted)


def _give(ready: queue.Queue[Any], item: Any, wanted: Callable[[], bool]) -> bool:
    """Put an item into the queue once there is room; returns whether it is still wanted."""
    while wanted():
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
