"""Ctrl-C at any time is a ``KeyboardInterrupt``, soon: while programs are traced, compiled, run, read, partitioned.

``make fuzz`` interrupts 200 times (``tests/long_runs.py``).
"""

from __future__ import annotations

import atexit
import random
import select
import signal
import subprocess
import sys
import time

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

def interrupted(number, frame):  # as Python's own, while there is work; what comes before is heard when it begins
    global working, early
    if working or not stays:
        working = False
        signal.default_int_handler(number, frame)
    early = True

mesh = mw.AbstractMesh((2, 2), ("a", "b"))
x = np.eye(48, dtype=np.float32)
stays = sys.argv[1:] == ["stay"]
working = early = False
signal.signal(signal.SIGINT, interrupted)
print("ready", flush=True)

def work(n):
    f = mw.jit(mw.grad(lambda x: layers(x, n)), in_shardings=NamedSharding(mesh, P("a", "b")))
    lowered = f.lower(x)
    part = lowered.partition()
    part.explain()
    loaded = mw.load(lowered.as_text("hlo" if n % 2 else "stablehlo"))
    np.asarray(loaded(x))
    part.verify(x)
    for _ in range(20):
        mw.jit(lambda x: mw.lax.fori_loop(0, 300, lambda i, x: mnp.tanh(x @ x), x))(x).block_until_ready()

for n in itertools.count():
    try:
        working = True
        if early:
            raise KeyboardInterrupt
        work(n)
    except KeyboardInterrupt:
        if not stays:
            raise
        working = early = False
        print("heard", flush=True)
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


# --- many ---------------------------------------------------------------------------------------------------
class Kept:
    """A process that goes on after each interrupt, so that it is interrupted at every point of its work."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "stay"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        atexit.register(self.process.kill)
        self.line()

    def line(self) -> str:
        """The next line that it prints; "" if it has ended, or says nothing for a minute."""
        stdout = self.process.stdout
        assert stdout is not None
        return stdout.readline() if select.select([stdout], [], [], 60)[0] else ""

    def interrupt(self) -> float:
        """Seconds until the interrupt is heard."""
        sent = time.perf_counter()
        self.process.send_signal(signal.SIGINT)
        if self.line() != "heard\n":
            self.process.kill()
            raise AssertionError(f"not heard: status {self.process.wait()}\n{self.process.communicate()[1][-3000:]}")
        return time.perf_counter() - sent


_kept: list[Kept] = []


def found_in(number: int) -> str:
    """What interrupt ``number`` does that it should not; "" if nothing. One in 20 ends its process, as most do."""
    rng = random.Random(number)
    try:
        if number % 20 == 0:
            seconds = check(rng.uniform(0, 6))
        else:
            if not _kept or _kept[0].process.poll() is not None:
                _kept[:] = [Kept()]
            time.sleep(rng.uniform(0.001, rng.choice((0.05, 0.5, 3))))
            seconds = _kept[0].interrupt()
    except AssertionError as error:
        return str(error)
    return f"heard after {seconds:.1f} s" if seconds > 2 * PROMPT else ""
