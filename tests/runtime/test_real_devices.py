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


MESHES_OF_SIX = """
import itertools
import numpy as np
import meshwright as mw
devices, value = np.array(mw.devices()), np.arange(42.0).reshape(6, 7)
meshes = [mw.sharding.Mesh(d, ("a", "b")[: d.ndim]) for d in (
    devices, devices.reshape(3, 2), devices.reshape(2, 3), devices[::-1], devices[[3, 1, 4, 0, 5, 2]].reshape(2, 3))]
specs = [mw.P("a"), mw.P(None, "a"), mw.P()]
every = [mw.NamedSharding(m, s) for m in meshes for s in (*specs, mw.P(m.axis_names[::-1]))]
for a, b in itertools.product(every, every):
    x = mw.device_put(mw.device_put(value, a), b)
    assert x.sharding == b and np.array_equal(x, value), (a, b)
    for shard in x.addressable_shards:
        assert np.array_equal(shard.data, value[shard.index]), (a, b)
"""


def test_arrays_move_between_all_meshes_of_six_devices():
    """Axes of 2 and 3 in either order, which no axis of 6 has as parts; devices in any order."""
    env = {**os.environ, "MESHWRIGHT_REAL_DEVICES": "6", "MESHWRIGHT_NUM_DEVICES": "6"}
    done = subprocess.run([sys.executable, "-c", MESHES_OF_SIX], env=env, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr


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
