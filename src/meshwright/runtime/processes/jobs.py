"""The index of this process in its job, from the environment variables that launchers set."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

from meshwright.core.addresses import address_of, host_and_port
from meshwright.core.records import dataclass
from meshwright.errors import DistributedError

#: range of the coordinator's default port, which is the same in all processes of a job and differs between jobs
_FIRST_PORT, _PORTS = 61_000, 4_000


@dataclass(frozen=True)
class Job:
    """The rank of a process, the number of processes, and the address (``host:port``) of their coordinator.

    ``launcher`` is what provided these. Under our own launcher, which runs the coordinator, ``is_served`` is true.
    ``local_rank`` is the rank among the processes of this machine, if known.
    """

    rank: int
    count: int
    coordinator: str
    launcher: str
    is_served: bool = False
    local_rank: int | None = None

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 <= self.rank < self.count:
            raise DistributedError(
                f"distributed.initialize: {self.launcher} says that this is process {self.rank} of {self.count}; "
                "numbers go from 0 to one less than the number of processes"
            )
        if not _is_address(self.coordinator):
            raise DistributedError(
                f"distributed.initialize: the coordinator's address must be host:port ([host]:port for IPv6, with a "
                f"port below 65536), {self.launcher} says {self.coordinator!r}"
            )
        object.__setattr__(self, "coordinator", address_of(*host_and_port(self.coordinator)))


def _is_address(address: str) -> bool:
    """Whether it is ``host:port``, of a host that is no address itself, unless one of IPv6."""
    if not re.fullmatch(r".+:\d{1,5}", address):
        return False
    host, port = host_and_port(address)
    return port < 1 << 16 and "/" not in host and (":" not in host or _is_ipv6(host))


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def find_job(env: Mapping[str, str], address: str | None = None) -> Job | None:
    """The job described by environment variables; None if there are none.

    The coordinator is at ``address``, if that is given, whatever they say.

    Raises:
      DistributedError: the variables are inconsistent.
    """
    for find in (_ours, _torch, _open_mpi, _slurm, _job_set, _pmi):  # SLURM may have started the others
        job = find(env, address)
        if job is not None:
            return job
    _refuse_half(env)
    return None


#: the variables that a launcher sets in each process: the process's number, how many there are, and others that we need
_TOGETHER = (
    ("MESHWRIGHT_PROCESS_ID", "MESHWRIGHT_PROCESS_COUNT", "MESHWRIGHT_COORDINATOR"),
    ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID"),
    ("PMI_RANK", "PMI_SIZE"),
)


def _refuse_half(env: Mapping[str, str]) -> None:
    """Refuse variables that say that there are several processes, each of which would run alone.

    Raises:
      DistributedError: names the missing variables.
    """
    for rank, size, *others in _TOGETHER:
        is_shell = size == "SLURM_NTASKS" and rank not in env  # which is told how many tasks it may start
        if is_shell or (env.get(rank, "0"), env.get(size, "1")) == ("0", "1"):
            continue
        said = " and ".join(f"{name}={env[name]}" for name in (rank, size) if name in env)
        missing = [name for name in (rank, size, *others) if name not in env]
        remedy = f"{' and '.join(missing)} must be set as well" if missing else "no variable says where the first is"
        raise DistributedError(
            f"distributed.initialize: there are several processes ({said}), and {remedy}; pass coordinator_address, "
            "num_processes and process_id instead"
        )


def _number(env: Mapping[str, str], name: str) -> int:
    try:
        return int(env[name])
    except (KeyError, ValueError):
        raise DistributedError(
            f"distributed.initialize: the variable {name} should be a number, it is {env.get(name)!r}; pass "
            "coordinator_address, num_processes and process_id instead"
        ) from None


def _local_rank(env: Mapping[str, str], name: str) -> int | None:
    return _number(env, name) if name in env else None


def _ours(env: Mapping[str, str], address: str | None) -> Job | None:
    if "MESHWRIGHT_COORDINATOR" not in env:
        return None
    rank, count = _number(env, "MESHWRIGHT_PROCESS_ID"), _number(env, "MESHWRIGHT_PROCESS_COUNT")
    at = address or env["MESHWRIGHT_COORDINATOR"]
    return Job(rank, count, at, "meshwright run", address is None, rank)  # all on one machine


def _torch(env: Mapping[str, str], address: str | None) -> Job | None:
    """The variables of torchrun, which other launchers also set.

    Torchrun's own store listens at ``MASTER_PORT``, so the coordinator uses the next port.
    """
    if not {"RANK", "WORLD_SIZE"} <= env.keys():
        return None
    if address is None:
        if not {"MASTER_ADDR", "MASTER_PORT"} <= env.keys():
            return None
        address = address_of(env["MASTER_ADDR"].removeprefix("[").removesuffix("]"), _number(env, "MASTER_PORT") + 1)
    rank, count = _number(env, "RANK"), _number(env, "WORLD_SIZE")
    return Job(rank, count, address, "RANK and WORLD_SIZE", local_rank=_local_rank(env, "LOCAL_RANK"))


def _slurm(env: Mapping[str, str], address: str | None) -> Job | None:
    if not {"SLURM_JOB_ID", "SLURM_PROCID", "SLURM_NTASKS"} <= env.keys():
        return None
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or "localhost"
    steps = 1009 * _number(env, "SLURM_STEP_ID") if env.get("SLURM_STEP_ID") else 0  # which may run in parallel
    port = _FIRST_PORT + (_number(env, "SLURM_JOB_ID") + steps) % _PORTS
    rank, count = _number(env, "SLURM_PROCID"), _number(env, "SLURM_NTASKS")
    at = address or f"{first_node(nodes)}:{port}"
    return Job(rank, count, at, "SLURM", local_rank=_local_rank(env, "SLURM_LOCALID"))


def first_node(nodes: str) -> str:
    """The first host of SLURM's list: ``node001`` for ``node[001-015,17],login``."""
    match = re.match(r"(?:[^\[,]|\[[^\]]*\])+", nodes)
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", match[0] if match else nodes)


def _open_mpi(env: Mapping[str, str], address: str | None) -> Job | None:
    if not {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"} <= env.keys():
        return None
    rank, count = _number(env, "OMPI_COMM_WORLD_RANK"), _number(env, "OMPI_COMM_WORLD_SIZE")
    local = _local_rank(env, "OMPI_COMM_WORLD_LOCAL_RANK")
    return Job(rank, count, address or _of_open_mpi(env), "Open MPI", local_rank=local)


def _of_open_mpi(env: Mapping[str, str]) -> str:
    """The coordinator's address.

    Raises:
      DistributedError: no variable says where the first process is.
    """
    uri = env.get("OMPI_MCA_orte_hnp_uri") or env.get("PMIX_SERVER_URI2") or env.get("PMIX_SERVER_URI21") or ""
    host = re.search(r"tcp[46]?://(?:\[([^\],]+)|([^,:;]+))", uri)
    if host is None:
        raise DistributedError(
            "distributed.initialize: Open MPI does not say where its first process is; pass coordinator_address"
        )
    job = re.match(r"\D*(\d+)", uri)
    return address_of(host[1] or host[2], _FIRST_PORT + (int(job[1]) if job else 0) % _PORTS)


def _pmi(env: Mapping[str, str], address: str | None) -> Job | None:
    """The variables of MPICH and those made of it, which do not say where the first process is."""
    if address is None or not {"PMI_RANK", "PMI_SIZE"} <= env.keys():
        return None
    return Job(_number(env, "PMI_RANK"), _number(env, "PMI_SIZE"), address, "PMI")


def _job_set(env: Mapping[str, str], address: str | None) -> Job | None:
    """A JobSet of Kubernetes: completion indices, and a headless service for host names.

    The number of processes is only in the environment if the manifest puts it there.
    """
    if "JOBSET_NAME" not in env or "JOB_COMPLETION_INDEX" not in env:
        return None
    per_job = _number(env, "PROCESSES_PER_JOB") if "PROCESSES_PER_JOB" in env else None
    if per_job is None or "REPLICATED_JOB_NAME" not in env:
        raise DistributedError(
            "distributed.initialize: in a JobSet, set PROCESSES_PER_JOB (the parallelism of a job), JOB_REPLICAS (1 if "
            "left out) and REPLICATED_JOB_NAME in the manifest's env, or pass num_processes and process_id"
        )
    env = {"JOB_REPLICAS": "1", "JOB_INDEX": "0", "COORDINATOR_PORT": str(_FIRST_PORT), **env}
    name, replicated = env["JOBSET_NAME"], env["REPLICATED_JOB_NAME"]
    rank = _number(env, "JOB_INDEX") * per_job + _number(env, "JOB_COMPLETION_INDEX")
    host, port = f"{name}-{replicated}-0-0.{env.get('JOBSET_SUBDOMAIN', name)}", _number(env, "COORDINATOR_PORT")
    return Job(rank, _number(env, "JOB_REPLICAS") * per_job, address or address_of(host, port), "JobSet")
