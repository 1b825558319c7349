"""Clients of XLA's runtime for each platform."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jaxlib import _jax
from jaxlib import xla_client as xc

from meshwright.core.config import config
from meshwright.errors import DeviceError
from meshwright.runtime.pjrt.world import WORLD


def make_client(platform: str, devices: int) -> Any:
    """A client with ``devices`` real devices in this process; 0 stands for one processor.

    Raises:
      DeviceError: there is no such platform here.
    """
    if platform != "cpu":
        raise DeviceError(
            f"config.platform is {platform!r}, whose runtime this version cannot start; it compiles for such chips "
            "(see PartitionedProgram.compile) and runs on 'cpu'"
        )
    devices = max(devices, 1)
    with _threads_for(devices):
        if WORLD.service is None:
            return xc.make_cpu_client(num_devices=devices)
        gloo = _jax.make_gloo_tcp_collectives(distributed_client=WORLD.service, hostname=WORLD.host)
        return xc.make_cpu_client(
            distributed_client=WORLD.service, node_id=WORLD.rank, num_nodes=WORLD.count, num_devices=devices,
            collectives=gloo,
        )  # fmt: skip


@contextmanager
def _threads_for(devices: int) -> Iterator[None]:
    """XLA's settings while its client starts, which reads them from the environment.

    Each device's part of a run waits in a thread for the others': with as many threads as devices, two runs in flight
    can hold them all and wait for ever. Twice as many cannot be held so.
    """
    before = {name: os.environ.get(name) for name in ("NPROC", "XLA_FLAGS")}
    if devices > 1 or WORLD.count > 1:
        os.environ["NPROC"] = str(max(2 * devices, os.cpu_count() or 1))
    if WORLD.count > 1:
        timeout = f"--xla_cpu_collective_timeout_seconds={math.ceil(config.collective_timeout)}"
        os.environ["XLA_FLAGS"] = f"{before['XLA_FLAGS'] or ''} {timeout}".strip()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
