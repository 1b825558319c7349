"""Profiles: where the time goes, and the memory.

>>> import tempfile
>>> folder = tempfile.mkdtemp()
>>> with mw.profiler.trace(folder):
...     for step in range(3):
...         with mw.profiler.StepTraceAnnotation("train", step_num=step):
...             y = mw.jit(lambda x: mnp.sin(x).sum())(mnp.arange(1000.0))
...     _ = y.block_until_ready()
>>> mw.profiler.read_profile(folder).seconds > 0
True

What is written opens in TensorBoard and in Perfetto (https://ui.perfetto.dev, the ``.trace.json.gz`` file);
``meshwright profile FOLDER`` prints time by device, op, line of the program and collective.

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
from meshwright.runtime import programs
from meshwright.runtime.pjrt import profiling

__all__ = [
    "Profile", "ProfileData", "ProfileEvent", "ProfileOptions", "ProfilePlane",
    "StepTraceAnnotation", "TraceAnnotation", "annotate_function",
    "device_memory_profile", "read_profile", "save_device_memory_profile", "start_server", "start_trace",
    "stop_server", "stop_trace", "trace",
]  # fmt: skip

Function = TypeVar("Function", bound=Callable[..., Any])
ProfileOptions = profiling.ProfileOptions
#: what a recorded profile (``.xplane.pb``) holds: ``ProfileData.from_file(name).planes``, their lines and events
ProfileData, ProfilePlane, ProfileEvent = profiling.ProfileData, profiling.ProfilePlane, profiling.ProfileEvent


class TraceAnnotation(profiling.TraceMe):  # type: ignore[misc]
    """A span on the time line: ``with TraceAnnotation("load", file=name): ...``."""


class StepTraceAnnotation(TraceAnnotation):
    """A span that is a step of training: ``with StepTraceAnnotation("train", step_num=n): ...``."""

    def __init__(self, name: str, **metadata: Any) -> None:
        super().__init__(name, _r=1, **metadata)


def annotate_function(func: Function, name: str | None = None, **metadata: Any) -> Function:
    """``func``, each call of which is a span on the time line under its name.

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
    """The profile that is being recorded, and the server: there can be one of each."""

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
    """Begin to record a profile, which :func:`stop_trace` writes to ``log_dir``.

    With ``create_perfetto_trace`` there is a ``perfetto_trace.json.gz`` beside it, which has the same content as the
    ``.trace.json.gz`` that is always written. ``profiler_options`` is a ``ProfileOptions``.

    Raises:
      ProfilerError: one is being recorded.
      ArgumentError: ``create_perfetto_link``, which would need a server. FileError: ``log_dir`` cannot be made.
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
    """End the profile that is being recorded, and write it.

    What was not waited for may still run then, and is not in it.

    Raises:
      ProfilerError: none is being recorded.
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
            (file.parent / PROGRAMS_FILE).write_text(json.dumps(programs.described(names)))
        elif _Running.perfetto and file.name.endswith(".trace.json.gz"):
            shutil.copy(file, file.parent / "perfetto_trace.json.gz")


@contextmanager
def trace(
    log_dir: str | os.PathLike[str],
    create_perfetto_link: bool = False,
    create_perfetto_trace: bool = False,
    profiler_options: Any = None,
) -> Iterator[None]:
    """Record a profile of the ``with`` block: :func:`start_trace` and :func:`stop_trace`.

    Wait for results in the block (``block_until_ready``): what still runs at its end is not in the profile.
    """
    start_trace(log_dir, create_perfetto_link, create_perfetto_trace, profiler_options)
    try:
        yield
    finally:
        stop_trace()


def start_server(port: int) -> Any:
    """Let TensorBoard capture profiles at ``port`` of this machine, until :func:`stop_server`. Whoever reaches the
    port can.

    Raises:
      ProfilerError: there is one.
    """
    if _Running.server is not None:
        raise ProfilerError("start_server: a server is running; there is one at a time (stop_server ends it)")
    _Running.server = profiling.server(port)
    return _Running.server


def stop_server() -> None:
    """End the server that :func:`start_server` began.

    Raises:
      ProfilerError: there is none.
    """
    if _Running.server is None:
        raise ProfilerError("stop_server: no server is running; start_server begins one")
    _Running.server = None


def device_memory_profile(backend: str | None = None) -> bytes:
    """The buffers of the device, with the Python stacks that made them, in the format of pprof (compressed)."""
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
