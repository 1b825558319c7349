"""Which process of a job this one is, from the variables that launchers set."""

from __future__ import annotations

import re
from collections.abc import Mapping

from meshwright.core.records import dataclass
from meshwright.errors import DistributedError

#: where a coordinator listens if nothing says so: the same in all processes of a job, different between jobs
_FIRST_PORT, _PORTS = 61_000, 4_000


@dataclass(frozen=True)
class Job:
    """A process's place: its number, how many there are, and the address (``host:port``) of their coordinator.

    ``launcher`` is what said so; under ours, which holds the coordinator, ``is_served`` is true.
    """

    rank: int
    count: int
    coordinator: str
    launcher: str
    is_served: bool = False

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 <= self.rank < self.count:
            raise DistributedError(
                f"distributed.initialize: {self.launcher} says that this is process {self.rank} of {self.count}; "
                "numbers go from 0 to one less than the number of processes"
            )
        if not re.fullmatch(r".+:\d+", self.coordinator):
            raise DistributedError(
                f"distributed.initialize: the coordinator's address must be host:port, {self.launcher} says "
                f"{self.coordinator!r}"
            )


def find_job(env: Mapping[str, str]) -> Job | None:
    """The job that the environment tells of; None if it tells of none.

    Raises:
      DistributedError: variables that do not fit together.
    """
    for find in (_ours, _torch, _slurm, _open_mpi, _job_set):
        job = find(env)
        if job is not None:
            return job
    return None


def _number(env: Mapping[str, str], name: str) -> int:
    try:
        return int(env[name])
    except (KeyError, ValueError):
        raise DistributedError(
            f"distributed.initialize: the variable {name} should be a number, it is {env.get(name)!r}; pass "
            "coordinator_address, num_processes and process_id instead"
        ) from None


def _ours(env: Mapping[str, str]) -> Job | None:
    if "MESHWRIGHT_COORDINATOR" not in env:
        return None
    rank, count = _number(env, "MESHWRIGHT_PROCESS_ID"), _number(env, "MESHWRIGHT_PROCESS_COUNT")
    return Job(rank, count, env["MESHWRIGHT_COORDINATOR"], "meshwright run", True)


def _torch(env: Mapping[str, str]) -> Job | None:
    """The variables of torchrun, which other launchers set too. Its own store listens at ``MASTER_PORT``: ours, next to
    it."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= env.keys():
        return None
    address = f"{env['MASTER_ADDR']}:{_number(env, 'MASTER_PORT') + 1}"
    return Job(_number(env, "RANK"), _number(env, "WORLD_SIZE"), address, "RANK and WORLD_SIZE")


def _slurm(env: Mapping[str, str]) -> Job | None:
    if not {"SLURM_JOB_ID", "SLURM_PROCID", "SLURM_NTASKS"} <= env.keys():
        return None
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or "localhost"
    port = _FIRST_PORT + _number(env, "SLURM_JOB_ID") % _PORTS
    return Job(_number(env, "SLURM_PROCID"), _number(env, "SLURM_NTASKS"), f"{first_node(nodes)}:{port}", "SLURM")


def first_node(nodes: str) -> str:
    """The first host of SLURM's list: ``node001`` for ``node[001-015,17],login``."""
    match = re.match(r"([^\[,]+)(?:\[([^\],-]+))?", nodes)
    return "".join(part or "" for part in match.groups()) if match else nodes


def _open_mpi(env: Mapping[str, str]) -> Job | None:
    if not {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"} <= env.keys():
        return None
    uri = env.get("OMPI_MCA_orte_hnp_uri") or env.get("PMIX_SERVER_URI2") or env.get("PMIX_SERVER_URI21") or ""
    host = re.search(r"tcp[46]?://\[?([^\],:;]+)", uri)
    if host is None:
        raise DistributedError(
            "distributed.initialize: Open MPI does not say where its first process is; pass coordinator_address"
        )
    job = re.match(r"\D*(\d+)", uri)
    port = _FIRST_PORT + (int(job[1]) if job else 0) % _PORTS
    rank, count = _number(env, "OMPI_COMM_WORLD_RANK"), _number(env, "OMPI_COMM_WORLD_SIZE")
    return Job(rank, count, f"{host[1]}:{port}", "Open MPI")


def _job_set(env: Mapping[str, str]) -> Job | None:
    """A JobSet of Kubernetes: completion indices, and a headless service for names. The number of processes is not in
    the environment unless the manifest puts it there."""
    if "JOBSET_NAME" not in env or "JOB_COMPLETION_INDEX" not in env:
        return None
    per_job = _number(env, "PROCESSES_PER_JOB") if "PROCESSES_PER_JOB" in env else None
    if per_job is None or "REPLICATED_JOB_NAME" not in env:
        raise DistributedError(
            "distributed.initialize: in a JobSet, set PROCESSES_PER_JOB (the parallelism of a job), JOB_REPLICAS (1 if "
            "left out) and REPLICATED_JOB_NAME in the manifest's env, or pass num_processes and process_id"
        )
    jobs = int(env.get("JOB_REPLICAS", "1"))
    name, replicated = env["JOBSET_NAME"], env["REPLICATED_JOB_NAME"]
    rank = int(env.get("JOB_INDEX", "0")) * per_job + _number(env, "JOB_COMPLETION_INDEX")
    address = f"{name}-{replicated}-0-0.{env.get('JOBSET_SUBDOMAIN', name)}:{env.get('COORDINATOR_PORT', _FIRST_PORT)}"
    return Job(rank, jobs * per_job, address, "JobSet")
