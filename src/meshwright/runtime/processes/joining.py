"""Joining a job, and leaving it."""

from __future__ import annotations

import atexit
import os
import sys
import time
import traceback
from contextlib import suppress
from functools import partial
from typing import Any

from meshwright.core.background import Background
from meshwright.core.config import config
from meshwright.core.records import dataclass
from meshwright.core.words import counted
from meshwright.errors import ConfigError, DistributedError
from meshwright.runtime import devices
from meshwright.runtime.pjrt import coordination
from meshwright.runtime.pjrt.client import is_started
from meshwright.runtime.pjrt.world import WORLD
from meshwright.runtime.processes import heartbeats
from meshwright.runtime.processes.agreement import blamed
from meshwright.runtime.processes.jobs import Job
from meshwright.runtime.processes.proxy import Proxy
from meshwright.runtime.processes.rendezvous import attend, own_token, watch
from meshwright.runtime.processes.service import Service


@dataclass
class _Held:
    """What this process holds for as long as it is in a job."""

    #: the coordinator's service, if this process started it
    service: Service | None = None
    #: the proxy for XLA's connection to the coordinator, and the thread that watches the coordinator
    proxy: Any = None
    watch: Any = None


HELD = _Held()
#: the most characters of an error message that other processes see
_WORDS = 200


def join(job: Job, wait: float) -> None:
    """Join ``job`` as the process that it describes. GPUs are assigned by local rank, unless the user chose others.

    Raises:
      DistributedError: the coordinator or a process does not arrive within ``wait`` seconds, or devices differ.
      ConfigError: devices are already in use.
    """
    if WORLD.service is not None:
        raise DistributedError("distributed.initialize was called before; call it once, when the program begins")
    if is_started() or devices.are_listed():
        raise ConfigError(
            "distributed.initialize: the devices are already in use; call it before anything that makes an array or "
            "asks for devices"
        )
    if not job.is_served and job.rank == 0:
        HELD.service = Service(job.coordinator, job.count, wait)
    connection = attend(job.coordinator, job.rank, job.count, own_token(), wait)
    HELD.watch = Background(partial(watch, connection, job.coordinator, job.rank), "meshwright-coordinator")
    HELD.proxy = Proxy(job.coordinator)
    try:
        service = coordination.connect(HELD.proxy.address, job.rank, wait)
    except DistributedError:  # the caller may continue alone
        HELD.watch.end()
        HELD.proxy.end()
        raise
    WORLD.rank, WORLD.count, WORLD.service = job.rank, job.count, service
    WORLD.own_devices = WORLD.own_devices or _by_place(job, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if not job.coordinator.startswith(("127.", "localhost:", "[::1]:")):
        WORLD.host = os.environ.get("MESHWRIGHT_HOST") or coordination.address_towards(job.coordinator)
    table = heartbeats.begin(service)
    _check_devices(table, wait)
    sys.excepthook = partial(_end_at_once, sys.excepthook)
    atexit.register(leave)


def _by_place(job: Job, visible: str | None) -> tuple[int, ...] | None:
    """The GPUs of a process on a machine with several: consecutive ones, in the order of the local ranks.

    None means all visible ones, if the launcher already restricts them (``visible``) or does not number the processes.
    """
    count = config.real_devices or 1
    if job.local_rank is None or (visible is not None and len(visible.split(",")) <= count):
        return None
    return tuple(range(job.local_rank * count, (job.local_rank + 1) * count))


def _check_devices(table: Any, wait: float) -> None:
    """Check that all processes have equally many devices.

    Raises:
      DistributedError: names a process that has another number, or did not report it.
    """
    real = f", {config.real_devices} of them real," if config.real_devices else ""
    mine = f"{counted(config.num_devices, 'device')}{real} on {config.platform}"
    table.put(f"meshwright/devices/{WORLD.rank}", mine.encode())
    for rank in range(WORLD.count):
        theirs = _heard(table, f"meshwright/devices/{rank}", rank, wait)
        if theirs is None or theirs.decode() != mine:
            what = "did not come" if theirs is None else f"has {theirs.decode()}"
            error = DistributedError(
                f"process {rank} {what}; this one, {WORLD.rank}, has {mine}: all must have as many. Start each with "
                "the same MESHWRIGHT_NUM_DEVICES, MESHWRIGHT_REAL_DEVICES and MESHWRIGHT_PLATFORM (meshwright run "
                "--devices, --real-devices)"
            )
            error.ranks = (rank,)
            raise error


def _heard(table: Any, key: str, rank: int, wait: float) -> bytes | None:
    """The value that process ``rank`` publishes within ``wait`` seconds, or None.

    Raises:
      DistributedError: the process has failed.
    """
    end = time.monotonic() + wait
    while time.monotonic() < end:
        if (value := table.get(key, min(2.0, wait))) is not None:
            return value
        if gone := heartbeats.are_gone((rank,)):
            raise blamed(f"process {WORLD.rank} cannot join the job", gone)
    return None


def _end_at_once(hook: Any, kind: Any, value: Any, trace: Any) -> None:
    """End a process after an uncaught exception, after the user's own hook.

    XLA would wait for the other processes at exit.
    """
    try:
        hook(kind, value, trace)
    except Exception:
        traceback.print_exc()
        traceback.print_exception(kind, value, trace)
    heartbeats.end(
        f"ended with {''.join(traceback.format_exception_only(kind, value)).strip().splitlines()[0][:_WORDS]}"
    )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(130 if issubclass(kind, KeyboardInterrupt) else 1)


def leave() -> None:
    """Leave the job. Waits for running programs, and a few seconds for the other processes."""
    if WORLD.service is None:
        return
    heartbeats.end("has left the job, by the end of its program or by shutdown()")
    HELD.watch.end()
    service, WORLD.service = WORLD.service, None
    if not WORLD.lost:
        with suppress(RuntimeError):  # another process failed, which it reports itself
            service.shutdown()
    HELD.proxy.end()
    if HELD.service is not None:
        HELD.service.stop()
        HELD.service = None
