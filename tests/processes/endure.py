"""Run by ``faults``: training with a checkpoint at every step, in which one process meets a fault at some moment.

Arguments: the fault, the rank that meets it, the step at which and the seconds after which it does, and the folder.
"""

import os
import resource
import signal
import sys
import threading
import time

import numpy as np

import meshwright as mw
from meshwright import NamedSharding
from meshwright import PartitionSpec as P
from meshwright.checkpoint_io import CheckpointManager
from meshwright.errors import MeshwrightError
from meshwright.runtime.processes import joining

STEPS, SIZE, PRIME = 10, 24 << 12, 10_007
fault, lost, at, delay, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5]
first_attempt = os.environ.get("MESHWRIGHT_RESTART", "0") == "0"


def say(*words):
    print(*words, flush=True)


def hit():
    """Meet the fault, from a thread: at any moment of a step or a checkpoint."""
    say("FAULT", time.monotonic())
    match fault:
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "coordinator":
            joining.HELD.service._process.kill()
        case "full disk":
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, resource.RLIM_INFINITY))


def train():
    if fault == "port":
        say("FAULT", time.monotonic())
    mw.distributed.initialize(initialization_timeout=mw.config.collective_timeout if fault == "port" else 60)
    mine = first_attempt and mw.process_index() == lost
    mesh = mw.make_mesh((mw.device_count(),), ("x",))
    split = NamedSharding(mesh, P("x"))
    #: from which step on the program is another: half of them from the first on, before any was agreed on
    other = (at if at % 2 else 0) if mine and fault == "different" else STEPS

    @mw.jit
    def advance(w, step):
        return (3 * w + w.sum() % PRIME + step) % PRIME

    @mw.jit
    def advance_otherwise(w, step):
        return (3 * w + w.sum() % PRIME + step + 1) % PRIME

    w, begin = mw.device_put(np.arange(SIZE, dtype=np.int32), split), 0
    with CheckpointManager(folder, keep=2) as manager:
        if manager.latest_step() is not None:
            state = manager.restore(like={"w": w, "step": 0})
            w, begin = state["w"], state["step"] + 1
        for step in range(begin, STEPS):
            if mine and step == at:
                if fault == "late":
                    say("FAULT", time.monotonic())
                    time.sleep(10 * delay * mw.config.collective_timeout)
                    say("BACK", time.monotonic())
                elif fault == "raises":
                    time.sleep(delay)
                    say("FAULT", time.monotonic())
                    raise ValueError("of the test")
                elif fault == "full disk":
                    hit()
                elif fault != "different":
                    timer = threading.Timer(delay, hit)
                    timer.daemon = True
                    timer.start()
            if step == other:
                say("FAULT", time.monotonic())
            w = (advance if step < other else advance_otherwise)(w, np.int32(step))
            w.block_until_ready()
            manager.save(step, {"w": w, "step": step})


try:
    train()
except MeshwrightError as error:
    say("SEEN", time.monotonic(), type(error).__name__, str(error).replace("\n", " "))
    raise
say("DONE")
