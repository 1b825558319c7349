"""A live display of the device memory of processes, like ``nvidia-smi`` and ``jax-smi``.

A process that calls :func:`initialise_tracking` writes its memory use to a file every second. ``meshwright smi`` in a
terminal shows all such processes of the same user.
"""

from __future__ import annotations

import atexit
import json
import os
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from meshwright.core.background import Background
from meshwright.core.files import user_file
from meshwright.errors import ArgumentError
from meshwright.runtime.devices import local_devices
from meshwright.runtime.memory_stats import memory_stats
from meshwright.spmd.report import human_bytes

__all__ = ["initialise_tracking", "report", "snapshot"]

#: processes that have not written for this many intervals are considered gone
_MISSED = 10


def _folder() -> Path:
    """The folder to which processes of this user write, by default in the temporary folder (``MESHWRIGHT_SMI_DIR``)."""
    chosen = os.environ.get("MESHWRIGHT_SMI_DIR")
    folder = Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"meshwright-smi-{os.getuid()}"
    with user_file("smi: MESHWRIGHT_SMI_DIR", folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise ArgumentError(f"smi: {folder} belongs to another user; set MESHWRIGHT_SMI_DIR to a folder of your own")
    return folder


class _Tracker:
    """The one thread that writes."""

    thread: Background | None = None


def initialise_tracking(interval: float = 1.0) -> None:
    """Make this process visible to ``meshwright smi``, updated every ``interval`` seconds. Call it once.

    Raises:
      ArgumentError: the interval is not positive.
    """
    if interval <= 0:
        raise ArgumentError(f"smi.initialise_tracking: the interval must be positive, got {interval}")
    if _Tracker.thread is not None and _Tracker.thread.is_alive():
        return
    file = _folder() / f"{os.getpid()}.json"
    _write(file, interval)
    _Tracker.thread = Background(partial(_track, file, interval), "meshwright-smi")
    atexit.register(_end, _Tracker.thread, file)


def _track(file: Path, interval: float, stop: threading.Event) -> None:
    while not stop.wait(interval):
        _write(file, interval)


def _end(tracker: Background, file: Path) -> None:
    tracker.end()  # it may be writing
    file.unlink(missing_ok=True)


def snapshot() -> dict[str, Any]:
    """This process's id and name, and the :meth:`Device.memory_stats` of its devices by name."""
    stats = memory_stats(local_devices())
    name = " ".join(Path("/proc/self/cmdline").read_text().split("\0")).strip() if os.path.exists("/proc") else ""
    return {"pid": os.getpid(), "name": name, "devices": {str(d): counters for d, counters in stats.items()}}


def _write(file: Path, interval: float) -> None:
    text = json.dumps({**snapshot(), "time": time.time(), "interval": interval})
    half = file.with_suffix(".part")
    half.write_text(text)
    half.replace(file)  # a reader never sees half of it


def _processes() -> list[dict[str, Any]]:
    """The last snapshot of each running process; files of other processes are removed."""
    records = []
    for file in sorted(_folder().glob("*.json")):
        try:
            record = json.loads(file.read_text())
            os.kill(record["pid"], 0)
        except (OSError, ValueError, KeyError):
            file.unlink(missing_ok=True)
            continue
        if time.time() - record["time"] < _MISSED * max(record["interval"], 1.0):
            records.append(record)
    return records


def report() -> str:
    """A table of the memory used on each device, in total and by process."""
    processes = _processes()
    if not processes:
        return "no process reports; call meshwright.smi.initialise_tracking() in it"
    lines = [f"{'device':<10}  {'in use':>10}  {'peak':>10}  {'limit':>10}  processes"]
    for device in dict.fromkeys(d for p in processes for d in p["devices"]):
        stats = [p["devices"][device] for p in processes if device in p["devices"]]
        used, peak = (sum(s[k] for s in stats) for k in ("bytes_in_use", "peak_bytes_in_use"))
        limit = max(s["bytes_limit"] for s in stats)
        row = [f"{human_bytes(n):>10}" for n in (used, peak, limit)]
        lines.append(f"{device:<10}  {'  '.join(row)}  {len(stats)}")
    lines += ["", f"{'process':>8}  {'in use':>10}  {'peak':>10}  name"]
    for p in processes:
        used, peak = (sum(s[k] for s in p["devices"].values()) for k in ("bytes_in_use", "peak_bytes_in_use"))
        lines.append(f"{p['pid']:>8}  {human_bytes(used):>10}  {human_bytes(peak):>10}  {p['name'][:60]}")
    return "\n".join(lines)
