"""Run by ``test_jobs``: what the processes see of one that ends, stops, is late or raises."""

import os
import signal
import sys
import time

import numpy as np

import meshwright as mw
from meshwright import NamedSharding
from meshwright import PartitionSpec as P
from meshwright.errors import DistributedError
from meshwright.runtime import spread

how, lost = sys.argv[1], 1
mw.distributed.initialize()
mesh = mw.make_mesh((mw.device_count(),), ("x",))
total = mw.jit(mw.shard_map(lambda v: mw.lax.psum(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()))
x = mw.device_put(np.arange(2.0 * mw.device_count()), NamedSharding(mesh, P("x")))
started = time.monotonic()
try:  # the first run too: the others may still be in it when this one is lost
    if how == "connecting" and mw.process_index() == lost:  # between the agreement and the first run
        spread.agree = lambda *_, agree=spread.agree: (agree(*_), os.kill(os.getpid(), signal.SIGKILL))
    elif how != "connecting":
        total(x).block_until_ready()
    if mw.process_index() == lost:
        match how:
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "late":
                time.sleep(4 * mw.config.collective_timeout)
            case "raises":
                raise ValueError("of the test")
    started = time.monotonic()
    total(x).block_until_ready()
    print("no error")
except DistributedError as error:
    print(f"after {time.monotonic() - started:.1f} s")
    print(f"ranks {error.ranks}: {error}".replace("\n", " "))
    sys.stdout.flush()
    raise
