"""Listeners of events: what they are told, and when."""

from __future__ import annotations

import pytest

import meshwright as mw
from meshwright import monitoring
from meshwright.errors import ArgumentError

KINDS = {
    "event": ("event_listener", "event_listener", ()),
    "event_duration_secs": ("event_duration_secs_listener", "event_duration_listener", (1.5,)),
    "event_time_span": ("event_time_span_listener", "event_time_span_listener", (1.0, 2.0)),
    "scalar": ("scalar_listener", "scalar_listener", (3,)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_listeners_are_told_until_they_leave(kind):
    register, unregister, values = KINDS[kind]
    record, leave = getattr(monitoring, f"record_{kind}"), getattr(monitoring, f"unregister_{unregister}")
    told = []

    def listen(*values, **metadata):
        told.append((values, metadata))

    getattr(monitoring, f"register_{register}")(listen)
    record("/mine", *values, size="3")
    leave(listen)
    record("/mine", *values)
    assert told == [(("/mine", *values), {"size": "3"})]
    with pytest.raises(ArgumentError, match="not registered"):
        leave(listen)


def test_compilations_are_told_once():
    told = []

    def listen(event, seconds, **metadata):
        told.append((event, seconds > 0, metadata))

    def triple(x):
        return 3 * x

    monitoring.register_event_duration_secs_listener(listen)
    try:
        jitted = mw.jit(triple)
        jitted(1.0)
        jitted(2.0)
    finally:
        monitoring.clear_event_listeners()
    assert told == [("/jax/core/compile/backend_compile_duration", True, {"fun_name": "triple"})]
    mw.jit(triple).lower(1).compile()
    assert len(told) == 1


def test_version():
    assert mw.version.__version__ == mw.__version__
    assert ".".join(map(str, mw.version.__version_info__)) == mw.__version__
