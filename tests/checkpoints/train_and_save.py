"""Run by ``test_checkpoints`` in two processes: trains, saves, loses a process at step 4, and resumes."""

import os
import signal
import sys

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding
from meshwright import PartitionSpec as P
from meshwright.checkpoint_io import CheckpointManager

mw.distributed.initialize()
mesh = mw.make_mesh((mw.device_count(),), ("x",))
w = mw.device_put(mnp.ones((8, 6)), NamedSharding(mesh, P("x")))
step_ = mw.jit(lambda w, rate: w - rate * mnp.tanh(w), donate_argnums=0)
first = 0
with CheckpointManager(sys.argv[1] + "/run", keep=2) as manager:
    if manager.latest_step() is not None:
        state = manager.restore(like={"w": w, "step": 0})
        w, first = state["w"], state["step"] + 1
        print("resumed from step", state["step"], flush=True)
    for step in range(first, 8):
        w = step_(w, 0.1 * (step + 1))
        manager.save(step, {"w": w, "step": step})
        if step == 4 and first == 0:
            manager.wait()
            if mw.process_index() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
