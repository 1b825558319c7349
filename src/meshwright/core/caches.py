"""Registers caches of traces and compiled programs, so that all can be cleared at once."""

from __future__ import annotations

from collections.abc import Callable

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
