"""Jobs of several processes on this machine, started by the command."""

import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

import meshwright as mw
from meshwright.core.config import config
from meshwright.errors import DistributedError, MeshwrightError
from meshwright.runtime.pjrt.coordination import Table
from meshwright.runtime.pjrt.world import WORLD
from meshwright.runtime.processes import heartbeats, joining, rendezvous
from meshwright.runtime.processes.jobs import Job, find_job, first_node
from meshwright.runtime.processes.launching import Launch
from meshwright.runtime.processes.rendezvous import Rendezvous
from meshwright.runtime.processes.stopping import Terminated, heed_signals

HERE = Path(__file__).parent


def command(*arguments):
    return [sys.executable, "-m", "meshwright", "run", *map(str, arguments)]


def run(*arguments, seconds=300):
    """Exit status, and the lines of both streams, of a job."""
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=seconds)
    return done.returncode, done.stdout, done.stderr


def test_processes_work_together():
    status, out, err = run("-n", 2, "--devices", 4, "--timeout", 60, HERE / "work_together.py")
    assert status == 0, out[-3000:] + err[-5000:]
    assert "[0] all is well in 0" in out and "[1] all is well in 1" in out


def test_an_axis_is_cut_between_processes_and_virtual_devices():
    status, out, err = run("-n", 3, "--devices", 2, "--timeout", 60, HERE / "cut_axes.py")
    assert status == 0 and out.count("all is well") == 3, out[-3000:] + err[-5000:]


WARM = """
import logging, os, pathlib, sys
import numpy as np
import meshwright as mw
rank = int(os.environ["MESHWRIGHT_PROCESS_ID"])
folder = pathlib.Path(sys.argv[1]) / (sys.argv[2] if rank else "shared")
mw.config.update("compilation_cache_dir", str(folder))
mw.config.update("persistent_cache_min_compile_time_secs", 0.0)
mw.distributed.initialize()
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout, format="%(message)s")
rows = mw.NamedSharding(mw.make_mesh((4,), ("x",)), mw.P("x"))
x = mw.make_array_from_callback((4, 2), rows, lambda i: np.ones((1, 2)))
def total(x):
    return (x.cumsum(0) * float(sys.argv[3 + min(rank, len(sys.argv) - 4)])).sum()
print("total", float(mw.jit(total)(x)), flush=True)
"""


@pytest.mark.slow
def test_processes_start_warm_where_all_have_the_program(tmp_path):
    script = tmp_path / "warm.py"
    script.write_text(WARM)

    def once(*arguments):
        status, out, err = run("-n", 2, "--devices", 2, "--timeout", 20, script, tmp_path, *arguments)
        lines = re.findall(r"^\[(\d)\] (Loaded|Compiled) total", out, re.M)
        return status, dict(lines), out + err

    for folder, found in (("shared", "Compiled"), ("shared", "Loaded"), ("mine", "Compiled"), ("mine", "Loaded")):
        status, how, text = once(folder, 2.0)
        assert status == 0 and text.count("total 40.0") == 2 and how == {"0": found, "1": found}, (folder, text)
    status, _, text = once("shared", 2.0, 3.0)
    assert status != 0 and "is about to run another program" in text and "3.0" in text, text


def survivors(how, timeout):
    """What the processes say that see another one go."""
    status, out, err = run("-n", 3, "--timeout", timeout, HERE / "lose_one.py", how)
    assert status != 0 and "no error" not in out, out + err
    return out, err


def test_a_dead_process_is_named():
    out, err = survivors("killed", 20)
    for rank in (0, 2):
        line = re.search(rf"^\[{rank}\] ranks \(1,\): (.*)$", out, re.M)
        assert line, out + err
        for word in ("rank 1 on host", "is dead", "psum at lose_one.py", f"Rank {rank} waited in"):
            assert word in line[1], line[1]
    assert "rank 1 was ended by SIGKILL" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "word"),
    [("stopped", "is stopped"), ("late", "is late"), ("raises", "ended with ValueError: of the test"),
     ("killed", "is dead"), ("connecting", "is dead")],
)  # fmt: skip
def test_lost_processes_are_named_in_time(how, word):
    timeout = 5
    out, err = survivors(how, timeout)
    for rank in (0, 2):
        line = re.search(rf"^\[{rank}\] ranks \(1,\): (.*)$", out, re.M)
        assert line and word in line[1] and "lose_one.py" in line[1], out + err
    waits = [float(s) for s in re.findall(r"^\[[02]\] after ([\d.]+) s", out, re.M)]
    assert len(waits) == 2 and max(waits) < timeout + 2, waits


ENDS_EARLY = """
import time
import numpy as np
import meshwright as mw
from meshwright.experimental import multihost_utils
mw.distributed.initialize()
x = mw.make_array_from_process_local_data(
    mw.NamedSharding(mw.make_mesh((mw.device_count(),), ("x",)), mw.P("x")), np.ones(1, np.float32))
if mw.process_index() == 1:
    for work in (lambda: mw.jit(lambda x: x.sum())(x), lambda: multihost_utils.sync_global_devices("here")):
        started = time.monotonic()
        try:
            work()
        except mw.errors.DistributedError as error:
            print(f"after {time.monotonic() - started:.0f} s: {error}".replace("\\n", " "), flush=True)
"""


def test_nobody_waits_for_a_process_that_has_ended(tmp_path):
    """Neither to agree on a program nor at a barrier: the timeout is for those that may still come."""
    script = tmp_path / "ends_early.py"
    script.write_text(ENDS_EARLY)
    _, out, err = run("-n", 2, "--timeout", 200, script, seconds=150)
    told = re.findall(r"^\[1\] after (\d+) s: (.*)$", out, re.M)
    assert len(told) == 2, out + err
    assert all(int(seconds) < 60 and "rank 0 on host" in text and "has left the job" in text for seconds, text in told)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_all(tmp_path, signum):
    """What the processes started, too; a scheduler's signal is passed on, for a last checkpoint."""
    script = tmp_path / "wait.py"
    script.write_text(
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit('told to end'))\n"
        "print(os.getpid(), subprocess.Popen(['sleep', '600']).pid, flush=True)\ntime.sleep(600)\n"
    )
    heard = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # also where tests run in the background
    job = subprocess.Popen(command("-n", 2, script), stdout=-1, stderr=-1, text=True, preexec_fn=heard)
    pids = [int(pid) for _ in range(2) for pid in job.stdout.readline().split()[1:]]
    job.send_signal(signum)
    assert job.wait(60) == 128 + signum and len(pids) == 4
    assert ("told to end" in job.stderr.read()) == (signum == signal.SIGTERM)
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{p}").exists() for p in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{p}").exists() for p in pids)


def test_an_interrupt_while_processes_are_started_ends_those_that_are(tmp_path, monkeypatch):
    """What they started, too: only the processes themselves end with the launcher."""
    script = "import subprocess, sys, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
    lines, reader = [], Launch._reader

    def interrupted(self, rank, name):
        if rank == 1:
            while not lines:
                time.sleep(0.01)
            raise KeyboardInterrupt
        return reader(self, rank, name)

    monkeypatch.setattr(Launch, "_reader", interrupted)
    launch = Launch([sys.executable, "-c", script], 2, os.environ, lambda _name, _rank, line: lines.append(line))
    with pytest.raises(KeyboardInterrupt):
        launch.run(0)
    assert all(p.poll() is not None for p in launch.processes)
    assert not Path(f"/proc/{int(lines[0])}").exists() or "Z" in Path(f"/proc/{int(lines[0])}/stat").read_text()


def unheard(*_):
    raise BrokenPipeError


def test_processes_whose_output_nobody_reads_see_it():
    assert Launch(["yes"], 2, os.environ, unheard).run(0)[0] == -signal.SIGPIPE


@pytest.mark.slow
def test_lines_that_are_read_late_are_not_lost():
    lines = []
    Launch(["echo", "1\n2"], 1, os.environ, lambda *line: (time.sleep(2.5), lines.append(line))).run(0)
    assert [line[2] for line in lines] == ["1\n", "2\n"]


def test_one_that_ends_before_all_have_come_is_not_waited_for(tmp_path):
    script = tmp_path / "early.py"
    script.write_text(
        "import os, sys\nif os.environ['MESHWRIGHT_PROCESS_ID'] == '1':\n    sys.exit()\n"
        "import meshwright as mw\nmw.distributed.initialize()\n"
    )
    status, _, err = run("-n", 2, script, seconds=60)
    assert status == 1 and "process 0: rank 1 ended with status 0 before all had come" in err


@pytest.fixture
def heeded():
    """The signals that end a launcher end this process as they end one."""
    before = {signum: signal.signal(signum, signal.SIG_DFL) for signum in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    heed_signals()
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


def test_a_signal_while_a_process_is_made_ends_it(heeded, monkeypatch):
    made, popen = [], subprocess.Popen

    def interrupted(*args, **kwargs):
        made.append(popen(*args, **kwargs))
        signal.raise_signal(signal.SIGTERM)  # the system has made it, and nobody knows it yet
        return made[-1]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(Terminated):
        Launch(["sleep", "600"], 2, os.environ, lambda *_: None).run(0)
    assert [p.poll() for p in made] == [-signal.SIGTERM]


@pytest.mark.slow
def test_a_second_interrupt_does_not_wait(heeded):
    """Of processes that take their time to end."""
    said, began = [], 0.0
    launch = Launch(["sh", "-c", "trap '' INT; echo ready; exec sleep 600"], 1, os.environ, lambda *_: said.append(1))

    def interrupt_twice():
        nonlocal began
        while not said:
            time.sleep(0.01)
        began = time.monotonic()
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)

    threading.Thread(target=interrupt_twice).start()
    with pytest.raises(KeyboardInterrupt):
        launch.run(0)
    assert time.monotonic() - began < 2 and launch.processes[0].poll() == -signal.SIGKILL


LEAVE_FIRST = """
import atexit, os, sys, time
import meshwright as mw
lost = os.environ["MESHWRIGHT_PROCESS_ID"] == "1"
if lost:
    atexit.register(time.sleep, 4)  # takes longer to end than those who see it go
mw.distributed.initialize()
time.sleep(0 if lost else 1.5)
sys.exit(int(sys.argv[1]) if lost else 1)
"""


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (3, "rank 1 ended with status 3; then rank"),
        pytest.param(0, " ended with status 1; before it rank 1 had ended, with", marks=pytest.mark.slow),
    ],
)
def test_who_leaves_first_is_named_first(tmp_path, status, words):
    script = tmp_path / "leave.py"
    script.write_text(LEAVE_FIRST)
    code, out, err = run("-n", 3, "--timeout", 30, script, status)
    assert code == (status or 1) and words in err, out + err


def test_one_that_goes_while_it_is_answered_does_not_end_the_others():
    ours, theirs = socket.socketpair()
    theirs.sendall(b".")
    assert rendezvous._answered(ours) and theirs.recv(9) == b"."
    theirs.sendall(b".")
    theirs.close()
    assert not rendezvous._answered(ours)


def test_restarts(tmp_path):
    script = tmp_path / "fail.py"
    script.write_text(
        "import os, sys\nprint('attempt', os.environ['MESHWRIGHT_RESTART'], os.environ['MESHWRIGHT_PROCESS_COUNT'])\n"
        "sys.exit(os.environ['MESHWRIGHT_RESTART'] < '2' and os.environ['MESHWRIGHT_PROCESS_ID'] == '0')\n"
    )
    status, out, err = run("-n", 3, "--restarts", 2, "--min-processes", 2, "--timeout", 1, script)
    assert status == 0, out + err
    assert out.count("attempt 0 3") == 3 and out.count("attempt 1 2") == 2 and out.count("attempt 2 2") == 2, out
    assert "rank 0 ended with status 1" in err and "restart 2 of 2" in err


def test_a_stopped_process_is_not_waited_for(tmp_path):
    """The others have ended, and well: nobody else tells of it."""
    script = tmp_path / "stop.py"
    script.write_text(
        "import os, signal\nif os.environ['MESHWRIGHT_PROCESS_ID'] == '1':\n    os.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    status, _, err = run("-n", 2, "--timeout", 0.1, script)
    assert status == 128 + signal.SIGSTOP and "rank 1 was stopped, and the others had ended" in err


SLURM = {"SLURM_JOB_ID": "7001", "SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_STEP_NODELIST": "node[004-007,9],b"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911"}  # fmt: skip
TORCH = {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "host0", "MASTER_PORT": "29500"}
JOB_SET = {"JOBSET_NAME": "train", "REPLICATED_JOB_NAME": "workers", "JOB_COMPLETION_INDEX": "1", "JOB_INDEX": "2",
           "JOB_REPLICAS": "3", "PROCESSES_PER_JOB": "4", "COORDINATOR_PORT": "8476"}  # fmt: skip
OURS = {"MESHWRIGHT_COORDINATOR": "127.0.0.1:1234", "MESHWRIGHT_PROCESS_ID": "0", "MESHWRIGHT_PROCESS_COUNT": "2"}


def test_places_in_jobs():
    assert find_job({"PATH": "/bin"}) is None
    assert find_job(SLURM) == Job(3, 8, f"node004:{61000 + 7001 % 4000}", "SLURM")
    assert find_job(OPEN_MPI) == Job(1, 2, f"10.96.0.1:{61000 + 1531576320 % 4000}", "Open MPI")
    assert find_job(TORCH) == Job(2, 4, "host0:29501", "RANK and WORLD_SIZE")
    assert find_job(JOB_SET) == Job(9, 12, "train-workers-0-0.train:8476", "JobSet")
    assert find_job({**SLURM, **OURS}) == Job(0, 2, "127.0.0.1:1234", "meshwright run", True, 0)
    numbered = {"SLURM_LOCALID": "1", "LOCAL_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "3"}
    assert [find_job({**env, **numbered}).local_rank for env in (SLURM, TORCH, OPEN_MPI, JOB_SET)] == [1, 2, 3, None]
    assert [first_node(n) for n in ("a", "a,b", "n[3-4]", "n[03,5]x,b", "r[1-2]n[3,4]")] == [
        "a", "a", "n3", "n03x", "r1n3",
    ]  # fmt: skip
    assert find_job({**SLURM, "SLURM_STEP_ID": "2"}).coordinator == f"node004:{61000 + (7001 + 2018) % 4000}"
    assert find_job({**SLURM, **OPEN_MPI}).launcher == "Open MPI"
    uri = {"OMPI_MCA_orte_hnp_uri": "7.0;tcp6://[fe80::1,fe80::2]:34911"}
    assert find_job({**OPEN_MPI, **uri}).coordinator == "[fe80::1]:61007"
    for host in ("::1", "[::1]"):
        assert find_job({**TORCH, "MASTER_ADDR": host}).coordinator == "[::1]:29501"
    assert Job(0, 1, "::1:80", "").coordinator == "[::1]:80"
    assert find_job({"RANK": "0", "WORLD_SIZE": "1"}) is None


PMI = {"PMI_RANK": "1", "PMI_SIZE": "2"}
#: what a launcher sets without which processes would run alone
NEEDED = {
    "MESHWRIGHT_COORDINATOR": OURS | {"MESHWRIGHT_PROCESS_ID": "1"}, "RANK": TORCH, "WORLD_SIZE": TORCH,
    "MASTER_ADDR": TORCH, "MASTER_PORT": TORCH, "OMPI_COMM_WORLD_RANK": OPEN_MPI, "OMPI_COMM_WORLD_SIZE": OPEN_MPI,
    "SLURM_NTASKS": SLURM, "SLURM_JOB_ID": SLURM,
}  # fmt: skip


@pytest.mark.parametrize("missing", NEEDED)
def test_one_of_several_processes_does_not_run_alone(missing, refuses):
    with refuses(DistributedError, "there are several processes", f"{missing} must be set as well"):
        find_job({name: value for name, value in NEEDED[missing].items() if name != missing})


def test_one_process_runs_alone():
    """In a shell that may start tasks, or where a launcher has started one process."""
    shell = {name: value for name, value in SLURM.items() if name != "SLURM_PROCID"}
    one = {"RANK": "0", "WORLD_SIZE": "1"}
    for env in (shell, one, {"RANK": "0"}, {"PMI_RANK": "0", "PMI_SIZE": "1"}, {"SLURM_PROCID": "0"}):
        assert find_job(env) is None, env


def test_launchers_may_leave_the_address_to_the_program(refuses):
    """Where they do not say it, and where they do."""
    for env in (TORCH, OPEN_MPI, SLURM, JOB_SET, OURS):
        there = find_job(env)
        assert find_job(env, "h:9") == replace(there, coordinator="h:9", is_served=False)
    bare = {name: value for name, value in OPEN_MPI.items() if name.startswith("OMPI_COMM")}
    for env in (bare, PMI):
        with refuses(DistributedError, "pass coordinator_address"):
            find_job(env)
        found = find_job(env, "h:9")
        assert (found.rank, found.count, found.coordinator) == (1, 2, "h:9")
    two = {"RANK": "1", "WORLD_SIZE": "2"}
    assert find_job(two, "h:9") == Job(1, 2, "h:9", "RANK and WORLD_SIZE")


def test_gpus_of_processes_by_their_places(monkeypatch):
    third = Job(2, 4, "a:1", "", local_rank=2)
    assert joining._by_place(third, None) == joining._by_place(third, "0,1,2,3") == (2,)
    assert joining._by_place(third, "5") is None  # shown to it alone
    assert joining._by_place(Job(2, 4, "a:1", ""), None) is None
    monkeypatch.setattr(joining, "config", SimpleNamespace(real_devices=2))
    assert joining._by_place(third, None) == (4, 5) and joining._by_place(third, "0,1") is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--timeout", -3), "a positive number of seconds, got -3"),
        (("--timeout", "nan"), "a positive number of seconds"),
        (("--restarts", 1, "--min-processes", 4), "--min-processes 4 is more than the 2 of -n"),
    ],
)
def test_options_that_no_job_can_have(options, words):
    status, out, err = run("-n", 2, *options, "nothing.py")
    assert status == 2 and words in err and not out


@pytest.mark.parametrize("ids", [(), (0, 0), -1, "x"])
def test_numbers_of_devices_that_are_none(ids):
    with pytest.raises(MeshwrightError, match="local_device_ids"):
        mw.distributed.initialize(local_device_ids=ids)


def test_bad_places(refuses):
    with refuses(DistributedError, "RANK", "'x'"):
        find_job({**TORCH, "RANK": "x"})
    with refuses(DistributedError, "process 4 of 4"):
        find_job({**TORCH, "RANK": "4"})
    with refuses(DistributedError, "JOB_REPLICAS", "'many'"):
        find_job({**JOB_SET, "JOB_REPLICAS": "many"})
    with refuses(DistributedError, "port below 65536", "host0:65536"):
        find_job({**TORCH, "MASTER_PORT": "65535"})
    for there in (":1", "h:80:1", "[h:80]:1", "http://h:1", "[http://h]:1", "h:65536", "h"):
        with refuses(DistributedError, "the coordinator's address must be host:port"):
            Job(0, 1, there, "")
    with refuses(DistributedError, "PROCESSES_PER_JOB"):
        find_job({k: v for k, v in JOB_SET.items() if k != "PROCESSES_PER_JOB"})


def test_a_coordinator_that_is_not_there(refuses):
    program = "import meshwright as mw\nmw.distributed.initialize('127.0.0.1:1', 2, 1, initialization_timeout=0.2)\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 1 and "process 1 found no coordinator at 127.0.0.1:1" in done.stderr, done.stderr


def met(count, places, wait=5.0, token="secret", stop="", apart=0.0, host="127.0.0.1", until=None):
    """What processes that come to a coordinator of ``count``, some seconds ``apart``, are told, "" for nothing wrong;
    and whether it served."""
    meeting = Rendezvous(f"{host}:0", count, token)
    if stop:
        threading.Timer(0.3, meeting.give_up, [stop]).start()

    def come(place):
        time.sleep(apart * places.index(place))
        try:
            rendezvous.attend(meeting.address, *place, wait).close()
        except DistributedError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(8) as pool:
        told = [pool.submit(come, place) for place in places]
        try:
            served = meeting.gather(until or wait, lambda: "served")
        except DistributedError as error:
            served = str(error)
        return [t.result() for t in told], served


def test_processes_meet():
    """Before XLA is asked, which ends processes that wait for others in vain."""
    for host in ("127.0.0.1", "[::1]"):
        told, served = met(3, [(r, 3, "secret") for r in range(3)], host=host)
        assert told == ["", "", ""] and served == "served"
    told, served = met(3, [(0, 3, "secret"), (2, 3, "secret"), (1, 3, "guess")], wait=0.5)
    assert all("1 did not come" in t and "rank 1; 1 that came did not know" in t for t in told[:2]), told
    assert "belongs to another job" in told[2] and "did not come" in served
    told, _ = met(2, [(0, 2, "secret"), (1, 4, "secret")])
    assert all("process 1 is one of 4, those at" in t for t in told)
    told, _ = met(2, [(1, 4, "secret"), (0, 2, "secret")], apart=0.2)
    assert all("process 1 is one of 4, those at" in t for t in told), told
    told, _ = met(2, [(0, 2, "secret")], stop="rank 1 ended with status 1 before all had come")
    assert "rank 1 ended" in told[0]


def test_no_process_waits_longer_than_it_says():
    began = time.monotonic()
    told, _ = met(2, [(0, 2, "secret")], wait=0.2, until=60)
    assert "1 did not come" in told[0] and time.monotonic() - began < 5


def test_who_goes_while_all_join_is_told_to_the_others(monkeypatch):
    monkeypatch.setattr(rendezvous, "SILENCE", 0.4)
    meeting, gone, stop = Rendezvous("127.0.0.1:0", 12, ""), set(), threading.Event()
    with ThreadPoolExecutor(12) as pool:
        come = [pool.submit(rendezvous.attend, meeting.address, rank, 12, "", 5.0) for rank in range(12)]
        meeting.gather(5.0, lambda: None)
    connections = [c.result() for c in come]
    thread = threading.Thread(target=rendezvous._fate, args=(connections[0], stop, gone))
    thread.start()
    connections[11].close()
    end = time.monotonic() + 5
    while len(gone) < 11 and time.monotonic() < end:
        time.sleep(0.01)
    stop.set()
    thread.join()
    meeting.end()
    assert gone == set(range(1, 12))  # the last one has ended, the others say nothing


GONE_BETWEEN = """
import os, sys
import meshwright as mw
from meshwright.runtime.pjrt import coordination
if os.environ["MESHWRIGHT_PROCESS_ID"] == "1":
    coordination.connect = lambda *_: os._exit(3)
sys.excepthook = lambda kind, error, trace: print("mine:", error, flush=True)
mw.distributed.initialize(initialization_timeout=100)
"""


@pytest.mark.slow
def test_one_that_goes_while_xla_waits_for_it(tmp_path):
    """XLA would wait, and end the process."""
    script = tmp_path / "between.py"
    script.write_text(GONE_BETWEEN)
    status, out, err = run("-n", 3, script, seconds=60)
    for rank in (0, 2):
        assert f"[{rank}] mine: process {rank} cannot join the job: rank 1 ended, or was stopped" in out, out + err
    assert status == 3


START = """
import os, sys, time
import meshwright as mw
mw.distributed.initialize()
if mw.process_index() == 1 and sys.argv[1] == "dead":
    os._exit(3)
if mw.process_index() == 1 and sys.argv[1] == "late":
    time.sleep(60)
started = time.monotonic()
try:
    mw.numpy.ones(3) + 1
except mw.errors.DistributedError as error:
    print(time.monotonic() - started < 6, error, flush=True)
    sys.exit(1)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("how", "words"), [("dead", "is dead"), ("late", "is late: it lives")])
def test_one_that_does_not_start_its_devices(tmp_path, how, words):
    """For which those of the others wait in XLA, for minutes."""
    script = tmp_path / "start.py"
    script.write_text(START)
    _, out, err = run("-n", 3, "--timeout", 4, script, how, seconds=60)
    for rank in (0, 2):
        line = re.search(rf"^\[{rank}\] True rank 1 on host .*", out, re.M)
        assert line and words in line[0] and f"Rank {rank} waited in the start of the devices" in line[0], out + err


def test_other_versions_do_not_meet(monkeypatch):
    versions = iter(["meshwright 7, jaxlib 8", "meshwright 0, jaxlib 0", "meshwright 0, jaxlib 0"])
    monkeypatch.setattr(rendezvous, "version", lambda: next(versions))
    told, _ = met(2, [(0, 2, "secret")])
    assert "process 0 has meshwright 7, jaxlib 8; the coordinator has meshwright 0" in told[0]


def test_what_listens_is_another_program(refuses):
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        threading.Thread(target=lambda: other.accept()[0].sendall(b"220 mail ready\r\n"), daemon=True).start()
        with refuses(DistributedError, "what listens at", "no coordinator of meshwright", "another address"):
            rendezvous.attend(address, 0, 2, "", 5.0)
        with refuses(DistributedError, "cannot listen", "choose another address"):
            Rendezvous(address, 2, "")


LOSE_THE_COORDINATOR = """
import sys, time
from types import SimpleNamespace
import numpy as np
import meshwright as mw
from meshwright.runtime.pjrt.world import WORLD
from meshwright.runtime.processes import joining, rendezvous
mw.distributed.initialize()
mesh = mw.make_mesh((mw.device_count(),), ("x",))
total = mw.jit(lambda x: x.sum(), in_shardings=mw.NamedSharding(mesh, mw.PartitionSpec("x")))
x = np.arange(float(mw.device_count()))
total(x).block_until_ready()
started = time.monotonic()
try:
    mw.experimental.multihost_utils.sync_global_devices("all is well")
    time.sleep(0.5)  # all have heard it
    rendezvous.config = SimpleNamespace(collective_timeout=3)
    joining.HELD.service and joining.HELD.service._process.kill()
    if mw.process_index() == 3:
        time.sleep(60)  # never asks
    while time.monotonic() < started + 60:
        WORLD.check() if mw.process_index() == 2 else mw.experimental.multihost_utils.sync_global_devices("lost")
        time.sleep(0.01)
except mw.errors.DistributedError as error:
    print(error)
    sys.exit(mw.process_index() == 1)  # a process that catches it ends as it likes
"""


def test_a_lost_coordinator_is_named(tmp_path):
    """Jobs of other launchers have one in a process of its own. XLA, which would end all at once, does not see it."""
    script = tmp_path / "lose.py"
    script.write_text(LOSE_THE_COORDINATOR)
    port = socket.create_server(("127.0.0.1", 0)).getsockname()[1]
    place = {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port - 1)}
    jobs = [
        subprocess.Popen(
            [sys.executable, script], stdout=-1, stderr=-1, text=True, env={**os.environ, **place, "RANK": str(rank)}
        ) for rank in range(4)
    ]  # fmt: skip
    for rank, job in enumerate(jobs):
        out, err = job.communicate(timeout=300)
        assert f"rank {rank}: the coordinator is lost" in out + err, out + err
        assert job.returncode == (rank in (1, 3)) and "Check failure" not in err, err


def test_a_frozen_coordinator_is_named(monkeypatch):
    monkeypatch.setattr(rendezvous, "SILENCE", 0.3)
    monkeypatch.setattr(WORLD, "lost", "")
    ours, theirs = socket.socketpair()
    stop = threading.Event()
    thread = threading.Thread(target=rendezvous.watch, args=(ours, "host:1", 7, stop))
    thread.start()
    for _ in range(2):
        theirs.sendall(theirs.recv(9))
    time.sleep(0.8)
    assert "rank 7: the coordinator is lost" in WORLD.lost and "frozen, or cut off" in WORLD.lost
    with pytest.raises(DistributedError, match="the coordinator is lost"):
        Table(None).get("a", 1.0)
    stop.set()
    thread.join()


@pytest.mark.parametrize(
    ("ended", "runs", "named"),
    [((0, 2), (7, 6, 7, 7), {1}), ((0,), (7, 7, 7, 7), {0}), ((0, 1), (7, 6, 7, 7), {1}), ((), (7, 7, 6, 7), {2})],
)
def test_who_is_behind_a_failure(monkeypatch, ended, runs, named):
    """Ranks 0 and 2, where they have ended, have given up on rank 1. Who lives gives a new sign whenever asked."""

    class Table:
        numbers: ClassVar = dict.fromkeys(range(4), 0)

        def get(self, key, _):
            rank = int(key.rpartition("/")[2])
            self.numbers[rank] += rank not in ended
            blames = [1] if rank in ended and rank != 1 else []
            sign = heartbeats.Heartbeat(self.numbers[rank], "elsewhere", 1, runs[rank], "it", blames=blames)
            return json.dumps(asdict(sign)).encode()

    monkeypatch.setattr(heartbeats, "PERIOD", 0.02)
    monkeypatch.setattr(heartbeats, "LIVING", heartbeats._Living(heartbeats.Heartbeat(runs=7), Table()))
    monkeypatch.setattr(WORLD, "count", 4)
    monkeypatch.setattr(WORLD, "rank", 3)
    assert set(heartbeats.suspects()) == named


def test_uneven_processes_are_named(monkeypatch, refuses):
    """Each of four finds the one that has other devices, which finds the first."""
    said = dict(enumerate([b"2 devices on cpu"] * 2 + [b"4 devices on cpu"] + [b"2 devices on cpu"]))
    table = SimpleNamespace(put=lambda *_: None, get=lambda key, _: said[int(key.rpartition("/")[2])])
    monkeypatch.setattr(WORLD, "count", 4)
    for rank, devices, odd in ((0, 2, 2), (2, 4, 0), (3, 2, 2)):
        monkeypatch.setattr(WORLD, "rank", rank)
        monkeypatch.setitem(config.__dict__, "num_devices", devices)
        with refuses(
            DistributedError, f"process {odd} has", f"this one, {rank}, has {devices}", "meshwright run --dev"
        ):
            joining._check_devices(table, 1.0)
