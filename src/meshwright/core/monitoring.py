"""Events of a program, and their listeners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.errors import ArgumentError

Listener = Callable[..., None]
#: seconds that XLA took to compile a program; recorded with ``fun_name``
COMPILED = "/jax/core/compile/backend_compile_duration"


class Listeners:
    """The listeners of one kind of event, in order of registration."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def register(self, callback: Listener) -> None:
        """Call a function on each event."""
        self._listeners.append(callback)

    def unregister(self, callback: Listener) -> None:
        """Stop calling a function.

        Raises:
          ArgumentError: it is not registered.
        """
        if callback not in self._listeners:
            raise ArgumentError(
                f"unregister: callback {callback!r} is not registered for these events; register it first"
            )
        self._listeners.remove(callback)

    def clear(self) -> None:
        """Unregister all listeners."""
        self._listeners.clear()

    def record(self, event: str, *values: float, **metadata: Any) -> None:
        """Notify all listeners of an event."""
        for callback in list(self._listeners):
            callback(event, *values, **metadata)


EVENTS, DURATIONS, TIME_SPANS, SCALARS = Listeners(), Listeners(), Listeners(), Listeners()
