"""Jobs in which a process, the coordinator, the port or the disk fails at some moment; ``make fuzz`` runs 100.

Every process that is left must end with an error of ours in time, or go on correctly; the checkpoints that are there
must be whole, and of the values that they are to have.
"""

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import meshwright as mw
from meshwright.checkpoint_io import CheckpointManager

SCRIPT = Path(__file__).with_name("endure.py")
STEPS, SIZE, PRIME = 10, 24 << 12, 10_007
FAULTS = ("killed", "stopped", "late", "different", "coordinator", "port", "full disk", "killed and restarted",
          "raises", "stopped and restarted")  # fmt: skip
#: a machine that does other things needs a longer one, said with MESHWRIGHT_FAULT_TIMEOUT
TIMEOUT = float(os.environ.get("MESHWRIGHT_FAULT_TIMEOUT", "6"))
#: in which a fault of any kind is seen, beyond the timeout
SLACK = 2.0
#: where to write how long each process took to see its fault
TIMES = os.environ.get("MESHWRIGHT_FAULT_TIMES")
#: seconds after which a job that has not ended hangs
PATIENCE = 200.0


def found_in(number: int) -> str:
    """What is wrong with case ``number``, or ""."""
    rng = np.random.default_rng(number)
    fault, count = FAULTS[number % len(FAULTS)], int(rng.integers(2, 4))
    lost, at, delay = int(rng.integers(count)), int(rng.integers(0, STEPS)), float(rng.uniform(0, 0.3))
    with tempfile.TemporaryDirectory() as name:
        case = [fault.partition(" and")[0], lost, at, f"{delay:.4f}", name]
        outs = _alone(case, count) if fault in ("coordinator", "port") else _launched(case, count, fault)
        said = "\n".join(outs)
        wrong = _wrong(fault, count, lost, outs) or _wrong_checkpoints(Path(name), "DONE" in said)
        return f"{wrong}\n{case[:-1]} of {count}\n{said}" if wrong else ""


def _environment() -> dict[str, str]:
    return {**os.environ, "MESHWRIGHT_COLLECTIVE_TIMEOUT": str(TIMEOUT), "PYTHONUNBUFFERED": "1"}


def _launched(case: list, count: int, fault: str) -> list[str]:
    """What each process says, started by the launcher; last, what the launcher says."""
    restarts = ["--restarts", 1, "--min-processes", 1] if "restarted" in fault else []
    command = [sys.executable, "-m", "meshwright", "run", "-n", count, "--timeout", TIMEOUT, *restarts, SCRIPT, *case]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=PATIENCE, env=_environment())
    lines = (done.stdout + done.stderr).splitlines()
    outs = ["\n".join(x for x in lines if x.startswith(f"[{rank}]")) for rank in range(count)]
    return [*outs, "\n".join(x for x in lines if not re.match(r"\[\d\]", x))]


def _alone(case: list, count: int) -> list[str]:
    """What each process says, each started by itself, as other launchers do."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        if case[0] == "port":
            taken.listen()
        else:
            taken.close()
            case = [case[0], 0, *case[2:]]  # who has it
        place = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port - 1)}
        jobs = [
            subprocess.Popen(
                [sys.executable, SCRIPT, *map(str, case)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                env={**_environment(), **place, "RANK": str(rank)},
            ) for rank in range(count)
        ]  # fmt: skip
        try:
            with ThreadPoolExecutor(count) as pool:
                return list(pool.map(_ended, jobs))
        finally:
            for job in jobs:
                job.kill()


def _ended(job: subprocess.Popen) -> str:
    """What a process said, and when and how it ended."""
    said = job.communicate(timeout=PATIENCE)[0]
    return f"{said}\nENDED {time.monotonic()} status {job.returncode}"


def _wrong(fault: str, count: int, lost: int, outs: list[str]) -> str:
    """What is wrong with how the processes ended."""
    hit = re.search(r"FAULT ([\d.]+)", "\n".join(outs))
    gone = fault.startswith(("killed", "stopped", "raises"))
    for rank in range(count):
        seen = re.search(r"SEEN ([\d.]+) (\w+) (.*)", outs[rank])
        # the launcher ends one that is still late when the others have given up
        may_be_ended = rank == lost and hit and (gone or fault == "late")
        # whether what was done is right, the checkpoints say
        is_well = "DONE" in outs[rank] or "coordinator is lost" in outs[rank]
        if not (seen or may_be_ended or is_well):
            return f"rank {rank} did not end as it should"
        waited = _waited(hit, outs[rank])
        if TIMES and waited is not None:
            with open(TIMES, "a") as file:
                file.write(f"{fault}: {waited:.2f}\n")
        if waited is not None and waited > TIMEOUT + SLACK:
            return f"rank {rank} saw it after {waited:.1f} s"
        if gone and seen and rank != lost and f"rank {lost}" not in seen[3]:
            return f"rank {rank} does not name rank {lost}"
    return "the job did not go on" if "restarted" in fault and "DONE" not in outs[0] else ""


def _waited(hit: re.Match | None, out: str) -> float | None:
    """Seconds after which a process saw the fault, or was ended by it: from the fault on, or from when it came back if
    it was away itself."""
    began = re.search(r"BACK ([\d.]+)", out) or re.search(r"FAULT ([\d.]+)", out) or hit
    seen = re.search(r"SEEN ([\d.]+)", out)
    if not seen and "coordinator is lost" in out:
        seen = re.search(r"ENDED ([\d.]+)", out)
    return float(seen[1]) - float(began[1]) if seen and began else None


def _wrong_checkpoints(folder: Path, is_done: bool) -> str:
    """What is wrong with the checkpoints that are left."""
    with mw.enable_x64():
        manager = CheckpointManager(folder, keep=None)
        step = manager.latest_step()
        if step is None or (is_done and step != STEPS - 1):
            return f"the last checkpoint is of step {step}" if is_done else ""
        for one in manager.steps():
            state = manager.restore(one)
            w = np.arange(SIZE, dtype=np.int64)
            for i in range(one + 1):
                w = (3 * w + w.astype(np.int32).sum(dtype=np.int32) % PRIME + i) % PRIME
            if int(state["step"]) != one or not np.array_equal(np.asarray(state["w"]), w):
                return f"the checkpoint of step {one} has other values"
        manager.save(STEPS, state).wait()
        if list(folder.glob("*.writing-*")):
            return "a half checkpoint is left"
    return ""
