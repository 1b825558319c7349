"""Programs on several real devices of one process: the same tests, in processes that have them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def run_tests(real, *files, **environment):
    """Run tests in a process with 8 devices on ``real`` real ones."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *map(str, files)]
    env = {**os.environ, "MESHWRIGHT_REAL_DEVICES": str(real), **environment}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=500, cwd=HERE.parents[1])
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.parametrize("real", [pytest.param(8, marks=pytest.mark.slow), 2], ids=["8 real", "2 real of 4 virtual"])
def test_on_real_devices(real):
    run_tests(real, HERE / "on_real_devices.py")


@pytest.mark.slow
def test_what_virtual_devices_do_real_ones_do():
    files = ["executable/test_control_sharding.py", "executable/test_jax_sharded_programs.py", "api/test_shard_map.py",
             "api/test_jit_shardings.py", "api/test_assembling.py", "api/test_shard_map_automatic.py",
             "api/test_serial_loop.py", "sharding/test_explicit.py", "sharding/test_memory_kinds.py"]  # fmt: skip
    run_tests(8, *(HERE.parent / f for f in files))


ENDLESS = """
import numpy as np
import meshwright as mw
x = mw.device_put(np.ones(2), mw.NamedSharding(mw.make_mesh((2,), ("x",)), mw.PartitionSpec("x")))
found = lambda c: mw.io_callback(lambda: 1 / 0, mw.ShapeDtypeStruct((), "bool"))
mw.jit(lambda x: mw.lax.while_loop(lambda c: ~c[0], lambda c: (found(c), c[1] * c[1].sum()), (x.sum() < 0, x)))(x)
"""


@pytest.mark.slow
def test_a_loop_that_an_error_made_endless_is_left():
    env = {**os.environ, "MESHWRIGHT_REAL_DEVICES": "2"}
    done = subprocess.run([sys.executable, "-c", ENDLESS], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "CallbackError: io_callback: the Python function" in done.stderr, done.stderr
