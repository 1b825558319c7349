"""Programs that run in several processes, as in ``jax.distributed``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from meshwright.core.config import config
from meshwright.core.expected import as_integer, as_number, as_tuple
from meshwright.errors import ArgumentError, DistributedError
from meshwright.runtime.pjrt.world import WORLD
from meshwright.runtime.processes.jobs import Job, find_job
from meshwright.runtime.processes.joining import join, leave

_CALL = "distributed.initialize"

__all__ = ["initialize", "is_initialized", "shutdown"]


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    local_device_ids: int | Sequence[int] | None = None,
    *,
    initialization_timeout: float = 300,
) -> None:
    """Connect this process to the others of its job, so that ``devices()`` are those of all processes.

    Call it before devices are first used. Without arguments, the process's place in the job is taken from the
    environment of its launcher: ``meshwright run``, torchrun (or whatever sets ``RANK``, ``WORLD_SIZE``,
    ``MASTER_ADDR`` and ``MASTER_PORT``), SLURM, Open MPI or a JobSet of Kubernetes. Without any of these, the process
    runs alone. Collectives fail after ``config.collective_timeout`` seconds (``MESHWRIGHT_COLLECTIVE_TIMEOUT``).

    Processes must know the job's token (``MESHWRIGHT_TOKEN``, which ``meshwright run`` sets). XLA's connections are
    neither encrypted nor authenticated; they are on loopback unless an address is given.

    Args:
      coordinator_address: ``host:port`` at which process 0 starts the coordinator, if the launcher has none.
      num_processes, process_id: the number of processes, and that of this one.
      local_device_ids: the numbers of this process's GPUs on its machine; on CPUs, only how many there are matters. By
        default, if the launcher numbers the processes of a machine, each takes the GPU with its number, or
        ``config.real_devices`` of them, unless ``CUDA_VISIBLE_DEVICES`` already selects its GPUs.
      initialization_timeout: seconds to wait for the other processes.

    Raises:
      DistributedError: the other processes do not connect in time, or have other devices, versions or tokens; or the
        arguments and the environment do not fit together.
      ConfigError: devices are already in use.

    Example:
      >>> mw.distributed.is_initialized()  # after initialize(), under meshwright run
      False
    """
    given = [coordinator_address, num_processes, process_id]
    if local_device_ids is not None:
        ids = _numbers(local_device_ids)
        config.update("num_devices", len(ids))
        WORLD.own_devices = ids
    if all(g is not None for g in given):
        rank = as_integer(f"{_CALL}: process_id", process_id)
        count = as_integer(f"{_CALL}: num_processes", num_processes, 1)
        job = Job(rank, count, str(coordinator_address), "the call")
    elif any(g is not None for g in given):
        job = _completed(coordinator_address, num_processes, process_id)
    else:
        launched = find_job(os.environ)
        if launched is None:
            return
        job = launched
    join(job, as_number(f"{_CALL}: initialization_timeout", initialization_timeout))


def _numbers(local_device_ids: int | Sequence[int]) -> tuple[int, ...]:
    """The numbers of devices as a tuple.

    Raises:
      ArgumentError, ArgumentTypeError: they are not different integers.
    """
    what = f"{_CALL}: local_device_ids"
    given = local_device_ids if isinstance(local_device_ids, Iterable) else (local_device_ids,)
    ids = tuple(as_integer(what, i) for i in as_tuple(what, "integers", given))
    if not ids or len(set(ids)) < len(ids):
        raise ArgumentError(f"{what} must be one or several different numbers of devices, got {local_device_ids!r}")
    return ids


def _completed(address: str | None, count: int | None, rank: int | None) -> Job:
    """The job of a call with some of the arguments; the others are taken from the environment.

    Raises:
      ArgumentError: there is no launcher.
    """
    launched = find_job(os.environ, address)
    if launched is None:
        raise ArgumentError(
            "distributed.initialize: give coordinator_address, num_processes and process_id, all three, or start the "
            "program with a launcher that says them (meshwright run -n 4 script.py)"
        )
    return Job(
        launched.rank if rank is None else rank, launched.count if count is None else count,
        launched.coordinator, launched.launcher, launched.is_served, launched.local_rank,
    )  # fmt: skip


def is_initialized() -> bool:
    """Whether this process is connected to others."""
    return WORLD.service is not None


def shutdown() -> None:
    """Disconnect from the other processes, as also happens at the end of the program.

    Raises:
      DistributedError: ``initialize`` was not called.
    """
    if WORLD.service is None:
        raise DistributedError("distributed.shutdown: initialize() was not called; call it first, or leave this out")
    leave()
