"""XLA's profiler: sessions, annotations on the timeline, and the contents of recorded profiles."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxlib import _profile_data, _profiler

from meshwright.core.records import dataclass
from meshwright.runtime.pjrt.client import client

#: an annotation on the timeline, as a context manager with metadata
TraceMe = _profiler.TraceMe
ProfileOptions = _profiler.ProfileOptions
#: the contents of a recorded profile
ProfileData = _profile_data.ProfileData
ProfilePlane, ProfileEvent = _profile_data.ProfilePlane, _profile_data.ProfileEvent


def session(options: Any = None) -> Any:
    """Start a profiler session; its ``stop()`` returns the recorded profile."""
    client()  # devices that do not exist when recording starts are not recorded
    if options is None:
        options = ProfileOptions()
        options.host_tracer_level, options.python_tracer_level = 2, 0
    return _profiler.ProfilerSession(options)


def server(port: int) -> Any:
    """A server through which TensorBoard captures profiles, as long as the returned object is alive."""
    client()
    return _profiler.start_server(port)


def heap_profile() -> bytes:
    """The device's buffers and the Python stacks that created them, in compressed pprof format."""
    return client().heap_profile()


#: prefix of CUDA graphs, whose kernels are recorded with their own names as the event names
_GRAPH = "command_buffer"
_NUMBER_OF_DEVICE = re.compile(r"/device:\w+:(\d+)")


@dataclass(frozen=True)
class Event:
    """An op or kernel of a program on a device, with its start and duration in ns."""

    module: str
    op: str
    device: int
    start_ns: float
    duration_ns: float


def events(path: Path) -> Iterator[Event]:
    """The ops in a recorded profile (``.xplane.pb``)."""
    for plane in ProfileData.from_file(str(path)).planes:
        found = _NUMBER_OF_DEVICE.fullmatch(plane.name)
        for line in plane.lines:
            for event in line.events:
                stats = dict(event.stats)
                if "hlo_op" in stats:
                    op = str(stats["hlo_op"])
                    yield Event(
                        str(stats.get("hlo_module", "")),
                        event.name if op.startswith(_GRAPH) else op,
                        int(found[1] if found else stats.get("device_ordinal", 0)),
                        event.start_ns,
                        event.duration_ns,
                    )
