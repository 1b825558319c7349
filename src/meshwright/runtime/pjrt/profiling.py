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
    """An op or kernel of a program on a device, with its start and duration in ns.

    ``module`` is the name of its program and, where XLA tells it, the number of its module: ``jit_f(12)``.
    """

    module: str
    op: str
    device: int
    start_ns: float
    duration_ns: float


def numbered(module: Any) -> str:
    """A module's name and number, as those of :class:`Event`: ``jit_f(12)``.

    Programs of one name are told apart by it: ``jit_<lambda>`` is the name of many. jaxlib gives the number as part of
    the serialized module only: field 5, ``id``, of ``HloModuleProto`` (xla/service/hlo.proto).
    """
    return f"{module.name}({_field(module.as_serialized_hlo_module_proto(), 5)})"


def _field(message: bytes, wanted: int) -> int:
    """An integer field of a serialized protocol buffer, 0 if absent (protobuf.dev/programming-guides/encoding)."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    while at < len(message):
        field, kind = divmod(varint(), 8)
        if kind == 0:
            value = varint()
            if field == wanted:
                return value
        else:
            size = {1: lambda: 8, 2: varint, 5: lambda: 4}[kind]()
            at += size
    return 0


def events(path: Path) -> Iterator[Event]:
    """The ops in a recorded profile (``.xplane.pb``)."""
    for plane in ProfileData.from_file(str(path)).planes:
        found = _NUMBER_OF_DEVICE.fullmatch(plane.name)
        for line in plane.lines:
            for event in line.events:
                stats = dict(event.stats)
                if "hlo_op" in stats:
                    op = str(stats["hlo_op"])
                    module = str(stats.get("hlo_module", ""))
                    yield Event(
                        f"{module}({stats['program_id']})" if "program_id" in stats else module,
                        event.name if op.startswith(_GRAPH) else op,
                        int(found[1] if found else stats.get("device_ordinal", 0)),
                        event.start_ns,
                        event.duration_ns,
                    )
