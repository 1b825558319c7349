"""Caches of traces and compiled programs: all can be cleared at once, and those that could grow are bounded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import RLock
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_CLEARERS: list[Callable[[], None]] = []


def on_clear(clear: Callable[[], None]) -> None:
    """Call ``clear`` when caches are cleared."""
    _CLEARERS.append(clear)


def clear_caches() -> None:
    """Clear all traces and compiled programs, of jitted functions and of ops; later calls compile again.

    Example:
      >>> f = mw.jit(lambda x: x + 1)
      >>> int(f(1)), mw.clear_caches(), int(f(1))
      (2, None, 2)
    """
    for clear in _CLEARERS:
        clear()


class Recent(Generic[K, V]):
    """The values of the ``most`` keys that were used last. Threads may share it."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = RLock()  # what frees a value may use the cache again

    def get(self, key: K) -> V | None:
        """The value of a key; None if it is not known, or no longer."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def setdefault(self, key: K, value: V) -> V:
        """The value of a key, which is ``value`` if none is known."""
        with self._lock:
            known = self._values.setdefault(key, value)
            self._values.move_to_end(key)
            if len(self._values) > self.most:
                self._values.popitem(last=False)
            return known

    def clear(self) -> None:
        with self._lock:
            self._values.clear()

    def __len__(self) -> int:
        return len(self._values)
