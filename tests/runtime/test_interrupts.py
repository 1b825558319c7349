"""Ctrl-C at any time is a ``KeyboardInterrupt``, soon: while programs are traced, compiled, run, read, partitioned."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest

PROGRAM = """
import sys
sys.modules["jax"] = None  # jaxlib imports it where it can, and its callbacks at collections swallow exceptions
import itertools
import signal
import numpy as np
import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, PartitionSpec as P

def layers(x, n):
    for i in range(40):
        x = mnp.tanh(x @ x + i + n) + mnp.sort(x, axis=0)
    return x.sum()

mesh = mw.AbstractMesh((2, 2), ("a", "b"))
x = np.eye(48, dtype=np.float32)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background starts without
print("ready", flush=True)
for n in itertools.count():
    f = mw.jit(mw.grad(lambda x: layers(x, n)), in_shardings=NamedSharding(mesh, P("a", "b")))
    lowered = f.lower(x)
    part = lowered.partition()
    part.explain()
    loaded = mw.load(lowered.as_text("hlo" if n % 2 else "stablehlo"))
    np.asarray(loaded(x))
    part.verify(x)
    for _ in range(20):
        mw.jit(lambda x: mw.lax.fori_loop(0, 300, lambda i, x: mnp.tanh(x @ x), x))(x).block_until_ready()
"""
#: seconds from the signal to the end of the process, on a busy machine
PROMPT = 5.0


def interrupted(delay: float) -> tuple[int, str, float]:
    """Exit status, standard error and how long it takes to end a process that gets SIGINT after ``delay`` seconds."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(delay)
        sent = time.perf_counter()
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
        return process.returncode, errors, time.perf_counter() - sent


def check(delay: float) -> float:
    status, errors, seconds = interrupted(delay)
    assert status == -signal.SIGINT, f"SIGINT after {delay:.3f} s: status {status}\n{errors}"
    assert errors.rstrip().endswith("KeyboardInterrupt"), f"SIGINT after {delay:.3f} s:\n{errors}"
    return seconds


def test_ctrl_c_during_a_compilation():
    assert check(0.9) < PROMPT


@pytest.mark.slow
def test_ctrl_c_at_random_times():
    rng = random.Random(7)
    runs = int(os.environ.get("MESHWRIGHT_INTERRUPTS", "200"))
    seconds = sorted(check(rng.uniform(0, 6)) for _ in range(runs))
    print(f"{runs} runs end after {seconds[runs // 2]:.2f} s (median), {seconds[-1]:.2f} s (longest)")
    assert seconds[runs // 2] < PROMPT  # none takes a minute: see above
