"""Events of a program's life, and who is told of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright.errors import ArgumentError

Listener = Callable[..., None]
#: seconds that XLA took to compile a program; told with ``fun_name``
COMPILED = "/jax/core/compile/backend_compile_duration"


class Listeners:
    """Those of one kind of event, in the order in which they came."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def register(self, callback: Listener) -> None:
        """Let a function be told of each event."""
        self._listeners.append(callback)

    def unregister(self, callback: Listener) -> None:
        """Let it not be told any more.

        Raises:
          ArgumentError: it is not told of these events.
        """
        if callback not in self._listeners:
            raise ArgumentError(
                f"unregister: callback {callback!r} is not registered for these events; register it first"
            )
        self._listeners.remove(callback)

    def clear(self) -> None:
        """Let nobody be told any more."""
        self._listeners.clear()

    def record(self, event: str, *values: float, **metadata: Any) -> None:
        """Tell all of an event."""
        for callback in list(self._listeners):
            callback(event, *values, **metadata)


EVENTS, DURATIONS, TIME_SPANS, SCALARS = Listeners(), Listeners(), Listeners(), Listeners()
