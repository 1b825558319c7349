"""``jax.monitoring``: listeners for events. The library records the compile time of each program.

>>> compiled = []
>>> def listen(event, seconds, **metadata):
...     compiled.append(metadata["fun_name"])
>>> mw.monitoring.register_event_duration_secs_listener(listen)
>>> def ninth(x):
...     return x**9
>>> y = mw.jit(ninth)(2.0)
>>> compiled
['ninth']
>>> mw.monitoring.unregister_event_duration_listener(listen)
"""

from __future__ import annotations

from typing import Any

from meshwright.core.monitoring import DURATIONS, EVENTS, SCALARS, TIME_SPANS

__all__ = [
    "clear_event_listeners", "record_event", "record_event_duration_secs", "record_event_time_span", "record_scalar",
    "register_event_duration_secs_listener", "register_event_listener", "register_event_time_span_listener",
    "register_scalar_listener", "unregister_event_duration_listener", "unregister_event_listener",
    "unregister_event_time_span_listener", "unregister_scalar_listener",
]  # fmt: skip

#: ``register_…(callback)``; the callback gets the arguments of ``record_…``
register_event_listener = EVENTS.register
register_event_duration_secs_listener = DURATIONS.register
register_event_time_span_listener = TIME_SPANS.register
register_scalar_listener = SCALARS.register
#: ``unregister_…(callback)``, for a registered callback
unregister_event_listener = EVENTS.unregister
unregister_event_duration_listener = DURATIONS.unregister
unregister_event_time_span_listener = TIME_SPANS.unregister
unregister_scalar_listener = SCALARS.unregister


def record_event(event: str, **metadata: Any) -> None:
    """Notify the listeners for events."""
    EVENTS.record(event, **metadata)


def record_event_duration_secs(event: str, duration: float, **metadata: Any) -> None:
    """Notify the listeners for durations of a duration in seconds."""
    DURATIONS.record(event, duration, **metadata)


def record_event_time_span(event: str, start_time: float, end_time: float, **metadata: Any) -> None:
    """Notify the listeners for time spans of a start and an end, in seconds."""
    TIME_SPANS.record(event, start_time, end_time, **metadata)


def record_scalar(event: str, value: float, **metadata: Any) -> None:
    """Notify the listeners for scalars of a number."""
    SCALARS.record(event, value, **metadata)


def clear_event_listeners() -> None:
    """Remove all listeners."""
    for listeners in (EVENTS, DURATIONS, TIME_SPANS, SCALARS):
        listeners.clear()
