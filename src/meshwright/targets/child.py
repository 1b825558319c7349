"""Compilation in a child process.

Compilers for hardware bring threads, locks and environment variables, need gigabytes of memory, and may crash.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np

from meshwright.core.config import config
from meshwright.core.records import dataclass
from meshwright.errors import CompileError
from meshwright.runtime.pjrt.compiler import is_shardy
from meshwright.runtime.pjrt.plugins import Plugin
from meshwright.runtime.pjrt.replicas import CHILD, JAXLIB

#: called with the elapsed seconds and the bytes of memory that the compiler holds
Progress = Callable[[float, int], None]
_PAGE = os.sysconf("SC_PAGE_SIZE")
#: how many of the last lines of the compiler's stderr are shown if the child process ended without an answer
_LINES = 5


@dataclass(frozen=True)
class Job:
    """One per-device module and its compile target; ``device_ids`` are in the order of replica numbers.

    With several ``partitions``, XLA's own partitioner partitions the module first. With ``free_results``, it may choose
    the result shardings.
    """

    name: str
    module: bytes
    platform: str
    topology: str
    options: Mapping[str, Any]
    device_ids: Sequence[int]
    flags: Sequence[tuple[str, Any]] = ()
    partitions: int = 1
    free_results: bool = False


@dataclass(frozen=True)
class Answer:
    """The compiler's output, or its error message, ``refused``."""

    refused: str = ""
    text: str = ""
    executable: bytes = b""
    memory: Mapping[str, int] | None = None
    seconds: float = 0.0
    version: str = ""
    devices: Sequence[Sequence[Any]] = ()


def compile_in_child(job: Job, plugin: Plugin | None, progress: Progress | None = None) -> Answer:
    """Compile in a child process, within the limits ``config.target_seconds`` and ``config.target_memory``.

    Raises:
      CompileError: a limit was exceeded, or the compiler crashed.
    """
    with tempfile.TemporaryDirectory(prefix="meshwright_target_") as name:
        folder = Path(name)
        _write(folder, job, plugin)
        with (folder / "stderr").open("w+") as stderr:
            status = _run(folder, plugin, stderr, progress, job.name)
            stderr.seek(0)
            return _answer(folder, status, stderr.read(), job.name)


def _write(folder: Path, job: Job, plugin: Plugin | None) -> None:
    replicas = len(job.device_ids) // job.partitions
    flags = [*(plugin.flags if plugin else ()), *job.flags]
    request = {
        "environment": dict(plugin.environment) if plugin else {},
        "platform": job.platform,
        "library": str(plugin.library) if plugin else None,
        "kernels": list(plugin.kernels) if plugin else [],
        "topology": job.topology,
        "options": dict(job.options),
        "device_ids": [int(i) for i in job.device_ids],
        "replicas": replicas,
        "partitions": job.partitions,
        "shardy": job.partitions > 1 and is_shardy(job.module),
        "free_results": job.free_results,
        "flags": list(map(list, flags)),
        "module": "module.mlirbc" if job.module else None,
    }
    (folder / "request.json").write_text(json.dumps(request))
    (folder / "module.mlirbc").write_bytes(job.module)


def _run(folder: Path, plugin: Plugin | None, stderr: IO[str], progress: Progress | None, name: str) -> int:
    sites = [JAXLIB, *(str(Path(package.__path__[0]).parent) for package in (np, ml_dtypes))]
    if plugin is not None:
        sites.append(str(plugin.folder))
    process = subprocess.Popen(
        [sys.executable, "-P", str(CHILD), str(folder), *dict.fromkeys(sites)],
        stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr,
        start_new_session=True,  # Ctrl-C at a terminal is for us
        env={"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ},
    )  # fmt: skip
    try:
        return _wait(process, progress, name)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], progress: Progress | None, name: str) -> int:
    start, pause = time.monotonic(), 0.01
    while True:
        try:
            return process.wait(pause)
        except subprocess.TimeoutExpired:
            pause = min(2 * pause, 0.5)
        seconds, held = time.monotonic() - start, _resident(process.pid)
        if seconds > config.target_seconds:
            raise CompileError(
                f"compiling {name} takes longer than {config.target_seconds} s; raise config.target_seconds, or "
                "compile fewer layers of the program (in a scan, they are compiled once)"
            )
        if held > config.target_memory:
            raise CompileError(
                f"compiling {name} takes more than {config.target_memory / 2**30:.1f} GiB of this computer's memory; "
                "raise config.target_memory, or compile fewer layers (in a scan, they are compiled once)"
            )
        if progress is not None:
            progress(seconds, held)


def _resident(pid: int) -> int:
    """The resident memory of a process in bytes; 0 if the system does not report it."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


def _answer(folder: Path, status: int, stderr: str, name: str) -> Answer:
    written = folder / "answer.json"
    if not written.exists():
        raise CompileError(_ended(status, stderr, name))
    record = json.loads(written.read_text())
    if "refused" in record:
        return Answer(refused=record["refused"])
    if "memory" not in record:
        return Answer(devices=record["devices"])
    return Answer(
        "", (folder / "module.hlo").read_text(), (folder / "executable").read_bytes(), record["memory"],
        record["seconds"], record["version"], record["devices"],
    )  # fmt: skip


def _ended(status: int, stderr: str, name: str) -> str:
    """The error message for a child process that ended without an answer."""
    how = f"with {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
    lines = [line for line in stderr.splitlines() if line.strip()][-_LINES:]
    return "\n".join([f"compiling {name}: the compiler's process ended {how}" + (", saying:" if lines else ""), *lines])
