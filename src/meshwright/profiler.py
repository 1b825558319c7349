"""Profiles of the time and memory that programs use.

>>> import tempfile
>>> folder = tempfile.mkdtemp()
>>> with mw.profiler.trace(folder):
...     for step in range(3):
...         with mw.profiler.StepTraceAnnotation("train", step_num=step):
...             y = mw.jit(lambda x: mnp.sin(x).sum())(mnp.arange(1000.0))
...     _ = y.block_until_ready()
>>> mw.profiler.read_profile(folder).seconds > 0
True

A profile can be opened in TensorBoard, and in Perfetto (https://ui.perfetto.dev, the ``.trace.json.gz`` file).
``meshwright profile FOLDER`` prints the time by device, op, line of the program and collective.

Source: ``jax.profiler`` for the names.
"""

from __future__ import annotations

import functools
import gzip
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from meshwright.core.absent import absent as _absent
from meshwright.core.expected import as_path
from meshwright.core.files import user_file
from meshwright.errors import ArgumentError, ProfilerError
from meshwright.inspect.profile import PROGRAMS_FILE, Profile, read_profile
from meshwright.runtime import live_programs
from meshwright.runtime.pjrt import profiling

__all__ = [
    "Profile", "ProfileData", "ProfileEvent", "ProfileOptions", "ProfilePlane",
    "StepTraceAnnotation", "TraceAnnotation", "annotate_function",
    "device_memory_profile", "read_profile", "save_device_memory_profile", "start_server", "start_trace",
    "stop_server", "stop_trace", "trace",
]  # fmt: skip

Function = TypeVar("Function", bound=Callable[..., Any])
ProfileOptions = profiling.ProfileOptions
#: the contents of a recorded profile (``.xplane.pb``): ``ProfileData.from_file(name).planes``, their lines and events
ProfileData, ProfilePlane, ProfileEvent = profiling.ProfileData, profiling.ProfilePlane, profiling.ProfileEvent


class TraceAnnotation(profiling.TraceMe):  # type: ignore[misc]
    """A span on the timeline: ``with TraceAnnotation("load", file=name): ...``."""


class StepTraceAnnotation(TraceAnnotation):
    """A span that marks a training step: ``with StepTraceAnnotation("train", step_num=n): ...``."""

    def __init__(self, name: str, **metadata: Any) -> None:
        super().__init__(name, _r=1, **metadata)


def annotate_function(func: Function, name: str | None = None, **metadata: Any) -> Function:
    """Decorator: each call of ``func`` is a span on the timeline, with its name.

    Example:
      >>> mw.profiler.annotate_function(lambda x: x + 1, name="next")(2)
      3
    """
    label = name or getattr(func, "__qualname__", "function")

    @functools.wraps(func)
    def annotated(*args: Any, **kwargs: Any) -> Any:
        with TraceAnnotation(label, **metadata):
            return func(*args, **kwargs)

    return annotated  # type: ignore[return-value]


class _Running:
    """The profile that is being recorded, and the server; there is at most one of each."""

    session: Any = None
    server: Any = None
    folder = Path()
    perfetto = False


def start_trace(
    log_dir: str | os.PathLike[str],
    create_perfetto_link: bool = False,
    create_perfetto_trace: bool = False,
    profiler_options: Any = None,
) -> None:
    """Start recording a profile, which :func:`stop_trace` writes to ``log_dir``.

    With ``create_perfetto_trace``, a file ``perfetto_trace.json.gz`` is written too, with the same content as the
    ``.trace.json.gz`` that is always written. ``profiler_options`` is a ``ProfileOptions``.

    Raises:
      ProfilerError: a profile is already being recorded.
      ArgumentError: ``create_perfetto_link`` is set, which is not supported.
      FileError: ``log_dir`` cannot be created.
    """
    if create_perfetto_link:
        raise ArgumentError(
            "start_trace: create_perfetto_link would start a server that others can reach; open the .trace.json.gz of "
            "the profile at https://ui.perfetto.dev"
        )
    if _Running.session is not None:
        raise ProfilerError("start_trace: a profile is being recorded; there is one at a time (stop_trace ends it)")
    folder = as_path("start_trace: log_dir", log_dir)
    with user_file("start_trace: log_dir", folder):  # rather than when there is a profile, which would be lost
        folder.mkdir(parents=True, exist_ok=True)
    _Running.folder, _Running.perfetto = folder, create_perfetto_trace
    _Running.session = profiling.session(profiler_options)


def stop_trace() -> None:
    """Stop recording, and write the profile.

    It does not contain programs that are still running.

    Raises:
      ProfilerError: no profile is being recorded.
    """
    if _Running.session is None:
        raise ProfilerError("stop_trace: no profile is being recorded; start_trace begins one")
    session, _Running.session = _Running.session, None
    before = set(_Running.folder.glob("plugins/profile/*/*"))
    session.export(session.stop(), str(_Running.folder))
    written = sorted(set(_Running.folder.glob("plugins/profile/*/*")) - before)
    for file in written:
        if file.name.endswith(".xplane.pb"):
            names = {event.module for event in profiling.events(file)}
            (file.parent / PROGRAMS_FILE).write_text(json.dumps(live_programs.described(names)))
        elif _Running.perfetto and file.name.endswith(".trace.json.gz"):
            shutil.copy(file, file.parent / "perfetto_trace.json.gz")


@contextmanager
def trace(
    log_dir: str | os.PathLike[str],
    create_perfetto_link: bool = False,
    create_perfetto_trace: bool = False,
    profiler_options: Any = None,
) -> Iterator[None]:
    """Record a profile of the ``with`` block, with :func:`start_trace` and :func:`stop_trace`.

    Wait for results in the block (``block_until_ready``): programs that are still running at its end are missing.
    """
    start_trace(log_dir, create_perfetto_link, create_perfetto_trace, profiler_options)
    try:
        yield
    finally:
        stop_trace()


def start_server(port: int) -> Any:
    """Start a server with which TensorBoard can capture profiles at ``port``, until :func:`stop_server`.

    Anybody who can connect to the port can capture profiles.

    Raises:
      ProfilerError: a server is already running.
    """
    if _Running.server is not None:
        raise ProfilerError("start_server: a server is running; there is one at a time (stop_server ends it)")
    _Running.server = profiling.server(port)
    return _Running.server


def stop_server() -> None:
    """Stop the server started by :func:`start_server`.

    Raises:
      ProfilerError: no server is running.
    """
    if _Running.server is None:
        raise ProfilerError("stop_server: no server is running; start_server begins one")
    _Running.server = None


def device_memory_profile(backend: str | None = None) -> bytes:
    """The buffers on the device with the Python stacks that allocated them, in compressed pprof format."""
    return gzip.compress(profiling.heap_profile())


def save_device_memory_profile(filename: str | os.PathLike[str], backend: str | None = None) -> None:
    """Write :func:`device_memory_profile` to a file, for ``pprof --web FILE``.

    Raises:
      FileError: the file cannot be written.
    """
    file = as_path("save_device_memory_profile: filename", filename)
    with user_file("save_device_memory_profile: filename", file):
        file.write_bytes(device_memory_profile(backend))


__getattr__ = _absent("profiler")
