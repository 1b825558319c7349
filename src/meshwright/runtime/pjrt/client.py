"""The one PJRT client of this process, and its devices.

Everything in this folder uses private names of ``jaxlib``; the pinned release is 0.10.
"""

from __future__ import annotations

import os
import threading
from functools import cache, partial
from itertools import groupby
from typing import Any

from meshwright.core.config import config
from meshwright.errors import DeviceError
from meshwright.runtime.pjrt import deadlines, platforms
from meshwright.runtime.pjrt.failures import raise_failure
from meshwright.runtime.pjrt.world import NOTE_RUN, WORLD

_starting = threading.Lock()
_STARTING = "the start of the devices, which all processes make together"


@cache
def _start() -> Any:
    make = partial(platforms.make_client, config.platform, config.real_devices)
    if WORLD.count == 1:
        return make()
    NOTE_RUN.value("the start of its devices")  # all processes wait for each other here
    try:
        return deadlines.limited(make, "not all devices are there", _STARTING)
    except RuntimeError as error:
        raise_failure(error, "the start of the devices", _STARTING)


class Forked:
    """Whether this process was forked after the client was started, whose threads a fork does not have."""

    happened = False


def _note_fork() -> None:
    global _starting
    _starting = threading.Lock()
    Forked.happened = _start.cache_info().currsize > 0


os.register_at_fork(after_in_child=_note_fork)


def require_own_process() -> None:
    """Raise in a forked process that cannot run programs: it would hang.

    Raises:
      DeviceError: the process was forked after the first use of a device.
    """
    if Forked.happened:
        raise DeviceError(
            "this process was forked from one that had used meshwright already: the threads that run programs did not "
            "come along. Start processes with multiprocessing.get_context('spawn') (or 'forkserver'), or fork before "
            "the first array is made"
        )


def is_started() -> bool:
    """Whether the client has been started; its devices can then no longer be changed."""
    return _start.cache_info().currsize > 0


def client() -> Any:
    """The client of ``config.platform``, created once at first use; thread-safe."""
    require_own_process()
    with _starting:
        return _start()


@cache
def real_devices() -> tuple[Any, ...]:
    """PJRT's devices of all processes, in the numbering of :class:`~meshwright.runtime.devices.Device`."""
    devices = sorted(client().devices(), key=lambda d: (d.process_index, d.id))
    used = config.real_devices or len(devices)
    return tuple(d for _, mine in groupby(devices, lambda d: d.process_index) for d in list(mine)[:used])


@cache
def has_many() -> bool:
    """Whether there are several real devices."""
    return len(real_devices()) > 1


@cache
def first_local() -> int:
    """The number of the first real device of this process."""
    return next(i for i in range(len(real_devices())) if is_local(i))


def is_local(real: int) -> bool:
    """Whether a real device belongs to this process."""
    return real_devices()[real].process_index == client().process_index()
